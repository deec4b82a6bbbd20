"""Replies in which something was read back, by the ids that the client was shown."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.agent_replies import Json
from tests.e2e.reading_agent import ReadingAgent, start_reading_agent
from tests.e2e.small_window import STREAMED, Proxies
from tests.e2e.storing_provider import StoringProvider, shows_our_tool
from tests.strict_provider import result_of


@asynccontextmanager
async def replied(
    proxies: Proxies, name: str, way: str, *, stream: bool = False, **more: Any
) -> AsyncIterator[tuple[ReadingAgent, StoringProvider, Json]]:
    """An agent whose model went this way in its last reply, the provider, and the reply as the client was shown it."""
    async with start_reading_agent(
        proxies["responses"], "responses", f"{name} {way} {stream}", ways=(way,), every=1, stream=stream,
        reader=StoringProvider, more={"store": True}, **more,
    ) as one:  # fmt: skip
        await one.until_offered()
        while one.provider.exchanges[-1].way != way:
            await one.rounds(1)
        heard = one.witness.heard[-1]
        shown: Json = heard.events[-1]["response"] if stream else json.loads(heard.body)
        assert isinstance(one.provider, StoringProvider)
        yield one, one.provider, shown


# -- what the provider keeps -------------------------------------------------------------------------------------------


async def goes_on(one: ReadingAgent, state: Json, entries: list[Json], *, stream: bool) -> Json:
    """Something sent on to what the provider keeps; the reply."""
    one.starts.append(len(one.provider.taken))
    asked = {"model": "small", "input": entries, "instructions": None, **state, **one_fields(one), "stream": stream}
    raw = await one.run.client.responses.with_raw_response.create(**asked)
    if not stream:
        reply: Json = json.loads(raw.content)
        return reply
    async for _ in raw.parse():
        pass
    found: Json = one.witness.heard[-1].events[-1]["response"]
    return found


def one_fields(one: ReadingAgent) -> Json:
    """What every request of an agent has beside its list."""
    first = one.provider.exchanges[0].body
    return {name: first[name] for name in ("instructions", "tools", "include") if name in first}


def results(reply: Json, words: int) -> list[Json]:
    calls = [item["call_id"] for item in reply["output"] if item["type"] == "function_call"]
    told = [{"type": "function_call_output", "call_id": call, "output": result_of(call, words)} for call in calls]
    return told or [{"role": "user", "content": "Q: and now?"}]


@STREAMED
@pytest.mark.parametrize("way", ["wo w", "wo wop t", "wot"])
async def test_a_chain_of_replies_goes_on_from_one_in_which_something_was_read(
    proxies: Proxies, way: str, stream: bool
):
    """By a client that sent its list until then. Each is named by the id that was shown; nothing is there twice, and
    nothing is missing."""
    async with replied(proxies, "chain", way, stream=stream) as (one, provider, reply):
        provider.ways, shown = (), reply
        for _ in range(3):
            held = len(provider.taken[-1].entries)
            given = results(shown, one.run.words)
            shown = await goes_on(one, {"previous_response_id": shown["id"]}, given, stream=stream)
            assert not shows_our_tool(shown)
            assert len(provider.taken[-1].entries) > held
        # What led to the reply is put in place of its id, compacted as it was, and our tool stays.
        assert [each.tool for each in provider.exchanges[-3:]] == ["read_artifact"] * 3
    assert provider.problems == []
    assert one.witness.problems("responses") == []
