"""How the clients of each protocol write a request.

A new protocol is an entry of `WRITERS`. It is written once more in tests/histories.py (generated histories), in
tests/reply_parts.py (replies), in tests/provider_rules.py (the provider's rules), tests/history_content.py (what a list
says), tests/response_recorder.py (what a client reads) and tests/agents.py (the client).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from accordion.protocols.registry import PROTOCOLS

Json = dict[str, Any]


@dataclass(frozen=True)
class MadeCall:
    """A call of a tool and its result. `is_error`: the result says that the tool failed."""

    id: str
    name: str
    arguments: Json
    result: str = ""
    is_error: bool = False


class Writer:
    """Chat Completions; the writers of the other protocols say what differs."""

    protocol_name = "chat"
    more: ClassVar[Json] = {}
    """Fields that every request must have."""

    @property
    def listing(self) -> str:
        """The name of the field with the list."""
        return PROTOCOLS[self.protocol_name].messages_field

    def path(self, model: str, *, stream: bool = False) -> str:
        """Where a request for this model is sent."""
        return "/v1/chat/completions"

    def request(self, model: str, entries: Sequence[Json], *, stream: bool = False, **fields: Any) -> Json:
        """A request of these entries."""
        asked = {"model": model, self.listing: list(entries)} | ({"stream": True} if stream else {})
        return asked | self.more | fields

    def with_system(self, request: Json, system: str) -> Json:
        """The request with a system prompt."""
        return {**request, self.listing: [{"role": "system", "content": system}, *request[self.listing]]}

    def tool(self, name: str, description: str, schema: Json) -> Json:
        """A tool that a client offers."""
        return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}

    def with_tools(self, request: Json, tools: Sequence[Json]) -> Json:
        """The request with tools as `tool` writes them."""
        return {**request, "tools": list(tools)}

    def user(self, text: str) -> Json:
        return {"role": "user", "content": text}

    def add_text(self, entry: Json, text: str) -> Json | None:
        """The user's entry with another text behind what it holds; None where another entry is written instead."""
        return None

    def replace_text(self, entry: Json, text: str) -> Json:
        """The user's or the model's entry, which says only a text, with another text."""
        return {**entry, "content": text}

    def model(self, text: str) -> Json:
        """What the model says."""
        return {"role": "assistant", "content": text}

    def calls(self, *calls: MadeCall) -> list[Json]:
        """One reply that makes these calls."""
        made = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
            for c in calls
        ]
        return [{"role": "assistant", "content": None, "tool_calls": made}]

    def results(self, *calls: MadeCall) -> list[Json]:
        """The results of these calls."""
        return [{"role": "tool", "tool_call_id": call.id, "content": call.result} for call in calls]

    def join(self, entries: Sequence[Json]) -> list[Json]:
        """The list as the provider reads it, which may take entries of one role in a row for one."""
        return list(entries)

    def replied(self, document: Json) -> list[Json]:
        """The entries that a client makes of a whole reply."""
        return [{key: value for key, value in document["choices"][0]["message"].items() if key != "refusal"}]


class ResponsesWriter(Writer):
    """Responses."""

    protocol_name = "responses"

    def path(self, model: str, *, stream: bool = False) -> str:
        return "/v1/responses"

    def with_system(self, request: Json, system: str) -> Json:
        return {**request, "instructions": system, "store": False}

    def tool(self, name: str, description: str, schema: Json) -> Json:
        return {"type": "function", "name": name, "description": description, "parameters": schema, "strict": False}

    def model(self, text: str) -> Json:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {"type": "message", "role": "assistant", "id": f"msg_{len(text)}", "content": content}

    def calls(self, *calls: MadeCall) -> list[Json]:
        return [
            {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": json.dumps(c.arguments)}
            for c in calls
        ]

    def results(self, *calls: MadeCall) -> list[Json]:
        return [{"type": "function_call_output", "call_id": call.id, "output": call.result} for call in calls]

    def replied(self, document: Json) -> list[Json]:
        return list(document["output"])


class MessagesWriter(Writer):
    """Messages."""

    protocol_name = "messages"
    more: ClassVar[Json] = {"max_tokens": 64}

    def path(self, model: str, *, stream: bool = False) -> str:
        return "/v1/messages"

    def with_system(self, request: Json, system: str) -> Json:
        return {**request, "system": system}

    def tool(self, name: str, description: str, schema: Json) -> Json:
        return {"name": name, "description": description, "input_schema": schema}

    def add_text(self, entry: Json, text: str) -> Json | None:
        if entry["role"] != "user" or entry["content"] == text:
            return None
        return {"role": "user", "content": [*_blocks(entry), {"type": "text", "text": text}]}

    def calls(self, *calls: MadeCall) -> list[Json]:
        blocks = [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in calls]
        return [{"role": "assistant", "content": blocks}]

    def results(self, *calls: MadeCall) -> list[Json]:
        blocks = [
            {"type": "tool_result", "tool_use_id": call.id, "content": call.result}
            | ({"is_error": True} if call.is_error else {})
            for call in calls
        ]
        return [{"role": "user", "content": blocks}] if blocks else []

    def join(self, entries: Sequence[Json]) -> list[Json]:
        return _join([{**entry, "content": _blocks(entry)} for entry in entries], "content")

    def replied(self, document: Json) -> list[Json]:
        return [{"role": "assistant", "content": document["content"]}]


class GeminiWriter(Writer):
    """Gemini."""

    protocol_name = "gemini"

    def path(self, model: str, *, stream: bool = False) -> str:
        return f"/v1beta/models/{model}:" + ("streamGenerateContent?alt=sse" if stream else "generateContent")

    def request(self, model: str, entries: Sequence[Json], *, stream: bool = False, **fields: Any) -> Json:
        return {self.listing: list(entries)} | fields

    def with_system(self, request: Json, system: str) -> Json:
        return {**request, "systemInstruction": {"parts": [{"text": system}]}}

    def tool(self, name: str, description: str, schema: Json) -> Json:
        return {"name": name, "description": description, "parameters": schema}

    def with_tools(self, request: Json, tools: Sequence[Json]) -> Json:
        return {**request, "tools": [{"functionDeclarations": list(tools)}]}

    def user(self, text: str) -> Json:
        return {"role": "user", "parts": [{"text": text}]}

    def add_text(self, entry: Json, text: str) -> Json | None:
        if entry["role"] != "user" or entry["parts"] == [{"text": text}]:
            return None
        return {**entry, "parts": [*entry["parts"], {"text": text}]}

    def replace_text(self, entry: Json, text: str) -> Json:
        return {**entry, "parts": [{"text": text}]}

    def model(self, text: str) -> Json:
        return {"role": "model", "parts": [{"text": text}]}

    def calls(self, *calls: MadeCall) -> list[Json]:
        parts = [{"functionCall": {"id": c.id, "name": c.name, "args": c.arguments}} for c in calls]
        return [{"role": "model", "parts": parts}]

    def results(self, *calls: MadeCall) -> list[Json]:
        parts = [
            {
                "functionResponse": {
                    "id": call.id,
                    "name": call.name,
                    "response": {"error" if call.is_error else "output": call.result},
                }
            }
            for call in calls
        ]
        return [{"role": "user", "parts": parts}] if parts else []

    def join(self, entries: Sequence[Json]) -> list[Json]:
        return _join(entries, "parts")

    def replied(self, document: Json) -> list[Json]:
        return [candidate["content"] for candidate in document["candidates"]]


class ConverseWriter(Writer):
    """Bedrock's Converse."""

    protocol_name = "converse"

    def path(self, model: str, *, stream: bool = False) -> str:
        return f"/model/{model}/" + ("converse-stream" if stream else "converse")

    def request(self, model: str, entries: Sequence[Json], *, stream: bool = False, **fields: Any) -> Json:
        return {self.listing: list(entries)} | fields

    def with_system(self, request: Json, system: str) -> Json:
        return {**request, "system": [{"text": system}]}

    def tool(self, name: str, description: str, schema: Json) -> Json:
        return {"toolSpec": {"name": name, "description": description, "inputSchema": {"json": schema}}}

    def with_tools(self, request: Json, tools: Sequence[Json]) -> Json:
        return {**request, "toolConfig": {"tools": list(tools)}}

    def user(self, text: str) -> Json:
        return {"role": "user", "content": [{"text": text}]}

    def add_text(self, entry: Json, text: str) -> Json | None:
        if entry["role"] != "user" or entry["content"] == [{"text": text}]:
            return None
        return {**entry, "content": [*entry["content"], {"text": text}]}

    def replace_text(self, entry: Json, text: str) -> Json:
        return {**entry, "content": [{"text": text}]}

    def model(self, text: str) -> Json:
        return {"role": "assistant", "content": [{"text": text}]}

    def calls(self, *calls: MadeCall) -> list[Json]:
        blocks = [{"toolUse": {"toolUseId": c.id, "name": c.name, "input": c.arguments}} for c in calls]
        return [{"role": "assistant", "content": blocks}]

    def results(self, *calls: MadeCall) -> list[Json]:
        blocks = [
            {
                "toolResult": {"toolUseId": call.id, "content": [{"text": call.result}]}
                | ({"status": "error"} if call.is_error else {})
            }
            for call in calls
        ]
        return [{"role": "user", "content": blocks}] if blocks else []

    def join(self, entries: Sequence[Json]) -> list[Json]:
        return _join(entries, "content")

    def replied(self, document: Json) -> list[Json]:
        return [document["output"]["message"]]


def _blocks(entry: Json) -> list[Json]:
    content = entry["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _join(entries: Sequence[Json], content: str) -> list[Json]:
    joined: list[Json] = []
    for entry in entries:
        if joined and joined[-1]["role"] == entry["role"]:
            joined[-1] = {**joined[-1], content: [*joined[-1][content], *entry[content]]}
        else:
            joined.append(entry)
    return joined


WRITERS: dict[str, Writer] = {
    each.protocol_name: each
    for each in (Writer(), ResponsesWriter(), MessagesWriter(), GeminiWriter(), ConverseWriter())
}
"""The writers by the protocol's name; tests/protocols/test_registry.py compares the names with those of the product."""
LISTS = {name: writer.listing for name, writer in WRITERS.items()}
"""The name of the field with the list, by protocol."""


def words(count: int, tag: str) -> str:
    """So many different words."""
    return " ".join(f"{tag}{at}" for at in range(count))


def reading_request(
    protocol_name: str, rounds: int, *entries: Json, model: str = "gpt-5", length: int = 200, **fields: Any
) -> Json:
    """A request of an agent that read so many files, one a round and each of `length` words; `entries` come behind."""
    writer = WRITERS[protocol_name]
    calls = [MadeCall(f"c{at}", "read", {"path": f"{at}.py"}, words(length, f"r{at}_")) for at in range(rounds)]
    listed = [entry for call in calls for entry in (*writer.calls(call), *writer.results(call))]
    return writer.request(model, [writer.user("the task"), *listed, *entries], **fields)
