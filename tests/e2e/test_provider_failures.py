"""A provider that goes away, refuses or dawdles: the client is told in its own words, and never takes it for an end."""

import asyncio
import json

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY
from tests.e2e.raw_client import post
from tests.loopback import Answer, Recorded, Script
from tests.proxy_process import Proxy

SOON = 30.0
"""Seconds within which the provider must notice that nobody waits for it; it takes a hundredth of that."""


def goes_away(how: str) -> Script:
    """A provider that stops in the middle."""
    events, whole = CHAT.events("one two three"), json.dumps(CHAT.json()).encode()
    stream = ("Content-Type", "text/event-stream")

    async def script(request: Recorded, answer: Answer) -> None:
        if how == "body with a length":
            await answer.head(200, [("Content-Type", "application/json")], length=len(whole))
            await answer.send(whole[:40])
        elif how == "chunked body":
            await answer.head(200, [("Content-Type", "application/json")], chunked=True)
            await answer.chunk(whole[:40])
        elif how == "stream between events":
            await answer.head(200, [stream], chunked=True)
            await answer.chunk(events[0] + events[1])
        elif how == "stream with a length":
            await answer.head(200, [stream], length=100_000)
            await answer.send(events[0] + events[1])
        elif how == "stream within a chunk":
            await answer.head(200, [stream], chunked=True)
            await answer.send(b"fff\r\n" + events[0])
        await answer.close()

    return script


@pytest.mark.parametrize(
    "how",
    [
        "body with a length",
        "chunked body",
        "stream between events",
        "stream with a length",
        "stream within a chunk",
    ],
)
async def test_a_reply_that_broke_off_ends_uncleanly_with_an_error_if_one_can_stand(proxy: Proxy, how: str):
    async with proxy.provider(goes_away(how)):
        reply = await post(proxy, CHAT.path, CHAT.body("Cut short.", stream="stream" in how))
    assert (reply.status, reply.ended) == (200, False)
    assert (b"Connection lost" in reply.body) is (how in ("stream between events", "stream within a chunk"))
    assert b"[DONE]" not in reply.body


@pytest.mark.parametrize(("rest", "whole"), [(b"data: [DO", False), (b"data: [DONE]\n", True), (b"", True)], ids=str)
async def test_an_unread_stream_that_broke_within_a_line_ends_uncleanly(proxy: Proxy, rest: bytes, whole: bool):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream"), ("Connection", "close")])
        await answer.send(b"data: {}\n\n" + rest)
        await answer.close()

    async with proxy.provider(script):
        reply = await post(proxy, "/v1/completions", b"{}")
    assert (reply.body, reply.ended) == (b"data: {}\n\n" + rest, whole)


# -- errors of ours --------------------------------------------------------------------------------------------------


async def test_a_refused_connection_is_a_502_that_names_the_address_and_no_key(proxy: Proxy):
    reply = await post(proxy, CHAT.path, CHAT.body("Anyone?"), ("Authorization", f"Bearer {KEY}"))
    assert (reply.status, reply.header("content-type")) == (502, "application/json")
    assert (reply.header("x-request-id") or "").startswith("req_")
    assert str(proxy.upstream_port) in CHAT.error_of(reply.body)["message"]
    assert KEY not in str(reply)


async def test_a_provider_that_never_answers_is_a_504(start: Start):
    # Long enough for what is done at once on a busy machine.
    impatient = start("timeouts: {connect_seconds: 1.5, read_seconds: 2}\nserver: {shutdown_seconds: 1}\n")

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.until_gone()

    async with impatient.provider(script) as provider:
        reply = await post(impatient, CHAT.path, CHAT.body("Hello?"))
        await provider.until(lambda: provider.requests)
        await asyncio.wait_for(provider.all_gone(), SOON)
    assert (reply.status, CHAT.error_of(reply.body)["code"]) == (504, "upstream_timeout")
    assert len(provider.requests) == 1, "it may be working on it: what was sent must not be sent again"
