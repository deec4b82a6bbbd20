"""The way to providers through what the environment names: an HTTP proxy, and whom to trust."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.e2e.raw_client import post
from tests.loopback import Loopback
from tests.outbound_network import certificate, tunnel
from tests.proxy_process import Proxy


@dataclass
class Out:
    """A provider with a certificate that nobody knows, and an HTTP proxy that opens tunnels to it."""

    server: Loopback
    relay: Loopback
    known: str
    """The file with its certificate."""

    def run(self, start: Start, **environ: str) -> Proxy:
        """A proxy that is told of them."""
        return start(ACCORDION_OPENAI_BASE_URL=f"{self.server.url}/v1", **environ)


@asynccontextmanager
async def out(folder: Path) -> AsyncIterator[Out]:
    known, context = certificate(folder / "localhost.pem"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(known)
    async with Loopback(CHAT.answers(), tls=context) as server, Loopback(tunnel) as relay:
        yield Out(server, relay, str(known))


async def test_a_provider_is_asked_through_the_proxy_that_the_environment_names(start: Start, tmp_path: Path):
    async with out(tmp_path) as way:
        proxy = way.run(start, HTTPS_PROXY=way.relay.url, SSL_CERT_FILE=way.known)
        reply = await post(proxy, CHAT.path, CHAT.body("Hello"))
        assert reply.status == 200, reply.body
        assert [request.target for request in way.relay.requests] == [way.server.host]
        assert [request.target for request in way.server.requests] == [CHAT.path]


@pytest.mark.parametrize("direct", [False, True])
async def test_a_web_socket_takes_the_same_way(start: Start, tmp_path: Path, direct: bool):
    async def echo(connection: object) -> None:
        async for message in connection:  # type: ignore[attr-defined]
            await connection.send(message)  # type: ignore[attr-defined]

    async with out(tmp_path) as way, serve(echo, "127.0.0.1", 0, ssl=way.server.tls) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        environ = {"HTTPS_PROXY": way.relay.url, "SSL_CERT_FILE": way.known}
        environ |= {"NO_PROXY": "localhost"} if direct else {}
        proxy = start(ACCORDION_OPENAI_BASE_URL=f"https://localhost:{port}/v1", **environ)
        url = f"ws://127.0.0.1:{proxy.port}/v1/realtime?model=gpt-realtime"
        async with connect(url, proxy=None, open_timeout=60) as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"
        assert [request.target for request in way.relay.requests] == ([] if direct else [f"localhost:{port}"])
