"""Every answer says how full the window is: by our own count, and by what the provider reported of the beginning."""

from typing import Any

import pytest

from tests.e2e.protocol_samples import CHAT, EACH, ProtocolSamples
from tests.e2e.proxy_api import get_session
from tests.e2e.raw_client import Reply, ask, post
from tests.loopback import replies_json
from tests.proxy_process import Proxy

OURS = ("session", "window", "tokens", "utilization")
SILENT = {"note": "no usage here"}


def tokens(reply: Reply) -> int:
    return int(reply.header("x-accordion-tokens") or -1)


async def turn(
    proxy: Proxy,
    protocol: ProtocolSamples,
    *texts: str,
    label: str,
    reported: int = 0,
    stream: bool = False,
    **more: Any,
) -> Reply:
    """One request of a conversation; the provider reports `reported` tokens of input, or nothing."""
    script = protocol.answers(given=reported, made=7) if reported else replies_json(SILENT)
    async with proxy.provider(script):
        body = protocol.body(*texts, stream=stream, **more)
        reply = await post(proxy, protocol.target(stream=stream), body, ("x-accordion-session", label))
    assert reply.status == 200
    return reply


@EACH
@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("stream", [False, True])
async def test_every_answer_has_the_utilization_headers(
    proxy: Proxy, protocol: ProtocolSamples, status: int, stream: bool
):
    script = protocol.answers() if status == 200 else replies_json({"error": {"message": "No."}}, status)
    async with proxy.provider(script):
        reply = await post(proxy, protocol.target(stream=stream), protocol.body("How full?", stream=stream))
    assert reply.status == status
    values = {name: reply.header(f"x-accordion-{name}") or "" for name in OURS}
    assert values["session"].startswith("s-")
    assert int(values["window"]) in (128_000, 400_000, 200_000, 1_048_576)
    assert 1 < int(values["tokens"]) < 40
    assert 0 <= float(values["utilization"]) < 0.01


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/embeddings", b'{"model": "text-embedding-3-small", "input": "x"}'),
        ("POST", "/v1/responses/compact", b'{"model": "gpt-5.2", "input": []}'),
        ("POST", "/v1/audio/transcriptions", b"--x"),
        ("GET", "/v1/models", None),
        ("GET", "/v1/responses/resp_1", None),
        ("GET", "/v1/files/f/content", None),
    ],
)
async def test_what_is_not_read_carries_none(proxy: Proxy, method: str, path: str, body: bytes | None):
    """Where nothing was counted, nothing is said."""
    async with proxy.provider(replies_json({})):
        reply = await ask(proxy, method, path, body=body)
    assert reply.status == 200
    assert not any(name.startswith(b"x-accordion-") for name, _ in reply.headers)


# -- reported usage --------------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_reported_usage_is_carried_to_the_next_turn(proxy: Proxy, protocol: ProtocolSamples, stream: bool):
    """The second turn is what was reported for the first, plus our own count of what is new."""
    talk, told = ("First question.", "First answer.", "Second question?"), f"carried-{protocol.name}-{stream}"
    plain = [tokens(await turn(proxy, protocol, *talk[:n], label=f"{told}-plain")) for n in (1, 3)]
    first = await turn(proxy, protocol, *talk[:1], label=told, reported=1000, stream=stream)
    second = await turn(proxy, protocol, *talk, label=told, reported=1030, stream=stream)
    third = await turn(proxy, protocol, *talk, "Second answer.", "Third?", label=told)
    assert tokens(first) == plain[0]
    assert tokens(second) == 1000 + plain[1] - plain[0]
    assert 1030 < tokens(third) < 1060
    last = (await get_session(proxy, third.header("x-accordion-session")))["exchanges"]
    assert [entry["utilization"]["carried"] for entry in last] == [False, True, True]
    assert [entry["stream"] for entry in last] == [stream, stream, False]
    assert [(entry["usage"] or {}).get("input") for entry in last] == [1000, 1030, None]


# -- the ledger ------------------------------------------------------------------------------------------------------


async def test_a_window_in_the_provider_s_list_of_models_counts_from_then_on(proxy: Proxy):
    catalog = {"data": [{"id": "local-model", "max_model_len": 24_000}]}
    before = await turn(proxy, CHAT, "How full?", label="before-the-list", model="local-model")
    async with proxy.provider(replies_json(catalog, encoding="gzip")):
        reply = await ask(proxy, "GET", "/v1/models", [("Accept-Encoding", "gzip")])
    assert reply.header("content-encoding") == "gzip"
    after = await turn(proxy, CHAT, "How full now?", label="after-the-list", model="local-model")
    assert (before.header("x-accordion-window"), after.header("x-accordion-window")) == ("120000", "24000")
