"""An upgrade while the provider makes up its mind: the client may leave, or speak, and the server may stop."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable

import pytest
from starlette.types import Message, Scope

from accordion.http.websocket_relay import OpenSocket, UpstreamSocket, WebSocketRelay
from accordion.model.http import Inbound
from accordion.model.ports import Headers, UpstreamResponse
from tests.fakes import FakeReply
from tests.pipeline_setup import PipelineSetup

SCOPE: Scope = {"type": "websocket", "subprotocols": []}
ASKED = Inbound("GET", "/v1/responses", "", (), b"", "req-1")
CONNECT: Message = {"type": "websocket.connect"}
LEAVES: Message = {"type": "websocket.disconnect", "code": 1006}


class Closed(Exception):
    """A socket of these tests has closed."""

    code, reason = 1000, ""


class Provider:
    """An open socket that notes what it is sent, and closes once it was sent something."""

    headers: Headers = ()
    subprotocol = None

    def __init__(self) -> None:
        self.sent: list[str | bytes] = []
        self.codes: list[int] = []
        self._heard = asyncio.Event()

    async def receive(self) -> str | bytes:
        await self._heard.wait()
        raise Closed

    async def send(self, message: str | bytes) -> None:
        self.sent.append(message)
        self._heard.set()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.codes.append(code)


class Thinking:
    """A provider that does not answer an upgrade until it is let; notes that nobody waits for it any more."""

    def __init__(self, answer: UpstreamSocket | UpstreamResponse) -> None:
        self.asked, self.go_on, self.ended = asyncio.Event(), asyncio.Event(), False
        self._answer = answer

    async def __call__(self, *_: object) -> UpstreamSocket | UpstreamResponse:
        self.asked.set()
        try:
            await self.go_on.wait()
        finally:
            self.ended = True
        return self._answer


class Wire:
    """The client's side: what it does when, and what it was sent."""

    def __init__(self, *said: Message) -> None:
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        for message in (CONNECT, *said):
            self.said.put_nowait(message)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def serving(self, open_socket: OpenSocket) -> Awaitable[None]:
        upgrade = PipelineSetup().upgrade
        return WebSocketRelay(open_socket, Closed).serve(lambda: upgrade, ASKED, SCOPE, self.said.get, self.send)


async def test_a_client_that_leaves_during_the_handshake_ends_it_at_once() -> None:
    thinking, wire = Thinking(Provider()), Wire(LEAVES)
    await wire.serving(thinking)
    assert thinking.ended
    assert wire.sent == []


async def test_a_socket_that_opens_as_its_client_leaves_is_closed_too() -> None:
    socket = Provider()

    async def at_once(*_: object) -> UpstreamSocket:
        return socket

    await Wire(LEAVES).serving(at_once)
    assert socket.codes
    assert socket.sent == []


async def test_a_client_that_leaves_while_a_refusal_arrives_ends_that() -> None:
    class Slow(FakeReply):
        async def chunks(self) -> AsyncGenerator[bytes, None]:
            yield b"{"
            await asyncio.Event().wait()

    reply, wire = Slow(status=400), Wire(LEAVES)

    async def refuses(*_: object) -> UpstreamResponse:
        return reply

    await wire.serving(refuses)
    assert reply.closed
    assert wire.sent == []


async def test_a_socket_that_is_relayed_unread_is_one_warning_a_client(caplog: pytest.LogCaptureFixture) -> None:
    async def at_once(*_: object) -> UpstreamSocket:
        return Provider()

    upgrade = PipelineSetup(config="server: {responses_websocket: relay}").upgrade
    codex = ((b"user-agent", b"codex_exec/1"), (b"session-id", b"session-of-codex"))
    other = ((b"user-agent", b"codex_exec/1"), (b"x-accordion-session", b"malformed!"))
    for path, headers in (("/v1/responses", codex), ("/v1/responses", other), ("/v1/realtime", ())):
        wire = Wire({"type": "websocket.receive", "text": "hello"})
        asked = Inbound("GET", path, "", headers, b"", "req-1")
        await WebSocketRelay(at_once, Closed).serve(lambda: upgrade, asked, SCOPE, wire.said.get, wire.send)
        assert wire.sent[0]["type"] == "websocket.accept"
    (warning,) = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert warning.startswith("session session-of-codex (model not read): codex uses a WebSocket")


@pytest.mark.parametrize("said", [{"text": "hello"}, {"bytes": b"hello"}])
async def test_messages_during_the_handshake_reach_the_provider(said: dict[str, str | bytes]) -> None:
    socket = Provider()
    thinking, wire = Thinking(socket), Wire({"type": "websocket.receive", **said})
    serving = asyncio.ensure_future(wire.serving(thinking))
    await thinking.asked.wait()
    thinking.go_on.set()
    await serving
    assert socket.sent == list(said.values())
    assert [message["type"] for message in wire.sent] == ["websocket.accept", "websocket.close"]


async def test_a_server_that_stops_during_the_handshake_ends_it() -> None:
    thinking = Thinking(Provider())
    serving = asyncio.ensure_future(Wire().serving(thinking))
    await thinking.asked.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert thinking.ended


async def test_a_relayed_socket_whose_key_is_revoked_is_closed_at_the_next_message() -> None:
    setup = PipelineSetup(admin_key="acc-admin-7Hk2Qp4RtZ")
    record, key = await setup.created_keys.create("research")
    await setup.created_keys.poll()
    socket = Provider()

    async def at_once(*_: object) -> UpstreamSocket:
        return socket

    wire = Wire()
    headers = ((b"authorization", b"Bearer sk-provider"), (b"x-accordion-key", key.encode()))
    asked = Inbound("GET", "/v1/realtime", "", headers, b"", "req-1")
    relay = WebSocketRelay(at_once, Closed)
    serving = asyncio.ensure_future(relay.serve(lambda: setup.upgrade, asked, SCOPE, wire.said.get, wire.send))
    while not wire.sent:
        await asyncio.sleep(0)
    await setup.created_keys.revoke(record.id)
    wire.said.put_nowait({"type": "websocket.receive", "text": "hello"})
    await serving
    assert socket.sent == []
    assert socket.codes
    assert [message["type"] for message in wire.sent] == ["websocket.accept", "websocket.close"]
    assert wire.sent[1]["code"] == 1008
