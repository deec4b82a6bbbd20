"""The provider's side of a WebSocket of Responses, without a network."""

import asyncio

import pytest

from accordion.http.response_socket import SocketUpstream, request_headers
from accordion.model.errors import UpstreamDisconnected, UpstreamTimeout
from accordion.model.ports import Headers

CREATED = '{"type":"response.created"}'


class SocketClosed(Exception):
    """The fake socket has closed."""

    code, reason = 1013, "later"


class FakeSocket:
    """A provider's socket that brings what is put into `messages`, and then closes."""

    headers: Headers = ()
    subprotocol = None

    def __init__(self, *messages: str) -> None:
        self.messages: asyncio.Queue[str] = asyncio.Queue()
        self.sent: list[str | bytes] = []
        self.is_closed = False
        for message in messages:
            self.messages.put_nowait(message)

    async def receive(self) -> str | bytes:
        message = await self.messages.get()
        if message == "close":
            self.is_closed = True
            raise SocketClosed
        return message

    async def send(self, message: str | bytes) -> None:
        if self.is_closed:
            raise SocketClosed
        self.sent.append(message)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.is_closed = True


async def pass_on(message: str | bytes, stream: str, *, is_late: bool) -> None:
    """Drops a message that belongs to no response."""


def upstream(socket: FakeSocket, silence: float | None = None) -> SocketUpstream:
    return SocketUpstream(socket, SocketClosed, pass_on, silence)


async def test_a_request_behind_a_response_that_broke_off_is_refused_at_once() -> None:
    socket = FakeSocket()
    one = upstream(socket)
    running = asyncio.create_task(one.run())
    for message in (CREATED, "close"):
        socket.messages.put_nowait(message)
    response = await one.request("first", "")
    with pytest.raises(UpstreamDisconnected):
        assert [piece async for piece in response.chunks()] == [b"the end"]
    assert await running == (1013, "later")
    with pytest.raises(UpstreamDisconnected):
        await asyncio.wait_for(one.request("second", ""), 5)
    assert socket.sent == ["first"]


async def test_a_provider_that_says_nothing_is_given_up() -> None:
    one = upstream(FakeSocket(), silence=0.01)
    running = asyncio.create_task(one.run())
    with pytest.raises(UpstreamTimeout):
        await one.request("first", "")
    running.cancel()


UPGRADE: Headers = ((b"authorization", b"Bearer own"), (b"traceparent", b"old"), (b"x-codex-window-id", b"w1"))


def test_headers_in_a_message_are_headers_of_its_request() -> None:
    metadata = b'{"ws_request_header_traceparent": "new", "ws_request_header_x_openai_internal_lite": "true", "a": 1}'
    headers = dict(request_headers(UPGRADE, {"client_metadata": metadata}))
    assert headers[b"traceparent"] == b"new"
    assert headers[b"x-openai-internal-lite"] == b"true"
    assert headers[b"x-codex-window-id"] == b"w1"


@pytest.mark.parametrize("name", ["authorization", "x_api_key", "host", "x_accordion_key", "cookie", "content_length"])
def test_a_message_sets_no_credential_and_no_header_of_the_connection(name: str) -> None:
    metadata = f'{{"ws_request_header_{name}": "other"}}'.encode()
    assert b"other" not in dict(request_headers(UPGRADE, {"client_metadata": metadata})).values()


@pytest.mark.parametrize("value", ["1", '"two\\r\\nx-lines: 1"', '"\\u00e9"', '""', "null", "{}"])
def test_a_value_that_is_no_header_is_left_out(value: str) -> None:
    metadata = f'{{"ws_request_header_trace": {value}}}'.encode()
    assert b"trace" not in dict(request_headers(UPGRADE, {"client_metadata": metadata}))
