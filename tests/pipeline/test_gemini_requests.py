"""Requests in Google's protocol: who sent them, where they go, and what of them is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.http import Inbound, without_query_credentials
from accordion.model.ports import SummaryCaller
from accordion.pipeline.request import MeasuredRequest
from accordion.providers.http.routes import ModelEntry, routes_from
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FakeReply, FakeWindows
from tests.growing_conversation import COMPACTED_AT, GrowingConversation, small_window_setup
from tests.pipeline_setup import PipelineSetup

BODY = b'{ "contents" : [{"parts":[{"text":"\\u00e9"}]}], "x-own": 1.50 }'
PATH = "/v1beta/models/smart:generateContent"
UPSTREAMS: Any = {
    "openai": ("http://openai.test/v1", ""), "anthropic": ("http://anthropic.test", ""),
    "gemini": ("http://google.test", ""),
}  # fmt: skip
KEYS = (ProxyKey("team", "proxy-key-0123456789"),)


def request(query: str = "", *, path: str = PATH, body: bytes = BODY, **headers: str) -> Inbound:
    pairs = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
    return Inbound("POST", path, query, pairs, body, "req-1")


def routed(*entries: ModelEntry, **options: Any) -> PipelineSetup:
    return PipelineSetup(router=routes_from(entries, UPSTREAMS), **options)  # type: ignore[arg-type]


async def send(setup: PipelineSetup, inbound: Inbound) -> tuple[int, bytes]:
    out = await setup.forward(inbound)
    body = out.body if isinstance(out.body, bytes) else b"".join([piece async for piece in out.body])
    return out.status, body


def test_a_key_in_the_query_is_the_same_caller_as_one_in_the_header() -> None:
    tenants = PipelineSetup(loopback=False).forward.tenants
    callers = [
        tenants.identify(each.headers_by_name)
        for each in (request(x_goog_api_key="AIza one"), request("alt=sse&key=AIza%20one"), request("key=AIza+one&x"))
    ]
    assert {caller.tenant.name for caller in callers} == {callers[0].tenant.name}
    assert {caller.credential for caller in callers} == {"AIza one"}
    assert tenants.identify(request("mykey=AIza").headers_by_name).credential == ""
    assert tenants.identify(request("%6bey=AIza").headers_by_name).credential == "AIza"
    assert tenants.identify(request("access_token=ya29.x").headers_by_name).credential == "ya29.x"
    assert tenants.identify(request("key=query", x_goog_api_key="header").headers_by_name).credential == "header"


def test_a_key_in_the_query_is_in_no_repr() -> None:
    assert "AIza-secret" not in repr(request("key=AIza-secret"))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/p?%6bey=k&access_token=t&a", "/p?a"),
        ("/p?key=k", "/p"),
        ("/p?alt=sse&key=k", "/p?alt=sse"),
        ("/p?key=k&mykey=1", "/p?mykey=1"),
        ("/p", "/p"),
    ],
)
def test_a_credential_leaves_a_target_alone_with_all_else(target: str, expected: str) -> None:
    assert without_query_credentials(target) == expected


async def test_a_request_that_needs_nothing_leaves_as_it_came() -> None:
    setup = routed()
    inbound = request("alt=sse&key=AIza%2Dk", path="/v1beta/models/gemini%2Dpro:streamGenerateContent")
    assert (await send(setup, inbound))[0] == 200
    [sent] = setup.upstream.requests
    assert sent.url == "http://google.test/v1beta/models/gemini%2Dpro:streamGenerateContent?alt=sse&key=AIza%2Dk"
    assert sent.body == BODY


async def test_a_proxy_key_is_never_sent_on_wherever_it_stands() -> None:
    setup = routed(ModelEntry("smart", "gemini/gemini-pro", api_key="operators"), keys=KEYS)
    for inbound in (
        request("alt=sse&key=proxy-key-0123456789"),
        request("alt=sse&%6bey=proxy-key-0123456789"),
        request("alt=sse&access_token=proxy-key-0123456789"),
        request("api_key=proxy%2Dkey-0123456789", x_goog_api_key="proxy-key-0123456789"),
        request(x_goog_api_key="proxy-key-0123456789"),
        Inbound(
            "POST",
            PATH,
            "",
            ((b"x-accordion-key", b"proxy-key-0123456789"), (b"x_accordion_key", b"proxy-key-0123456789")),
            BODY,
            "r",
        ),
    ):
        assert (await send(setup, inbound))[0] == 200
        sent = setup.upstream.requests[-1]
        assert "proxy-key" not in sent.url
        assert [value for name, value in sent.headers if name == b"x-goog-api-key"] == [b"operators"]
        assert not any(b"proxy-key" in value for _, value in sent.headers)


async def summary_caller(setup: PipelineSetup, inbound: Inbound) -> SummaryCaller:
    read = await setup.forward.reader.read(inbound, setup.forward.tenants.identify(inbound.headers_by_name))
    assert isinstance(read, MeasuredRequest)
    found = setup.forward.sender.build_summary_caller(read)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("query", "headers", "sent"),
    [
        ("alt=sse&key=AIza%2Done", {}, [b"AIza-one"]),
        ("key=AIza-one", {"x_goog_api_key": "AIza-two"}, [b"AIza-two"]),
        ("key=AIza%0D%0Aone", {}, []),
        ("alt=sse", {}, []),
    ],
)  # fmt: skip
async def test_a_summary_is_asked_for_with_the_key_in_the_query(
    query: str, headers: dict[str, str], sent: list[bytes]
) -> None:
    caller = await summary_caller(routed(), request(query, **headers))
    assert [value for name, value in caller.headers if name == b"x-goog-api-key"] == sent


async def test_a_summary_at_a_cloud_is_asked_for_without_a_proxy_key_in_the_query() -> None:
    path = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-a:rawPredict"
    upstreams = UPSTREAMS | {"vertex": ("http://vertex.test", "operators")}
    setup = PipelineSetup(router=routes_from((), upstreams), keys=KEYS)  # type: ignore[arg-type]
    caller = await summary_caller(setup, request("a=1&key=proxy-key-0123456789", path=path, body=b'{"messages": []}'))
    assert caller.cloud_target == f"{path}?a=1"
    assert not any(b"proxy-key" in value for _, value in caller.headers)


async def test_a_caller_without_a_proxy_key_is_refused_in_googles_form() -> None:
    status, body = await send(routed(keys=KEYS), request("key=unknown"))
    assert (status, json.loads(body)["error"]["status"]) == (401, "UNAUTHENTICATED")


async def test_a_name_of_ones_own_is_replaced_in_the_path_only() -> None:
    setup = routed(ModelEntry("smart", "gemini/gemini-pro"))
    assert (await send(setup, request("alt=sse")))[0] == 200
    [sent] = setup.upstream.requests
    assert sent.url == "http://google.test/v1beta/models/gemini-pro:generateContent?alt=sse"
    assert sent.body == BODY


@pytest.mark.parametrize("model", ["openai/gpt-5", "anthropic/claude-sonnet-4-5", "mistral/mistral-large"])
async def test_a_model_of_another_provider_is_refused_in_googles_form(model: str) -> None:
    status, body = await send(routed(ModelEntry("smart", model)), request())
    error = json.loads(body)["error"]
    assert (status, error["status"]) == (400, "INVALID_ARGUMENT")
    assert "translation" in error["message"]


async def test_paths_that_no_protocol_reads_go_to_google() -> None:
    setup = routed()
    for path in ("/v1beta/cachedContents", "/upload/v1beta/files", "/upload/v1/files", "/v1beta/models/m:embedContent"):
        assert (await send(setup, request(path=path)))[0] == 200
        assert setup.upstream.requests[-1].url == f"http://google.test{path}"


async def test_a_token_count_of_a_compacted_history_has_no_tool_of_ours() -> None:
    setup = small_window_setup()
    talk = GrowingConversation(setup, "gemini")
    await talk.until(COMPACTED_AT)
    assert b"read_artifact" in talk.forwarded
    body = {"contents": json.loads(talk.bodies[-1])["contents"]}
    setup.upstream.answers.append(FakeReply(pieces=(b'{"totalTokens": 9}',)))
    await setup.ask("/v1beta/models/gpt-5:countTokens", body)
    counted = json.loads(setup.upstream.requests[-1].body)
    assert counted.keys() == {"contents"}
    assert len(counted["contents"]) < len(body["contents"])


@pytest.mark.parametrize(("call_id", "result_id"), [("c", ""), ("", "made-up-"), ("", "")])
async def test_calls_and_results_of_which_one_side_has_no_id_stay_together(call_id: str, result_id: str) -> None:
    """Google's examples answer without an id; Gemini CLI makes up ids for its results."""

    def id_field(prefix: str, at: int) -> dict[str, str]:
        return {"id": f"{prefix}{at}"} if prefix else {}

    contents: list[Any] = [{"role": "user", "parts": [{"text": "Find the error."}]}]
    for at in range(0, 40, 2):
        calls = [
            {"functionCall": {**id_field(call_id, each), "name": "read", "args": {"n": each}}} for each in (at, at + 1)
        ]
        results = [
            {
                "functionResponse": {
                    **id_field(result_id, each),
                    "name": "read",
                    "response": {"output": f"r{each} " * 60},
                }
            }
            for each in (at, at + 1)
        ]
        contents += [{"role": "model", "parts": calls}, {"role": "user", "parts": results}]
    setup = PipelineSetup(windows=FakeWindows(size=3_000))
    path = "/v1beta/models/smart:generateContent"
    sent = None
    for end in range(3, len(contents) + 1, 2):
        out, _ = await setup.ask(path, {"contents": contents[:end]})
        assert out.status == 200
        sent = json.loads(setup.upstream.requests[-1].body)["contents"]
        counts = [
            sum(name in part for part in content["parts"])
            for content in sent
            for name in ("functionCall", "functionResponse")
        ]
        assert counts[2::4] == counts[5::4], "as many results as calls, directly after them"
        newest = [part["functionResponse"]["response"]["output"] for part in sent[-1]["parts"]]
        assert newest == [f"r{each} " * 60 for each in (end - 3, end - 2)]
    assert sent is not None
    assert "art_" in json.dumps(sent)
