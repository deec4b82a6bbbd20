"""Requests in Google's protocol through a started proxy: bytes, keys, streams that are lists, overflows."""

from __future__ import annotations

from tests.e2e.raw_client import post
from tests.loopback import Answer, Recorded
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
