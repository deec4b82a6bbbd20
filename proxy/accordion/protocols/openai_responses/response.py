"""Reads a response object of Responses.

Source: the type files of the openai SDK (`openai/types/responses/response.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from accordion.model.records import ARGUMENTS, ObservedCall, ObservedResponse, Usage
from accordion.protocols.json_values import (
    as_count,
    as_list,
    as_mapping,
    as_string,
    bounded_arguments,
    encode,
    find_error_text,
)
from accordion.protocols.openai_responses.items import CALLS, is_hosted_call, read_call

_FINAL_STATUSES = ("completed", "incomplete", "")
"""The status of a response whose items are final; some servers leave it out."""
_MAX_OUTPUT = 4 * 2**20
"""Limit of a response whose items are recorded, in bytes."""


def observed_call(entry: dict[str, Any]) -> ObservedCall | None:
    """Returns the call that an item is; None where it is none."""
    form = CALLS.get(as_string(entry.get("type")))
    if form is None:
        return None
    call = read_call(entry, form)
    return ObservedCall(call.call_id, call.name, bounded_arguments(call.arguments))


def read_response(data: dict[str, Any], done: Sequence[dict[str, Any]] = ()) -> ObservedResponse:
    """Reads a response object. `done` are the items that came before it in a stream, which some servers leave out of
    the object."""
    status = as_string(data.get("status"))
    reason = as_string(as_mapping(data.get("incomplete_details")).get("reason"))
    output = [as_mapping(entry) for entry in as_list(data.get("output"))]
    output = output if len(output) >= len(done) else list(done)
    calls = (observed_call(entry) for entry in output)
    is_recorded = status in _FINAL_STATUSES and data.get("store") is not False
    wires = list(map(_sendable_item, output)) if is_recorded else []
    return ObservedResponse(
        response_id=as_string(data.get("id")),
        model=as_string(data.get("model")),
        usage=_usage(as_mapping(data.get("usage"))),
        finish=reason if status == "incomplete" and reason else status,
        calls=tuple(call for call in calls if call is not None),
        error=find_error_text(data) or ("failed" if status == "failed" else ""),
        first=0 if any(map(is_hosted_call, output)) else None,
        items=tuple(_messages_by_id(output, wires)),
        output=_all_items(wires) if is_recorded and (done or type(data.get("output")) is list) else None,
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


def _usage(usage: dict[str, Any]) -> Usage | None:
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
