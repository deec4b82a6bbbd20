"""Which words stand in what left a window: made once for a fold, of whole words only.

What is looked for later (a path, an identifier, a quotation) is found by its words, and then looked for in the few
places that hold them all.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from accordion.archive.artifacts import result_text
from accordion.archive.references import artifact_id, range_id
from accordion.core.boundaries import Place, pairs
from accordion.core.conversation import Message, Part, Text, ToolCall, ToolResult
from accordion.core.edits import Folded
from accordion.core.plan import OURS
from accordion.core.spelling import spelled
from accordion.core.values import dataclass

Stretch = tuple[int, int, str]
"""The first and the last message of a range that was kept, and the id of its artifact."""

_MOST: Final = 1_000_000
"""Characters of one part that are looked through."""
_LONGEST: Final = 64
_RAREST: Final = 4
"""So many words of a name tell where it may stand."""
_DEPTH: Final = 12
_STRETCH: Final = 200
"""Messages of a kept range at most; longer ones are not found again."""
_KEPT = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
_SPACED: Final = bytes(c if c >= 128 or bytes((c,)) in _KEPT else 32 for c in range(256))
_ESCAPED = re.compile(r'[":\\\x00-\x1f]')
_LETTER = re.compile(r"[^\W\d_]")
_STRINGS: Final = frozenset({str})
_decode: Final = msgspec.json.Decoder().decode
_WORD, _POSTING, _PASSAGE = 190, 16, 250


@dataclass(frozen=True, slots=True)
class Passage:
    """One thing that left: what a tool answered (`body` is the place of the result, `call` that of its call), what
    somebody said (`body`), or a call whose answer is in view or missing (`call`). `both` tells whether the call left
    too. `artifact` keeps it; empty where that is not known, and `whole` says that it keeps this and nothing else."""

    body: Place | None
    call: Place | None
    both: bool
    artifact: str
    whole: bool

    @property
    def place(self) -> Place:
        """Where it stood."""
        return self.body or self.call or (0, 0)

    def texts(self, messages: Sequence[Message]) -> tuple[str, str]:
        """The arguments of its call and its body, each empty where there is none or it did not leave."""
        return self.given(messages), self.said(messages)

    def given(self, messages: Sequence[Message]) -> str:
        """The first of these."""
        call = self.call if self.both else None
        return text_of(messages[call[0]].parts[call[1]]) if call else ""

    def said(self, messages: Sequence[Message]) -> str:
        """The second."""
        return text_of(messages[self.body[0]].parts[self.body[1]]) if self.body else ""

    def gives(self, text: str, messages: Sequence[Message], *, literal: bool) -> bool:
        """Whether the first holds a text; `literal`: whether that reads in them as it does in JSON."""
        part = messages[self.call[0]].parts[self.call[1]] if self.call and self.both else None
        if not isinstance(part, ToolCall):
            return False
        raw = part.arguments
        # Decoding takes time. JSON may write slashes, and all other signs, with a backslash.
        escape = "\\u00" if text.isascii() else "\\u"
        if literal and text not in raw and escape not in raw and "\\/" not in raw:
            return False
        return text in text_of(part)


@dataclass(frozen=True, slots=True)
class Index:
    """What left, oldest first, and for each word the numbers of the passages that hold it. `size` is in bytes."""

    passages: tuple[Passage, ...]
    places: dict[bytes, int | list[int]]
    size: int

    def artifact(self, message: int) -> str:
        """What keeps the words of a message; empty where that is not known."""
        return next((each.artifact for each in self.passages if each.body and each.body[0] == message), "")

    def holding(self, text: str) -> tuple[tuple[bytes, ...], Sequence[int]]:
        """The words of a text, and the numbers of the passages that hold the rarest of them, oldest first; both empty
        where no passage holds one of them."""
        lists: dict[bytes, Sequence[int]] = {}
        for word in _split(text):
            if 2 < len(word) <= _LONGEST:
                places = self.places.get(word)
                if places is None:
                    return (), ()
                lists[word] = (places,) if isinstance(places, int) else places
        found, *others = sorted(lists.values(), key=len)[:_RAREST] or [()]
        for each in others:
            # Both are in order: what the other has stands right before where it would go in once more.
            found = [number for number in found if each[bisect_right(each, number) - 1] == number]
        return tuple(lists), found


def literal(text: str) -> bool:
    """Whether a text stands in JSON as it reads: a number may be written otherwise, and so are a key with its value and
    what has a backslash in front of it."""
    return _LETTER.search(text) is not None and _ESCAPED.search(text) is None


def index_of(space: bytes, folded: Folded, client: Sequence[Message]) -> Index:
    """The index of what left by the fold in force; `client` are the messages as the client sent them, `space` is the
    tenant's key."""
    covered = client[: folded.compaction.covered] if folded.compaction is not None else ()
    passages = tuple(_passages(space, folded, covered))
    places: dict[bytes, int | list[int]] = {}
    postings = 0
    for number, passage in enumerate(passages):
        call, body = passage.texts(covered)
        found = words_in(body) | words_in(call) if call else words_in(body)
        postings += len(found)
        for word in found:
            known = places.get(word)
            if known is None:
                places[word] = number
            elif isinstance(known, int):
                places[word] = [known, number]
            else:
                known.append(number)
    size = 1_000 + _WORD * len(places) + _POSTING * postings + _PASSAGE * len(passages)
    return Index(passages, places, size)


# -- what can be read --------------------------------------------------------------------------------------------------


def words_in(text: str) -> set[bytes]:
    """The words of a text: runs of letters, digits and underscores, three to 64 bytes long."""
    return {word for word in set(_split(text[:_MOST])) if 2 < len(word) <= _LONGEST}


def _split(text: str) -> list[bytes]:
    data = text.encode() if text.isascii() else spelled(text).encode("utf-8", "replace")
    return data.translate(_SPACED).split()


def text_of(part: Part) -> str:
    """The text of one part that can be read, so of no reasoning; of a call its arguments, decoded."""
    if isinstance(part, Text):
        return part.text
    if isinstance(part, ToolResult):
        parts = part.parts
        # Most are one text.
        return parts[0].text if len(parts) == 1 and isinstance(parts[0], Text) else result_text(part)
    if isinstance(part, ToolCall):
        return "\n".join([f"{key}: {value}" if key else value for key, value in decoded(part.arguments)])
    return ""


def decoded(arguments: str) -> list[tuple[str, str]]:
    """The scalars of a call's arguments with their keys, in order; the text itself where it is no JSON."""
    try:
        value = _decode(arguments)
    except (ValueError, RecursionError):
        return [("", arguments)] if arguments else []
    if type(value) is dict and _STRINGS.issuperset(map(type, value.values())):
        # Most calls are given nothing else.
        return [*value.items()]
    found: list[tuple[str, str]] = []
    _scalars(value, "", _DEPTH, found)
    return found


def _scalars(value: Any, key: str, depth: int, found: list[tuple[str, str]]) -> None:
    """Adds the scalars of a value to those that were found."""
    if isinstance(value, str):
        found.append((key, value))
    elif isinstance(value, bool) or value is None or not depth:
        return
    elif isinstance(value, dict):
        for name, inner in value.items():
            _scalars(inner, name, depth - 1, found)
    elif isinstance(value, list):
        for inner in value:
            _scalars(inner, key, depth - 1, found)
    else:
        found.append((key, str(value)))


# -- what left ---------------------------------------------------------------------------------------------------------


def _passages(space: bytes, folded: Folded, covered: Sequence[Message]) -> Iterator[Passage]:
    """Every covered part that is not in view as it was: results with their calls, and what was said."""
    seen, matched, kept = _in_view(folded, covered), pairs(covered), _Kept(space, folded, covered)
    answered = {call for result, call in matched.items() if result not in seen}
    for at, message in enumerate(covered):
        for number, part in enumerate(message.parts):
            place = at, number
            if place in seen:
                continue
            if isinstance(part, ToolResult):
                call = matched.get(place)
                yield Passage(place, call, call not in seen, *kept.of(place))
            elif isinstance(part, ToolCall) and place not in answered:
                yield Passage(None, place, True, *kept.of(place))
            elif isinstance(part, Text) and message.role in ("user", "assistant"):
                yield Passage(place, None, False, *kept.of(place))


def _in_view(folded: Folded, covered: Sequence[Message]) -> set[Place]:
    """The parts of the covered messages that stand in the forwarded list as they were."""
    seen: set[Place] = set()
    shown = folded.conversation.messages
    for at in range(_fold_part(folded)):
        origin, edited = folded.origins[at], folded.spans[at][2]
        if origin >= 0:
            parts = covered[origin].parts
            seen.update((origin, part) for part in range(len(parts)) if not edited or parts[part] in shown[at].parts)
    return seen


def _fold_part(folded: Folded) -> int:
    """How many messages of the list stand for what the fold covers."""
    covered = folded.compaction.covered if folded.compaction is not None else 0
    return bisect_left(folded.spans, covered, key=itemgetter(0))


class _Kept:
    """Which artifacts of a fold keep what left."""

    def __init__(self, space: bytes, folded: Folded, covered: Sequence[Message]) -> None:
        self._space, self._covered = space, covered
        self._ids = frozenset(folded.compaction.artifacts if folded.compaction is not None else ())
        runs = (folded.spans[at] for at in range(_fold_part(folded)) if folded.origins[at] == OURS)
        self._stretches = [stretch for first, last, _ in runs for stretch in self._cut(first, last)]

    def of(self, place: Place) -> tuple[str, bool]:
        """The artifact that keeps a part, and whether it keeps nothing else; ("", False) where none is known."""
        own = artifact_id(self._space, self._covered[place[0]].key, place[1])
        if own in self._ids:
            return own, True
        return next((name for first, last, name in self._stretches if first <= place[0] <= last), ""), False

    def _cut(self, first: int, last: int) -> Iterator[Stretch]:
        """The kept ranges that lie one behind the other from `first` on: their ids say where each ends."""
        keys = [message.key for message in self._covered[first : last + 1]]
        start = 0
        while start < len(keys):
            ends = range(start + 1, min(len(keys), start + _STRETCH) + 1)
            found = next(((end, n) for end in ends if (n := range_id(self._space, keys[start:end])) in self._ids), None)
            if found is None:
                return
            end, name = found
            yield first + start, first + end - 1, name
            start = end
