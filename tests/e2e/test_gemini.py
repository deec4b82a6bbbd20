"""Requests in Google's protocol through a started proxy: bytes, keys, streams that are lists, overflows."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Start
from tests.e2e.raw_client import post
from tests.e2e.small_window import Proxies, agent, rounds, strict_provider
from tests.loopback import Answer, Recorded, replies_json
from tests.proxy_process import Proxy

PATH = "/v1beta/models/gemini-2.5-pro"
BODY = b'{ "contents" : [{"parts":[{"text":"\\u00fc \\ud83e\\udd9c"}]}], "x": 1.50 }'
LISTED = b'[{"candidates": [{"content": {"parts": [{"text": "a"}], "role": "model"}}]}\n,\r\n{"usageMetadata": {}}\n]'


async def answers(request: Recorded, answer: Answer) -> None:
    """A stream that is a list, as without `alt=sse`."""
    await answer.head(200, [("Content-Type", "application/json; charset=UTF-8")], chunked=True)
    await answer.pieces(LISTED, (10, 80))
    await answer.last_chunk()


async def test_a_request_and_a_stream_that_is_a_list_pass_byte_for_byte(proxy: Proxy):
    target = f"{PATH}:streamGenerateContent?x=%7e&key=AIza%2Dsecret"
    async with proxy.provider(answers) as provider:
        reply = await post(proxy, target, BODY)
    assert reply.body == LISTED
    assert int(reply.header("x-accordion-tokens") or 0) > 0
    [request] = provider.requests
    assert (request.target, request.body) == (target, BODY)


async def test_an_interaction_is_forwarded_and_logged_once(start: Start):
    proxy, body = start(), b'{"model": "gemini-2.5-pro", "input": "Hello."}'
    async with proxy.provider(replies_json({"id": "i"})) as provider:
        for _ in range(2):
            reply = await post(proxy, "/v1beta/interactions", body)
            assert (reply.status, reply.header("x-accordion-session")) == (200, None)
    assert [each.body for each in provider.requests] == [body, body]
    assert proxy.log.count("is passed on unread: it is one of Google's Interactions API") == 2
    assert proxy.log.count("WARNING") == 1


async def test_a_key_in_the_query_is_in_no_log_line(proxy: Proxy):
    async with proxy.provider(answers):
        for method in ("streamGenerateContent", "generateContent", "embedContent"):
            await post(proxy, f"{PATH}:{method}?key=AIza-secret-of-mine", BODY)
    # Nor where nobody answers.
    reply = await post(proxy, f"{PATH}:generateContent?key=AIza-secret-of-mine", BODY)
    assert json.loads(reply.body)["error"]["status"] == "UNAVAILABLE"
    assert "secret-of-mine" not in proxy.log


@pytest.mark.parametrize("stream", [False, True])
async def test_an_overflow_is_compacted_and_sent_once_more(proxies: Proxies, stream: bool):
    """The provider's window is smaller than the one that the proxy was told of."""
    proxy, provider = proxies["gemini"], strict_provider("gemini", f"overflow, {stream}")
    provider.window = 5_000
    async with proxy.provider(provider), agent(proxy, "gemini", stream=stream, name=f"overflow, {stream}") as run:
        await rounds(run, 40)
    assert provider.problems == []
    assert 1 <= len(provider.refusals) <= 3, "the limit is learned from the first refusal"
    assert all(head.get("x-accordion-session") for head in run.answers)
