from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from accordion.providers.http.client import HttpUpstream
from accordion.providers.http.transport import AiohttpTransport, TransportTimeouts
from tests.outbound_network import certificate
from tests.proxy_process import held_port

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Build = Callable[..., HttpUpstream]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Sockets behave differently on the two loops: every test here runs on both."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def unused_tcp_port() -> Iterator[int]:
    """Stands for the one of pytest-asyncio, which lets its port go: another test's server could be there meanwhile."""
    with held_port() as port:
        yield port


@pytest.fixture
async def build() -> AsyncIterator[Build]:
    """Makes upstreams with given time-outs and options; closes them at the end.

    Without them nothing runs out, however busy the machine is.
    """
    made: list[HttpUpstream] = []

    def make(
        *,
        connect: float | None = 60.0,
        read: float | None = 60.0,
        write: float | None = 60.0,
        attempts: int = 1,
        backoff: float = 0.001,
        keepalive: float = 60.0,
    ) -> HttpUpstream:
        transport = AiohttpTransport(TransportTimeouts(connect, read, write), keepalive=keepalive)
        made.append(HttpUpstream(transport, attempts=attempts, backoff=backoff))
        return made[-1]

    yield make
    for upstream in made:
        await upstream.close()


@pytest.fixture
def upstream(build: Build) -> HttpUpstream:
    return build()


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that nobody knows."""
    return certificate(tmp_path_factory.mktemp("tls") / "localhost.pem")


@pytest.fixture
def server_tls(pem: Path) -> ssl.SSLContext:
    """Of a server that has it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
