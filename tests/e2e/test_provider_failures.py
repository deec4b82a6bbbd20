"""A provider that goes away, refuses or dawdles: the client is told in its own words, and never takes it for an end."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import anthropic
import httpx
import httpx2
import openai
import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, EACH, KEY, MESSAGES, RESPONSES, ProtocolSamples
from tests.e2e.proxy_api import get_page, sum_metric
from tests.e2e.raw_client import ask, connected, post
from tests.loopback import Answer, Loopback, Recorded, Script, replies_json
from tests.proxy_process import Proxy

Call = Callable[[Proxy, bool], Awaitable[object]]
SOON = 30.0
"""Seconds within which the provider must notice that nobody waits for it; it takes a hundredth of that."""


@pytest.fixture(scope="module")
def impatient(start: Start) -> Proxy:
    """A proxy that does not wait for long, but long enough for what is done at once on a busy machine."""
    return start("timeouts: {connect_seconds: 1.5, read_seconds: 2}\nserver: {shutdown_seconds: 1}\n")


async def test_a_provider_that_reads_nothing_of_a_request_times_out(
    impatient: Proxy,
):
    async def deaf(request: Recorded, answer: Answer) -> None:
        await asyncio.Event().wait()

    async with impatient.provider(deaf, eager=True):
        reply = await ask(impatient, "POST", "/v1/files", [], bytes(30_000_000))
    assert reply.status == 504
    assert "nothing of the request was taken for 2 s" in CHAT.error_of(reply.body)["message"]


# -- what the SDKs raise ---------------------------------------------------------------------------------------------


async def chat(proxy: Proxy, stream: bool) -> object:
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        ask = [{"role": "user", "content": "Hi."}]
        done = await client.chat.completions.create(model=CHAT.model, messages=ask, stream=stream)
        return [event async for event in done] if stream else done


async def responses(proxy: Proxy, stream: bool) -> object:
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        done = await client.responses.create(model=RESPONSES.model, input="Hi.", stream=stream)
        return [event async for event in done] if stream else done


async def messages(proxy: Proxy, stream: bool) -> object:
    async with anthropic.AsyncAnthropic(base_url=proxy.url, api_key=KEY, max_retries=0, timeout=60) as client:
        ask = [{"role": "user", "content": "Hi."}]
        done = await client.messages.create(model=MESSAGES.model, messages=ask, max_tokens=5, stream=stream)
        return [event async for event in done] if stream else done


SDKS = pytest.mark.parametrize(("call", "protocol"), [(chat, CHAT), (responses, RESPONSES), (messages, MESSAGES)])
# On a body that ends too soon both SDKs let what their HTTP library raises go through.
OWN = (openai.APIError, anthropic.APIError)
RAISED = (*OWN, httpx.TransportError, httpx2.TransportError)


def goes_away(protocol: ProtocolSamples, how: str) -> Script:
    """A provider that stops in the middle."""
    events, whole = protocol.events("one two three"), json.dumps(protocol.json()).encode()
    stream = ("Content-Type", "text/event-stream")

    async def script(request: Recorded, answer: Answer) -> None:
        if how == "mid-head":
            await answer.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
        elif how == "body with a length":
            await answer.head(200, [("Content-Type", "application/json")], length=len(whole))
            await answer.send(whole[:40])
        elif how == "chunked body":
            await answer.head(200, [("Content-Type", "application/json")], chunked=True)
            await answer.chunk(whole[:40])
        elif how == "between events":
            await answer.head(200, [stream], chunked=True)
            await answer.chunk(events[0] + events[1])
        elif how == "within an event":
            await answer.head(200, [stream], chunked=True)
            await answer.chunk(events[0] + events[1][:-5])
        elif how == "stream with a length":
            await answer.head(200, [stream], length=100_000)
            await answer.send(events[0] + events[1])
        elif how == "stream until close":
            await answer.head(200, [stream])
            await answer.send(events[0] + events[1])
        elif how == "stream of nothing until close":
            await answer.head(200, [stream])
        elif how == "chunk half sent":
            await answer.head(200, [stream], chunked=True)
            await answer.send(b"fff\r\n" + events[0])
        await answer.close()

    return script


WHOLE = ["before the head", "mid-head", "body with a length", "chunked body"]
STREAMED = [
    "before the head",
    "between events",
    "within an event",
    "stream with a length",
    "stream until close",
    "stream of nothing until close",
    "chunk half sent",
]


@SDKS
@pytest.mark.parametrize(("how", "stream"), [(h, False) for h in WHOLE] + [(h, True) for h in STREAMED])
async def test_the_sdk_raises(proxy: Proxy, call: Call, protocol: ProtocolSamples, how: str, stream: bool):
    async with proxy.provider(goes_away(protocol, how)) as provider:
        with pytest.raises(OWN if how in ("before the head", "between events", "within an event") else RAISED):
            await call(proxy, stream)
    assert len(provider.requests) == 1


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


@EACH
async def test_a_stream_that_stops_within_an_event_passes_on_whole_events_only(proxy: Proxy, protocol: ProtocolSamples):
    """The half event is held back, so that the error that follows can be read."""
    events = protocol.events("one two three")
    async with proxy.provider(goes_away(protocol, "within an event")):
        reply = await post(proxy, protocol.target(stream=True), protocol.body("Cut within.", stream=True))
    assert reply.body.startswith(events[0])
    assert events[1][:-5] not in reply.body
    assert b'"error"' in reply.body[len(events[0]) :]
    assert not reply.ended


@pytest.mark.parametrize("how", ["body with a length", "chunked body", "stream with a length", "chunk half sent"])
async def test_what_can_take_no_error_just_ends_uncleanly(proxy: Proxy, how: str):
    async with proxy.provider(goes_away(CHAT, how)):
        reply = await post(proxy, CHAT.path, CHAT.body("Cut short.", stream="stream" in how))
    assert reply.status == 200
    assert not reply.ended


async def test_an_encoded_stream_that_stops_just_ends_uncleanly(proxy: Proxy):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")], chunked=True)
        await answer.chunk(b"\x1f\x8b\x08\x00")
        await answer.cut()

    async with proxy.provider(script):
        reply = await post(proxy, CHAT.path, CHAT.body("Cut gzip.", stream=True))
    assert (reply.body in (b"", b"\x1f\x8b\x08\x00"), reply.ended) == (True, False)


async def test_a_file_that_stops_just_ends_uncleanly(proxy: Proxy):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, chunked=True)
        await answer.chunk(b"abc")
        await answer.close()

    async with proxy.provider(script):
        reply = await ask(proxy, "GET", "/v1/files/f/content")
    assert (reply.status, reply.ended) == (200, False)


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
async def test_a_connection_that_is_closed_before_the_head_is_a_502(proxy: Proxy, protocol: ProtocolSamples):
    async with proxy.provider(goes_away(protocol, "before the head")) as provider:
        reply = await post(proxy, protocol.path, protocol.body("Closed."))
    assert reply.status == 502
    assert protocol.error_of(reply.body)
    assert len(provider.requests) == 1, "what was sent must not be sent again"


async def test_an_answer_that_is_no_http_is_a_502(proxy: Proxy):
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await answer.close()

    async with proxy.provider(script):
        reply = await post(proxy, CHAT.path, CHAT.body("HTTP?"))
    assert (reply.status, CHAT.error_of(reply.body)["code"]) == (502, "upstream_disconnected")


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


@EACH
async def test_a_stream_that_falls_silent_ends_in_an_error(impatient: Proxy, protocol: ProtocolSamples):
    first = protocol.events()[0]

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        await answer.chunk(first)
        await answer.until_gone()

    async with impatient.provider(script) as provider:
        reply = await post(impatient, protocol.target(stream=True), protocol.body("Silence.", stream=True))
        await asyncio.wait_for(provider.all_gone(), SOON)
    assert reply.body.startswith(first)
    assert b'"error"' in reply.body[len(first) :]
    assert not reply.ended


async def test_a_connection_that_is_not_taken_in_time_is_a_504_or_502(impatient: Proxy):
    """The provider's queue of connections is full, so that nobody answers the handshake."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", impatient.upstream_port))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            waiting.append(filler)
        reply = await post(impatient, CHAT.path, CHAT.body("Room?"))
        for filler in waiting:
            filler.close()
    assert reply.status in (502, 504)
    assert "1.5 s" in CHAT.error_of(reply.body)["message"]


async def test_a_connection_that_is_not_made_is_tried_again_and_nothing_is_sent_twice(start: Start):
    """The provider comes up between the first try and the second."""
    proxy = start("retries: {connect_attempts: 10}\nserver: {shutdown_seconds: 1}\n")
    asked = asyncio.create_task(post(proxy, CHAT.path, CHAT.body("Again.")))
    await asyncio.sleep(0.15)
    assert not asked.done()
    async with proxy.provider(CHAT.answers()) as provider:
        reply = await asked
    assert reply.status == 200
    assert len(provider.requests) == 1


@pytest.mark.parametrize(("method", "times"), [("POST", 1), ("GET", 1)])
async def test_a_first_connection_that_breaks_is_not_tried_again(proxy: Proxy, method: str, times: int):
    async with proxy.provider(goes_away(CHAT, "before the head")) as provider:
        reply = await ask(proxy, method, "/v1/embeddings", [], b"{}" if method == "POST" else None)
    assert reply.status == 502
    assert provider.connections == times


async def test_a_kept_connection_that_died_meanwhile_costs_nobody_a_request(proxy: Proxy):
    async with proxy.provider(CHAT.answers()):
        assert (await post(proxy, CHAT.path, CHAT.body("One."))).status == 200
    async with proxy.provider(CHAT.answers()):
        assert (await post(proxy, CHAT.path, CHAT.body("Two."))).status == 200


async def test_connections_to_the_provider_are_used_again(proxy: Proxy):
    async with proxy.provider(replies_json({})) as provider, connected(proxy) as client:
        for _ in range(5):
            await client.ask("POST", "/v1/embeddings", [], b"{}")
            await client.reply()
    assert provider.connections == 1


async def test_errors_are_counted_by_kind(start: Start, impatient: Proxy):
    reply = await post(impatient, CHAT.path, CHAT.body("Counted?"))
    assert reply.status == 502
    page = (await get_page(impatient, "/metrics")).text
    assert sum_metric(page, "accordion_errors_total", upstream="openai", error="upstream_unreachable") >= 1


async def test_an_error_of_the_providers_own_passes_untouched(proxy: Proxy):
    own = {"error": {"message": "bad", "type": "x", "param": "p", "code": 400}, "extra": [1]}
    async with proxy.provider(replies_json(own, 418, [("X-Why", "because")])) as provider:
        reply = await post(proxy, CHAT.path, CHAT.body("Teapot?"))
    assert isinstance(provider, Loopback)
    assert (reply.status, json.loads(reply.body), reply.header("x-why")) == (418, own, "because")
