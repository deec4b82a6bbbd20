"""What was read back stays where it was read, whatever the client makes of its copy of the reply."""

import asyncio
from pathlib import Path
from typing import Any

from tests.agents import connected
from tests.conftest import Start
from tests.e2e.proxy_api import get_exchanges, wait_until
from tests.e2e.reading_agent import start_reading_agent
from tests.e2e.small_window import STREAMS, Proxies, compacted_requests, config
from tests.loopback import Answer
from tests.reading_provider import ProviderExchange

SOME = ("o", "wot", "wo to", "wo w", "tot")


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
