"""Bodies of very many small things, or of few very large ones: what a proxy must neither choke on nor hold others up
with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from bench.texts import Texts

MODEL: Final = "bench"
MANY: Final = 1_000_000
ORDINARY: Final = 19_000
DEPTH: Final = 900
"""Decoders take no more than about a thousand levels."""


def _body(messages: str, more: str = "") -> bytes:
    return f'{{"model":"{MODEL}","messages":[{messages}]{more}}}'.encode()


def _of(content: str) -> bytes:
    return _body(f'{{"role":"user","content":{content}}}')


def _keys(count: int) -> str:
    return ",".join(f'"key {number}":{number}' for number in range(count))


def _ordinary(count: int, length: int) -> bytes:
    texts, entries = Texts(count), list[dict[str, Any]]()
    for number in range(count // 2):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}
        entries += (
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": texts.code(length)},
        )
    return _body(json.dumps([{"role": "user", "content": "Read all of it."}, *entries], separators=(",", ":"))[1:-1])


def _call(arguments: str) -> bytes:
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a"},
    ]
    return _body(json.dumps(messages)[1:-1])


SHAPES: Final[Mapping[str, Callable[[], bytes]]] = {
    "a million messages": lambda: _body(",".join(['{"role":"user","content":"a"}'] * MANY)),
    "240,000 messages": lambda: _body(",".join(['{"role":"user","content":"a"}'] * 240_000)),
    "19,900 messages of a letter": lambda: _body(",".join(['{"role":"user","content":"a"}'] * 19_900)),
    "19,000 messages of 4 KB in calls and results": lambda: _ordinary(ORDINARY, 4_000),
    "4,000 messages of 1 KB": lambda: _ordinary(4_000, 1_000),
    "a million keys in a message": lambda: _body(f'{{"role":"user","content":"a",{_keys(MANY)}}}'),
    "a million keys beside the messages": lambda: _body('{"role":"user","content":"a"}', f",{_keys(MANY)}"),
    "a million parts": lambda: _of("[" + ",".join(['{"type":"text","text":"a"}'] * MANY) + "]"),
    "ten million numbers": lambda: _of("[" + ",".join(["1.5"] * 10 * MANY) + "]"),
    "ten million empty objects": lambda: _of("[" + ",".join(["{}"] * 10 * MANY) + "]"),
    "a million tools": lambda: _body(
        '{"role":"user","content":"a"}', ',"tools":[' + ",".join(['{"type":"function"}'] * MANY) + "]"
    ),
    "lists in lists": lambda: _of("[" + ",".join(["[" * DEPTH + "]" * DEPTH] * 10_000) + "]"),
    "a call's arguments of a million keys": lambda: _call(f"{{{_keys(MANY)}}}"),
    "a text of 37 MB": lambda: _of(json.dumps(Texts(1).prose(36 * MANY))),
    "a text of 18 million escapes": lambda: _of('"' + "\\n" * 18 * MANY + '"'),
    "37 MB of spaces": lambda: _of('"a"' + " " * 37 * MANY),
    "no JSON": lambda: _body(",".join(['{"role":"user","content":"a"}'] * MANY))[:-1],
}
"""Makers by name."""
