"""The content of a request's list in a form common to all protocols: one item after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.agent_replies import Json
from tests.reply_parts import ReplyText, ReplyThought, ScriptedReply

ContentItem = tuple[Any, ...]


def content_items(protocol_name: str, entries: Iterable[bytes | Json]) -> list[ContentItem]:
    """("user", text), ("thought", signature), ("words", text), ("call", id, name, arguments), ("result", id, text)."""
    out: list[ContentItem] = []
    for entry in entries:
        out += _ATOMS[protocol_name](entry if isinstance(entry, dict) else json.loads(entry))
    return _joined(out)


def _joined(said: Iterable[ContentItem]) -> list[ContentItem]:
    """Joins consecutive texts, and leaves out empty ones."""
    out: list[ContentItem] = []
    for atom in said:
        if atom[0] == "words" and out and out[-1][0] == "words":
            out[-1] = ("words", out[-1][1] + atom[1])
        elif atom[0] not in ("words", "user") or atom[1]:
            out.append(atom)
    return out


def _chat(entry: Json) -> Iterable[ContentItem]:
    text = _text(entry.get("content"))
    if entry["role"] == "tool":
        yield "result", entry["tool_call_id"], text
    elif entry["role"] == "assistant":
        yield "words", _bare(text)
        for call in entry.get("tool_calls") or ():
            yield "call", call["id"], call["function"]["name"], _read_arguments(call["function"]["arguments"])
    else:
        yield "user", text


def _responses(item: Json) -> Iterable[ContentItem]:
    kind = item.get("type", "message")
    if kind == "reasoning":
        yield "thought", item["encrypted_content"]
    elif kind == "function_call":
        yield "call", item["call_id"], item["name"], _read_arguments(item["arguments"])
    elif kind == "function_call_output":
        yield "result", item["call_id"], _text(item["output"])
    else:
        said = _text(item["content"])
        yield ("words", _bare(said)) if item["role"] == "assistant" else ("user", said)


def _messages(entry: Json) -> Iterable[ContentItem]:
    content = entry["content"]
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if block["type"] == "thinking":
            yield "thought", block["signature"]
        elif block["type"] == "tool_use":
            yield "call", block["id"], block["name"], block["input"]
        elif block["type"] == "tool_result":
            yield "result", block["tool_use_id"], _text(block.get("content"))
        else:
            yield ("words", _bare(block["text"])) if entry["role"] == "assistant" else ("user", block["text"])


def _gemini(entry: Json) -> Iterable[ContentItem]:
    for part in entry["parts"]:
        if part.get("thought"):
            yield "thought", part["thoughtSignature"]
        elif "functionCall" in part:
            yield "call", part["functionCall"]["id"], part["functionCall"]["name"], part["functionCall"]["args"]
        elif "functionResponse" in part:
            answer = part["functionResponse"]
            yield "result", answer["id"], answer["response"].get("output") or answer["response"]["error"]
        else:
            yield ("words", _bare(part["text"])) if entry["role"] == "model" else ("user", part["text"])


def _converse(entry: Json) -> Iterable[ContentItem]:
    for block in entry["content"]:
        if "reasoningContent" in block:
            yield "thought", block["reasoningContent"]["reasoningText"]["signature"]
        elif "toolUse" in block:
            yield "call", block["toolUse"]["toolUseId"], block["toolUse"]["name"], block["toolUse"]["input"]
        elif "toolResult" in block:
            yield "result", block["toolResult"]["toolUseId"], _text(block["toolResult"]["content"])
        else:
            yield ("words", _bare(block["text"])) if entry["role"] == "assistant" else ("user", block["text"])


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def _bare(text: str) -> str:
    return "".join(text.split())


def _read_arguments(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


_ATOMS: dict[str, Callable[[Json], Iterable[ContentItem]]] = {
    "chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini,
    "converse": _converse,
}  # fmt: skip


def reply_content_items(protocol_name: str, said: ScriptedReply) -> list[ContentItem]:
    """The content items of a reply as a list must have them."""
    out: list[ContentItem] = []
    for piece in said.pieces:
        if isinstance(piece, ReplyThought):
            out += [] if protocol_name == "chat" else [("thought", piece.sealed)]
        elif isinstance(piece, ReplyText):
            out.append(("words", _bare(piece.text)))
        else:
            given = piece.parsed_arguments
            if not isinstance(given, dict):
                # No JSON is sent back: servers of open models, and Anthropic, refuse it.
                given = {"INVALID_JSON": piece.arguments}
            out.append(("call", piece.id, piece.name, given))
    if protocol_name == "chat":
        out.sort(key=lambda atom: atom[0] == "call")
    return _joined(out)
