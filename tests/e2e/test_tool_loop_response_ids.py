"""Replies in which something was read back, by the ids that the client was shown."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
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


def last(one: ReadingAgent) -> str:
    return f"resp_{one.provider.exchanges[-1].said.number}"


# -- asked for by its id -----------------------------------------------------------------------------------------------


@STREAMED
@pytest.mark.parametrize("way", ["wo w", "wo wop t", "wot"])
async def test_a_reply_that_is_asked_for_is_the_one_that_was_shown(proxies: Proxies, way: str, stream: bool):
    async with replied(proxies, "get", way, stream=stream) as (one, provider, shown):
        told = json.loads((await one.run.client.responses.with_raw_response.retrieve(shown["id"])).content)
        if way != "wot":
            assert last(one) != shown["id"]
    assert provider.asked[-1] == ("GET", f"/v1/responses/{last(one)}")
    assert told["id"] == shown["id"]
    assert told["output"] == shown["output"]
    assert not shows_our_tool(told)


async def test_a_reply_is_asked_for_with_what_the_client_asks_beside_it(proxies: Proxies):
    async with replied(proxies, "query", "wo w") as (one, provider, shown):
        await one.run.client.responses.retrieve(shown["id"], include=["reasoning.encrypted_content"])
    method, target = provider.asked[-1]
    assert (method, target.partition("?")[0]) == ("GET", f"/v1/responses/{last(one)}")
    assert "reasoning.encrypted_content" in target


async def test_a_reply_that_is_asked_for_as_a_stream_has_the_id_that_was_shown(proxies: Proxies):
    async with replied(proxies, "stream", "wo w", stream=True) as (one, provider, shown):
        ids = set()
        text = ""
        async for event in await one.run.client.responses.retrieve(shown["id"], stream=True):
            ids |= {event.response.id} if hasattr(event, "response") else set()
            text += event.delta if event.type == "response.output_text.delta" else ""
    assert provider.asked[-1] == ("GET", f"/v1/responses/{last(one)}?stream=true")
    assert ids == {shown["id"]}
    assert text == one.provider.exchanges[-1].said.text
    assert not shows_our_tool(one.witness.heard[-1].body.decode())


async def test_what_a_reply_was_given_is_what_the_request_held(proxies: Proxies):
    """The rounds behind it are not the client's; they are a part of what was said."""
    async with replied(proxies, "items", "wo w") as (one, provider, shown):
        page = await one.run.client.responses.input_items.list(shown["id"])
    assert provider.asked[-1] == ("GET", f"/v1/responses/{shown['id']}/input_items")
    given = json.dumps([item.model_dump(mode="json", warnings=False) for item in page.data])
    assert provider.exchanges[-3].theirs[0] in given
    assert provider.exchanges[-2].ours[0] not in given


async def test_a_reply_that_is_cancelled_is_the_last_round(proxies: Proxies):
    async with replied(proxies, "cancel", "wo w") as (one, provider, shown):
        told = await one.run.client.responses.cancel(shown["id"])
    assert provider.asked[-1] == ("POST", f"/v1/responses/{last(one)}/cancel")
    assert told.id == shown["id"]


@STREAMED
async def test_a_reply_that_is_deleted_is_deleted_with_all_its_rounds(proxies: Proxies, stream: bool):
    async with replied(proxies, "delete", "wo wop w", stream=stream) as (one, provider, shown):
        rounds = [f"resp_{each.said.number}" for each in provider.exchanges[-3:]]
        assert shown["id"] == rounds[0]
        assert set(rounds) <= set(provider.held)
        raw = await one.run.client.responses.with_raw_response.delete(shown["id"])
        assert json.loads(raw.content)["id"] == shown["id"]
        assert not set(rounds) & set(provider.held)
        with pytest.raises(openai.NotFoundError) as raised:
            await one.run.client.responses.retrieve(shown["id"])
    assert raised.value.status_code == 404


async def test_a_reply_in_which_nothing_was_read_is_asked_for_as_it_is(proxies: Proxies):
    async with replied(proxies, "plain", "wo w") as (one, provider, _):
        one.provider.ways = ()
        await one.rounds(1)
        shown = json.loads(one.witness.heard[-1].body)
        await one.run.client.responses.retrieve(shown["id"])
        assert provider.asked[-1] == ("GET", f"/v1/responses/{shown['id']}")


# -- named in what is sent ---------------------------------------------------------------------------------------------


@STREAMED
@pytest.mark.parametrize("way", ["wo w", "wot", "o wt", "who w"])
async def test_items_of_a_reply_may_be_named_by_their_ids(proxies: Proxies, way: str, stream: bool):
    """What was read back stands where it was, and what the client only names is what it stands for."""

    def as_item_references(entries: list[Json]) -> list[Json]:
        return [
            {"type": "item_reference", "id": each["id"]} if each.get("type") in ("message", "reasoning") else each
            for each in entries
        ]

    async with replied(proxies, "named", way, stream=stream, keeps=as_item_references) as (one, provider, _):
        one.provider.ways = ()
        await one.rounds(3)
        one.provider.ways = (way,)
        await one.rounds(3)
    assert provider.problems == []
    assert one.witness.problems("responses") == []
    one.stable()


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


@STREAMED
async def test_what_a_conversation_of_the_provider_holds_is_sent_as_it_came(proxies: Proxies, stream: bool):
    """It is not known here what stands in it, so nothing is compacted, offered or put in."""
    name = f"conv_{stream}"
    async with replied(proxies, f"talk {stream}", "wo w", stream=stream) as (one, provider, reply):
        shown, entries = reply, list(one.provider.taken[-1].entries)
        provider.ways = ("wo w",)
        for number in range(3):
            given = [json.loads(entry) for entry in entries] if not number else results(shown, one.run.words)
            if not number:
                given += [*shown["output"][-1:], {"role": "user", "content": "Q: and now?"}]
            shown = await goes_on(one, {"conversation": name}, given, stream=stream)
            assert provider.offered[-1] == ""
            assert not shows_our_tool(shown)
        talk = provider.talks[name]
    names = [entry["id"] for entry in talk if "id" in entry and entry.get("type") != "reasoning"]
    assert len(names) == len(set(names))
    assert provider.problems == []
