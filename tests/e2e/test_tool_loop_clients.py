"""What was read back stays where it was read, whatever the client makes of its copy of the reply."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent_replies import Json
from tests.agents import Run, connected
from tests.conftest import Start
from tests.e2e.proxy_api import get_exchanges, wait_until
from tests.e2e.reading_agent import ReadingAgent, start_reading_agent
from tests.e2e.small_window import EACH, PROTOCOL_NAMES, STREAMS, WINDOW, Proxies, compacted_requests, config
from tests.loopback import Answer
from tests.reading_provider import ProviderExchange, ReadingProvider
from tests.response_recorder import ResponseRecorder

SOME = ("o", "wot", "wo to", "wo w", "tot")
Keeps = Callable[[list[Json]], list[Json]]


# -- clients that write their copy down in their own way ---------------------------------------------------------------


def respelled(entries: list[Json]) -> list[Json]:
    """Arguments are read and written anew, with spaces and in another order."""

    def anew(value: Any) -> Any:
        if isinstance(value, list):
            return [anew(each) for each in value]
        if not isinstance(value, dict):
            return value
        out = {name: anew(value[name]) for name in sorted(value, reverse=True)}
        if isinstance(out.get("arguments"), str):
            out["arguments"] = json.dumps(json.loads(out["arguments"]), indent=2)
        return out

    return [anew(entry) for entry in entries]


def bare(entries: list[Json]) -> list[Json]:
    """What is null or empty is left out, and so is what says nothing."""

    def without_dropped_fields(value: Any) -> Any:
        if isinstance(value, list):
            return [without_dropped_fields(each) for each in value]
        if not isinstance(value, dict):
            return value
        dropped = ("annotations", "logprobs", "citations", "refusal", "status", "caller", "reasoning_content")
        # A call of Chat Completions needs its id, an item of Responses does not.
        own = ("id",) if "status" in value or value.get("type") == "reasoning" else ()
        return {
            name: without_dropped_fields(each)
            for name, each in value.items()
            if each is not None and name not in (*dropped, *own)
        }

    return [
        {"content": None, **out} if out.get("role") == "assistant" else out
        for out in map(without_dropped_fields, entries)
    ]


def joined(entries: list[Json]) -> list[Json]:
    """All that was said is one text."""
    if "role" in entries[0] and isinstance(entries[0].get("content"), list) and "id" not in entries[0]:
        blocks = entries[0]["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        others = [block for block in blocks if block["type"] != "text"]
        thoughts = [block for block in others if block["type"] == "thinking"]
        calls = [block for block in others if block["type"] != "thinking"]
        said = [{"type": "text", "text": text}] if text else []
        return [{**entries[0], "content": [*thoughts, *said, *calls]}]
    told = [entry for entry in entries if entry.get("type") == "message"]
    if len(told) < 2:
        return entries
    text = "".join(part["text"] for entry in told for part in entry["content"])
    one = {**told[-1], "content": [{**told[-1]["content"][0], "text": text}]}
    return [one if entry is told[-1] else entry for entry in entries if entry not in told[:-1]]


def thoughtless(entries: list[Json]) -> list[Json]:
    """What was reasoned is left out."""
    return bare([entry for entry in entries if entry.get("type") != "reasoning"])


KEPT = [
    *((protocol_name, keeps) for protocol_name in PROTOCOL_NAMES for keeps in (respelled, bare)),
    *((protocol_name, joined) for protocol_name in ("responses", "messages")),
    ("responses", thoughtless),
]


@pytest.mark.parametrize(
    ("protocol_name", "keeps"), KEPT, ids=[f"{protocol_name}, {keeps.__name__}" for protocol_name, keeps in KEPT]
)
async def test_a_client_may_write_its_copy_down_in_its_own_way(proxies: Proxies, protocol_name: str, keeps: Keeps):
    proxy = proxies[protocol_name]
    async with start_reading_agent(
        proxy, protocol_name, keeps.__name__, ways=SOME, stream=keeps is bare, keeps=keeps
    ) as one:
        one.provider.loose = keeps is thoughtless
        await one.until_offered()
        await one.rounds(2 * len(SOME) + 4)
    one.whole(*SOME)


# -- clients that ask again --------------------------------------------------------------------------------------------


@EACH
async def test_a_reply_that_is_made_again_has_its_own_readings(proxies: Proxies, protocol_name: str):
    """The client goes on from either, and turns back to the other."""
    proxy = proxies[protocol_name]
    async with start_reading_agent(proxy, protocol_name, "again", ways=("wo t", "ot"), every=1) as one:
        await one.until_offered()
        one.provider.ways = ()
        for way in ("wo t", "ot", "wo wt"):
            await one.rounds(1)
            before = list(one.run.history)
            branches: list[list[Any]] = []
            for _ in range(2):
                one.provider.ways = (way,)
                one.run.history = list(before)
                await one.rounds(1)
                branches.append(list(one.run.history))
            one.provider.ways = ()
            for branch in (*branches, *branches):
                one.run.history = list(branch)
                await one.rounds(1)
    one.whole("wo t", "ot", "wo wt")


@EACH
async def test_a_turn_that_was_answered_twice_in_the_same_words_goes_on(proxies: Proxies, protocol_name: str):
    """A reply without calls is known by its words."""
    proxy = proxies[protocol_name]
    async with start_reading_agent(proxy, protocol_name, "twice", ways=("o w",), every=1) as one:
        await one.until_offered()
        while one.provider.exchanges[-1].way != "o w":
            await one.rounds(1)
        one.provider.ways = ()
        await one.rounds(3)
    one.whole("o w")


# -- proxies that forget, and several of them --------------------------------------------------------------------------


async def test_what_was_read_is_there_after_a_restart(start: Start, tmp_path: Path):
    proxy = start(config("messages"), ACCORDION_STORE=f"sqlite:///{tmp_path}/read_backs.db")
    async with start_reading_agent(proxy, "messages", "restart", ways=SOME, every=1) as one:
        await one.until_offered()
        await one.rounds(len(SOME))
        proxy.stop()
        proxy.port = 0
        proxy.start()
        async with connected(proxy.url, "messages", one.witness) as client:
            one.run.client = client
            await one.rounds(len(SOME))
    one.whole(*SOME)


async def test_what_was_read_is_the_same_whichever_worker_is_asked(start: Start, tmp_path: Path):
    proxy = start(config("responses"), "--workers", "2", ACCORDION_STORE=f"sqlite:///{tmp_path}/read_backs.db")
    provider, witness = (
        ReadingProvider("responses", WINDOW, rounds=1_000, thinks=True, run="workers", ways=SOME, every=1),
        ResponseRecorder(),
    )
    async with proxy.provider(provider) as behind:
        one = ReadingAgent(Run(None, "responses", name="workers", stream=True), provider, witness, behind)
        while len(provider.done) < len(SOME):
            async with connected(proxy.url, "responses", witness) as client:
                one.run.client = client
                await one.rounds(1)
    one.whole(*SOME)


# -- clients that go away ----------------------------------------------------------------------------------------------


@STREAMS
async def test_a_client_that_goes_away_between_two_rounds_leaves_nothing_behind(
    proxies: Proxies, protocol_name: str, stream: bool
):
    proxy, name = proxies[protocol_name], f"away-{protocol_name}-{stream}"
    async with start_reading_agent(proxy, protocol_name, name, ways=("wo",), every=1, stream=stream) as one:
        one.run.headers["x-session-id"] = name
        await one.until_offered()
        one.provider.ways = ()
        # Right behind a compaction none is due, and its record names what can be read.
        made = len(compacted_requests(one.run))
        while len(compacted_requests(one.run)) == made:
            await one.rounds(1)
        hanging, gone = asyncio.Event(), asyncio.Event()

        async def waits(exchange: ProviderExchange, answer: Answer) -> bool:
            if exchange.continues is None:
                return False
            hanging.set()
            await answer.until_gone()
            gone.set()
            return True

        one.provider.ways, one.provider.instead = ("wo",), waits
        before, first = list(one.run.history), len(one.provider.taken)
        asking = asyncio.create_task(one.run.step())
        await hanging.wait()
        asking.cancel()
        await asyncio.wait_for(gone.wait(), 30)
        await asyncio.gather(asking, return_exceptions=True)
        one.provider.ways, one.provider.instead = (), None
        assert one.run.history == before

        async def known() -> Any:
            return [each for each in await get_exchanges(proxy, name) if each["error"]]

        [exchange] = await wait_until(known)
        await one.rounds(3)
    assert exchange["error"] == "client_disconnected"
    assert exchange["status"] == (200 if stream else 499)
    assert one.provider.problems == []
    # The second attempt is the first one, to the letter.
    bodies = [each.request.body for each in one.provider.taken]
    assert bodies[first + 2] == bodies[first]
    one.stable()
