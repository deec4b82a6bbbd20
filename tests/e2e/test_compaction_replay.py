"""Compactions are put back the same way: after a restart, by another worker, by another proxy; as far as a history
holds."""

import json
from pathlib import Path

import pytest

from tests.agents import Run, connected
from tests.conftest import Start
from tests.e2e.raw_client import post
from tests.e2e.small_window import (
    EACH,
    Proxies,
    agent,
    broken_prefixes,
    compacted_requests,
    config,
    rounds,
    strict_provider,
)
from tests.strict_provider import PATHS, SYSTEM, turn_text
from tests.valkey import Valkey
from tests.writers import WRITERS

BEYOND = 27
"""Requests after which a compaction was made, and some more were sent."""


def references_in(run: Run) -> list[str]:
    """The id of the compaction in force, by answer."""
    return ["" if said is None else said["id"] for said in run.compactions]


async def test_a_compaction_is_the_same_after_a_restart(start: Start, tmp_path: Path):
    proxy = start(config("chat"), ACCORDION_STORE=f"sqlite:///{tmp_path}/compactions.db")
    provider = strict_provider("chat", "restart")
    async with proxy.provider(provider):
        async with agent(proxy, "chat", name="restart") as run:
            await rounds(run, BEYOND)
        proxy.stop()
        proxy.port = 0
        proxy.start()
        async with connected(proxy.url, "chat") as client:
            run.client = client
            await rounds(run, 3)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    assert len(compacted_requests(run)) in (1, 2)
    assert references_in(run)[BEYOND - 1] == references_in(run)[BEYOND] != ""
    assert run.answers[0]["x-accordion-session"] == run.answers[-1]["x-accordion-session"]


async def test_what_a_session_taught_about_its_counts_holds_after_a_restart(start: Start, tmp_path: Path):
    """Also where what was reported cannot be carried on, as behind other tools: triggers are met at the same size."""
    proxy = start(config("chat"), ACCORDION_STORE=f"sqlite:///{tmp_path}/compactions.db")
    provider = strict_provider("chat", "taught")
    async with proxy.provider(provider), agent(proxy, "chat", name="taught") as run:
        await rounds(run, 12)
        messages = [{"role": "system", "content": SYSTEM}, *run.history]
        tools = [{"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}]
        body = json.dumps({"model": "small", "messages": messages, "tools": tools}).encode()
        proxy.stop()
        proxy.port = 0
        proxy.start()
        reply = await post(proxy, PATHS["chat"], body)
    assert int(reply.header("x-accordion-tokens") or 0) == pytest.approx(provider.taken[-1].tokens, rel=0.2)


async def test_a_compaction_is_the_same_whichever_worker_is_asked(start: Start, tmp_path: Path):
    proxy = start(config("messages"), "--workers", "2", ACCORDION_STORE=f"sqlite:///{tmp_path}/compactions.db")
    provider, run = strict_provider("messages", "workers"), Run(None, "messages", name="workers")
    async with proxy.provider(provider):
        for _ in range(45):
            async with connected(proxy.url, "messages") as client:
                run.client = client
                await rounds(run, 1)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    assert len(compacted_requests(run)) >= 1


async def test_a_compaction_is_the_same_in_two_proxies_with_one_store(start: Start, valkey_server: Valkey):
    text = config("chat")
    first = start(text, ACCORDION_STORE=valkey_server.url)
    second = start(
        text.replace("{upstream}", f"http://127.0.0.1:{first.upstream_port}"), ACCORDION_STORE=valkey_server.url
    )
    provider, run = strict_provider("chat", "two proxies"), Run(None, "chat", name="two proxies")
    async with first.provider(provider), connected(first.url, "chat") as one, connected(second.url, "chat") as two:
        for number in range(45):
            run.client = (one, two)[number % 2]
            await rounds(run, 1)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    assert len(compacted_requests(run)) >= 1
    assert len({head["x-accordion-session"] for head in run.answers[10:]}) == 1


@EACH
async def test_a_history_that_is_rewound_behind_a_compaction_goes_on_without_it(proxies: Proxies, protocol_name: str):
    """The client takes back so much that the compaction tells of what is no longer there."""
    name, proxy = "behind", proxies[protocol_name]
    provider = strict_provider(protocol_name, name)
    async with proxy.provider(provider), agent(proxy, protocol_name, name=name) as run:
        await rounds(run, BEYOND)
        compaction = references_in(run)[-1]
        assert compaction
        del run.history[5:]
        _to_a_question(run, "Q: another way, please.")
        await rounds(run, 3)
        assert references_in(run)[-1] == ""
        await rounds(run, BEYOND)
    assert provider.problems == []
    assert references_in(run)[-1] not in ("", compaction), "the fork is compacted by itself"


@EACH
async def test_a_history_that_is_rewound_to_after_a_compaction_keeps_it(proxies: Proxies, protocol_name: str):
    name, proxy = "after", proxies[protocol_name]
    provider = strict_provider(protocol_name, name)
    async with proxy.provider(provider), agent(proxy, protocol_name, name=name) as run:
        await rounds(run, BEYOND - 8)
        while not compacted_requests(run):
            await rounds(run, 1)
        then = len(run.history)
        await rounds(run, 4)
        compaction, before = references_in(run)[-1], provider.taken[-4].entries
        del run.history[then:]
        run.say("Q: another way, please.")
        await rounds(run, 2)
    assert provider.problems == []
    assert references_in(run)[-1] == compaction
    assert provider.taken[-1].entries[: len(before)][:-1] == before[:-1]


@EACH
@pytest.mark.parametrize("back", [1, 3, 6])
async def test_a_rewound_history_still_has_its_newest_message_whole(proxies: Proxies, protocol_name: str, back: int):
    """Wherever it is rewound to, and sent again from there: what came last is what the model has to answer."""
    name, proxy = f"newest {back}", proxies[protocol_name]
    provider = strict_provider(protocol_name, name)
    async with proxy.provider(provider), agent(proxy, protocol_name, name=name) as run:
        ends = []
        while not compacted_requests(run):
            ends.append(len(run.history) if run.history else 1)
            await rounds(run, 1)
        # The client repeats the request that was sent so many requests before the one that was compacted.
        del run.history[ends[-1 - back] :]
        await rounds(run, 2)
    assert provider.problems == []


@EACH
async def test_an_edited_early_message_leaves_old_compactions_alone(proxies: Proxies, protocol_name: str):
    name, proxy = "edited", proxies[protocol_name]
    provider = strict_provider(protocol_name, name)
    async with proxy.provider(provider), agent(proxy, protocol_name, name=name) as run:
        await rounds(run, BEYOND)
        compaction = references_in(run)[-1]
        provider.run = run.name = "edited since"
        run.history[0] = WRITERS[protocol_name].replace_text(run.history[0], f"{turn_text(0, name)} since")
        await rounds(run, 1)
    assert provider.problems == []
    assert references_in(run)[-1] != compaction
    assert json.loads(provider.taken[-1].request.body)


def _to_a_question(run: Run, text: str) -> None:
    """Cuts a history back to where a user may speak, and lets the user speak."""
    while run.history and run.open:
        del run.history[-1]
    run.say(text)
