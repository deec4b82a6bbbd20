"""What a summary may say: the text that it was made from, made ready once so that every line is checked quickly.

Names, paths, numbers and quotations must stand there letter for letter. What a claim is, is decided here too: words
that could not be plain language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from accordion.core.conversation import Media, Message, Text, ToolCall, ToolResult
from accordion.core.values import dataclass
from accordion.summaries.extractive import Source
from accordion.summaries.instructions import Standing
from accordion.summaries.schema import cited, uncited

_LOOKS: Final = 2_000
"""So many places are looked at for a word that stands on its own."""

_SMART = (*zip("“”„‟‘’‚‛", "\"\"\"\"''''", strict=True), ("…", "..."))
# What stands between words, as one byte each; what else there is of it is white space to `split`.
_BETWEEN = bytes(32 if chr(byte) in "\"'`()[]{}<>,;|=*!?" else byte for byte in range(256))
_THOUSANDS = re.compile(r",(?<=\d,)(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"(?<![0-9a-fA-F_])(?<!\d[.,])\d+(?:[.,]\d+)*")
_QUOTED = re.compile(r""""([^"]{1,600})"|`([^`]{1,600})`|(?<![\w`"])'([^']{3,600})'(?!\w)""")
_WITH_UNIT = re.compile(r"(\d[\d.,]*)(?:%|[A-Za-zµ]{1,4})")
_RANGE = re.compile(r"\d[\d.,]*[%A-Za-z]{0,3}(?:[-–—/:x×]\d[\d.,]*[%A-Za-z]{0,3})+")
_COUNTED = re.compile(r"(\d[\d.,]*)((?:-[A-Za-z]{2,})+)")
_DOTTED = re.compile(r"\.[A-Za-z][\w.-]+|[\w-]{2,}(?:\.\w+)*\.[A-Za-z]\w+")
_CAMEL = re.compile(r"[a-z][A-Z]|^[A-Z]{2,}[a-z]{2}")
_CAPITALS = re.compile(r"[A-Z]{5,}s?")
_EITHER = re.compile(r"[A-Za-z]+/[A-Za-z]+")
_LEADING = re.compile(r"--[A-Za-z]|~/|\.\.?/|\.[A-Za-z]")
_ELLIPSIS = re.compile(r"\s*(?:\.{3,}|\[\.{3}\])\s*")
_EDGES = ".:-–—~#$€£≈≤≥±+&^"


@dataclass(frozen=True, slots=True)
class Evidence:
    """`text` is everything, on one line; `words` and `numbers` what it holds. `user` is what the user said, by index,
    `told` all of it. `tools` are the messages in which nobody but tools speaks. `known` are the indexes that may be
    cited, `task` the one among them that is not summarised, `carried` those that the narrative so far cites. `size` are
    the characters of what is summarised. `standing` are the users' instructions, which no line may contradict."""

    text: str
    folded: str
    words: frozenset[str]
    numbers: frozenset[str]
    user: dict[int, str]
    told: str
    tools: frozenset[int]
    known: frozenset[int]
    task: int | None
    carried: frozenset[int]
    size: int
    standing: Standing = Standing()

    def missing(self, line: str, *, user: bool = False) -> str:
        """The first claim of a line that is not in the source; empty where all are. `user`: what it has in quotation
        marks must be the user's own words."""
        line = _plain(line)
        for quote, spoken in _quotations(line):
            if not _holds(self.told if user and spoken else self.text, quote):
                return quote
        for word in _words(_THOUSANDS.sub("", _QUOTED.sub(" ", line))):
            # `--flag`, `~/path`, `../path` and `.name` begin with what else stands around words.
            claim = word.rstrip(_EDGES) if _LEADING.match(word) else word.strip(_EDGES)
            if claim and not self._supports(claim):
                return claim
        return ""

    def _supports(self, claim: str) -> bool:
        if not is_claim(claim) or claim in self.words:
            return True
        if claim.isascii() and _CAPITALS.fullmatch(claim):
            return claim.rstrip("s").lower() in self.folded
        if claim[0].isdigit() and (pieces := _figures(claim)):
            return all(self._counts(piece) for piece in pieces)
        if _stands(self.text, claim):
            return True
        if _EITHER.fullmatch(claim):
            return all(piece.lower() in self.folded for piece in claim.split("/"))
        pieces = claim.split(":")
        return len(pieces) > 1 and all(self._supports(piece) for piece in pieces if piece)

    def _counts(self, number: str) -> bool:
        number = number.rstrip(".,")
        return number in self.numbers or number.replace(",", "") in self.numbers


def gather(
    covered: Sequence[Source], kept: Iterable[Message] = (), prior: str = "", task: Source | None = None
) -> Evidence:
    """What a summary of `covered` may say and cite.

    What is kept (of users and the system), the task and the narrative so far may be repeated; of these the task may be
    cited, and what the narrative cites.
    """
    asked = [*covered, *([task] if task is not None else [])]
    texts = [text for source in covered for text in texts_of(source.message)]
    size = sum(map(len, texts))
    others = [task.message] if task is not None else []
    others += [message for message in kept if message.role in {"user", "system", "developer"}]
    texts += [text for message in others for text in _spoken(message)]
    texts.append(uncited(prior))
    # Arguments are JSON: what is said there stands escaped.
    texts += [_unescaped(text) for text in texts if "\\" in text]
    text = _plain(" ".join(texts))
    # Each distinct word is looked into once. A comma may part thousands or a list: both readings count.
    words = set(_words(text)).union(_words(_THOUSANDS.sub("", text)))
    said = {s.index: _plain(" ".join(_spoken(s.message))) for s in asked if s.message.role == "user"}
    user = {index: text_said for index, text_said in said.items() if text_said}
    told = [*user.values(), *(_plain(" ".join(_spoken(message))) for message in others if message.role == "user")]
    return Evidence(
        text=text,
        folded=text.lower(),
        words=frozenset(word.strip(_EDGES) for word in words),
        numbers=frozenset(_NUMBER.findall(" ".join(words))),
        user=user,
        told="\n".join(told),
        tools=frozenset(source.index for source in covered if _only_tools(source.message)),
        known=frozenset(source.index for source in asked),
        task=task.index if task is not None else None,
        carried=cited(prior),
        size=size,
    )


def is_claim(word: str) -> bool:
    """Whether a word could be a name, a path, an identifier or a number rather than plain language."""
    return (
        any(map(str.isdigit, word))
        or any(sign in word for sign in "_/\\@")
        or word.startswith("--")
        or _DOTTED.fullmatch(word) is not None
        or _CAMEL.search(word) is not None
        or _CAPITALS.fullmatch(word) is not None
    )


def texts_of(message: Message) -> Iterator[str]:
    """All that can be read in a message: what was said, calls with their arguments, results; no reasoning."""
    for part in message.parts:
        if isinstance(part, Text):
            yield part.text
        elif isinstance(part, ToolCall):
            yield f"{part.name} {part.arguments}"
        elif isinstance(part, ToolResult):
            for inner in part.parts:
                if isinstance(inner, Text):
                    yield inner.text
        elif isinstance(part, Media):
            yield part.media_type


def _spoken(message: Message) -> Iterator[str]:
    return (part.text for part in message.parts if isinstance(part, Text))


def _only_tools(message: Message) -> bool:
    return bool(message.parts) and (
        message.role == "tool" or all(isinstance(part, ToolResult) for part in message.parts)
    )


def _plain(text: str) -> str:
    if not text.isascii():
        for sign, plain in _SMART:
            text = text.replace(sign, plain)
    return " ".join(text.split())


def _words(text: str) -> list[str]:
    return text.encode("utf-8", "replace").translate(_BETWEEN).decode().split()


def _unescaped(text: str) -> str:
    return text.replace("\\n", " ").replace("\\t", " ").replace('\\"', '"').replace("\\\\", "\\")


def _quotations(line: str) -> Iterator[tuple[str, bool]]:
    """What stands in quotation marks (then True) or backticks; of one that leaves something out, what is left."""
    for found in _QUOTED.finditer(line):
        quote: str = found.group(1) or found.group(2) or found.group(3)
        for piece in _ELLIPSIS.split(quote):
            if any(map(str.isalnum, piece)):
                yield " ".join(piece.split()), found.group(1) is not None


def _holds(text: str, quote: str) -> bool:
    bare = quote.rstrip(".,;:!?")
    if " " in bare:
        return bare in text
    return _stands(text, bare) or _stands(text, quote)


def _figures(claim: str) -> list[str]:
    """The numbers that a claim is made of: `42%`, `10GB`, `3-5`, `5-minute`; none where it is a name of its own."""
    if _RANGE.fullmatch(claim):
        return re.findall(r"\d[\d.,]*", claim)
    found = _WITH_UNIT.fullmatch(claim) or _COUNTED.fullmatch(claim)
    if found is not None:
        return [found.group(1)]
    return [claim] if _NUMBER.fullmatch(claim) else []


def _stands(text: str, word: str) -> bool:
    """Whether a word stands in a text on its own, not as part of a longer one."""
    at = text.find(word)
    for _ in range(_LOOKS):
        if at < 0:
            return False
        end = at + len(word)
        before, after = text[at - 1 : at] if at else "", text[end : end + 1]
        inside = (before.isalnum() or before == "_") and (word[0].isalnum() or word[0] == "_")
        if not inside and not ((after.isalnum() or after == "_") and (word[-1].isalnum() or word[-1] == "_")):
            return True
        at = text.find(word, at + 1)
    return False
