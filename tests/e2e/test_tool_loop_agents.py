"""A model reads back what left its window, in every way, and its agent on the official SDKs never knows."""

from tests.e2e.reading_agent import start_reading_agent
from tests.e2e.small_window import EACH, STREAMED, Proxies, fetch_session
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
        known = await fetch_session(proxy, one.run.answers[-1]["x-accordion-session"], len(one.run.answers))
    one.whole(*WAYS)
    assert len(one.compactions) >= 2, "what was read back was compacted too"
    # The ledger tells of it.
    rounds = sum(each.continues is not None for each in one.provider.exchanges)
    calls = sum(len(each.ours) for each in one.provider.exchanges)
    assert known["totals"]["read_back_rounds"] == rounds
    assert known["totals"]["read_back_calls"] == calls
    assert known["totals"]["requests"] == len(one.run.answers)
