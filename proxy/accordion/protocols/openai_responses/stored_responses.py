"""Rewrites a stored response of several rounds, so that the client gets the same response again.

The provider stores under the id of the last round only that round: a response object, or the events of its stream
(`GET /responses/{id}`, with `stream=true`). Source: the type files of the openai SDK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.json_spans import NULL, is_list, is_object, list_of, object_of
from accordion.protocols.json_values import as_string, to_json
from accordion.protocols.openai_responses.response import ResponsesEvent, decode_object, split_object
from accordion.protocols.openai_responses.tool_rounds import is_own_call, without_own_tool
from accordion.protocols.sse import split_events
from accordion.protocols.tool_loop import list_field


def rewrite_document(raw: bytes, client_id: str, insertions: Sequence[ToolRoundInsertion]) -> bytes:
    """Returns the response object under the client's id, with the items of the earlier rounds, without own calls.

    The rounds are those of the insertion that ends with the object's items; without one the object keeps only its own.
    The same bytes where it is no response object.
    """
    fields = split_object(raw)
    return object_of(_rewrite_fields(fields, client_id, insertions)) if "id" in fields else raw


def rewrite_events(block: bytes, client_id: str, insertions: Sequence[ToolRoundInsertion]) -> bytes:
    """Rewrites the response objects in whole events of a stream; the events' numbers stay."""
    return b"".join(
        _rewrite_event(piece, client_id, insertions) if b'"response"' in piece else piece
        for piece in split_events(block)
    )


def _rewrite_event(raw: bytes, client_id: str, insertions: Sequence[ToolRoundInsertion]) -> bytes:
    event = ResponsesEvent(raw)
    response = event.fields.get("response", NULL)
    if not is_object(response):
        return raw
    return event.with_fields({"response": object_of(_rewrite_fields(split_object(response), client_id, insertions))})


def _rewrite_fields(
    fields: dict[str, bytes], client_id: str, insertions: Sequence[ToolRoundInsertion]
) -> dict[str, bytes]:
    fields = {**fields, "id": to_json(client_id)}
    output = list_field(fields, "output")
    insertion = next((one_round for one_round in insertions if _ends_with(one_round, output)), None)
    if insertion is None or not is_list(fields.get("output", NULL)):
        return fields
    answered_ids = {decode_object(wire).get("call_id") for one_round in insertion.rounds for wire in one_round.results}
    earlier_items = [wire for one_round in insertion.rounds[:-1] for wire in one_round.response]
    items = [(decode_object(wire), wire) for wire in (*earlier_items, *output)]
    names = {as_string(entry.get("name")) for entry, _ in items if entry.get("call_id") in answered_ids}
    for name in names:
        fields = without_own_tool(fields, name)
        items = [(entry, wire) for entry, wire in items if not is_own_call(entry, name)]
    return {**fields, "output": list_of(wire for _, wire in items)}


def _ends_with(insertion: ToolRoundInsertion, output: Sequence[bytes]) -> bool:
    """Whether the last round of an insertion has these items."""
    items = insertion.rounds[-1].response if insertion.rounds else ()
    return bool(items) and list(map(_name, map(decode_object, items))) == list(map(_name, map(decode_object, output)))


def _name(entry: dict[str, Any]) -> str:
    return as_string(entry.get("id")) or as_string(entry.get("call_id"))
