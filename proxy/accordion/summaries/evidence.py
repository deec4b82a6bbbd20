"""The evidence for checking a summary: the text of its messages, indexed once so that each line is checked quickly.

Names, paths, numbers and quotations of a line must occur in it literally, numbers in the messages that the line cites.
`is_claim` decides which words are such claims and not plain language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import msgspec

from accordion.model.conversation import Media, Message, Text, ToolCall, ToolResult
from accordion.summaries.extractive import SourceMessage
from accordion.summaries.instructions import StandingInstructions
from accordion.summaries.schema import find_citations, strip_citations

_MAX_OCCURRENCES: Final = 2_000
"""The number of occurrences to check for a whole word."""
_MIN_GAIN: Final = 2
"""The words of a line that one more message must have, if it has no name and no number of it."""

_SMART = (*zip("“”„‟‘’‚‛", "\"\"\"\"''''", strict=True), ("…", "..."))
# Maps the ASCII separators of words to spaces; `split` handles all other white space.
_SEPARATORS_TO_SPACES = bytes(32 if chr(byte) in "\"'`()[]{}<>,;|=*!?" else byte for byte in range(256))
_THOUSANDS = re.compile(r",(?<=\d,)(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"(?<![0-9a-fA-F_])(?<!\d[.,])\d+(?:[.,]\d+)*")
_QUOTATION = re.compile(r""""([^"]{1,600})"|`([^`]{1,600})`|(?<![\w`"])'([^']{3,600})'(?!\w)""")
_WITH_UNIT = re.compile(r"(\d[\d.,]*)(?:%|[A-Za-zµ]{1,4})")
_RANGE = re.compile(r"\d[\d.,]*[%A-Za-z]{0,3}(?:[-–—/:x×]\d[\d.,]*[%A-Za-z]{0,3})+")
_NUMBER_WITH_NOUN = re.compile(r"(\d[\d.,]*)((?:-[A-Za-z]{2,})+)")
_DOTTED = re.compile(r"\.[A-Za-z][\w.-]+|[\w-]{2,}(?:\.\w+)*\.[A-Za-z]\w+")
_CAMEL = re.compile(r"[a-z][A-Z]|^[A-Z]{2,}[a-z]{2}")
_CAPITALS = re.compile(r"[A-Z]{5,}s?")
_PROPER_NAME = re.compile(r"(?<=[\w,;)] )[A-Z][a-z]{2,}(?![\w-])")
"""A word with a capital within a sentence."""
_WORD_PAIR = re.compile(r"[A-Za-z]+/[A-Za-z]+")
_LEADING = re.compile(r"--[A-Za-z]|~/|\.\.?/|\.[A-Za-z]")
_ELLIPSIS = re.compile(r"\s*(?:\.{3,}|\[\.{3}\])\s*")
_WORDS = re.compile(r"[A-Za-z]{4,}")
_COMMON_TEXT: Final = (
    "user users want wants wanted asked asks request requested please task that this with from have been they them "
    "their then than were will would should could must need needs needed into about also only when what which while "
    "make made help said told provided specified assistant goal because since after before being there where still "
    "some each more under over through between during without within until whether just nothing found printed shows "
    "showed contains returned says tool file result currently conversation discussed mentioned explained described "
    "regarding including"
)
_COMMON_WORDS: Final = frozenset(_COMMON_TEXT.split())
_EDGE_CHARACTERS = ".:-–—~#$€£≈≤≥±+&^"


class IndexedText(msgspec.Struct, frozen=True, dict=True):
    """A text on one line, with its words and numbers, so that many claims are checked quickly."""

    text: str
    lowercase_text: str
    words: frozenset[str]
    numbers: frozenset[str]

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of its words."""
        return word_stems(" ".join(self.words))

    def supports(self, claim: str) -> bool:
        """Whether a word is plain language, or a claim that the text contains."""
        if not is_claim(claim) or claim in self.words:
            return True
        if claim.isascii() and _CAPITALS.fullmatch(claim):
            return claim.rstrip("s").lower() in self.lowercase_text
        if claim[0].isdigit() and (pieces := _find_numbers(claim)):
            return all(self._has_number(piece) for piece in pieces)
        if _contains_word(self.text, claim):
            return True
        if _WORD_PAIR.fullmatch(claim):
            return all(piece.lower() in self.lowercase_text for piece in claim.split("/"))
        pieces = claim.split(":")
        return len(pieces) > 1 and all(self.supports(piece) for piece in pieces if piece)

    def _has_number(self, number: str) -> bool:
        return number in self.numbers or number.replace(",", "") in self.numbers


class Evidence(msgspec.Struct, frozen=True):
    """The indexed text of a summary's sources.

    `whole` is all of it, `texts` are the messages by index, each with the lines of the earlier narrative that cite it.
    `user_texts` are the user's messages by index, `user_text` all of them joined. `tool_messages` contain only tool
    results. `citable` are the indexes that a line may cite, with `task_index`, which is no source; `carried_citations`
    are those of the earlier narrative. `source_characters` is the length of the sources. No line may contradict the
    users' `standing` instructions.
    """

    whole: IndexedText
    texts: dict[int, str]
    user_texts: dict[int, str]
    user_text: str
    tool_messages: frozenset[int]
    citable: frozenset[int]
    task_index: int | None
    carried_citations: frozenset[int]
    source_characters: int
    standing: StandingInstructions = StandingInstructions()
    _cited_texts: dict[tuple[int, ...], IndexedText] = msgspec.field(default_factory=dict)

    def find_unsupported(self, line: str, sources: Sequence[int], *, is_user_claim: bool = False) -> str:
        """Returns the first claim of a line that the text does not contain; empty if it contains all.

        A number must occur in the line's own `sources`, everything else in any of the messages. With `is_user_claim`,
        text in quotation marks must be the user's own words.
        """
        line = _normalize(line)
        for quote, has_quotation_marks in _find_quotations(line):
            text = self.user_text if is_user_claim and has_quotation_marks else self.whole.text
            if not _contains_quote(text, quote):
                return quote
        unquoted = _QUOTATION.sub(" ", line)
        for word in _split_words(_THOUSANDS.sub("", unquoted)):
            # `--flag`, `~/path`, `../path` and `.name` begin with signs that otherwise surround words.
            claim = word.rstrip(_EDGE_CHARACTERS) if _LEADING.match(word) else word.strip(_EDGE_CHARACTERS)
            if claim and not self.whole.supports(claim):
                return claim
            if claim[:1].isdigit() and _find_numbers(claim) and not self.index_cited(sources).supports(claim):
                return claim
        names = (match[0] for match in _PROPER_NAME.finditer(unquoted))
        return next((name for name in names if name.lower() not in self.whole.lowercase_text), "")

    def find_supporting(self, line: str, indexes: Iterable[int], count: int) -> list[int]:
        """Returns the messages, at most `count`, that together have most of the words of a line, in order.

        Weak models cite every message for every line. One more message is worth its citation if it has a name, a
        number, or two words that the others lack.
        """
        claims = {word.strip(_EDGE_CHARACTERS) for word in _split_words(_normalize(line)) if is_claim(word)}
        missing, found = word_stems(line) | claims, list[int]()
        texts = {index: self.index_cited((index,)) for index in indexes}
        shared = {index: (missing & text.stems) | (missing & text.words) for index, text in texts.items()}
        while shared and len(found) < count:
            best = max(shared, key=lambda index: (len(shared[index] & missing), -index))
            gain = shared.pop(best) & missing
            if not gain or (found and len(gain) < _MIN_GAIN and gain.isdisjoint(claims)):
                break
            found.append(best)
            missing -= gain
        return sorted(found)

    def index_cited(self, sources: Sequence[int]) -> IndexedText:
        """Returns the text of the cited messages, each result with the message before it, which has its call."""
        key = tuple(sources)
        if key in self._cited_texts:
            return self._cited_texts[key]
        indexes = {index for source in sources for index in (source, source - (source in self.tool_messages))}
        indexes |= {index + 1 for index in indexes if index + 1 in self.tool_messages}
        text = " ".join(self.texts[index] for index in sorted(indexes) if index in self.texts)
        self._cited_texts[key] = _index_text(text)
        return self._cited_texts[key]


def gather_evidence(
    sources: Sequence[SourceMessage],
    remaining_messages: Iterable[Message] = (),
    narrative: str = "",
    task: SourceMessage | None = None,
) -> Evidence:
    """Gathers the evidence for a summary of `sources`.

    A summary may also repeat the remaining messages of users and the system, the task, and the earlier narrative. Of
    these it may cite the task, and the narrative's citations.
    """
    citable = [*sources, *([task] if task is not None else [])]
    texts = [text for source in sources for text in readable_texts(source.message)]
    size = sum(map(len, texts))
    others = [task.message] if task is not None else []
    others += [message for message in remaining_messages if message.role in {"user", "system", "developer"}]
    texts += [message.text for message in others]
    texts.append(strip_citations(narrative))
    user_texts = {s.index: _normalize(s.message.text) for s in citable if s.message.role == "user"}
    user_texts = {index: user_text for index, user_text in user_texts.items() if user_text}
    all_user_texts = [
        *user_texts.values(),
        *(_normalize(message.text) for message in others if message.role == "user"),
    ]
    return Evidence(
        whole=_index_text(_join_texts(texts)),
        texts=_texts_by_index(citable, narrative),
        user_texts=user_texts,
        user_text="\n".join(all_user_texts),
        tool_messages=frozenset(source.index for source in sources if _is_from_tools(source.message)),
        citable=frozenset(source.index for source in citable),
        task_index=task.index if task is not None else None,
        carried_citations=find_citations(narrative),
        source_characters=size,
    )


def _texts_by_index(citable: Iterable[SourceMessage], narrative: str) -> dict[int, str]:
    texts = {source.index: _join_texts(readable_texts(source.message)) for source in citable}
    # The earlier narrative's lines were checked against their messages, which may be gone.
    for line in narrative.splitlines():
        for index in find_citations(line):
            texts[index] = f"{texts.get(index, '')} {strip_citations(line)}"
    return texts


def _join_texts(texts: Iterable[str]) -> str:
    """Joins texts on one line. Arguments are JSON, so their text is escaped, and is added unescaped."""
    all_texts = list(texts)
    return _normalize(" ".join([*all_texts, *(_unescape(text) for text in all_texts if "\\" in text)]))


def _index_text(text: str) -> IndexedText:
    # Each distinct word is scanned once. A comma may separate thousands or list items: both readings count.
    words = set(_split_words(text)).union(_split_words(_THOUSANDS.sub("", text)))
    return IndexedText(
        text=text,
        lowercase_text=text.lower(),
        words=frozenset(word.strip(_EDGE_CHARACTERS) for word in words),
        numbers=frozenset(_NUMBER.findall(" ".join(words))),
    )


def word_stems(text: str) -> frozenset[str]:
    """Returns the first four letters of each longer word that is not common."""
    return frozenset(word[:4] for word in map(str.lower, _WORDS.findall(text)) if word not in _COMMON_WORDS)


def is_claim(word: str) -> bool:
    """Whether a word could be a name, path, identifier or number, and not plain language."""
    return (
        any(map(str.isdigit, word))
        or any(sign in word for sign in "_/\\@")
        or word.startswith("--")
        or _DOTTED.fullmatch(word) is not None
        or _CAMEL.search(word) is not None
        or _CAPITALS.fullmatch(word) is not None
    )


def readable_texts(message: Message) -> Iterator[str]:
    """Yields a message's readable texts: text, calls with arguments, and results, but no reasoning."""
    for part in message.parts:
        if isinstance(part, Text):
            yield part.text
        elif isinstance(part, ToolCall):
            yield f"{part.name} {part.arguments}"
        elif isinstance(part, ToolResult):
            for result_part in part.parts:
                if isinstance(result_part, Text):
                    yield result_part.text
        elif isinstance(part, Media):
            yield part.media_type


def _is_from_tools(message: Message) -> bool:
    return bool(message.parts) and (
        message.role == "tool" or all(isinstance(part, ToolResult) for part in message.parts)
    )


def _normalize(text: str) -> str:
    if not text.isascii():
        for sign, replacement in _SMART:
            text = text.replace(sign, replacement)
    return " ".join(text.split())


def _split_words(text: str) -> list[str]:
    return text.encode("utf-8", "replace").translate(_SEPARATORS_TO_SPACES).decode().split()


def _unescape(text: str) -> str:
    return text.replace("\\n", " ").replace("\\t", " ").replace('\\"', '"').replace("\\\\", "\\")


def _find_quotations(line: str) -> Iterator[tuple[str, bool]]:
    """Yields quotations, with True for quotation marks and False for backticks; one with an ellipsis in pieces."""
    for match in _QUOTATION.finditer(line):
        quote: str = match.group(1) or match.group(2) or match.group(3)
        for piece in _ELLIPSIS.split(quote):
            if any(map(str.isalnum, piece)):
                yield " ".join(piece.split()), match.group(1) is not None


def _contains_quote(text: str, quote: str) -> bool:
    phrase = quote.rstrip(".,;:!?")
    if " " in phrase:
        return phrase in text
    return _contains_word(text, phrase) or _contains_word(text, quote)


def _find_numbers(claim: str) -> list[str]:
    """Returns the numbers in a claim such as `42%`, `10GB`, `3-5` or `5-minute`; none if it is a name."""
    if _RANGE.fullmatch(claim):
        return re.findall(r"\d[\d.,]*", claim)
    match = _WITH_UNIT.fullmatch(claim) or _NUMBER_WITH_NOUN.fullmatch(claim)
    if match is not None:
        return [match.group(1)]
    return [claim] if _NUMBER.fullmatch(claim) else []


def _contains_word(text: str, word: str) -> bool:
    """Whether a text contains a word, and not only as a part of a longer one."""
    position = text.find(word)
    for _ in range(_MAX_OCCURRENCES):
        if position < 0:
            return False
        end = position + len(word)
        before, after = text[position - 1 : position] if position else "", text[end : end + 1]
        continues_word = (before.isalnum() or before == "_") and (word[0].isalnum() or word[0] == "_")
        if not continues_word and not ((after.isalnum() or after == "_") and (word[-1].isalnum() or word[-1] == "_")):
            return True
        position = text.find(word, position + 1)
    return False
