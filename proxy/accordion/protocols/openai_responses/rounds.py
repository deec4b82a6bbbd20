"""Builds the rounds of Responses from items, and merges the response objects of several rounds.

Source: the type files of the openai SDK (`openai/types/responses`). A response object lists the tools of its request,
so the artifact tool is removed from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from accordion.protocols.json_spans import NULL, fields_of, is_object, list_of, object_of
from accordion.protocols.json_values import as_mapping, as_string, decode_field, to_json
from accordion.protocols.openai_responses.items import CALLS, read_call, read_item
from accordion.protocols.openai_responses.response import decode_object, read_usage, split_object, text_field
from accordion.protocols.tool_loop import ArtifactToolCall, ObservedRound
from accordion.protocols.tool_loop_shared import (
    legible_arguments,
    list_field,
    normalize_space,
    sum_round_usage,
    visible_text,
)

# Fields of the first round that a merged response keeps: later rounds come from requests of the proxy.
_FIRST_ROUND_FIELDS = ("id", "created_at", "tool_choice")


class ResponseObject(msgspec.Struct, frozen=True):
    """A response object: its fields as JSON, and the visible items of its output; None where it has no output."""

    fields: Mapping[str, bytes]
    output: tuple[bytes, ...] | None


# -- items -----------------------------------------------------------------------------


def is_own_call(entry: Mapping[str, Any], tool: str) -> bool:
    """Whether an item is a call of the artifact tool."""
    return entry.get("type") == "function_call" and entry.get("name") == tool


def with_arguments(raw: bytes, arguments: str) -> bytes:
    """Returns a call item with other arguments."""
    return object_of({**split_object(raw), "arguments": to_json(arguments)})


def build_round(
    items: Iterable[tuple[dict[str, Any], bytes]],
    tool: str,
    fields: Mapping[str, bytes],
    *,
    finished: bool,
    resolved: bool = False,
) -> ObservedRound:
    """Builds a round from its items, decoded and as they came, and the usage in its response object's fields."""
    items = list(items)
    own_calls = [entry for entry, _ in items if is_own_call(entry, tool)]
    return ObservedRound(
        entries=tuple(
            _sendable(raw if not is_own_call(entry, tool) else _with_legible_arguments(entry, raw))
            for entry, raw in items
        ),
        own_calls=tuple(
            ArtifactToolCall(as_string(entry.get("call_id")), tool, read_call(entry, CALLS["function_call"]).arguments)
            for entry in own_calls
        ),
        client_call_ids=tuple(
            filter(None, (_client_call_id(entry) for entry, _ in items if not is_own_call(entry, tool)))
        ),
        text=normalize_space(
            visible_text(read_item(entry, 0)[1]) for entry, _ in items if entry.get("type", "message") == "message"
        ),
        finished=finished,
        usage=read_usage(as_mapping(decode_field(fields, "usage"))),
        resolved=resolved,
    )


def _client_call_id(entry: Mapping[str, Any]) -> str:
    """Returns the id of a call that the client answers; empty for any other item. A search without a call id is the
    provider's own."""
    kind = as_string(entry.get("type"))
    if kind not in CALLS or (kind == "tool_search_call" and not entry.get("call_id")):
        return ""
    return as_string(entry.get("call_id")) or as_string(entry.get("id"))


def _with_legible_arguments(entry: Mapping[str, Any], raw: bytes) -> bytes:
    """Returns an own call with arguments that are a JSON object."""
    arguments = as_string(entry.get("arguments"))
    text = legible_arguments(arguments)
    return raw if text == arguments else with_arguments(raw, text)


def _sendable(raw: bytes) -> bytes:
    """Returns the item as it came, unless it has lone surrogates, which no request may contain."""
    try:
        fields_of(raw)
    except (ValueError, RecursionError):
        return json.dumps(decode_object(raw), ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return raw


# -- response objects --------------------------------------------------------------------


def without_own_tool(fields: Mapping[str, bytes], tool: str) -> dict[str, bytes]:
    """Removes the artifact tool from the tools of a response object."""
    if tool.encode() not in fields.get("tools", NULL):
        return dict(fields)
    tools = list_field(fields, "tools")
    client_tools = [each for each in tools if not _is_own_tool(each, tool)]
    return dict(fields) if client_tools == tools else {**fields, "tools": list_of(client_tools)}


def _is_own_tool(raw: bytes, tool: str) -> bool:
    definition = decode_object(raw) if is_object(raw) and tool.encode() in raw else {}
    return definition.get("type") == "function" and definition.get("name") == tool


def merge_rounds(rounds: Sequence[ResponseObject], tool: str) -> dict[str, bytes]:
    """Merges the response objects of all rounds: the last one, with the id of the first, all visible items, and the
    usage of all. A single round without own calls keeps the bytes of every field. `rounds` has at least one."""
    last_round = rounds[-1]
    fields = without_own_tool(last_round.fields, tool)
    if last_round.output is not None and list(last_round.output) != list_field(fields, "output"):
        fields["output"] = list_of(last_round.output)
    if len(rounds) == 1:
        return fields
    first_fields = rounds[0].fields
    fields |= {name: first_fields[name] for name in _FIRST_ROUND_FIELDS if name in first_fields}
    if last_round.output is not None:
        fields["output"] = list_of(raw for each in rounds for raw in each.output or ())
    usages = [decode_object(each.fields.get("usage", NULL)) for each in rounds]
    if usages[-1]:
        reported_usages = [usage for usage in usages if usage]
        total = sum_round_usage(
            reported_usages, "input_tokens", "output_tokens", "output_tokens_details", "total_tokens"
        )
        fields["usage"] = to_json(total)
    if "output_text" in fields:
        fields["output_text"] = to_json("".join(text_field(each.fields, "output_text") for each in rounds))
    return fields
