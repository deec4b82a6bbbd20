"""WebSockets: the provider's own answer to an upgrade, and every message both ways where it accepts.

The messages here are none of Responses; test_response_sockets.py has those.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import Start
from tests.e2e.protocol_samples import KEY
from tests.e2e.raw_client import ask
from tests.e2e.resident_memory import warm_up
from tests.loopback import replies_bytes, replies_json
from tests.proxy_process import Proxy

SOON = 30.0
"""Seconds within which the other side must notice; it takes a hundredth of that."""
PATHS = ["/v1/responses", "/v1/realtime?model=gpt-realtime&x=%2F"]


def client(proxy: Proxy, path: str = PATHS[0], **options: object) -> connect:
    headers = {"Authorization": f"Bearer {KEY}", "OpenAI-Beta": "realtime=v1", "x-accordion-session": "ws-session"}
    options = {"max_size": None, "open_timeout": 60} | options
    return connect(f"ws://127.0.0.1:{proxy.port}{path}", proxy=None, additional_headers=headers, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def provider(proxy: Proxy, handler: object, **options: object) -> AsyncIterator[list[ServerConnection]]:
    seen: list[ServerConnection] = []

    async def handle(connection: ServerConnection) -> None:
        seen.append(connection)
        await handler(connection)  # type: ignore[operator]

    async with serve(handle, "127.0.0.1", proxy.upstream_port, max_size=None, open_timeout=60, **options):  # type: ignore[arg-type]
        yield seen


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *[(PATHS[0], status) for status in (401, 403, 429, 503)],
        *[(PATHS[1], status) for status in (400, 401, 404, 426)],
    ],
)
async def test_a_refusal_is_the_providers_own(proxy: Proxy, path: str, status: int):
    body = b'{"error": {"message": "Not here."}}'
    raw = b"HTTP/1.1 %d No\r\nContent-Type: application/json\r\nX-Request-Id: up\r\nContent-Length: %d\r\n\r\n" % (
        status,
        len(body),
    )
    async with proxy.provider(replies_bytes(raw + body, close=True)) as server:
        with pytest.raises(InvalidStatus) as caught:
            async with client(proxy, path):
                pass
    response = caught.value.response
    assert (response.status_code, response.body) == (status, body)
    assert response.headers["x-request-id"] == "up"
    assert server.requests[0].target == path
    assert server.requests[0].header("authorization") == f"Bearer {KEY}"
    assert server.requests[0].header("openai-beta") == "realtime=v1"
    assert server.requests[0].header("x-accordion-session") is None
    # That is how an upgrade is refused, and no failure of ours.
    assert "without completing handshake" not in proxy.log


@pytest.mark.parametrize("mode", ["false", "refuse"])
async def test_a_socket_of_responses_can_be_refused_and_no_other(start: Start, mode: str):
    plain = start(f"server: {{responses_websocket: {mode}, shutdown_seconds: 1}}")
    async with provider(plain, echo) as seen:
        with pytest.raises(InvalidStatus) as caught:
            async with client(plain, "/v1/responses"):
                pass
        async with client(plain, "/v1/realtime?model=gpt-realtime") as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"
    response = caught.value.response
    assert response.status_code == 426
    assert json.loads(response.body)["error"]["code"] == "websocket_refused"
    assert [each.request.path for each in seen if each.request] == ["/v1/realtime?model=gpt-realtime"]


@pytest.mark.parametrize("path", PATHS)
async def test_messages_go_both_ways_as_text_and_as_bytes(proxy: Proxy, path: str):
    async with provider(proxy, echo) as seen, client(proxy, path) as socket:
        for message in ["hello", "é \U0001f600", "", b"\x00\xff", b"", "x" * 3_000_000, b"\x01" * 3_000_000]:
            await socket.send(message)
            assert await socket.recv() == message
    assert seen[0].request is not None
    assert seen[0].request.path == path


@pytest.mark.parametrize("compression", ["deflate", None])
async def test_a_message_over_the_body_limit_closes_both_sides_and_is_not_buffered(
    start: Start, compression: str | None
):
    small = start("server: {max_body_bytes: 1MB, shutdown_seconds: 1}")
    await warm_up(small)
    closed = asyncio.Future[int | None]()

    async def hears(connection: ServerConnection) -> None:
        await connection.send(await connection.recv())
        with suppress(ConnectionClosed):
            closed.set_exception(AssertionError(f"{len(await connection.recv())} bytes came"))
        closed.set_result(connection.close_code)

    async with provider(small, hears), client(small, compression=compression) as socket:
        await socket.send("x" * 1_000_000)
        assert len(await socket.recv()) == 1_000_000
        before = small.resident
        with pytest.raises(ConnectionClosed):
            await socket.send("x" * 100_000_000)
            await socket.recv()
        assert await closed == 1009
        assert small.resident - before < 50_000_000
    assert socket.close_code in (1009, 1006)  # reset, where much more was on its way
    assert "Traceback" not in small.log


async def test_a_client_that_goes_away_closes_the_providers_socket(proxy: Proxy):
    closed = asyncio.Event()

    async def waits(connection: ServerConnection) -> None:
        await connection.wait_closed()
        closed.set()

    async with provider(proxy, waits), client(proxy) as socket:
        socket.transport.abort()
        await asyncio.wait_for(closed.wait(), SOON)


async def test_every_upgrade_is_counted_and_one_that_failed_is_a_line_with_its_id(start: Start):
    fresh = start()
    with pytest.raises(InvalidStatus) as away:
        async with client(fresh, PATHS[1]):
            pass
    async with fresh.provider(replies_json({"error": {"message": "No."}}, 401)):
        with pytest.raises(InvalidStatus):
            async with client(fresh, PATHS[1]):
                pass
    async with provider(fresh, echo), client(fresh, PATHS[1]):
        pass
    lines = [line for line in fresh.log.splitlines() if "a request failed" in line]
    assert away.value.response.headers["x-request-id"] in lines[0]
    assert ("WARNING" in lines[0], "error=upstream_unreachable status=502 upstream=openai" in lines[0]) == (True, True)
    assert ("INFO" in lines[1], "error=provider_error status=401 upstream=openai" in lines[1]) == (True, True)
    page = (await ask(fresh, "GET", "/metrics")).body.decode()
    for status in ("5xx", "4xx", "1xx"):
        assert f'accordion_requests_total{{agent="main",model="",status="{status}",upstream="openai"}} 1.0' in page
    assert len(lines) == 2


async def test_a_model_of_ones_own_is_spoken_with_where_it_is(start: Start):
    proxy = start(
        "proxy_keys: [{id: one, key: '${OWN}'}]\nmodel_list:\n- model_name: voice\n"
        "  litellm_params: {model: openai/gpt-realtime, api_base: '{upstream}/in', api_key: k}\n",
        OWN="accordion-own-key-1234",
    )
    async with provider(proxy, echo) as seen:
        headers = {"Authorization": "Bearer accordion-own-key-1234"}
        url = f"ws://127.0.0.1:{proxy.port}/v1/realtime?model=voice"
        async with connect(url, proxy=None, additional_headers=headers, open_timeout=60) as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"
    assert seen[0].request is not None
    assert seen[0].request.path == "/in/realtime?model=gpt-realtime"
    assert seen[0].request.headers["authorization"] == "Bearer k"


async def test_an_upgrade_of_a_path_of_our_own_is_refused(proxy: Proxy):
    with pytest.raises(InvalidStatus) as caught:
        async with client(proxy, "/accordion/sessions"):
            pass
    assert caught.value.response.status_code in (400, 403, 404, 426)
