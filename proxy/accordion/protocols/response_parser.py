"""The response parser: from the bytes of a provider's response to events. Each protocol has one (its response.py).

Theory of operation. A response is an event stream or one JSON document. `feed` takes its bytes and returns the events
that are complete, one ResponseEvent for each event of the stream; `close` returns the event of what is left, which is
the whole document or the unfinished last event.

    bytes --feed--> ResponseEvent(raw, data, parts)
                      raw     the bytes as they came: whoever passes on `raw` changes nothing
                      data    the JSON in them
                      parts   the meaning, in the same few types for all protocols

All readers of responses work from this:

- ResponseObserver collects the parts: usage, calls, finish reason, error (the ledger, calibration, delegation).
- The overflow probe inspects the first events: `ResponseStart`, `Keepalive`, an error, or content.
- The summarizer takes the text of the `Content` parts of a document.
- The tool loop hides and rewrites events, so it reads their JSON in the protocol's own form; the functions for this are
  in the parser's module.

A parser keeps the state that the meaning of an event needs: counts that a later event completes, the block or the call
that an index stands for. It never raises on what a provider sends.

Most events only add text. Who does not need the text (`reads_content` is false) does not pay for it: `may_matter`
searches a block of events for a few byte strings, and only an event in which one is found is parsed. It may say yes
wrongly, but never no.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec
from msgspec.structs import replace

from accordion.model.records import ARGUMENTS, ObservedCall, ObservedResponse, Usage
from accordion.protocols.json_values import as_mapping, as_string, bounded_arguments, find_error_text
from accordion.protocols.message_keys import decode_json
from accordion.protocols.sse import SseBuffer, parse, split_events

BOUND = 16 * 2**20
"""Limit of one event, or of a response that is no stream, in bytes; nothing larger is read."""
_MAX_SPLIT = 1024
"""Blocks up to this length are split into events, longer ones are halved first; in bytes."""
_KEEPALIVES = frozenset({"ping", "keepalive"})
_TEXT_TYPES = frozenset({"text", "output_text"})
_REASONING_TYPES = frozenset({"thinking", "redacted_thinking", "reasoning"})

ContentKind = Literal["text", "reasoning", "other"]


class ResponseStart(msgspec.Struct, frozen=True):
    """The provider announces the response, before the model wrote anything."""


class Keepalive(msgspec.Struct, frozen=True):
    """A comment or an event that only keeps the connection alive."""


class Identity(msgspec.Struct, frozen=True, gc=False):
    """The response's id and model; either may be empty."""

    response_id: str
    model: str


class Content(msgspec.Struct, frozen=True, gc=False):
    """A piece of what the model wrote. `other` is content without a text of the answer: a refusal, media, output of
    the provider's own tools, a further choice."""

    kind: ContentKind
    text: str = ""


class CallPiece(msgspec.Struct, frozen=True, gc=False):
    """A piece of a tool call; pieces with the same key belong to one call.

    `arguments` follow those of the pieces before. If `is_whole`, they are complete, and count where no other pieces
    came.
    """

    key: Any
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    is_whole: bool = False


class UsageReport(msgspec.Struct, frozen=True):
    """The usage so far, None where it is unknown; `first` as in ObservedResponse."""

    usage: Usage | None
    first: int | None = None


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The reason why the model stopped, in the provider's words."""

    reason: str


class StoredItems(msgspec.Struct, frozen=True):
    """The items of a complete response that the provider keeps; `items` and `output` as in ObservedResponse."""

    items: tuple[tuple[str, bytes], ...]
    output: tuple[bytes, ...] | None


class ErrorReport(msgspec.Struct, frozen=True, gc=False):
    """An error in place of the response, or of its rest; the text is empty where it has none."""

    text: str


class End(msgspec.Struct, frozen=True):
    """The protocol's own end of a stream."""


class Undecodable(msgspec.Struct, frozen=True):
    """Data that cannot be decoded: it may be a piece of anything."""


ResponsePart = (
    ResponseStart | Keepalive | Identity | Content | CallPiece | UsageReport | Finish | StoredItems | ErrorReport | End
    | Undecodable
)  # fmt: skip

RESPONSE_START, KEEPALIVE, END, UNDECODABLE = ResponseStart(), Keepalive(), End(), Undecodable()


class ResponseEvent(msgspec.Struct, gc=False):
    """One event of a stream, or a whole document."""

    raw: bytes
    """Its bytes, as they came."""
    name: bytes = b""
    """The name of the event; mostly empty in some protocols."""
    data: bytes | None = None
    """Its data; None where it has none."""
    value: Any = None
    """The decoded data of a document."""
    parts: tuple[ResponsePart, ...] = ()
    """Its meaning; empty where it has none for the readers of responses."""


class ResponseParser(ABC):
    """Parses one response. With `reads_content`, every event is returned, with the text; without, those of `feed` that
    matter to an observer."""

    may_end_at_finish: ClassVar[bool] = False
    """Whether some servers leave out the protocol's own end of a stream, so that the finish reason is the last sign."""

    def __init__(self, *, is_stream: bool, reads_content: bool = False) -> None:
        self.is_stream = is_stream
        self.reads_content = reads_content
        self._events = SseBuffer(BOUND)
        self._join_events = self._events.feed
        self._document = bytearray()
        self._is_too_large = False

    def feed(self, data: bytes) -> Sequence[ResponseEvent]:
        """Takes decoded bytes of the body, cut anywhere; returns the events that they complete.

        A document larger than `BOUND` is dropped; so is an event.
        """
        if self.is_stream:
            block = self._join_events(data)
            return self._parse_block(block) if block and (self.reads_content or self.may_matter(block)) else ()
        self._add_to_document(data)
        return ()

    @property
    def document_size(self) -> int:
        """The size of the document so far, in bytes; 0 of a stream, and of a document that was dropped."""
        return len(self._document)

    def close(self) -> Sequence[ResponseEvent]:
        """Returns the events of the bytes that are kept back, which stay: the document, or the beginning of the last
        event of a stream."""
        if self.is_stream:
            return self._parse_block(self._events.pending)
        return [self.parse_document(bytes(self._document))] if self._document else ()

    def parse_event(self, raw: bytes) -> ResponseEvent:
        """Parses one event of a stream. To be called for each event, in order."""
        event = frame_event(raw)
        event.parts = self._read_parts(event)
        return event

    def parse_document(self, body: bytes) -> ResponseEvent:
        """Parses a whole document."""
        try:
            value = decode_json(body)
        except ValueError:
            return ResponseEvent(body, data=body, parts=(UNDECODABLE,))
        parts = self.read_document(value) if type(value) is dict else ()
        error = find_error_text(value)
        return ResponseEvent(body, data=body, value=value, parts=(*parts, ErrorReport(error)) if error else parts)

    def _read_parts(self, event: ResponseEvent) -> tuple[ResponsePart, ...]:
        if event.data is None:
            return (KEEPALIVE,) if event.raw.strip(b"\r\n") else ()
        try:
            data = decode_json(event.data)
        except ValueError:
            data = None
        if type(data) is not dict:
            return self._read_marker(event, data)
        if event.name == b"error" or data.get("error") or "error" in (data.get("type"), data.get("object")):
            return (ErrorReport(find_error_text(data)),)
        return (KEEPALIVE,) if as_string(data.get("type")) in _KEEPALIVES else self.read_data(data)

    @abstractmethod
    def may_matter(self, block: bytes) -> bool:
        """Whether an event in `block` may matter to an observer: a quick search that may say yes wrongly, but never
        no."""

    @abstractmethod
    def read_data(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of an event's data that is no error."""

    @abstractmethod
    def read_document(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of a document, without an error that it may have."""

    def read_marker(self, data: bytes) -> tuple[ResponsePart, ...]:
        """Returns the meaning of data that is no JSON object, such as `[DONE]`."""
        return ()

    def _read_marker(self, event: ResponseEvent, value: Any) -> tuple[ResponsePart, ...]:
        data = event.data or b""
        if event.name == b"error":
            return (ErrorReport(find_error_text({"error": data.decode(errors="replace")})),)
        if value is None and data.startswith(b"{"):
            return (UNDECODABLE,)
        error = find_error_text(value)
        return (ErrorReport(error),) if error else self.read_marker(data)

    def _parse_block(self, block: bytes) -> Sequence[ResponseEvent]:
        # The events of a provider may end with CR LF, and those that the proxy writes between them with LF.
        if block.find(b"\n\n") == len(block) - 2 and b"\r" not in block:
            return (self.parse_event(block),)
        events: list[ResponseEvent] = []
        if self.reads_content:
            events += map(self.parse_event, split_events(block))
        else:
            self._parse_selected(block, events)
        return events

    def _parse_selected(self, block: bytes, events: list[ResponseEvent]) -> None:
        """Parses the events of a block that can matter. In a burst these are mostly the first and the last few; halving
        finds them without splitting the rest."""
        # 1 where no event ends after the middle.
        middle = block.find(b"\n\n", len(block) // 2) + 2 if len(block) > _MAX_SPLIT else len(block)
        if 2 < middle < len(block):
            for half in (block[:middle], block[middle:]):
                if self.may_matter(half):
                    self._parse_selected(half, events)
            return
        for piece in split_events(block):
            if self.may_matter(piece):
                events.append(self.parse_event(piece))

    def _add_to_document(self, data: bytes) -> None:
        if self._is_too_large or len(self._document) + len(data) > BOUND:
            self._is_too_large = True
            self._document.clear()
        else:
            self._document += data


def frame_event(raw: bytes) -> ResponseEvent:
    """Returns an event of a stream with its name and its data."""
    parsed = parse(raw)
    return ResponseEvent(raw) if parsed is None else ResponseEvent(raw, parsed.name, parsed.data)


def output_text(event: ResponseEvent) -> str:
    """Returns the text of an event, or of a document."""
    return "".join([part.text for part in event.parts if type(part) is Content and part.kind == "text"])


def response_text(parser: ResponseParser, body: bytes) -> str:
    """Returns the text of a whole response. `parser` is a new one that reads content."""
    return "".join(map(output_text, (*parser.feed(body), *parser.close())))


def content_of_field(kind: ContentKind, value: Any) -> tuple[Content, ...]:
    """Returns the content of a field that has a text, or something else; nothing where it is empty."""
    if not value:
        return ()
    return (Content(kind, value) if type(value) is str else Content("other"),)


def content_of_list(value: Any) -> tuple[Content, ...]:
    """Returns the content of a list of blocks or content parts, or of a text in place of one."""
    if type(value) is not list:
        return content_of_field("text", value)
    return tuple(map(_content_of_block, map(as_mapping, value)))


def _content_of_block(block: dict[str, Any]) -> Content:
    kind, text = as_string(block.get("type")), block.get("text")
    if kind in _TEXT_TYPES and type(text) is str:
        return Content("text", text)
    return Content("reasoning") if kind in _REASONING_TYPES else Content("other")


# -- the observer ------------------------------------------------------------------------------------------------------


class ResponseObserver:
    """Observes one response as its bytes pass. It changes nothing and never raises on what a provider sends."""

    def __init__(self, parser: ResponseParser) -> None:
        self.has_ended = False
        """Whether the protocol's own end of a stream passed (`[DONE]`, `message_stop`, `response.completed`, an
        error)."""
        self._parser = parser
        self._parse = parser.feed
        self._taken_size = 0
        self._characters = 0
        self._clear()

    def _clear(self) -> None:
        self._response_id = self._model = self._finish = self._error = ""
        self._usage: Usage | None = None
        self._first: int | None = None
        self._stored = StoredItems((), None)
        # Calls in order of arrival, by the key that distinguishes them in this protocol.
        self._calls: dict[Any, ObservedCall] = {}
        # The arguments of each call, in pieces as they came.
        self._arguments: dict[Any, list[str]] = {}
        self._space_left: dict[Any, int] = {}

    def feed(self, data: bytes) -> None:
        """Takes decoded bytes of the body: of a stream, or of a document."""
        for event in self._parse(data):
            self.take(event)

    def take(self, event: ResponseEvent) -> None:
        """Takes one event of the parser."""
        for part in event.parts:
            if type(part) is CallPiece:
                self._take_call(part)
            else:
                self._take_part(part)

    @property
    def may_end(self) -> bool:
        """Whether a stream may end here: its own end passed, or a finish reason that some servers end with."""
        return self.has_ended or (self._parser.may_end_at_finish and bool(self._finish))

    def observation(self) -> ObservedResponse:
        """Returns what was read so far; nothing of a document that is not complete."""
        if self._parser.document_size != self._taken_size:
            if self._taken_size:
                # What was read of a part of the document does not count.
                self._clear()
            self._taken_size = self._parser.document_size
            for event in self._parser.close():
                self.take(event)
        arguments = self._arguments
        calls = [replace(call, arguments="".join(arguments[key])) if key in arguments else call
                 for key, call in self._calls.items()]  # fmt: skip
        return ObservedResponse(
            self._response_id,
            self._model,
            self._usage,
            self._finish,
            tuple(calls),
            self._error,
            self._first,
            self._stored.items,
            self._stored.output,
            self._characters,
        )

    def _take_part(self, part: ResponsePart) -> None:
        if type(part) is Identity:
            self._response_id, self._model = part.response_id or self._response_id, part.model or self._model
        elif type(part) is UsageReport:
            self._usage = part.usage or self._usage
            self._first = self._first if part.first is None else part.first
        elif type(part) is Content:
            self._characters += len(part.text)
        elif type(part) is Finish:
            self._finish = part.reason
        elif type(part) is StoredItems:
            self._stored = part
        elif type(part) is ErrorReport:
            self._error = part.text or self._error or "error"
            self.has_ended = True
        elif type(part) is End:
            self.has_ended = True
        elif type(part) is Undecodable:
            # It may have held a piece of any call: the arguments of all are dropped.
            self._space_left.update(dict.fromkeys(self._calls, -1))
            self._arguments.clear()

    def _take_call(self, piece: CallPiece) -> None:
        """Records a piece of a call."""
        key, arguments = piece.key, piece.arguments
        call = self._calls.get(key)
        if call is None or piece.call_id or piece.name:
            # An id or a name that the call already has stays.
            call = call or ObservedCall("", "")
            self._calls[key] = replace(call, call_id=call.call_id or piece.call_id, name=call.name or piece.name)
        if not arguments:
            return
        if self._parser.reads_content:
            self._characters += len(arguments)
        if piece.is_whole:
            self._calls[key] = replace(self._calls[key], arguments=bounded_arguments(arguments))
            return
        space_left = self._space_left[key] = self._space_left.get(key, ARGUMENTS) - len(arguments)
        if space_left >= 0:
            self._arguments.setdefault(key, []).append(arguments)
        else:
            self._arguments.pop(key, None)
