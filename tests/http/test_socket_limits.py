"""A WebSocket of Responses whose provider is silent, or whose client does not read."""

import asyncio
import json
from typing import Any

import msgspec
from starlette.types import Message

from accordion.http.response_socket import ResponseSocket
from accordion.model.errors import UpstreamTimeout
from accordion.model.http import Inbound, Outbound
from accordion.model.ports import Headers, UpstreamRequest

SOON = 20.0
REQUEST: Message = {"type": "websocket.receive", "text": '{"type":"response.create","model":"m","input":"hi"}'}
UPGRADE = Inbound("GET", "/v1/responses", "", ((b"accept-encoding", b"gzip, br"),), b"", "req_1")


class Closed(Exception):
    """The socket of a provider has closed."""

    code, reason = 1013, "later"


class SilentSocket:
    """A provider's socket; `messages` are what it sends, and None is its end."""

    headers: Headers = ()
    subprotocol: str | None = None

    def __init__(self) -> None:
        self.messages: asyncio.Queue[str | None] = asyncio.Queue()
        self.received: list[str | bytes] = []

    async def receive(self) -> str | bytes:
        message = await self.messages.get()
        if message is None:
            raise Closed
        return message

    async def send(self, message: str | bytes) -> None:
        self.received.append(message)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.messages.put_nowait(None)


class FakeSender(msgspec.Struct):
    upstream: Any = None


class FakePipeline(msgspec.Struct):
    """Sends each request as it comes, if there is an upstream; else never answers."""

    sender: FakeSender
    inbounds: list[Inbound]

    async def __call__(self, inbound: Inbound) -> Outbound:
        self.inbounds.append(inbound)
        if self.sender.upstream is None:
            await asyncio.Event().wait()
        try:
            response = await self.sender.upstream.send(UpstreamRequest("POST", "", (), inbound.body))
        except UpstreamTimeout as error:
            return Outbound(error.status, (), b'{"error":{"message":"late"}}')
        return Outbound(response.status, response.headers, response.chunks())


class FakeClient:
    """A client's side of a socket. `is_reading`: whether it takes what it is sent."""

    def __init__(self, *messages: Message, is_reading: bool = True) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        for message in messages:
            self.messages.put_nowait(message)
        self.received: list[Message] = []
        self._is_reading, self._left = is_reading, asyncio.Event()
        self.pipeline = FakePipeline(FakeSender(), [])

    async def send(self, message: Message) -> None:
        if not self._is_reading:
            await self._left.wait()
        if self._left.is_set():
            raise OSError
        self.received.append(message)

    def leave(self) -> None:
        self.messages.put_nowait({"type": "websocket.disconnect", "code": 1000})
        self._left.set()

    async def run(self, socket: SilentSocket | None, silence: float | None = None) -> None:
        reader = ResponseSocket(lambda: self.pipeline, UPGRADE, lambda: "req_2", self.send, asyncio.Event(), 1_000_000)  # type: ignore[arg-type, return-value]
        first = asyncio.ensure_future(self.messages.get())
        await reader.run(first, self.messages.get, socket, Closed, silence)


async def test_a_provider_that_begins_no_response_in_time_ends_the_socket_after_the_error() -> None:
    client, socket = FakeClient(REQUEST), SilentSocket()
    await asyncio.wait_for(client.run(socket, silence=0.01), SOON)
    error, close = client.received
    assert json.loads(error["text"])["status"] == 504
    assert (close["type"], close["code"]) == ("websocket.close", 1011)


async def test_requests_over_http_ask_for_a_response_without_an_encoding() -> None:
    client = FakeClient(REQUEST)
    running = asyncio.create_task(client.run(None))
    while not client.pipeline.inbounds:
        await asyncio.sleep(0)
    client.leave()
    await asyncio.wait_for(running, SOON)
    (inbound,) = client.pipeline.inbounds
    assert [value for name, value in inbound.headers if name == b"accept-encoding"] == [b"identity"]


async def test_a_client_that_sends_without_reading_is_not_read_beyond_the_limit_of_requests() -> None:
    client = FakeClient(*[REQUEST] * 100, is_reading=False)
    running = asyncio.create_task(client.run(None))
    for _ in range(500):
        await asyncio.sleep(0)
    left = client.messages.qsize()
    client.leave()
    await asyncio.wait_for(running, SOON)
    assert left == 100 - 33
