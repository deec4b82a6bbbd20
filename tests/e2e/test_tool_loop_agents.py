"""A model reads back what left its window, in every way, and its agent on the official SDKs never knows."""

from tests.agent_replies import Json
from tests.conftest import Start
from tests.e2e.reading_agent import start_reading_agent
from tests.e2e.small_window import EACH, STREAMED, STREAMS, Proxies, config, fetch_session
from tests.reading_provider import WAYS


@EACH
@STREAMED
async def test_a_model_reads_back_in_every_way_and_the_agent_never_knows(
    proxies: Proxies, protocol_name: str, stream: bool
):
    proxy = proxies[protocol_name]
    async with start_reading_agent(proxy, protocol_name, f"every way, {stream}", stream=stream) as one:
        await one.until_offered()
        await one.rounds(2 * len(WAYS) + 8)
        await one.until(*WAYS)
        known = await fetch_session(proxy, one.run.answers[-1]["x-accordion-session"], len(one.run.answers))
    one.whole(*WAYS)
    assert len(one.compactions) >= 2, "what was read back was compacted too"
    # The ledger tells of it.
    rounds = sum(each.continues is not None for each in one.provider.exchanges)
    calls = sum(len(each.ours) for each in one.provider.exchanges)
    assert known["totals"]["read_back_rounds"] == rounds
    assert known["totals"]["read_back_calls"] == calls
    assert known["totals"]["requests"] == len(one.run.answers)


MUST_CALL: dict[str, Json] = {
    "chat": {"tool_choice": "required"},
    "responses": {"tool_choice": "required"},
    "messages": {"tool_choice": {"type": "any"}},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
}


@STREAMS
async def test_where_a_tool_must_be_called_reading_goes_on_until_one_of_the_clients_is(
    proxies: Proxies, protocol_name: str, stream: bool
):
    proxy = proxies[protocol_name]
    async with start_reading_agent(
        proxy, protocol_name, f"must {stream}", ways=("o p t",), every=1, stream=stream
    ) as one:
        await one.until_offered()
        one.run.more = MUST_CALL[protocol_name]
        await one.rounds(4)
        await one.until("o p t")
        assert one.provider.taken[-1].request.json().items() >= MUST_CALL[protocol_name].items()
    one.whole("o p t")


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


@STREAMED
async def test_bound_thoughts_stand_behind_what_they_were_thought_behind(start: Start, stream: bool):
    """What was read is a part of it, and so is our tool."""
    binding = "claude-opus-5-5"
    proxy = start(config("messages").replace("small", binding))
    options = {"rounds": 8, "binds": True}
    ways = ("o", "wo w", "wot", "who w", "wo to", "wo w", "who p t", "o w")
    async with start_reading_agent(
        proxy, "messages", f"bound {stream}", ways=ways, every=2, stream=stream, provider=options, model=binding
    ) as one:
        await one.rounds(70)
    assert one.provider.problems == []
    assert one.provider.refusals == []
    assert one.witness.problems("messages") == []
    one.stable()
    assert one.provider.done >= set(ways)
