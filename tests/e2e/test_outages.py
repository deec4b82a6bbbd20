"""Agents whose requests hop between workers while the store is away: nothing breaks, and nothing is missing later."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from bench import outages
from bench.outages import Agent, Outcome, Provider, agent_of, compared
from tests.conftest import Start
from tests.proxy_process import PATIENT, Proxy
from tests.valkey import Valkey, running_valkey

KINDS = ("chat", "responses", "messages")


@pytest.fixture
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A server that keeps what it took when it is killed."""
    with running_valkey(tmp_path_factory.mktemp("valkey"), appendonly="yes") as server:
        yield server


async def work(agent: Agent, requests: int) -> None:
    """So many requests; one that is refused because of the outage is sent again."""
    for _ in range(requests):
        if not await agent.answered(asyncio.Event()):
            agent.run.begin()


async def whole(proxy: Proxy, agent: Agent) -> Outcome:
    """What is missing once nothing more comes in."""
    while (outcome := await compared(proxy.url, agent, "all")).missing:
        await asyncio.sleep(0.5)
    return outcome


async def test_the_last_messages_before_an_outage_are_recorded_afterwards(start: Start, valkey: Valkey):
    text = outages.CONFIG.format(window=outages.WINDOW, record="all") + PATIENT
    proxy = start(text, "--workers", "2", ACCORDION_STORE=valkey.url)
    await proxy.says("startup complete", 2)
    agents = [agent_of(at + 1, kind, proxy.url, reconnect=True) for at, kind in enumerate(KINDS)]
    provider = Provider({agent.run.name: agent for agent in agents})
    async with proxy.provider(provider) as provider.behind:
        for agent in agents:
            agent.run.begin()
        await asyncio.gather(*(work(agent, 6) for agent in agents))
        os.kill(valkey.pid, signal.SIGKILL)
        valkey.kill()
        await asyncio.gather(*(work(agent, 6) for agent in agents))
        valkey.start()
        for agent in agents:
            assert (await whole(proxy, agent)).messages > 12
            assert not agent.gave_up
            await agent.run.client.close()


async def test_conversations_go_on_at_other_workers_while_the_store_is_away(start: Start, valkey: Valkey):
    text = outages.CONFIG.format(window=outages.WINDOW, record="all") + PATIENT
    proxy = start(text, "--workers", "2", ACCORDION_STORE=valkey.url)
    await proxy.says("startup complete", 2)
    kinds = ("chain", "chain", "chain", "chain", *KINDS)
    agents = [agent_of(at + 1, kind, proxy.url, reconnect=True) for at, kind in enumerate(kinds)]
    provider = Provider({agent.run.name: agent for agent in agents})
    async with proxy.provider(provider) as provider.behind:
        for agent in agents:
            agent.run.begin()
        for before in (30, 6):
            await asyncio.gather(*(work(agent, before) for agent in agents))
            os.kill(valkey.pid, signal.SIGKILL)
            valkey.kill()
            await asyncio.gather(*(work(agent, 8) for agent in agents))
            valkey.start()
            await proxy.says("the store is available again", 2)
        for agent in agents:
            assert (agent.model.problems, agent.model.refusals, agent.odd, agent.breaks()) == ([], [], [], [])
            assert (await whole(proxy, agent)).messages > 50
            assert not agent.gave_up
            assert agent.compactions
            await agent.run.client.close()
    assert sum(agent.read_backs for agent in agents) > len(agents)
