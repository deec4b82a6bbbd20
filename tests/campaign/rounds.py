"""A round of the campaign: a proxy, a store and agents at work, faults one after the other, and then the proof."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.agents import CONFIG, KINDS, Agent, Crew, close
from tests.campaign.clock import Clock
from tests.campaign.failing_connection import FailingConnection
from tests.campaign.faults import DISK, EMPTY, Fault, Faults, ProxyConnections, schedule
from tests.campaign.proof import Proof, prove
from tests.campaign.replies import ANSWERED
from tests.disks import small_disk
from tests.loopback import Loopback
from tests.proxy_process import Proxy
from tests.valkey import running_valkey

PATIENCE = 600.0
"""Seconds within which each agent must have an answer again. It is no measure: a round that stands still must end."""
SETTLING = 30.0
"""Seconds until what the proxy held back for a store that was away must be stored."""


@dataclass(frozen=True)
class Plan:
    """What a round is made of; all that happens by chance follows from `seed`."""

    seed: int
    store: str
    faults: Sequence[str]
    count: int
    longest: float
    """Seconds that a fault lasts at most."""
    kinds: Sequence[str] = tuple(KINDS)
    agents: int = len(KINDS)
    pause: float = 0.02
    config: str = ""
    disk: str = "16m"

    @property
    def schedule(self) -> list[Fault]:
        return schedule(self.seed, self.faults, self.count, self.longest)

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.store}: {'; '.join(map(str, self.schedule))}"


@dataclass
class Result:
    """What became of a round."""

    plan: Plan
    agents: list[Agent]
    proofs: list[Proof]
    log: str
    carried_out: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def outcomes(self) -> Counter[tuple[str, str]]:
        """How often an attempt ended so during a fault; `""`: while nothing failed."""
        return sum((each.outcomes for each in self.agents), Counter[tuple[str, str]]())

    def failures(self) -> list[str]:
        """All that must not be, with what is needed to see it again."""
        found = [line for agent in self.agents for line in _failures_of(agent)]
        for proof in self.proofs:
            name = proof.agent.run.name
            for what, lost in (("in no transcript", proof.missing), ("out of order in", proof.disordered),
                               ("in no artifact", proof.lost), ("cannot be read", proof.gone)):  # fmt: skip
                found += [f"{name}: {len(lost)} {what}, such as {each[:200]}" for each in lost[:1]]
        calm = {
            outcome: count for (fault, outcome), count in self.outcomes.items() if not fault and outcome != ANSWERED
        }
        if calm:
            found.append(f"requests failed while nothing did: {calm}")
        if "Traceback" in self.log:
            found.append(f"the log has a traceback: {self.log[self.log.index('Traceback') - 500 :][:2_500]}")
        return [*found, str(self.plan)] if found else []


def _failures_of(agent: Agent) -> list[str]:
    lists = {
        "gave up": [agent.gave_up] if agent.gave_up else [],
        "illegal": agent.rules_broken,
        "wrong answers to read_artifact": agent.wrong_answers,
        "malformed": agent.malformed,
    }
    return [f"{agent.run.name}: {len(each)} {what}: {each[0][:600]}" for what, each in lists.items() if each]


# -- how it goes -------------------------------------------------------------------------------------------------------


@dataclass
class CampaignRound:
    """Agents at work, and the faults that they go through."""

    plan: Plan
    crew: Crew
    faults: Faults
    fault: str = ""
    """What fails at this moment, or failed before and is not overcome by all agents yet."""
    carried_out: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """The faults, and what must go on behind them."""
        stop = asyncio.Event()
        workers = [asyncio.create_task(self.crew.work(each, stop, self.plan.pause)) for each in self.crew.agents]
        try:
            await self._until(lambda: all(map(_has_begun, self.crew.agents)), "was compacted and read back")
            for fault in self.plan.schedule:
                await self._answered(fault.after)
                self.fault = fault.name
                await self.faults.carry_out(fault)
                if set(EMPTY) & set(fault.names):
                    for agent in self.crew.all:
                        agent.has_lost_store = True
                await self._answered(2)
                self.carried_out[fault.name] += 1
                self.fault = ""
            await self._answered(3)
        finally:
            stop.set()
            await asyncio.gather(*workers)
        await asyncio.gather(*(self._ask_again(child) for agent in self.crew.agents for child in agent.children))

    async def _ask_again(self, child: Agent) -> None:
        """One more question to a sub-agent that has ended. What of it waited in the memory of a process that was killed
        is recorded now: a client that sends its list again has all of it recorded."""
        if not child.gave_up:
            child.run.begin()
            await child.exchange(asyncio.Event())

    async def proof(self, agent: Agent) -> Proof:
        """The proof of an agent. What the proxy holds back for a store that was away comes a little later."""
        end = time.monotonic() + SETTLING
        while not (proof := await prove(self.faults.proxy.url, agent)).is_whole and time.monotonic() < end:
            await asyncio.sleep(1)
        return proof

    async def _answered(self, count: int) -> None:
        """Until each agent has got so many answers more, or gave up."""
        before = {id(each): _progress(each) for each in self.crew.agents}
        await self._until(
            lambda: all(each.gave_up or _progress(each) >= before[id(each)] + count for each in self.crew.agents),
            f"was answered {count} times after {self.fault or 'the last fault'}",
        )

    async def _until(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                raise AssertionError(f"not every agent {what}. {self.plan}")
            await asyncio.sleep(0.02)


def _has_begun(agent: Agent) -> bool:
    """Whether an agent's history was compacted, and its model read back or delegated work."""
    is_delegating = agent.kind.startswith("delegating")
    return bool(agent.compactions and agent.read_backs and (agent.children or not is_delegating))


def _progress(agent: Agent) -> int:
    """How many requests of an agent and its sub-agents were answered."""
    return len(agent.steps) + sum(len(each.steps) for each in agent.children)


async def carry_out(plan: Plan) -> Result:
    """Runs a round with a proxy and a store of its own."""
    began = time.monotonic()
    async with prepared(plan) as one:
        await one.run()
        proofs = [await one.proof(each) for each in one.crew.all]
        log = one.faults.log
    return Result(plan, one.crew.all, proofs, log, one.carried_out, time.monotonic() - began)


@asynccontextmanager
async def prepared(plan: Plan) -> AsyncIterator[CampaignRound]:
    """A round whose agents have sent nothing yet. Its proxy, its store and its provider run."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        faults = await _set_up(plan, folder, stack)
        crew = Crew(f"http://127.0.0.1:{faults.links.clients.port}", lambda: one.fault)
        one = CampaignRound(plan, crew, faults)
        for number in range(plan.agents):
            crew.add(plan.kinds[number % len(plan.kinds)])
        crew.provider = await stack.enter_async_context(Loopback(crew))
        faults.links.provider.target = crew.provider.port
        yield one
        for agent in crew.all:
            await close(agent.run.client)


async def _set_up(plan: Plan, folder: Path, stack: AsyncExitStack) -> Faults:
    """Starts the store, the links and the proxy; they end with the stack."""
    chance, clock = random.Random(plan.seed), Clock(folder / "clock")
    needs_disk = any(name in DISK for name in plan.faults)
    disk = stack.enter_context(small_disk(folder / "disk", plan.disk)) if needs_disk else None
    place = disk or folder
    valkey, url = None, f"sqlite:///{place}/campaign.db"
    clients, provider = FailingConnection(0, chance), FailingConnection(0, chance)
    links = ProxyConnections(clients, provider, None)
    if plan.store == "valkey":
        (place / "valkey").mkdir()
        valkey = stack.enter_context(running_valkey(place / "valkey", appendonly="yes", save=""))
        links.store = await stack.enter_async_context(FailingConnection(valkey.port, chance))
        url = f"redis://127.0.0.1:{links.store.port}/0"
    await stack.enter_async_context(provider)
    (folder / "proxy").mkdir()
    environ = {"ACCORDION_STORE": url, "ACCORDION_LOG": "info", **clock.environ}
    proxy = Proxy(folder / "proxy", provider.port, ("--workers", "2"), environ)
    proxy.config.write_text((CONFIG + plan.config).replace("{upstream}", f"http://127.0.0.1:{provider.port}"), "utf-8")
    stack.push_async_callback(asyncio.to_thread, proxy.stop)
    await asyncio.to_thread(proxy.start)
    await proxy.says("startup complete", 2)
    clients.target = proxy.port
    await stack.enter_async_context(clients)
    file = place / "campaign.db" if valkey is None else None
    return Faults(proxy, links, clock, valkey, file, disk, chance)
