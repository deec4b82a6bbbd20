"""The messages of Responses over a WebSocket, and what a connection knows of its responses.

A client sends `response.create`: the body of a request with a `type`, and perhaps a `stream_id` and `generate`. The
provider answers with the events of a streamed response, one a message; a refusal is an `error` with a `status`. Several
responses may run at the same time, each on a stream with its own `stream_id`; on one stream they run in turn.

With `store: false` the provider keeps a response in the connection's memory only. A client then continues it by
`previous_response_id` with the new items alone. `ConnectionHistory` has the whole list, so that such a request can be
read, and be sent whole once it has to be changed.

Source: OpenAI's guide to WebSocket mode, and the type files of the openai SDK (`responses_client_event.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from accordion.model.cache import BoundedCache
from accordion.protocols.json_spans import (
    NULL,
    exceeds_count,
    is_list,
    is_object,
    is_text,
    items_of,
    list_of,
    object_of,
)
from accordion.protocols.json_values import encode, to_json
from accordion.protocols.openai_responses.message_json import is_trigger
from accordion.protocols.openai_responses.response import ENDS, decode_object, split_object, text_field

CREATE = "response.create"
ERROR = "error"
NEUTRAL_TYPES = frozenset({CREATE, "response.processed", "response.cancel"})
"""The types of client messages that add no items to a conversation but those that they list."""
_MAX_RESPONSES = 8
"""The most responses whose list a connection holds; a client continues from the last, or from a fork of it."""
_MAX_VALUES = 500_000
"""The most keys and values of a list that is split. The pipeline reads no more either (protocols/body_reader.py)."""
_ITEM = 48
"""Bytes that an item takes beside its own."""
_BAD_GATEWAY = 502
"""The status of a response that is no stream although one was asked for."""
_MAX_TEXT = 2_000
"""The most bytes of an error without JSON that are shown."""
_OWN_FIELDS = frozenset({"type", "stream_id", "generate"})
"""The fields of `response.create` that a body over HTTP does not have."""
_LINE_END = re.compile(r"\r\n?|\n")
_HEADERS_LEFT_OUT = frozenset({b"content-type", b"content-length", b"content-encoding", b"date", b"server"})


class MessageHead(msgspec.Struct, gc=False):
    """The fields of a provider's message that say what it is. `status` is that of a refusal."""

    type: str = ""
    stream_id: str | None = None
    status: int | None = None

    @property
    def is_end(self) -> bool:
        """Whether the message is the last one of a response."""
        return self.type in ENDS or self.type == ERROR

    @property
    def is_refusal(self) -> bool:
        """Whether the message refuses a request, as an HTTP response with an error status would."""
        return self.type == ERROR and (self.status or 0) >= 400

    @property
    def is_without_stream(self) -> bool:
        """Whether the message is one of a response, and names no stream, as where a provider knows none."""
        return self.stream_id is None and (self.is_end or self.type.startswith("response."))


class _Event(msgspec.Struct):
    type: str = ""
    stream_id: str | None = None
    item: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()


_HEAD = msgspec.json.Decoder(MessageHead)
_EVENT = msgspec.json.Decoder(_Event)


def read_head(message: str) -> MessageHead:
    """Reads what a provider's message is; a head without a type if it cannot be read."""
    try:
        return _HEAD.decode(message)
    except (ValueError, RecursionError):
        # A lone surrogate in a text must not hide the other fields.
        fields = read_fields(message)
        status = fields.get("status", b"")
        status_code = int(status) if len(status) == 3 and status.isdigit() else None
        return MessageHead(text_field(fields, "type"), text_field(fields, "stream_id") or None, status_code)


def _read_event(data: bytes) -> _Event:
    """Reads an event of a response, as `read_head` reads a message."""
    try:
        return _EVENT.decode(data)
    except (ValueError, RecursionError):
        fields = split_object(data)
        item, response = (msgspec.Raw(fields.get(name, NULL)) for name in ("item", "response"))
        return _Event(text_field(fields, "type"), text_field(fields, "stream_id") or None, item, response)


def read_fields(message: str) -> Mapping[str, bytes]:
    """Returns the fields of a client's message; none if it is no JSON object."""
    return split_object(message.encode())


def render_event(kind: str, message: str) -> bytes:
    """Writes a provider's message as an event of a stream."""
    data = _LINE_END.sub("\ndata: ", message) if "\n" in message or "\r" in message else message
    return f"event: {kind}\ndata: {data}\n\n".encode()


def render_refusal(
    status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, request: Mapping[str, bytes]
) -> str:
    """Writes an HTTP response that is no event stream as a message. A body that is such a message stays as it is."""
    fields = split_object(body)
    if text_field(fields, "type") == ERROR and "status" in fields:
        return body.decode()
    status = status if status >= 400 else _BAD_GATEWAY
    error = fields.get("error", b"")
    if not is_object(error):
        error = to_json({"message": body[:_MAX_TEXT].decode(errors="replace"), "type": "server_error", "code": None})
    sent = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in headers
        if name.lower() not in _HEADERS_LEFT_OUT and not name.lower().startswith(b"x-accordion-")
    }
    message = {"type": to_json(ERROR), "status": b"%d" % status, "error": error, "headers": encode(sent)}
    stream = {name: value for name, value in request.items() if name == "stream_id"}
    return object_of({**message, **stream}).decode()


def render_prewarmed(response_id: str, fields: Mapping[str, bytes], created_at: int) -> list[bytes]:
    """Writes the events of a response to `generate: false`: it has no output, and a later request may continue it."""
    response = {
        "id": to_json(response_id),
        "object": b'"response"',
        "created_at": b"%d" % created_at,
        "status": b'"completed"',
        "error": NULL,
        "incomplete_details": NULL,
        "model": fields.get("model", b'""'),
        "output": b"[]",
        "usage": encode({"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}),
    }
    beginning = object_of({**response, "status": b'"in_progress"', "usage": NULL})
    return [
        object_of({"type": b'"response.created"', "sequence_number": b"0", "response": beginning}),
        object_of({"type": b'"response.completed"', "sequence_number": b"1", "response": object_of(response)}),
    ]


class SocketRequest:
    """One `response.create`, and the response to it as the client gets it.

    `items` is the whole list of the request; None if a part of it is kept by the provider and not known here.
    """

    def __init__(self, message: str, fields: Mapping[str, bytes], history: ConnectionHistory) -> None:
        self.message = message
        self.fields = fields
        self._stream_id = fields.get("stream_id", NULL)
        self.is_prewarming = fields.get("generate") == b"false"
        self.items = history.expand(fields)
        self._history, self._version = history, history.version
        self.has_ended = False
        """Whether the last event of the response was taken."""
        self._response_id = ""
        self._output: list[bytes] = []

    @property
    def body(self) -> bytes:
        """The request's body with the whole list if it is known, and with the fields of a message."""
        if self.items is None or self.fields.get("previous_response_id", NULL) == NULL:
            return self.message.encode()
        rest = {name: value for name, value in self.fields.items() if name != "previous_response_id"}
        return object_of({**rest, "input": list_of(self.items)})

    @property
    def list_size(self) -> int:
        """The bytes that the whole list takes in memory, roughly; 0 if it is not known."""
        return _list_size(self.items or ())

    @property
    def is_too_large(self) -> bool:
        """Whether the request continues a response, and its whole list is larger than a connection may hold."""
        is_continued = self.fields.get("previous_response_id", NULL) != NULL
        return is_continued and self.list_size > self._history.max_bytes

    @property
    def http_body(self) -> bytes:
        """The same as the body of a request over HTTP."""
        fields = split_object(self.body)
        return object_of(
            {name: value for name, value in fields.items() if name not in _OWN_FIELDS} | {"stream": b"true"}
        )

    def take_event(self, data: bytes) -> str:
        """Takes an event of the response; returns it as it is sent to the client, with the request's `stream_id`."""
        event = _read_event(data)
        self.has_ended = self.has_ended or event.type in ENDS or event.type == ERROR
        if event.type == "response.output_item.done":
            self._output.append(bytes(event.item))
        elif event.type in ENDS or event.type == "response.created":
            response = split_object(bytes(event.response))
            self._response_id = text_field(response, "id") or self._response_id
            if event.type in ("response.completed", "response.incomplete"):
                self._record(response)
        fields = {} if self._stream_id == NULL or event.stream_id is not None else split_object(data)
        return object_of({**fields, "stream_id": self._stream_id}).decode() if fields else data.decode(errors="replace")

    def _record(self, response: Mapping[str, bytes]) -> None:
        output = self._output
        if not output and is_list(response.get("output", b"")):
            output = _split_list(response["output"])
        if self.items is not None and self._version == self._history.version:
            self._history.add(self._response_id, (*self.items, *_resendable(output)))


class ConnectionHistory:
    """The lists of a connection's last responses, each with its output. They share the bytes of their items.

    The lists that were used last are held: at most 8, and together at most `max_bytes` as if they shared nothing. The
    newest is held in any case.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.version = 0
        """Changes when all that was known is forgotten."""
        self._lists = BoundedCache[str, tuple[tuple[bytes, ...], bool]](max_bytes)
        """By the id of the response: its list, and whether the proxy made the response."""

    def add(self, response_id: str, items: tuple[bytes, ...], *, is_own: bool = False) -> None:
        """Adds a response. `is_own`: the provider does not know it, since the proxy made it."""
        if response_id:
            # Each takes an eighth of the room at least, so that there are no more than eight.
            size = max(_list_size(items), -(-self.max_bytes // _MAX_RESPONSES))
            self._lists.put(response_id, (items, is_own), size)

    def forget(self) -> None:
        """Forgets all responses: something was added to a conversation that is not in its list."""
        self.version += 1
        self._lists.clear()

    def expand(self, fields: Mapping[str, bytes]) -> tuple[bytes, ...] | None:
        """Returns the whole list of a request; None if a part of it is kept by the provider.

        A response that the provider stores is continued by its id, as over HTTP.
        """
        own = _input_items(fields.get("input", NULL))
        if fields.get("conversation", NULL) != NULL or own is None:
            return None
        if fields.get("previous_response_id", NULL) == NULL:
            return own
        known = self._lists.get(text_field(fields, "previous_response_id"))
        if known is None:
            return None
        items, is_own = known
        items = tuple(item for item in items if not is_trigger(item))
        return (*items, *own) if is_own or fields.get("store") == b"false" else None


def _list_size(items: tuple[bytes, ...]) -> int:
    """Returns the bytes that a list takes in memory, roughly."""
    return sum(map(len, items)) + _ITEM * len(items)


def _input_items(value: bytes) -> tuple[bytes, ...] | None:
    if is_text(value):
        return (b'{"role":"user","content":%s}' % value,)
    if value == NULL:
        return ()
    if not is_list(value) or (len(value) > _MAX_VALUES and exceeds_count(value, 0, _MAX_VALUES)):
        return None
    return tuple(_split_list(value))


def _split_list(value: bytes) -> list[bytes]:
    """Returns the items of a list; none if it cannot be read."""
    try:
        return items_of(value)
    except (ValueError, RecursionError):
        # A lone surrogate in one item must not hide the others.
        return [to_json(item) for item in decode_object(b'{"items":%b}' % value).get("items", ())]


def _resendable(output: Sequence[bytes]) -> list[bytes]:
    """Returns the items of a response in a form in which they can be sent again.

    Reasoning without its encrypted content cannot be, since the provider does not store it; by the ids of the items
    behind it the provider would miss it.
    """
    items = [split_object(item) for item in output]
    sendable = [item for item in items if not (text_field(item, "type") == "reasoning" and not _is_encrypted(item))]
    if len(sendable) == len(items):
        return list(output)
    return [object_of({name: value for name, value in item.items() if name != "id"}) for item in sendable]


def _is_encrypted(item: Mapping[str, Any]) -> bool:
    return is_text(item.get("encrypted_content", NULL))
