"""Recorded conversations of real agents are read whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

from accordion.model.conversation import Opaque, Text, ToolCall, ToolResult
from accordion.model.tenant import TenantScope
from accordion.protocols.message_keys import message_key
from accordion.protocols.openai_chat.protocol import OpenAIChat
from tests.recordings import RECORDINGS, read_recording

CHAT = OpenAIChat()
TENANT = TenantScope("tenant", b"s" * 32)


def read(entry: Any) -> Any:
    return CHAT.read_message(json.dumps(entry).encode())


def key(entry: Any) -> bytes:
    return message_key(read(entry).canonical, TENANT, "chat")


FILES = sorted(RECORDINGS.glob("*.jsonl.gz"))


@pytest.mark.skipif(not FILES, reason="the recorded transcripts are not here (ACCORDION_TRAJECTORIES)")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split(".")[0])
def test_recorded_transcripts_keep_their_keys_through_the_openai_sdk(path: Path) -> None:
    for conversation in read_recording(path, 3):
        for entry in conversation:
            message = read(entry)
            assert not [part for part in message.parts if isinstance(part, Opaque)]
            assert message.role == entry["role"]
            calls = [(p.call_id, p.name, p.arguments) for p in message.parts if isinstance(p, ToolCall)]
            said = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in entry.get("tool_calls", ())]
            assert calls == said
            texts = [p.text for p in _flat(message.parts) if isinstance(p, Text)]
            assert "".join(texts) == (entry["content"] or "")
            if entry["role"] == "assistant" and "name" not in entry:
                assert key(ChatCompletionMessage.model_validate(entry).model_dump()) == key(entry)


def _flat(read_parts: Any) -> list[Any]:
    return [q for p in read_parts for q in (p.parts if isinstance(p, ToolResult) else (p,))]
