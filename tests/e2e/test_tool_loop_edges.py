"""Reading back where it is odd: too often, in arguments, behind bound thoughts, in what the provider keeps."""

from tests.conftest import Start
from tests.e2e.reading_agent import start_reading_agent
from tests.e2e.small_window import STREAMED, STREAMS, config

BINDING = "claude-opus-5-5"


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


# -- what the provider keeps -------------------------------------------------------------------------------------------
