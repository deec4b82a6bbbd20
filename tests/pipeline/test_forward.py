import contextlib
import gzip
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from accordion.accounting.calibration import LearnedLimits
from accordion.accounting.ledger import EXCHANGES
from accordion.model.errors import Unreachable, UpstreamDisconnected, UpstreamTimeout
from accordion.model.ports import Family, Route
from accordion.model.tenant import TenantScope
from accordion.pipeline import forward
from accordion.pipeline.queries import erase
from accordion.protocols.registry import PROTOCOLS
from accordion.providers.http.client import describe_failure
from accordion.providers.models.windows import ModelWindows
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FakeReply, FakeRouter
from tests.pipeline_setup import CHAT, MESSAGES, RESPONSES, PipelineSetup, header

TENANT = TenantScope("default", b"key of default")

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
SSE = ((b"content-type", b"text/event-stream; charset=utf-8"),)


def chat_reply(prompt: int, **more: Any) -> FakeReply:
    usage = {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}
    body = {"id": "c1", "model": "m", "choices": [{"finish_reason": "stop", "message": {}}], "usage": usage, **more}
    return FakeReply(pieces=(json.dumps(body).encode(),))


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, "/v1/embeddings"])
@pytest.mark.parametrize(
    "body", [b'{"messages" : [ ],\n "x":1.0e5, "x":2}', b"not json", b"", b'{"a":"\\ud800"}', b"[1]"]
)
async def test_a_body_leaves_as_it_came(path: str, body: bytes) -> None:
    world = PipelineSetup()
    await world.ask(path, body)
    assert world.upstream.requests[0].body == body


async def test_our_own_headers_stay_here_and_all_others_go_on() -> None:
    world = PipelineSetup()
    await world.ask(CHAT, HELLO, {"Authorization": "Bearer k", "X-Accordion-Session": "abc-12345", "OpenAI-Beta": "x"})
    assert world.upstream.requests[0].headers == ((b"authorization", b"Bearer k"), (b"openai-beta", b"x"))


async def test_the_query_goes_on() -> None:
    world = PipelineSetup()
    inbound = world.inbound("/v1/models", b"", method="GET")
    await world.forward(replace(inbound, query="limit=2&after=a%20b"))
    assert world.upstream.requests[0].url.endswith("/models?limit=2&after=a%20b")


async def test_a_window_that_is_only_assumed_is_marked() -> None:
    windows: Any = ModelWindows(LearnedLimits(lambda: 0.0))
    world = PipelineSetup(windows=windows)
    known, _ = await world.ask(CHAT, {**HELLO, "model": "gpt-4o"})
    assumed, _ = await world.ask(CHAT, {**HELLO, "model": "nobodys-model"})
    assert header(known, "x-accordion-window-source") is None
    assert header(assumed, "x-accordion-window-source") == "default"


async def test_every_answer_to_a_request_that_was_read_says_how_full_the_window_is() -> None:
    world = PipelineSetup()
    out, _ = await world.ask(CHAT, HELLO)
    assert header(out, "x-accordion-window") == "100000"
    assert header(out, "x-accordion-tokens") == str(3 + 4 + 3)  # words, message, reply
    assert header(out, "x-accordion-utilization") == "0.0001"
    assert (header(out, "x-accordion-session") or "").startswith("s-")


async def test_an_unreadable_request_is_answered_without_utilization_headers() -> None:
    world = PipelineSetup()
    out, body = await world.ask(CHAT, b"{")
    assert body == b"{}"
    assert not [name for name, _ in out.headers if name.startswith(b"x-accordion")]
    assert world.recorder.exchanges[0].decision == "not read"


async def test_the_providers_headers_come_back_in_their_order() -> None:
    world = PipelineSetup()
    given = (
        (b"content-type", b"application/json"),
        (b"set-cookie", b"a"),
        (b"x-request-id", b"r"),
        (b"set-cookie", b"b"),
    )
    world.upstream.answers = [FakeReply(headers=given)]
    out, _ = await world.ask(CHAT, HELLO)
    assert out.headers[: len(given)] == given


async def test_reported_usage_carries_forward_to_the_next_turn() -> None:
    world = PipelineSetup()
    world.upstream.answers = [chat_reply(prompt=500), chat_reply(prompt=0)]
    await world.ask(CHAT, HELLO)
    grown = {**HELLO, "messages": [*HELLO["messages"], {"role": "assistant", "content": "four five"}]}
    out, _ = await world.ask(CHAT, grown)
    # What was reported, and the two new words with their message; so short a text teaches no correction.
    assert header(out, "x-accordion-tokens") == str(500 + 2 + 4)
    assert world.recorder.exchanges[1].utilization.includes_report


async def test_a_report_of_nothing_leaves_the_count_alone() -> None:
    world = PipelineSetup()
    world.upstream.answers = [chat_reply(prompt=0)]
    await world.ask(CHAT, HELLO)
    grown = {**HELLO, "messages": [*HELLO["messages"], {"role": "assistant", "content": "four five"}]}
    out, _ = await world.ask(CHAT, grown)
    assert header(out, "x-accordion-tokens") == str(3 + 4 + 2 + 4 + 3)


async def test_usage_from_before_a_providers_compaction_does_not_carry_forward() -> None:
    """What it counted then is no part of what it reads now."""
    world = PipelineSetup()
    usage = {"input_tokens": 5_000, "output_tokens": 4}
    done = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": usage}
    world.upstream.answers = [FakeReply(pieces=(json.dumps(done).encode(),))]
    asked = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "word " * 4_000}]}
    await world.ask(MESSAGES, asked)
    block = {"role": "assistant", "content": [{"type": "compaction", "content": "In short."}]}
    more = {"role": "user", "content": "and " * 100}
    out, _ = await world.ask(MESSAGES, {**asked, "messages": [*asked["messages"], block, more]})
    assert header(out, "x-accordion-session") == world.recorder.exchanges[0].session
    assert not world.recorder.exchanges[1].utilization.includes_report
    # A quarter of the block's bytes, the words, two messages and the reply, corrected by what was reported before.
    assert header(out, "x-accordion-tokens") == str(round((3 + 100 + 4 + 4 + 3) * 5_000 / 4_007))


async def test_a_report_for_other_tools_does_not_carry_forward() -> None:
    world = PipelineSetup()
    world.upstream.answers = [chat_reply(prompt=500)]
    await world.ask(CHAT, HELLO)
    grown = {**HELLO, "messages": [*HELLO["messages"], {"role": "assistant", "content": "four"}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    out, _ = await world.ask(CHAT, {**grown, "tools": [tool]})
    assert not world.recorder.exchanges[1].utilization.includes_report
    assert int(header(out, "x-accordion-tokens") or 0) < 500


async def test_counts_of_a_session_are_corrected_by_how_far_they_were_off() -> None:
    world = PipelineSetup()
    long = {"model": "m", "messages": [{"role": "user", "content": "word " * 193}]}
    world.upstream.answers = [chat_reply(prompt=400)]
    await world.ask(CHAT, long)
    other = {"model": "m", "messages": [{"role": "user", "content": "other " * 93}]}
    out, _ = await world.ask(CHAT, other)
    assert header(out, "x-accordion-tokens") == "200"


async def test_state_that_the_provider_keeps_is_gauged_by_what_was_reported_for_it() -> None:
    world = PipelineSetup()
    usage = {"input_tokens": 700, "output_tokens": 40, "total_tokens": 740}
    done = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "usage": usage, "output": []}
    world.upstream.answers = [FakeReply(pieces=(json.dumps(done).encode(),))]
    first, _ = await world.ask(RESPONSES, {"model": "m", "input": "start here"})
    then, _ = await world.ask(RESPONSES, {"model": "m", "input": "go on", "previous_response_id": "resp_1"})
    assert header(first, "x-accordion-session") == header(then, "x-accordion-session")
    assert header(then, "x-accordion-tokens") == str(740 + 2 + 4 + 3)
    assert (
        world.upstream.requests[1].body
        == json.dumps({"model": "m", "input": "go on", "previous_response_id": "resp_1"}).encode()
    )


async def test_an_overflow_error_teaches_the_window() -> None:
    world = PipelineSetup()
    text = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    error = {"error": {"message": text, "type": "invalid_request_error", "code": "context_length_exceeded"}}
    world.upstream.answers = [FakeReply(status=400, pieces=(json.dumps(error).encode(),))]
    _, body = await world.ask(CHAT, HELLO)
    assert json.loads(body) == error
    assert set(world.windows.learnt) == {("m", "openai", "", "default", 8192)}
    assert world.recorder.exchanges[0].error == "provider_error"


@pytest.mark.parametrize(
    ("path", "error", "status", "code"),
    [
        (CHAT, Unreachable("no connection"), 502, "upstream_unreachable"),
        (RESPONSES, UpstreamTimeout("too slow"), 504, "upstream_timeout"),
        ("/v1/embeddings", UpstreamDisconnected("gone"), 502, "upstream_disconnected"),
    ],
)
async def test_an_error_of_ours_has_openais_shape(path: str, error: Any, status: int, code: str) -> None:
    world = PipelineSetup()
    world.upstream.answers = [error]
    out, body = await world.ask(path, HELLO)
    said = json.loads(body)["error"]
    assert (out.status, said["code"]) == (status, code)
    assert {"message", "type", "param", "code"} <= set(said)
    assert header(out, "x-request-id") == "req-0"
    assert "req-0" in said["message"]
    assert world.recorder.exchanges[0].error == code


async def test_an_error_of_ours_has_anthropics_shape_for_anthropics_clients() -> None:
    world = PipelineSetup()
    world.upstream.answers = [Unreachable("no connection")]
    out, body = await world.ask(MESSAGES, HELLO)
    said = json.loads(body)
    assert (said["type"], said["error"]["type"], said["request_id"]) == ("error", "api_error", "req-0")
    assert header(out, "request-id") == "req-0"


async def test_a_stream_that_is_cut_ends_in_an_error_and_never_as_if_all_were_well() -> None:
    world = PipelineSetup()
    world.upstream.answers = [
        FakeReply(headers=SSE, pieces=(b'data: {"choices":[]}\n\nda', b"ta: {"), error=UpstreamDisconnected("gone"))
    ]
    out = await world.forward(world.inbound(CHAT, {**HELLO, "stream": True}))
    got = []
    with pytest.raises(UpstreamDisconnected):
        async for piece in out.body:  # type: ignore[union-attr]
            got.append(piece)
    assert got[0] == b'data: {"choices":[]}\n\n'
    assert b'"error"' in got[-1]
    assert b"data: {" + b"data" not in b"".join(got)
    assert world.recorder.exchanges[0].error == "upstream_disconnected"


@pytest.mark.parametrize(
    "error",
    [
        {
            "message": "Provider returned error",
            "code": 400,
            "metadata": {"raw": json.dumps({"error": {"message": "maximum context length is 8192 tokens"}})},
        },
        {"message": "Too long.", "type": "exceed_context_size_error", "n_prompt_tokens": 9_000, "n_ctx": 8_192},
    ],
)
async def test_a_limit_is_learnt_from_whatever_field_of_a_streams_error_names_it(error: dict[str, Any]) -> None:
    world = PipelineSetup()
    stream = b"data: " + json.dumps({"error": error}).encode() + b"\n\n"
    world.upstream.answers = [FakeReply(headers=SSE, pieces=(stream,))]
    _, body = await world.ask(CHAT, {**HELLO, "stream": True})
    assert body == stream
    assert set(world.windows.learnt) == {("m", "openai", "", "default", 8192)}


async def test_a_stream_that_ends_with_its_connection_and_without_its_end_was_cut() -> None:
    world = PipelineSetup()
    world.upstream.answers = [FakeReply(headers=SSE, pieces=(b'data: {"choices":[]}\n\n',), is_delimited=False)]
    with pytest.raises(UpstreamDisconnected):
        await world.ask(CHAT, {**HELLO, "stream": True})


FINISHED = b'data: {"choices":[{"index":0,"delta":{"content":"Yes."},"finish_reason":"stop"}]}\n\n'


async def test_a_stream_of_a_server_that_sends_no_done_ends_with_its_finish_reason() -> None:
    world = PipelineSetup()
    world.upstream.answers = [FakeReply(headers=SSE, pieces=(FINISHED,), is_delimited=False)]
    _, body = await world.ask(CHAT, {**HELLO, "stream": True})
    assert body == FINISHED
    assert world.recorder.exchanges[0].error == ""


async def test_a_stream_that_breaks_off_within_an_event_behind_its_finish_reason_was_cut() -> None:
    world = PipelineSetup()
    pieces = (FINISHED, b'data: {"choices":[],"usa')
    world.upstream.answers = [FakeReply(headers=SSE, pieces=pieces, is_delimited=False)]
    with pytest.raises(UpstreamDisconnected):
        await world.ask(CHAT, {**HELLO, "stream": True})


async def test_a_client_that_goes_away_mid_stream_closes_the_reply_and_is_in_the_ledger() -> None:
    world = PipelineSetup()
    reply = FakeReply(headers=SSE, pieces=(b"data: 1\n\n", b"data: 2\n\n"))
    world.upstream.answers = [reply]
    out = await world.forward(world.inbound(CHAT, {**HELLO, "stream": True}))
    async with aclosing(out.body) as body:  # type: ignore[type-var]
        await anext(body)
    assert reply.closed
    assert world.recorder.exchanges[0].error == "client_disconnected"


async def test_usage_is_read_from_a_stream_that_is_compressed() -> None:
    world = PipelineSetup()
    usage = {"prompt_tokens": 50, "completion_tokens": 2, "total_tokens": 52}
    stream = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
    packed = gzip.compress(stream)
    world.upstream.answers = [
        FakeReply(headers=(*SSE, (b"content-encoding", b"gzip")), pieces=(packed[:20], packed[20:]))
    ]
    _, body = await world.ask(CHAT, {**HELLO, "stream": True})
    assert body == packed
    assert world.recorder.exchanges[0].usage is not None
    assert world.recorder.exchanges[0].usage.input == 50


async def test_a_compressed_request_is_gauged_and_leaves_as_it_came() -> None:
    world = PipelineSetup()
    packed = gzip.compress(json.dumps(HELLO).encode())
    out, _ = await world.ask(CHAT, packed, {"Content-Encoding": "gzip"})
    assert header(out, "x-accordion-tokens") == "10"
    assert world.upstream.requests[0].body == packed


# -- routes and keys ------------------------------------------------------------

ALIAS = Route("smart", "openai", "http://upstream.test/v1", model="real-1", api_key="sk-model")
KEYS = (ProxyKey("team", "proxy-key-of-team"),)


async def test_an_alias_is_replaced_by_the_models_name_and_nothing_else() -> None:
    world = PipelineSetup(router=FakeRouter(models={"smart": ALIAS}, only=ALIAS))
    await world.ask(CHAT, b'{ "model":"smart" ,"messages":[ ], "n": 1.0 }', {"content-length": "45"})
    request = world.upstream.requests[0]
    assert request.body == b'{ "model":"real-1" ,"messages":[ ], "n": 1.0 }'
    assert request.headers == ()


async def test_a_compressed_body_whose_model_is_an_alias_goes_on_plain() -> None:
    world = PipelineSetup(router=FakeRouter(models={"smart": ALIAS}, only=ALIAS))
    packed = gzip.compress(b'{"model":"smart","messages":[]}')
    await world.ask(CHAT, packed, {"Content-Encoding": "gzip", "Content-Length": "9", "x-a": "b"})
    request = world.upstream.requests[0]
    assert request.body == b'{"model":"real-1","messages":[]}'
    assert request.headers == ((b"x-a", b"b"),)


async def test_a_compressed_body_that_cannot_be_read_still_has_its_alias_replaced() -> None:
    world = PipelineSetup(router=FakeRouter(models={"smart": ALIAS}, only=ALIAS))
    body = b'{"model":"%b","messages":[' + b"[" * 3_000
    await world.ask(CHAT, gzip.compress(body % b"smart"), {"Content-Encoding": "gzip", "x-a": "b"})
    (sent,) = world.upstream.requests
    assert (sent.body, sent.headers) == (body % b"real-1", ((b"x-a", b"b"),))


async def test_without_a_proxy_key_the_callers_own_credential_goes_on() -> None:
    world = PipelineSetup(router=FakeRouter(only=ALIAS))
    await world.ask(CHAT, HELLO, {"Authorization": "Bearer sk-own"})
    assert (b"authorization", b"Bearer sk-own") in world.upstream.requests[0].headers


@pytest.mark.parametrize("given", [{"Authorization": "Bearer proxy-key-of-team"}, {"x-api-key": "proxy-key-of-team"}])
@pytest.mark.parametrize(
    ("family", "expected"),
    [("openai", (b"authorization", b"Bearer sk-model")), ("anthropic", (b"x-api-key", b"sk-model"))],
)
async def test_a_proxy_key_is_replaced_by_the_models_own(given: Any, family: Any, expected: Any) -> None:
    route = Route("smart", family, "http://upstream.test/v1", api_key="sk-model")
    world = PipelineSetup(keys=KEYS, router=FakeRouter(only=route))
    await world.ask(CHAT, HELLO, given)
    assert world.upstream.requests[0].headers == (expected,)


async def test_a_proxy_key_never_reaches_a_provider() -> None:
    world = PipelineSetup(keys=KEYS)
    out, body = await world.ask(CHAT, HELLO, {"Authorization": "Bearer proxy-key-of-team"})
    assert out.status == 401
    assert json.loads(body)["error"]["code"] == "no_provider_key"
    assert world.upstream.requests == []


async def test_a_proxy_key_in_its_own_header_leaves_the_credential_alone() -> None:
    world = PipelineSetup(keys=KEYS)
    await world.ask(CHAT, HELLO, {"Authorization": "Bearer sk-own", "x-accordion-key": "proxy-key-of-team"})
    assert world.upstream.requests[0].headers == ((b"authorization", b"Bearer sk-own"),)


async def test_a_proxy_key_reaches_no_provider_wherever_else_it_stands() -> None:
    world = PipelineSetup(keys=KEYS)
    key = "proxy-key-of-team"
    given = {"Authorization": "Bearer sk-own", "x-api-key": key, "api-key": f"Bearer {key}", "x-accordion-key": key}
    await world.ask(CHAT, HELLO, given)
    assert world.upstream.requests[0].headers == ((b"authorization", b"Bearer sk-own"),)


async def test_nobody_enters_without_a_proxy_key_where_there_are_any() -> None:
    world = PipelineSetup(keys=KEYS)
    for path, at in ((CHAT, ("error", "code")), (MESSAGES, ("error", "type"))):
        out, body = await world.ask(path, HELLO, {"Authorization": "Bearer wrong"})
        assert out.status == 401
        assert json.loads(body)[at[0]][at[1]] in ("invalid_api_key", "authentication_error")
    assert world.upstream.requests == []


async def test_configured_headers_are_added_in_place_of_the_callers() -> None:
    route = Route("smart", "openai", "http://upstream.test/v1", extra_headers=(("X-Team", "red"),))
    world = PipelineSetup(router=FakeRouter(only=route))
    await world.ask(CHAT, HELLO, {"x-team": "blue", "x-else": "1"})
    assert world.upstream.requests[0].headers == ((b"x-else", b"1"), (b"x-team", b"red"))


async def test_a_provider_of_another_protocol_is_asked_by_translation() -> None:
    route = Route("smart", "litellm", model="bedrock/x", api_key="")

    class Translating:
        asked: tuple[Any, ...] = ()

        async def send(self, *asked: Any) -> FakeReply:
            self.asked = asked
            return FakeReply()

    world = PipelineSetup(router=FakeRouter(only=route))
    translator = Translating()
    world.replace_in("sender", translator=translator)
    await world.ask(CHAT, HELLO, {"Authorization": "Bearer sk-own"})
    assert translator.asked[:4] == ("chat", json.dumps(HELLO).encode(), route, "sk-own")
    assert world.upstream.requests == []


async def test_a_model_with_the_machines_credential_serves_this_machine_and_proxy_keys() -> None:
    cloud = Route("cloud", "litellm", model="bedrock/x", uses_machine_credentials=True)
    own = {"Authorization": "Bearer sk-own"}
    for world, given, status in (
        (PipelineSetup(router=FakeRouter(only=cloud), loopback=False), own, 401),
        (PipelineSetup(router=FakeRouter(only=cloud), loopback=True), own, 502),
        (PipelineSetup(router=FakeRouter(only=cloud), keys=KEYS), {"x-api-key": "proxy-key-of-team"}, 502),
    ):

        class Refusing:
            async def send(self, *asked: Any) -> FakeReply:
                raise Unreachable("asked")

        world.replace_in("sender", translator=Refusing())
        out, _ = await world.ask(CHAT, HELLO, given)
        assert out.status == status


async def test_the_model_of_any_json_body_is_looked_for_where_models_are_configured() -> None:
    asked: list[str | None] = []

    class Noting(FakeRouter):
        def route(self, family: Family, model: str | None) -> Route:
            asked.append(model)
            return self.only

    for models in ({}, {"smart": ALIAS}):
        world = PipelineSetup(router=Noting(models=models))
        await world.ask("/v1/embeddings", {"input": "x", "model": "smart"})
    assert asked == [None, "smart"]


# -- the ledger -----------------------------------------------------------------


async def test_an_exchange_is_in_the_ledger_with_its_times_and_its_parent_span() -> None:
    world = PipelineSetup()
    world.upstream.answers = [chat_reply(prompt=9)]
    await world.ask(CHAT, HELLO, {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    (exchange,) = world.recorder.exchanges
    assert (exchange.model, exchange.status, exchange.messages, exchange.finish) == ("m", 200, 1, "stop")
    assert exchange.usage is not None
    assert exchange.usage.input == 9
    assert world.recorder.parents[0].startswith("00-aaaa")


async def test_sessions_and_models_are_seen_by_their_own_tenant_only() -> None:
    world = PipelineSetup(loopback=False)
    for key in ("one", "two"):
        world.upstream.answers = [chat_reply(prompt=9)]
        await world.ask(CHAT, HELLO, {"Authorization": f"Bearer {key}"})
    one, two = (world.forward.tenants.identify({b"authorization": b"Bearer " + key}).tenant for key in (b"one", b"two"))
    (session,) = await world.observe.list_sessions(one)
    assert session.totals.requests == 1
    assert session.totals.input == 9
    assert await world.observe.find_session(two, session.id) is None
    view = await world.observe.find_session(one, session.id)
    assert view is not None
    assert [exchange.usage.input for exchange in view.exchanges if exchange.usage] == [9]
    (model,) = await world.observe.list_models(two)
    assert (model.row.model, model.row.totals.requests) == ("m", 1)


async def test_totals_of_several_workers_are_added_up() -> None:
    one = PipelineSetup()
    two = PipelineSetup(store=one.store)
    two.replace_in("ledger", worker="other")
    two.forward.reader.identifier.sessions.worker = "other"
    for world in (one, two, one):
        world.upstream.answers = [chat_reply(prompt=10)]
        await world.ask(CHAT, HELLO)
        await world.outbox.flush()
    (session,) = await one.observe.list_sessions(TENANT)
    assert (session.totals.requests, session.totals.input) == (3, 30)
    (model,) = await two.observe.list_models(TENANT)
    assert (model.row.totals.requests, model.row.totals.output) == (3, 15)


async def test_a_session_shows_its_last_exchanges_from_all_workers_within_the_limit() -> None:
    one = PipelineSetup()
    two = PipelineSetup(store=one.store)
    two.forward.reader.identifier.sessions.worker = "other"
    for number in range(EXCHANGES + 2):
        world = two if number == 1 else one
        world.clock.advance(number)
        await world.ask(CHAT, {**HELLO, "model": f"m-{number}"})
        await world.outbox.flush()
        (session,) = await one.observe.list_sessions(TENANT)
        view = await one.observe.find_session(TENANT, session.id)
        assert view is not None
        assert [each.model for each in view.exchanges] == [f"m-{each}" for each in range(number + 1)][-EXCHANGES:]


async def test_an_erased_exchange_does_not_come_back_with_one_that_was_under_way() -> None:
    world = PipelineSetup()
    await world.ask(CHAT, {**HELLO, "model": "erased"})
    (session,) = await world.observe.list_sessions(TENANT)
    world.upstream.answers = [FakeReply(headers=SSE, pieces=(b"data: [DONE]\n\n",))]
    out = await world.forward(world.inbound(CHAT, {**HELLO, "model": "under way", "stream": True}))
    assert await world.observe.forget_sessions(TENANT, session.id) == [session.id]
    world.forward.reader.identifier.sessions.forget(session.id)
    assert not isinstance(out.body, bytes)
    async for _ in out.body:
        pass
    view = await world.observe.find_session(TENANT, session.id)
    assert view is not None
    assert [each.model for each in view.exchanges] == ["under way"]


async def test_erasing_a_session_during_a_response_leaves_only_totals_by_model() -> None:
    world = PipelineSetup()
    world.upstream.answers = [FakeReply(headers=SSE, pieces=(b"data: [DONE]\n\n",))]
    out = await world.forward(world.inbound(CHAT, {**HELLO, "stream": True}))
    caller, builder = world.forward.tenants.identify({}), world.builder
    world.clock.advance(1.0)
    await erase(world.observe, builder.export_and_erasure, builder.session_overrides, caller)
    assert not isinstance(out.body, bytes)
    async for _ in out.body:
        pass
    assert await world.observe.list_sessions(TENANT) == []
    (model,) = await world.observe.list_models(TENANT)
    assert (model.row.totals.requests, len(world.recorder.exchanges)) == (1, 1)
    world.clock.advance(1.0)
    await world.ask(CHAT, HELLO)
    (session,) = await world.observe.list_sessions(TENANT)
    assert session.totals.requests == 1


async def test_long_text_is_counted_in_a_thread_and_short_text_at_once() -> None:
    world = PipelineSetup()
    await world.ask(CHAT, HELLO)
    assert world.tasks.offloaded == []
    await world.ask(CHAT, {"model": "m", "messages": [{"role": "user", "content": "long " * 20_000}]})
    assert world.tasks.offloaded == ["_read_body", "measure"]


@pytest.mark.parametrize("said", ["prompt is too long: 5 tokens > 3 maximum", "maximum context length is 3"])
async def test_an_error_that_quotes_the_request_teaches_no_window(said: str) -> None:
    """Servers that validate what they get say what was wrong with it, word for word."""
    world = PipelineSetup()
    quoting = f"1 validation error: input_value='Why {said}?'".encode()
    world.upstream.answers = [FakeReply(status=400, pieces=(quoting,))]
    await world.ask(CHAT, {"model": "m", "messages": [{"role": "user", "content": f"Why {said}?"}]})
    assert world.windows.learnt == []
    world.upstream.answers = [FakeReply(status=400, pieces=(said.encode(),))]
    await world.ask(CHAT, HELLO)
    assert [learnt[-1] for learnt in world.windows.learnt] == [3]


async def test_an_encoding_that_must_be_loaded_first_is_waited_for_in_a_thread() -> None:
    world = PipelineSetup()
    world.counter.ready = False
    await world.ask(CHAT, HELLO)
    assert world.tasks.offloaded == ["load"], "it is loaded in a thread, and the event loop counts first"


async def test_a_cut_is_said_in_words_that_agents_take_for_passing() -> None:
    """OpenCode asks again after these and gives up after others; tests/clients shows it."""
    world = PipelineSetup()
    cut = describe_failure(httpx.RemoteProtocolError("the connection was closed"), "api.test")
    world.upstream.answers = [FakeReply(headers=SSE, pieces=(b"data: {}\n\n",), error=cut)]
    out = await world.forward(world.inbound(CHAT, {**HELLO, "stream": True}))
    got = []
    with contextlib.suppress(UpstreamDisconnected):
        async for piece in out.body:  # type: ignore[union-attr]
            got.append(piece)
    said = json.loads(got[-1].removeprefix(b"data: "))["error"]
    assert said["message"].startswith("Connection lost: api.test did not finish its answer")
    assert said["type"] == "server_error"


async def test_state_that_is_not_on_record_is_said_to_be_uncounted() -> None:
    world = PipelineSetup()
    await world.ask(RESPONSES, {"model": "m", "input": "go on", "previous_response_id": "resp_unknown"})
    assert "not on record and not counted" in world.recorder.exchanges[0].decision


@pytest.mark.parametrize("room", ["read", "seat", "place", "resolve", "measure", "learn", "record", "tap"])
async def test_a_room_that_fails_does_not_fail_the_request(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = PipelineSetup()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError(room)

    forward, recorder = world.forward, world.forward.responder.recorder
    tracker = forward.reader.identifier.visibility.delegation_tracker
    where: Any = {
        "read": (type(forward.reader.receiver.body_reader), "read"),
        "resolve": (type(world.sessions), "resolve"),
        "measure": (type(forward.reader.measurer.list_meter.token_meter), "measure"),
        "seat": (type(tracker), "find_position"),
        "place": (type(tracker), "attach_session"),
        "learn": (type(recorder.calibrator.calibrations), "learn"),
        "record": (type(recorder.ledger), "record"),
        "tap": (type(PROTOCOLS["chat"].observer(False)), "feed"),
    }[room]
    monkeypatch.setattr(*where, broken)
    answer = chat_reply(prompt=9)
    world.upstream.answers = [answer]
    out, body = await world.ask(CHAT, HELLO)
    assert (out.status, body) == (200, answer.pieces[0])
    assert world.upstream.requests[0].body == json.dumps(HELLO).encode()


async def test_a_malformed_header_of_ours_is_refused_with_its_name() -> None:
    world = PipelineSetup()
    out, body = await world.ask(CHAT, HELLO, {"x-accordion-session": "no"})
    assert (out.status, json.loads(body)["error"]["param"]) == (400, "x-accordion-session")
    assert world.upstream.requests == []


async def test_an_absurd_count_in_a_reply_spoils_nothing() -> None:
    world = PipelineSetup()
    world.upstream.answers = [chat_reply(prompt=2**70), chat_reply(prompt=9)]
    for _ in range(2):
        await world.ask(CHAT, HELLO)
    (session,) = await world.observe.list_sessions(TENANT)
    assert (session.totals.requests, session.totals.input) == (2, 9)


async def test_a_models_name_of_a_megabyte_is_in_no_list() -> None:
    world = PipelineSetup()
    await world.ask(CHAT, {**HELLO, "model": "m" * 2**20})
    assert await world.observe.list_models(TENANT) == []


async def test_totals_never_fall_when_a_model_leaves_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accordion.accounting.ledger._MODELS", 2)
    world = PipelineSetup()
    for model in ("a", "a", "b", "c", "d", "a"):
        await world.ask(CHAT, {**HELLO, "model": model})
    found = {view.row.model: view.row.totals.requests for view in await world.observe.list_models(TENANT)}
    assert found == {"a": 3, "b": 1, "c": 1, "d": 1}


async def test_a_body_that_a_translated_model_cannot_read_is_refused_as_such() -> None:
    route = Route("smart", "litellm", model="bedrock/x")
    world = PipelineSetup(router=FakeRouter(only=route, models={"smart": route}))
    out, body = await world.ask(CHAT, b'{"model":"smart"')
    assert out.status == 400
    assert "could not be read" in json.loads(body)["error"]["message"]


async def test_a_large_body_is_read_in_a_thread() -> None:
    world = PipelineSetup()
    await world.ask(CHAT, {"model": "m", "messages": [{"role": "user", "content": "x" * 1_100_000}]})
    assert world.tasks.offloaded[0] == "_read_body"


async def test_what_a_body_is_inflated_to_is_not_known_before_so_it_is_done_in_a_thread() -> None:
    world = PipelineSetup()
    out, _ = await world.ask(CHAT, gzip.compress(json.dumps(HELLO).encode()), {"Content-Encoding": "gzip"})
    assert (out.status, world.tasks.offloaded) == (200, ["decode_body"])


async def test_a_body_that_nobody_reads_is_not_inflated() -> None:
    world = PipelineSetup()
    packed = gzip.compress(json.dumps(HELLO).encode())
    out, _ = await world.ask("/v1/embeddings", packed, {"Content-Encoding": "gzip"})
    assert (out.status, world.tasks.offloaded, world.upstream.requests[0].body) == (200, [], packed)


async def test_a_body_of_too_many_messages_goes_on_unread_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = PipelineSetup()
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}] * 20_001}).encode()
    out, _ = await world.ask(CHAT, raw)
    assert (out.status, world.upstream.requests[0].body) == (200, raw)
    assert header(out, "x-accordion-session") is None
    why = "more than the 20,000 messages of limits.messages_per_request"
    assert header(out, "x-accordion-unread") == why
    assert world.recorder.exchanges[0].decision == f"not read: it holds {why}"
    await world.ask(CHAT, raw)
    assert caplog.text.count(why) == 1


async def test_a_body_of_too_many_messages_keeps_its_alias_and_the_models_own_key() -> None:
    world = PipelineSetup(keys=KEYS, router=FakeRouter(models={"smart": ALIAS}, only=ALIAS))
    raw = json.dumps({"model": "smart", "messages": [{"role": "user", "content": "a"}] * 20_001}).encode()
    out, _ = await world.ask(CHAT, raw, {"Authorization": "Bearer proxy-key-of-team"})
    (sent,) = world.upstream.requests
    assert (out.status, sent.headers) == (200, ((b"authorization", b"Bearer sk-model"),))
    assert sent.body == raw.replace(b'"smart"', b'"real-1"')
    refused, _ = await world.ask(CHAT, raw, {"Authorization": "Bearer wrong"})
    assert (refused.status, len(world.upstream.requests)) == (401, 1)


async def test_a_long_first_request_is_read_in_a_thread_and_the_next_one_directly() -> None:
    world = PipelineSetup()
    messages = [{"role": "user", "content": f"turn {number}"} for number in range(2_000)]
    await world.ask(CHAT, {"messages": messages, "model": "m"})
    assert world.tasks.offloaded[0] == "_read_body"
    world.tasks.offloaded.clear()
    await world.ask(CHAT, {"messages": [*messages, {"role": "user", "content": "next"}], "model": "m"})
    assert "_read_body" not in world.tasks.offloaded


async def test_a_very_large_body_is_read_alone() -> None:
    world = PipelineSetup()
    await world.ask(CHAT, {"model": "m", "messages": [{"role": "user", "content": "word " * 1_000_000}]})
    assert world.tasks.offloaded[0] == "_read_body alone"
    assert "may_mention_memory" in world.tasks.offloaded


def test_the_flow_of_a_request_can_be_read_on_one_page() -> None:
    """A new step is a module of its own, not a branch in forward.py."""
    assert len(Path(forward.__file__).read_text("utf-8").splitlines()) <= 150
