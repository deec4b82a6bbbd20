"""Request bodies: a small question, and an agent's conversation that grows turn by turn.

Bodies are compact JSON, as the official clients send it. Messages are encoded once and joined,
so that the generator's own cost stays far below that of what it measures.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bench.texts import Texts

CHAT: Final = "chat"
MESSAGES: Final = "messages"
PATHS: Final = {CHAT: "/v1/chat/completions", MESSAGES: "/v1/messages"}
# Models whose window holds 800 KB of text, so that what is measured is forwarding, not compacting.
MODELS: Final = {CHAT: "gpt-4.1", MESSAGES: "claude-sonnet-4-6"}
TOOLS: Final = ("read_file", "search_text", "run_command", "write_file", "list_folder")
USER_EVERY: Final = 8
SYSTEM: Final = "You are a careful software engineer. Read before you write, and run the tests."


def encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def small_body(texts: Texts, protocol_name: str = CHAT, *, stream: bool = False) -> bytes:
    """A question of about 300 bytes."""
    question = {"role": "user", "content": texts.prose(190 if protocol_name == CHAT else 180)}
    body: dict[str, Any] = {"model": MODELS[protocol_name], "messages": [question], "max_tokens": 256}
    if stream:
        body["stream"] = True
        if protocol_name == CHAT:
            body["stream_options"] = {"include_usage": True}
    return encode(body)


class Conversation:
    """An agent at work: mostly tool calls with their results, now and then the user speaks again."""

    def __init__(
        self, texts: Texts, protocol_name: str = CHAT, *, moving_breakpoint: bool = False, model: str = ""
    ) -> None:
        self._texts = texts
        self._protocol_name = protocol_name
        self._model = model or MODELS[protocol_name]
        self._moving = moving_breakpoint
        self._turns = 0
        self._messages: list[bytes] = []
        self._marked: bytes | None = None
        self._head = self._first_part()

    def body(self) -> bytes:
        """The whole request, history included; the newest user message carries the cache breakpoint."""
        messages = [*self._messages]
        if self._marked is not None:
            messages[-1] = self._marked
        return self._head + b",".join(messages) + b"]}"

    def grow(self, size: int) -> None:
        """Add one turn of about `size` bytes, ending in something the model has to answer."""
        if not self._messages:
            self._add("user", self._texts.prose(int(size * 0.96)))
        elif self._turns % USER_EVERY == 0:
            self.ask(size)
        else:
            self._call(size)
        self._turns += 1

    def reach(self, size: int, turn: int) -> None:
        """Add turns of about `turn` bytes for as long as another one leaves the request below `size`."""
        while len(self.body()) < size - turn:
            self.grow(turn)

    def ask(self, size: int) -> None:
        """Add an answer and a question, so that the user speaks last."""
        self._add("assistant", self._texts.prose(int(size * 0.4)))
        self._add("user", self._texts.prose(int(size * 0.52)))

    def _first_part(self) -> bytes:
        system: Any = SYSTEM
        if self._protocol_name == CHAT:
            self._messages.append(encode({"role": "system", "content": system}))
        fields: dict[str, Any] = {"model": self._model, "max_tokens": 1024}
        if self._protocol_name == MESSAGES:
            fields["system"] = system
        fields["tools"] = [self._tool(name) for name in TOOLS]
        opening = encode(fields)[:-1] + b',"messages":['
        if self._protocol_name == CHAT:
            self._add("user", self._texts.prose(200))
        return opening

    def _tool(self, name: str) -> dict[str, Any]:
        described = f"{name.replace('_', ' ').capitalize()}: works below the project's folder, and answers with text."
        schema = {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "where"}, "why": {"type": "string"}},
            "required": ["path"],
        }
        if self._protocol_name == MESSAGES:
            return {"name": name, "description": described, "input_schema": schema}
        return {"type": "function", "function": {"name": name, "description": described, "parameters": schema}}

    def _add(self, role: str, content: Any) -> None:
        self._messages.append(encode({"role": role, "content": content}))
        self._marked = None
        if self._moving and role == "user":
            plain = [{"type": "text", "text": content}] if isinstance(content, str) else content
            blocks: list[dict[str, Any]] = [dict(block) for block in plain]
            blocks[-1]["cache_control"] = {"type": "ephemeral"}
            self._marked = encode({"role": role, "content": blocks})

    def _call(self, size: int) -> None:
        name = TOOLS[self._turns % len(TOOLS)]
        call = f"call_{self._texts.unique_name().replace('-', '')}"
        arguments = {"path": f"src/part_{self._turns}.py", "why": self._texts.prose(int(size * 0.12))}
        said = self._texts.prose(max(40, int(size * 0.06)))
        result = self._texts.code(int(size * 0.66))
        if self._protocol_name == MESSAGES:
            use = {"type": "tool_use", "id": call, "name": name, "input": arguments}
            self._add("assistant", [{"type": "text", "text": said}, use])
            self._add("user", [{"type": "tool_result", "tool_use_id": call, "content": result}])
            return
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls = [{"id": call, "type": "function", "function": function}]
        self._messages.append(encode({"role": "assistant", "content": said, "tool_calls": calls}))
        self._messages.append(encode({"role": "tool", "tool_call_id": call, "content": result}))
