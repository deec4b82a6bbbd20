"""Requests of proxy keys with limits: what is counted, and what is answered beyond a limit."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from accordion.accounting.key_limits import KeyLimits, KeyUsage
from accordion.model.costs import NANODOLLARS
from accordion.model.errors import UpstreamDisconnected
from accordion.model.http import CLIENT_DISCONNECTED, Outbound
from accordion.model.ports import Route, UpstreamRequest, UpstreamResponse
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FakeReply, FakeRouter, FakeUpstream
from tests.pipeline_setup import CHAT, MESSAGES, RESPONSES, PipelineSetup, header

PRICES = "prices: {models: {m: {input: 3, cached_input: 0.3, cache_write: 3.75, output: 15}}}\n"
AS_TEAM = {"x-accordion-key": "key-of-team", "authorization": "Bearer sk-own"}
CHAT_BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
MESSAGES_BODY: dict[str, Any] = {**CHAT_BODY, "max_tokens": 9}
RESPONSES_BODY: dict[str, Any] = {"model": "m", "input": "one two three"}


def limited(**limits: Any) -> PipelineSetup:
    return PipelineSetup(
        keys=(ProxyKey("team", "key-of-team", KeyLimits(**limits)), ProxyKey("free", "key-free")), config=PRICES
    )


def reported(tokens: int = 1_000_000) -> FakeReply:
    usage = {"prompt_tokens": tokens, "completion_tokens": 100_000, "total_tokens": tokens + 100_000}
    return FakeReply(pieces=(json.dumps({"choices": [], "usage": usage}).encode(),))


def used(setup: PipelineSetup) -> KeyUsage:
    return setup.key_usage.usage("team")


# -- answers -----------------------------------------------------------------------------------------------------------


async def refuse(path: str, body: Any, **limits: Any) -> tuple[Outbound, dict[str, Any]]:
    """The answer beyond a limit, which the provider does not see."""
    setup = limited(**limits)
    setup.upstream.answers = [reported()]
    await setup.ask(CHAT, CHAT_BODY, AS_TEAM)
    out, answer = await setup.ask(path, body, AS_TEAM)
    assert (out.status, len(setup.upstream.requests)) == (429, 1)
    assert setup.refused == [("team", next(iter(limits)))]
    # Another key is not concerned.
    assert (await setup.ask(CHAT, CHAT_BODY, {**AS_TEAM, "x-accordion-key": "key-free"}))[0].status == 200
    return out, json.loads(answer)


@pytest.mark.parametrize(("path", "body"), [(CHAT, CHAT_BODY), (RESPONSES, RESPONSES_BODY), ("/v1/embeddings", {})])
async def test_openai_clients_are_answered_in_their_shape(path: str, body: Any) -> None:
    out, answer = await refuse(path, body, requests_per_minute=1)
    assert (answer["error"]["type"], answer["error"]["code"]) == ("requests", "rate_limit_exceeded")
    assert "requests of this minute" in answer["error"]["message"]
    assert 1 <= int(header(out, "retry-after") or "") <= 60
    assert header(out, "x-should-retry") is None


@pytest.mark.parametrize("limits", [{"tokens_per_day": 5}, {"dollars_per_day": 0.01}])
async def test_a_spent_day_is_a_quota_and_no_client_need_try_again(limits: dict[str, Any]) -> None:
    out, answer = await refuse(CHAT, CHAT_BODY, **limits)
    assert (answer["error"]["type"], answer["error"]["code"]) == ("insufficient_quota", "insufficient_quota")
    assert int(header(out, "retry-after") or "") > 60
    assert header(out, "x-should-retry") == "false"


async def test_anthropic_clients_are_answered_in_their_shape() -> None:
    out, answer = await refuse(MESSAGES, MESSAGES_BODY, tokens_per_day=5)
    assert (answer["type"], answer["error"]["type"]) == ("error", "rate_limit_error")
    assert header(out, "request-id") == answer["request_id"]
    assert "key-of-team" not in json.dumps(answer)


# -- counts ------------------------------------------------------------------------------------------------------------


async def test_reported_tokens_and_dollars_are_counted() -> None:
    setup = limited(tokens_per_day=10**9)
    setup.upstream.answers = [reported(), reported()]
    for _ in range(2):
        await setup.ask(CHAT, CHAT_BODY, AS_TEAM)
    assert used(setup) == KeyUsage(2, 2_200_000, 9 * NANODOLLARS)


async def test_a_key_without_limits_is_counted_too_and_its_owner_may_get_some_later() -> None:
    setup = limited()
    setup.upstream.answers = [reported()]
    await setup.ask(CHAT, CHAT_BODY, AS_TEAM)
    assert used(setup).tokens == 1_100_000


def streamed(*pieces: bytes) -> FakeReply:
    return FakeReply(headers=((b"content-type", b"text/event-stream"),), pieces=pieces)


@pytest.mark.parametrize("leaves", [True, False])
async def test_usage_that_is_not_reported_is_estimated(leaves: bool) -> None:
    """Chat Completions streams report usage only where the client asks; a client may leave before the report."""
    setup = limited(tokens_per_day=10**9)
    text = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % (b"x" * 400)
    call = (
        b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f",'
        b' "arguments": "%s"}}]}}]}\n\n' % (b"y" * 800)
    )
    setup.upstream.answers = [streamed(b'data: {"choices": []}\n\n'), streamed(text, call, b"data: [DONE]\n\n")]
    await setup.ask(CHAT, {**CHAT_BODY, "stream": True}, AS_TEAM)
    input_tokens = used(setup).tokens
    assert input_tokens >= 3
    out = await setup.forward(setup.inbound(CHAT, {**CHAT_BODY, "stream": True}, AS_TEAM))
    assert not isinstance(out.body, bytes)
    assert await anext(out.body) == text
    if leaves:
        await out.body.aclose()
    async for _ in out.body:
        pass
    assert used(setup).requests == 2
    assert used(setup).tokens == 2 * input_tokens + (100 if leaves else 300)
    assert used(setup).cost == 2 * input_tokens * 3_000 + (100 if leaves else 300) * 15_000


class SilentUpstream(FakeUpstream):
    """A provider that takes the request and has not answered yet."""

    def __init__(self) -> None:
        super().__init__()
        self.has_request = asyncio.Event()

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        self.has_request.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("reason", [(CLIENT_DISCONNECTED,), ()])
async def test_a_request_whose_client_leaves_before_the_answer_is_counted(reason: tuple[str, ...]) -> None:
    setup = limited(tokens_per_day=10**9)
    upstream = SilentUpstream()
    setup.replace_in("sender", upstream=upstream)
    task = asyncio.create_task(setup.forward(setup.inbound(CHAT, CHAT_BODY, AS_TEAM)))
    await upstream.has_request.wait()
    task.cancel(*reason)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert used(setup).requests == 1
    assert used(setup).tokens >= 3


@pytest.mark.parametrize(("path", "body"), [(MESSAGES, MESSAGES_BODY), (RESPONSES, RESPONSES_BODY)])
async def test_text_of_other_protocols_is_estimated_too(path: str, body: dict[str, Any]) -> None:
    setup = limited(dollars_per_day=100.0)
    event = {
        MESSAGES: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x" * 40_000}},
        RESPONSES: {"type": "response.output_text.delta", "output_index": 0, "delta": "x" * 40_000},
    }[path]
    setup.upstream.answers = [
        streamed(b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode(), json.dumps(event).encode()))
    ]
    await setup.ask(path, {**body, "stream": True}, AS_TEAM)
    assert 10_000 <= used(setup).tokens < 10_100


@pytest.mark.parametrize("answer", [FakeReply(status=500), FakeReply(status=429), UpstreamDisconnected("gone")])
async def test_a_request_that_failed_costs_nothing(answer: Any) -> None:
    setup = limited(tokens_per_day=10**9)
    setup.upstream.answers = [answer]
    await setup.ask(CHAT, CHAT_BODY, AS_TEAM)
    assert used(setup) == KeyUsage()


async def test_a_session_that_is_erased_meanwhile_is_counted() -> None:
    setup = limited(tokens_per_day=10**9)
    setup.upstream.answers = [reported(), reported()]
    out, _ = await setup.ask(CHAT, CHAT_BODY, AS_TEAM)
    running = await setup.forward(setup.inbound(CHAT, CHAT_BODY, AS_TEAM))
    tenant = setup.forward.tenants.scope("team")
    await setup.archive.erasures.publish(tenant, header(out, "x-accordion-session"))
    assert not isinstance(running.body, bytes)
    async for _ in running.body:
        pass
    assert used(setup).requests == 2


# -- what cannot be counted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"{", b"[" * 2_000, b"\xff\xfe"])
async def test_a_body_that_cannot_be_read_gives_no_way_around_a_limit_of_the_day(body: bytes) -> None:
    setup = limited(tokens_per_day=10**9)
    out, answer = await setup.ask(CHAT, body, AS_TEAM)
    assert (out.status, setup.upstream.requests) == (400, [])
    assert "cannot be counted" in json.loads(answer)["error"]["message"]
    assert (await setup.ask(CHAT, body, {**AS_TEAM, "x-accordion-key": "key-free"}))[0].status == 200
    by_minute = limited(requests_per_minute=5)
    assert (await by_minute.ask(CHAT, body, AS_TEAM))[0].status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/%63ompletions"),
        ("POST", "/v1/chat%252Fcompletions"),
        ("POST", "/v1//chat/./completions/"),
        ("POST", "/v1/chat\\completions"),
        ("POST", "/v1/Chat/Completions;a=b"),
        ("post", CHAT),
        ("PUT", "/v1/chat/completions%20"),
        ("POST", "/v1beta/models//gpt-5:generateContent"),
        ("POST", "/v1beta/models/gpt-5%253AstreamGenerateContent"),
        ("POST", "/v1beta/models/gpt-5:GENERATEContent"),
        ("POST", "/v1beta/tunedModels/mine:generateContent"),
        ("POST", "/v1beta/openai/chat/completions"),
    ],
)
async def test_another_spelling_gives_no_way_around_a_limit_of_the_day(method: str, path: str) -> None:
    """A provider may take such a path for the one that is read and counted."""
    setup = limited(tokens_per_day=10**9)
    out, answer = await setup.ask(path, CHAT_BODY, AS_TEAM, method)
    assert (out.status, setup.upstream.requests) == (400, [])
    assert "cannot be counted" in json.loads(answer)["error"]["message"]
    for free_path, free_method in ((path, method), ("/v1/embeddings", "POST"), ("/v1/responses/resp_1", "DELETE")):
        key = "key-free" if free_path == path else "key-of-team"
        out, _ = await setup.ask(free_path, CHAT_BODY, {**AS_TEAM, "x-accordion-key": key}, free_method)
        assert out.status == 200


@pytest.mark.parametrize("value", [True, 1, "true"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_in_the_background_gives_no_way_around_a_limit_of_the_day(value: Any, stream: bool) -> None:
    body = {**RESPONSES_BODY, "background": value, "stream": stream}
    setup = limited(dollars_per_day=100.0)
    out, answer = await setup.ask(RESPONSES, body, AS_TEAM)
    assert (out.status, setup.upstream.requests) == (400, [])
    error = json.loads(answer)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "background")
    assert "cannot be counted" in error["message"]
    assert (await setup.ask(RESPONSES, body, {**AS_TEAM, "x-accordion-key": "key-free"}))[0].status == 200
    assert (await setup.ask(RESPONSES, {**body, "background": False}, AS_TEAM))[0].status == 200
    assert (await setup.ask(CHAT, {**CHAT_BODY, "background": value}, AS_TEAM))[0].status == 200
    by_minute = limited(requests_per_minute=5)
    assert (await by_minute.ask(RESPONSES, body, AS_TEAM))[0].status == 200


@pytest.mark.parametrize(
    ("limits", "mode", "path", "statuses"),
    [
        ({"tokens_per_day": 5}, "read", RESPONSES, [101, 101]),
        ({"tokens_per_day": 5}, "relay", RESPONSES, [426, 426]),
        ({"tokens_per_day": 5}, "read", "/v1/%72esponses", [426, 426]),
        ({"tokens_per_day": 5}, "read", "/v1/realtime", [503, 503]),
        ({"requests_per_minute": 1}, "read", RESPONSES, [503, 429]),
    ],
)
async def test_a_websocket_of_a_model_gives_no_way_around_a_limit_of_the_day(
    limits: dict[str, int], mode: str, path: str, statuses: list[int]
) -> None:
    async def connect(_: Any) -> Outbound:
        return Outbound(503, (), b"")

    setup = limited(**limits)
    setup.rebuild(model_sockets=mode)
    answers = [await setup.upgrade(setup.inbound(path, b"", AS_TEAM, "GET"), connect) for _ in range(2)]
    assert [answer.status for answer in answers if isinstance(answer, Outbound)] == statuses


async def test_a_route_of_one_key_does_not_count_for_another() -> None:
    setup = limited(requests_per_minute=1)
    setup.router = FakeRouter(only=Route("openai", "openai", "http://upstream.test/v1"))
    assert [(await setup.ask(CHAT, CHAT_BODY, AS_TEAM))[0].status for _ in range(2)] == [200, 429]
    free = {**AS_TEAM, "x-accordion-key": "key-free"}
    assert [(await setup.ask(CHAT, CHAT_BODY, free))[0].status for _ in range(3)] == [200, 200, 200]


async def test_a_model_without_a_price_is_a_warning_where_dollars_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    for limits, count in (({"dollars_per_day": 1.0}, 1), ({"tokens_per_day": 10**9}, 0)):
        caplog.clear()
        setup = limited(**limits)
        setup.upstream.answers = [reported(), reported()]
        for _ in range(2):
            await setup.ask(CHAT, {**CHAT_BODY, "model": "home-made"}, AS_TEAM)
        assert used(setup) == KeyUsage(2, 2_200_000, 0)
        warnings = [record.getMessage() for record in caplog.records if "home-made" in record.getMessage()]
        assert len(warnings) == count
        assert all("the proxy key team" in warning for warning in warnings)
