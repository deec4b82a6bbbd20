"""Requests and responses of each protocol: as a document and as events, with usage."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.loopback import Script, replies_events, replies_json
from tests.reply_parts import ReplyText, ScriptedReply, reply_document, reply_events
from tests.writers import WRITERS

KEY = "sk-test-Zq81LpT0vQmXw3Rk"
"""The caller's credential in these tests."""

_STREAM = re.compile(rb'"stream": ?true')


def _reply(text: str, given: int, made: int) -> ScriptedReply:
    return ScriptedReply(1, (ReplyText(text),), given, made)


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

    def json(self, text: str = "Hello.", given: int = 11, made: int = 3) -> dict[str, Any]:
        """The whole answer; `given` and `made` tokens are reported."""
        name = "modelVersion" if self.name == "gemini" else "model"
        return reply_document(self.name, _reply(text, given, made), {}) | {name: self.model}

    def events(self, text: str = "Hello.", given: int = 11, made: int = 3) -> list[bytes]:
        """The same as events, each whole, the end included."""
        asked = {"stream_options": {"include_usage": True}}
        model = json.dumps(self.model).encode()
        return [event.replace(b'"small"', model) for event in reply_events(self.name, _reply(text, given, made), asked)]

    def stream(self, text: str = "Hello.", given: int = 11, made: int = 3) -> bytes:
        """All events."""
        return b"".join(self.events(text, given, made))

    def answers(self, text: str = "Hello.", given: int = 11, made: int = 3) -> Script:
        """A provider that answers every request so, streamed if it asks for that."""
        whole = replies_json(self.json(text, given, made))
        streamed = replies_events(self.stream(text, given, made))

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
