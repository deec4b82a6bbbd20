"""The store is away while each request of a conversation comes to another worker: what one wrote the other finds."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents import Run, connected
from tests.conftest import Start
from tests.e2e.proxy_api import get_page
from tests.e2e.small_window import WINDOW, broken_prefixes, compacted_requests, config, rounds
from tests.loopback import Answer, Recorded
from tests.proxy_process import Proxy
from tests.strict_provider import StrictProvider
from tests.valkey import Valkey, running_valkey

AGENTS = 6
ARTIFACT = re.compile(r"art_[0-9a-f]{12}")
WORDS = 400
"""So many that an agent's history is compacted every few rounds."""
AWAY = 3.0
FAULTS: dict[str, tuple[Callable[[Valkey], None], Callable[[Valkey], None]]] = {
    "killed": (Valkey.kill, Valkey.start),
    "frozen": (Valkey.freeze, Valkey.thaw),
}


class Providers(dict[str, StrictProvider]):
    """One strict provider for each agent, told apart by the agent's name."""

    async def __call__(self, request: Recorded, answer: Answer) -> None:
        text = request.body.decode()
        await next(each for name, each in self.items() if name in text)(request, answer)


async def hopping(proxy: Proxy, run: Run, over: asyncio.Event) -> None:
    """Lets an agent work, on a new connection for each request, so that any worker may get it."""
    while not over.is_set():
        async with connected(proxy.url, "chat") as client:
            run.client = client
            await rounds(run, 1)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_prefix_breaks_but_at_compactions_while_the_store_is_away(start: Start, tmp_path: Path, fault: str):
    names = [f"agent-{number:02}" for number in range(AGENTS)]
    providers = Providers({name: StrictProvider("chat", WINDOW, rounds=1_000, run=name, words=WORDS) for name in names})
    runs = {name: Run(None, "chat", name=name, words=WORDS) for name in names}
    away, back = FAULTS[fault]
    with running_valkey(tmp_path, appendonly="yes") as valkey:
        proxy = start(config("chat"), "--workers", "2", ACCORDION_STORE=valkey.url)
        await proxy.says("startup complete", 2)
        async with proxy.provider(providers):
            over = asyncio.Event()
            work = [asyncio.create_task(hopping(proxy, run, over)) for run in runs.values()]
            while not all(map(compacted_requests, runs.values())):
                await asyncio.sleep(0.1)
            away(valkey)
            await asyncio.sleep(AWAY)
            back(valkey)
            # Each agent is compacted again, however slow the machine is.
            while not all(len(compacted_requests(run)) > 1 for run in runs.values()):
                await asyncio.sleep(0.1)
            await asyncio.sleep(2)
            over.set()
            await asyncio.gather(*work)

        async def gone() -> list[str]:
            """References that the provider got and that cannot be read."""
            sent = [repr(forwarded.request.body) for each in providers.values() for forwarded in each.taken]
            ids = {name for body in sent for name in ARTIFACT.findall(body)}
            assert ids
            return [each for each in ids if (await get_page(proxy, f"/accordion/artifacts/{each}")).status_code != 200]

        assert await gone() == []
        assert {name: broken_prefixes(providers[name].taken) for name in names} == {
            name: compacted_requests(run) for name, run in runs.items()
        }
        assert [each.problems for each in providers.values()] == [[]] * AGENTS
