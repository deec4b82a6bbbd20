"""Streams of Bedrock through a started proxy: frames as they came, frames that the proxy writes, errors, overflows."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests import frames
from tests.agents import Run
from tests.conftest import Start
from tests.e2e.protocol_samples import KEY, MESSAGES
from tests.e2e.proxy_api import get_session
from tests.e2e.raw_client import post
from tests.e2e.test_clouds import CLAUDE, CONFIG, USER, bedrock, converse
from tests.loopback import Answer, Recorded
from tests.proxy_process import Proxy
from tests.reply_parts import converse_response, converse_stream
from tests.strict_provider import StrictProvider

TARGET = f"/model/{CLAUDE}/invoke-with-response-stream"
BODY = json.dumps({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 5, "messages": [USER]}).encode()
BEARER = ("authorization", f"Bearer {KEY}")


@pytest.fixture(scope="module")
def proxy(start: Start) -> Proxy:
    return start(CONFIG)


def streams(
    *pieces: bytes, at: tuple[int, ...] = (), is_cut: bool = False, head: tuple[tuple[str, str], ...] = ()
) -> Any:
    """A provider that answers every request with these frames."""

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", frames.KIND), ("x-amzn-requestid", "r-1"), *head], chunked=True)
        await answer.pieces(b"".join(pieces), at)
        if is_cut:
            await asyncio.sleep(0.1)
            return await answer.cut()
        return await answer.last_chunk()

    return script


def client(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """AWS's own client, with a key of Bedrock."""
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
    config = Config(retries={"total_max_attempts": 1})
    return boto3.client("bedrock-runtime", region_name="us-east-1", config=config, **options)


@pytest.mark.parametrize("at", [(), tuple(range(0, 1_500, 7))])
async def test_a_stream_of_the_converse_api_passes_byte_for_byte_and_is_read(proxy: Proxy, at: tuple[int, ...]):
    target = "/model/amazon.nova-pro-v1%3A0/converse-stream"
    body = b'{ "messages": [{"role":"user","content":[{"text":"Hi"}]}] }'
    stream = b"".join(converse_stream(converse_response([{"text": "Hello."}], "end_turn", (10, 7, 5))))
    first, *rest = frames.frames_of(target, stream)
    sent = [first, frames.event("somethingNew", b'{"x": 1.50}'), *rest]
    async with proxy.provider(streams(*sent, at=at)) as provider:
        reply = await post(proxy, target, body, BEARER)
    assert (reply.ended, reply.body, reply.header("content-type")) == (True, b"".join(sent), frames.KIND)
    assert [(each.target, each.body) for each in provider.requests] == [(target, body)]
    found = await get_session(proxy, reply.header("x-accordion-session"), authorization=f"Bearer {KEY}")
    last = found["exchanges"][-1]
    assert (last["model"], last["stream"], last["usage"]["input"]) == ("amazon.nova-pro-v1:0", True, 17)


async def test_a_stream_of_the_converse_api_that_breaks_off_ends_in_an_exception(proxy: Proxy):
    target, body = "/model/m/converse-stream", b'{"messages":[{"role":"user","content":[{"text":"Hi"}]}]}'
    stream = b"".join(converse_stream(converse_response([{"text": "Hello."}], "end_turn", (10, 7, 5))))
    sent = frames.frames_of(target, stream)[:2]
    async with proxy.provider(streams(*sent, is_cut=True)):
        reply = await post(proxy, target, body, BEARER)
    headers, payload = frames.read(reply.body)[-1]
    assert headers[":exception-type"] == "serviceUnavailableException"
    assert "Connection lost" in payload["message"]


@pytest.mark.parametrize("encoding", ["gzip", "unheard-of"])
async def test_an_encoded_stream_passes_as_it_came(proxy: Proxy, encoding: str):
    sent = gzip.compress(b"".join(frames.frames_of(TARGET, MESSAGES.stream())))
    async with proxy.provider(streams(sent, at=(30, 300), head=(("content-encoding", encoding),))):
        reply = await post(proxy, TARGET, BODY, BEARER)
    assert (reply.ended, reply.body, reply.header("content-encoding")) == (True, sent, encoding)


@pytest.mark.parametrize(
    ("protocol_name", "connect", "streamed_errors"), [("messages", bedrock, True), ("converse", converse, False)]
)
async def test_an_overflow_is_compacted_and_sent_once_more(
    start: Start, protocol_name: str, connect: Callable[[str], Any], streamed_errors: bool
):
    """The provider's window is smaller than the one that the proxy was told of."""
    proxy = start(CONFIG)
    provider = StrictProvider(
        protocol_name, 5_000, rounds=1_000, thinks=True, run="overflow", streamed_errors=streamed_errors
    )
    async with proxy.provider(provider), connect(proxy.url) as sdk:
        run = Run(sdk, protocol_name, stream=True, name="overflow", model=CLAUDE)
        run.begin()
        for _ in range(40):
            await run.step()
    assert provider.problems == []
    assert 1 <= len(provider.refusals) <= 3, "the limit is learned from the first refusal"
    assert all(head.get("x-accordion-session") for head in run.answers)
