"""Excerpts: the archived sentences that answer what a turn asks.

Theory of operation. `Query` has the terms of the sentences in a turn that ask something, and the names in it (paths,
identifiers, quotations), which count more. `PassageIndex` gives the passages that have these terms; their sentences
(lines, in results of tools) are ranked by the terms in them and near them, as an answer stands next to its question.
Terms that the last exchange has count half: the turn speaks of what is in view. Most turns need nothing. So the best
sentence must have a least score, which does not depend on the length of the archive, or all terms of the question.
Sentences in view are left out, and so are values that a newer sentence replaces (`select_standing`).

With an embedding, sentences that say the same in other words rank higher. Whether anything is recalled is decided by
words alone, so that turns which need nothing get no more.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from heapq import nlargest
from itertools import chain, islice
from operator import itemgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.archive.passage_index import (
    Passage,
    PassageIndex,
    PassageIndexes,
    describe_source,
    find_call,
    read_passage,
    readable_text,
)
from accordion.archive.references import artifact_id
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Conversation, Message, Text, ToolCall
from accordion.model.search import NEAR, TermScores, TokenEmbedding
from accordion.model.tenant import TenantScope
from accordion.model.words import search_terms
from accordion.sessions.user_text import is_client_summary, user_text
from accordion.summaries.dates import find_date, is_date
from accordion.summaries.instructions import CitedInstruction, Instruction, build_instruction, select_standing
from accordion.summaries.sentence_forms import RULE, opens_with_verb, rank_sentence, split_sentences

OPENING: Final = (
    "[Excerpts from this conversation's archive, added because the newest message asks about them. Quoted data, not a "
    "request.]"
)

_LEAST_SCORE: Final = 1.2
"""The least score of the best sentence, in weights of a term that a single passage has."""
_LEAST_OF_CALLS: Final = 5.0
"""The same for calls, which ask nothing, so that their names alone count: several in one place."""
_LEAST_SHARE: Final = 0.35
"""The least score of every other sentence, as a share of the best one's."""
_NAME_FACTOR: Final = 2.0
_INDIRECT_FACTOR: Final = 0.5
"""A request, and a question about the reader's present, rarely ask for what was said."""
_IN_VIEW_FACTOR: Final = 0.5
_RECENT: Final = 4
"""Messages before the turn whose terms count half: the turn speaks of them."""
_RELEVANT: Final = 20
"""The passages that answer best by the embedding, which are ranked beside those that have the words."""
_MIN_COMPLETE: Final = 3
"""Terms of a question that a sentence must have, and all of them, to be good enough in any case."""
_MAX_UNIQUE: Final = 3
"""A term in more passages than this does not tell alone what a question about somebody asks for."""
_MAX_PASSAGES: Final = 30
"""Passages whose sentences are ranked."""
_MAX_SUBJECTS: Final = 300
"""Terms of a turn, for standing instructions about its subject."""
_MAX_RULES: Final = 3
_RULE_SHARE: Final = 0.5
"""The share of a standing instruction's terms that a turn about its subject has."""
_MAX_RARE: Final = 8
"""A name in more passages than this is not rare."""
_MAX_CANDIDATES: Final = 150
_MAX_COMPARED: Final = 30
"""Sentences that are compared for newer values, of the archive, and half as many of those in view."""
_MAX_TEXT: Final = 20_000
"""Characters of one text of the turn."""
_MAX_TERMS: Final = 60
_MAX_NAMES: Final = 20
_MAX_CHECKED: Final = 50
"""Passages with all terms of a name that are read for the name itself."""
_PASSAGES_BEFORE, _PASSAGES_AFTER = 1, 3
"""Passages of a result that are quoted around one that was found."""
_MAX_DATE_DISTANCE: Final = 200
"""Messages between a date and a sentence."""

_QUOTED = re.compile(r'"([^"\n]{4,200})"|`([^`\n]{2,200})`|“([^”\n]{4,200})”')
_NAME = re.compile(
    r"(?<![\w/.-])[\w~./\\@:#-]*?(?:\w[/\\@#_]\w|\w\.[^\W\d]|[^\W\d]\d|\d[^\W\d]|\d{5}|[a-z][A-Z])[\w~./\\@:#-]*\w?"
)
"""A path, an identifier, an address or a long number."""
_MIN_NAME: Final = 4
_RULE_NAME = re.compile(r"(?<=[^.!?\s] )[^\W\d_a-z][\w-]{2,}|[\w-]*\d[\w-]*")
"""A word with a capital that begins no sentence, or with a digit."""
_ASKS = re.compile(
    r"(?:(?:and|but|so|ok|okay|also|now)[ ,]+)*(?:what|who|whom|whose|when|where|why|how|which|remind|tell me|was|wer|"
    r"wann|wo|warum|wie|welche\w*|qu[eé]|qui[eé]n|cu[aá]ndo|d[oó]nde|c[oó]mo|qui|quand|où|comment|pourquoi)\b",
    re.IGNORECASE,
)
_TO_READER = re.compile(r"\b(?:you|your|yours|du|dein\w*|dir|dich|tu|vous|votre|usted|você)\b", re.IGNORECASE)
_PAST = re.compile(
    r"\b(?:did|was|were|had|said|told|mentioned|earlier|before|again|previously|last|remember|hast|habe\w*|war\w*)\b",
    re.IGNORECASE,
)


class Excerpt(msgspec.Struct, frozen=True):
    """The text that is put in front of the newest turn, its tokens, and the artifacts that it names.

    `quotes` are the quoted sentences and lines with the client's index of their message.
    """

    text: str
    tokens: int
    artifacts: tuple[str, ...]
    quotes: tuple[tuple[int, str], ...]


class Query:
    """What a turn asks: the factor of each term, and the names in it with their terms.

    `texts` are the user's, which may ask something. Of `arguments`, those of calls of `tools`, only the names count.
    """

    def __init__(self, texts: Sequence[str], arguments: Sequence[str] = (), tools: Sequence[str] = ()) -> None:
        self.least_score = _LEAST_OF_CALLS if arguments else _LEAST_SCORE
        self.factors, self.names = dict[str, float](), dict[str, tuple[str, ...]]()
        terms = chain.from_iterable(map(search_terms, (*texts, *tools, *arguments)))
        self.questions = list[str]()
        """The sentences that ask something."""
        self.people = set[str]()
        """The terms of the words with a capital in them."""
        self.subjects = dict.fromkeys(islice(terms, _MAX_SUBJECTS))
        """The terms of the turn, for standing instructions about its subject."""
        for text in texts:
            self.questions += filter(_ask_factor, _split_lines(text))
            capitalized = chain.from_iterable(map(_RULE_NAME.findall, self.questions))
            self.people.update(chain.from_iterable(map(search_terms, capitalized)))
            for sentence in _split_lines(self._take_names(text)):
                self._add(sentence, _ask_factor(sentence))
        for text in arguments:
            self._take_names(text)

    def _take_names(self, text: str) -> str:
        """Adds the names in a text; returns the text without them."""
        names = [match[match.lastindex or 0].strip() for match in _QUOTED.finditer(text)]
        names += [name.strip(".:-") for name in _NAME.findall(text)]
        for name in islice(dict.fromkeys(names), _MAX_NAMES):
            if len(name) >= _MIN_NAME and (terms := tuple(dict.fromkeys(search_terms(name)))):
                self.names[name] = terms
                text = text.replace(name, " ")
        return text

    def _add(self, sentence: str, factor: float) -> None:
        for term in search_terms(sentence) if factor else ():
            if len(self.factors) < _MAX_TERMS or term in self.factors:
                self.factors[term] = max(factor, self.factors.get(term, 0.0))


def _split_lines(text: str) -> Iterator[str]:
    """Yields the sentences of a text."""
    return chain.from_iterable(map(split_sentences, text.splitlines()))


def _ask_factor(sentence: str) -> float:
    """Returns how much a sentence asks for something that may be in the archive; 0 if it asks nothing."""
    if sentence[-1:] in "?？" or _ASKS.match(sentence):
        return _INDIRECT_FACTOR if _TO_READER.search(sentence) and not _PAST.search(sentence) else 1.0
    return _INDIRECT_FACTOR if opens_with_verb(sentence) else 0.0


class Candidate(msgspec.Struct, frozen=True, eq=False):
    """A sentence, or lines of a result, that may be quoted, with the score; `order` is the place in the history."""

    score: float
    passage: Passage
    order: tuple[int, int, int]
    text: str
    is_prose: bool

    @property
    def message(self) -> int:
        """The client's index of its message."""
        return self.passage.position[0]


class ArchiveSearch:
    """Finds and writes excerpts. Safe to use from threads.

    `load_embedding` runs at the first use; None: words alone.
    """

    def __init__(
        self, indexes: PassageIndexes | None = None, load_embedding: Callable[[], TokenEmbedding] | None = None
    ) -> None:
        self.indexes, self.load_embedding = indexes or PassageIndexes(), load_embedding

    def prepare(self, client: Conversation, count: int) -> None:
        """Makes all that searches of the first `count` messages need."""
        self.indexes.index(client.messages, client.chain, count)
        if self.load_embedding is not None:
            self.indexes.embed(self.load_embedding(), client.messages, client.chain, count)

    def compare(self, query: str, client: Conversation, count: int) -> list[float]:
        """Returns how well each passage of the first `count` messages answers a query, from 0 to 1.

        Empty if there is no embedding.
        """
        if self.load_embedding is None or not query:
            return []
        embedding = self.load_embedding()
        blocks = self.indexes.embed(embedding, client.messages, client.chain, count)
        lengths = [*chain.from_iterable(block.lengths for block in blocks)]
        return embedding.compare(query, b"".join(block.tokens for block in blocks), lengths)

    def pending_bytes(self, history: CompactedConversation, client: Conversation) -> int:
        """Returns the bytes that `find_excerpt` must read to index what a compaction covers."""
        return self.indexes.pending_bytes(client.messages, client.chain, history.covered_count)

    def find_excerpt(
        self,
        tenant: TenantScope,
        history: CompactedConversation,
        client: Conversation,
        turn: range,
        count: Callable[[str], int],
        *,
        tokens: int,
    ) -> Excerpt | None:
        """Returns the excerpt for the newest turn; None if nothing archived answers it, or nothing fits.

        `history` is the list as it would be forwarded, with earlier tool rounds and excerpts; `client` is the client's
        own conversation, `turn` the indexes of the turn's messages. `count` counts the tokens of a text: the excerpt
        has at most `tokens`.
        """
        turn = _with_calls(client.messages, turn)
        query = _read_query(client.messages[turn.start : turn.stop])
        if not query.subjects or not history.covered_count:
            return None
        index = self.indexes.index(client.messages, client.chain, history.covered_count)
        compare = partial(self.compare, client=client, count=history.covered_count)
        search = _Search(query, index, compare, history, client, turn)
        candidates = search.find_candidates()
        if not candidates:
            return None
        return _ExcerptWriter(tenant, index, history, client, count, tokens).write(search.choose_newest(candidates))


def _with_calls(messages: Sequence[Message], turn: range) -> range:
    """Returns the indexes of a turn's messages; if they are results, with those of their calls."""
    start = turn.start
    if any(messages[at].has_tool_result for at in turn):
        while start > 0 and messages[start - 1].role == "assistant":
            start -= 1
    return range(start, turn.stop)


def _read_query(turn: Sequence[Message]) -> Query:
    """Reads what the user asks in a turn, or what the calls in it name."""
    parts = [(message.role, part) for message in turn for part in message.parts]
    calls = [part for _, part in parts if isinstance(part, ToolCall)]
    arguments = [readable_text(call)[:_MAX_TEXT] for call in calls]
    own = (part.text for role, part in parts if role == "user" and isinstance(part, Text))
    texts = (user_text(text[:_MAX_TEXT]) for text in own if not is_client_summary(text))
    return Query(() if calls else [*texts], arguments, [call.name for call in calls])


class _Search:
    """The search for what one turn asks."""

    def __init__(
        self,
        query: Query,
        index: PassageIndex,
        compare: Callable[[str], Sequence[float]],
        history: CompactedConversation,
        client: Conversation,
        turn: range,
    ) -> None:
        self._query, self._index, self._compare, self._history = query, index, compare, history
        self._messages, self._preamble, self._turn = client.messages, client.preamble, turn
        self._scores = TermScores(index)
        self._least = query.least_score * index.weight(1)
        self._match()

    def find_candidates(self) -> list[Candidate]:
        """Returns the standing instructions about the turn's subject, and the sentences that answer it; the best first.

        Sentences in view are among them, unless all good ones are.
        """
        rules = self._find_rules()
        listed = {(rule.message, rule.text) for rule in rules}
        return [*rules, *(each for each in self._find_answers_to_turn() if (each.message, each.text) not in listed)]

    def _find_rules(self) -> list[Candidate]:
        """Returns the user's standing instructions, not in view, that the turn is about: it has half of the terms of
        one, or a rare name in it."""
        subjects, rules = self._query.subjects, list[Candidate]()
        for at in TermScores(self._index, dict.fromkeys(subjects, 1.0)).best(_MAX_PASSAGES):
            passage = self._index[at]
            message, part = passage.position
            if self._messages[message].role != "user" or not isinstance(self._messages[message].parts[part], Text):
                continue
            for number, text in enumerate(_split(read_passage(self._messages, passage))):
                relevance = self._weigh_rule(text, subjects)
                if relevance and rank_sentence(text) == RULE and not self.is_in_view(text):
                    rules.append(
                        Candidate(relevance * self._least, passage, (message, passage.at, number), text, is_prose=True)
                    )
        return nlargest(_MAX_RULES, rules, key=lambda each: (each.score, each.order))

    def _weigh_rule(self, text: str, subjects: Container[str]) -> float:
        """Returns how much a turn with these terms is about an instruction; 0 if it is not."""
        own = frozenset(search_terms(text))
        common = sum(term in subjects for term in own)
        share = common / len(own) if own else 0.0
        names = chain.from_iterable(map(search_terms, _RULE_NAME.findall(text))) if common else ()
        is_named = any(term in subjects and len(self._index.find(term)) <= _MAX_RARE for term in names)
        return share + is_named if is_named or (share >= _RULE_SHARE and (common > 1 or len(own) == 1)) else 0.0

    def _find_answers_to_turn(self) -> list[Candidate]:
        passages = self._best_passages()
        # Most turns ask for nothing archived. Only for the others, passages are read, and then the texts in view.
        if not passages:
            return []
        candidates = sorted(
            (each for at in passages for each in self._rank_passage(at)),
            key=lambda each: (each.score, each.order),
            reverse=True,
        )[:_MAX_CANDIDATES]
        best = next((each.score for each in candidates if not self.is_in_view(each.text)), 0.0)
        if best < self._least:
            return []
        chosen = [each for each in candidates if each.score >= best * _LEAST_SHARE]
        return self._order_by_embedding(chosen, best)

    def _order_by_embedding(self, candidates: list[Candidate], best: float) -> list[Candidate]:
        """Returns the candidates, and those that answer in other words, by words and embedding; the best first."""
        relevance = self._compare(" ".join(self._query.questions))
        if not relevance:
            return candidates
        listed = {each.passage.at for each in candidates}
        others = nlargest(_RELEVANT, range(len(relevance)), key=relevance.__getitem__)
        candidates += [each for at in others if at not in listed for each in self._rank_passage(at)]
        scored = [replace(each, score=each.score + self._least * relevance[each.passage.at]) for each in candidates]
        return sorted(scored, key=lambda each: (each.score, each.order), reverse=True)[:_MAX_CANDIDATES]

    def choose_newest(self, candidates: Sequence[Candidate]) -> list[tuple[Candidate, CitedInstruction | None]]:
        """Returns the candidates that are not in view, in their order, without values that a newer sentence replaces.

        A sentence that a newer one may contradict has a note, or follows that one.
        """
        by_instruction = dict[int, Candidate]()
        pool = list[tuple[tuple[int, int, int], Instruction]]()
        for candidate in [each for each in candidates if each.is_prose][:_MAX_COMPARED]:
            instruction = build_instruction(candidate.text)
            by_instruction[id(instruction)] = candidate
            pool.append((candidate.order, instruction))
        pool += ((order, build_instruction(text)) for order, text in self._sentences_in_view())
        pool.sort(key=itemgetter(0))
        new = [each for each in candidates if not self.is_in_view(each.text)]
        listed = {(each.message, each.text) for each in new if each.is_prose}
        standing = select_standing(
            ((order[0], instruction) for order, instruction in pool), lambda index, text: (index, text) in listed
        )
        # What stands in one message is no change.
        cited = {
            id(by_instruction[id(each.instruction)]): replace(
                each, newer_than=tuple(at for at in each.newer_than if at != each.index)
            )
            for each in standing.cited
        }
        newer = defaultdict[int, list[Candidate]](list)
        for each in standing.cited:
            for at in each.newer_than:
                newer[at].append(by_instruction[id(each.instruction)])
        chosen = dict[int, tuple[Candidate, CitedInstruction | None]]()
        for candidate in chain.from_iterable((*newer[own.message], own) for own in new):
            if not candidate.is_prose or id(candidate) in cited:
                chosen.setdefault(id(candidate), (candidate, cited.get(id(candidate))))
        return list(chosen.values())

    def is_in_view(self, text: str) -> bool:
        """Whether a sentence is in view."""
        return text in self._visible_text

    @cached_property
    def _visible_text(self) -> str:
        """The text in view, without the turn's own messages, but with their results."""
        shown = (
            message.parts
            for message, (first, last, _) in zip(
                self._history.conversation.messages, self._history.all_spans, strict=True
            )
            if not self._turn.start <= first <= last or message.has_tool_result
        )
        return "\n".join(readable_text(part) for parts in (self._preamble, *shown) for part in parts)

    def _match(self) -> None:
        """Finds the passages of all terms and names."""
        start = max(0, self._turn.start - _RECENT)
        recent = self._messages[start : self._turn.start]
        self._recent_terms = {
            term
            for message in recent
            for part in message.parts
            if isinstance(part, Text)
            for term in search_terms(part.text[:_MAX_TEXT])
        }
        for term, factor in self._query.factors.items():
            numbers = self._index.find(term)
            self._scores.add(term, numbers, factor * (_IN_VIEW_FACTOR if term in self._recent_terms else 1.0))
        for name, terms in self._query.names.items():
            # A passage has the name, or parts of it.
            numbers_by_term = {term: self._index.find(term) for term in terms}
            whole = self._find_name(name, numbers_by_term.values())
            factor = _IN_VIEW_FACTOR if whole and self.is_in_view(name) else 1.0
            self._scores.add(name, whole, _NAME_FACTOR * factor)
            for term in numbers_by_term.keys() - self._scores.weights.keys() if len(terms) > 1 else ():
                self._scores.add(term, sorted({*numbers_by_term[term]}.difference(whole)), factor / len(terms))

    def _find_name(self, name: str, passages: Iterable[Sequence[int]]) -> list[int]:
        """Returns the passages that have a name, of those that have each of its terms; none if these are too many."""
        numbers = sorted(set.intersection(*map(set, passages)))
        return [at for at in numbers if self._has_name(self._index[at], name)] if len(numbers) <= _MAX_CHECKED else []

    def _has_name(self, passage: Passage, name: str) -> bool:
        """Whether a passage, or the call whose result begins with it, has a name."""
        if name in read_passage(self._messages, passage):
            return True
        call = None if passage.start else find_call(self._messages, passage.position)
        return call is not None and name in readable_text(call)

    def _best_passages(self) -> list[int]:
        """Returns the passages with the best scores, and those with answers; none if no sentence can be good enough."""
        terms, likely = self._scores.terms, self._scores.best(4 * _MAX_PASSAGES)
        scores = {at: self._scores.sums[at] + self._scores.near(at, terms[at]) for at in likely}
        if not any(
            scores[at] >= self._least or self._is_complete(terms[at]) or self._is_unique(terms[at]) for at in likely
        ):
            return []
        best = nlargest(_MAX_PASSAGES, likely, key=lambda at: (scores[at], at))
        return list(dict.fromkeys(chain.from_iterable((at, *self._find_answers(at)) for at in best)))

    def _find_answers(self, at: int) -> Iterator[int]:
        """Yields the passages near one that may say more of the same: of its message, and behind a question."""
        passage = self._index[at]
        is_question = read_passage(self._messages, passage).rstrip()[-1:] in "?？"
        for other in range(max(0, at - NEAR), min(len(self._index), at + NEAR + 1)):
            if self._index[other].position[0] == passage.position[0] or (is_question and other > at):
                yield other

    def _is_complete(self, terms: Sequence[str]) -> bool:
        """Whether these are all terms and names of a question that asks for what was said."""
        factors, names = self._query.factors, self._query.names
        return (
            len(factors) + len(names) >= _MIN_COMPLETE
            and min(factors.values(), default=1.0) == 1.0
            and ({*factors, *names} <= {*terms})
        )

    def _is_unique(self, terms: Sequence[str]) -> bool:
        """Whether these are all terms of what a question asks about somebody, one of them rare and not in view.

        The archive has the name somewhere: who speaks of himself does not say it.
        """
        factors, people = self._query.factors, self._query.people
        others = factors.keys() - people
        return (
            others < factors.keys()
            and not self._query.names
            and min(factors.values(), default=0.0) == 1.0
            and others <= {*terms}
            and any(len(self._index.find(term)) <= _MAX_UNIQUE for term in others - self._recent_terms)
            and all(map(self._index.find, people & factors.keys()))
        )

    def _rank_passage(self, at: int) -> Iterator[Candidate]:
        """Yields the sentences of a passage with their scores; a passage of a result or of arguments is one."""
        passage, terms = self._index[at], self._scores.terms.get(at, [])
        message, part = passage.position
        if self._messages[message].role == "other":
            return
        is_prose = isinstance(self._messages[message].parts[part], Text)
        text = read_passage(self._messages, passage)
        texts = [*_split(text)] if is_prose else [text.strip("\r\n")]
        for number, each in enumerate(texts):
            own = self._find_terms(each, terms) if is_prose else tuple(terms)
            if own or is_prose:
                score = self._scores.sum_of(own) + self._scores.near(at, own)
                score += self._least if self._is_complete(own) else 0.0
                score = max(score, self._least) if self._is_unique(own) else score
                yield Candidate(score, passage, (message, passage.at, number), each, is_prose)

    def _find_terms(self, text: str, terms: Iterable[str]) -> tuple[str, ...]:
        """Returns those of the terms and names that a sentence has."""
        own = set(search_terms(text))
        return tuple(term for term in terms if term in own or (term in self._query.names and term in text))

    def _sentences_in_view(self) -> list[tuple[tuple[int, int, int], str]]:
        """Returns the newest sentences in view, behind what the compaction covers, that have two of the terms."""
        sentences = list[tuple[tuple[int, int, int], str]]()
        terms = self._query.factors.keys() | set(chain.from_iterable(self._query.names.values()))
        least = min(2, len(terms))
        for at in range(len(self._messages) - 1, self._history.covered_count - 1, -1):
            for part in self._messages[at].parts:
                if not isinstance(part, Text) or self._messages[at].role not in ("user", "assistant"):
                    continue
                for number, text in enumerate(_split(part.text[:_MAX_TEXT])):
                    if len(terms & set(search_terms(text))) >= least:
                        sentences.append(((at, 0, number), text))
            if len(sentences) >= _MAX_COMPARED // 2:
                break
        return sentences


def _split(text: str) -> Iterator[str]:
    """Yields the sentences of a text, without lines that only have a date."""
    for line in text.splitlines():
        if not is_date(line):
            yield from split_sentences(line)


# -- the text ----------------------------------------------------------------------------------------------------------


class _ExcerptWriter:
    """Writes the excerpt for one turn."""

    def __init__(
        self,
        tenant: TenantScope,
        index: PassageIndex,
        history: CompactedConversation,
        client: Conversation,
        count: Callable[[str], int],
        tokens: int,
    ) -> None:
        self._tenant, self._index, self._count, self._tokens = tenant, index, count, tokens
        self._artifacts = frozenset(history.compaction.artifacts if history.compaction is not None else ())
        self._messages = client.messages
        self._find_date = cache(self._read_date)

    def write(self, chosen: Sequence[tuple[Candidate, CitedInstruction | None]]) -> Excerpt | None:
        """Returns the excerpt of as many sentences as fit, those of the newest message first; None if none fits."""
        available = self._tokens - self._count(OPENING)
        quotes = dict[tuple[int, int, int], tuple[str, str]]()
        """The heading and the text of each quote."""
        texts, headings, quoted = set[str](), set[str](), set[int]()
        for candidate, cited in chosen:
            if candidate.text in texts or candidate.passage.at in quoted:
                continue
            heading, date = self._heading(candidate, cited), self._find_date(candidate.message)
            new = [each for each in (heading, date) if each not in headings]
            available_here = available - sum(map(self._count, new))
            forms = self._quotes_of(candidate, cited, quoted)
            costs = ((self._count(f" {text}\n"), text, numbers) for text, numbers in forms)
            cost, text, numbers = next((each for each in costs if each[0] <= available_here), (0, "", ()))
            if not text:
                # What is worse than one that does not fit would only fill the space.
                if quotes:
                    break
                continue
            available = available_here - cost
            quotes[candidate.order] = heading, text
            headings.update(new)
            texts.add(candidate.text)
            quoted.update(numbers)
        while quotes and self._count(text := "\n".join([OPENING, *self._render(quotes)])) > self._tokens:
            quotes.popitem()
        if not quotes:
            return None
        positions = (candidate.passage.position for candidate, _ in chosen if candidate.order in quotes)
        artifacts = tuple(dict.fromkeys(filter(None, (self._artifact(*position) for position in positions))))
        return Excerpt(text, self._count(text), artifacts, tuple((at[0], quote) for at, (_, quote) in quotes.items()))

    def _render(self, quotes: dict[tuple[int, int, int], tuple[str, str]]) -> Iterator[str]:
        """Yields the lines of an excerpt: the quotes under their headings, the newest message first."""
        groups, dates = defaultdict[str, list[str]](list), dict[str, str]()
        for order in sorted(quotes, key=lambda each: (-each[0], each[1:])):
            heading, text = quotes[order]
            groups[heading].append(text)
            dates[heading] = self._find_date(order[0])
        last = ""
        for heading, texts in groups.items():
            if dates[heading] != last:
                last = dates[heading]
                yield f"{last or 'Without a date'}:"
            yield f"{heading} {' … '.join(texts)}" if heading.startswith(">") else "\n".join([heading, *texts])

    def _heading(self, candidate: Candidate, cited: CitedInstruction | None) -> str:
        """Writes what a quote is of, and the number of its message."""
        at, part = candidate.passage.position
        value, source = self._messages[at].parts[part], describe_source(self._messages, (at, part))
        if isinstance(value, Text):
            if is_client_summary(value.text):
                source = "the client's summary"
            elif source == "user" and cited is not None and cited.instruction.rank == RULE:
                source = "standing instruction from the user"
            return f"> [{at}] {source}:"
        artifact = self._artifact(at, part)
        return f"[{at}] {source}{f', archived as {artifact}' if artifact else ''}:"

    def _artifact(self, at: int, part: int) -> str:
        """Returns the artifact that holds a part of a message and nothing else; empty if there is none."""
        name = artifact_id(self._tenant, self._messages[at].key, part)
        return name if name in self._artifacts else ""

    def _read_date(self, at: int) -> str:
        """Returns the date of a message that it, or one before it, begins with; empty if none does."""
        for message in reversed(self._messages[max(0, at - _MAX_DATE_DISTANCE) : at + 1]):
            for part in message.parts:
                if isinstance(part, Text) and (date := find_date(part.text)):
                    return date
        return ""

    def _quotes_of(
        self, candidate: Candidate, cited: CitedInstruction | None, quoted: Container[int]
    ) -> Iterator[tuple[str, Sequence[int]]]:
        """Yields quotes with the passages that they have: a sentence with notes on those that it replaces, or lines of
        a result, with those around them and alone."""
        own = candidate.passage
        if candidate.is_prose:
            yield str(cited).removeprefix(f"[{cited.index}] ") if cited is not None else candidate.text, ()
            return
        around = range(max(0, own.at - _PASSAGES_BEFORE), min(len(self._index), own.at + 1 + _PASSAGES_AFTER))
        near = [at for at in around if at not in quoted and self._index[at].position == own.position]
        for numbers in (near, [own.at]):
            lines = (line for at in numbers for line in read_passage(self._messages, self._index[at]).splitlines())
            yield "\n".join(f"> {line.rstrip()}" for line in lines if line.strip()), numbers
