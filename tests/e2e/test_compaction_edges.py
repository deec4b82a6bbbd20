"""Compactions in odd company: moving cache breakpoints, thoughts bound to their prefix, calls in dozens, aliases,
tenants."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent_replies import TOOLS
from tests.agents import MODEL, Run
from tests.conftest import Start
from tests.e2e.raw_client import post
from tests.e2e.small_window import (
    EACH,
    PROTOCOL_NAMES,
    WINDOW,
    Proxies,
    agent,
    broken_prefixes,
    compacted_requests,
    config,
    fetch_session,
    rounds,
    strict_provider,
)
from tests.proxy_process import Proxy
from tests.strict_provider import PATHS, SYSTEM, StrictProvider
from tests.writers import LISTS

BINDING = "claude-opus-5-5"
KEYS = """
proxy_keys:
- {id: red, key: "${RED}"}
- {id: blue, key: "${BLUE}"}
"""


def body_of(run: Run) -> bytes:
    """The run's next request as its client would send it."""
    history = json.loads(json.dumps(run.history, default=lambda value: value.model_dump(exclude_none=True)))
    body: dict[str, Any] = {"model": MODEL, "tools": TOOLS[run.protocol_name], LISTS[run.protocol_name]: history}
    if run.protocol_name == "chat":
        history.insert(0, {"role": "system", "content": SYSTEM})
    elif run.protocol_name == "responses":
        body["instructions"] = SYSTEM
    elif run.protocol_name == "gemini":
        body |= {"systemInstruction": {"parts": [{"text": SYSTEM}]}, "generationConfig": {"maxOutputTokens": 500}}
        body["tools"] = [{"functionDeclarations": TOOLS["gemini"]}]
        del body["model"]
    else:
        body |= {"system": SYSTEM, "max_tokens": 500}
    return json.dumps(body).encode()


async def nearly_full(run: Run, provider: StrictProvider) -> None:
    """A history well over the trigger, of which nothing was compacted."""
    run.headers["x-accordion-compact"] = "off"
    while not provider.taken or provider.taken[-1].tokens < 6_900:
        await rounds(run, 1)


async def test_moved_cache_breakpoints_keep_the_prefix_and_their_number(proxies: Proxies):
    proxy, provider = proxies["messages"], strict_provider("messages", "marks")
    async with proxy.provider(provider), agent(proxy, "messages", name="marks", marks=True) as run:
        await rounds(run, 60)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    assert len(compacted_requests(run)) >= 2
    # What stands at the end of a compaction's part has one of its own.
    # What stands at the end of a compaction's part has one of its own, or for one request the client's.
    behind = [at for at in range(compacted_requests(run)[0], len(provider.taken)) if at not in compacted_requests(run)]
    assert {provider.taken[at].text.count('"cache_control"') for at in behind} == {4}


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_that_are_bound_to_their_prefix_are_never_sent_behind_another_one(start: Start, stream: bool):
    """A compaction waits for the end of the turn, or takes the thoughts away with it."""
    proxy = start(config("messages").replace("small", BINDING))
    provider = StrictProvider("messages", WINDOW, rounds=12, thinks=True, binds=True, run="bound")
    async with proxy.provider(provider), agent(proxy, "messages", name="bound", model=BINDING, stream=stream) as run:
        await run.turns(7)
    assert provider.problems == []
    assert provider.refusals == []
    assert compacted_requests(run)
    assert broken_prefixes(provider.taken) == compacted_requests(run)


@EACH
async def test_many_large_results_at_once_are_cut_until_they_fit(start: Start, protocol_name: str):
    """A provider that counts more than we do refuses once, and what it counted is what the next compaction goes by."""
    proxy, provider = start(config(protocol_name)), strict_provider(protocol_name, "many")
    provider.batch, provider.words, provider.whole = (lambda number: 14 if number == 4 else 1), 400, False
    async with proxy.provider(provider), agent(proxy, protocol_name, name="many", words=400) as run:
        await rounds(run, 8)
    assert provider.problems == []
    assert len(provider.refusals) <= 1
    assert run.sent[4] // 4 > WINDOW


async def test_the_same_request_many_times_at_once_is_compacted_once(start: Start, tmp_path: Path):
    """Whichever worker has it, and however it measures the history: all of them send the same."""
    proxy = start(config("responses"), "--workers", "2", ACCORDION_STORE=f"sqlite:///{tmp_path}/compactions.db")
    provider = strict_provider("responses", "at once")
    async with proxy.provider(provider), agent(proxy, "responses", name="at once") as run:
        await nearly_full(run, provider)
        # What was reported of this history is on record, so that each worker can know how long it is.
        await fetch_session(proxy, run.answers[-1]["x-accordion-session"], len(run.answers))
        body, before = body_of(run), len(provider.taken)
        replies = await asyncio.gather(*(post(proxy, PATHS["responses"], body) for _ in range(8)))
    assert provider.problems == []
    said = [json.loads(reply.header("x-accordion-compaction") or "null") for reply in replies]
    assert {reply.status for reply in replies} == {200}
    assert len({one["id"] for one in said if one is not None}) == 1
    assert len({one.request.body for one in provider.taken[before:]} - {body}) == 1
    assert [one["state"] for one in said if one is not None].count("compacted") == 1


@EACH
async def test_a_compressed_body_that_is_compacted_leaves_plain(proxies: Proxies, protocol_name: str):
    proxy, provider = proxies[protocol_name], strict_provider(protocol_name, "gzip")
    async with proxy.provider(provider), agent(proxy, protocol_name, name="gzip") as run:
        await nearly_full(run, provider)
        reply = await post(proxy, PATHS[protocol_name], gzip.compress(body_of(run)), ("Content-Encoding", "gzip"))
    assert reply.status == 200
    assert '"compacted"' in (reply.header("x-accordion-compaction") or "")
    assert provider.problems == []
    assert provider.taken[-1].request.header("content-encoding") is None
    assert provider.taken[-1].tokens < provider.taken[-2].tokens


@EACH
async def test_an_alias_is_replaced_in_a_compacted_request_too(start: Start, protocol_name: str):
    text = config(protocol_name).replace("model_name: small", "model_name: smart")
    proxy, provider = start(text), strict_provider(protocol_name, "alias")
    async with proxy.provider(provider), agent(proxy, protocol_name, name="alias", model="smart") as run:
        while not compacted_requests(run):
            await rounds(run, 1)
        await rounds(run, 2)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    if protocol_name == "gemini":
        assert {one.request.target for one in provider.taken} == {PATHS[protocol_name]}
    else:
        assert {one.request.json()["model"] for one in provider.taken} == {"small"}


async def test_a_compaction_of_one_tenant_is_never_put_into_anothers_request(start: Start):
    proxy = start(config("chat") + KEYS, RED="red-key-1", BLUE="blue-key-1")
    provider = strict_provider("chat", "tenants")
    async with proxy.provider(provider), agent(proxy, "chat", name="tenants") as run:
        run.headers["x-accordion-key"] = "red-key-1"
        while not compacted_requests(run):
            await rounds(run, 1)
        await rounds(run, 1)
        run.history = run.history[:-6]
        while run.open:
            run.history.pop()
        body, headers = body_of(run), []
        for key in ("red-key-1", "blue-key-1"):
            reply = await post(
                proxy, PATHS["chat"], body, ("x-accordion-key", key), ("Authorization", "Bearer sk-test")
            )
            headers.append(json.loads(reply.header("x-accordion-compaction") or "null"))
    assert headers[1] is None or headers[1]["state"] == "compacted"


async def test_a_request_that_was_tried_twice_is_one_request_in_the_ledger(start: Start):
    proxy = start("server: {shutdown_seconds: 1}\nsummaries: {writer: extractive}\nwindows: {default: 8000}\n")
    provider = StrictProvider("chat", 4_600, rounds=1_000)
    async with proxy.provider(provider), agent(proxy, "chat") as run:
        while not provider.refusals:
            await rounds(run, 1)
        known = await fetch_session(proxy, run.answers[-1]["x-accordion-session"], len(run.answers))
    assert known["totals"]["requests"] == len(run.answers)
    assert known["totals"]["errors"] == 0
    assert known["totals"]["input"] == sum(one.tokens for one in provider.taken)
    assert known["exchanges"][-1]["compaction"]["cause"] == "overflow"


async def test_an_agent_of_many_turns_keeps_its_block_small(proxies: Proxies):
    """Compactions of compactions of compactions: what stands for the past does not grow with it."""
    proxy, provider = proxies["chat"], strict_provider("chat", "long")
    provider.rounds = 20
    async with proxy.provider(provider), agent(proxy, "chat", name="long", stream=True) as run:
        await run.turns(6)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    said = [one for one in run.compactions if one is not None and one["state"] == "compacted"]
    assert said[-1]["generation"] >= 5
    assert max(one["after"] for one in said) < 0.65 * WINDOW
    assert max(one.tokens for one in provider.taken) <= WINDOW


def test_proxies_have_logs(proxies: Proxies):
    """Nothing failed inside, unseen."""
    for protocol_name in PROTOCOL_NAMES:
        proxy: Proxy = proxies[protocol_name]
        assert "internal error" not in proxy.log
        assert "could not be compacted" not in proxy.log
