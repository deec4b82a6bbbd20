"""Responses of a loopback provider: Chat Completions, Responses, Messages, Gemini and Bedrock, and odd ones."""

import base64
import gzip
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from wire import Request

CREATED = 1790000000
HEADERS = (
    ("Date", "Sat, 21 Nov 2026 12:00:00 GMT"),
    ("Server", "loopback-provider"),
    ("OpenAI-Processing-Ms", "17"),
    ("OpenAI-Version", "2020-10-01"),
    ("X-RateLimit-Remaining-Tokens", "149984"),
    ("Anthropic-RateLimit-Requests-Remaining", "49"),
    ("Set-Cookie", "__session=one; Path=/; HttpOnly"),
    ("Set-Cookie", "__other=two; Path=/"),
    ("Strict-Transport-Security", "max-age=31536000; includeSubDomains"),
)


@dataclass(frozen=True)
class Reply:
    """One answer: bytes are sent, a number waits that many seconds (or until the client leaves).

    `late` is a wait before the status line, `cut` ends the connection in place of the body's end, `hangs_up` ends it
    unannounced after a whole answer, `silent` before any answer.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    pieces: tuple[bytes | float, ...] = ()
    chunked: bool = False
    cut: bool = False
    late: float = 0.0
    hangs_up: bool = False
    silent: bool = False

    def head(self, number: int) -> bytes:
        """Status line and headers; `number` makes the request id."""
        length = sum(len(piece) for piece in self.pieces if isinstance(piece, bytes))
        framing = ("Transfer-Encoding", "chunked") if self.chunked else ("Content-Length", str(length))
        if self.cut and not self.chunked:
            framing = ("Content-Length", str(length + 100))
        ids = (("X-Request-Id", f"req_{number:04d}"), ("Request-Id", f"req_{number:04d}"))
        headers = (*HEADERS, *ids, *self.headers, *(() if self.status == 204 else (framing,)))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        return f"HTTP/1.1 {self.status} Loopback\r\n{lines}\r\n".encode("latin-1")

    def framed(self, piece: bytes) -> bytes:
        """A piece as it goes on the wire."""
        return b"%x\r\n%s\r\n" % (len(piece), piece) if self.chunked and piece else piece

    def end(self) -> bytes:
        """The end of the body."""
        return b"0\r\n\r\n" if self.chunked else b""


@dataclass(frozen=True)
class Call:
    """A tool call that the model makes."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def json(self) -> str:
        """The arguments as a model writes them."""
        return json.dumps(self.arguments)


Part = str | Call


def as_json(value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """A JSON answer."""
    return Reply(status, (("Content-Type", "application/json"), *headers), (json.dumps(value).encode(),))


def events(pieces: list[bytes | float], cut: bool = False) -> Reply:
    """A streamed answer."""
    return Reply(200, (("Content-Type", "text/event-stream; charset=utf-8"),), tuple(pieces), chunked=True, cut=cut)


def failure(status: int, kind: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """An error body that both families of clients understand."""
    error = {"type": kind, "message": message, "param": None, "code": kind}
    return as_json({"type": "error", "error": error, "request_id": "req_failed"}, status, headers)


def refused_upgrade() -> Reply:
    """What a provider without WebSockets says to an upgrade."""
    return failure(426, "upgrade_refused", "This provider speaks HTTP only.")


def zipped(reply: Reply) -> Reply:
    """The same answer, compressed by the provider."""
    body = gzip.compress(b"".join(piece for piece in reply.pieces if isinstance(piece, bytes)), mtime=0)
    half = len(body) // 2
    headers = (*reply.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return replace(reply, headers=headers, pieces=(body[:half], body[half:]))


def paced(reply: Reply, seconds: float) -> Reply:
    """The same answer with a pause before each piece."""
    pieces = tuple(part for piece in reply.pieces for part in (seconds, piece))
    return replace(reply, pieces=pieces)


def cut_after(reply: Reply, pieces: int) -> Reply:
    """The same answer, ended too early by a closed connection."""
    return replace(reply, pieces=reply.pieces[:pieces], cut=True)


def held_after(reply: Reply, pieces: int, seconds: float = 30.0) -> Reply:
    """The same answer, with a long pause in which a client may leave."""
    return replace(reply, pieces=(*reply.pieces[:pieces], seconds, *reply.pieces[pieces:]))


def in_small_pieces(reply: Reply, size: int) -> Reply:
    """The same answer in pieces that split events and characters."""
    body = b"".join(piece for piece in reply.pieces if isinstance(piece, bytes))
    pieces = tuple(body[at : at + size] for at in range(0, len(body), size))
    return replace(reply, pieces=pieces)


def never(streamed: bool = False) -> Reply:
    """An answer that does not come while a client has patience: none at all, or headers only."""
    return Reply(pieces=(30.0, b"{}"), chunked=True) if streamed else Reply(pieces=(b"{}",), late=30.0)


def body_of(request: Request) -> dict[str, Any]:
    """The JSON of a request; empty where it has none."""
    try:
        value = json.loads(request.body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def tool_names(body: dict[str, Any]) -> set[str]:
    """The tools that a request offers, in any protocol."""
    offered: set[str] = set()
    for tool in body.get("tools") or []:
        offered |= {name for name in (tool.get("name"), (tool.get("function") or {}).get("name")) if name}
        inner_tools = (tool.get("tools") or []) + (tool.get("functionDeclarations") or [])
        offered |= {inner["name"] for inner in inner_tools if "name" in inner}
    converse_tools = (body.get("toolConfig") or {}).get("tools") or []
    return offered | {tool["toolSpec"]["name"] for tool in converse_tools if "toolSpec" in tool}


def results_in(body: dict[str, Any]) -> list[str]:
    """The tool results that a request carries, as text, oldest first."""
    found: list[Any] = []
    for message in body.get("messages") or []:
        if message.get("role") == "tool":
            found.append(message.get("content"))
        elif isinstance(message.get("content"), list):
            found += [block.get("content") for block in message["content"] if block.get("type") == "tool_result"]
            found += [block["toolResult"]["content"] for block in message["content"] if "toolResult" in block]
    if isinstance(body.get("input"), list):
        kinds = ("function_call_output", "custom_tool_call_output")
        found += [item.get("output") for item in body["input"] if item.get("type") in kinds]
    for content in body.get("contents") or []:
        answers = [part["functionResponse"]["response"] for part in content["parts"] if "functionResponse" in part]
        found += [next(iter(answer.values())) for answer in answers]
    return [_text(result) for result in found]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_text(part) for part in content)
    if isinstance(content, dict):
        return str(content.get("text", ""))
    return str(content or "")


def steps(*turns: Part | list[Part]) -> Callable[[Request], Reply | None]:
    """A rule: with no tool result yet the first turn, with one the second, and so on; `{result}` is the newest result.

    Requests that do not offer the tool of their turn (titles and the like) get a short text.
    """

    def rule(request: Request) -> Reply | None:
        if request.method != "POST" or not is_generation(request):
            return None
        body = body_of(request)
        results = results_in(body)
        turn = turns[min(len(results), len(turns) - 1)]
        parts = turn if isinstance(turn, list) else [turn]
        if any(isinstance(part, Call) and part.name not in tool_names(body) for part in parts):
            parts = ["A short title"]
        newest = results[-1] if results else ""
        return speak(request, [part.replace("{result}", newest) if isinstance(part, str) else part for part in parts])

    return rule


def is_generation(request: Request) -> bool:
    """Whether a request asks the model for something."""
    is_bedrock = request.path.startswith("/model/")
    return is_bedrock or request.path.endswith(("/chat/completions", "/responses", "/messages", "enerateContent"))


def speak(request: Request, parts: list[Part]) -> Reply:
    """The parts in the protocol, and in the manner, that the request asks for."""
    body = body_of(request)
    if "enerateContent" in request.path:
        return gemini_reply(request, parts)
    if request.path.startswith("/model/"):
        return bedrock_reply(request, parts)
    kinds = {"completions": (chat, chat_events), "responses": (response, response_events)}
    whole, streamed = kinds.get(request.path.rsplit("/", 1)[1], (message, message_events))
    return events(list(streamed(body, parts))) if body.get("stream") else as_json(whole(body, parts))


def say(request: Request, text: str) -> Reply:
    """A plain text answer."""
    return speak(request, [text])


def default(request: Request) -> Reply:
    """The answer where a test does not say otherwise."""
    if request.method == "POST" and is_generation(request):
        body = body_of(request)
        wanted = (body.get("response_format") or (body.get("text") or {}).get("format") or {}).get("type")
        return say(request, '{"city": "Paris", "days": 3}' if wanted == "json_schema" else GREETING)
    for method, ending, make in OTHERS:
        fits = ending in request.path if ending.endswith("/") else request.path.endswith(ending)
        if request.method == method and fits:
            return make(request)
    return failure(404, "not_found_error", f"Nothing here: {request.method} {request.path}")


GREETING = "Hello from the provider: déjà vu, 東京, 🦜."


def data_of(reply: Reply) -> list[str]:
    """What a streamed answer says in its events; an error as a message of a socket."""
    text = b"".join(piece for piece in reply.pieces if isinstance(piece, bytes)).decode()
    if reply.status >= 400:
        return [json.dumps({"type": "error", "status": reply.status} | json.loads(text))]
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]


def warmed(body: dict[str, Any]) -> Reply:
    """The answer to a request over a socket that only prepares the next one."""
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    begun = {"id": _id("resp", []), "object": "response", "model": body["model"], "output": []}
    done = {"type": "response.completed", "response": begun | {"status": "completed", "usage": usage}}
    told = [{"type": "response.created", "response": begun}, done]
    return events([f"data: {json.dumps(event)}\n\n".encode() for event in told])


# Chat Completions


def chat(body: dict[str, Any], parts: list[Part]) -> dict[str, Any]:
    """A whole chat completion."""
    text = "".join(part for part in parts if isinstance(part, str)) or None
    calls = [_chat_call(i, part) for i, part in enumerate(part for part in parts if isinstance(part, Call))]
    answer = {"role": "assistant", "content": text, "refusal": None} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "message": answer, "logprobs": None, "finish_reason": "tool_calls" if calls else "stop"}
    return _chat_frame(body, parts, "chat.completion") | {"choices": [choice], "usage": CHAT_USAGE}


CHAT_USAGE = {
    "prompt_tokens": 19,
    "completion_tokens": 10,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


def _chat_call(index: int, call: Call) -> dict[str, Any]:
    return {"id": _call_id(call, index), "type": "function", "function": {"name": call.name, "arguments": call.json}}


def _call_id(call: Call, index: int) -> str:
    return f"call_{call.name}_{index}_{sum(call.json.encode()) % 9973:04d}"


def _chat_frame(body: dict[str, Any], parts: list[Part], kind: str) -> dict[str, Any]:
    identity = {"id": _id("chatcmpl", parts), "object": kind, "created": CREATED}
    return identity | {"model": body.get("model"), "system_fingerprint": "fp"}


def chat_events(body: dict[str, Any], parts: list[Part]) -> Iterator[bytes]:
    """A streamed chat completion."""
    frame = _chat_frame(body, parts, "chat.completion.chunk")
    reported = bool((body.get("stream_options") or {}).get("include_usage"))

    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _data(frame | {"choices": [choice]} | ({"usage": None} if reported else {}))

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    called = 0
    for part in parts:
        if isinstance(part, str):
            yield from (chunk({"content": word}) for word in words(part))
            continue
        start = _chat_call(called, part)
        start["function"]["arguments"] = ""
        yield chunk({"tool_calls": [{"index": called} | start]})
        for piece in words(part.json):
            yield chunk({"tool_calls": [{"index": called, "function": {"arguments": piece}}]})
        called += 1
    yield chunk({}, "tool_calls" if called else "stop")
    if reported:
        yield _data(frame | {"choices": [], "usage": CHAT_USAGE})
    yield b"data: [DONE]\n\n"


def words(text: str) -> list[str]:
    """A text in pieces that join to it again."""
    return [piece + (" " if i < text.count(" ") else "") for i, piece in enumerate(text.split(" "))]


def _data(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def _event(kind: str, value: dict[str, Any]) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind} | value)


# Responses


def response(body: dict[str, Any], parts: list[Part]) -> dict[str, Any]:
    return _response_frame(body, parts) | {"status": "completed", "output": _items(parts), "usage": RESPONSE_USAGE}


RESPONSE_USAGE = {
    "input_tokens": 19,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 29,
}


def _response_frame(body: dict[str, Any], parts: list[Part]) -> dict[str, Any]:
    return {
        "id": _id("resp", parts),
        "object": "response",
        "created_at": CREATED,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "model": body.get("model"),
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": {},
    }


def _items(parts: list[Part]) -> list[dict[str, Any]]:
    return [_text_item(i, part) if isinstance(part, str) else _call_item(i, part) for i, part in enumerate(parts)]


def _id(kind: str, parts: list[Part]) -> str:
    """An id that differs from turn to turn and is the same in every run."""
    return f"{kind}_{zlib.crc32(repr(parts).encode()):08x}"


def _text_item(index: int, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {
        "type": "message",
        "id": _id(f"msg_{index}", [text]),
        "status": "completed",
        "role": "assistant",
        "content": content,
    }


def _call_item(index: int, call: Call) -> dict[str, Any]:
    names = {"call_id": _call_id(call, index), "name": call.name, "arguments": call.json}
    return {"type": "function_call", "id": _id(f"fc_{index}", [call]), "status": "completed"} | names


def response_events(body: dict[str, Any], parts: list[Part]) -> Iterator[bytes]:
    """A streamed response."""
    for number, (kind, value) in enumerate(_response_events(body, parts)):
        yield _event(kind, value | {"sequence_number": number})


def _response_events(body: dict[str, Any], parts: list[Part]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": _response_frame(body, parts)}
    yield "response.in_progress", {"response": _response_frame(body, parts)}
    for index, item in enumerate(_items(parts)):
        at = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield "response.output_item.added", {"output_index": index, "item": item | empty | {"status": "in_progress"}}
        if item["type"] == "message":
            at |= {"content_index": 0}
            part = item["content"][0]
            yield "response.content_part.added", at | {"part": part | {"text": ""}}
            for word in words(part["text"]):
                yield "response.output_text.delta", at | {"delta": word, "logprobs": []}
            yield "response.output_text.done", at | {"text": part["text"], "logprobs": []}
            yield "response.content_part.done", at | {"part": part}
        else:
            for piece in words(item["arguments"]):
                yield "response.function_call_arguments.delta", at | {"delta": piece}
            named = {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", at | named
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield "response.completed", {"response": response(body, parts)}


# Messages


def message(body: dict[str, Any], parts: list[Part]) -> dict[str, Any]:
    reason = "tool_use" if any(isinstance(part, Call) for part in parts) else "end_turn"
    blocks = [_block(i, part) for i, part in enumerate(parts)]
    return _message_frame(body, parts) | {"content": blocks, "stop_reason": reason, "usage": MESSAGE_USAGE}


MESSAGE_USAGE = {
    "input_tokens": 19,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 10,
    "service_tier": "standard",
}


def _message_frame(body: dict[str, Any], parts: list[Part]) -> dict[str, Any]:
    stop = {"stop_reason": None, "stop_sequence": None, "usage": MESSAGE_USAGE | {"output_tokens": 1}}
    return {
        "id": _id("msg", parts),
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [],
    } | stop


def _block(index: int, part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "tool_use", "id": f"toolu_{_call_id(part, index)}", "name": part.name, "input": part.arguments}


def message_events(body: dict[str, Any], parts: list[Part]) -> Iterator[bytes]:
    """A streamed message."""
    yield _event("message_start", {"message": _message_frame(body, parts)})
    for index, part in enumerate(parts):
        block = _block(index, part)
        empty: dict[str, Any] = {"text": ""} if isinstance(part, str) else {"input": {}}
        yield _event("content_block_start", {"index": index, "content_block": block | empty})
        yield _event("ping", {})
        for piece in words(part if isinstance(part, str) else part.json):
            kind = {"type": "text_delta", "text": piece}
            if not isinstance(part, str):
                kind = {"type": "input_json_delta", "partial_json": piece}
            yield _event("content_block_delta", {"index": index, "delta": kind})
        yield _event("content_block_stop", {"index": index})
    reason = "tool_use" if any(isinstance(part, Call) for part in parts) else "end_turn"
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield _event("message_delta", {"delta": delta, "usage": MESSAGE_USAGE})
    yield _event("message_stop", {})


# Gemini

GEMINI_USAGE = {"promptTokenCount": 19, "candidatesTokenCount": 7, "thoughtsTokenCount": 3, "totalTokenCount": 29}


def gemini_reply(request: Request, parts: list[Part]) -> Reply:
    """A response of Gemini, whole, as events (`alt=sse`), or as a list of responses."""
    if "stream" not in request.path:
        return as_json(gemini_response(request, gemini_parts(parts), "STOP", parts))
    said = [
        piece for part in parts for piece in ([{"text": w} for w in words(part)] if isinstance(part, str) else [part])
    ]
    pieces = gemini_parts(said)
    told = [gemini_response(request, [piece], "", parts) for piece in pieces[:-1]]
    told.append(gemini_response(request, pieces[-1:], "STOP", parts))
    if "alt=sse" in request.target:
        return events([b"data: " + json.dumps(each, ensure_ascii=False).encode() + b"\r\n\r\n" for each in told])
    listed = [(b",\r\n" if at else b"[") + json.dumps(each).encode() for at, each in enumerate(told)]
    return Reply(200, (("Content-Type", "application/json; charset=UTF-8"),), (*listed, b"\n]"), chunked=True)


def gemini_parts(parts: list[Any]) -> list[dict[str, Any]]:
    """The parts of a content. The first call carries the signature of the step."""
    made: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Call):
            is_first = not any("functionCall" in each for each in made)
            call = {"id": _call_id(part, len(made)), "name": part.name, "args": part.arguments}
            made.append({"functionCall": call} | ({"thoughtSignature": "c2lnbmF0dXJl"} if is_first else {}))
        else:
            made.append(part if isinstance(part, dict) else {"text": part})
    return made


def gemini_response(request: Request, parts: list[dict[str, Any]], finish: str, said: list[Part]) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    model = request.path.rsplit("/", 1)[1].partition(":")[0]
    return {
        "candidates": [candidate | ({"finishReason": finish} if finish else {})],
        "usageMetadata": GEMINI_USAGE,
        "modelVersion": model,
        "responseId": _id("response", said),
    }


GEMINI_MODEL = {"name": "models/gemini-test", "displayName": "Test", "inputTokenLimit": 1048576}


# Bedrock

CONVERSE_USAGE = {"inputTokens": 19, "outputTokens": 10, "totalTokens": 29}


def bedrock_reply(request: Request, parts: list[Part]) -> Reply:
    """A response at a path of Bedrock: of the Converse API, or Claude's own; streams have frames."""
    method = request.path.rsplit("/", 1)[1]
    if method == "converse":
        return as_json(converse(parts), headers=(("x-amzn-RequestId", "request-1"),))
    if method == "converse-stream":
        return frames([frame(name, json.dumps(data).encode()) for name, data in converse_events(parts)])
    body = {**body_of(request), "model": "claude-test"}
    if method == "invoke":
        return as_json(message(body, parts))
    told = (each.partition(b"data: ")[2].strip() for each in message_events(body, parts))
    chunks = [{"bytes": base64.b64encode(each).decode(), "p": "abcdef"[: len(each) % 7]} for each in told]
    return frames([frame("chunk", json.dumps(each).encode()) for each in chunks])


def frames(pieces: list[bytes]) -> Reply:
    """A stream of frames."""
    return Reply(200, (("Content-Type", "application/vnd.amazon.eventstream"),), tuple(pieces), chunked=True)


def frame(event: str, payload: bytes) -> bytes:
    """A frame of AWS's event stream."""
    headers = {":event-type": event, ":content-type": "application/json", ":message-type": "event"}
    block = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(block) + len(payload), len(block))
    head = prelude + struct.pack(">I", zlib.crc32(prelude)) + block + payload
    return head + struct.pack(">I", zlib.crc32(head))


def converse(parts: list[Part]) -> dict[str, Any]:
    """A whole response of the Converse API."""
    reason = "tool_use" if any(isinstance(part, Call) for part in parts) else "end_turn"
    content = [_converse_block(index, part) for index, part in enumerate(parts)]
    said = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": reason}
    return said | {"usage": CONVERSE_USAGE, "metrics": {"latencyMs": 12}}


def _converse_block(index: int, part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    return {"toolUse": {"toolUseId": _call_id(part, index), "name": part.name, "input": part.arguments}}


def converse_events(parts: list[Part]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a streamed response of the Converse API."""
    yield "messageStart", {"role": "assistant"}
    for index, part in enumerate(parts):
        place = {"contentBlockIndex": index}
        if isinstance(part, Call):
            begun = {"toolUseId": _call_id(part, index), "name": part.name}
            yield "contentBlockStart", place | {"start": {"toolUse": begun}}
        for piece in words(part if isinstance(part, str) else part.json):
            delta = {"text": piece} if isinstance(part, str) else {"toolUse": {"input": piece}}
            yield "contentBlockDelta", place | {"delta": delta, "p": "abcdefgh"[: len(piece) % 9]}
        yield "contentBlockStop", place
    whole = converse(parts)
    yield "messageStop", {"stopReason": whole["stopReason"]}
    yield "metadata", {"usage": CONVERSE_USAGE, "metrics": whole["metrics"]}


# The rest of the APIs

FILE = {
    "id": "file-1",
    "object": "file",
    "bytes": 10,
    "created_at": CREATED,
    "filename": "notes.bin",
    "purpose": "user_data",
    "status": "processed",
}
BINARY = bytes(range(256)) * 64
MODEL = {"id": "gpt-test", "object": "model", "created": CREATED, "owned_by": "loopback"}
PAGES = {"first_id": None, "last_id": None}
BATCH = {
    "id": "msgbatch_1",
    "type": "message_batch",
    "processing_status": "in_progress",
    "request_counts": {"processing": 1, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0},
    "created_at": "2026-11-21T12:00:00Z",
    "expires_at": "2026-11-22T12:00:00Z",
    "ended_at": None,
    "archived_at": None,
    "cancel_initiated_at": None,
    "results_url": None,
}


def _models(request: Request) -> Reply:
    if request.header("x-goog-api-key") is not None:
        return as_json({"models": [GEMINI_MODEL]})
    if request.header("anthropic-version") is None:
        return as_json({"object": "list", "data": [MODEL]})
    claude = {"id": "claude-test", "type": "model", "display_name": "Test", "created_at": "2026-01-01T00:00:00Z"}
    return as_json({"data": [claude], "has_more": False} | PAGES)


def _embeddings(request: Request) -> Reply:
    data = [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5, 1e-7]}]
    if body_of(request).get("encoding_format") == "base64":
        data = [{"object": "embedding", "index": 0, "embedding": "AACAPgAAAL8AAIA/"}]
    usage = {"prompt_tokens": 5, "total_tokens": 5}
    return as_json({"object": "list", "data": data, "model": "text-embedding-test", "usage": usage})


def _binary(_: Request) -> Reply:
    return Reply(200, (("Content-Type", "application/octet-stream"),), (BINARY[:1000], BINARY[1000:]), chunked=True)


def _results(_: Request) -> Reply:
    result = {"type": "succeeded", "message": message({"model": "claude-test"}, ["Done."])}
    lines = [json.dumps({"custom_id": f"one-{i}", "result": result}).encode() + b"\n" for i in range(2)]
    return Reply(200, (("Content-Type", "application/x-jsonl"),), tuple(lines), chunked=True)


def _response_by_id(request: Request) -> Reply:
    return as_json(response({"model": "gpt-test"}, ["Kept."]) | {"id": request.path.rsplit("/", 1)[1]})


OTHERS: list[tuple[str, str, Callable[[Request], Reply]]] = [
    ("POST", "/messages/count_tokens", lambda request: as_json({"input_tokens": 19})),
    ("POST", "/responses/input_tokens", lambda r: as_json({"object": "response.input_tokens", "input_tokens": 19})),
    ("POST", ":countTokens", lambda request: as_json({"totalTokens": 19})),
    ("POST", "/messages/batches", lambda request: as_json(BATCH)),
    ("POST", "/cancel", lambda request: as_json(BATCH | {"processing_status": "canceling"})),
    ("GET", "/results", _results),
    ("GET", "/messages/batches", lambda request: as_json({"data": [BATCH], "has_more": False} | PAGES)),
    ("GET", "/messages/batches/", lambda request: as_json(BATCH)),
    ("POST", "/embeddings", _embeddings),
    ("GET", "/models", _models),
    ("GET", "/models/", lambda request: as_json(MODEL | {"id": request.path.rsplit("/", 1)[1]})),
    ("POST", "/files", lambda request: as_json(FILE)),
    ("GET", "/content", _binary),
    ("GET", "/files", lambda request: as_json({"object": "list", "data": [FILE], "has_more": False})),
    ("DELETE", "/files/", lambda request: as_json({"id": "file-1", "object": "file", "deleted": True})),
    ("POST", "/audio/speech", _binary),
    ("DELETE", "/responses/", lambda request: Reply(204)),
    ("GET", "/responses/", _response_by_id),
]
