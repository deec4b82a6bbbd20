"""Base classes of the response observers: for event streams and for JSON documents.

Observing a stream costs a few byte searches per event; JSON is parsed only where an event can matter. An observer never
raises on what a provider sends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from accordion.model.records import ARGUMENTS, ObservedCall, ObservedResponse, Usage
from accordion.protocols.base import ResponseObserver
from accordion.protocols.json_values import as_string, find_error_text
from accordion.protocols.message_keys import decode_json
from accordion.protocols.sse import SseBuffer, lines_of, parse

BOUND = 16 * 2**20
"""Limit of one event, or of a response that is no stream, in bytes; nothing larger is read."""
_MAX_SPLIT = 1024
"""Blocks up to this length are split into events, longer ones are halved first; in bytes."""


class StreamObserver(ResponseObserver):
    """Observes an event stream. A protocol selects the events that can matter (`may_matter`) and reads them
    (`read_event`)."""

    def __init__(self) -> None:
        self.ended = False
        self.response_id = ""
        self.model = ""
        self.usage: Usage | None = None
        self.first: int | None = None
        self.finish = ""
        self.error = ""
        # Calls in order of arrival, by the key that distinguishes them in this protocol.
        self.calls: dict[Any, ObservedCall] = {}
        # The arguments of each call, in pieces as they came.
        self._arguments: dict[Any, list[str]] = {}
        self._space_left: dict[Any, int] = {}
        self._events = SseBuffer(BOUND)

    def feed(self, data: bytes) -> None:
        """Takes decoded bytes of the stream; joins events that come in pieces."""
        block = self._events.feed(data)
        if block and self.may_matter(block):
            self._read_block(lines_of(block))

    def observation(self) -> ObservedResponse:
        """Returns what was read so far."""
        arguments = self._arguments
        calls = (replace(call, arguments="".join(arguments[key])) if key in arguments else call
                 for key, call in self.calls.items())  # fmt: skip
        return ObservedResponse(
            self.response_id, self.model, self.usage, self.finish, tuple(calls), self.error, self.first
        )

    @abstractmethod
    def may_matter(self, block: bytes) -> bool:
        """Whether an event in `block` may matter: a quick search that may say yes wrongly, but never no."""

    @abstractmethod
    def read_event(self, data: dict[str, Any]) -> None:
        """Reads the data of one event."""

    def read_marker(self, data: bytes) -> None:
        """Reads the data of an event that is no JSON object, such as `[DONE]`."""

    def note_error(self, data: dict[str, Any]) -> None:
        """Records an error event: it ends the stream."""
        self.error = find_error_text(data) or self.error or "error"
        self.ended = True

    def note_call(self, key: Any, call_id: Any, name: Any) -> None:
        """Records a call; an id or a name that it already has stays."""
        recorded_call = self.calls.get(key)
        if recorded_call is None:
            self.calls[key] = ObservedCall(as_string(call_id), as_string(name))
        elif not (recorded_call.call_id and recorded_call.name):
            self.calls[key] = ObservedCall(
                recorded_call.call_id or as_string(call_id), recorded_call.name or as_string(name)
            )

    def note_arguments(self, key: Any, text: Any) -> None:
        """Records more of a call's arguments; drops them all if they become too long."""
        if type(text) is str and text:
            space_left = self._space_left[key] = self._space_left.get(key, ARGUMENTS) - len(text)
            if space_left >= 0:
                self._arguments.setdefault(key, []).append(text)
            else:
                self._arguments.pop(key, None)

    def _read_block(self, block: bytes) -> None:
        """Reads the events of a block that can matter. In a burst these are mostly the first and the last few; halving
        finds them without splitting the rest."""
        # 1 where no event ends after the middle.
        middle = block.find(b"\n\n", len(block) // 2) + 2 if len(block) > _MAX_SPLIT else len(block)
        if 2 < middle < len(block):
            for half in (block[:middle], block[middle:]):
                if self.may_matter(half):
                    self._read_block(half)
            return
        pieces = block.split(b"\n\n")
        # A block that may matter and has a single event needs no second search.
        is_single = len(pieces) == 2 and not pieces[1]
        for piece in pieces:
            if piece and (is_single or self.may_matter(piece)):
                self._read(piece)

    def _note_unreadable(self) -> None:
        """Drops the arguments of all calls: an unreadable event may have held a part of any of them."""
        self._space_left.update(dict.fromkeys(self.calls, -1))
        self._arguments.clear()

    def _read(self, piece: bytes) -> None:
        event = parse(piece)
        if event is None:
            return
        try:
            data = decode_json(event.data)
        except ValueError:
            data = None
            if event.data.startswith(b"{"):
                self._note_unreadable()
        if type(data) is not dict:
            if event.name == b"error":
                self.note_error({"error": event.data.decode(errors="replace")})
            else:
                self.read_marker(event.data)
        elif event.name == b"error" or data.get("error"):
            self.note_error(data)
        else:
            self.read_event(data)


class BodyObserver(ResponseObserver):
    """Observes a response that is one JSON document.

    `read_document` reads the decoded document. `read_published_form`, if given, is tried first on the bytes: a fast
    reader for documents in the published form, which returns None for any other and for errors.
    """

    def __init__(
        self,
        read_document: Callable[[dict[str, Any]], ObservedResponse],
        read_published_form: Callable[[bytes], ObservedResponse | None] = lambda _body: None,
    ) -> None:
        self._read_document, self._read_published_form = read_document, read_published_form
        self._body = bytearray()
        self._observation: ObservedResponse | None = None
        self._too_large = False

    def feed(self, data: bytes) -> None:
        """Takes any piece of the body. A body larger than `BOUND` is dropped and not read."""
        self._observation = None
        if self._too_large or len(self._body) + len(data) > BOUND:
            self._too_large = True
            self._body.clear()
        else:
            self._body += data

    def observation(self) -> ObservedResponse:
        """Returns what was read: nothing until the body is complete."""
        if self._observation is None:
            self._observation = self._parse()
        return self._observation

    def _parse(self) -> ObservedResponse:
        body = bytes(self._body)
        observation = self._read_published_form(body)
        if observation is not None:
            return observation
        try:
            data = decode_json(body)
        except ValueError:
            return ObservedResponse()
        observation = self._read_document(data) if type(data) is dict else ObservedResponse()
        error = find_error_text(data)
        return replace(observation, error=error) if error else observation
