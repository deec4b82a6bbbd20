"""Finds memory candidates by rule: decisions, preferences, solved problems, facts and open questions.

A candidate quotes a sentence, unchanged, under a label that names its speaker. A sentence that only repeats a tool's
result is labelled as a report. The rules are patterns of English phrases, since agents mostly write English; names
(paths, identifiers, numbers) are recognised in any language.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from accordion.features.memory.conversation.credentials import has_credential
from accordion.features.memory.conversation.self_contained import (
    STATES,
    content_words,
    find_claims,
    has_statement,
    is_self_contained,
)
from accordion.features.memory.conversation.sentences import KnownText, Sentence, normalize_words
from accordion.features.memory.conversation.steps import ConversationRecord, RecordedStep
from accordion.summaries.facts import find_trouble
from accordion.summaries.sentence_forms import REQUEST, RULE, rank_sentence, states_taste

_DECIDES: Final = re.compile(
    r"\b(?:let['’]?s|let us|(?:I|we)(?:['’]ll| will| shall)) (?:go with|use|keep|switch to|stick (?:to|with)|drop|"
    r"choose|take)\b|"
    r"\b(?:I|we)['’]?d (?:go|stick) with\b|\bgoing with\b",
    re.IGNORECASE,
)
_DECIDED: Final = re.compile(
    r"\b(?:I|we|you|the user|the team)(?:['’]ve| have)? (?:decided|chose|chosen|agreed|settled on|picked|opted)\b|"
    r"\b(?:the|our) (?:decision|choice) (?:is|was)\b|"
    r"\b(?:was|were|is|are) (?:chosen|selected|decided|preferred) (?:over|because|as|for)\b|"
    r"\bdecided (?:to|on|against)\b",
    re.IGNORECASE,
)
SOLVES: Final = re.compile(
    r"\b(?:root cause|caused by|turned out|the (?:fix|solution|cause|culprit|workaround) (?:is|was)|resolved by|"
    r"solved by|fixed (?:by|the|in|a|an)|fixes the|(?:bug|problem|issue|error|failure|crash) (?:is|was) "
    r"(?:that|in|at|due|because|fixed|resolved|solved)|(?:fails?|failed|breaks|broke|crash\w*) because)\b",
    re.IGNORECASE,
)
OPEN: Final = re.compile(
    r"\b(?:still (?:needs?|open|unclear|unknown|missing|failing|fails|unresolved)|open question|not yet (?:clear|"
    r"decided|implemented|supported|done|known)|unresolved|remains? (?:to be|open|unclear|unknown|unsolved)|to be "
    r"decided|TBD|left for later|deferred (?:to|until)|known limitation|needs? (?:further|more) (?:investigation|work)|"
    r"(?:I|we) (?:don['’]?t|do not) (?:yet )?know (?:yet |how|why|what|whether|if))\b",
    re.IGNORECASE,
)
_PLANS: Final = re.compile(
    r"^(?:(?:now|ok|okay|great|good|perfect|alright|first|next|then|so|well|excellent|right|also|and|finally|wait|hmm|"
    r"actually|i see|yes|no|sure|absolutely|certainly|of course)\b[,.!:–— -]*)*"
    r"(?:to confirm,? )?(?:let me|let['’]?s|I['’]?ll|I will|I am going|I['’]?m going|I need|I should|"
    r"I['’]?d (?:be|like)|I can\b|I could|I want|we need|we should|we can|we could|would you|do you|want me|"
    r"shall I|should I|could you|can you|feel free|"
    r"please|to (?:help|assist|proceed|do)|if you|here['’]?s|here (?:is|are)|looking at|you can|you should|you may|"
    r"thank|sorry|apologi)",
    re.IGNORECASE,
)
_VERBS: Final = (
    r"please|fix|add|make|create|write|update|change|remove|delete|run|look|read|check|find|show|explain|review|"
    r"implement|refactor|rename|move|test|investigate|debug|generate|build|confirm|provide|engage|search|verify|identify|"
    r"ensure|maintain|extract|collect|submit|document|do|tell|give|try|use"
)
_BIDS: Final = re.compile(
    rf"(?:(?:now|next|then|also|and|finally|first(?:ly)?|second(?:ly)?|third(?:ly)?|lastly)\b[,:]? +)*(?:{_VERBS})\b",
    re.IGNORECASE,
)
"""The beginning of an imperative sentence."""
_ORDERS: Final = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b[^.]{0,40}\b(?:instructions?|rules?|prompts?|above|previous|prior|"
    r"everything|guidelines)\b|\bsystem prompt\b|\byou (?:are now|must now|must always|have been)\b|"
    r"\b(?:new|updated|important) instructions?\b|\bdo not (?:tell|inform|mention)\b|"
    r"\bas an? (?:AI|language model|agent)\b|"
    r"\b(?:assistant|AI|agent|model)s? (?:must|should|shall|has to|needs to)\b",
    re.IGNORECASE,
)
"""A text that gives orders to its reader. Only the user may write one, and it stays a quotation."""
Kind = Literal["fact", "decision", "preference", "solution", "question"]

_BASE_WORTH: Final[dict[Kind, float]] = {
    "preference": 5.0,
    "decision": 4.5,
    "solution": 4.0,
    "question": 3.0,
    "fact": 1.0,
}
_LABEL: Final[dict[tuple[Kind, bool], str]] = {
    ("preference", True): "User preference",
    ("decision", True): "User decision",
    ("solution", True): "Problem and solution, stated by the user",
    ("question", True): "Open question from the user",
    ("fact", True): "The user said",
    ("preference", False): "The assistant stated",
    ("decision", False): "Decision, stated by the assistant",
    ("solution", False): "Problem and solution, stated by the assistant",
    ("question", False): "Open question, stated by the assistant",
    ("fact", False): "The assistant stated",
}
REPORTED: Final = "Reported by a tool, not checked"
_TITLE: Final = re.compile(r"[A-Z][\w #()-]{1,40}: +")
_PRONOUN: Final = re.compile(r"^(?:it|this|that|they|these|those|he|she|both)\b", re.IGNORECASE)
_REPEATED_WORDS: Final = 6
"""Words from which on an assistant's sentence that a result contains counts as the tool's."""
_MAX_CHARACTERS: Final = 2_000_000
"""Characters of a result that is searched."""
_ERROR_LINE: Final = re.compile(r"(?:E +)?[\w.]*(?:Error|Exception|FAILED|panic|fatal)\b")
_SOLUTION_DISTANCE: Final = 40
"""Messages between an error and its solution at most."""


class MemoryCandidate(msgspec.Struct, frozen=True):
    """A text that may become a memory.

    `text` is the quotation, `label` names its speaker and kind; `first` and `last` are the indexes of its messages.
    """

    kind: Kind
    text: str
    label: str
    first: int
    last: int
    worth: float
    weak: bool = False
    """Whether the candidate is only stored if a compaction has a topic that it is about."""

    @property
    def content(self) -> str:
        """Returns the memory's text."""
        return f'{self.label}: "{self.text}"'


def find_candidates(
    sentences: Sequence[Sentence],
    record: ConversationRecord,
    background: KnownText,
    *,
    since: int = 0,
    is_end: bool = True,
) -> list[MemoryCandidate]:
    """Returns all candidates that the rules find in `sentences`, in order and without duplicates.

    Errors that tools reported from message `since` on are added to their solutions. `is_end`: the conversation ends
    with these sentences.
    """
    tool_statements = _ToolStatements(record.steps)
    last_at = sentences[-1].at if sentences and is_end else -1
    candidates: list[MemoryCandidate] = []
    for sentence in sentences:
        if background.contains(sentence.text) or has_credential(sentence.text):
            continue
        candidate = (
            _from_user(sentence, sentence.at == last_at)
            if sentence.speaker == "user"
            else _from_assistant(sentence, tool_statements)
        )
        if candidate is not None and (complete := _make_self_contained(candidate, sentence, background)) is not None:
            candidates.append(complete)
    return remove_duplicates(_add_problems(candidates, [step for step in record.steps if step.at >= since]))


def remove_duplicates(candidates: Iterable[MemoryCandidate]) -> list[MemoryCandidate]:
    """Removes candidates that repeat another one or a part of it. The longer one stays."""
    unique: list[MemoryCandidate] = []
    keys: list[tuple[str, frozenset[str], frozenset[str]]] = []
    similar_texts = _SimilarTexts()
    for candidate in candidates:
        words = normalize_words(candidate.text)
        key = words, frozenset(words.split()), frozenset(find_claims(candidate.text))
        position = next((position for position in similar_texts.find(key[1]) if _are_alike(key, keys[position])), -1)
        if position < 0:
            similar_texts.add(key[1], len(unique))
            unique.append(candidate)
            keys.append(key)
        elif keys[position][0] in words and len(words) > len(keys[position][0]):
            # The longer text takes the higher worth of both.
            preferred = max(candidate, unique[position], key=lambda each: (not each.weak, each.worth))
            unique[position], keys[position] = replace(candidate, worth=preferred.worth, weak=preferred.weak), key
            similar_texts.add(key[1], position)
    return unique


class _SimilarTexts:
    """Finds the texts that may be alike to a text, so that not all pairs are compared.

    If a text is part of another, all of its words except the two at its ends are words of the other. If two texts have
    17 of 20 words in common, at most 3 of 20 differ. So of any few words of a text, the other has at least one. The
    rarest words find the fewest texts.
    """

    def __init__(self) -> None:
        self._by_word: defaultdict[str, list[int]] = defaultdict(list)
        self._by_rare_word: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, words: frozenset[str], index: int) -> None:
        """Adds a text with these words under an index."""
        for word in self._rarest_words(words):
            self._by_rare_word[word].append(index)
        for word in words:
            self._by_word[word].append(index)

    def find(self, words: frozenset[str]) -> list[int]:
        """Returns the sorted indexes of texts that may be alike to a text with these words."""
        indexes = {index for word in self._rarest_words(words) for index in self._by_word.get(word, ())}
        indexes.update(index for word in words for index in self._by_rare_word.get(word, ()))
        return sorted(indexes)

    def _rarest_words(self, words: frozenset[str]) -> list[str]:
        return nsmallest(1 + max(2, 3 * len(words) // 20), words, key=lambda word: len(self._by_word.get(word, ())))


def _are_alike(
    first: tuple[str, frozenset[str], frozenset[str]], second: tuple[str, frozenset[str], frozenset[str]]
) -> bool:
    """Returns whether one text is part of the other, or all names and nearly all words are equal."""
    if first[0] in second[0] or second[0] in first[0]:
        return True
    return first[2] == second[2] and 20 * len(first[1] & second[1]) >= 17 * len(first[1] | second[1])


def is_safe(text: str) -> bool:
    """Returns whether a text has no credential and gives no orders."""
    return _ORDERS.search(text) is None and not has_credential(text)


def is_decision(sentence: Sentence) -> bool:
    """Returns whether a sentence states a decision; what the assistant is about to do is none."""
    text = sentence.text
    return _DECIDED.search(text) is not None or (sentence.speaker == "user" and _DECIDES.search(text) is not None)


def is_preference(text: str) -> bool:
    """Returns whether a user's sentence gives a rule or states a taste."""
    return rank_sentence(text) == RULE or states_taste(text)


# -- rules by speaker --------------------------------------------------------------


def _from_user(sentence: Sentence, is_newest: bool) -> MemoryCandidate | None:
    text = sentence.text
    if text.endswith("?"):
        # Only the last question has no recorded answer.
        return _make_candidate("question", sentence) if is_newest else None
    if is_decision(sentence):
        return _make_candidate("decision", sentence)
    if is_preference(text):
        return _make_candidate("preference", sentence)
    if OPEN.search(text):
        return _make_candidate("question", sentence)
    if SOLVES.search(text):
        return _make_candidate("solution", sentence)
    is_request = rank_sentence(text) == REQUEST
    claims = len(find_claims(text))
    if (claims and not is_request and STATES.search(text)) or (claims and is_request):
        return replace(
            _make_candidate("fact", sentence),
            worth=(2.0 if is_request else 3.0) + min(3, claims) * 0.2,
            label=_user_label(is_request),
        )
    return replace(_make_candidate("fact", sentence), weak=True, label=_user_label(is_request))


def _user_label(is_request: bool) -> str:
    return "The user asked" if is_request else _LABEL["fact", True]


def _from_assistant(sentence: Sentence, tool_statements: _ToolStatements) -> MemoryCandidate | None:
    text = sentence.text
    # `Coder: Write the test` is a plan, too.
    title = _TITLE.match(text)
    if text.endswith("?") or _PLANS.match(text) or _BIDS.match(text, title.end() if title else 0):
        return None
    if _ORDERS.search(text):
        return None
    if tool_statements.contains(sentence):
        return replace(_make_candidate("fact", sentence), label=REPORTED, worth=0.8)
    claims = len(find_claims(text))
    for kind, matches in _ASSISTANT_RULES:
        if matches(text):
            candidate = _make_candidate(kind, sentence)
            return replace(
                candidate, worth=candidate.worth + min(3, claims) * 0.3, weak=kind == "solution" and not claims
            )
    if claims and STATES.search(text):
        return replace(_make_candidate("fact", sentence), worth=1.0 + min(4, claims) * 0.35)
    return replace(_make_candidate("fact", sentence), weak=True, worth=0.5) if has_statement(text) else None


_ASSISTANT_RULES: Final[tuple[tuple[Kind, Callable[[str], object]], ...]] = (
    ("solution", SOLVES.search),
    ("decision", _DECIDED.search),
    ("question", OPEN.search),
)


def _make_candidate(kind: Kind, sentence: Sentence) -> MemoryCandidate:
    is_user = sentence.speaker == "user"
    worth = _BASE_WORTH[kind] * (1.0 if is_user else 0.8)
    return MemoryCandidate(kind, sentence.text, _LABEL[kind, is_user], sentence.at, sentence.at, worth)


def _make_self_contained(
    candidate: MemoryCandidate, sentence: Sentence, background: KnownText
) -> MemoryCandidate | None:
    """Returns the candidate if it is self-contained, else with the sentence before it if that is, else None."""
    if is_self_contained(candidate.text):
        return candidate if len(content_words(candidate.text)) >= 2 or find_claims(candidate.text) else None
    previous = sentence.previous
    if (
        not previous
        or _PLANS.match(previous)
        or not is_self_contained(previous)
        or background.contains(previous)
        or not is_safe(previous)
    ):
        return None
    remainder = _PRONOUN.sub("", candidate.text, count=1)
    # The rest of the sentence, after the pronoun for the sentence before, must not refer to anything else.
    if remainder == candidate.text or not is_self_contained(f"What was named{remainder}"):
        return None
    return replace(candidate, text=f"{previous} {candidate.text}")


class _ToolStatements:
    """The results of tools. A sentence that an earlier result contains is not the assistant's own."""

    def __init__(self, steps: Sequence[RecordedStep]) -> None:
        results = (
            (step.at, normalize_words(step.result))
            for step in steps
            if step.result and len(step.result) < _MAX_CHARACTERS
        )
        self._texts = [(position, text, frozenset(text.split())) for position, text in results]

    def contains(self, sentence: Sentence) -> bool:
        sentence_text = normalize_words(sentence.text)
        words = sentence_text.split()
        # The first and the last word may be parts of words of the result. Few results have all the others.
        inner_words = frozenset(words[1:-1])
        return len(words) >= _REPEATED_WORDS and any(
            position < sentence.at and inner_words <= result_words and sentence_text in text
            for position, text, result_words in self._texts
        )


# -- solved problems --------------------------------------------------------------


def _add_problems(candidates: Sequence[MemoryCandidate], steps: Sequence[RecordedStep]) -> list[MemoryCandidate]:
    """Adds to solutions the errors that tools reported before them. Each error goes to its first solution."""
    errors = [(step.at, problem) for step in steps if (problem := _find_problem(step))]
    result: list[MemoryCandidate] = []
    for candidate in candidates:
        solution = candidate
        if candidate.kind == "solution" and not candidate.label.endswith("user"):
            earlier_errors = [
                error for error in errors if candidate.first - _SOLUTION_DISTANCE <= error[0] < candidate.first
            ]
            position, problem = earlier_errors[-1] if earlier_errors else (0, "")
            if set(content_words(problem)) & set(content_words(candidate.text)):
                errors = [error for error in errors if error[0] > candidate.first]
                label = f"Problem: {problem} {candidate.label}"
                solution = replace(candidate, label=label, first=position, worth=candidate.worth + 0.5)
        result.append(solution)
    return result


def _find_problem(step: RecordedStep) -> str:
    """Returns the error that a tool reported; empty if there is none or it gives orders."""
    for line in find_trouble((step.result or "")[:200_000]):
        problem = " ".join(line.split())
        if 12 <= len(problem) <= 240 and (step.is_failed or _ERROR_LINE.match(problem)) and is_safe(problem):
            return f"the tool {step.name} reported `{problem}`."
    return ""
