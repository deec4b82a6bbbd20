"""A summary is asked for in the request's own name, of its own model or a configured one, and never costs a secret."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from accordion.accounting.calibration import LearnedLimits
from accordion.model.budget import Window
from accordion.model.errors import SummaryFailed, Unreachable, UpstreamDisconnected
from accordion.model.ports import (
    Headers,
    Route,
    SummaryCaller,
    SummaryLimits,
    SummaryRequest,
    SummaryResponse,
    WindowTable,
)
from accordion.protocols.registry import PROTOCOLS
from accordion.providers.http.client import HttpUpstream
from accordion.providers.http.routes import ModelEntry, RouteTable, Upstreams, routes_from
from accordion.providers.http.transport import AiohttpTransport, TransportTimeouts
from accordion.providers.models.summarizer import BoundedSummarizer, ModelSummarizer, find_fault
from accordion.providers.models.windows import ModelWindows
from accordion.summaries.author import SummaryRejected
from accordion.summaries.schema import answer_schema
from tests.fakes import FakeReply, FakeUpstream, FakeWindows
from tests.loopback import Answer, Loopback, Recorded, replies_json
from tests.summary_samples import ASKER

REQUEST = SummaryRequest("Keep the record.", "message 0: the secret plan", 500)
REPLIES: dict[str, dict[str, Any]] = {
    "chat": {
        "id": "c1",
        "model": "gpt-4o-2024",
        "choices": [{"message": {"role": "assistant", "content": " the record "}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}},
    },
    "responses": {
        "id": "r1",
        "model": "gpt-4o-2024",
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "the record"}]},
        ],
        "usage": {"input_tokens": 90, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 40}},
    },
    "messages": {
        "id": "m1",
        "model": "gpt-4o-2024",
        "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "the record"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 50, "cache_read_input_tokens": 40, "output_tokens": 9},
    },
    "gemini": {
        "candidates": [
            {"content": {"parts": [{"text": "hm", "thought": True}, {"text": "the record"}]}, "finishReason": "STOP"}
        ],
        "modelVersion": "gpt-4o-2024",
        "usageMetadata": {
            "promptTokenCount": 90, "cachedContentTokenCount": 40, "candidatesTokenCount": 7, "thoughtsTokenCount": 2
        },
    },
    "converse": {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}}, {"text": "the record"}
                ],
            }
        },
        "stopReason": "end_turn",
        "usage": {"inputTokens": 50, "cacheReadInputTokens": 40, "outputTokens": 9, "totalTokens": 99},
    },
}  # fmt: skip
URLS = {
    "chat": "http://openai.test/v1/chat/completions",
    "responses": "http://openai.test/v1/responses",
    "messages": "http://anthropic.test/v1/messages",
    "gemini": "http://google.test/v1beta/models/gpt-4o:generateContent",
    "converse": "http://bedrock.test/model/gpt-4o/converse",
}
INSTRUCTIONS: dict[str, Callable[[Any], Any]] = {
    "chat": lambda sent: sent["messages"][0]["content"],
    "responses": lambda sent: sent["instructions"],
    "messages": lambda sent: sent["system"],
    "gemini": lambda sent: sent["systemInstruction"]["parts"][0]["text"],
    "converse": lambda sent: sent["system"][0]["text"],
}
"""Where the instructions are in a request."""
HEADERS: Headers = (
    (b"host", b"proxy.test"),
    (b"authorization", b"Bearer callers-own"),
    (b"x-api-key", b"callers-own"),
    (b"anthropic-version", b"2023-06-01"),
    (b"anthropic-beta", b"context-1m-2025-08-07"),
    (b"user-agent", b"agent/1.0"),
    (b"content-length", b"12345"),
    (b"content-type", b"application/json; charset=utf-8"),
    (b"content-encoding", b"gzip"),
    (b"accept-encoding", b"gzip, br"),
    (b"x-accordion-session", b"s1"),
    (b"x-claude-code-session-id", b"s2"),
)


def routes(*entries: ModelEntry) -> RouteTable:
    upstreams: Upstreams = {
        "openai": ("http://openai.test/v1", "operators"),
        "anthropic": ("http://anthropic.test", ""),
        "gemini": ("http://google.test", ""),
        "bedrock": ("http://bedrock.test", ""),
    }
    return routes_from(entries, upstreams)


def build_caller(protocol_name: str = "chat", router: RouteTable | None = None, **changes: Any) -> SummaryCaller:
    router = router or routes()
    route = router.route(PROTOCOLS[protocol_name].family, None)
    return replace(SummaryCaller("t", route, protocol_name, "gpt-4o", HEADERS, credential="callers-own"), **changes)


def build_reply(protocol_name: str = "chat", **changes: Any) -> FakeReply:
    return FakeReply(pieces=(json.dumps(REPLIES[protocol_name] | changes).encode(),))


def build_summarizer(
    upstream: FakeUpstream | None = None,
    translator: FakeTranslator | None = None,
    router: RouteTable | None = None,
    model: str = "",
    windows: WindowTable | None = None,
) -> ModelSummarizer:
    return ModelSummarizer(
        upstream or FakeUpstream([build_reply()]),
        translator or FakeTranslator(),
        router or routes(),
        windows or FakeWindows(),
        PROTOCOLS,
        model=model,
    )


class FakeTranslator:
    """Answers as the protocol does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], Route, str]] = []

    async def send(
        self, protocol_name: str, body: bytes, route: Route, credential: str, request_id: str = ""
    ) -> FakeReply:
        self.asked.append((protocol_name, json.loads(body), route, credential))
        return build_reply(protocol_name)

    async def close(self) -> None:
        return


# -- the request's own model -------------------------------------------------------


@pytest.mark.parametrize("protocol_name", PROTOCOLS)
async def test_the_requests_own_model_is_asked_at_its_own_provider(protocol_name: str) -> None:
    upstream = FakeUpstream([build_reply(protocol_name)])
    reply = await build_summarizer(upstream).write(REQUEST, build_caller(protocol_name))
    assert reply.text == "the record"
    # Bedrock does not name the model in a response.
    assert reply.model == ("gpt-4o" if protocol_name == "converse" else "gpt-4o-2024")
    assert (reply.input, reply.output) == (90, 9)
    (request,) = upstream.requests
    assert request.url == URLS[protocol_name]
    assert request.method == "POST"
    sent = json.loads(request.body)
    assert sent.get("model", "gpt-4o") == "gpt-4o"
    assert not sent.get("stream")
    assert ("stream" in sent) is (protocol_name not in ("gemini", "converse"))
    assert "temperature" not in sent
    assert sent.get("store", False) is False
    assert ("store" in sent) is (protocol_name == "responses")
    text = json.dumps(sent)
    assert "Keep the record." in text
    assert "message 0: the secret plan" in text


@pytest.mark.parametrize("protocol_name", PROTOCOLS)
async def test_instructions_and_transcript_never_share_a_role(protocol_name: str) -> None:
    upstream = FakeUpstream([build_reply(protocol_name)])
    await build_summarizer(upstream).write(REQUEST, build_caller(protocol_name))
    sent = json.loads(upstream.requests[0].body)
    if protocol_name == "chat":
        assert [entry["role"] for entry in sent["messages"]] == ["system", "user"]
    assert INSTRUCTIONS[protocol_name](sent) == "Keep the record."


async def test_only_headers_that_say_who_asks_go_along() -> None:
    upstream = FakeUpstream([build_reply()])
    await build_summarizer(upstream).write(REQUEST, build_caller())
    assert dict(upstream.requests[0].headers) == {
        b"authorization": b"Bearer callers-own",
        b"x-api-key": b"callers-own",
        b"anthropic-version": b"2023-06-01",
        b"anthropic-beta": b"context-1m-2025-08-07",
        b"user-agent": b"agent/1.0",
        b"content-type": b"application/json",
        b"accept-encoding": b"identity",
    }


async def test_a_routes_alias_and_headers_are_used() -> None:
    route = Route(
        "fast", "openai", "http://own.test/v1", model="real-name", extra_headers=(("User-Agent", "gw"), ("X-Org", "o"))
    )
    upstream = FakeUpstream([build_reply()])
    await build_summarizer(upstream).write(REQUEST, build_caller(route=route, model="fast"))
    (request,) = upstream.requests
    assert json.loads(request.body)["model"] == "real-name"
    assert [value for name, value in request.headers if name == b"user-agent"] == [b"gw"]
    assert (b"x-org", b"o") in request.headers


async def test_anthropic_is_told_a_version_where_the_client_did_not() -> None:
    upstream = FakeUpstream([build_reply("messages")])
    await build_summarizer(upstream).write(REQUEST, build_caller("messages", headers=((b"x-api-key", b"k"),)))
    assert (b"anthropic-version", b"2023-06-01") in upstream.requests[0].headers


async def test_a_translated_model_is_asked_by_translation() -> None:
    translator, upstream = FakeTranslator(), FakeUpstream()
    route = Route("gemini", "litellm", model="gemini/gemini-2.5-pro")
    reply = await build_summarizer(upstream, translator).write(REQUEST, build_caller(route=route, model="gemini"))
    assert reply.text == "the record"
    assert not upstream.requests
    ((protocol_name, body, asked, credential),) = translator.asked
    assert (protocol_name, asked, credential) == ("chat", route, "callers-own")
    assert body["model"] == "gemini/gemini-2.5-pro"


# -- the longest answer, and the room ----------------------------------------------


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("gpt-4o", "max_completion_tokens"),
        ("openai/gpt-5.6", "max_completion_tokens"),
        ("o3-mini", "max_completion_tokens"),
        ("llama-4-maverick", "max_tokens"),
        ("mistral-large", "max_tokens"),
    ],
)
async def test_the_longest_answer_is_named_as_the_model_knows_it(model: str, field: str) -> None:
    upstream = FakeUpstream([build_reply()])
    await build_summarizer(upstream).write(REQUEST, build_caller(model=model))
    sent = json.loads(upstream.requests[0].body)
    assert [name for name in sent if name.startswith("max")] == [field]
    assert sent[field] == 6_500


async def test_a_server_that_knows_the_other_name_is_asked_once_more() -> None:
    refusal = {"error": {"message": "Unsupported parameter: 'max_tokens'.", "code": "unsupported_parameter"}}
    refused = FakeReply(400, pieces=(json.dumps(refusal).encode(),))
    upstream = FakeUpstream([refused, build_reply()])
    assert (await build_summarizer(upstream).write(REQUEST, build_caller(model="my-alias"))).text == "the record"
    assert "max_completion_tokens" in json.loads(upstream.requests[1].body)
    upstream = FakeUpstream([refused, dataclasses.replace(refused), build_reply()])
    with pytest.raises(SummaryFailed, match="unsupported_parameter"):
        await build_summarizer(upstream).write(REQUEST, build_caller(model="my-alias"))
    assert len(upstream.requests) == 2


SCHEMA = answer_schema("generation")
SCHEMA_FIELDS: dict[str, Callable[[Any], Any]] = {
    "chat": lambda sent: sent["response_format"]["json_schema"]["schema"],
    "responses": lambda sent: sent["text"]["format"]["schema"],
    "messages": lambda sent: sent["output_config"]["format"]["schema"],
    "gemini": lambda sent: sent["generationConfig"]["responseSchema"],
    "converse": lambda sent: json.loads(sent["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]),
}
"""Where the schema of the answer is in a request."""


@pytest.mark.parametrize("protocol_name", PROTOCOLS)
async def test_structured_output_is_requested_until_a_model_refuses_it(protocol_name: str) -> None:
    refused = FakeReply(400, pieces=(b'{"error": {"message": "Unknown field", "code": "unknown_field"}}',))
    accepted = build_reply(protocol_name)
    upstream = FakeUpstream([accepted, refused, dataclasses.replace(accepted), dataclasses.replace(accepted)])
    summarizer, request = build_summarizer(upstream), replace(REQUEST, schema=SCHEMA)
    for _ in range(3):
        assert (await summarizer.write(request, build_caller(protocol_name))).text == "the record"
    first, second, *others = [json.loads(each.body) for each in upstream.requests]
    schema = SCHEMA_FIELDS[protocol_name](first)
    assert list(schema["properties"]["lines"]["items"]["properties"]) == ["section", "text", "sources"]
    assert second == first
    assert len(others) == 2
    for sent in others:
        assert "section" not in json.dumps(sent)
        with pytest.raises(KeyError):
            SCHEMA_FIELDS[protocol_name](sent)


async def test_a_refusal_of_structured_output_outlives_the_proxy() -> None:
    windows = ModelWindows(LearnedLimits(lambda: 0.0))
    refused = FakeReply(400, pieces=(b'{"error": {"message": "Unknown field", "code": "unknown_field"}}',))
    upstream, request = FakeUpstream([refused, build_reply(), build_reply()]), replace(REQUEST, schema=SCHEMA)
    for _ in range(2):
        await build_summarizer(upstream, windows=windows).write(request, build_caller())
    assert ["response_format" in json.loads(each.body) for each in upstream.requests] == [True, False, False]


async def test_a_refusal_without_a_schema_too_is_no_refusal_of_the_schema() -> None:
    refused = FakeReply(400, pieces=(b'{"error": {"message": "Too long", "code": "context_length_exceeded"}}',))
    upstream = FakeUpstream([refused, dataclasses.replace(refused), build_reply()])
    summarizer, request = build_summarizer(upstream), replace(REQUEST, schema=SCHEMA)
    with pytest.raises(SummaryFailed, match="context_length_exceeded"):
        await summarizer.write(request, build_caller())
    await summarizer.write(request, build_caller())
    assert ["response_format" in json.loads(each.body) for each in upstream.requests] == [True, False, True]


async def test_a_server_that_refuses_two_fields_is_asked_without_both() -> None:
    texts = ("Unsupported parameter: 'max_tokens'.", "Unsupported parameter: 'response_format'.")
    refusals = [FakeReply(400, pieces=(json.dumps({"error": {"message": text}}).encode(),)) for text in texts]
    upstream = FakeUpstream([*refusals, build_reply(), build_reply()])
    summarizer, request = build_summarizer(upstream), replace(REQUEST, schema=SCHEMA)
    for _ in range(2):
        await summarizer.write(request, build_caller(model="my-alias"))
    sent = [json.loads(each.body).keys() & {"max_completion_tokens", "response_format"} for each in upstream.requests]
    assert sent == [{"response_format"}, {"max_completion_tokens", "response_format"}, *[{"max_completion_tokens"}] * 2]


class ShapedWindows(FakeWindows):
    """One window of any shape."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.shape, self.asked = window, list[tuple[str, str, str, str]]()

    def window(self, model: str, upstream: str = "", beta: str = "", tenant: str = "") -> Window:
        self.asked.append((model, upstream, beta, tenant))
        return self.shape


@pytest.mark.parametrize(
    ("window", "room"),
    [
        (Window(200_000, 200_000, "table"), 184_000),
        (Window(400_000, 272_000, "table"), 272_000),
        (Window(8_000, 8_000, "config"), 6_000),
        (Window(128_000, 120_000, "table", max_output=4_096), 120_000),
        (Window(100_000, 100_000, "table", max_output=4_096), 95_904),
    ],
)
def test_the_room_is_the_window_less_the_answer(window: Window, room: int) -> None:
    windows = ShapedWindows(window)
    assert build_summarizer(windows=windows).limits(build_caller()).input == room
    assert windows.asked == [("gpt-4o", "openai", "context-1m-2025-08-07", "t")]


async def test_no_answer_is_asked_for_that_the_window_has_no_room_for() -> None:
    upstream = FakeUpstream([build_reply()])
    await build_summarizer(upstream, windows=ShapedWindows(Window(8_000, 8_000, "config"))).write(
        REQUEST, build_caller()
    )
    assert json.loads(upstream.requests[0].body)["max_completion_tokens"] == 2_000


# -- a configured model, and whose credential goes where ---------------------------

MINI = ModelEntry("mini", "openai/gpt-4o-mini", api_key="operators-own")
HAIKU = ModelEntry("haiku", "anthropic/claude-haiku-4-5", api_key="operators-own")
AMBIENT = ModelEntry("nova", "bedrock/nova")


async def test_a_configured_model_of_the_same_provider_gets_the_callers_credential() -> None:
    router, upstream = routes(MINI), FakeUpstream([build_reply()])
    await build_summarizer(upstream, router=router, model="mini").write(REQUEST, build_caller(router=router))
    (request,) = upstream.requests
    assert json.loads(request.body)["model"] == "gpt-4o-mini"
    assert dict(request.headers)[b"authorization"] == b"Bearer callers-own"
    assert b"operators" not in repr(request.headers).encode()


async def test_a_models_own_key_is_used_for_callers_with_a_proxy_key() -> None:
    router, upstream = routes(MINI), FakeUpstream([build_reply()])
    await build_summarizer(upstream, router=router, model="mini").write(
        REQUEST, build_caller(router=router, can_use_configured_keys=True)
    )
    assert [pair for pair in upstream.requests[0].headers if b"own" in pair[1]] == [
        (b"authorization", b"Bearer operators-own")
    ]


async def test_keys_in_a_models_headers_are_not_for_every_caller() -> None:
    headers = (("Authorization", "Bearer operators-own"), ("X-Org", "o"))
    entry = ModelEntry("mini", "openai/gpt-4.1-mini", extra_headers=headers)
    router, upstream = routes(entry), FakeUpstream([build_reply(), build_reply()])
    for can_use_configured_keys in (False, True):
        await build_summarizer(upstream, router=router, model="mini").write(
            REQUEST, build_caller(router=router, can_use_configured_keys=can_use_configured_keys)
        )
    stranger, local = (dict(request.headers) for request in upstream.requests)
    assert (stranger[b"authorization"], stranger[b"x-org"]) == (b"Bearer callers-own", b"o")
    assert local[b"authorization"] == b"Bearer operators-own"


AWAY = ModelEntry("away", "openai/x", api_base="http://elsewhere.test/v1")
CLAUDE = ModelEntry("claude", "anthropic/claude-haiku-4-5")


@pytest.mark.parametrize(
    ("entry", "can_use_configured_keys", "reason"),
    [
        (HAIKU, False, "haiku is called only for callers with a proxy key, or of this machine"),
        (AWAY, False, "away is called only for callers with a proxy key, or of this machine"),
        (AMBIENT, False, "nova is called only for callers with a proxy key, or of this machine"),
        (CLAUDE, True, "claude has no key or address of its own, and the caller's key is for another provider"),
        (CLAUDE, False, "claude has no key or address of its own, and the caller's key is for another provider"),
    ],
)
async def test_a_credential_never_goes_to_another_provider(
    entry: ModelEntry, can_use_configured_keys: bool, reason: str
) -> None:
    router, upstream, translator = routes(entry), FakeUpstream(), FakeTranslator()
    summarizer = build_summarizer(upstream, translator, router, entry.name)
    caller = build_caller(router=router, can_use_configured_keys=can_use_configured_keys)
    with pytest.raises(SummaryFailed, match=reason):
        summarizer.limits(caller)
    with pytest.raises(SummaryFailed, match=reason):
        await summarizer.write(REQUEST, caller)
    assert not upstream.requests
    assert not translator.asked


async def test_a_model_with_an_address_and_no_key_is_asked_without_one() -> None:
    router, upstream = routes(AWAY), FakeUpstream([build_reply()])
    summarizer = build_summarizer(upstream, router=router, model="away")
    await summarizer.write(REQUEST, build_caller(router=router, can_use_configured_keys=True))
    (request,) = upstream.requests
    assert request.url == "http://elsewhere.test/v1/chat/completions"
    assert "own" not in repr(request.headers)


async def test_a_configured_model_of_another_protocol_is_asked_by_translation() -> None:
    router, translator = routes(HAIKU), FakeTranslator()
    summarizer = build_summarizer(None, translator, router, "haiku")
    await summarizer.write(
        REQUEST, build_caller(router=router, can_use_configured_keys=True, credential="another-operators")
    )
    ((protocol_name, body, route, credential),) = translator.asked
    assert (protocol_name, route.family, credential) == ("chat", "litellm", "operators-own")
    assert body["model"] == "anthropic/claude-haiku-4-5"


async def test_a_machines_identity_is_lent_to_callers_with_a_proxy_key_only() -> None:
    router, translator = routes(AMBIENT), FakeTranslator()
    summarizer = build_summarizer(None, translator, router, "nova")
    await summarizer.write(REQUEST, build_caller(router=router, can_use_configured_keys=True))
    assert translator.asked[0][3] == ""


@pytest.mark.parametrize("own", [None, "real-name"])
async def test_a_model_that_is_not_configured_is_asked_where_the_request_goes(own: str | None) -> None:
    upstream, windows = FakeUpstream([build_reply()]), ShapedWindows(Window(100_000, 100_000, "table"))
    route = replace(routes().route("openai", None), model=own)
    summarizer = build_summarizer(upstream, router=routes(MINI), model="gpt-4.1-mini", windows=windows)
    assert summarizer.limits(build_caller(route=route)) == SummaryLimits(84_000, 16_000)
    await summarizer.write(REQUEST, build_caller(route=route))
    (request,) = upstream.requests
    assert request.url == "http://openai.test/v1/chat/completions"
    assert json.loads(request.body)["model"] == "gpt-4.1-mini"
    assert dict(request.headers)[b"authorization"] == b"Bearer callers-own"
    assert {asked[0] for asked in windows.asked} == {"gpt-4.1-mini"}


@pytest.mark.parametrize("named", ["gemini-2.5-flash", "gemini/gemini-2.5-flash"])
async def test_it_is_asked_of_the_same_provider_in_translation_too(named: str) -> None:
    translator, route = FakeTranslator(), Route("pro", "litellm", model="gemini/gemini-2.5-pro")
    await build_summarizer(translator=translator, model=named).write(REQUEST, build_caller(route=route, model="pro"))
    ((_, body, asked, credential),) = translator.asked
    assert (body["model"], asked.model, credential) == (
        "gemini/gemini-2.5-flash",
        "gemini/gemini-2.5-flash",
        "callers-own",
    )


async def test_the_name_of_another_provider_does_not_take_a_credential_there() -> None:
    translator, route = FakeTranslator(), Route("pro", "litellm", model="gemini/gemini-2.5-pro")
    await build_summarizer(translator=translator, model="openai/gpt-4o-mini").write(
        REQUEST, build_caller(route=route, model="pro")
    )
    assert translator.asked[0][2].model == "gemini/openai/gpt-4o-mini"


# -- what goes wrong ---------------------------------------------------------------

ERROR = {
    "error": {"message": "Incorrect API key provided: callers-own. Prompt: the secret plan", "code": "invalid_api_key"}
}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Unreachable("No connection to openai.test"), "upstream_unreachable"),
        (FakeReply(pieces=(b"{",), error=UpstreamDisconnected("cut")), "upstream_disconnected"),
        (FakeReply(401, pieces=(json.dumps(ERROR).encode(),)), "status 401 \\(invalid_api_key\\)"),
        (FakeReply(500, pieces=(b"<html>the secret plan</html>",)), "status 500$"),
        (FakeReply(200, pieces=(json.dumps(ERROR).encode(),)), "status 200 \\(invalid_api_key\\)"),
        (FakeReply(pieces=(b"data: {}\n\n",)), "not JSON"),
        (FakeReply(pieces=(b"[]",)), "answered nothing"),
        (build_reply(choices=[]), "answered nothing"),
        (build_reply(choices=[{"message": {"content": None}}]), "answered nothing"),
        (build_reply(choices=[{"message": {"content": ""}, "finish_reason": "length"}]), "cut short"),
        (build_reply(choices=[{"message": {"content": "no"}, "finish_reason": "content_filter"}]), "refused"),
        (FakeReply(pieces=(b" " * (5 << 20),)), "too large"),
    ],
)
async def test_any_error_is_a_failed_summary_with_a_plain_reason(
    answer: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(SummaryFailed, match=said) as error:
        await build_summarizer(FakeUpstream([answer])).write(REQUEST, build_caller())
    told = str(error.value) + caplog.text
    assert "secret plan" not in told
    assert "callers-own" not in told
    assert not isinstance(answer, FakeReply) or answer.closed


@pytest.mark.parametrize("finish", ["content_filter", "SAFETY", "content_filtered", "guardrail_intervened"])
def test_a_filter_of_any_provider_is_a_refusal(finish: str) -> None:
    assert find_fault(finish, "no") == "the model refused"


_CUT: dict[str, Any] = {"chat": {"choices": [{"message": {"content": "half"}, "finish_reason": "length"}]}}
_CUT["responses"] = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
_CUT["messages"] = {"stop_reason": "max_tokens"}
_CUT["gemini"] = {"candidates": [{"content": {"parts": [{"text": "half"}]}, "finishReason": "MAX_TOKENS"}]}
_CUT["converse"] = {"stopReason": "max_tokens"}


@pytest.mark.parametrize("protocol_name", _CUT)
async def test_the_text_of_an_answer_that_was_cut_off_is_used(protocol_name: str) -> None:
    upstream = FakeUpstream([build_reply(protocol_name, **_CUT[protocol_name])])
    assert (await build_summarizer(upstream).write(REQUEST, build_caller(protocol_name))).text in ("half", "the record")


_CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {}}]}


@pytest.mark.parametrize(
    ("protocol_name", "changes", "said"),
    [
        ("messages", {"stop_reason": "max_tokens", "content": []}, "cut short"),
        ("chat", {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}, "answered nothing"),
        ("chat", {"choices": [{"message": _CALL, "finish_reason": "tool_calls"}]}, "answered nothing"),
        ("chat", {"choices": [{"message": {"content": "no"}, "finish_reason": "content_filter"}]}, "refused"),
        ("gemini", {"candidates": [{"content": {"parts": [{"text": "no"}]}, "finishReason": "SAFETY"}]}, "refused"),
        ("gemini", {"candidates": [{"content": {}, "finishReason": "STOP"}]}, "answered nothing"),
        ("responses", {"status": "failed", "error": {"code": "server_error"}}, "status 200"),
    ],
)
async def test_an_answer_that_is_of_no_use_is_told_with_what_it_cost(
    protocol_name: str, changes: Any, said: str
) -> None:
    with pytest.raises(SummaryRejected, match=said) as error:
        await build_summarizer(FakeUpstream([build_reply(protocol_name, **changes)])).write(
            REQUEST, build_caller(protocol_name)
        )
    assert (error.value.input, error.value.output) == (90, 9)


async def test_an_answer_in_parts_is_put_together() -> None:
    content = [{"type": "text", "text": "the "}, {"type": "text", "text": "record"}]
    upstream = FakeUpstream([build_reply(choices=[{"message": {"content": content}, "finish_reason": "stop"}])])
    assert (await build_summarizer(upstream).write(REQUEST, build_caller())).text == "the record"


async def test_an_answer_without_usage_costs_what_is_not_known() -> None:
    reply = await build_summarizer(FakeUpstream([build_reply(usage=None, model=None)])).write(REQUEST, build_caller())
    assert (reply.model, reply.input, reply.output) == ("gpt-4o", 0, 0)


# -- over real sockets -------------------------------------------------------------


async def test_a_summary_is_had_of_a_real_provider_even_compressed() -> None:
    body = gzip.compress(json.dumps(REPLIES["chat"]).encode())

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "application/json"), ("Content-Encoding", "gzip")], length=len(body))
        await answer.send(body)

    async with Loopback(script) as server:
        upstream = HttpUpstream(AiohttpTransport(TransportTimeouts(connect=5, read=5)))
        router = routes_from([], {"openai": (server.url + "/v1", "")})
        summarizer = ModelSummarizer(upstream, FakeTranslator(), router, FakeWindows(), PROTOCOLS)
        reply = await summarizer.write(REQUEST, build_caller(router=router))
        await upstream.close()
    assert reply.text == "the record"
    (request,) = server.requests
    assert request.target == "/v1/chat/completions"
    assert request.header("host") == server.host
    assert request.header("accept-encoding") == "identity"
    assert request.header("content-length") == str(len(request.body))
    assert request.header("content-encoding") is None
    assert request.header("x-accordion-session") is None


async def test_a_summary_that_is_given_up_lets_its_connection_go() -> None:
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "application/json")], length=1000)
        await answer.until_gone()

    async with Loopback(script) as server:
        upstream = HttpUpstream(AiohttpTransport(TransportTimeouts(connect=5, read=60)))
        router = routes_from([], {"openai": (server.url + "/v1", "")})
        summarizer = ModelSummarizer(upstream, FakeTranslator(), router, FakeWindows(), PROTOCOLS)
        work = asyncio.ensure_future(summarizer.write(REQUEST, build_caller(router=router)))
        await server.until(lambda: server.requests)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await server.all_gone()
        await upstream.close()


async def test_a_real_provider_that_refuses_is_a_failed_summary() -> None:
    async with Loopback(replies_json(ERROR, 429)) as server:
        upstream = HttpUpstream(AiohttpTransport(TransportTimeouts(connect=5, read=5)))
        router = routes_from([], {"openai": (server.url + "/v1", "")})
        summarizer = ModelSummarizer(upstream, FakeTranslator(), router, FakeWindows(), PROTOCOLS)
        with pytest.raises(SummaryFailed, match="status 429"):
            await summarizer.write(REQUEST, build_caller(router=router))
        await upstream.close()


SHORT_REQUEST = SummaryRequest("Sum up.", "What was said.", 100)


class DelayedSummarizer:
    """A model that answers once it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked = 0

    def limits(self, asker: SummaryCaller) -> SummaryLimits:
        return SummaryLimits(7, 3)

    async def write(self, request: SummaryRequest, asker: SummaryCaller) -> SummaryResponse:
        self.asked += 1
        await self.may.wait()
        return SummaryResponse("Done.", "its-own-name", 30, 4)


async def test_what_each_answer_took_is_told_under_the_name_that_was_asked_for():
    held, spent = DelayedSummarizer(), list[tuple[str, int, int]]()
    held.may.set()
    bounded = BoundedSummarizer(held, lambda *cost: spent.append(cost), max_concurrent=1, seconds=60)
    assert bounded.limits(ASKER) == SummaryLimits(7, 3)
    assert (await bounded.write(SHORT_REQUEST, ASKER)).text == "Done."
    assert spent == [("gpt-4o", 30, 4)]


async def test_more_than_its_share_is_not_asked_at_once_and_all_have_their_turn():
    held = DelayedSummarizer()
    bounded = BoundedSummarizer(held, lambda *cost: None, max_concurrent=2, seconds=60)
    asked = [asyncio.ensure_future(bounded.write(SHORT_REQUEST, ASKER)) for _ in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert held.asked == 2
    held.may.set()
    assert len(await asyncio.gather(*asked)) == held.asked == 5


async def test_a_timeout_is_reported_and_blocks_nobody():
    held = DelayedSummarizer()
    bounded = BoundedSummarizer(held, lambda *cost: None, max_concurrent=1, seconds=0.01)
    for _ in range(3):
        with pytest.raises(SummaryFailed, match="did not answer within"):
            await bounded.write(SHORT_REQUEST, ASKER)
    assert held.asked == 3
