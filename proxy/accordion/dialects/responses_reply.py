"""One response object of Responses, read.

Source: the type files of the openai SDK (`openai/types/responses/response.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from accordion.core.records import ARGUMENTS, CallSeen, ReplySeen, Usage
from accordion.dialects.items import CALLS, call, ran
from accordion.dialects.shared import count, encode, entries, error_text, mapping, noted, string

_SAID = ("completed", "incomplete", "")
"""The states of a reply that was said to its end, as far as it goes; some servers leave it out."""
_LONGEST = 4 * 2**20
"""Bytes of a reply whose items are noted, at most."""


def call_of(entry: dict[str, Any]) -> CallSeen | None:
    """The call that an item is; None where it is none."""
    how = CALLS.get(string(entry.get("type")))
    if how is None:
        return None
    made = call(entry, how)
    return CallSeen(made.call_id, made.name, noted(made.arguments))


def read_response(data: dict[str, Any], done: Sequence[dict[str, Any]] = ()) -> ReplySeen:
    """What a response object says; `done` are the items that came before it in a stream. Some servers leave those out
    of it."""
    status = string(data.get("status"))
    reason = string(mapping(data.get("incomplete_details")).get("reason"))
    output = [mapping(entry) for entry in entries(data.get("output"))]
    output = output if len(output) >= len(done) else list(done)
    calls = (call_of(entry) for entry in output)
    kept = status in _SAID and data.get("store") is not False
    wires = list(map(_wire, output)) if kept else []
    return ReplySeen(
        response_id=string(data.get("id")),
        model=string(data.get("model")),
        usage=_usage(mapping(data.get("usage"))),
        finish=reason if status == "incomplete" and reason else status,
        calls=tuple(seen for seen in calls if seen is not None),
        error=error_text(data) or ("failed" if status == "failed" else ""),
        first=0 if any(map(ran, output)) else None,
        items=tuple(_named(output, wires)),
        output=_whole(wires) if kept and (done or type(data.get("output")) is list) else None,
    )


def _whole(wires: Sequence[bytes | None]) -> tuple[bytes, ...] | None:
    """All items of a reply; None where one cannot be written, or they are very long."""
    found = tuple([wire for wire in wires if wire is not None])
    return found if len(found) == len(wires) and sum(map(len, found)) <= _LONGEST else None


def _wire(entry: dict[str, Any]) -> bytes | None:
    """An item as a client would send it again: without log probabilities, which are many times the text."""
    told = [mapping(part) for part in entries(entry.get("content"))]
    if any(part.get("logprobs") for part in told):
        entry = {**entry, "content": [{**part, "logprobs": []} if part.get("logprobs") else part for part in told]}
    with suppress(ValueError, RecursionError):
        return encode(entry)
    return None


def _named(output: Iterable[dict[str, Any]], wires: Iterable[bytes | None]) -> Iterator[tuple[str, bytes]]:
    """What the model says in a reply, by the ids under which a client may name it afterwards."""
    for entry, wire in zip(output, wires, strict=False):
        name = string(entry.get("id"))
        said = entry.get("type") == "message" and name.startswith("msg_") and entry.get("content")
        if said and wire is not None and len(wire) <= ARGUMENTS:
            yield name, wire


def _usage(said: dict[str, Any]) -> Usage | None:
    if "input_tokens" not in said:
        return None
    given, made = mapping(said.get("input_tokens_details")), mapping(said.get("output_tokens_details"))
    return Usage(
        input=count(said["input_tokens"]),
        output=count(said.get("output_tokens")),
        cached=count(given.get("cached_tokens")),
        cache_write=count(given.get("cache_write_tokens")),
        reasoning=count(made.get("reasoning_tokens")),
    )
