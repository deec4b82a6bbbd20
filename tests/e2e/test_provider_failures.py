"""A provider that goes away, refuses or dawdles: the client is told in its own words, and never takes it for an end."""

import asyncio
import json

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, EACH, KEY, MESSAGES, ProtocolSamples
from tests.e2e.raw_client import post
from tests.loopback import Answer, Recorded, Script
from tests.proxy_process import Proxy

SOON = 30.0
"""Seconds within which the provider must notice that nobody waits for it; it takes a hundredth of that."""


@pytest.fixture(scope="module")
def impatient(start: Start) -> Proxy:
    """A proxy that does not wait for long, but long enough for what is done at once on a busy machine."""
    return start("timeouts: {connect_seconds: 1.5, read_seconds: 2}\nserver: {shutdown_seconds: 1}\n")


def goes_away(protocol: ProtocolSamples, how: str) -> Script:
    """A provider that stops in the middle."""
    events, whole = protocol.events("one two three"), json.dumps(protocol.json()).encode()
    stream = ("Content-Type", "text/event-stream")

    async def script(request: Recorded, answer: Answer) -> None:
        if how == "body with a length":
            await answer.head(200, [("Content-Type", "application/json")], length=len(whole))
            await answer.send(whole[:40])
        elif how == "chunked body":
            await answer.head(200, [("Content-Type", "application/json")], chunked=True)
            await answer.chunk(whole[:40])
        elif how == "between events":
            await answer.head(200, [stream], chunked=True)
            await answer.chunk(events[0] + events[1])
        elif how == "stream with a length":
            await answer.head(200, [stream], length=100_000)
            await answer.send(events[0] + events[1])
        elif how == "chunk half sent":
            await answer.head(200, [stream], chunked=True)
            await answer.send(b"fff\r\n" + events[0])
        await answer.close()

    return script


@EACH
async def test_a_stream_that_stops_between_events_ends_in_an_error_of_the_protocol(
    proxy: Proxy, protocol: ProtocolSamples
):
    events = protocol.events("one two three")
    async with proxy.provider(goes_away(protocol, "between events")):
        reply = await post(proxy, protocol.target(stream=True), protocol.body("Cut.", stream=True))
    assert reply.body.startswith(events[0] + events[1])
    last = reply.body[len(events[0] + events[1]) :]
    assert last.endswith(b"\n\n")
    data = json.loads(last.partition(b"data: ")[2])
    assert protocol.error_of(json.dumps(data).encode())
    assert "[DONE]" not in reply.body.decode()
    assert not reply.ended


@pytest.mark.parametrize("how", ["body with a length", "chunked body", "stream with a length", "chunk half sent"])
async def test_what_can_take_no_error_just_ends_uncleanly(proxy: Proxy, how: str):
    async with proxy.provider(goes_away(CHAT, how)):
        reply = await post(proxy, CHAT.path, CHAT.body("Cut short.", stream="stream" in how))
    assert reply.status == 200
    assert not reply.ended


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


def request_id_header(protocol: ProtocolSamples) -> str:
    return "request-id" if protocol is MESSAGES else "x-request-id"


@EACH
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_connection_is_a_502_in_the_protocols_shape(
    proxy: Proxy, protocol: ProtocolSamples, stream: bool
):
    reply = await post(
        proxy,
        protocol.target(stream=stream),
        protocol.body("Anyone?", stream=stream),
        ("Authorization", f"Bearer {KEY}"),
    )
    error = protocol.error_of(reply.body)
    assert (reply.status, reply.header("content-type")) == (502, "application/json")
    assert (reply.header(request_id_header(protocol)) or "").startswith("req_")
    assert (reply.header(request_id_header(protocol)) or "") in reply.body.decode()
    assert str(proxy.upstream_port) in error["message"]
    assert KEY not in str(reply)


@EACH
async def test_a_provider_that_never_answers_is_a_504(impatient: Proxy, protocol: ProtocolSamples):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.until_gone()

    async with impatient.provider(script) as provider:
        reply = await post(impatient, protocol.path, protocol.body("Hello?"))
        await provider.until(lambda: provider.requests)
        await asyncio.wait_for(provider.all_gone(), SOON)
    error = protocol.error_of(reply.body)
    assert reply.status == 504
    assert error.get("type", error.get("status")) in ("timeout_error", "server_error", "DEADLINE_EXCEEDED")
    assert len(provider.requests) == 1, "it may be working on it: what was sent must not be sent again"
