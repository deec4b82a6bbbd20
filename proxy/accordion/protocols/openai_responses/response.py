"""Parses the responses of Responses, and writes their events back with as few changes as possible.

Theory of operation. A response is a response object, or a stream of events with `sequence_number`:

    response.created, .queued, .in_progress     the response without content
    response.output_item.added, ....done        an item at its position `output_index`; it comes twice
    response.*.delta, ....done                  pieces of an item: text, arguments, and others
    response.completed, .incomplete, .failed    the whole response object

ResponsesParser turns either into the events of response_parser.py. The end event has all that matters; the earlier ones
count if it never comes, and complete items also if the server leaves them out of it. So deltas do not matter to an
observer. The tool loop rewrites events; for it each is a ResponsesEvent, whose fields are the provider's JSON, and
`with_fields` writes it with others.

Source: the type files of the openai SDK (`openai/types/responses/response.py`, `*_event.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from accordion.model.records import ARGUMENTS, Usage
from accordion.protocols.json_spans import fields_of, object_of
from accordion.protocols.json_values import (
    as_count,
    as_list,
    as_mapping,
    as_string,
    encode,
    find_error_text,
    from_json,
    to_json,
)
from accordion.protocols.openai_responses.message_json import CALLS, is_hosted_call, read_call
from accordion.protocols.response_parser import (
    END,
    RESPONSE_START,
    CallPiece,
    Content,
    ErrorReport,
    Finish,
    Identity,
    ResponseParser,
    ResponsePart,
    StoredItems,
    UsageReport,
    content_of_list,
)
from accordion.protocols.sse import SseEvent, parse

ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
OPENINGS = frozenset({"response.created", "response.queued", "response.in_progress"})

_TEXT_DELTAS = frozenset(
    f"event: response.{name}.delta".encode()
    for name in (
        *("output_text", "refusal", "reasoning_text", "reasoning_summary_text", "custom_tool_call_input"),
        *("function_call_arguments", "code_interpreter_call_code", "mcp_call_arguments"),
    )
)
_DATA = re.compile(rb"(?:\A|(?<=[\r\n])|(?<=\A\xef\xbb\xbf))data:[^\r\n]*(?:(?:\r\n|\r|\n)data:[^\r\n]*)*")


_FINAL_STATUSES = ("completed", "incomplete", "")
"""The status of a response whose items are final; some servers leave it out."""
_MAX_OUTPUT = 4 * 2**20
"""Limit of a response whose items are recorded, in bytes."""


class ResponsesParser(ResponseParser):
    """Parses a response object, or a stream of events."""

    def __init__(self, *, is_stream: bool, reads_content: bool = False) -> None:
        super().__init__(is_stream=is_stream, reads_content=reads_content)
        self._complete_items: list[dict[str, Any]] = []

    def may_matter(self, block: bytes) -> bool:
        """Selects the events of items, of the response and of errors; deltas do not matter."""
        return (
            b"response.output_item." in block
            or b"response.completed" in block
            or b"response.created" in block
            or b"response.incomplete" in block
            or b"response.failed" in block
            or b'"error"' in block
            or b"event: error" in block
        )

    def read_data(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of an event by its own type."""
        kind = as_string(data.get("type"))
        if kind.startswith("response.output_item."):
            entry = as_mapping(data.get("item"))
            if kind == "response.output_item.done":
                self._complete_items.append(entry)
            return self._read_item(entry)
        response = as_mapping(data.get("response"))
        if kind in OPENINGS:
            return (RESPONSE_START, _identity(response))
        if kind in ENDS:
            # The text came in deltas.
            content = (Content("other"),) if self.reads_content and response.get("output") else ()
            return (*_read_response(response, done=self._complete_items), *content, END)
        return _read_delta(kind, data) if self.reads_content else ()

    def read_document(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of a response object."""
        parts = _read_response(data)
        if self.reads_content:
            items = map(as_mapping, as_list(data.get("output")))
            parts += tuple(content for entry in items for content in _read_item_content(entry))
        return parts

    def _read_item(self, entry: dict[str, Any]) -> tuple[ResponsePart, ...]:
        hosted = (UsageReport(None, first=0),) if is_hosted_call(entry) else ()
        call = _read_call_piece(entry)
        if call is not None and call.call_id:
            return (*hosted, call)
        return (*hosted, Content("other")) if self.reads_content else hosted


def _read_delta(kind: str, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
    if not kind.endswith(".delta"):
        return ()
    delta = as_string(data.get("delta"))
    if kind == "response.output_text.delta":
        return (Content("text", delta),)
    return (Content("reasoning", delta) if kind.startswith("response.reasoning") else Content("other"),)


def _read_item_content(entry: dict[str, Any]) -> tuple[Content, ...]:
    """Returns the content of an item that is no call."""
    kind = as_string(entry.get("type"))
    if kind == "message":
        return content_of_list(entry.get("content"))
    return () if kind in CALLS else (Content("reasoning" if kind == "reasoning" else "other"),)


def _identity(response: Mapping[str, Any]) -> Identity:
    return Identity(as_string(response.get("id")), as_string(response.get("model")))


def _read_call_piece(entry: dict[str, Any], key: Any = None) -> CallPiece | None:
    """Returns the call that an item is; None where it is none. In a stream its key is its id, since the item comes
    twice: when it begins and when it is complete."""
    form = CALLS.get(as_string(entry.get("type")))
    if form is None:
        return None
    call = read_call(entry, form)
    return CallPiece(call.call_id if key is None else key, call.call_id, call.name, call.arguments, is_whole=True)


def _read_response(data: dict[str, Any], done: Sequence[dict[str, Any]] | None = None) -> tuple[ResponsePart, ...]:
    """Reads a response object. `done` are the items that came before it in a stream, which some servers leave out of
    the object; None for a document."""
    status = as_string(data.get("status"))
    reason = as_string(as_mapping(data.get("incomplete_details")).get("reason"))
    output = [as_mapping(entry) for entry in as_list(data.get("output"))]
    output = list(done) if done is not None and len(done) > len(output) else output
    is_recorded = status in _FINAL_STATUSES and data.get("store") is not False
    wires = list(map(_sendable_item, output)) if is_recorded else []
    all_items = _all_items(wires) if is_recorded and (done or type(data.get("output")) is list) else None
    error = find_error_text(data) or ("failed" if status == "failed" else "")
    calls = (_read_call_piece(entry, position if done is None else None) for position, entry in enumerate(output))
    return (
        _identity(data),
        UsageReport(read_usage(as_mapping(data.get("usage"))), 0 if any(map(is_hosted_call, output)) else None),
        Finish(reason if status == "incomplete" and reason else status),
        *[call for call in calls if call is not None],
        StoredItems(tuple(_messages_by_id(output, wires)), all_items),
        *([ErrorReport(error)] if error else []),
    )


def _all_items(wires: Sequence[bytes | None]) -> tuple[bytes, ...] | None:
    """Returns all items of a response; None where one cannot be encoded, or they are too long."""
    items = tuple([wire for wire in wires if wire is not None])
    return items if len(items) == len(wires) and sum(map(len, items)) <= _MAX_OUTPUT else None


def _sendable_item(entry: dict[str, Any]) -> bytes | None:
    """Encodes an item without log probabilities, which are many times as long as the text; None where it cannot be
    encoded."""
    content = [as_mapping(part) for part in as_list(entry.get("content"))]
    if any(part.get("logprobs") for part in content):
        entry = {**entry, "content": [{**part, "logprobs": []} if part.get("logprobs") else part for part in content]}
    with suppress(ValueError, RecursionError):
        return encode(entry)
    return None


def _messages_by_id(output: Iterable[dict[str, Any]], wires: Iterable[bytes | None]) -> Iterator[tuple[str, bytes]]:
    """Yields the messages of a response with the ids by which a client may refer to them later."""
    for entry, wire in zip(output, wires, strict=False):
        name = as_string(entry.get("id"))
        is_message = entry.get("type") == "message" and name.startswith("msg_") and entry.get("content")
        if is_message and wire is not None and len(wire) <= ARGUMENTS:
            yield name, wire


def read_usage(usage: dict[str, Any]) -> Usage | None:
    """Reads a usage object; None where it has no input."""
    if "input_tokens" not in usage:
        return None
    input_details = as_mapping(usage.get("input_tokens_details"))
    output_details = as_mapping(usage.get("output_tokens_details"))
    return Usage(
        input=as_count(usage["input_tokens"]),
        output=as_count(usage.get("output_tokens")),
        cached=as_count(input_details.get("cached_tokens")),
        cache_write=as_count(input_details.get("cache_write_tokens")),
        reasoning=as_count(output_details.get("reasoning_tokens")),
    )


def has_item_or_response(block: bytes) -> bool:
    """Whether events have an item or the response. The name of a text delta decides alone; a name quoted within a text
    is escaped there."""
    end = block.find(b"\n")
    if block[:end] in _TEXT_DELTAS and block.find(b"\n", end + 1) == len(block) - 2:
        return False
    return b"output_item." in block or b'"response"' in block


class ResponsesEvent:
    """One event: its bytes, and the fields of its JSON object (empty where its data is none)."""

    __slots__ = ("fields", "kind", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        event = parse(raw) or SseEvent(b"", b"")
        self.fields: Mapping[str, bytes] = split_object(event.data)
        self.kind = self.text("type") or event.name.decode(errors="replace")

    @property
    def is_truncated(self) -> bool:
        """Whether it ends within its JSON."""
        return b"{" in self.raw and not self.raw.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))

    @property
    def key(self) -> int | str:
        """The key of its item: the position in the provider's output, or the id where there is no position."""
        index = self.number("output_index")
        return self.text("item_id") if index is None else index

    def text(self, name: str) -> str:
        """Returns a field with a text; empty where it has none."""
        return text_field(self.fields, name)

    def number(self, name: str) -> int | None:
        """Returns a field with a whole number from 0 on; None where it has none."""
        raw = self.fields.get(name, b"")
        return int(raw) if raw.isdigit() and len(raw) < 20 else None

    def with_fields(self, changes: Mapping[str, bytes]) -> bytes:
        """Returns the event with these fields; the same bytes where it has them already. Lines other than data stay."""
        fields = self.fields
        if all(fields.get(name) == value for name, value in changes.items()):
            return self.raw
        data = b"data: " + object_of({**fields, **changes})
        return _DATA.sub(lambda _: data, self.raw, count=1)


def decode_object(raw: bytes) -> dict[str, Any]:
    """Decodes a JSON object; empty where it is none."""
    try:
        return as_mapping(from_json(raw))
    except ValueError:
        return {}


def split_object(raw: bytes) -> dict[str, bytes]:
    """Returns the fields of a JSON object as bytes; empty where it is none."""
    try:
        return fields_of(raw)
    except (ValueError, RecursionError):
        # A lone surrogate in one text must not hide the other fields.
        return {name: to_json(value) for name, value in decode_object(raw).items()}


def text_field(fields: Mapping[str, bytes], name: str, default: str = "") -> str:
    """Returns the text of a field; `default` where there is no such field, empty where it is no text."""
    raw = fields.get(name)
    try:
        return default if raw is None else as_string(from_json(raw))
    except ValueError:
        return ""
