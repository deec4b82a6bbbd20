"""Checks a model's summary line by line against the messages.

A line is dropped if it cites none of the messages; if it contains a name, path, number or quotation that the messages
do not, or mostly words that its own messages do not; if it invents a user's request; or if it is empty. A line that
cites many messages keeps those that support it best. The summary fails if too few lines remain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.model.budget import CompactionKind
from accordion.summaries.evidence import Evidence, is_claim, word_stems
from accordion.summaries.instructions import states_instruction
from accordion.summaries.schema import SummaryLine, render_lines

MIN_LINES: Final = {"conversation": 3, "generation": 2}
"""The minimum number of remaining lines."""
_MAX_SOURCES: Final = 6
"""The number of messages that a line may cite."""
_MAX_LENGTH: Final = 800
"""Characters of a line."""
_MIN_SUPPORT: Final = 0.4
"""The share of a line's words that its own messages must contain."""
_MAX_UNKNOWN: Final = 2, 1 / 3
"""The number, and the share, of a line's words that no message contains: the larger is allowed."""

_USERS: Final = (
    r"ask|want|request|said|say|told|tell|prefer|insist|instruct|need|confirm|approv|agree|chose|choos|reject|declin|"
    r"wrote|report|complain|expect|demand|decid|clarif|specif|requir|provid|g[ai]ve|mention|state|allow|forb|wish|like"
)
_USER_CLAIM = re.compile(
    rf"\b(?:user|customer|client|human)(?:['’]?s)?\s+(?:\w+\s+){{0,2}}?(?:{_USERS})\w*|"
    r"\b(?:by|per|from) the (?:user|customer|client|human)\b|"
    r"\b(?:user|customer|client|human)['’]s? (?:request|instruct|intent|goal|wish|prefer|question|order|decision)\w*",
    re.IGNORECASE,
)
_EMPTY_PHRASES: Final = frozenset(
    {
        *("", "none", "n a", "na", "nothing", "unknown", "tbd", "todo", "not available", "not applicable", "empty"),
        *("no summary", "summary", "conversation summary", "conversation history", "summary of the conversation"),
        *("conversation history summary", "summary of conversation", "previous conversation", "see above"),
        *("no information", "not specified", "not mentioned", "no decisions", "no open questions", "no next steps"),
        *("continue", "continue the conversation", "continue the work", "various", "various tasks", "string", "text"),
        *("error", "an error occurred", "conversation in progress", "ongoing conversation", "failed to summarize"),
        *("the user and the assistant had a conversation", "summary unavailable", "summary could not be generated"),
    }
)
_REFUSAL = re.compile(
    r"\b(?:I'm sorry|I am sorry|I cannot|I can't|as an AI|failed to (?:generate|create|produce) (?:a |the )?summary|"
    r"summary (?:generation )?failed|unable to summari[sz]e)\b",
    re.IGNORECASE,
)
_NOT_WORD = re.compile(r"[\W_]+")


class CheckedSummary(msgspec.Struct, frozen=True):
    """The remaining lines, the dropped ones with reasons, and the problem of the whole; empty if it is usable."""

    lines: tuple[SummaryLine, ...]
    dropped_lines: tuple[str, ...] = ()
    problem: str = ""
    is_usable: bool = False
    """Whether what remains may be used although there is a problem, if a repair does not help."""

    @property
    def text(self) -> str:
        """The remaining lines, rendered."""
        return render_lines(self.lines)


def check(
    lines: Sequence[SummaryLine],
    kind: CompactionKind,
    evidence: Evidence,
    *,
    limit: int,
    count: Callable[[str], int],
    last_index: int | None = None,
) -> CheckedSummary:
    """Checks a summary's lines against its evidence. The remaining lines have at most `limit` tokens.

    `last_index` is the last message that the writer has read, if that is not the last source.
    """
    accepted: list[SummaryLine] = []
    dropped_reasons: list[str] = []
    restated_reasons: list[str] = []
    texts: set[str] = set()
    for read_line in lines:
        line = _choose_sources(read_line, evidence, last_index)
        reason = _rejection_reason(line, evidence)
        if not reason and line.text in texts:
            reason = "it repeats another line"
        if not reason and line.section.limits and _restates_instruction(line, evidence):
            # The block lists the instruction itself, so this is no fault of the model.
            restated_reasons.append(f"{line.section.label} {line.text[:120]!r}: it is already listed word for word")
        elif reason:
            dropped_reasons.append(f"{line.section.label} {line.text[:120]!r}: {reason}")
        else:
            texts.add(line.text)
            accepted.append(_mark_tool_report(line, evidence))
    fitting, omitted = _fit_lines(accepted, limit, count)
    problem = _find_problem(fitting, kind, evidence)
    is_usable = not problem
    if not problem and len(dropped_reasons) * 2 > len(lines):
        problem = f"{len(dropped_reasons)} of its {len(lines)} lines were rejected"
    return CheckedSummary(tuple(fitting), (*dropped_reasons, *restated_reasons, *omitted), problem, is_usable)


def _choose_sources(line: SummaryLine, evidence: Evidence, last_index: int | None) -> SummaryLine:
    """Returns a line without citations of messages that the writer has not read; of many, those that support it."""
    known = [
        index
        for index in line.sources
        if index in evidence.carried_citations
        or (index in evidence.citable and (last_index is None or index <= last_index or index == evidence.task_index))
    ]
    if len(known) > _MAX_SOURCES:
        users = [index for index in known if index in evidence.user_texts] if _is_user_claim(line) else []
        known = evidence.find_supporting(line.text, users or known, _MAX_SOURCES)
    return replace(line, sources=tuple(known))


def _is_user_claim(line: SummaryLine) -> bool:
    return line.section.is_user_claim or _USER_CLAIM.search(line.text) is not None


def _rejection_reason(line: SummaryLine, evidence: Evidence) -> str:
    """Returns the reason to drop a line; empty if it may stay."""
    if _is_empty_phrase(line.text):
        return "it has no content"
    if len(line.text) > _MAX_LENGTH:
        return "it is too long"
    if not line.sources:
        return "it cites none of the messages"
    if line.text in evidence.whole.text and evidence.carried_citations.issuperset(line.sources):
        # A line of the earlier narrative was checked against its messages, and may stay unchanged.
        return _contradiction_reason(line, evidence)
    is_user_claim = _is_user_claim(line)
    if is_user_claim and (reason := _misattribution_reason(line, evidence)):
        return reason
    if reason := _contradiction_reason(line, evidence):
        return reason
    if line.section.is_instruction and evidence.tool_messages.issuperset(line.sources):
        return "only a tool's output supports it, and that decides nothing"
    if missing := evidence.find_unsupported(line.text, line.sources, is_user_claim=is_user_claim):
        return f"{missing[:80]!r} does not occur literally in the {'user’s own words' if is_user_claim else 'messages'}"
    # Names and paths occur literally already, wherever that is.
    line_stems = word_stems(" ".join(word for word in line.text.split() if not is_claim(word)))
    cited_stems = evidence.index_cited(line.sources).stems
    if len(cited_stems) > 1 and len(line_stems & cited_stems) < _MIN_SUPPORT * len(line_stems):
        return "the messages that it cites do not say so"
    max_number, max_share = _MAX_UNKNOWN
    if len(cited_stems) > 1 and len(line_stems - evidence.whole.stems) > max(max_number, max_share * len(line_stems)):
        return "it has many words that no message has"
    return ""


def _misattribution_reason(line: SummaryLine, evidence: Evidence) -> str:
    """Returns the reason why a claim is not the user's: it cites no user message, or none with a common word."""
    cited_texts = [evidence.user_texts[index] for index in line.sources if index in evidence.user_texts]
    if not cited_texts:
        return "it is about the user but cites no message from the user"
    user_stems = {stem for text in cited_texts for stem in word_stems(text)}
    line_stems = word_stems(line.text)
    if len(line_stems) > 1 and len(user_stems) > 1 and not line_stems & user_stems:
        return "the user's messages that it cites do not support it"
    return ""


def _contradiction_reason(line: SummaryLine, evidence: Evidence) -> str:
    """Returns the reason why a line contradicts the user: it reverses an instruction, or repeats an outdated one."""
    for index, instruction in evidence.standing.outdated:
        if index in line.sources and states_instruction(line.text, instruction):
            return f"the user changed this after message {index}"
    for cited in evidence.standing.cited:
        if cited.index in line.sources and states_instruction(line.text, cited.instruction, reversed=True):
            return f"message {cited.index} says the opposite"
    return ""


def _restates_instruction(line: SummaryLine, evidence: Evidence) -> bool:
    return any(
        cited.index in line.sources and states_instruction(line.text, cited.instruction)
        for cited in evidence.standing.cited
    )


def _is_empty_phrase(text: str) -> bool:
    words = _NOT_WORD.sub(" ", text).strip().lower()
    return words in _EMPTY_PHRASES or sum(map(str.isalnum, text)) < 2 or _REFUSAL.search(text) is not None


def _mark_tool_report(line: SummaryLine, evidence: Evidence) -> SummaryLine:
    """Marks a line that only tool results support: it may be wrong, or a prompt injection."""
    if evidence.tool_messages.issuperset(line.sources):
        return SummaryLine(line.section, line.text, line.sources, is_tool_report=True)
    return line


def _fit_lines(
    lines: list[SummaryLine], limit: int, count: Callable[[str], int]
) -> tuple[list[SummaryLine], list[str]]:
    """Drops the least important lines beyond a limit of tokens, later ones first. Also returns the reasons."""
    sizes = [count(f"{line}\n") for line in lines]
    total, omitted = sum(sizes), set[int]()
    for index in sorted(range(len(lines)), key=lambda index: (-lines[index].section.rank, -index)):
        if total <= limit:
            break
        total -= sizes[index]
        omitted.add(index)
    omitted_lines = [lines[index] for index in sorted(omitted)]
    reasons = [f"{line.section.label} {line.text[:120]!r}: it does not fit" for line in omitted_lines]
    return [line for index, line in enumerate(lines) if index not in omitted], reasons


def _find_problem(lines: list[SummaryLine], kind: CompactionKind, evidence: Evidence) -> str:
    """Returns the reason why the remaining lines are no summary; empty if they are one."""
    if len(lines) < MIN_LINES[kind]:
        return f"only {len(lines)} lines of it remain"
    if sum(len(line.text) for line in lines) >= evidence.source_characters:
        return "it is not shorter than the messages that it replaces"
    return ""
