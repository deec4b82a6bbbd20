"""The SDKs' classes for clouds, unchanged, with the proxy as their endpoint: read, compacted and read back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.agents import Run
from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY
from tests.e2e.proxy_api import get_session
from tests.e2e.raw_client import post
from tests.e2e.reading_agent import ReadingAgent
from tests.e2e.small_window import WINDOW
from tests.loopback import replies_json
from tests.proxy_process import Proxy
from tests.reading_provider import ReadingProvider
from tests.response_recorder import ResponseRecorder

CONFIG = """
server: {shutdown_seconds: 1}
summaries: {writer: extractive}
windows: {default: 8000}
upstreams:
  azure: {base_url: "{upstream}"}
  vertex: {base_url: "{upstream}"}
  bedrock: {base_url: "{upstream}"}
"""
USER = {"role": "user", "content": "Say hello."}
VERSION = "?api-version=2025-04-01-preview"
VERTEX = "/v1/projects/p/locations/us-east5/publishers/anthropic/models"
CLAUDE = "anthropic.claude-small"


def azure(url: str) -> Any:
    return openai.AsyncAzureOpenAI(
        azure_endpoint=url, api_version="2025-04-01-preview", api_key=KEY, max_retries=0, timeout=60
    )


def vertex(url: str) -> Any:
    return anthropic.AsyncAnthropicVertex(
        base_url=f"{url}/v1", region="us-east5", project_id="p", access_token=KEY, max_retries=0, timeout=60
    )


def bedrock(url: str) -> Any:
    return anthropic.AsyncAnthropicBedrock(base_url=url, aws_region="us-east-1", api_key=KEY, max_retries=0, timeout=60)


def converse(url: str) -> Any:
    return httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False)


CLOUDS = [
    pytest.param("chat", azure, f"/openai/deployments/small/chat/completions{VERSION}", False, id="azure"),
    pytest.param("responses", azure, f"/openai/responses{VERSION}", True, id="azure responses"),
    pytest.param("messages", vertex, f"{VERTEX}/small:", False, id="vertex"),
    pytest.param("messages", vertex, f"{VERTEX}/small:", True, id="vertex, streamed"),
    pytest.param("messages", bedrock, f"/model/{CLAUDE}/", False, id="bedrock"),
    pytest.param("messages", bedrock, f"/model/{CLAUDE}/", True, id="bedrock, streamed"),
    pytest.param("converse", converse, "/model/small/", False, id="converse"),
    pytest.param("converse", converse, "/model/small/", True, id="converse, streamed"),
]
"""Where the cloud's path says that a stream is asked for, with both."""
METHODS = {
    vertex: {False: "rawPredict", True: "streamRawPredict"},
    bedrock: {False: "invoke", True: "invoke-with-response-stream"},
    converse: {False: "converse", True: "converse-stream"},
}
"""The ends of the paths for documents and for streams."""


@pytest.fixture(scope="module")
def proxy(start: Start) -> Proxy:
    return start(CONFIG)


@asynccontextmanager
async def agent(
    proxy: Proxy,
    protocol_name: str,
    connect: Callable[[str], Any],
    name: str,
    *,
    stream: bool,
    ways: tuple[str, ...] = (),
) -> AsyncIterator[ReadingAgent]:
    """An agent that has sent nothing yet, with its provider."""
    provider = ReadingProvider(
        protocol_name, WINDOW, run=name, ways=ways, every=2, rounds=1_000, thinks=protocol_name != "chat"
    )
    async with proxy.provider(provider) as behind, connect(proxy.url) as client:
        model = CLAUDE if connect is bedrock else "small"
        run = Run(client, protocol_name, name=name, stream=stream, model=model)
        yield ReadingAgent(run, provider, ResponseRecorder(), behind)


@pytest.mark.parametrize(("protocol_name", "connect", "target", "stream"), CLOUDS)
async def test_an_agent_goes_on_past_its_window_and_reads_back(
    proxy: Proxy, protocol_name: str, connect: Callable[[str], Any], target: str, stream: bool
):
    async with agent(proxy, protocol_name, connect, f"{target} {stream}", stream=stream, ways=("o", "ot")) as one:
        await one.rounds(60)
        assert one.compactions
        assert one.provider.problems == []
        assert one.provider.refusals == []
        assert {"o", "ot"} <= set(one.provider.done)
        assert max(each.tokens for each in one.provider.taken) <= WINDOW
        assert len({head["x-accordion-session"] for head in one.run.answers}) == 1
        targets = {each.target for each in one.behind.requests}
        assert targets == {target + METHODS[connect][stream] if connect in METHODS else target}
        if protocol_name != "responses":
            assert all(("model" in each.json()) is (protocol_name == "chat") for each in one.behind.requests)
        found = await get_session(
            proxy, one.run.answers[-1]["x-accordion-session"],
            **({"api_key": KEY} if connect is azure else {"authorization": f"Bearer {KEY}"}),
        )  # fmt: skip
        assert {entry["model"] for entry in found["exchanges"]} == {one.run.model}
        assert {entry["stream"] for entry in found["exchanges"]} == {stream}


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/openai/deployments/gpt%2D4o/chat/completions?api-version=2024-10-21", {"messages": [], "odd": 1.50}),
        ("/openai/v1/chat/completions?api-version=preview", {"model": "gpt-4o", "messages": []}),
        ("/openai/v1/responses", {"model": "gpt-4o", "input": "Hi."}),
        (f"{VERTEX}/claude-sonnet-4-5@20250929:rawPredict", {"anthropic_version": "vertex-2023-10-16", "messages": []}),
        ("/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke", {"messages": [], "max_tokens": 5}),
        ("/model/amazon.nova-pro-v1%3A0/converse", {"messages": []}),
        ("/openai/deployments/e/embeddings?api-version=2024-10-21", {"input": "Hi."}),
        ("/v1/projects/p/locations/global/publishers/mistralai/models/m:rawPredict", {"messages": []}),
    ],
)
async def test_a_request_that_needs_nothing_is_forwarded_byte_for_byte(proxy: Proxy, target: str, body: Any):
    raw = json.dumps(body, indent=1).encode() + b"\n"
    async with proxy.provider(replies_json({"any": 1})) as provider:
        reply = await post(proxy, target, raw, ("api-key", KEY))
    assert (reply.status, json.loads(reply.body)) == (200, {"any": 1})
    assert [(each.target, each.body) for each in provider.requests] == [(target, raw)]


@pytest.mark.parametrize(
    ("target", "authorization", "reason"),
    [
        ("/model/anthropic.claude-x/invoke", "AWS4-HMAC-SHA256 Credential=AK/1/us-east-1/bedrock", "it is signed"),
        ("/model/amazon.nova-x/converse", "AWS4-HMAC-SHA256 Credential=AK/1/us-east-1/bedrock", "it is signed"),
        ("/model/amazon.nova-x/invoke", "Bearer k", "its format is the model's own"),
        ("/model/amazon.nova-x/invoke-with-response-stream", "Bearer k", "its format is the model's own"),
    ],
)
async def test_what_is_not_read_is_forwarded_and_logged_once(
    start: Start, target: str, authorization: str, reason: str
):
    proxy = start(CONFIG)
    async with proxy.provider(replies_json({})) as provider:
        for _ in range(2):
            reply = await post(proxy, target, b'{"messages": []}', ("authorization", authorization))
            assert reply.header("x-accordion-session") is None
    assert [each.header("authorization") for each in provider.requests] == [authorization] * 2
    assert proxy.log.count(f"is passed on unread: {reason}") == 2
    assert proxy.log.count("WARNING") == 1


async def test_a_caller_with_a_proxy_key_gets_the_clouds_own_key(start: Start):
    key = "proxy_keys: [{id: team, key: team-key-0123456789}]\n"
    proxy = start(
        CONFIG.replace('azure: {base_url: "{upstream}"}', 'azure: {base_url: "{upstream}", api_key: azure-own}') + key
    )
    target = "/openai/deployments/gpt-4o/chat/completions?api-version=1"
    async with proxy.provider(CHAT.answers()) as provider:
        reply = await post(proxy, target, json.dumps({"messages": [USER]}).encode(), ("api-key", "team-key-0123456789"))
    assert reply.status == 200
    assert provider.requests[0].header("api-key") == "azure-own"
    assert provider.requests[0].header("authorization") is None
