"""A slow side makes the other one wait; the memory in between does not grow."""

import asyncio
import os

import pytest

from tests.e2e.protocol_samples import CHAT
from tests.e2e.raw_client import connected
from tests.e2e.resident_memory import warm_up
from tests.loopback import Answer, Recorded, wait_until_still
from tests.proxy_process import Proxy

pytestmark = pytest.mark.rest  # each test starts processes, or waits for real time


LARGE = {"text/event-stream": 200 << 20, "application/octet-stream": 100 << 20, "endless event": 60 << 20}
PIECE = 1 << 16
ALLOWED = 20 << 20
IN_SOCKETS = 40 << 20
"""What the kernel may hold of a loopback connection, four buffers in all."""


@pytest.fixture
async def before(proxy: Proxy) -> int:
    """What the proxy holds before the test."""
    return await warm_up(proxy)


@pytest.mark.parametrize("kind", LARGE)
async def test_a_client_that_does_not_read_makes_the_provider_wait(proxy: Proxy, before: int, kind: str):
    piece = b"x" * PIECE if kind == "endless event" else (b"data: " + b"x" * 1016 + b"\n\n") * (PIECE >> 10)
    large = LARGE[kind]
    media = kind if "/" in kind else "text/event-stream"

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", media)], length=large)
        for _ in range(large // PIECE):
            await answer.send(piece)
            sent[0] += PIECE

    sent = [0]
    async with proxy.provider(script) as provider, connected(proxy, window=PIECE) as client:
        await client.ask("POST", CHAT.path, [], CHAT.body(f"Everything as {kind}.", stream=True))
        reply = await client.head()
        await provider.until(lambda: provider.answers[0].blocked.is_set())
        await wait_until_still(lambda: sent[0])
        assert sent[0] < IN_SOCKETS
        assert proxy.resident - before < ALLOWED
        size = 0
        async for part in client.pieces(reply):
            size += len(part)
        assert size == large, "it goes on where it stopped"
        assert reply.ended
    assert proxy.resident - before < ALLOWED


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
async def test_a_provider_that_does_not_read_makes_the_client_wait(proxy: Proxy, before: int, chunked: bool):
    go_on = asyncio.Event()

    async def script(request: Recorded, answer: Answer) -> None:
        await go_on.wait()
        await answer.body()
        await answer.head(200, length=2)
        await answer.send(b"ok")

    async def upload() -> None:
        for _ in range(size // len(piece)):
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            sent[0] += len(piece)
        if chunked:
            await client.send(b"0\r\n\r\n")

    sent, piece, size = [0], os.urandom(PIECE), 60 << 20
    async with proxy.provider(script, eager=True) as provider, connected(proxy) as client:
        framing = [("Transfer-Encoding", "chunked")] if chunked else []
        await client.send(client.head_of("POST", "/v1/files", framing, None if chunked else size))
        uploading = asyncio.create_task(upload())
        await wait_until_still(lambda: sent[0])
        assert not uploading.done()
        assert 0 < sent[0] < IN_SOCKETS
        assert proxy.resident - before < ALLOWED
        go_on.set()
        assert (await client.reply()).body == b"ok"
        await uploading
    assert len(provider.requests[0].body) == size
