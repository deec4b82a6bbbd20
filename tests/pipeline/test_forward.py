import contextlib
import gzip
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from accordion.accounting.calibration import LearnedLimits
from accordion.model.errors import Unreachable, UpstreamDisconnected, UpstreamTimeout
from accordion.model.ports import Family, Route
from accordion.model.tenant import TenantScope
from accordion.pipeline import forward
from accordion.pipeline.queries import NEWEST_EXCHANGES, erase
from accordion.protocols.registry import PROTOCOLS
from accordion.providers.http.client import describe_failure
from accordion.providers.http.transport_errors import ConnectionBroken
from accordion.providers.models.windows import ModelWindows
from accordion.sessions.proxy_keys import ProxyKey
from tests import frames
from tests.e2e import protocol_samples as samples
from tests.e2e.protocol_samples import EACH, ProtocolSamples
from tests.fakes import FakeReply, FakeRouter, FakeWindows
from tests.pipeline_setup import CHAT, MESSAGES, PATHS, RESPONSES, PipelineSetup, header
from tests.reply_parts import ReplyText, ScriptedReply, fake_reply, reply_document, reply_events
from tests.writers import WRITERS

TENANT = TenantScope("default", b"key of default")

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
SSE = ((b"content-type", b"text/event-stream; charset=utf-8"),)


def turns(protocol_name: str, *texts: str, stream: bool = False) -> dict[str, Any]:
    """A request; the texts are the user's and the model's in turn."""
    writer = WRITERS[protocol_name]
    entries = [(writer.model if at % 2 else writer.user)(text) for at, text in enumerate(texts)]
    return writer.request("m", entries, stream=stream)


@pytest.mark.parametrize("path", [*PATHS.values(), "/v1/embeddings"])
@pytest.mark.parametrize(
    "body", [b'{"messages" : [ ],\n "x":1.0e5, "x":2}', b"not json", b"", b'{"a":"\\ud800"}', b"[1]"]
)
async def test_a_body_leaves_as_it_came(path: str, body: bytes) -> None:
    setup = PipelineSetup()
    await setup.ask(path, body)
    assert setup.upstream.requests[0].body == body


async def test_a_request_of_an_anonymous_caller_goes_on_and_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = PipelineSetup(loopback=False)
    body = json.dumps(HELLO).encode()
    out, _ = await setup.ask(CHAT, body)
    assert setup.upstream.requests[0].body == body
    assert header(out, "x-accordion-unread") == "no credential"
    assert "sends no credential" in caplog.text
    assert setup.recorder.exchanges[0].decision == "not read: it holds no credential"
    assert setup.store.size == 0


async def test_our_own_headers_stay_here_and_all_others_go_on() -> None:
    setup = PipelineSetup()
    await setup.ask(CHAT, HELLO, {"Authorization": "Bearer k", "X-Accordion-Session": "abc-12345", "OpenAI-Beta": "x"})
    assert setup.upstream.requests[0].headers == ((b"authorization", b"Bearer k"), (b"openai-beta", b"x"))


async def test_the_query_goes_on() -> None:
    setup = PipelineSetup()
    await setup.ask("/v1/models?limit=2&after=a%20b", b"", method="GET")
    assert setup.upstream.requests[0].url.endswith("/models?limit=2&after=a%20b")


async def test_a_list_of_models_passes_as_it_came_and_teaches_their_windows() -> None:
    setup = PipelineSetup()
    packed = gzip.compress(json.dumps({"data": [{"id": "local-model", "max_model_len": 24_000}]}).encode())
    headers = ((b"content-type", b"application/json"), (b"content-encoding", b"gzip"))
    setup.upstream.answers = [FakeReply(headers=headers, pieces=(packed[:9], packed[9:]))]
    _, body = await setup.ask("/v1/models", b"", method="GET")
    assert body == packed
    assert setup.windows.learnt == [("local-model", "openai", "", "default", 24_000)]


async def test_a_window_that_is_only_assumed_is_marked() -> None:
    windows: Any = ModelWindows(LearnedLimits(lambda: 0.0))
    setup = PipelineSetup(windows=windows)
    known, _ = await setup.ask(CHAT, {**HELLO, "model": "gpt-4o"})
    assumed, _ = await setup.ask(CHAT, {**HELLO, "model": "nobodys-model"})
    assert header(known, "x-accordion-window-source") is None
    assert header(assumed, "x-accordion-window-source") == "default"


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("protocol_name", WRITERS)
async def test_every_answer_to_a_request_that_was_read_says_how_full_the_window_is(
    protocol_name: str, status: int
) -> None:
    setup = PipelineSetup()
    setup.upstream.answers = [FakeReply(status)]
    out, _ = await setup.ask(PATHS[protocol_name], turns(protocol_name, "one two three"))
    assert out.status == status
    assert header(out, "x-accordion-window") == "100000"
    assert header(out, "x-accordion-tokens") == str(3 + 4 + 3)  # words, message, reply
    asked = WRITERS[protocol_name].more.get("max_tokens", 0)
    assert header(out, "x-accordion-utilization") == f"{(10 + asked) / 100_000:.4f}"
    assert (header(out, "x-accordion-session") or "").startswith("s-")


async def test_an_unreadable_request_is_answered_without_utilization_headers() -> None:
    setup = PipelineSetup()
    out, body = await setup.ask(CHAT, b"{")
    assert body == b"{}"
    assert [pair for pair in out.headers if pair[0].startswith(b"x-accordion")] == [
        (b"x-accordion-unread", b"no readable JSON object")
    ]
    assert setup.recorder.exchanges[0].decision == "not read: it holds no readable JSON object"


async def test_the_providers_headers_come_back_in_their_order() -> None:
    setup = PipelineSetup()
    given = (
        (b"content-type", b"application/json"),
        (b"set-cookie", b"a"),
        (b"x-request-id", b"r"),
        (b"set-cookie", b"b"),
    )
    setup.upstream.answers = [FakeReply(headers=given)]
    out, _ = await setup.ask(CHAT, HELLO)
    assert out.headers[: len(given)] == given


@pytest.mark.parametrize("reported", [500, 0])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("protocol_name", WRITERS)
async def test_reported_usage_carries_forward_to_the_next_turn(protocol_name: str, stream: bool, reported: int) -> None:
    setup = PipelineSetup()
    reply = ScriptedReply(1, (ReplyText("four five"),), reported, 5)
    headers, pieces = SSE, reply_events(protocol_name, reply, {"stream_options": {"include_usage": True}})
    if not stream:
        headers, pieces = FakeReply().headers, [json.dumps(reply_document(protocol_name, reply, {})).encode()]
    elif protocol_name == "converse":
        headers = ((b"content-type", frames.KIND.encode()),)
        pieces = frames.frames_of(WRITERS["converse"].path("gpt-5", stream=True), b"".join(pieces))
    setup.upstream.answers = [FakeReply(headers=headers, pieces=tuple(pieces))]
    path = WRITERS[protocol_name].path("gpt-5", stream=stream)
    first, _ = await setup.ask(path, turns(protocol_name, "one two three", stream=stream))
    then, _ = await setup.ask(path, turns(protocol_name, "one two three", "four five", stream=stream))
    assert header(first, "x-accordion-session") == header(then, "x-accordion-session")
    # Of so short a text a report teaches no correction. A report of nothing is none.
    before = reported or 3 + 4 + 3
    assert header(then, "x-accordion-tokens") == str(before + 2 + 4)
    assert setup.recorder.exchanges[0].usage is not None
    assert setup.recorder.exchanges[0].usage.input == reported
    assert setup.recorder.exchanges[1].utilization.includes_report is (reported > 0)


async def test_usage_from_before_a_providers_compaction_does_not_carry_forward() -> None:
    """What it counted then is no part of what it reads now."""
    setup = PipelineSetup()
    usage = {"input_tokens": 5_000, "output_tokens": 4}
    done = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": usage}
    setup.upstream.answers = [FakeReply(pieces=(json.dumps(done).encode(),))]
    asked = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "word " * 4_000}]}
    await setup.ask(MESSAGES, asked)
    block = {"role": "assistant", "content": [{"type": "compaction", "content": "In short."}]}
    more = {"role": "user", "content": "and " * 100}
    out, _ = await setup.ask(MESSAGES, {**asked, "messages": [*asked["messages"], block, more]})
    assert header(out, "x-accordion-session") == setup.recorder.exchanges[0].session
    assert not setup.recorder.exchanges[1].utilization.includes_report
    # A quarter of the block's bytes, the words, two messages and the reply, corrected by what was reported before.
    assert header(out, "x-accordion-tokens") == str(round((3 + 100 + 4 + 4 + 3) * 5_000 / 4_007))


async def test_a_report_for_other_tools_does_not_carry_forward() -> None:
    setup = PipelineSetup()
    setup.upstream.answers = [fake_reply("chat", input=500)]
    await setup.ask(CHAT, HELLO)
    grown = {**HELLO, "messages": [*HELLO["messages"], {"role": "assistant", "content": "four"}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    out, _ = await setup.ask(CHAT, {**grown, "tools": [tool]})
    assert not setup.recorder.exchanges[1].utilization.includes_report
    assert int(header(out, "x-accordion-tokens") or 0) < 500


async def test_counts_of_a_session_are_corrected_by_how_far_they_were_off() -> None:
    setup = PipelineSetup()
    long = {"model": "m", "messages": [{"role": "user", "content": "word " * 193}]}
    setup.upstream.answers = [fake_reply("chat", input=400)]
    await setup.ask(CHAT, long)
    other = {"model": "m", "messages": [{"role": "user", "content": "other " * 93}]}
    out, _ = await setup.ask(CHAT, other)
    assert header(out, "x-accordion-tokens") == "200"


async def test_state_that_the_provider_keeps_is_gauged_by_what_was_reported_for_it() -> None:
    setup = PipelineSetup()
    usage = {"input_tokens": 700, "output_tokens": 40, "total_tokens": 740}
    done = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "usage": usage, "output": []}
    setup.upstream.answers = [FakeReply(pieces=(json.dumps(done).encode(),))]
    first, _ = await setup.ask(RESPONSES, {"model": "m", "input": "start here"})
    then, _ = await setup.ask(RESPONSES, {"model": "m", "input": "go on", "previous_response_id": "resp_1"})
    assert header(first, "x-accordion-session") == header(then, "x-accordion-session")
    assert header(then, "x-accordion-tokens") == str(740 + 2 + 4 + 3)
    assert (
        setup.upstream.requests[1].body
        == json.dumps({"model": "m", "input": "go on", "previous_response_id": "resp_1"}).encode()
    )


async def test_an_overflow_error_teaches_the_window() -> None:
    setup = PipelineSetup()
    text = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    error = {"error": {"message": text, "type": "invalid_request_error", "code": "context_length_exceeded"}}
    setup.upstream.answers = [FakeReply(status=400, pieces=(json.dumps(error).encode(),))]
    _, body = await setup.ask(CHAT, HELLO)
    assert json.loads(body) == error
    assert set(setup.windows.learnt) == {("m", "openai", "", "default", 8192)}
    assert setup.recorder.exchanges[0].error == "provider_error"


UNREAD = {
    "chat": "/v1/files",
    "responses": "/v1/responses/x",
    "messages": "/v1/messages/batches",
    "gemini": "/v1beta/files",
}
"""A path of each protocol's provider that no protocol reads."""


@EACH
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unreachable("no connection"), 502, "upstream_unreachable"),
        (UpstreamTimeout("too slow"), 504, "upstream_timeout"),
        (UpstreamDisconnected("gone"), 502, "upstream_disconnected"),
    ],
)
async def test_an_error_of_ours_has_the_shape_of_the_clients_protocol(
    protocol: ProtocolSamples, error: Any, status: int, code: str
) -> None:
    setup = PipelineSetup()
    setup.upstream.answers = [error, error]
    out, body = await setup.ask(protocol.path, protocol.body("Anyone?"))
    said = protocol.error_of(body)
    assert protocol.error_of((await setup.ask(UNREAD[protocol.name], b"", method="GET"))[1])
    assert said.get("code", said.get("type")) in (code, status, "api_error", "timeout_error")
    assert header(out, "request-id" if protocol is samples.MESSAGES else "x-request-id") == "req_0"
    assert (out.status, b"req_0" in body, str(error) in said["message"]) == (status, True, True)
    assert setup.recorder.exchanges[0].error == code


@EACH
async def test_a_stream_that_is_cut_ends_in_an_error_and_never_as_if_all_were_well(protocol: ProtocolSamples) -> None:
    """In words that agents take for passing: OpenCode asks again after these and gives up after others."""
    setup, events = PipelineSetup(), protocol.events("one two three")
    cut = describe_failure(ConnectionBroken("the connection was closed"), "api.test")
    setup.upstream.answers = [FakeReply(headers=SSE, pieces=(events[0], events[1][:5]), error=cut)]
    out = await setup.forward(setup.inbound(protocol.target(stream=True), protocol.body("Go on.", stream=True)))
    pieces = []
    with pytest.raises(UpstreamDisconnected):
        async for piece in out.body:  # type: ignore[union-attr]
            pieces.append(piece)
    body = b"".join(pieces)
    assert body.startswith(events[0])
    error = protocol.error_of(body.removeprefix(events[0]).partition(b"data: ")[2])
    assert error["message"].startswith("Connection lost: api.test did not finish its answer")
    assert error.get("type", "server_error") in ("server_error", "api_error")
    assert setup.recorder.exchanges[0].error == "upstream_disconnected"


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
    setup = PipelineSetup()
    stream = b"data: " + json.dumps({"error": error}).encode() + b"\n\n"
    setup.upstream.answers = [FakeReply(headers=SSE, pieces=(stream,))]
    _, body = await setup.ask(CHAT, {**HELLO, "stream": True})
    assert body == stream
    assert set(setup.windows.learnt) == {("m", "openai", "", "default", 8192)}


FINISHED = b'data: {"choices":[{"index":0,"delta":{"content":"Yes."},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize(
    ("pieces", "is_whole"),
    [
        ((b'data: {"choices":[]}\n\n',), False),
        ((FINISHED,), True),
        ((FINISHED, b'data: {"choices":[],"usa'), False),
    ],
    ids=["before its finish reason", "behind it", "within the event behind it"],
)
async def test_a_stream_without_done_is_whole_if_it_ends_behind_its_finish_reason(
    pieces: tuple[bytes, ...], is_whole: bool
) -> None:
    setup = PipelineSetup()
    setup.upstream.answers = [FakeReply(headers=SSE, pieces=pieces, is_delimited=False)]
    with contextlib.nullcontext() if is_whole else pytest.raises(UpstreamDisconnected):
        assert (await setup.ask(CHAT, {**HELLO, "stream": True}))[1] == FINISHED
    assert setup.recorder.exchanges[0].error == ("" if is_whole else "upstream_disconnected")


async def test_a_client_that_goes_away_mid_stream_closes_the_reply_and_is_in_the_ledger() -> None:
    setup = PipelineSetup()
    reply = FakeReply(headers=SSE, pieces=(b"data: 1\n\n", b"data: 2\n\n"))
    setup.upstream.answers = [reply]
    out = await setup.forward(setup.inbound(CHAT, {**HELLO, "stream": True}))
    async with aclosing(out.body) as body:  # type: ignore[type-var]
        await anext(body)
    assert reply.closed
    assert setup.recorder.exchanges[0].error == "client_disconnected"


async def test_usage_is_read_from_a_stream_that_is_compressed() -> None:
    setup = PipelineSetup()
    usage = {"prompt_tokens": 50, "completion_tokens": 2, "total_tokens": 52}
    stream = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
    packed = gzip.compress(stream)
    setup.upstream.answers = [
        FakeReply(headers=(*SSE, (b"content-encoding", b"gzip")), pieces=(packed[:20], packed[20:]))
    ]
    _, body = await setup.ask(CHAT, {**HELLO, "stream": True})
    assert body == packed
    assert setup.recorder.exchanges[0].usage is not None
    assert setup.recorder.exchanges[0].usage.input == 50


async def test_a_compressed_request_is_gauged_and_leaves_as_it_came() -> None:
    setup = PipelineSetup()
    packed = gzip.compress(json.dumps(HELLO).encode())
    out, _ = await setup.ask(CHAT, packed, {"Content-Encoding": "gzip"})
    assert header(out, "x-accordion-tokens") == "10"
    assert setup.upstream.requests[0].body == packed


# -- routes and keys ------------------------------------------------------------

ALIAS = Route("smart", "openai", "http://upstream.test/v1", model="real-1")
KEYED = replace(ALIAS, api_key="sk-model")
PROXY_KEY = "proxy-key-of-team"
KEYS = (ProxyKey("team", PROXY_KEY),)


# What no decoder takes: it must be known all the same whose it is.
ODD = b' {"a": [1e400, "\\ud800", NaN],\n\t"model" :  "smart" , "messages":[ ], "input": [{"model": "smart "}], "z":-0}'


@pytest.mark.parametrize("path", [CHAT, RESPONSES, "/v1/embeddings"])
@pytest.mark.parametrize("body", [b'{ "model":"smart" ,"messages":[ ], "n": 1.0 }', ODD])
async def test_an_alias_is_replaced_by_the_models_name_and_nothing_else(body: bytes, path: str) -> None:
    setup = PipelineSetup(router=FakeRouter(models={"smart": ALIAS}, only=ALIAS))
    await setup.ask(path, body, {"content-length": "45", "content-type": "application/json"})
    request = setup.upstream.requests[0]
    assert request.body == body.replace(b'"smart"', b'"real-1"')
    assert request.headers == ((b"content-type", b"application/json"),)


async def test_a_compressed_body_whose_model_is_an_alias_goes_on_plain() -> None:
    setup = PipelineSetup(router=FakeRouter(models={"smart": ALIAS}, only=ALIAS))
    packed = gzip.compress(b'{"model":"smart","messages":[]}')
    await setup.ask(CHAT, packed, {"Content-Encoding": "gzip", "Content-Length": "9", "x-a": "b"})
    request = setup.upstream.requests[0]
    assert request.body == b'{"model":"real-1","messages":[]}'
    assert request.headers == ((b"x-a", b"b"),)


async def test_a_compressed_body_that_cannot_be_read_still_has_its_alias_replaced() -> None:
    setup = PipelineSetup(router=FakeRouter(models={"smart": ALIAS}, only=ALIAS))
    body = b'{"model":"%b","messages":[' + b"[" * 3_000
    await setup.ask(CHAT, gzip.compress(body % b"smart"), {"Content-Encoding": "gzip", "x-a": "b"})
    (sent,) = setup.upstream.requests
    assert (sent.body, sent.headers) == (body % b"real-1", ((b"x-a", b"b"),))


WITH_KEY: list[dict[str, str]] = [
    {"Authorization": f"Bearer {PROXY_KEY}"},
    {"x-api-key": PROXY_KEY},
    {"x-accordion-key": PROXY_KEY},
    {"x-accordion-key": PROXY_KEY, "Authorization": f"Bearer {PROXY_KEY}"},
    {"x-api-key": PROXY_KEY, "Authorization": f"Bearer {PROXY_KEY}"},
]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/files?purpose=x"])
@pytest.mark.parametrize("headers", WITH_KEY, ids=" ".join)
async def test_a_proxy_key_never_reaches_a_provider(headers: dict[str, str], path: str) -> None:
    setup = PipelineSetup(keys=KEYS)
    out, body = await setup.ask(path, HELLO, headers)
    assert (out.status, setup.upstream.requests) == (401, [])
    assert b"provider key" in body


@pytest.mark.parametrize("more", [{}, {"x-api-key": PROXY_KEY, "api-key": f"Bearer {PROXY_KEY}"}])
async def test_beside_a_proxy_key_the_callers_own_credential_goes_on(more: dict[str, str]) -> None:
    setup = PipelineSetup(keys=KEYS)
    await setup.ask(CHAT, HELLO, {"Authorization": "Bearer sk-own", "x-accordion-key": PROXY_KEY, **more})
    assert setup.upstream.requests[0].headers == ((b"authorization", b"Bearer sk-own"),)


@EACH
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"x-accordion-key": ""}, {"x-api-key": f"{PROXY_KEY}x"}],
    ids=str,
)
async def test_nobody_enters_without_a_proxy_key_where_there_are_any(
    protocol: ProtocolSamples, headers: dict[str, str]
) -> None:
    setup = PipelineSetup(keys=KEYS)
    out, body = await setup.ask(protocol.path, protocol.body("Hello."), headers)
    error = protocol.error_of(body)
    assert error.get("code", error.get("type")) in ("invalid_api_key", "authentication_error", 401)
    unread, _ = await setup.ask("/v1/files", b"", headers, method="GET")
    assert (out.status, unread.status, setup.upstream.requests) == (401, 401, [])


async def test_configured_headers_are_added_in_place_of_the_callers() -> None:
    route = Route("smart", "openai", "http://upstream.test/v1", extra_headers=(("X-Team", "red"),))
    setup = PipelineSetup(router=FakeRouter(only=route))
    await setup.ask(CHAT, HELLO, {"x-team": "blue", "x-else": "1"})
    assert setup.upstream.requests[0].headers == ((b"x-else", b"1"), (b"x-team", b"red"))


async def test_a_provider_of_another_protocol_is_asked_by_translation() -> None:
    route = Route("smart", "litellm", model="bedrock/x", api_key="")

    class Translating:
        asked: tuple[Any, ...] = ()

        async def send(self, *asked: Any) -> FakeReply:
            self.asked = asked
            return FakeReply()

    setup = PipelineSetup(router=FakeRouter(only=route))
    translator = Translating()
    setup.replace_in("sender", translator=translator)
    await setup.ask(CHAT, HELLO, {"Authorization": "Bearer sk-own"})
    assert translator.asked[:4] == ("chat", json.dumps(HELLO).encode(), route, "sk-own")
    assert setup.upstream.requests == []


async def test_a_model_with_the_machines_credential_serves_this_machine_and_proxy_keys() -> None:
    cloud = Route("cloud", "litellm", model="bedrock/x", uses_machine_credentials=True)
    own = {"Authorization": "Bearer sk-own"}
    for setup, given, status in (
        (PipelineSetup(router=FakeRouter(only=cloud), loopback=False), own, 401),
        (PipelineSetup(router=FakeRouter(only=cloud), loopback=True), own, 502),
        (PipelineSetup(router=FakeRouter(only=cloud), keys=KEYS), {"x-api-key": "proxy-key-of-team"}, 502),
    ):

        class Refusing:
            async def send(self, *asked: Any) -> FakeReply:
                raise Unreachable("asked")

        setup.replace_in("sender", translator=Refusing())
        out, _ = await setup.ask(CHAT, HELLO, given)
        assert out.status == status


async def test_the_model_of_any_json_body_is_looked_for_where_models_are_configured() -> None:
    asked: list[str | None] = []

    class Noting(FakeRouter):
        def route(self, family: Family, model: str | None) -> Route:
            asked.append(model)
            return self.only

    for models in ({}, {"smart": ALIAS}):
        setup = PipelineSetup(router=Noting(models=models))
        await setup.ask("/v1/embeddings", {"input": "x", "model": "smart"})
    assert asked == [None, "smart"]


# -- the ledger -----------------------------------------------------------------


async def test_an_exchange_is_in_the_ledger_with_its_times_and_its_parent_span() -> None:
    setup = PipelineSetup()
    setup.upstream.answers = [fake_reply("chat", input=9)]
    await setup.ask(CHAT, HELLO, {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    (exchange,) = setup.recorder.exchanges
    assert (exchange.model, exchange.status, exchange.messages, exchange.finish) == ("m", 200, 1, "stop")
    assert exchange.usage is not None
    assert exchange.usage.input == 9
    assert setup.recorder.parents[0].startswith("00-aaaa")


async def test_sessions_and_models_are_seen_by_their_own_tenant_only() -> None:
    setup = PipelineSetup(loopback=False)
    for key in ("one", "two"):
        setup.upstream.answers = [fake_reply("chat", input=9)]
        await setup.ask(CHAT, HELLO, {"Authorization": f"Bearer {key}"})
    one, two = (setup.forward.tenants.identify({b"authorization": b"Bearer " + key}).tenant for key in (b"one", b"two"))
    (session,) = await setup.observe.list_sessions(one)
    assert session.totals.requests == 1
    assert session.totals.input == 9
    assert await setup.observe.find_session(two, session.id) is None
    view = await setup.observe.find_session(one, session.id)
    assert view is not None
    assert [exchange.usage.input for exchange in view.exchanges if exchange.usage] == [9]
    (model,) = await setup.observe.list_models(two)
    assert (model.row.model, model.row.totals.requests) == ("m", 1)


async def test_totals_of_several_workers_are_added_up() -> None:
    one = PipelineSetup()
    two = PipelineSetup(store=one.store)
    two.replace_in("ledger", worker="other")
    two.forward.reader.identifier.sessions.worker = "other"
    for setup in (one, two, one):
        setup.upstream.answers = [fake_reply("chat", input=10)]
        await setup.ask(CHAT, HELLO)
        await setup.outbox.flush()
    (session,) = await one.observe.list_sessions(TENANT)
    assert (session.totals.requests, session.totals.input) == (3, 30)
    (model,) = await two.observe.list_models(TENANT)
    assert (model.row.totals.requests, model.row.totals.output) == (3, 15)


async def test_a_session_shows_its_last_exchanges_from_all_workers_within_the_limit() -> None:
    one = PipelineSetup()
    two = PipelineSetup(store=one.store)
    two.forward.reader.identifier.sessions.worker = "other"
    for number in range(NEWEST_EXCHANGES + 2):
        setup = two if number == 1 else one
        setup.clock.advance(number)
        await setup.ask(CHAT, {**HELLO, "model": f"m-{number}"})
        await setup.outbox.flush()
        (session,) = await one.observe.list_sessions(TENANT)
        view = await one.observe.find_session(TENANT, session.id)
        assert view is not None
        assert [each.model for each in view.exchanges] == [f"m-{each}" for each in range(number + 1)][
            -NEWEST_EXCHANGES:
        ]


async def test_an_erased_exchange_does_not_come_back_with_one_that_was_under_way() -> None:
    setup = PipelineSetup()
    await setup.ask(CHAT, {**HELLO, "model": "erased"})
    (session,) = await setup.observe.list_sessions(TENANT)
    setup.upstream.answers = [FakeReply(headers=SSE, pieces=(b"data: [DONE]\n\n",))]
    out = await setup.forward(setup.inbound(CHAT, {**HELLO, "model": "under way", "stream": True}))
    assert await setup.observe.forget_sessions(TENANT, session.id) == [session.id]
    setup.forward.reader.identifier.sessions.forget(session.id)
    assert not isinstance(out.body, bytes)
    async for _ in out.body:
        pass
    view = await setup.observe.find_session(TENANT, session.id)
    assert view is not None
    assert [each.model for each in view.exchanges] == ["under way"]


async def test_erasing_a_session_during_a_response_leaves_only_totals_by_model() -> None:
    setup = PipelineSetup()
    setup.upstream.answers = [FakeReply(headers=SSE, pieces=(b"data: [DONE]\n\n",))]
    out = await setup.forward(setup.inbound(CHAT, {**HELLO, "stream": True}))
    caller, builder = setup.forward.tenants.identify({}), setup.builder
    setup.clock.advance(1.0)
    await erase(setup.observe, builder.export_and_erasure, builder.session_overrides, caller)
    assert not isinstance(out.body, bytes)
    async for _ in out.body:
        pass
    assert await setup.observe.list_sessions(TENANT) == []
    (model,) = await setup.observe.list_models(TENANT)
    assert (model.row.totals.requests, len(setup.recorder.exchanges)) == (1, 1)
    setup.clock.advance(1.0)
    await setup.ask(CHAT, HELLO)
    (session,) = await setup.observe.list_sessions(TENANT)
    assert session.totals.requests == 1


@pytest.mark.parametrize("said", ["prompt is too long: 5 tokens > 3 maximum", "maximum context length is 3"])
async def test_an_error_that_quotes_the_request_teaches_no_window(said: str) -> None:
    """Servers that validate what they get say what was wrong with it, word for word."""
    setup = PipelineSetup()
    quoting = f"1 validation error: input_value='Why {said}?'".encode()
    setup.upstream.answers = [FakeReply(status=400, pieces=(quoting,))]
    await setup.ask(CHAT, {"model": "m", "messages": [{"role": "user", "content": f"Why {said}?"}]})
    assert setup.windows.learnt == []
    setup.upstream.answers = [FakeReply(status=400, pieces=(said.encode(),))]
    await setup.ask(CHAT, HELLO)
    assert [learnt[-1] for learnt in setup.windows.learnt] == [3]


async def test_an_encoding_that_must_be_loaded_first_is_waited_for_in_a_thread() -> None:
    setup = PipelineSetup()
    setup.counter.ready = False
    await setup.ask(CHAT, HELLO)
    assert setup.tasks.offloaded == ["load"], "it is loaded in a thread, and the event loop counts first"


@pytest.mark.parametrize(
    ("path", "text", "is_packed", "offloaded"),
    [
        (CHAT, "short", False, []),
        (CHAT, "long " * 20_000, False, ["_read_body", "measure"]),
        (CHAT, "word " * 1_000_000, False, ["_read_body alone", "measure"]),
        # Nobody knows before how much a body is inflated to.
        (CHAT, "short", True, ["decode_body"]),
        ("/v1/embeddings", "short", True, []),
    ],
    ids=["short", "long", "very long", "compressed", "unread"],
)
async def test_what_takes_long_is_done_in_a_thread(path: str, text: str, is_packed: bool, offloaded: list[str]) -> None:
    setup = PipelineSetup(windows=FakeWindows(10_000_000))
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    body = gzip.compress(body) if is_packed else body
    out, _ = await setup.ask(path, body, {"Content-Encoding": "gzip"} if is_packed else {})
    assert (out.status, setup.tasks.offloaded, setup.upstream.requests[0].body) == (200, offloaded, body)


async def test_state_that_is_not_on_record_is_said_to_be_uncounted() -> None:
    setup = PipelineSetup()
    await setup.ask(RESPONSES, {"model": "m", "input": "go on", "previous_response_id": "resp_unknown"})
    assert "not on record and not counted" in setup.recorder.exchanges[0].decision


@pytest.mark.parametrize("room", ["read", "seat", "place", "resolve", "measure", "learn", "record", "tap"])
async def test_a_room_that_fails_does_not_fail_the_request(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = PipelineSetup()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError(room)

    forward, recorder = setup.forward, setup.forward.responder.recorder
    tracker = forward.reader.identifier.visibility.delegation_tracker
    where: Any = {
        "read": (type(forward.reader.receiver.body_reader), "read"),
        "resolve": (type(setup.sessions), "resolve"),
        "measure": (type(forward.reader.measurer.list_meter.token_meter), "measure"),
        "seat": (type(tracker), "find_position"),
        "place": (type(tracker), "attach_session"),
        "learn": (type(recorder.calibrator.calibrations), "learn"),
        "record": (type(recorder.ledger), "record"),
        "tap": (type(PROTOCOLS["chat"].observer(False)), "feed"),
    }[room]
    monkeypatch.setattr(*where, broken)
    answer = fake_reply("chat", input=9)
    setup.upstream.answers = [answer]
    out, body = await setup.ask(CHAT, HELLO)
    assert (out.status, body) == (200, answer.pieces[0])
    assert setup.upstream.requests[0].body == json.dumps(HELLO).encode()


async def test_a_malformed_header_of_ours_is_refused_with_its_name() -> None:
    setup = PipelineSetup()
    out, body = await setup.ask(CHAT, HELLO, {"x-accordion-session": "no"})
    assert (out.status, json.loads(body)["error"]["param"]) == (400, "x-accordion-session")
    assert setup.upstream.requests == []


async def test_an_absurd_count_in_a_reply_spoils_nothing() -> None:
    setup = PipelineSetup()
    setup.upstream.answers = [fake_reply("chat", input=2**70), fake_reply("chat", input=9)]
    for _ in range(2):
        await setup.ask(CHAT, HELLO)
    (session,) = await setup.observe.list_sessions(TENANT)
    assert (session.totals.requests, session.totals.input) == (2, 9)


async def test_a_models_name_of_a_megabyte_is_in_no_list() -> None:
    setup = PipelineSetup()
    await setup.ask(CHAT, {**HELLO, "model": "m" * 2**20})
    assert await setup.observe.list_models(TENANT) == []


async def test_totals_never_fall_when_a_model_leaves_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accordion.accounting.ledger._MODELS", 2)
    setup = PipelineSetup()
    for model in ("a", "a", "b", "c", "d", "a"):
        await setup.ask(CHAT, {**HELLO, "model": model})
    found = {view.row.model: view.row.totals.requests for view in await setup.observe.list_models(TENANT)}
    assert found == {"a": 3, "b": 1, "c": 1, "d": 1}


async def test_a_body_that_a_translated_model_cannot_read_is_refused_as_such() -> None:
    route = Route("smart", "litellm", model="bedrock/x")
    setup = PipelineSetup(router=FakeRouter(only=route, models={"smart": route}))
    out, body = await setup.ask(CHAT, b'{"model":"smart"')
    assert out.status == 400
    assert "could not be read" in json.loads(body)["error"]["message"]


async def test_a_body_of_too_many_messages_goes_on_unread_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = PipelineSetup()
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}] * 20_001}).encode()
    out, _ = await setup.ask(CHAT, raw)
    assert (out.status, setup.upstream.requests[0].body) == (200, raw)
    assert header(out, "x-accordion-session") is None
    why = "more than the 20,000 messages of limits.messages_per_request"
    assert header(out, "x-accordion-unread") == why
    assert setup.recorder.exchanges[0].decision == f"not read: it holds {why}"
    await setup.ask(CHAT, raw)
    assert caplog.text.count(why) == 1


async def test_a_body_of_too_many_messages_keeps_its_alias_and_the_models_own_key() -> None:
    setup = PipelineSetup(keys=KEYS, router=FakeRouter(models={"smart": KEYED}, only=KEYED))
    raw = json.dumps({"model": "smart", "messages": [{"role": "user", "content": "a"}] * 20_001}).encode()
    out, _ = await setup.ask(CHAT, raw, {"Authorization": "Bearer proxy-key-of-team"})
    (sent,) = setup.upstream.requests
    assert (out.status, sent.headers) == (200, ((b"authorization", b"Bearer sk-model"),))
    assert sent.body == raw.replace(b'"smart"', b'"real-1"')
    refused, _ = await setup.ask(CHAT, raw, {"Authorization": "Bearer wrong"})
    assert (refused.status, len(setup.upstream.requests)) == (401, 1)


async def test_a_long_first_request_is_read_in_a_thread_and_the_next_one_directly() -> None:
    setup = PipelineSetup()
    messages = [{"role": "user", "content": f"turn {number}"} for number in range(2_000)]
    await setup.ask(CHAT, {"messages": messages, "model": "m"})
    assert setup.tasks.offloaded[0] == "_read_body"
    setup.tasks.offloaded.clear()
    await setup.ask(CHAT, {"messages": [*messages, {"role": "user", "content": "next"}], "model": "m"})
    assert "_read_body" not in setup.tasks.offloaded


def test_the_flow_of_a_request_can_be_read_on_one_page() -> None:
    """A new step is a module of its own, not a branch in forward.py."""
    assert len(Path(forward.__file__).read_text("utf-8").splitlines()) <= 150
