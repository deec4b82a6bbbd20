"""A WebSocket of Responses whose provider is silent, whose client does not read or leaves, or whose key is revoked."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
import pytest
from starlette.types import Message

from accordion.http.response_socket import ResponseSocket
from accordion.model.errors import AccordionError, Unauthorized, UpstreamDisconnected, UpstreamTimeout
from accordion.model.http import CLIENT_DISCONNECTED, Inbound, Outbound, stop_error
from accordion.model.ports import Headers, UpstreamRequest

SOON = 20.0
MAX_BODY = 1_000_000
EVENTS: Headers = ((b"content-type", b"text/event-stream"),)
UPGRADE = Inbound("GET", "/v1/responses", "", ((b"accept-encoding", b"gzip, br"),), b"", "req_1")


def message(kind: str = "response.create", **fields: Any) -> Message:
    """A client's message; by itself a request."""
    return {"type": "websocket.receive", "text": json.dumps({"type": kind, "model": "m", "input": "hi", **fields})}


def completed(**fields: Any) -> str:
    """The last message of a response."""
    return json.dumps({"type": "response.completed", "response": {"id": "resp_1", "output": []}} | fields)


async def settle() -> None:
    """Lets all tasks run that can."""
    for _ in range(500):
        await asyncio.sleep(0)


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


class FakeTenants(msgspec.Struct):
    is_revoked: bool = False

    def identify(self, headers: Mapping[bytes, bytes]) -> None:
        if self.is_revoked:
            raise Unauthorized("This proxy needs one of its own keys.")


class FakePipeline(msgspec.Struct):
    """Sends each request as it comes, if there is an upstream; else answers with `events`, or never without them."""

    sender: FakeSender
    inbounds: list[Inbound]
    tenants: FakeTenants
    ends: list[Any]
    """Why requests without an answer ended."""
    events: bytes | None = None

    async def __call__(self, inbound: Inbound) -> Outbound:
        self.inbounds.append(inbound)
        if self.events is not None:
            return Outbound(200, EVENTS, self._chunks(self.events))
        if self.sender.upstream is None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as cancelled:
                self.ends += cancelled.args
                raise
        try:
            response = await self.sender.upstream.send(UpstreamRequest("POST", "", (), inbound.body))
        except UpstreamTimeout as error:
            return Outbound(error.status, (), b'{"error":{"message":"late"}}')
        return Outbound(response.status, response.headers, response.chunks())

    def refuse(self, inbound: Inbound, error: AccordionError) -> Outbound:
        return Outbound(error.status, (), json.dumps({"error": {"message": error.message}}).encode())

    async def _chunks(self, events: bytes) -> AsyncGenerator[bytes, None]:
        yield events


class FakeClient:
    """A client's side of a socket, which takes what it is sent if `is_reading`. `lost` is raised once it has left."""

    def __init__(self, *messages: Message, is_reading: bool = True, lost: Exception | None = None) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        for message in messages:
            self.messages.put_nowait(message)
        self.received: list[Message] = []
        self._is_reading, self._left = asyncio.Event(), asyncio.Event()
        if is_reading:
            self._is_reading.set()
        self._lost = lost or OSError()
        self.pipeline = FakePipeline(FakeSender(), [], FakeTenants(), [])

    @property
    def texts(self) -> list[Any]:
        """The messages that it was sent, read."""
        return [json.loads(each["text"]) for each in self.received if each["type"] == "websocket.send"]

    async def send(self, message: Message) -> None:
        await self._is_reading.wait()
        if self._left.is_set():
            raise self._lost
        self.received.append(message)

    def read(self) -> None:
        """Reads from now on."""
        self._is_reading.set()

    def lose(self) -> None:
        """Leaves, which the server does not report yet."""
        self._left.set()
        self._is_reading.set()

    def leave(self) -> None:
        self.messages.put_nowait({"type": "websocket.disconnect", "code": 1000})
        self.lose()

    async def run(self, socket: SilentSocket | None, silence: float | None = None) -> None:
        reader = ResponseSocket(lambda: self.pipeline, UPGRADE, lambda: "req_2", self.send, asyncio.Event(), MAX_BODY)  # type: ignore[arg-type, return-value]
        first = asyncio.ensure_future(self.messages.get())
        await reader.run(first, self.messages.get, socket, Closed, silence)


async def test_a_provider_that_begins_no_response_in_time_ends_the_socket_after_the_error() -> None:
    client, socket = FakeClient(message()), SilentSocket()
    await asyncio.wait_for(client.run(socket, silence=0.01), SOON)
    error, close = client.received
    assert json.loads(error["text"])["status"] == 504
    assert (close["type"], close["code"]) == ("websocket.close", 1011)


async def test_requests_over_http_ask_for_a_response_without_an_encoding() -> None:
    client = FakeClient(message())
    running = asyncio.create_task(client.run(None))
    while not client.pipeline.inbounds:
        await asyncio.sleep(0)
    client.leave()
    await asyncio.wait_for(running, SOON)
    (inbound,) = client.pipeline.inbounds
    assert [value for name, value in inbound.headers if name == b"accept-encoding"] == [b"identity"]


async def test_a_client_that_does_not_read_is_not_read_beyond_the_request_limit() -> None:
    client = FakeClient(*[message()] * 100, is_reading=False)
    running = asyncio.create_task(client.run(None))
    await settle()
    left = client.messages.qsize()
    client.leave()
    await asyncio.wait_for(running, SOON)
    assert left == 100 - 33


async def test_requests_that_wait_are_together_no_larger_than_a_body() -> None:
    large = message(input="x" * (MAX_BODY // 3))
    client = FakeClient(large, large, message(input="x" * (MAX_BODY // 3), stream_id="s"), message())
    running = asyncio.create_task(client.run(None))
    await settle()
    (refused,) = client.texts
    assert (refused["status"], refused["stream_id"]) == (429, "s")
    assert len(client.pipeline.inbounds) == 1
    client.leave()
    await asyncio.wait_for(running, SOON)


async def test_lists_of_concurrent_continuations_share_the_limit_of_one_body() -> None:
    client, socket = FakeClient(message(input="x" * (MAX_BODY // 2), store=False)), SilentSocket()
    running = asyncio.create_task(client.run(socket))
    await settle()
    socket.messages.put_nowait(completed())
    await settle()
    for stream in "ab":
        client.messages.put_nowait(message(input="go on", previous_response_id="resp_1", store=False, stream_id=stream))
    await settle()
    assert [json.loads(sent).get("stream_id") for sent in socket.received] == [None, "a"]
    socket.messages.put_nowait(completed(stream_id="a"))
    await settle()
    assert [json.loads(sent).get("stream_id") for sent in socket.received] == [None, "a", "b"]
    client.leave()
    await asyncio.wait_for(running, SOON)


async def test_too_many_bytes_behind_an_unread_response_close_the_socket() -> None:
    client, socket = FakeClient(message(), is_reading=False), SilentSocket()
    running = asyncio.create_task(client.run(socket))
    await settle()
    late = json.dumps({"type": "timing", "text": "x" * 100_000})
    for sent in (completed(), *[late] * 20):
        socket.messages.put_nowait(sent)
    await settle()
    client.read()
    await asyncio.wait_for(running, SOON)
    assert (client.received[-1]["type"], client.received[-1]["code"]) == ("websocket.close", 1011)


async def test_messages_behind_a_response_come_in_their_order() -> None:
    client, socket = FakeClient(message(), is_reading=False), SilentSocket()
    running = asyncio.create_task(client.run(socket))
    await settle()
    kinds = ["response.completed", "one", "two", "three"]
    for sent in (completed(), *[json.dumps({"type": kind}) for kind in kinds[1:]]):
        socket.messages.put_nowait(sent)
    await settle()
    client.read()
    await settle()
    assert [text["type"] for text in client.texts] == kinds
    client.leave()
    await asyncio.wait_for(running, SOON)


@pytest.mark.parametrize("lost", [OSError(), RuntimeError("Unexpected ASGI message")], ids=["lost", "closed"])
async def test_a_client_that_is_gone_before_the_server_says_so_is_no_error(
    lost: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    client, socket = FakeClient(message(), lost=lost), SilentSocket()
    running = asyncio.create_task(client.run(socket))
    await settle()
    client.lose()
    for sent in ('{"type":"response.created"}', '{"type":"timing"}', '{"type":"response.in_progress"}'):
        socket.messages.put_nowait(sent)
    await settle()
    assert not running.done()
    client.leave()
    await asyncio.wait_for(running, SOON)
    assert caplog.records == []


async def test_requests_that_run_when_a_client_leaves_end_as_disconnected() -> None:
    client = FakeClient(message(), message(stream_id="s"))
    running = asyncio.create_task(client.run(None))
    await settle()
    client.leave()
    await asyncio.wait_for(running, SOON)
    assert client.pipeline.ends == [CLIENT_DISCONNECTED] * 2


async def test_a_response_over_http_that_stops_without_its_end_ends_the_socket() -> None:
    client = FakeClient(message())
    client.pipeline.events = b'data: {"type":"response.created","response":{"id":"resp_1"}}\n\n'
    await asyncio.wait_for(client.run(None), SOON)
    created, close = client.received
    assert json.loads(created["text"])["type"] == "response.created"
    assert (close["type"], close["code"]) == ("websocket.close", 1011)


async def test_a_response_that_breaks_off_ends_the_others_with_an_error_that_says_so() -> None:
    client = FakeClient(message())
    running = asyncio.create_task(client.run(None))
    await settle()
    client.pipeline.events = b"data: {}\n\n"
    client.messages.put_nowait(message(stream_id="s"))
    await asyncio.wait_for(running, SOON)
    (reason,) = client.pipeline.ends
    error = stop_error(asyncio.CancelledError(reason))
    assert isinstance(error, UpstreamDisconnected)
    assert "closes this WebSocket" in error.message


async def test_a_request_in_a_binary_message_is_one_too() -> None:
    request: Message = {"type": "websocket.receive", "bytes": message()["text"].encode()}
    client, socket = FakeClient(request), SilentSocket()
    running = asyncio.create_task(client.run(socket))
    await settle()
    assert len(client.pipeline.inbounds) == 1
    assert socket.received == [message()["text"]]
    client.leave()
    await asyncio.wait_for(running, SOON)


async def test_a_request_with_a_lone_surrogate_is_answered() -> None:
    request = message(input=[{"role": "user", "content": "cut \ud83d"}])
    client, socket = FakeClient(request), SilentSocket()
    running = asyncio.create_task(client.run(socket))
    await settle()
    assert socket.received == [request["text"]]
    end = completed(response={"id": "resp_1", "output": [], "instructions": "cut \ud83d"})
    socket.messages.put_nowait(end)
    socket.messages.put_nowait('{"type":"timing"}')
    await settle()
    assert client.texts == [json.loads(end), {"type": "timing"}]
    client.messages.put_nowait(message())
    await settle()
    assert len(socket.received) == 2
    client.leave()
    await asyncio.wait_for(running, SOON)


async def test_binary_messages_that_are_no_requests_pass_as_they_came() -> None:
    client, socket = FakeClient({"type": "websocket.receive", "bytes": b"\xff\x00"}), SilentSocket()
    running = asyncio.create_task(client.run(socket))
    await settle()
    assert socket.received == [b"\xff\x00"]
    client.leave()
    await asyncio.wait_for(running, SOON)


async def test_a_provider_that_knows_no_streams_answers_the_only_request() -> None:
    client, socket = FakeClient(message(stream_id="s")), SilentSocket()
    running = asyncio.create_task(client.run(socket))
    await settle()
    for sent in ('{"type":"timing"}', '{"type":"response.created","response":{"id":"resp_1"}}', completed()):
        socket.messages.put_nowait(sent)
    await settle()
    sent_to_client = [(text["type"], text.get("stream_id")) for text in client.texts]
    assert sent_to_client == [("timing", None), ("response.created", "s"), ("response.completed", "s")]
    client.messages.put_nowait(message(stream_id="s"))
    await settle()
    assert len(socket.received) == 2
    client.leave()
    await asyncio.wait_for(running, SOON)


@pytest.mark.parametrize("refused", [message("response.steer"), message(generate=False)], ids=["steer", "prewarm"])
async def test_a_client_whose_key_is_revoked_gets_an_error_for_what_is_no_request(refused: Message) -> None:
    client = FakeClient()
    socket = SilentSocket() if "steer" in refused["text"] else None
    running = asyncio.create_task(client.run(socket))
    client.pipeline.tenants.is_revoked = True
    client.messages.put_nowait(refused)
    await settle()
    (error,) = client.texts
    assert (error["type"], error["status"]) == ("error", 401)
    assert socket is None or socket.received == []
    client.leave()
    await asyncio.wait_for(running, SOON)
