"""Context edits of Responses: `context_management`, `compaction_trigger`, `/responses/compact`, and compaction items.

`context_management` has an entry `compaction` with a `compact_threshold`: from so many tokens of input on, the output
begins with a compaction item. A `compaction_trigger` as the last item asks for such an item alone, and so does
`POST /v1/responses/compact`, whose response also repeats the user's messages. Behind a compaction item the provider
reads on; of what precedes it, only messages of the user, the developer and the system count.

In a stream the item comes first, as `response.output_item.added`, `response.compaction.compacting` and
`response.output_item.done`.

Source: `openai/types/responses` of the openai SDK (`compacted_response.py`, `response_compact_params.py`,
`response_compaction_item.py`, `response_create_params.py`, `response_input_item.py`); OpenAI's guide "Compaction".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from accordion.features.client_compaction.context_edits import (
    SEAL_BYTES,
    SEAL_PREFIX,
    CompactionBlock,
    ContextEdits,
    ContextReport,
    ListCompactionProtocol,
    OpenBlock,
    OpenedBlock,
    ReportWriter,
    RequestedSummary,
    block_id,
    response_id,
)
from accordion.model.errors import BadRequest
from accordion.protocols.json_spans import fields_of, list_of, object_of
from accordion.protocols.json_values import as_list, as_mapping, as_string, decode_field, from_json, to_json
from accordion.protocols.openai_responses.message_json import TRIGGER, is_trigger, read_content
from accordion.protocols.openai_responses.response import ENDS, OPENINGS, ResponsesEvent, split_object
from accordion.protocols.sse import split_events
from accordion.protocols.tool_loop import list_field

_SURVIVING_ROLES = frozenset({"system", "developer", "user"})
_NEW_EVENTS = 3
"""Events of a compaction item in a stream."""


class ResponsesContextEdits(ListCompactionProtocol):
    """The context edits of Responses."""

    words = (b'"context_management"', b'"compaction_trigger"', b'"compaction"')

    def read_edits(self, fields: Mapping[str, bytes]) -> ContextEdits | None:
        """Reads a trigger at the end of the list, or `context_management`."""
        items = list_field(fields, "input")
        if items and is_trigger(items[-1]):
            return ContextEdits(TRIGGER, summary=RequestedSummary(0, is_block_only=True))
        for entry in map(as_mapping, as_list(decode_field(fields, "context_management"))):
            if entry.get("type") == "compaction":
                threshold = entry.get("compact_threshold")
                return ContextEdits(
                    "context_management",
                    summary=RequestedSummary(threshold if type(threshold) is int and threshold >= 0 else None),
                )
        return None

    def remove_edits(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Removes `context_management` and triggers."""
        others = {name: value for name, value in fields.items() if name != "context_management"}
        items = list_field(fields, "input")
        remaining = [each for each in items if not is_trigger(each)]
        return others if len(remaining) == len(items) else {**others, "input": list_of(remaining)}

    def open_blocks(
        self, entries: Sequence[bytes], open_block: OpenBlock, *, reads_foreign: bool
    ) -> tuple[list[bytes], tuple[str, ...]] | None:
        """Puts an item's list in place of it and of all that it stands for.

        Messages of the user, the developer and the system before it stay, except those that are in the item too. An
        item of another origin is opaque, and stays. Raises BadRequest for one that no provider of this request knows.
        """
        for index in range(len(entries) - 1, -1, -1):
            opened = self._open(entries[index], open_block)
            if opened is not None:
                own = Counter(map(_message_key, opened.entries))
                before = [each for each in entries[:index] if _survives(each, own)]
                return [*before, *opened.entries, *entries[index + 1 :]], opened.artifacts
            if reads_foreign and b'"compaction"' in entries[index] and _type_of(entries[index]) == "compaction":
                raise BadRequest(
                    "This compaction item is sealed by another provider, or for another caller, and this model's "
                    "provider cannot open it. Send the conversation itself, or the item to where it comes from.",
                    param="input",
                )
        return None

    def report_writer(self, report: ContextReport, *, stream: bool) -> ReportWriter:
        """Creates a writer for events, or for a response object."""
        return _StreamWriter(report) if stream else _DocumentWriter(report)

    def write_block_response(self, report: ContextReport, model: str, created_at: int, *, stream: bool) -> bytes:
        """Writes a complete response whose only output is the item."""
        block = report.block or CompactionBlock("", "")
        response: dict[str, Any] = {
            "id": response_id("resp", block.sealed), "object": "response", "created_at": created_at,
            "status": "in_progress", "error": None, "incomplete_details": None, "instructions": None,
            "metadata": {}, "model": model, "output": [], "parallel_tool_calls": True, "temperature": None,
            "tool_choice": "auto", "tools": [], "top_p": None, "usage": None,
        }  # fmt: skip
        ended = {**response, "status": "completed", "output": [_item(block)], "usage": _usage(block)}
        if not stream:
            return to_json(ended)
        return b"".join(
            (
                _event("response.created", 0, {"response": response}),
                _event("response.in_progress", 1, {"response": response}),
                *_item_events(block, 2),
                _event("response.completed", 2 + _NEW_EVENTS, {"response": ended}),
            )
        )

    def write_compact_response(self, report: ContextReport, entries: Sequence[bytes], created_at: int) -> bytes:
        """Writes the response of `/responses/compact`: the user's messages among the request's entries, and the item.

        `entries` are those of the client's list; a single text is a message of the user.
        """
        block = report.block or CompactionBlock("", "")
        messages = [_output_message(each) for each in entries if _role_of(each) in _SURVIVING_ROLES]
        return object_of(
            {
                "id": to_json(response_id("resp", block.sealed)),
                "object": b'"response.compaction"',
                "created_at": b"%d" % created_at,
                "output": list_of([*messages, to_json(_item(block))]),
                "usage": to_json(_usage(block)),
            }
        )

    def _open(self, entry: bytes, open_block: OpenBlock) -> OpenedBlock | None:
        if SEAL_BYTES not in entry:
            return None
        item = as_mapping(from_json(entry))
        sealed = as_string(item.get("encrypted_content"))
        is_ours = item.get("type") == "compaction" and sealed.startswith(SEAL_PREFIX)
        return open_block(sealed) if is_ours else None


def _survives(entry: bytes, own: Counter[str]) -> bool:
    """Whether an entry before an item stays; counts it off those in the item."""
    key = _message_key(entry)
    if not key or own[key]:
        own[key] -= 1
        return False
    return True


def _message_key(entry: bytes) -> str:
    """Returns the role and the content of a message that survives a compaction; empty for any other item."""
    role = _role_of(entry)
    if role not in _SURVIVING_ROLES:
        return ""
    value = from_json(entry)
    content = value if type(value) is str else as_mapping(value).get("content")
    return repr((role, tuple(read_content(content))))


def _type_of(entry: bytes) -> str:
    return as_string(as_mapping(from_json(entry)).get("type"))


def _role_of(entry: bytes) -> str:
    """Returns the role of a message; empty for any other item."""
    value = from_json(entry)
    if type(value) is str:
        return "user"
    item = as_mapping(value)
    return as_string(item.get("role")) if item.get("type") in (None, "message") else ""


def _output_message(entry: bytes) -> bytes:
    """Returns a message as an output item: its content is a list, and it has a type and a status."""
    item = from_json(entry)
    item = {"role": "user", "content": item} if type(item) is str else as_mapping(item)
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if type(content) is str else content
    return to_json({**item, "type": "message", "status": "completed", "content": parts})


def _item(block: CompactionBlock) -> dict[str, Any]:
    return {"id": block_id(block.sealed), "type": "compaction", "encrypted_content": block.sealed}


def _usage(block: CompactionBlock) -> dict[str, Any]:
    return {
        "input_tokens": block.input, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": block.output, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": block.input + block.output,
    }  # fmt: skip


def _item_events(block: CompactionBlock, number: int) -> tuple[bytes, bytes, bytes]:
    item = _item(block)
    return (
        _event("response.output_item.added", number, {"output_index": 0, "item": {**item, "encrypted_content": ""}}),
        _event("response.compaction.compacting", number + 1, {"output_index": 0, "item_id": item["id"]}),
        _event("response.output_item.done", number + 2, {"output_index": 0, "item": item}),
    )


def _event(kind: str, number: int, fields: Mapping[str, Any]) -> bytes:
    data = to_json({"type": kind, "sequence_number": number, **fields})
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _with_item(response: bytes, block: CompactionBlock) -> bytes:
    """Returns a response object whose output begins with the block's item."""
    fields = split_object(response)
    return object_of({**fields, "output": list_of([to_json(_item(block)), *list_field(fields, "output")])})


class _DocumentWriter(ReportWriter):
    """Writes an item into a response object."""

    def __init__(self, report: ContextReport) -> None:
        self._block = report.block

    def feed(self, data: bytes) -> bytes:
        is_response = as_string(decode_field(fields_of(data), "object")) == "response"
        return _with_item(data, self._block) if self._block is not None and is_response else data


class _StreamWriter(ReportWriter):
    """Writes an item into the events of a stream, before the first event that is no opening."""

    def __init__(self, report: ContextReport) -> None:
        self._block = report.block
        self._added = 0
        """The number of events that were added so far."""

    def feed(self, data: bytes) -> bytes:
        block = self._block
        if block is None:
            return data
        return b"".join([self._rewrite(ResponsesEvent(piece), block) for piece in split_events(data)])

    def _rewrite(self, event: ResponsesEvent, block: CompactionBlock) -> bytes:
        number = event.number("sequence_number")
        if not event.fields or event.kind in OPENINGS or (event.kind == "error" and not self._added):
            return event.raw
        before = b""
        if not self._added:
            before = b"".join(_item_events(block, number or 0))
            self._added = _NEW_EVENTS
        changes = {} if number is None else {"sequence_number": b"%d" % (number + self._added)}
        if (index := event.number("output_index")) is not None:
            changes["output_index"] = b"%d" % (index + 1)
        if event.kind in ENDS and "response" in event.fields:
            changes["response"] = _with_item(event.fields["response"], block)
        return before + event.with_fields(changes)
