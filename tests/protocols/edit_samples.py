"""Shared by the tests of writing: a message of an entry, and the expected parts after an edit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.model.conversation import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.model.tenant import TenantScope
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from accordion.protocols.base import WireProtocol
from accordion.protocols.bedrock_converse.protocol import BedrockConverse
from accordion.protocols.gemini.protocol import Gemini
from accordion.protocols.message_keys import count_breakpoints, message_key
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.openai_responses.protocol import OpenAIResponses
from tests.histories import ProtocolName

TENANT = TenantScope("tenant", b"s" * 32)
SPOKEN: dict[ProtocolName, WireProtocol] = {
    "chat": OpenAIChat(),
    "responses": OpenAIResponses(),
    "messages": AnthropicMessages(),
    "gemini": Gemini(),
    "converse": BedrockConverse(),
}

WITH_CONTENT = tuple(name for name in SPOKEN if name not in ("gemini", "converse"))
"""The protocols whose messages have a `content`, a string or a list of typed blocks."""

Changes = Mapping[int, str | None]


def write_message(name: ProtocolName, role: str, *texts: str) -> dict[str, Any]:
    """A message of these texts."""
    if name == "gemini":
        return {"role": "model" if role == "assistant" else role, "parts": [{"text": text} for text in texts]}
    if name == "converse":
        return {"role": role, "content": [{"text": text} for text in texts]}
    kind = {"responses": "output_text" if role == "assistant" else "input_text"}.get(name, "text")
    return {"role": role, "content": [{"type": kind, "text": text} for text in texts]}


def message(protocol: WireProtocol, entry: Any) -> Message:
    """An entry (JSON-like, or bytes as they came) as the reader makes a Message of it."""
    wire = entry if isinstance(entry, bytes) else json.dumps(entry).encode()
    seen = protocol.read_message(wire)
    return Message(message_key(seen.canonical, TENANT, "chat"), seen.role, seen.parts, wire, count_breakpoints(wire))


def reread_parts(protocol: WireProtocol, wire: bytes | None) -> tuple[Part, ...]:
    """The parts of what was written; none where nothing was."""
    return () if wire is None else protocol.read_message(wire).parts


def expected_parts(parts: tuple[Part, ...], changes: Changes) -> tuple[Part, ...]:
    """The parts that an edit should leave. A message of which only reasoning is left is nothing."""
    left: list[Part] = []
    for index, part in enumerate(parts):
        text = changes.get(index, "")
        if index not in changes:
            left.append(part)
        elif text is None or (text == "" and isinstance(part, Text | Media)):
            continue
        elif isinstance(part, ToolCall):
            left.append(replace(part, arguments=text))
        elif isinstance(part, ToolResult):
            left.append(replace(part, parts=(Text(text),) if text else ()))
        else:
            left.append(Text(text))
    return () if all(isinstance(part, Reasoning) for part in left) and changes else tuple(left)


@st.composite
def changes_of(draw: st.DrawFn, parts: tuple[Part, ...]) -> dict[int, str | None]:
    """Changes that a protocol carries out: reasoning leaves only, a call gets an object."""
    found: dict[int, str | None] = {}
    for index, part in enumerate(parts):
        if not draw(st.booleans()):
            continue
        if isinstance(part, Reasoning) or draw(st.booleans()):
            found[index] = None
        elif isinstance(part, ToolCall):
            found[index] = json.dumps({"note": draw(st.text(max_size=9))}, separators=(",", ":"), ensure_ascii=False)
        else:
            found[index] = draw(st.text(max_size=20))
    return found
