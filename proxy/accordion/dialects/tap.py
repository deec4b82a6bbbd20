"""Listening to replies: what every dialect's tap does alike.

A stream is watched at the price of a few byte searches an event; JSON is parsed only where an event can matter.
Nothing here raises on what a provider sends, and nothing is altered.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from accordion.core.records import ARGUMENTS, CallSeen, ReplySeen, Usage
from accordion.core.values import replace
from accordion.dialects.base import Tap
from accordion.dialects.keys import read
from accordion.dialects.shared import error_text, string
from accordion.dialects.sse import Events, lines_of, parse

BOUND = 16 * 2**20
"""How much of one event, or of a reply that is no stream, is kept for reading, in bytes."""
_SHORT = 1024
"""Blocks up to this length are split, not halved; in bytes."""


class StreamTap(Tap):
    """Watches an event stream. A dialect says which events can matter (`matters`) and reads those (`event`)."""

    def __init__(self) -> None:
        self.ended = False
        self.response_id = ""
        self.model = ""
        self.usage: Usage | None = None
        self.first: int | None = None
        self.finish = ""
        self.error = ""
        # Calls in the order in which they came, by whatever tells one from another in this dialect.
        self.calls: dict[Any, CallSeen] = {}
        # What the model wrote as their arguments, in the pieces in which it came.
        self._given: dict[Any, list[str]] = {}
        self._room: dict[Any, int] = {}
        self._events = Events(BOUND)

    def feed(self, data: bytes) -> None:
        """Takes decoded bytes of the stream; an event that comes in pieces is put together first."""
        block = self._events.feed(data)
        if block and self.matters(block):
            self._find(lines_of(block))

    def seen(self) -> ReplySeen:
        """What was understood so far."""
        given = self._given
        calls = (replace(call, arguments="".join(given[key])) if key in given else call
                 for key, call in self.calls.items())  # fmt: skip
        return ReplySeen(self.response_id, self.model, self.usage, self.finish, tuple(calls), self.error, self.first)

    @abstractmethod
    def matters(self, block: bytes) -> bool:
        """Whether an event in `block` may say something; a quick search that may err on the side of yes."""

    @abstractmethod
    def event(self, data: dict[str, Any]) -> None:
        """Reads the data of one event."""

    def mark(self, data: bytes) -> None:
        """Reads the data of an event that is no JSON object, such as `[DONE]`."""

    def fail(self, data: dict[str, Any]) -> None:
        """Notes an error event: it ends the stream."""
        self.error = error_text(data) or self.error or "error"
        self.ended = True

    def call(self, key: Any, call_id: Any, name: Any) -> None:
        """Notes a call; what is already known of it stays."""
        known = self.calls.get(key)
        if known is None:
            self.calls[key] = CallSeen(string(call_id), string(name))
        elif not (known.call_id and known.name):
            self.calls[key] = CallSeen(known.call_id or string(call_id), known.name or string(name))

    def given(self, key: Any, text: Any) -> None:
        """Notes more of a call's arguments; of too many nothing is kept."""
        if type(text) is str and text:
            room = self._room[key] = self._room.get(key, ARGUMENTS) - len(text)
            if room >= 0:
                self._given.setdefault(key, []).append(text)
            else:
                self._given.pop(key, None)

    def _find(self, block: bytes) -> None:
        """Reads what can matter of a block of which something can. In a burst it is mostly the first and the last few
        events. Halving finds them without splitting the rest."""
        # 1 where no event ends behind the middle.
        middle = block.find(b"\n\n", len(block) // 2) + 2 if len(block) > _SHORT else len(block)
        if 2 < middle < len(block):
            for half in (block[:middle], block[middle:]):
                if self.matters(half):
                    self._find(half)
            return
        found = block.split(b"\n\n")
        # What is said of a block is said of its only event.
        alone = len(found) == 2 and not found[1]
        for piece in found:
            if piece and (alone or self.matters(piece)):
                self._read(piece)

    def _miss(self) -> None:
        """An event could not be read. It may have had a part of any call's arguments: those are not known any more."""
        self._room.update(dict.fromkeys(self.calls, -1))
        self._given.clear()

    def _read(self, piece: bytes) -> None:
        event = parse(piece)
        if event is None:
            return
        try:
            data = read(event.data)
        except ValueError:
            data = None
            if event.data.startswith(b"{"):
                self._miss()
        if type(data) is not dict:
            if event.name == b"error":
                self.fail({"error": event.data.decode(errors="replace")})
            else:
                self.mark(event.data)
        elif event.name == b"error" or data.get("error"):
            self.fail(data)
        else:
            self.event(data)


class BodyTap(Tap):
    """Watches a reply that is one JSON document; `understand` reads it once it is there. `published`, if a dialect has
    such, reads what is as it should be; where that is None, or there is an error, `understand` does."""

    def __init__(
        self,
        understand: Callable[[dict[str, Any]], ReplySeen],
        published: Callable[[bytes], ReplySeen | None] = lambda _body: None,
    ) -> None:
        self._understand, self._published = understand, published
        self._body = bytearray()
        self._seen: ReplySeen | None = None
        self._too_large = False

    def feed(self, data: bytes) -> None:
        """Takes any piece of the body. One that outgrows `BOUND` is let go, and nothing is understood of it."""
        self._seen = None
        if self._too_large or len(self._body) + len(data) > BOUND:
            self._too_large = True
            self._body.clear()
        else:
            self._body += data

    def seen(self) -> ReplySeen:
        """What was understood: nothing until the body is whole."""
        if self._seen is None:
            self._seen = self._parse()
        return self._seen

    def _parse(self) -> ReplySeen:
        body = bytes(self._body)
        seen = self._published(body)
        if seen is not None:
            return seen
        try:
            data = read(body)
        except ValueError:
            return ReplySeen()
        seen = self._understand(data) if type(data) is dict else ReplySeen()
        error = error_text(data)
        return replace(seen, error=error) if error else seen
