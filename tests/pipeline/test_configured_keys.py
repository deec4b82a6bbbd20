"""Which key a provider gets: that of the model's entry, or the caller's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.providers.http.routes import ModelEntry, routes_from
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FakeReply, FakeUpstream
from tests.pipeline_setup import CHAT, MESSAGES, PATHS, PipelineSetup

UPSTREAMS: Any = {
    "openai": ("http://openai.test/v1", ""),
    "anthropic": ("http://anthropic.test", ""),
    "gemini": ("http://google.test", "key-of-google"),
    "azure": ("http://azure.test", "key-of-azure"),
    "bedrock": ("http://bedrock.test", "key-of-bedrock"),
}
ENTRIES = (
    ModelEntry("keyed", "openai/gpt-5", api_base="http://one.test/v1", api_key="key-one"),
    ModelEntry("keyless", "openai/gpt-5", api_base="http://two.test/v1"),
    ModelEntry("both", "openai/gpt-5", api_base="http://one.test/v1", api_key="key-one"),
    ModelEntry("both", "openai/gpt-5", api_base="http://two.test/v1"),
    ModelEntry("both", "openai/gpt-5", api_base="http://three.test/v1", api_key="key-three"),
    ModelEntry("claude", "anthropic/claude-haiku-4-5", api_key="key-of-claude"),
)
DUMMY = "callers-dummy"
CLIENT = {"authorization": f"Bearer {DUMMY}"}
MESSAGE = [{"role": "user", "content": "Hello"}]
KEYS = (ProxyKey("team", "proxy-key"),)


def configured(**fields: Any) -> PipelineSetup:
    return PipelineSetup(router=routes_from(ENTRIES, UPSTREAMS), **fields)


def sent_keys(upstream: FakeUpstream) -> list[tuple[str, str]]:
    """The host and the key of each request that was sent."""
    found = []
    for request in upstream.requests:
        headers = dict(request.headers)
        names = (b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key")
        keys = [headers[name].decode().removeprefix("Bearer ") for name in names if name in headers]
        found.append((request.url.split("/")[2], " ".join(keys)))
    return found


REQUESTS = [
    (CHAT, {"model": "keyed", "messages": MESSAGE}, "one.test", "key-one"),
    (CHAT, {"model": "keyless", "messages": MESSAGE}, "two.test", DUMMY),
    ("/v1/embeddings", {"model": "keyed", "input": "Hello"}, "one.test", "key-one"),
    (MESSAGES, {"model": "claude", "max_tokens": 9, "messages": MESSAGE}, "anthropic.test", "key-of-claude"),
    (f"{MESSAGES}/count_tokens", {"model": "claude", "messages": MESSAGE}, "anthropic.test", "key-of-claude"),
    (PATHS["gemini"], {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}, "google.test", "key-of-google"),
    (
        PATHS["converse"],
        {"messages": [{"role": "user", "content": [{"text": "Hello"}]}]},
        "bedrock.test",
        "key-of-bedrock",
    ),
    ("/openai/deployments/x/chat/completions", {"messages": MESSAGE}, "azure.test", "key-of-azure"),
]


@pytest.mark.parametrize(("path", "body", "host", "key"), REQUESTS)
async def test_a_callers_key_is_replaced_by_the_models_own_on_loopback(
    path: str, body: Any, host: str, key: str
) -> None:
    setup = configured()
    await setup.ask(path, body, CLIENT)
    assert sent_keys(setup.upstream) == [(host, key)]


@pytest.mark.parametrize(("path", "body", "host", "key"), REQUESTS)
@pytest.mark.parametrize("is_loopback", [True, False])
async def test_web_sites_and_other_machines_get_no_models_key(
    path: str, body: Any, host: str, key: str, is_loopback: bool
) -> None:
    setup = configured(loopback=is_loopback)
    origin = {"origin": "https://evil.example"} if is_loopback else {}
    await setup.ask(path, body, CLIENT | origin)
    assert sent_keys(setup.upstream) == [(host, DUMMY)]


@pytest.mark.parametrize(("path", "body", "host", "key"), [each for each in REQUESTS if each[3] != DUMMY])
async def test_callers_with_a_proxy_key_get_the_models_key_anywhere(path: str, body: Any, host: str, key: str) -> None:
    setup = configured(keys=KEYS, loopback=False)
    await setup.ask(path, body, {"authorization": "Bearer proxy-key"})
    assert sent_keys(setup.upstream) == [(host, key)]


async def test_each_deployment_gets_its_own_key_or_the_callers() -> None:
    setup = configured()
    setup.upstream.answers = [FakeReply(429), FakeReply(429), FakeReply()]
    await setup.ask(CHAT, {"model": "both", "messages": MESSAGE}, CLIENT)
    assert sent_keys(setup.upstream) == [("one.test", "key-one"), ("two.test", DUMMY), ("three.test", "key-three")]


async def test_a_key_in_the_query_is_not_sent_beside_the_models_own() -> None:
    setup = configured()
    body = json.dumps({"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]})
    path = PATHS["gemini"]
    inbound = setup.inbound(path, body.encode())
    await setup.forward(type(inbound)("POST", path, f"key={DUMMY}", inbound.headers, inbound.body, "r"))
    (request,) = setup.upstream.requests
    assert DUMMY not in request.url
    assert dict(request.headers)[b"x-goog-api-key"] == b"key-of-google"


@pytest.mark.parametrize(
    ("fields", "headers", "expected"),
    [
        ({}, CLIENT, True),
        ({}, CLIENT | {"origin": "https://evil.example"}, False),
        ({"loopback": False}, CLIENT, False),
        ({"loopback": False, "keys": KEYS}, {"authorization": "Bearer proxy-key"}, True),
    ],
)
async def test_a_writer_with_its_own_key_is_for_the_callers_that_get_models_keys(
    fields: Any, headers: dict[str, str], expected: bool
) -> None:
    setup = configured(**fields)
    measured = await setup.measure(CHAT, {"model": "keyed", "messages": MESSAGE}, headers)
    caller = setup.forward.sender.build_summary_caller(measured)
    assert caller is not None
    assert caller.can_use_configured_keys is expected
    assert caller.credential == ("key-one" if expected else DUMMY)


SECRETS = (("Authorization", "Bearer operators"), ("Gateway-Auth", "operators"), ("X-Team", "red"))
HEADED = ModelEntry("headed", "openai/gpt-5", api_base="http://one.test/v1", extra_headers=SECRETS)
TRANSLATED = ModelEntry(
    "translated", "groq/llama", options=(("client_secret", "operators"), ("max_tokens", 9), ("headers", {"x-key": "s"}))
)


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("is_site", [True, False])
async def test_keys_in_a_models_headers_are_for_callers_that_can_use_its_key(path: str, is_site: bool) -> None:
    # The last deployment of the model is the one that takes the request.
    keyless = ModelEntry("headed", "openai/gpt-5", api_base="http://zero.test/v1")
    setup = PipelineSetup(router=routes_from((keyless, HEADED), UPSTREAMS))
    setup.upstream.answers = [FakeReply(429), FakeReply()]
    origin = {"origin": "https://evil.example"} if is_site else {}
    await setup.ask(path, {"model": "headed", "messages": MESSAGE, "input": "Hello"}, CLIENT | origin)
    headers = dict(setup.upstream.requests[-1].headers)
    assert headers[b"x-team"] == b"red"
    assert headers[b"authorization"] == (f"Bearer {DUMMY}".encode() if is_site else b"Bearer operators")
    assert headers.get(b"gateway-auth") == (None if is_site else b"operators")


def test_secrets_in_a_translated_models_options_are_for_the_same_callers() -> None:
    route = routes_from((TRANSLATED,), UPSTREAMS).models["translated"].without_secrets()
    assert route.options == (("max_tokens", 9), ("headers", {}))
