"""Records a client's responses on its network, and checks that each looks like one response of a provider.

witness = ResponseRecorder()
async with connected(url, "chat", witness) as client: ...
assert witness.problems("chat") == []
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import httpx2

from tests.reading_provider import OURS

Json = dict[str, Any]
HIDDEN = (b"read_artifact", OURS.encode())
"""Text that no client may see: our tool's name, and the ids of its calls."""


@dataclass
class RecordedResponse:
    """One answer, as far as it was read."""

    streamed: bool
    status: int
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False

    @property
    def events(self) -> list[Json]:
        """The events of a stream; `[DONE]` is `{"done": True}`."""
        return [
            {"done": True} if line == b"data: [DONE]" else json.loads(line[6:])
            for line in bytes(self.body).splitlines()
            if line.startswith(b"data: ")
        ]


@dataclass
class ResponseRecorder:
    """The responses of a client."""

    heard: list[RecordedResponse] = field(default_factory=list)

    def problems(self, protocol_name: str) -> list[str]:
        """The problems of all responses."""
        return [
            f"answer {at}: {each}" for at, one in enumerate(self.heard) for each in find_problems(protocol_name, one)
        ]

    def openai(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=_Transport(self), timeout=60, trust_env=False)

    def anthropic(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=_Transport2(self), timeout=60, trust_env=False)

    def note(self, status: int, kind: str) -> RecordedResponse:
        self.heard.append(RecordedResponse(kind.startswith("text/event-stream"), status))
        return self.heard[-1]


class _Tee:
    """A body that is recorded as it is read."""

    def __init__(self, stream: Any, heard: RecordedResponse) -> None:
        self._stream, self._heard = stream, heard

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._heard.body += piece
            yield piece
        self._heard.is_complete = True

    async def aclose(self) -> None:
        await self._stream.aclose()

    @classmethod
    def on(cls, response: Any, witness: ResponseRecorder) -> Any:
        """The response with a recorded body."""
        one = witness.note(response.status_code, response.headers.get("content-type", ""))
        response.stream = cls(response.stream, one)
        return response


# The SDKs are built on two libraries of one make, each with classes of its own.


class _Body(_Tee, httpx.AsyncByteStream):
    pass


class _Body2(_Tee, httpx2.AsyncByteStream):
    pass


class _Transport(httpx.AsyncHTTPTransport):
    def __init__(self, witness: ResponseRecorder) -> None:
        super().__init__()
        self._witness = witness

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return _Body.on(await super().handle_async_request(request), self._witness)


class _Transport2(httpx2.AsyncHTTPTransport):
    def __init__(self, witness: ResponseRecorder) -> None:
        super().__init__()
        self._witness = witness

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return _Body2.on(await super().handle_async_request(request), self._witness)


# -- what is odd about an answer ---------------------------------------------------------------------------------------


def find_problems(protocol_name: str, one: RecordedResponse) -> Iterator[str]:
    """The differences of a response from one of a provider."""
    for word in HIDDEN:
        if word in one.body:
            at = one.body.index(word)
            yield f"{word!r} is seen: {bytes(one.body[max(0, at - 80) : at + 80])!r}"
    if one.status != 200:
        yield f"the status is {one.status}: {bytes(one.body[:200])!r}"
    elif one.streamed:
        yield from _STREAMS[protocol_name](one.events)
    else:
        yield from _DOCUMENTS[protocol_name](json.loads(one.body))


def read_usage(protocol_name: str, one: RecordedResponse) -> tuple[int, int]:
    """Input and output tokens as the client reads them."""
    if protocol_name == "messages":
        if not one.streamed:
            return _sums(json.loads(one.body)["usage"])
        usage: Json = {}
        for event in one.events:
            told = event.get("message", {}).get("usage") or event.get("usage") or {}
            usage |= {name: value for name, value in told.items() if value is not None}
        return _sums(usage)
    if protocol_name == "responses":
        told = (one.events[-1]["response"] if one.streamed else json.loads(one.body))["usage"]
        assert told["total_tokens"] == told["input_tokens"] + told["output_tokens"]
        return told["input_tokens"], told["output_tokens"]
    if protocol_name == "gemini":
        told = (one.events[-1] if one.streamed else json.loads(one.body))["usageMetadata"]
        output = told["candidatesTokenCount"] + told.get("thoughtsTokenCount", 0)
        assert told["totalTokenCount"] == told["promptTokenCount"] + output
        return told["promptTokenCount"], output
    given = [e["usage"] for e in one.events if e.get("usage")] if one.streamed else [json.loads(one.body)["usage"]]
    assert given[-1]["total_tokens"] == given[-1]["prompt_tokens"] + given[-1]["completion_tokens"]
    return given[-1]["prompt_tokens"], given[-1]["completion_tokens"]


def _sums(usage: Json) -> tuple[int, int]:
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage.get(name, 0) for name in names), usage["output_tokens"]


def _chat(events: list[Json]) -> Iterator[str]:
    if [at for at, event in enumerate(events) if event.get("done")] != [len(events) - 1]:
        yield "[DONE] stands not once, and last"
    chunks = [event for event in events if "choices" in event]
    for name in ("id", "created", "model"):
        if len({chunk[name] for chunk in chunks}) != 1:
            yield f"the chunks differ in {name}"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    finishes = [at for at, choice in enumerate(choices) if choice["finish_reason"]]
    if finishes != [len(choices) - 1]:
        yield f"finish reasons at {finishes} of {len(choices)}"
        return
    if [bool(choice["delta"].get("role")) for choice in choices].count(True) != 1:
        yield "the role is not told once"
    indexes: list[int] = []
    for choice in choices:
        for piece in choice["delta"].get("tool_calls") or ():
            if piece["index"] not in indexes:
                indexes.append(piece["index"])
                if not piece.get("id") or not piece["function"].get("name"):
                    yield f"a call begins without id or name: {piece}"
    if indexes != list(range(len(indexes))):
        yield f"the calls have the indexes {indexes}"
    if choices[-1]["finish_reason"] != ("tool_calls" if indexes else "stop"):
        yield f"it ends with {choices[-1]['finish_reason']}"
    counted = [at for at, chunk in enumerate(chunks) if chunk.get("usage")]
    if counted not in ([], [len(chunks) - 1]):
        yield f"usage is told at {counted} of {len(chunks)}"


def _chat_document(document: Json) -> Iterator[str]:
    [choice] = document["choices"]
    calls = choice["message"].get("tool_calls")
    if calls == [] or choice["finish_reason"] != ("tool_calls" if calls else "stop"):
        yield f"it ends with {choice['finish_reason']}, and calls {calls}"


def _responses(events: list[Json]) -> Iterator[str]:
    numbers = [event["sequence_number"] for event in events]
    if numbers != list(range(len(events))):
        yield f"the events are numbered {numbers}"
    kinds = [event["type"] for event in events]
    if kinds[:2] != ["response.created", "response.in_progress"] or kinds.count("response.created") != 1:
        yield f"it begins with {kinds[:3]}"
    if kinds.count("response.in_progress") != 1 or kinds.index("response.completed") != len(kinds) - 1:
        yield "it does not end once"
    told = [event["response"] for event in events if "response" in event]
    if len({response["id"] for response in told}) != 1:
        yield "it has several ids"
    began: list[int] = []
    done: dict[int, Json] = {}
    ids: dict[int, str] = {}
    for event in events:
        if event["type"] == "response.output_item.added":
            began.append(event["output_index"])
            ids[event["output_index"]] = event["item"]["id"]
        elif "output_index" in event and (event["output_index"] not in ids or event["output_index"] in done):
            yield f"{event['type']} of an item that is not open: {event['output_index']}"
        elif "item_id" in event and event["item_id"] != ids[event["output_index"]]:
            yield f"{event['type']} of another item: {event['item_id']}"
        if event["type"] == "response.output_item.done":
            done[event["output_index"]] = event["item"]
    if began != list(range(len(began))) or sorted(done) != began:
        yield f"the items begin at {began} and end at {sorted(done)}"
    if [done[at] for at in sorted(done)] != told[-1]["output"]:
        yield "what was told is not what it says at the end"


def _responses_document(document: Json) -> Iterator[str]:
    ids = [item["id"] for item in document["output"]]
    if len(set(ids)) != len(ids) or document["status"] != "completed":
        yield f"{document['status']}: {ids}"


def _messages(events: list[Json]) -> Iterator[str]:
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    ends = [kind for kind in kinds if not kind.startswith("content_block")]
    if ends != ["message_start", "message_delta", "message_stop"] or kinds[0] != ends[0] or kinds[-2:] != ends[1:]:
        yield f"it is framed by {ends}"
        return
    opened, blocks = -1, list[Json]()
    for event in events:
        if event["type"] == "content_block_start":
            if event["index"] != len(blocks) or opened >= 0:
                yield f"a block begins at {event['index']}, not {len(blocks)}"
            opened = event["index"]
            blocks.append(event["content_block"])
        elif event["type"].startswith("content_block_"):
            if event["index"] != opened:
                yield f"{event['type']} of {event['index']} within {opened}"
            opened = -1 if event["type"] == "content_block_stop" else opened
    reason = next(event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta")
    yield from _stopped(reason, blocks)


def _messages_document(document: Json) -> Iterator[str]:
    yield from _stopped(document["stop_reason"], document["content"])


def _stopped(reason: str, blocks: list[Json]) -> Iterator[str]:
    if reason != ("tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"):
        yield f"it ends with {reason}"


def _gemini(events: list[Json]) -> Iterator[str]:
    finishes = [at for at, event in enumerate(events) if event["candidates"][0].get("finishReason")]
    if finishes != [len(events) - 1]:
        yield f"finish reasons at {finishes} of {len(events)}"
    if len({event["responseId"] for event in events}) != 1:
        yield "it has several ids"
    for event in events:
        yield from _gemini_document(event)


def _gemini_document(document: Json) -> Iterator[str]:
    [candidate] = document["candidates"]
    if candidate["content"]["role"] != "model" or not all(candidate["content"]["parts"] or [None]):
        yield f"its content is {candidate['content']}"
    if candidate.get("finishReason", "STOP") != "STOP":
        yield f"it ends with {candidate['finishReason']}"


_STREAMS = {"chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini}
_DOCUMENTS = {
    "chat": _chat_document, "responses": _responses_document, "messages": _messages_document,
    "gemini": _gemini_document,
}  # fmt: skip
