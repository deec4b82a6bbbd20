"""The order to stop: running replies may go on for a while; then they end as errors, in the client's own words."""

import asyncio
import contextlib
import os
import re
import signal

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.e2e.proxy_api import get_page, get_session
from tests.e2e.raw_client import Reply, connected
from tests.loopback import Answer, Recorded, Script
from tests.proxy_process import Proxy

ONE_SECOND = "server: {shutdown_seconds: 1}\n"


def begins(events: list[bytes], go_on: asyncio.Event | None = None) -> Script:
    """A provider whose stream stops after its first event, until it may go on."""

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        await answer.chunk(events[0])
        if go_on is None:
            await answer.until_gone()
            return
        await go_on.wait()
        await answer.chunk(b"".join(events[1:]))
        await answer.last_chunk()

    return script


async def silent(request: Recorded, answer: Answer) -> None:
    await answer.until_gone()


async def under_way(proxy: Proxy, script: Script, meanwhile: asyncio.Event | None = None) -> Reply:
    """The reply to a stream during which the proxy is told to stop."""
    async with proxy.provider(script) as provider, connected(proxy) as client:
        await client.ask("POST", CHAT.path, [], CHAT.body("Go on.", stream=True))
        if script is silent:
            await provider.until(lambda: provider.answers)
            stopping = asyncio.create_task(asyncio.to_thread(proxy.stop))
            reply = await client.reply()
        else:
            reply = await client.head()
            pieces = client.pieces(reply)
            reply.body = await anext(pieces)
            stopping = asyncio.create_task(asyncio.to_thread(proxy.stop))
            if meanwhile is not None:
                await proxy.says("Shutting down")
                meanwhile.set()
            async for piece in pieces:
                reply.body += piece
        await stopping
    return reply


async def test_a_stream_that_outlasts_the_grace_ends_in_an_error_event(start: Start):
    events = CHAT.events()
    reply = await under_way(start(ONE_SECOND), begins(events))
    assert reply.body.startswith(events[0])
    assert b"proxy_stopping" in reply.body
    assert reply.body.endswith(b"\n\n")
    assert not reply.ended


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_request_that_was_not_answered_yet_is_told_so(start: Start, workers: str):
    reply = await under_way(start(ONE_SECOND, "--workers", workers), silent)
    assert (reply.status, reply.ended) == (503, True)
    assert CHAT.error_of(reply.body)["code"] == "proxy_stopping"


async def test_a_stream_that_ends_within_the_grace_is_whole(start: Start):
    events, go_on = CHAT.events("one two"), asyncio.Event()
    proxy = start("server: {shutdown_seconds: 60}\n", "--workers", "2")
    reply = await under_way(proxy, begins(events, go_on), go_on)
    assert (reply.body, reply.ended) == (b"".join(events), True)


async def test_a_request_that_is_not_there_whole_is_told_so(start: Start):
    proxy, body = start(ONE_SECOND), CHAT.body("Half.")
    async with connected(proxy) as client:
        await client.send(client.head_of("POST", CHAT.path, [], len(body)) + body[:-5])
        await asyncio.sleep(0.1)
        stopping = asyncio.create_task(asyncio.to_thread(proxy.stop))
        reply = await client.reply()
        await stopping
    assert (reply.status, CHAT.error_of(reply.body)["code"]) == (503, "proxy_stopping")


@pytest.mark.parametrize(
    ("workers", "first", "code"),
    [("1", signal.SIGINT, 128 + signal.SIGINT), ("1", signal.SIGTERM, -signal.SIGTERM), ("2", signal.SIGINT, 0)],
)
async def test_a_second_signal_ends_running_requests_and_writes_all_that_is_pending(
    start: Start, workers: str, first: signal.Signals, code: int
):
    """At a terminal workers get their Ctrl-C too, and the order of the supervisor besides."""
    proxy = start("server: {shutdown_seconds: 60}\n", "--workers", workers, ACCORDION_STORE="sqlite:///kept.db")
    await proxy.says("startup complete", int(workers))
    group = {proxy.pid, *map(int, re.findall(r"Started server process \[(\d+)\]", proxy.log))}
    async with proxy.provider(silent) as provider, connected(proxy) as client:
        await client.ask("POST", CHAT.path, [], CHAT.body("Go on."))
        await provider.until(lambda: provider.answers)
        waiting = asyncio.create_task(client.reply())
        for pid in group:
            os.kill(pid, first)
        while "Waiting for connections to close" not in proxy.log or ("Terminated" in proxy.log) != (workers == "2"):
            await asyncio.sleep(0.05)
        for pid in group:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        reply = await waiting
        assert await asyncio.to_thread(proxy.ended) == code
    assert (reply.status, "Traceback" in proxy.log) == (503, False)
    proxy.start()
    [listed] = (await get_page(proxy, "/accordion/sessions")).json()["sessions"]
    assert [entry["error"] for entry in (await get_session(proxy, listed["id"]))["exchanges"]] == ["proxy_stopping"]
