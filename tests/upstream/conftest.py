from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from proxy.upstream.client import HttpUpstream
from proxy.upstream.transport import AiohttpTransport, Timeouts

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Build = Callable[..., HttpUpstream]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Sockets behave differently on the two loops: every test here runs on both."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _no_proxy_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def build() -> AsyncIterator[Build]:
    """Makes upstreams with given time-outs and options; closes them at the end."""
    made: list[HttpUpstream] = []

    def make(
        *,
        connect: float | None = 5.0,
        read: float | None = 5.0,
        write: float | None = 5.0,
        attempts: int = 1,
        backoff: float = 0.001,
        keepalive: float = 4.0,
        limit: int = 0,
    ) -> HttpUpstream:
        transport = AiohttpTransport(Timeouts(connect, read, write), keepalive=keepalive, limit=limit)
        made.append(HttpUpstream(transport, attempts=attempts, backoff=backoff))
        return made[-1]

    yield make
    for upstream in made:
        await upstream.close()


@pytest.fixture
def upstream(build: Build) -> HttpUpstream:
    return build()
