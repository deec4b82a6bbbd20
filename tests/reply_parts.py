"""One reply of a model, piece by piece, in each protocol, whole and as the events that real providers send.

A `ScriptedReply` has any pieces in any order, calls of any tool, arguments that are no JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.fakes import FakeReply

Json = dict[str, Any]


@dataclass(frozen=True)
class ReplyThought:
    """A reasoning part; `sealed` is its signature, or its opaque content."""

    text: str
    sealed: str


@dataclass(frozen=True)
class ReplyText:
    """A text part."""

    text: str


@dataclass(frozen=True)
class ReplyCall:
    """A call. `arguments` is what the model wrote."""

    id: str
    name: str
    arguments: str

    @property
    def parsed_arguments(self) -> Any:
        """The arguments, read; the text itself where they are no JSON."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments

    @property
    def input(self) -> Json:
        """The arguments as an object, in which a text that is none is wrapped."""
        parsed = self.parsed_arguments
        return parsed if isinstance(parsed, dict) else {"INVALID_JSON": self.arguments}


Piece = ReplyThought | ReplyText | ReplyCall


@dataclass(frozen=True)
class ScriptedReply:
    """A reply and its usage; `finish` overrides why it ended, in the protocol's own word."""

    number: int
    pieces: tuple[Piece, ...]
    input: int
    output: int
    finish: str = ""

    @property
    def calls(self) -> list[ReplyCall]:
        return [piece for piece in self.pieces if isinstance(piece, ReplyCall)]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, ReplyText))


# -- Chat Completions --------------------------------------------------------------------------------------------------


def _chat(said: ScriptedReply, body: Json) -> Json:
    message: Json = {"role": "assistant", "content": said.text or None, "refusal": None}
    thought = "".join(piece.text for piece in said.pieces if isinstance(piece, ReplyThought))
    if thought:
        message["reasoning_content"] = thought
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in said.calls
    ]
    if calls:
        message["tool_calls"] = calls
    finish = said.finish or ("tool_calls" if calls else "stop")
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    frame = {"id": f"chatcmpl-{said.number}", "object": "chat.completion", "created": said.number, "model": "small"}
    return {**frame, "choices": [choice], "usage": _chat_usage(said)}


def _chat_usage(said: ScriptedReply) -> Json:
    return {
        "prompt_tokens": said.input, "completion_tokens": said.output, "total_tokens": said.input + said.output,
        "prompt_tokens_details": {"cached_tokens": said.input // 2},
        "completion_tokens_details": {"reasoning_tokens": said.output // 3},
    }  # fmt: skip


def _chat_events(said: ScriptedReply, body: Json) -> list[bytes]:
    frame = {"id": f"chatcmpl-{said.number}", "object": "chat.completion.chunk", "created": said.number}

    def chunk(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**frame, "model": "small", "choices": [choice], **({"usage": None} if counted else {})}

    counted = bool((body.get("stream_options") or {}).get("include_usage"))
    out, at = [chunk({"role": "assistant", "content": "", "refusal": None})], 0
    for piece in said.pieces:
        if isinstance(piece, ReplyThought):
            out += [chunk({"reasoning_content": part}) for part in _parts(piece.text)]
        elif isinstance(piece, ReplyText):
            out += [chunk({"content": part}) for part in _parts(piece.text)]
        else:
            begun = {"index": at, "id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": ""}}
            out.append(chunk({"tool_calls": [begun]}))
            more = _parts(piece.arguments)
            out += [chunk({"tool_calls": [{"index": at, "function": {"arguments": part}}]}) for part in more]
            at += 1
    out.append(chunk({}, said.finish or ("tool_calls" if said.calls else "stop")))
    if counted:
        out.append({**frame, "model": "small", "choices": [], "usage": _chat_usage(said)})
    return [*(b"data: %s\n\n" % _bytes(each) for each in out), b"data: [DONE]\n\n"]


# -- Responses ---------------------------------------------------------------------------------------------------------


def _items(said: ScriptedReply) -> list[Json]:
    out: list[Json] = []
    for at, piece in enumerate(said.pieces):
        if isinstance(piece, ReplyThought):
            name = f"rs_{said.number}" if at == 0 else f"rs_{said.number}_{at}"
            out.append({"id": name, "type": "reasoning", "summary": [], "encrypted_content": piece.sealed})
        elif isinstance(piece, ReplyText):
            part = {"type": "output_text", "text": piece.text, "annotations": [], "logprobs": []}
            item = {"id": f"msg_{said.number}_{at}", "type": "message", "status": "completed", "role": "assistant"}
            out.append({**item, "content": [part]})
        else:
            item = {"id": f"fc_{piece.id}", "type": "function_call", "status": "completed"}
            out.append({**item, "call_id": piece.id, "name": piece.name, "arguments": piece.arguments})
    return out


def _responses(said: ScriptedReply, body: Json) -> Json:
    used = {"input_tokens": said.input, "input_tokens_details": {"cached_tokens": said.input // 2}}
    used |= {"output_tokens": said.output, "output_tokens_details": {"reasoning_tokens": said.output // 3}}
    cut = {"incomplete_details": {"reason": said.finish}} if said.finish else {}
    return {
        "id": f"resp_{said.number}", "object": "response", "created_at": said.number, "model": "small",
        "status": "incomplete" if said.finish else "completed", "error": None, **cut, "output": _items(said),
        "parallel_tool_calls": body.get("parallel_tool_calls", True), "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []), "usage": {**used, "total_tokens": said.input + said.output},
    }  # fmt: skip


def _responses_events(said: ScriptedReply, body: Json) -> list[bytes]:
    response = _responses(said, body)
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    told: list[Json] = [{"type": f"response.{word}", "response": begun} for word in ("created", "in_progress")]
    for at, item in enumerate(response["output"]):
        told += item_events(at, item, _parts)
    told.append({"type": "response.incomplete" if said.finish else "response.completed", "response": response})
    return [_named_event({**event, "sequence_number": at}) for at, event in enumerate(told)]


def item_events(at: int, item: Json, parts: Callable[[str], Iterable[str]]) -> Iterator[Json]:
    """The events of an output item; its texts come in `parts`."""
    place, kind = {"output_index": at, "item_id": item["id"]}, item["type"]
    inside, empty = list[Json](), Json()
    if kind == "message":
        [part], here = item["content"], {**place, "content_index": 0}
        deltas = [{"delta": text, "logprobs": []} for text in parts(part["text"])]
        inside.append({"type": "response.content_part.added", **here, "part": {**part, "text": ""}})
        inside += [{"type": "response.output_text.delta", **here, **delta} for delta in deltas]
        inside.append({"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []})
        inside.append({"type": "response.content_part.done", **here, "part": part})
        empty = {"content": []}
    elif kind in ("function_call", "custom_tool_call"):
        field = "arguments" if kind == "function_call" else "input"
        name = f"response.{kind}_{field}"
        inside += [{"type": f"{name}.delta", **place, "delta": text} for text in parts(item[field])]
        inside.append({"type": f"{name}.done", **place, "name": item["name"], field: item[field]})
        empty = {field: ""}
    elif kind == "reasoning":
        here = {"type": "response.reasoning_summary_text.delta", **place, "summary_index": 0}
        inside += [{**here, "delta": text} for each in item["summary"] for text in parts(each["text"])]
        empty = {"encrypted_content": ""} if "encrypted_content" in item else {}
    elif kind == "web_search_call":
        inside.append({"type": "response.web_search_call.searching", **place})
    begun = {**item, **empty} | ({"status": "in_progress"} if "status" in item else {})
    yield {"type": "response.output_item.added", "output_index": at, "item": begun}
    yield from inside
    yield {"type": "response.output_item.done", "output_index": at, "item": item}


# -- Messages ----------------------------------------------------------------------------------------------------------


def _messages(said: ScriptedReply, body: Json) -> Json:
    content: list[Json] = []
    for piece in said.pieces:
        if isinstance(piece, ReplyThought):
            content.append({"type": "thinking", "thinking": piece.text, "signature": piece.sealed})
        elif isinstance(piece, ReplyText):
            content.append({"type": "text", "text": piece.text})
        else:
            content.append({"type": "tool_use", "id": piece.id, "name": piece.name, "input": piece.input})
    return {
        "id": f"msg_{said.number}", "type": "message", "role": "assistant", "model": "small", "content": content,
        "stop_reason": said.finish or ("tool_use" if said.calls else "end_turn"), "stop_sequence": None,
        "usage": {**_messages_input(said), "output_tokens": said.output},
    }  # fmt: skip


def _messages_input(said: ScriptedReply) -> Json:
    cached = said.input // 3
    return {
        "input_tokens": said.input - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _messages_events(said: ScriptedReply, body: Json) -> list[bytes]:
    message = _messages(said, body)
    first = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {**message["usage"], "output_tokens": 1},
    }
    told: list[Json] = [{"type": "message_start", "message": first}, {"type": "ping"}]
    for at, (block, piece) in enumerate(zip(message["content"], said.pieces, strict=True)):
        start, deltas = block_deltas(block, piece.arguments if isinstance(piece, ReplyCall) else "", _parts)
        told.append({"type": "content_block_start", "index": at, "content_block": start})
        told += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
        told.append({"type": "content_block_stop", "index": at})
    # Some servers tell the input again at the end, others do not.
    used = message["usage"] if said.number % 2 else {"output_tokens": said.output}
    stopped = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    told += [{"type": "message_delta", "delta": stopped, "usage": used}, {"type": "message_stop"}]
    return [_named_event(event) for event in told]


def block_deltas(block: Json, arguments: str, parts: Callable[[str], Iterable[str]]) -> tuple[Json, list[Json]]:
    """A content block as it begins, and its deltas; its texts, and the arguments of a call, come in `parts`."""
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": part} for part in parts(block["thinking"])]
        sealed = {"type": "signature_delta", "signature": block["signature"]}
        return block | {"thinking": "", "signature": ""}, [*deltas, sealed]
    if block["type"] == "text":
        return block | {"text": ""}, [{"type": "text_delta", "text": part} for part in parts(block["text"])]
    if "input" in block:
        pieces = ["", *parts(arguments)]
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in pieces]
    return block, []


# -- Gemini ------------------------------------------------------------------------------------------------------------


def gemini_response(number: int, parts: list[Json], finish: str, counts: tuple[int, int, int]) -> Json:
    """A response with these parts; `counts` are input, output without thoughts, and thoughts."""
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    used = {"promptTokenCount": counts[0], "candidatesTokenCount": counts[1], "thoughtsTokenCount": counts[2]}
    return {
        "candidates": [candidate | ({"finishReason": finish} if finish else {})],
        "usageMetadata": {**used, "totalTokenCount": sum(counts)}, "modelVersion": "small",
        "responseId": f"response-{number}",
    }  # fmt: skip


def _gemini_parts(said: ScriptedReply) -> list[Json]:
    parts: list[Json] = []
    seal = next((piece.sealed for piece in said.pieces if isinstance(piece, ReplyThought)), "")
    for piece in said.pieces:
        if isinstance(piece, ReplyThought):
            parts.append({"text": piece.text, "thought": True, "thoughtSignature": piece.sealed})
        elif isinstance(piece, ReplyText):
            parts.append({"text": piece.text})
        else:
            call: Json = {"functionCall": {"id": piece.id, "name": piece.name, "args": piece.input}}
            # The first call of a step carries the signature of all of it.
            parts.append(call | ({"thoughtSignature": seal} if seal else {}))
            seal = ""
    return parts


def _gemini_response(said: ScriptedReply, parts: list[Json], finish: str) -> Json:
    thoughts = said.output // 3
    return gemini_response(said.number, parts, finish, (said.input, said.output - thoughts, thoughts))


def _gemini(said: ScriptedReply, body: Json) -> Json:
    return _gemini_response(said, _gemini_parts(said), said.finish or "STOP")


def _gemini_events(said: ScriptedReply, body: Json) -> list[bytes]:
    chunks: list[list[Json]] = []
    for part in _gemini_parts(said):
        words = part.keys() == {"text"}
        chunks += [[{"text": text}] for text in _parts(part["text"])] if words else [[part]]
    # Some replies end with what they say last, others with an empty text.
    last = chunks.pop() if said.number % 2 and chunks else [{"text": ""}]
    told = [_gemini_response(said, parts, "") for parts in chunks]
    return [b"data: %s\r\n\r\n" % _bytes(each) for each in (*told, _gemini_response(said, last, said.finish or "STOP"))]


# -- Bedrock Converse --------------------------------------------------------------------------------------------------


def converse_response(content: list[Json], finish: str, counts: tuple[int, int, int]) -> Json:
    """A response with these blocks; `counts` are uncached input, cached input, and output."""
    used = {"inputTokens": counts[0], "outputTokens": counts[2], "totalTokens": sum(counts)}
    cached = {"cacheReadInputTokens": counts[1], "cacheWriteInputTokens": 0} if counts[1] else {}
    return {
        "output": {"message": {"role": "assistant", "content": content}}, "stopReason": finish,
        "usage": {**used, **cached}, "metrics": {"latencyMs": 5},
    }  # fmt: skip


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
    return [b"event: %s\ndata: %s\n\n" % (name.encode(), _bytes(data)) for name, data in told]


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


def _converse(said: ScriptedReply, body: Json) -> Json:
    content: list[Json] = []
    for piece in said.pieces:
        if isinstance(piece, ReplyThought):
            content.append({"reasoningContent": {"reasoningText": {"text": piece.text, "signature": piece.sealed}}})
        elif isinstance(piece, ReplyText):
            content.append({"text": piece.text})
        else:
            content.append({"toolUse": {"toolUseId": piece.id, "name": piece.name, "input": piece.input}})
    cached = said.input // 3
    finish = said.finish or ("tool_use" if said.calls else "end_turn")
    return converse_response(content, finish, (said.input - cached, cached, said.output))


def _converse_events(said: ScriptedReply, body: Json) -> list[bytes]:
    whole = _converse(said, body)
    for block, piece in zip(whole["output"]["message"]["content"], said.pieces, strict=True):
        if isinstance(piece, ReplyCall):
            block["toolUse"]["input"] = piece.arguments
    return converse_stream(whole)


# -- all of them -------------------------------------------------------------------------------------------------------


def _parts(text: str) -> list[str]:
    """A text in a few pieces of different lengths."""
    cuts = sorted({0, len(text) // 7, len(text) // 3, len(text) // 3 + 2, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(cuts) if text[a:b]]


def _bytes(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _named_event(event: Json) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), _bytes(event))


WHOLE = {
    "chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini, "converse": _converse
}  # fmt: skip
EVENTS = {
    "chat": _chat_events, "responses": _responses_events, "messages": _messages_events, "gemini": _gemini_events,
    "converse": _converse_events,
}  # fmt: skip


def reply_document(protocol_name: str, said: ScriptedReply, body: Json) -> Json:
    """The reply as one document; `body` is the request."""
    return WHOLE[protocol_name](said, body)


def reply_events(protocol_name: str, said: ScriptedReply, body: Json) -> list[bytes]:
    """The reply as events, each with its end."""
    return EVENTS[protocol_name](said, body)


def fake_reply(protocol_name: str, *pieces: Piece, input: int = 0, output: int = 5, status: int = 200) -> FakeReply:
    """The reply as one document, for a fake provider; it says "Done." if there is nothing else to say."""
    said = ScriptedReply(1, pieces or (ReplyText("Done."),), input, output)
    return FakeReply(status, pieces=(json.dumps(reply_document(protocol_name, said, {})).encode(),))
