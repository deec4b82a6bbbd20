"""The canonical form of Converse messages, from which message keys are made (message_keys.py).

Beside the equivalences of all protocols, it is the same with and without cache points, which clients move from turn to
turn, and for a result's status `success`. Inputs and JSON results are data and stay as they are. Reasoning is in the
key, and not in what a message says.
"""

from __future__ import annotations

from typing import Any

from accordion.protocols.bedrock_converse.blocks import block_type
from accordion.protocols.json_values import as_list, as_mapping
from accordion.protocols.message_keys import CACHE_POINT


def canonical_message(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the canonical form of a message, in the names of message_keys.py."""
    fields = {name: value for name, value in entry.items() if name != "content" and value is not None}
    content = entry.get("content")
    if type(content) is not list:
        return entry
    parts = [part for block in content if (part := _canonical_block(block)) is not None]
    return {**fields, "content": parts} if parts else fields


def _canonical_block(block: Any) -> Any:
    """Returns the canonical form of a block; None for one that says nothing."""
    if type(block) is not dict:
        return [block]
    fields = {name: value for name, value in block.items() if value is not None}
    kind = block_type(fields)
    if kind == CACHE_POINT and len(fields) == 1:
        return None
    if fields.keys() == {"text"} and type(fields["text"]) is str:
        return fields["text"] or None
    if kind == "toolUse":
        return {"toolUse": {"input": {}, **_without_nulls(fields[kind])}}
    if kind == "toolResult":
        return {"toolResult": _canonical_result(as_mapping(fields[kind]))}
    return {"type": "reasoning", **fields} if kind == "reasoningContent" else {"type": kind, **fields}


def _canonical_result(result: dict[str, Any]) -> dict[str, Any]:
    fields = _without_nulls(result)
    if fields.get("status") == "success":
        del fields["status"]
    return {
        **fields,
        "content": [part for block in as_list(fields.get("content")) if (part := _canonical_block(block))],
    }


def _without_nulls(value: Any) -> dict[str, Any]:
    return {name: field for name, field in as_mapping(value).items() if field is not None}
