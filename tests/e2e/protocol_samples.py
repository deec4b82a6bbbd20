"""Requests and responses of each protocol: as a document and as events, with usage."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.loopback import Script, events, replies_events, replies_json
from tests.writers import WRITERS

KEY = "sk-test-Zq81LpT0vQmXw3Rk"
"""The caller's credential in these tests."""

_STREAM = re.compile(rb'"stream": ?true')


@dataclass(frozen=True, slots=True)
class ProtocolSamples:
    """The requests, responses and errors of one protocol."""

    name: str
    model: str

    @property
    def path(self) -> str:
        """Where a whole answer is asked for."""
        return self.target()

    def target(self, *, stream: bool = False) -> str:
        """Where an answer is asked for, which a request for a stream may say again."""
        return WRITERS[self.name].path(self.model, stream=stream)

    def body(self, *texts: str, stream: bool = False, **more: Any) -> bytes:
        """A request; the texts are the user's and the assistant's in turn."""
        writer = WRITERS[self.name]
        entries = [(writer.model if n % 2 else writer.user)(text) for n, text in enumerate(texts)]
        asked = {"model": self.model} | more
        return json.dumps(writer.request(entries=entries, stream=stream, **asked)).encode()

    def json(self, text: str = "Hello.", given: int = 11, made: int = 3, **usage: Any) -> dict[str, Any]:
        """The whole answer; `given` and `made` tokens are reported."""
        return _JSON[self.name](text, given, made, usage)

    def events(self, text: str = "Hello.", given: int = 11, made: int = 3, **usage: Any) -> list[bytes]:
        """The same as events, each whole, the end included."""
        return _EVENTS[self.name](text, given, made, usage)

    def stream(self, text: str = "Hello.", given: int = 11, made: int = 3, **usage: Any) -> bytes:
        """All events."""
        return b"".join(self.events(text, given, made, **usage))

    def answers(self, text: str = "Hello.", given: int = 11, made: int = 3, **usage: Any) -> Script:
        """A provider that answers every request so, streamed if it asks for that."""
        whole = replies_json(self.json(text, given, made, **usage))
        streamed = replies_events(self.stream(text, given, made, **usage))

        async def script(request: Any, answer: Any) -> None:
            is_streamed = _STREAM.search(request.body) or "streamGenerateContent" in request.target
            await (streamed if is_streamed else whole)(request, answer)

        return script

    def error_of(self, body: bytes) -> dict[str, Any]:
        """The inner error of an error answer; fails where it has not this protocol's shape."""
        said = json.loads(body)
        inner: dict[str, Any] = said["error"]
        assert inner["message"]
        if self.name == "gemini":
            assert type(inner["code"]) is int
            assert inner["status"].isupper()
            return inner
        assert inner["type"]
        if self.name == "messages":
            assert said["type"] == "error"
            assert said["request_id"].startswith("req_")
        else:
            assert set(inner) >= {"message", "type", "param", "code"}
        return inner


CHAT = ProtocolSamples("chat", "gpt-4o")
RESPONSES = ProtocolSamples("responses", "gpt-5.2")
MESSAGES = ProtocolSamples("messages", "claude-haiku-4-5")
GEMINI = ProtocolSamples("gemini", "gemini-2.5-flash")
PROTOCOLS = (CHAT, RESPONSES, MESSAGES, GEMINI)
PROTOCOL_BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}
"""The protocols by name."""
EACH = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)


def _chat_json(text: str, given: int, made: int, usage: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": CHAT.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made} | usage,
    }


def _chat_events(text: str, given: int, made: int, usage: dict[str, Any]) -> list[bytes]:
    def chunk(choices: list[Any], **more: Any) -> bytes:
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": CHAT.model}
        return events({**base, "choices": choices, **more}, done=False)

    def choice(delta: dict[str, Any], finish: str | None = None) -> list[Any]:
        return [{"index": 0, "delta": delta, "finish_reason": finish}]

    counted = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made} | usage
    words = [chunk(choice({"content": word})) for word in text.split(" ")]
    return [
        chunk(choice({"role": "assistant", "content": ""})),
        *words,
        chunk(choice({}, "stop")),
        chunk([], usage=counted),
        b"data: [DONE]\n\n",
    ]


def _response(
    text: str, given: int, made: int, usage: dict[str, Any], *, response_id: str = "resp_1"
) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {
        "id": usage.pop("response_id", response_id),
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": RESPONSES.model,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + made,
        }
        | usage,
    }


def _response_events(text: str, given: int, made: int, usage: dict[str, Any]) -> list[bytes]:
    whole = _response(text, given, made, dict(usage))
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    told = [
        {"type": "response.created", "response": begun},
        *(
            {
                "type": "response.output_text.delta",
                "item_id": "msg_1",
                "output_index": 0,
                "content_index": 0,
                "delta": d,
            }
            for d in text.split(" ")
        ),
        {"type": "response.output_item.done", "output_index": 0, "item": whole["output"][0]},
        {"type": "response.completed", "response": whole},
    ]
    return [events({**event, "sequence_number": number}, done=False, named=True) for number, event in enumerate(told)]


def _message(text: str, given: int, made: int, usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MESSAGES.model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": given, "output_tokens": made} | usage,
    }


def _message_events(text: str, given: int, made: int, usage: dict[str, Any]) -> list[bytes]:
    begun = {**_message(text, given, 1, usage), "content": [], "stop_reason": None}
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
        for word in text.split(" ")
    ]
    stopped = {"stop_reason": "end_turn", "stop_sequence": None}
    told = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": made}},
        {"type": "message_stop"},
    ]
    return [events(event, done=False, named=True) for event in told]


def _gemini_json(text: str, given: int, made: int, usage: dict[str, Any]) -> dict[str, Any]:
    counts = {"promptTokenCount": given, "candidatesTokenCount": made, "totalTokenCount": given + made}
    content = {"parts": [{"text": text}], "role": "model"}
    return {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": counts | usage,
        "modelVersion": GEMINI.model,
        "responseId": "response-1",
    }


def _gemini_events(text: str, given: int, made: int, usage: dict[str, Any]) -> list[bytes]:
    out = []
    words = text.split(" ")
    for number, word in enumerate(words, 1):
        told = _gemini_json(word, given, made, usage)
        if number < len(words):
            del told["candidates"][0]["finishReason"]
        out.append(events(told, done=False))
    return out


_JSON = {"chat": _chat_json, "responses": _response, "messages": _message, "gemini": _gemini_json}
_EVENTS = {
    "chat": _chat_events,
    "responses": _response_events,
    "messages": _message_events,
    "gemini": _gemini_events,
}
