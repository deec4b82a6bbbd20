"""One reply of an agent's model, in each protocol, whole and as events."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

from tests.loopback import events

Json = dict[str, Any]
TOOL = "read_file"
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
_ABOUT = "Reads a file of the repository."
TOOLS: dict[str, list[Json]] = {
    "chat": [{"type": "function", "function": {"name": TOOL, "description": _ABOUT, "parameters": _SCHEMA}}],
    "responses": [
        {"type": "function", "name": TOOL, "description": _ABOUT, "parameters": _SCHEMA, "strict": False}
    ],
    "messages": [{"name": TOOL, "description": _ABOUT, "input_schema": _SCHEMA}],
    "gemini": [{"name": TOOL, "description": _ABOUT, "parameters": _SCHEMA}],
    "converse": [{"toolSpec": {"name": TOOL, "description": _ABOUT, "inputSchema": {"json": _SCHEMA}}}],
}  # fmt: skip


@dataclass(frozen=True)
class AgentReply:
    """A reply of the model: `calls` are call ids, `text` may be empty, `thought` is the reasoning."""

    number: int
    calls: tuple[str, ...]
    text: str
    thought: str | None
    tokens: int

    @property
    def signature(self) -> str:
        return f"c2lnbmF0dXJl{self.number:06d}+/="

    def arguments(self, call: str) -> str:
        return f'{{"path": "src/{call}/main.py"}}'


def chat(reply: AgentReply) -> Json:
    function = [
        {"id": call, "type": "function", "function": {"name": TOOL, "arguments": reply.arguments(call)}}
        for call in reply.calls
    ]
    message: Json = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if function:
        message["tool_calls"] = function
    finish = "tool_calls" if function else "stop"
    return {
        "id": f"chatcmpl-{reply.number}", "object": "chat.completion", "created": 1, "model": "small",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": _usage(reply),
    }  # fmt: skip


def chat_events(reply: AgentReply, body: Json) -> bytes:
    base = {"id": f"chatcmpl-{reply.number}", "object": "chat.completion.chunk", "created": 1, "model": "small"}

    def chunk(delta: Json, finish: str | None = None) -> Json:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    out = [chunk({"role": "assistant", "content": "" if reply.text else None})]
    out += [chunk({"content": word}) for word in _words(reply.text)]
    for at, call in enumerate(reply.calls):
        begun = {"index": at, "id": call, "type": "function", "function": {"name": TOOL, "arguments": ""}}
        out.append(chunk({"tool_calls": [begun]}))
        out += [chunk({"tool_calls": [{"index": at, "function": {"arguments": p}}]}) for p in _halves(reply, call)]
    out.append(chunk({}, "tool_calls" if reply.calls else "stop"))
    if (body.get("stream_options") or {}).get("include_usage"):
        out.append({**base, "choices": [], "usage": _usage(reply)})
    return events(*out)


def responses(reply: AgentReply) -> Json:
    output: list[Json] = []
    if reply.thought is not None:
        sealed = {"id": f"rs_{reply.number}", "type": "reasoning", "summary": []}
        output.append({**sealed, "encrypted_content": reply.signature})
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        said = {"id": f"msg_{reply.number}", "type": "message", "role": "assistant", "status": "completed"}
        output.append({**said, "content": [part]})
    for call in reply.calls:
        made = {"id": f"fc_{call}", "type": "function_call", "call_id": call, "name": TOOL, "status": "completed"}
        output.append({**made, "arguments": reply.arguments(call)})
    used = {"input_tokens": reply.tokens, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 20}
    return {
        "id": f"resp_{reply.number}", "object": "response", "created_at": 1, "status": "completed", "model": "small",
        "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None,
        "usage": {**used, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": reply.tokens + 20},
    }  # fmt: skip


def responses_events(reply: AgentReply, body: Json) -> bytes:
    whole = responses(reply)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    told: list[Json] = [{"type": "response.created", "response": begun}]
    for at, item in enumerate(whole["output"]):
        told += [
            {"type": f"response.output_item.{word}", "output_index": at, "item": item} for word in ("added", "done")
        ]
    told.append({"type": "response.completed", "response": whole})
    return events(*({**event, "sequence_number": at} for at, event in enumerate(told)), done=False, named=True)


def messages(reply: AgentReply) -> Json:
    content: list[Json] = []
    if reply.thought is not None:
        content.append({"type": "thinking", "thinking": reply.thought, "signature": reply.signature})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    for call in reply.calls:
        asked = {"path": f"src/{call}/main.py"}
        content.append({"type": "tool_use", "id": call, "name": TOOL, "input": asked})
    return {
        "id": f"msg_{reply.number}", "type": "message", "role": "assistant", "model": "small", "content": content,
        "stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": reply.tokens, "output_tokens": 20},
    }  # fmt: skip


def messages_events(reply: AgentReply, body: Json) -> bytes:
    whole = messages(reply)
    told: list[Json] = [{"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}]
    for at, block in enumerate(whole["content"]):
        start, deltas = _block(reply, block)
        told.append({"type": "content_block_start", "index": at, "content_block": start})
        told += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
        told.append({"type": "content_block_stop", "index": at})
    stopped = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    told += [{"type": "message_delta", "delta": stopped, "usage": {"output_tokens": 20}}, {"type": "message_stop"}]
    return events(*told, done=False, named=True)


def gemini(reply: AgentReply) -> Json:
    signed = {"thoughtSignature": reply.signature} if reply.thought is not None else {}
    parts: list[Json] = []
    if reply.thought is not None:
        parts.append({"text": reply.thought, "thought": True, **signed})
    if reply.text:
        parts.append({"text": reply.text})
    calls = [
        {"functionCall": {"id": call, "name": TOOL, "args": {"path": f"src/{call}/main.py"}}} for call in reply.calls
    ]  # fmt: skip
    # The first call of a step carries the signature of all of it.
    parts += [call | (signed if at == 0 else {}) for at, call in enumerate(calls)]
    return gemini_response(reply.number, parts, "STOP", (reply.tokens, 20, 0))


def gemini_response(number: int, parts: list[Json], finish: str, counts: tuple[int, int, int]) -> Json:
    """A response with these parts; `counts` are input, output without thoughts, and thoughts."""
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    used = {"promptTokenCount": counts[0], "candidatesTokenCount": counts[1], "thoughtsTokenCount": counts[2]}
    return {
        "candidates": [candidate | ({"finishReason": finish} if finish else {})],
        "usageMetadata": {**used, "totalTokenCount": sum(counts)}, "modelVersion": "small",
        "responseId": f"response-{number}",
    }  # fmt: skip


def gemini_events(reply: AgentReply, body: Json) -> bytes:
    parts = gemini(reply)["candidates"][0]["content"]["parts"]
    counts = (reply.tokens, 20, 0)
    told = [gemini_response(reply.number, [part], "", counts) for part in parts[:-1]]
    return events(*told, gemini_response(reply.number, parts[-1:], "STOP", counts), done=False)


def converse(reply: AgentReply) -> Json:
    content: list[Json] = []
    if reply.thought is not None:
        reasoned = {"text": reply.thought, "signature": reply.signature}
        content.append({"reasoningContent": {"reasoningText": reasoned}})
    content += [{"text": reply.text}] if reply.text else []
    content += [
        {"toolUse": {"toolUseId": call, "name": TOOL, "input": {"path": f"src/{call}/main.py"}}} for call in reply.calls
    ]
    return converse_response(content, "tool_use" if reply.calls else "end_turn", (reply.tokens, 0, 20))


def converse_response(content: list[Json], finish: str, counts: tuple[int, int, int]) -> Json:
    """A response with these blocks; `counts` are uncached input, cached input, and output."""
    used = {"inputTokens": counts[0], "outputTokens": counts[2], "totalTokens": sum(counts)}
    cached = {"cacheReadInputTokens": counts[1], "cacheWriteInputTokens": 0} if counts[1] else {}
    return {
        "output": {"message": {"role": "assistant", "content": content}}, "stopReason": finish,
        "usage": {**used, **cached}, "metrics": {"latencyMs": 5},
    }  # fmt: skip


def converse_events(reply: AgentReply, body: Json) -> bytes:
    return b"".join(converse_stream(converse(reply)))


def converse_stream(whole: Json) -> list[bytes]:
    """A response as the events of a stream, with the padding that Bedrock adds."""
    told: list[tuple[str, Json]] = [("messageStart", {"role": "assistant"})]
    for at, block in enumerate(whole["output"]["message"]["content"]):
        place = {"contentBlockIndex": at}
        if call := block.get("toolUse"):
            begun = {name: call[name] for name in ("toolUseId", "name")}
            told.append(("contentBlockStart", {**place, "start": {"toolUse": begun}}))
        told += [
            ("contentBlockDelta", {**place, "delta": delta, "p": "abcdefgh"[: at + 1]}) for delta in _deltas(block)
        ]
        told.append(("contentBlockStop", place))
    told.append(("messageStop", {"stopReason": whole["stopReason"]}))
    told.append(("metadata", {"usage": whole["usage"], "metrics": whole["metrics"]}))
    return [b"event: %s\n%s" % (name.encode(), events(data, done=False)) for name, data in told]


def _deltas(block: Json) -> list[Json]:
    if "toolUse" in block:
        given = block["toolUse"]["input"]
        text = given if isinstance(given, str) else json.dumps(given)
        cuts = (0, len(text) // 3, len(text) // 2, len(text))
        return [{"toolUse": {"input": text[a:b]}} for a, b in itertools.pairwise(cuts)]
    if "reasoningContent" in block:
        reasoned = block["reasoningContent"]["reasoningText"]
        half = len(reasoned["text"]) // 2
        texts = [{"text": reasoned["text"][:half]}, {"text": reasoned["text"][half:]}]
        return [{"reasoningContent": each} for each in (*texts, {"signature": reasoned["signature"]})]
    half = len(block["text"]) // 2
    return [{"text": block["text"][:half]}, {"text": block["text"][half:]}]


def streamed_error(protocol_name: str, said: Json) -> bytes:
    """An error that comes as an event of a reply that began with 200."""
    if protocol_name == "messages":
        return events(said, done=False, named=True)
    if protocol_name == "converse":
        return events({"type": "error", "error": said}, done=False, named=True)
    if protocol_name == "responses":
        begun = {
            "type": "response.created",
            "sequence_number": 0,
            "response": responses(AgentReply(0, (), "", None, 0)),
        }
        return events(begun, {"type": "error", "sequence_number": 1, **said}, done=False, named=True)
    return events(said, done=False)


def _block(reply: AgentReply, block: Json) -> tuple[Json, list[Json]]:
    """How a content block begins, and its deltas."""
    if block["type"] == "thinking":
        begun = [{"type": "thinking_delta", "thinking": word} for word in _words(block["thinking"])]
        start = {"type": "thinking", "thinking": "", "signature": ""}
        return start, [*begun, {"type": "signature_delta", "signature": block["signature"]}]
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": word} for word in _words(block["text"])]
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in _halves(reply, block["id"])]
    return {**block, "input": {}}, pieces


def _words(text: str) -> list[str]:
    return [f"{word} " for word in text.split(" ")[:-1]] + text.split(" ")[-1:] if text else []


def _halves(reply: AgentReply, call: str) -> tuple[str, str]:
    whole = reply.arguments(call)
    return whole[: len(whole) // 2], whole[len(whole) // 2 :]


def _usage(reply: AgentReply) -> Json:
    return {"prompt_tokens": reply.tokens, "completion_tokens": 20, "total_tokens": reply.tokens + 20}


WHOLE = {"chat": chat, "responses": responses, "messages": messages, "gemini": gemini, "converse": converse}
EVENTS = {
    "chat": chat_events, "responses": responses_events, "messages": messages_events, "gemini": gemini_events,
    "converse": converse_events,
}  # fmt: skip
