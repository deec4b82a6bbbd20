"""Context edits of Messages: `context_management.edits`, `compaction`, and the blocks and reports of responses.

`context_management` (betas context-management-2025-06-27 and compact-2026-01-12) has a list of edits. A `compaction`
edit answers with a block before the model's own content, or with nothing but the block where it pauses. The top-level
`compaction` (beta compact-2026-09-04) asks for the block alone. The API drops everything before a block.

In a stream the block comes first, in one delta. `context_management.applied_edits` and `usage.iterations` come in
`message_delta`. The tokens of a compaction are in its iteration, and in no other count.

Source: `anthropic/types/beta` of the anthropic SDK (`beta_context_management_config_param.py`,
`beta_compaction_block.py`, `beta_iterations_usage.py`, `beta_raw_message_delta_event.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accordion.features.client_compaction.context_edits import (
    SEAL_PREFIX,
    CompactionBlock,
    ContextEditProtocol,
    ContextEdits,
    ContextReport,
    OpenBlock,
    ReportWriter,
    RequestedSummary,
    ThinkingClearing,
    ToolUseClearing,
    response_id,
)
from accordion.protocols.anthropic_messages import message_json
from accordion.protocols.json_spans import fields_of, is_object, list_of, object_of
from accordion.protocols.json_values import as_count, as_list, as_mapping, as_string, decode_field, from_json, to_json
from accordion.protocols.message_keys import decode_json
from accordion.protocols.sse import parse, split_events
from accordion.protocols.tool_loop import list_field

_CLEAR_TOOL_USES = "clear_tool_uses_20250919"
_CLEAR_THINKING = "clear_thinking_20251015"
_COMPACT = "compact_20260112"
_INDEXED = frozenset({"content_block_start", "content_block_delta", "content_block_stop"})
_MESSAGE_COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_ALL = 1_000_000
"""More turns than any list has."""


class MessagesContextEdits(ContextEditProtocol):
    """The context edits of Messages."""

    words = (b'"context_management"', b'"compaction"')

    def read_edits(self, fields: Mapping[str, bytes]) -> ContextEdits | None:
        """Reads `context_management.edits`, or a top-level `compaction`. Edits of unknown types are left out."""
        alone = as_mapping(decode_field(fields, "compaction"))
        if alone:
            return ContextEdits("compaction", summary=RequestedSummary(0, True, as_string(alone.get("instructions"))))
        edits = [as_mapping(each) for each in as_list(_management(fields).get("edits"))]
        if not edits:
            return None
        by_type = {as_string(edit.get("type")): edit for edit in edits}
        tool_uses, thinking, compact = map(by_type.get, (_CLEAR_TOOL_USES, _CLEAR_THINKING, _COMPACT))
        return ContextEdits(
            "context_management",
            tool_uses=None if tool_uses is None else _read_tool_use_clearing(tool_uses),
            thinking=None if thinking is None else _read_thinking_clearing(thinking),
            summary=None if compact is None else _read_summary(compact),
        )

    def is_announced(self, beta: str) -> bool:
        """Whether a beta of context edits or of compaction is among them."""
        return "context-management-" in beta or "compact-" in beta

    def remove_edits(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Removes `context_management` and `compaction`."""
        return {name: value for name, value in fields.items() if name not in ("context_management", "compaction")}

    def open_blocks(
        self, entries: Sequence[bytes], open_block: OpenBlock, *, reads_foreign: bool
    ) -> tuple[list[bytes], tuple[str, ...]] | None:
        """Puts a block's list in place of all before it. Messages that the client repeats behind it come once.

        A block that is not ours, or cannot be opened, becomes a user message with its text where the provider knows no
        such block. One without a text stands for a failed compaction, and is removed there.
        """
        for index in range(len(entries) - 1, -1, -1):
            if b'"compaction"' not in entries[index]:
                continue
            blocks = list_field(fields_of(entries[index]), "content")
            for at in range(len(blocks) - 1, -1, -1):
                block = as_mapping(from_json(blocks[at]))
                if block.get("type") != "compaction":
                    continue
                sealed = as_string(block.get("encrypted_content"))
                opened = open_block(sealed) if sealed.startswith(SEAL_PREFIX) else None
                if opened is not None:
                    rest = _rest_behind(entries, index, blocks[at + 1 :])
                    return _join(_without_repeated(opened.entries, rest), rest), opened.artifacts
                if reads_foreign and (text := as_string(block.get("content"))):
                    return _join([message_json.text_message(text)], _rest_behind(entries, index, blocks[at + 1 :])), ()
        if not reads_foreign:
            return None
        others = _without_blocks(entries)
        return (others, ()) if others != list(entries) else None

    def report_writer(self, report: ContextReport, *, stream: bool) -> ReportWriter:
        """Creates a writer for events, or for a message."""
        return _StreamWriter(report) if stream else _DocumentWriter(report)

    def write_block_response(self, report: ContextReport, model: str, created_at: int, *, stream: bool) -> bytes:
        """Writes a message with the stop reason `compaction`."""
        block = report.block or CompactionBlock("", "")
        message: dict[str, Any] = {
            "id": response_id("msg", block.sealed), "type": "message", "role": "assistant", "model": model,
            "content": [], "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }  # fmt: skip
        usage = {"input_tokens": 0, "output_tokens": 0, "iterations": [_compaction_iteration(block)]}
        ending: dict[str, Any] = {"stop_reason": "compaction", "stop_sequence": None}
        management = _describe_edits(report)
        if not stream:
            return to_json({**message, **ending, "content": [_block(block)], "usage": usage, **management})
        return b"".join(
            (
                _event("message_start", {"message": message}),
                *_block_events(block),
                _event("message_delta", {"delta": ending, "usage": usage, **management}),
                _event("message_stop", {}),
            )
        )

    def write_token_count(self, document: bytes, original_tokens: int) -> bytes:
        """Adds `context_management.original_input_tokens`."""
        added = to_json({"original_input_tokens": original_tokens})
        return object_of({**fields_of(document), "context_management": added})


# -- requests ----------------------------------------------------------------------------------------------------------


def _management(fields: Mapping[str, bytes]) -> dict[str, Any]:
    return as_mapping(decode_field(fields, "context_management"))


def _read_tool_use_clearing(edit: dict[str, Any]) -> ToolUseClearing:
    trigger, inputs = as_mapping(edit.get("trigger")), edit.get("clear_tool_inputs")
    counts_uses = trigger.get("type") == "tool_uses"
    defaults = ToolUseClearing()
    return ToolUseClearing(
        trigger_tokens=as_count(trigger.get("value")) if trigger and not counts_uses else defaults.trigger_tokens,
        trigger_uses=as_count(trigger.get("value")) if counts_uses else None,
        keep=_value(edit.get("keep"), defaults.keep),
        min_tokens=_value(edit.get("clear_at_least"), 0),
        excluded_tools=frozenset(map(as_string, as_list(edit.get("exclude_tools")))),
        clears_inputs=inputs is True or bool(as_list(inputs)),
        input_tools=frozenset(map(as_string, as_list(inputs))) if as_list(inputs) else None,
    )


def _read_thinking_clearing(edit: dict[str, Any]) -> ThinkingClearing:
    keep = edit.get("keep")
    is_all = keep == "all" or as_mapping(keep).get("type") == "all"
    return ThinkingClearing(_ALL if is_all else max(1, _value(keep, 1)))


def _read_summary(edit: dict[str, Any]) -> RequestedSummary:
    threshold = _value(edit.get("trigger"), RequestedSummary().threshold or 0)
    return RequestedSummary(threshold, edit.get("pause_after_compaction") is True, as_string(edit.get("instructions")))


def _value(setting: Any, default: int) -> int:
    """Reads the `value` of a setting; `default` where there is none."""
    value = as_mapping(setting).get("value")
    return value if type(value) is int and value >= 0 else default


# -- blocks ------------------------------------------------------------------------------------------------------------


def _without_blocks(entries: Sequence[bytes]) -> list[bytes]:
    """Returns the entries without compaction blocks, and without messages that have nothing else."""
    result = []
    for entry in entries:
        if b'"compaction"' not in entry:
            result.append(entry)
            continue
        fields = fields_of(entry)
        blocks = list_field(fields, "content")
        others = [each for each in blocks if as_mapping(from_json(each)).get("type") != "compaction"]
        if len(others) == len(blocks):
            result.append(entry)
        elif others:
            result.append(object_of({**fields, "content": list_of(others)}))
    return result


def _rest_behind(entries: Sequence[bytes], index: int, blocks: Sequence[bytes]) -> list[bytes]:
    """Returns the entries behind a block, and the rest of its own message where that is not empty."""
    own = object_of({**fields_of(entries[index]), "content": list_of(blocks)})
    return [*([own] if blocks else []), *entries[index + 1 :]]


def _without_repeated(own: Sequence[bytes], rest: Sequence[bytes]) -> list[bytes]:
    """Returns a block's messages without those at its end with which `rest` begins.

    A client that pauses behind a compaction may send the newest messages again.
    """
    ours, theirs = [decode_json(each) for each in own], [decode_json(each) for each in rest[: len(own)]]
    for count in range(min(len(ours), len(theirs)), 0, -1):
        if ours[-count:] == theirs[:count]:
            return list(own[:-count])
    return list(own)


def _join(own: Sequence[bytes], rest: Sequence[bytes]) -> list[bytes]:
    """Joins a block's messages with the ones behind it. Two messages of the user at the seam become one."""
    if own and rest and _is_user(own[-1]) and _is_user(rest[0]):
        return [*own[:-1], *message_json.join_messages([own[-1], rest[0]], {0}), *rest[1:]]
    return [*own, *rest]


def _is_user(entry: bytes) -> bool:
    return as_mapping(from_json(entry)).get("role") == "user"


# -- responses ---------------------------------------------------------------------------------------------------------


def _block(block: CompactionBlock) -> dict[str, Any]:
    return {"type": "compaction", "content": block.text, "encrypted_content": block.sealed}


def _block_events(block: CompactionBlock) -> tuple[bytes, bytes, bytes]:
    delta = {**_block(block), "type": "compaction_delta"}
    return (
        _event("content_block_start", {"index": 0, "content_block": {"type": "compaction", "content": None}}),
        _event("content_block_delta", {"index": 0, "delta": delta}),
        _event("content_block_stop", {"index": 0}),
    )


def _compaction_iteration(block: CompactionBlock) -> dict[str, Any]:
    return {
        "type": "compaction", "input_tokens": block.input, "output_tokens": block.output,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
    }  # fmt: skip


def _describe_edits(report: ContextReport) -> dict[str, Any]:
    """Returns the field `context_management` of a response; nothing if the request had no such field."""
    if report.edits.feature != "context_management":
        return {}
    cleared, applied = report.cleared, list[dict[str, Any]]()
    if report.edits.thinking is not None and cleared.thinking_turns:
        applied.append(
            {
                "type": _CLEAR_THINKING,
                "cleared_thinking_turns": cleared.thinking_turns,
                "cleared_input_tokens": cleared.thinking_tokens,
            }
        )
    if report.edits.tool_uses is not None and cleared.tool_uses:
        applied.append(
            {
                "type": _CLEAR_TOOL_USES,
                "cleared_tool_uses": cleared.tool_uses,
                "cleared_input_tokens": cleared.tool_use_tokens,
            }
        )
    return {"context_management": {"applied_edits": applied}}


def _with_iterations(usage: bytes, block: CompactionBlock | None, counts: Mapping[str, Any]) -> bytes:
    """Returns a usage object with the iterations of the compaction and of the message with these counts."""
    if block is None or not is_object(usage):
        return usage
    fields = fields_of(usage)
    if "iterations" not in fields:
        message = {"type": "message", **{name: as_count(counts.get(name)) for name in _MESSAGE_COUNTS}}
        fields["iterations"] = to_json([_compaction_iteration(block), message])
    return object_of(fields)


class _DocumentWriter(ReportWriter):
    """Writes a report into a message."""

    def __init__(self, report: ContextReport) -> None:
        self._report = report

    def feed(self, data: bytes) -> bytes:
        fields, block = fields_of(data), self._report.block
        if as_string(decode_field(fields, "type")) != "message":
            return data
        if block is not None:
            fields["content"] = list_of([to_json(_block(block)), *list_field(fields, "content")])
            counts = as_mapping(decode_field(fields, "usage"))
            fields["usage"] = _with_iterations(fields.get("usage", b"{}"), block, counts)
        for name, value in _describe_edits(self._report).items():
            fields[name] = to_json(value)
        return object_of(fields)


class _StreamWriter(ReportWriter):
    """Writes a report into the events of a stream: the block behind `message_start`, the rest into `message_delta`."""

    def __init__(self, report: ContextReport) -> None:
        self._report = report
        self._counts: dict[str, Any] = {}

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._rewrite, split_events(data)))

    def _rewrite(self, piece: bytes) -> bytes:
        event, block = parse(piece), self._report.block
        try:
            fields = {} if event is None else fields_of(event.data)
        except ValueError:
            return piece
        kind = as_string(decode_field(fields, "type"))
        if kind == "message_start":
            message = as_mapping(decode_field(fields, "message"))
            self._counts.update(as_mapping(message.get("usage")))
            return piece + (b"".join(_block_events(block)) if block is not None else b"")
        if kind in _INDEXED and block is not None:
            fields["index"] = b"%d" % (as_count(decode_field(fields, "index")) + 1)
            return _render(kind, fields)
        if kind != "message_delta":
            return piece
        usage = as_mapping(decode_field(fields, "usage"))
        self._counts.update((name, value) for name, value in usage.items() if value is not None)
        fields["usage"] = _with_iterations(fields.get("usage", b"{}"), block, self._counts)
        for name, value in _describe_edits(self._report).items():
            fields[name] = to_json(value)
        return _render(kind, fields)


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return _render(kind, {"type": to_json(kind), **{name: to_json(value) for name, value in fields.items()}})


def _render(kind: str, fields: Mapping[str, bytes]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), object_of(fields))
