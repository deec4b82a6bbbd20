"""A provider and an agent that speak Responses over a WebSocket.

`SocketProvider` is as strict as its model (a `StrictProvider`) about the whole list, and keeps only the last response
of each stream, in the memory of the connection. `SocketRun` is an agent that continues its last response with the new
items alone, as Codex does, and begins anew with its whole list on a new socket.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from tests.agent_replies import TOOLS, Json
from tests.loopback import Answer, Recorded
from tests.proxy_process import Proxy
from tests.strict_provider import SYSTEM, StrictProvider, result_of, turn_text

PATH = "/v1/responses"
KEY = "sk-test-sockets"


class AnswerBuffer(Answer):
    """What a script answers, held in memory."""

    target = "/v1/responses"

    def __init__(self) -> None:
        self.status, self.body_sent = 0, b""

    async def head(self, status: int = 200, headers: Iterable[tuple[str, str]] = (), **framing: Any) -> None:
        self.status = status

    async def send(self, data: bytes) -> None:
        self.body_sent += data

    async def chunk(self, data: bytes) -> None:
        self.body_sent += data

    async def last_chunk(self, trailers: Iterable[tuple[str, str]] = ()) -> None:
        return

    @property
    def events(self) -> list[str]:
        """The data of the events of a stream."""
        lines = self.body_sent.decode().splitlines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


@dataclass
class SocketProvider:
    """A provider with a model. What came and what was sent, by connection, is as it was on the wire."""

    model: StrictProvider
    received: list[list[str]] = field(default_factory=list)
    sent: list[list[str]] = field(default_factory=list)
    connections: list[ServerConnection] = field(default_factory=list)

    async def handle(self, connection: ServerConnection) -> None:
        """Serves one connection."""
        self.connections.append(connection)
        self.received.append([])
        self.sent.append([])
        received, sent, memory = self.received[-1], self.sent[-1], dict[str, tuple[str, list[Any]]]()
        async for text in connection:
            assert isinstance(text, str)
            received.append(text)
            if json.loads(text)["type"] != "response.create":
                continue
            for message in await self.answer(json.loads(text), memory):
                sent.append(message)
                await connection.send(message)

    async def answer(self, body: Json, memory: dict[str, tuple[str, list[Any]]]) -> list[str]:
        """Returns the messages of a response. `memory` has the last response of each stream, with its list."""
        assert body.pop("type") == "response.create"
        stream, previous = body.pop("stream_id", None), body.pop("previous_response_id", None)
        beside = {} if stream is None else {"stream_id": stream}
        if previous is not None:
            known = dict(memory.values())
            if previous not in known:
                error = {"code": "previous_response_not_found", "message": f"No response {previous}", "param": None}
                return [json.dumps({"type": "error", "status": 400, "error": error, **beside})]
            body["input"] = [*known[previous], *body["input"]]
        if body.pop("generate", True) is False:
            return self._prewarmed(body, memory, stream or "", beside)
        request = Recorded("POST", PATH, "HTTP/1.1", (), 1, b"", body=json.dumps({**body, "stream": True}).encode())
        answer = AnswerBuffer()
        await self.model(request, answer)
        if answer.status >= 400:
            return [json.dumps({"type": "error", "status": answer.status, **json.loads(answer.body_sent), **beside})]
        response = json.loads(answer.events[-1])["response"]
        memory[stream or ""] = response["id"], [*body["input"], *response["output"]]
        return [json.dumps({**json.loads(event), **beside}) if beside else event for event in answer.events]

    def _prewarmed(self, body: Json, memory: dict[str, tuple[str, list[Any]]], stream: str, beside: Json) -> list[str]:
        response = {"id": f"resp_warm_{len(self.received)}", "object": "response", "output": []}
        memory[stream] = str(response["id"]), list(body["input"])
        usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
        done = {**response, "status": "completed", "usage": usage}
        events = ({"type": "response.created", "response": response}, {"type": "response.completed", "response": done})
        return [json.dumps({**event, **beside}) for event in events]


@asynccontextmanager
async def socket_provider(proxy: Proxy, provider: SocketProvider, **options: Any) -> AsyncIterator[SocketProvider]:
    """Serves a provider at the proxy's upstream."""
    options = {"max_size": None, "open_timeout": 60} | options
    async with serve(provider.handle, "127.0.0.1", proxy.upstream_port, **options):
        yield provider


def connected_socket(proxy: Proxy, **options: Any) -> connect:
    """A client's socket to the proxy."""
    headers = {"Authorization": f"Bearer {KEY}", **options.pop("headers", {})}
    options = {"max_size": None, "open_timeout": 60} | options
    return connect(f"ws://127.0.0.1:{proxy.port}{PATH}", proxy=None, additional_headers=headers, **options)


@dataclass
class SocketRun:
    """An agent on one socket at a time. `history` is its own list; `sent` and `events` are what was on the wire."""

    socket: ClientConnection
    name: str = ""
    model: str = "small"
    more: Json = field(default_factory=dict)
    history: list[Any] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    events: list[list[str]] = field(default_factory=list)
    errors: list[Json] = field(default_factory=list)
    turn: int = 0
    _previous: str = ""
    _known: int = 0

    def begin(self) -> None:
        """The user begins the next turn."""
        self.history.append({"role": "user", "content": turn_text(self.turn, self.name)})
        self.turn += 1

    def reconnect(self, socket: ClientConnection) -> None:
        """Goes on over another socket, whose provider knows no response."""
        self.socket, self._previous, self._known = socket, "", 0

    async def rounds(self, count: int) -> SocketRun:
        """Sends `count` requests; begins the next turn when one is over."""
        for _ in range(count):
            if not self.history or self.history[-1].get("type") == "message":
                self.begin()
            await self.step()
        return self

    async def step(self) -> list[str]:
        """One request, and the tools that it asks for; returns their call ids."""
        if not await self.request(self.history[self._known :], self._previous):
            return []
        output = json.loads(self.events[-1][-1])["response"]["output"]
        self.history += output
        self._known = len(self.history)
        calls = [item["call_id"] for item in output if item["type"] == "function_call"]
        self.history += [{"type": "function_call_output", "call_id": c, "output": result_of(c)} for c in calls]
        return calls

    async def request(self, items: list[Any], previous: str, **more: Any) -> bool:
        """Sends a request and takes its events; returns whether it was answered."""
        body = {
            "type": "response.create", "model": self.model, "instructions": SYSTEM, "store": False, "input": items,
            "tools": TOOLS["responses"], "include": ["reasoning.encrypted_content"], **self.more, **more,
        }  # fmt: skip
        self.sent.append(json.dumps(body | ({"previous_response_id": previous} if previous else {})))
        await self.socket.send(self.sent[-1])
        self.events.append([])
        while True:
            message = await self.socket.recv()
            assert isinstance(message, str)
            self.events[-1].append(message)
            event = json.loads(message)
            if event["type"] == "error":
                self.errors.append(event)
                return False
            if event["type"] == "response.completed":
                self._previous = event["response"]["id"]
                return True
