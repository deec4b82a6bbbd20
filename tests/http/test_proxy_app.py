"""A client may go away at any time, also while the head of its answer is on the way."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext

import pytest
from starlette.types import Message, Receive, Scope, Send

from accordion.http.proxy_app import ProxyApp
from accordion.http.websocket_relay import WebSocketRelay
from tests.fakes import FakeReply
from tests.pipeline_setup import CHAT, PipelineSetup

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'


async def no_api(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("this is for the API")


async def no_socket(*_: object) -> FakeReply:
    raise AssertionError("this is for a WebSocket")


def build_app(setup: PipelineSetup) -> ProxyApp:
    return ProxyApp(
        lambda: setup.forward,
        lambda: setup.upgrade,
        no_api,
        WebSocketRelay(no_socket, ConnectionError),
        lambda: "req-1",
    )


async def receive_body() -> Message:
    return {"type": "http.request", "body": BODY, "more_body": False}


def scope() -> Scope:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    return {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "headers": headers,
    }


@pytest.mark.parametrize("failure", [asyncio.CancelledError(), RuntimeError("no header of HTTP")])
async def test_a_head_that_cannot_be_sent_lets_go_of_the_providers_reply(failure: BaseException) -> None:
    setup = PipelineSetup()
    reply = FakeReply()
    setup.upstream.answers.append(reply)

    async def gone(message: Message) -> None:
        assert message["type"] == "http.response.start"
        raise failure

    # A server that stops cancels what it no longer waits for; it need not hear of that again.
    with pytest.raises(type(failure)) if isinstance(failure, RuntimeError) else nullcontext():
        await build_app(setup)(scope(), receive_body, gone)
    assert reply.closed
    assert [(seen.status, seen.error) for seen in setup.recorder.exchanges] == [(200, "client_disconnected")]


async def test_an_answer_is_sent_as_it_comes_and_ended() -> None:
    setup = PipelineSetup()
    setup.upstream.answers.append(FakeReply(pieces=(b"{", b"}")))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await build_app(setup)(scope(), receive_body, send)
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * 3]
    assert [(message["body"], message.get("more_body", False)) for message in sent[1:]] == [
        (b"{", True),
        (b"}", True),
        (b"", False),
    ]


async def test_an_answer_of_known_length_ends_with_its_last_piece() -> None:
    setup = PipelineSetup()
    setup.upstream.answers.append(FakeReply(pieces=(b"{", b"}"), headers=((b"content-length", b"2"),)))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await build_app(setup)(scope(), receive_body, send)
    assert [(message["body"], message["more_body"]) for message in sent[1:]] == [(b"{", True), (b"}", False)]
    assert [(seen.status, seen.error) for seen in setup.recorder.exchanges] == [(200, "")]


async def test_an_answer_of_known_length_without_a_body_is_ended_too() -> None:
    setup = PipelineSetup()
    setup.upstream.answers.append(FakeReply(pieces=(), headers=((b"content-length", b"0"),)))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await build_app(setup)(scope(), receive_body, send)
    assert [(message["body"], message.get("more_body", False)) for message in sent[1:]] == [(b"", False)]


class Stuck(FakeReply):
    """A stream that says one thing, and then nothing more."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield b'data: {"id": "c-1"}\n\n'
        await asyncio.Event().wait()


async def test_a_server_that_stops_ends_a_stream_with_an_error_event() -> None:
    setup = PipelineSetup()
    setup.upstream.answers.append(Stuck(headers=((b"content-type", b"text/event-stream"),)))
    sent: list[bytes] = []
    begun = asyncio.Event()

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if sent[-1]:
            begun.set()

    serving = asyncio.create_task(build_app(setup)(scope(), receive_body, send))
    await begun.wait()
    serving.cancel("the server's own words")
    await serving
    assert b"proxy_stopping" in sent[-1]
    assert [(seen.status, seen.error) for seen in setup.recorder.exchanges] == [(200, "proxy_stopping")]


async def test_a_server_that_stops_before_the_provider_answered_says_so() -> None:
    setup, asked = PipelineSetup(), asyncio.Event()

    async def never(request: object) -> FakeReply:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    setup.upstream.send = never  # type: ignore[method-assign, assignment]
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    serving = asyncio.create_task(build_app(setup)(scope(), receive_body, send))
    await asked.wait()
    serving.cancel()
    await serving
    assert (sent[0]["status"], b"proxy_stopping" in sent[1]["body"]) == (503, True)
    assert [(seen.status, seen.error) for seen in setup.recorder.exchanges] == [(503, "proxy_stopping")]
