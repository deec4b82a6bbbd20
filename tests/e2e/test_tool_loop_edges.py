"""Reading back where it is odd: too often, in arguments, behind bound thoughts, in what the provider keeps."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.agent_replies import Json
from tests.agents import connected
from tests.conftest import Start
from tests.e2e.raw_client import post
from tests.e2e.reading_agent import ReadingAgent, start_reading_agent
from tests.e2e.small_window import STREAMED, STREAMS, Proxies, broken_prefixes, config
from tests.loopback import Answer, Recorded
from tests.proxy_process import Proxy
from tests.reading_provider import ProviderExchange, ReadingProvider
from tests.reply_parts import ScriptedReply
from tests.strict_provider import PATHS

BINDING = "claude-opus-5-5"
Follow = Callable[[list[Json]], Awaitable[Json]]


# -- how often ---------------------------------------------------------------------------------------------------------


@STREAMS
async def test_after_so_many_rounds_the_model_must_do_without(start: Start, protocol_name: str, stream: bool):
    """It is not offered any more, except where tools must stay; a model that calls it all the same is not asked."""
    proxy = start(config(protocol_name) + "read_back: {max_rounds: 3}\n")
    ways = ("o o w", "o o wo w", "o o o o o o o", "o o ot")
    async with start_reading_agent(proxy, protocol_name, "rounds", ways=ways, every=1, stream=stream) as one:
        await one.until_offered()
        while len(one.starts) < 60 and not one.provider.done >= set(ways):
            await one.rounds(1)
        await one.rounds(1)
        one.provider.wild = True
        one.provider.ways = ("o o o o o o o",)
        await one.rounds(2)
    assert one.provider.problems == []
    assert one.witness.problems(protocol_name) == []
    ends = [*one.starts[1:], len(one.provider.taken)]
    assert max(end - start for start, end in zip(one.starts, ends, strict=True)) == 4, "three more than one"
    one.stable()
    one.check_tool_is_hidden()
    one.counted()


# -- thoughts that are bound to what they were thought behind ----------------------------------------------------------


@STREAMED
async def test_bound_thoughts_stand_behind_what_they_were_thought_behind(start: Start, stream: bool):
    """What was read is a part of it, and so is our tool."""
    proxy = start(config("messages").replace("small", BINDING))
    options = {"rounds": 8, "binds": True}
    ways = ("o", "wo w", "wot", "who w", "wo to", "wo w", "who p t", "o w")
    async with start_reading_agent(
        proxy, "messages", f"bound {stream}", ways=ways, every=2, stream=stream, provider=options, model=BINDING
    ) as one:
        await one.rounds(70)
    assert one.provider.problems == []
    assert one.provider.refusals == []
    assert one.witness.problems("messages") == []
    one.stable()
    assert one.provider.done >= set(ways)


@STREAMED
async def test_reasoning_that_led_to_a_reading_alone_leaves_with_it(start: Start, stream: bool):
    """The client has such an item without what followed it, and a compaction that keeps reasoning would keep it so."""
    pipeline = "compaction: {pipeline: [{compact_tool_results: {replacement: reference, keep_last_n: 2}}]}\n"
    proxy = start(config("responses") + pipeline)
    ways = ("wo w", "o t", "who ot", "who p t")
    async with start_reading_agent(proxy, "responses", f"led {stream}", ways=ways, every=1, stream=stream) as one:
        await one.until_offered()
        await one.rounds(30)
    assert len(one.compactions) > 3
    one.whole(*ways)


class Terse(ReadingProvider):
    """Does not reason once more about what it read."""

    def _write_reply(self, one: ProviderExchange, tokens: int) -> ScriptedReply:
        thinks, self.thinks = self.thinks, self.thinks and one.continues is None
        try:
            return super()._write_reply(one, tokens)
        finally:
            self.thinks = thinks


@STREAMED
@pytest.mark.parametrize(("word", "reader"), [("off", ReadingProvider), ("observe", ReadingProvider), ("off", Terse)])
async def test_reasoning_that_led_only_to_our_call_is_not_sent_alone(
    start: Start, stream: bool, word: str, reader: type[ReadingProvider]
):
    """Nor by a worker that was started since. All else goes on; what is of such a reply, without its id maybe."""
    proxy = start(config("responses"), ACCORDION_STORE="sqlite:///kept.db")
    name, ways = f"{word} {reader.__name__} {stream}", ("o", "ot", "who ot", "o wot")
    async with start_reading_agent(proxy, "responses", name, ways=ways, every=1, stream=stream, reader=reader) as one:
        await one.until_offered()
        await one.rounds(5)
        one.run.headers["x-accordion-compact"], one.provider.window = word, 10**6
        await one.rounds(2)
        proxy.stop()
        proxy.port = 0
        proxy.start()
        async with connected(proxy.url, "responses") as client:
            one.run.client = client
            await one.rounds(2)
    assert [each for each in one.provider.problems if "reasoning" in each] == []
    assert one.provider.refusals == []
    assert broken_prefixes(one.provider.taken[-4:]) == [], "each begins with the whole of the one before"
    assert one.provider.done >= set(ways)
    for forwarded in one.provider.taken[-4:]:
        listing = unnamed(forwarded.request.json()["input"])
        history = unnamed(json.loads(json.dumps(one.run.history, default=lambda item: item.model_dump())))
        said = history[: history.index(listing[-1]) + 1]
        left_out = [each for each in said if each not in listing]
        assert {each["type"] for each in left_out} == {"reasoning"}
        assert listing == [each for each in said if each not in left_out]


def unnamed(items: list[Json]) -> list[Json]:
    return [{name: value for name, value in each.items() if name != "id"} for each in items]


# -- what the provider keeps -------------------------------------------------------------------------------------------


@asynccontextmanager
async def followed(proxy: Proxy, way: str, stream: bool) -> AsyncIterator[tuple[ReadingAgent, str, Follow]]:
    """An agent whose model went this way in its last reply; the id of that as the client has it; and what sends
    something on to it by that id, and gives what the provider was sent."""
    seen: list[Json] = []

    async def script(request: Recorded, answer: Answer) -> None:
        seen.append(request.json())
        await answer.head(200, [("Content-Type", "application/json")], length=2)
        await answer.send(b"{}")

    async with start_reading_agent(
        proxy, "responses", f"kept {way} {stream}", ways=(way,), every=1, stream=stream,
        provider={"summary": script}, more={"store": True},
    ) as one:  # fmt: skip
        await one.until_offered()
        while one.provider.exchanges[-1].way != way:
            await one.rounds(1)
        heard = one.witness.heard[-1]
        shown = (heard.events[-1]["response"] if stream else json.loads(heard.body))["id"]

        async def follow(entries: list[Json]) -> Json:
            body = {"model": "small", "previous_response_id": shown, "input": entries}
            reply = await post(proxy, PATHS["responses"], json.dumps(body).encode())
            assert reply.status == 200
            return seen[-1]

        yield one, shown, follow


@STREAMED
async def test_the_id_of_a_reply_leads_to_all_that_was_said_in_it(proxies: Proxies, stream: bool):
    """The client was shown the first round's; the provider knows the whole by the last one's."""
    async with followed(proxies["responses"], "wo w", stream) as (one, shown, follow):
        sent = await follow([{"role": "user", "content": "Q: and now?"}])
    first, last = one.provider.exchanges[-2:]
    assert shown == f"resp_{first.said.number}"
    assert sent["previous_response_id"] == f"resp_{last.said.number}"


@STREAMED
async def test_results_for_a_previous_response_id_come_with_our_calls_results(proxies: Proxies, stream: bool):
    """The provider keeps the reply, and waits for both."""
    async with followed(proxies["responses"], "wo ot", stream) as (one, _, follow):
        results = [each for each in one.run.history if each.get("type") == "function_call_output"][-1:]
        sent = await follow(results)
    last = one.provider.exchanges[-1]
    assert sent["previous_response_id"] == f"resp_{last.said.number}"
    assert [item["call_id"] for item in sent["input"]] == [*last.ours, *last.theirs]
    assert last.wanted[last.ours[0]] in sent["input"][0]["output"]
