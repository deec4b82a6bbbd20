"""Streamed responses of each protocol with every kind of content, and the observations expected of them."""

from __future__ import annotations

import json
from typing import Any

from accordion.model.records import ObservedCall, ObservedResponse, Usage
from accordion.protocols.base import WireProtocol
from accordion.protocols.registry import PROTOCOLS

SSE_PROTOCOLS: tuple[WireProtocol, ...] = tuple(each for name, each in PROTOCOLS.items() if name != "converse")
"""tests/protocols/test_converse.py has the responses of Converse."""

OVERFLOW = "Your input exceeds the context window of this model."


def sse(*data: Any, named: bool = False, space: str = " ", end: str = "\n") -> bytes:
    """A stream of events; the JSON is spaced out by `space`."""
    out = ""
    for value in data:
        text = value if isinstance(value, str) else json.dumps(value, separators=("," + space, ":" + space))
        name = f"event:{space}{value['type']}{end}" if named else ""
        out += f"{name}data:{space}{text}{end}{end}"
    return out.encode()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]
    return {"id": "chatcmpl-1", "model": "gpt-5", "choices": choices, "usage": None, **fields}


def calls(*pieces: dict[str, Any]) -> dict[str, Any]:
    return chunk({"tool_calls": list(pieces)})


CHAT = (
    chunk({"role": "assistant", "content": ""}),
    *(chunk({"content": f'word {at} "usage": {{"prompt_tokens": 9}} [DONE]'}) for at in range(5)),
    calls({"index": 0, "id": "call_a", "type": "function", "function": {"name": "read", "arguments": ""}}),
    calls({"index": 0, "function": {"arguments": '{"name": "x"}'}}),
    calls({"index": 1, "id": "call_b", "type": "custom", "custom": {"name": "patch", "input": ""}}),
    calls({"index": 1, "custom": {"input": "*** Begin"}}),
    chunk({}, "tool_calls"),
    chunk(
        usage={
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 5},
        }
    ),
    "[DONE]",
)
CHAT_SEEN = ObservedResponse(
    "chatcmpl-1",
    "gpt-5",
    Usage(100, 20, 64, 8, 5),
    "tool_calls",
    (ObservedCall("call_a", "read", '{"name": "x"}'), ObservedCall("call_b", "patch", "*** Begin")),
)

ITEMS = [
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "read", "arguments": "{}"},
    {"type": "shell_call", "id": "sh_1", "call_id": "call_b", "action": {"commands": ["ls"]}},
]
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "model": "gpt-5",
    "status": "completed",
    "error": None,
    "output": ITEMS,
    "usage": {
        "input_tokens": 100,
        "output_tokens": 20,
        "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 8},
        "output_tokens_details": {"reasoning_tokens": 5},
    },
}
RESPONSES = (
    {
        "type": "response.created",
        "response": {"id": "resp_1", "model": "gpt-5", "status": "in_progress", "usage": None},
    },
    {"type": "response.output_text.delta", "delta": "response.completed and an error", "logprobs": []},
    *({"type": "response.output_item.done", "item": item, "output_index": at} for at, item in enumerate(ITEMS)),
    {"type": "response.completed", "response": RESPONSE},
)
RESPONSES_SEEN = ObservedResponse(
    "resp_1",
    "gpt-5",
    Usage(100, 20, 64, 8, 5),
    "completed",
    (ObservedCall("call_a", "read", "{}"), ObservedCall("call_b", "shell", '{"commands":["ls"]}')),
    output=tuple(json.dumps(item, separators=(",", ":")).encode() for item in ITEMS),
)

START = {"id": "msg_1", "model": "claude", "usage": {"input_tokens": 28, "cache_creation_input_tokens": 8,
         "cache_read_input_tokens": 64, "output_tokens": 1}}  # fmt: skip
MESSAGES = (
    {"type": "message_start", "message": START},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a message_delta error"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "toolu_a", "name": "read"}},
    *(
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": piece}}
        for piece in ("", '{"path', '": "é', '"}')
    ),
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "toolu_b", "name": "run"}},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use"},
        "usage": {"output_tokens": 20, "input_tokens": None, "output_tokens_details": {"thinking_tokens": 5}},
    },
    {"type": "message_stop"},
)
MESSAGES_SEEN = ObservedResponse(
    "msg_1",
    "claude",
    Usage(100, 20, 64, 8, 5),
    "tool_use",
    (ObservedCall("toolu_a", "read", '{"path": "é"}'), ObservedCall("toolu_b", "run")),
)


def gemini(*parts: dict[str, Any], finish: str = "", **counts: int) -> dict[str, Any]:
    """One response of a stream of Gemini's."""
    candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    return {
        "candidates": [candidate | ({"finishReason": finish} if finish else {})],
        "usageMetadata": {"promptTokenCount": 100, **counts},
        "modelVersion": "gemini",
        "responseId": "r1",
    }


GEMINI = (
    gemini({"text": "hm", "thought": True, "thoughtSignature": "s"}, thoughtsTokenCount=5),
    *(gemini({"text": f'word {at} "finishReason": "STOP" error'}) for at in range(5)),
    gemini({"functionCall": {"id": "call_a", "name": "read", "args": {"path": "é"}}}),
    gemini({"functionCall": {"id": "call_b", "name": "run"}}),
    gemini(
        {"text": ""},
        finish="STOP",
        candidatesTokenCount=15,
        thoughtsTokenCount=5,
        cachedContentTokenCount=64,
        totalTokenCount=120,
    ),
)
GEMINI_SEEN = ObservedResponse(
    "r1",
    "gemini",
    Usage(100, 20, 64, 0, 5),
    "STOP",
    (ObservedCall("call_a", "read", '{"path":"é"}'), ObservedCall("call_b", "run", "{}")),
)

STREAMS: dict[str, tuple[tuple[Any, ...], bool, ObservedResponse]] = {
    "chat": (CHAT, False, CHAT_SEEN),
    "responses": (RESPONSES, True, RESPONSES_SEEN),
    "messages": (MESSAGES, True, MESSAGES_SEEN),
    "gemini": (GEMINI, False, GEMINI_SEEN),
}
"""By protocol: the events of a stream, whether they have names, and what is understood of them."""


def observe(protocol: WireProtocol, *pieces: bytes, stream: bool = True) -> ObservedResponse:
    observer = protocol.observer(stream)
    for piece in pieces:
        observer.feed(piece)
    return observer.observation()
