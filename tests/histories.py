"""Hypothesis strategies that make legal histories in each of the protocols.

A `History` has the content in no protocol. `entries` and `body` write it in one.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st

from tests.writers import WRITERS

ProtocolName = Literal["chat", "responses", "messages", "gemini", "converse"]
PROTOCOL_NAMES: tuple[ProtocolName, ...] = ("chat", "responses", "messages", "gemini", "converse")

Json = dict[str, Any]


def png(width: int, height: int) -> bytes:
    """A grey PNG of this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\x80" * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@dataclass(frozen=True)
class Image:
    """A picture of this size, sent inline."""

    width: int
    height: int

    @property
    def base64(self) -> str:
        return base64.b64encode(png(self.width, self.height)).decode()


@dataclass(frozen=True)
class Call:
    """A tool call and what was answered to it."""

    id: str
    name: str
    arguments: Json
    result: str
    error: bool = False

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True)
class Approval:
    """A request for the user's approval, the decision, and a call that it led to."""

    id: str
    server: str
    is_given: bool
    result: str = "done"


@dataclass(frozen=True)
class HistoryRound:
    """One reply that calls tools (several at once are a parallel batch), and what stands behind its results: an
    instruction of the system's, and a tool that is offered from then on, or no longer (`+name`, `-name`)."""

    calls: tuple[Call, ...]
    text: str = ""
    thought: str = ""
    approvals: tuple[Approval, ...] = ()
    instruction: str = ""
    tool_change: str = ""


@dataclass(frozen=True)
class Turn:
    """A user's messages, the agent's tool rounds, and its answer; an open turn has no answer. The instruction stands
    behind the user's messages."""

    said: tuple[str | Image, ...]
    rounds: tuple[HistoryRound, ...] = ()
    answer: str = ""
    instruction: str = ""


@dataclass(frozen=True)
class History:
    """A conversation, in no protocol."""

    turns: tuple[Turn, ...]
    system: str = ""
    tools: tuple[str, ...] = field(default=("read", "write", "run"))


words = st.text(min_size=1, max_size=40).filter(lambda text: text.strip() != "")
names = st.sampled_from(["read", "write", "run"])
numbers = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False, width=32))
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20))
arguments = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_size=3,
)
images = st.builds(Image, st.integers(1, 40), st.integers(1, 40))
instructions = st.just("") | words | words.map("<reminder>{}</reminder>".format)
tool_changes = st.sampled_from(["", "", "+read", "-read", "-run"])


@st.composite
def histories(draw: st.DrawFn, min_turns: int = 1, max_turns: int = 4, *, is_plain: bool = False) -> History:
    """Legal histories: every call is answered, ids are unique, and the last turn may still be open.

    `is_plain`: without instructions in the list, changes of the tools, and approvals.
    """
    used = 0
    turns = []
    count = draw(st.integers(min_turns, max_turns))
    for at in range(count):
        rounds = []
        for _ in range(draw(st.integers(0, 3))):
            calls = []
            for _ in range(draw(st.integers(1, 3))):
                used += 1
                result, failed = draw(st.text(max_size=60)), draw(st.booleans())
                calls.append(Call(f"call_{used:08d}", draw(names), draw(arguments), result, failed))
            approvals = [
                Approval(f"mcpr_{used}_{number}", draw(st.sampled_from(["wiki", "mail"])), draw(st.booleans()))
                for number in range(0 if is_plain else draw(st.integers(0, 2)))
            ]
            text, thought = draw(st.just("") | words), draw(st.just("") | words)
            said_then, changed = ("", "") if is_plain else (draw(instructions), draw(tool_changes))
            rounds.append(HistoryRound(tuple(calls), text, thought, tuple(approvals), said_then, changed))
        said = (draw(words), *draw(st.lists(words | images, max_size=2)))
        open_turn = at == count - 1 and draw(st.booleans())
        answer = "" if open_turn else draw(words)
        turns.append(Turn(said, tuple(rounds), answer, "" if is_plain else draw(instructions)))
    return History(tuple(turns), draw(st.just("") | words))


def entries(history: History, protocol_name: ProtocolName) -> list[Json]:
    """The list of messages, items or contents. The system prompt is its first entry, or a field of the body."""
    write = {
        "chat": _chat_turn, "responses": _responses_turn, "messages": _messages_turn, "gemini": _gemini_turn,
        "converse": _converse_turn,
    }  # fmt: skip
    is_listed = bool(history.system) and protocol_name in ("chat", "responses")
    opening = [{"role": "system", "content": history.system}] if is_listed else []
    return opening + [entry for turn in history.turns for entry in write[protocol_name](turn)]


def body(history: History, protocol_name: ProtocolName, **fields: Any) -> Json:
    """A request. `fields` are added to it, or replace what is there."""
    writer, listed = WRITERS[protocol_name], entries(history, protocol_name)
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    if protocol_name == "messages":
        made = writer.request("claude-sonnet-4-5", listed, max_tokens=1024)
    else:
        made = writer.request("gpt-5", listed)
    if history.tools:
        made = writer.with_tools(made, [writer.tool(name, f"The tool {name}.", schema) for name in history.tools])
    if history.system and protocol_name not in ("chat", "responses"):
        made = writer.with_system(made, history.system)
    return made | fields


@st.composite
def bodies(draw: st.DrawFn, protocol_name: ProtocolName) -> Json:
    """Requests in one protocol."""
    return body(draw(histories(is_plain=True)), protocol_name)


def _chat_turn(turn: Turn) -> list[Json]:
    def part(said: str | Image) -> Json:
        if isinstance(said, str):
            return {"type": "text", "text": said}
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{said.base64}"}}

    out: list[Json] = [{"role": "user", "content": [part(said) for said in turn.said]}]
    out += [{"role": "system", "content": turn.instruction}] if turn.instruction else []
    for round_ in turn.rounds:
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
            for c in round_.calls
        ]
        message: Json = {"role": "assistant", "content": round_.text or None, "tool_calls": calls}
        if round_.thought:
            message["reasoning_content"] = round_.thought
        out.append(message)
        out += [{"role": "tool", "tool_call_id": c.id, "content": c.result} for c in round_.calls]
        out += [{"role": "system", "content": round_.instruction}] if round_.instruction else []
        if round_.tool_change:
            added = {"type": "function", "function": {"name": round_.tool_change[1:], "parameters": {}}}
            out.append({"role": "system", "content": "", "tools": [added]})
    if turn.answer:
        out.append({"role": "assistant", "content": turn.answer})
    return out


def _responses_turn(turn: Turn) -> list[Json]:
    def part(said: str | Image) -> Json:
        if isinstance(said, str):
            return {"type": "input_text", "text": said}
        return {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{said.base64}"}

    def message(text: str) -> Json:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}

    def instructs(text: str) -> list[Json]:
        return [{"type": "message", "role": "developer", "content": text}] if text else []

    out: list[Json] = [{"role": "user", "content": [part(said) for said in turn.said]}, *instructs(turn.instruction)]
    for round_ in turn.rounds:
        if round_.thought:
            summary = [{"type": "summary_text", "text": round_.thought}]
            out.append({"type": "reasoning", "summary": summary, "encrypted_content": f"sealed {round_.thought}"})
        if round_.text:
            out.append(message(round_.text))
        out += [
            {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": json.dumps(c.arguments)}
            for c in round_.calls
        ]
        asked = [
            {"type": "mcp_approval_request", "id": a.id, "server_label": a.server, "name": "edit", "arguments": "{}"}
            for a in round_.approvals
        ]
        out += asked
        out += [{"type": "function_call_output", "call_id": c.id, "output": c.result} for c in round_.calls]
        out += [
            {"type": "mcp_approval_response", "approval_request_id": a.id, "approve": a.is_given}
            for a in reversed(round_.approvals)
        ]
        out += [
            request | {"type": "mcp_call", "id": f"of_{a.id}", "approval_request_id": a.id, "output": a.result}
            for a, request in zip(round_.approvals, asked, strict=True)
            if a.is_given
        ]
        out += instructs(round_.instruction)
        if round_.tool_change:
            added = {"type": "function", "name": round_.tool_change[1:], "parameters": {}}
            out.append({"type": "additional_tools", "role": "developer", "tools": [added]})
    if turn.answer:
        out.append(message(turn.answer))
    return out


def _messages_turn(turn: Turn) -> list[Json]:
    def part(said: str | Image) -> Json:
        if isinstance(said, str):
            return {"type": "text", "text": said}
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": said.base64}}

    def instructs(text: str, change: str = "") -> list[Json]:
        kind = "tool_addition" if change.startswith("+") else "tool_removal"
        blocks: list[Json] = [{"type": "text", "text": text}] if text else []
        blocks += [{"type": kind, "tool": {"type": "tool_reference", "name": change[1:]}}] if change else []
        return [{"role": "system", "content": blocks}] if blocks else []

    out: list[Json] = [{"role": "user", "content": [part(said) for said in turn.said]}, *instructs(turn.instruction)]
    for round_ in turn.rounds:
        blocks: list[Json] = []
        if round_.thought:
            blocks.append({"type": "thinking", "thinking": round_.thought, "signature": f"signed {round_.thought}"})
        if round_.text:
            blocks.append({"type": "text", "text": round_.text})
        for a in round_.approvals:
            blocks.append({"type": "mcp_tool_use", "id": a.id, "name": "edit", "server_name": a.server, "input": {}})
            blocks.append({"type": "mcp_tool_result", "tool_use_id": a.id, "is_error": False, "content": a.result})
        blocks += [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in round_.calls]
        out.append({"role": "assistant", "content": blocks})
        results: list[Json] = []
        for c in round_.calls:
            result: Json = {"type": "tool_result", "tool_use_id": c.id, "content": c.result}
            results.append(result | ({"is_error": True} if c.error else {}))
        out.append({"role": "user", "content": results})
        out += instructs(round_.instruction, round_.tool_change)
    if turn.answer:
        out.append({"role": "assistant", "content": turn.answer})
    return out


def _converse_turn(turn: Turn) -> list[Json]:
    def block(said: str | Image) -> Json:
        if isinstance(said, str):
            return {"text": said}
        return {"image": {"format": "png", "source": {"bytes": said.base64}}}

    def instructs(text: str, change: str = "") -> list[Json]:
        kind = "toolAddition" if change.startswith("+") else "toolRemoval"
        blocks: list[Json] = [{"text": text}] if text else []
        blocks += [{kind: {"tool": {"name": change[1:]}}}] if change else []
        return [{"role": "system", "content": blocks}] if blocks else []

    out: list[Json] = [{"role": "user", "content": [block(said) for said in turn.said]}, *instructs(turn.instruction)]
    for round_ in turn.rounds:
        blocks: list[Json] = []
        if round_.thought:
            reasoned = {"text": round_.thought, "signature": f"signed {round_.thought}"}
            blocks.append({"reasoningContent": {"reasoningText": reasoned}})
        blocks += [{"text": round_.text}] if round_.text else []
        blocks += [{"toolUse": {"toolUseId": c.id, "name": c.name, "input": c.arguments}} for c in round_.calls]
        out.append({"role": "assistant", "content": blocks})
        results: list[Json] = []
        for c in round_.calls:
            content = [{"text": c.result}] if c.result else []
            failed = {"status": "error"} if c.error else {}
            results.append({"toolResult": {"toolUseId": c.id, "content": content, **failed}})
        out.append({"role": "user", "content": results})
        out += instructs(round_.instruction, round_.tool_change)
    if turn.answer:
        out.append({"role": "assistant", "content": [{"text": turn.answer}]})
    return out


def _gemini_turn(turn: Turn) -> list[Json]:
    def part(said: str | Image) -> Json:
        if isinstance(said, str):
            return {"text": said}
        return {"inlineData": {"mimeType": "image/png", "data": said.base64}}

    out: list[Json] = [{"role": "user", "parts": [part(said) for said in turn.said]}]
    for round_ in turn.rounds:
        parts: list[Json] = [{"text": round_.thought, "thought": True}] if round_.thought else []
        parts += [{"text": round_.text}] if round_.text else []
        calls: list[Json] = [
            {"functionCall": {"id": c.id, "name": c.name, "args": c.arguments}} for c in round_.calls
        ]  # fmt: skip
        if round_.thought and calls:
            # The first call of a step carries the signature of all of it.
            calls[0]["thoughtSignature"] = f"signed {round_.thought}"
        out.append({"role": "model", "parts": [*parts, *calls]})
        results = [
            {"functionResponse": {"id": c.id, "name": c.name, "response": {"error" if c.error else "output": c.result}}}
            for c in round_.calls
        ]
        out += [{"role": "user", "parts": results}] if results else []
    if turn.answer:
        out.append({"role": "model", "parts": [{"text": turn.answer}]})
    return out
