"""One reply of a model, piece by piece, in each protocol, whole and as the events that real providers send.

Unlike an `AgentReply`, a `ScriptedReply` has any pieces in any order, calls of any tool, arguments that are no JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.agent_replies import converse_response, converse_stream, gemini_response
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
        told += _item_events(at, item)
    told.append({"type": "response.incomplete" if said.finish else "response.completed", "response": response})
    return [_named_event({**event, "sequence_number": at}) for at, event in enumerate(told)]


def _item_events(at: int, item: Json) -> Iterator[Json]:
    place = {"output_index": at, "item_id": item["id"]}
    if item["type"] == "message":
        [part] = item["content"]
        empty = {**part, "text": ""}
        yield _item("added", at, {**item, "status": "in_progress", "content": []})
        yield {"type": "response.content_part.added", **place, "content_index": 0, "part": empty}
        for text in _parts(part["text"]):
            delta = {"content_index": 0, "delta": text, "logprobs": []}
            yield {"type": "response.output_text.delta", **place, **delta}
        done = {"content_index": 0, "text": part["text"], "logprobs": []}
        yield {"type": "response.output_text.done", **place, **done}
        yield {"type": "response.content_part.done", **place, "content_index": 0, "part": part}
    elif item["type"] == "function_call":
        yield _item("added", at, {**item, "status": "in_progress", "arguments": ""})
        for text in _parts(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **place, "delta": text}
        fields = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **place, **fields}
    else:
        yield _item("added", at, {**item, "encrypted_content": ""})
    yield _item("done", at, item)


def _item(word: str, at: int, item: Json) -> Json:
    return {"type": f"response.output_item.{word}", "output_index": at, "item": item}


# -- Messages ----------------------------------------------------------------------------------------------------------


def _messages(said: ScriptedReply, body: Json) -> Json:
    content: list[Json] = []
    for piece in said.pieces:
        if isinstance(piece, ReplyThought):
            content.append({"type": "thinking", "thinking": piece.text, "signature": piece.sealed})
        elif isinstance(piece, ReplyText):
            content.append({"type": "text", "text": piece.text})
        else:
            given = (
                piece.parsed_arguments
                if isinstance(piece.parsed_arguments, dict)
                else {"INVALID_JSON": piece.arguments}
            )
            content.append({"type": "tool_use", "id": piece.id, "name": piece.name, "input": given})
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
        start, deltas = _block(block, piece)
        told.append({"type": "content_block_start", "index": at, "content_block": start})
        told += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
        told.append({"type": "content_block_stop", "index": at})
    # Some servers tell the input again at the end, others do not.
    used = message["usage"] if said.number % 2 else {"output_tokens": said.output}
    stopped = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    told += [{"type": "message_delta", "delta": stopped, "usage": used}, {"type": "message_stop"}]
    return [_named_event(event) for event in told]


def _block(block: Json, piece: Piece) -> tuple[Json, list[Json]]:
    if isinstance(piece, ReplyThought):
        deltas = [{"type": "thinking_delta", "thinking": part} for part in _parts(piece.text)]
        sealed = {"type": "signature_delta", "signature": piece.sealed}
        return {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, sealed]
    if isinstance(piece, ReplyText):
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in _parts(piece.text)]
    parts = ["", *_parts(piece.arguments)]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]


# -- Gemini ------------------------------------------------------------------------------------------------------------


def _gemini_parts(said: ScriptedReply) -> list[Json]:
    parts: list[Json] = []
    seal = next((piece.sealed for piece in said.pieces if isinstance(piece, ReplyThought)), "")
    for piece in said.pieces:
        if isinstance(piece, ReplyThought):
            parts.append({"text": piece.text, "thought": True, "thoughtSignature": piece.sealed})
        elif isinstance(piece, ReplyText):
            parts.append({"text": piece.text})
        else:
            given = (
                piece.parsed_arguments
                if isinstance(piece.parsed_arguments, dict)
                else {"INVALID_JSON": piece.arguments}
            )
            call: Json = {"functionCall": {"id": piece.id, "name": piece.name, "args": given}}
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


def _converse(said: ScriptedReply, body: Json) -> Json:
    content: list[Json] = []
    for piece in said.pieces:
        if isinstance(piece, ReplyThought):
            content.append({"reasoningContent": {"reasoningText": {"text": piece.text, "signature": piece.sealed}}})
        elif isinstance(piece, ReplyText):
            content.append({"text": piece.text})
        else:
            given = (
                piece.parsed_arguments
                if isinstance(piece.parsed_arguments, dict)
                else {"INVALID_JSON": piece.arguments}
            )
            content.append({"toolUse": {"toolUseId": piece.id, "name": piece.name, "input": given}})
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


_WHOLE = {
    "chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini, "converse": _converse
}  # fmt: skip
_EVENTS = {
    "chat": _chat_events, "responses": _responses_events, "messages": _messages_events, "gemini": _gemini_events,
    "converse": _converse_events,
}  # fmt: skip


def reply_document(protocol_name: str, said: ScriptedReply, body: Json) -> Json:
    """The reply as one document; `body` is the request."""
    return _WHOLE[protocol_name](said, body)


def reply_events(protocol_name: str, said: ScriptedReply, body: Json) -> list[bytes]:
    """The reply as events, each with its end."""
    return _EVENTS[protocol_name](said, body)


def fake_reply(
    protocol_name: str, *pieces: Piece, input: int = 0, output: int = 5, status: int = 200
) -> FakeReply:  # fmt: skip
    """The reply as one document, for a fake provider; it says "Done." if there is nothing else to say."""
    said = ScriptedReply(1, pieces or (ReplyText("Done."),), input, output)
    return FakeReply(status, pieces=(json.dumps(reply_document(protocol_name, said, {})).encode(),))
