"""What a client costs that sends small requests to the provider: Accordion's, aiohttp's session, and pyreqwest.

pyreqwest is written in Rust (ADR 38). All run in one process, the loopback provider in another.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

import aiohttp

from accordion.model.ports import UpstreamRequest
from accordion.providers.http.client import HttpUpstream
from accordion.providers.http.transport import AiohttpTransport
from bench.conversations import CHAT, PATHS, small_body
from bench.texts import Texts

CONCURRENCY: Final = (1, 16, 64)
HEADERS: Final = (
    ("authorization", "Bearer sk-bench"),
    ("content-type", "application/json"),
    ("user-agent", "OpenAI/Python"),
    ("accept", "application/json"),
)
Send = Callable[[bytes], Awaitable[None]]


async def measure(port: int, rounds: int, count: int) -> Mapping[str, list[float]]:
    """Returns each client's µs of CPU a request for each concurrency: the least of the rounds, in which clients take
    turns."""
    url = f"http://127.0.0.1:{port}{PATHS[CHAT]}"
    upstream = HttpUpstream(AiohttpTransport())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as session:
        clients = {"Accordion's transport": _sender(upstream, url), "aiohttp's session": _session_sender(session, url)}
        if find_spec("pyreqwest") is not None:
            clients["pyreqwest"] = _rust_sender(url)
        texts, least = Texts(3), defaultdict[str, list[float]](lambda: [float("inf")] * len(CONCURRENCY))
        bodies = [small_body(texts) for _ in range(count)]
        for _ in range(rounds):
            for at, concurrency in enumerate(CONCURRENCY):
                for name, send in clients.items():
                    least[name][at] = min(least[name][at], await _measure_once(send, bodies, concurrency))
        await upstream.close()
    return least


async def _measure_once(send: Send, bodies: list[bytes], concurrency: int) -> float:
    await asyncio.gather(*map(send, bodies[:concurrency]))
    waiting = iter(bodies)

    async def work() -> None:
        for body in waiting:
            await send(body)

    before = time.process_time()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return 1e6 * (time.process_time() - before) / len(bodies)


def _sender(upstream: HttpUpstream, url: str) -> Send:
    headers = tuple((name.encode(), value.encode()) for name, value in HEADERS)

    async def send(body: bytes) -> None:
        response = await upstream.send(UpstreamRequest("POST", url, headers, body))
        async for _ in response.chunks():
            pass
        await response.close()

    return send


def _session_sender(session: aiohttp.ClientSession, url: str) -> Send:
    async def send(body: bytes) -> None:
        async with session.post(url, data=body, headers=HEADERS) as response:
            async for _ in response.content.iter_any():
                pass

    return send


def _rust_sender(url: str) -> Send:
    from pyreqwest.client import ClientBuilder  # not a dependency of the project

    client: Any = ClientBuilder().http1_only().no_proxy().build()

    async def send(body: bytes) -> None:
        request = client.post(url).headers(list(HEADERS)).body_bytes(body).build_streamed()
        async with request as response:
            list(response.headers.items())
            while (piece := await response.body_reader.read_chunk()) is not None:
                bytes(piece)

    return send
