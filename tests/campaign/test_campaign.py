"""The fault campaign in small; `python -m bench campaign` is the same in large. See bench/README.md."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen

import httpx
import pytest

from tests.campaign.clock import Clock
from tests.campaign.faults import CLIENTS, CLOCK, DISK, EMPTY, PROCESSES, PROVIDER, SQLITE, VALKEY, faults_of, schedule
from tests.campaign.proof import prove
from tests.campaign.replies import ANSWERED
from tests.campaign.rounds import Plan, carry_out, prepared
from tests.disks import can_mount

pytestmark = pytest.mark.timeout(900)
"""On a busy machine a round takes minutes."""

PLANS = {
    "processes": Plan(1, "sqlite", (*PROCESSES, *CLOCK), 8, 1.0),
    "links": Plan(2, "valkey", (*PROVIDER, *CLIENTS), 5, 1.0),
    "valkey": Plan(3, "valkey", (*VALKEY, *DISK), 5, 1.5),
    "sqlite": Plan(4, "sqlite", (*SQLITE, *DISK, "kill-worker"), 4, 1.5),
}
"""On a machine of two cores each takes half a minute."""


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
async def test_agents_go_on_through_faults_and_nothing_is_lost(plan: Plan):
    if not can_mount():
        plan = replace(plan, faults=tuple(name for name in plan.faults if name not in DISK))
    result = await carry_out(plan)
    assert result.failures() == []
    assert {name for fault in plan.schedule for name in fault.names} == set(plan.faults)
    assert sum(result.carried_out.values()) == plan.count
    assert sum(proof.messages for proof in result.proofs) > 100
    assert sum(proof.results for proof in result.proofs) > 10


async def test_all_messages_are_recorded_again_after_the_store_was_emptied():
    """A chain is not among these: its client does not send its messages again."""
    plan = Plan(6, "valkey", EMPTY, 1, 6.0, kinds=("chat", "responses", "messages", "gemini"), agents=4)
    result = await carry_out(plan)
    assert [proof.missing or proof.disordered for proof in result.proofs] == [[]] * 4
    assert all(outcome == ANSWERED for _, outcome in result.outcomes)


async def test_what_is_lost_is_noticed():
    plan = Plan(5, "sqlite", (), 0, 0.0, kinds=("messages",), agents=1)
    async with prepared(plan) as one:
        await one.run()
        [agent] = one.crew.agents
        assert (await one.proof(agent)).is_whole
        proxy = one.faults.proxy
        async with httpx.AsyncClient(base_url=proxy.url, trust_env=False) as client:
            for session in agent.sessions:
                reply = await client.delete(
                    f"/accordion/sessions/{session}", headers={"x-accordion-token": proxy.token}
                )
                assert reply.json()["verified"]
        proof = await prove(proxy.url, agent)
    assert len(proof.missing) == proof.messages > 0
    assert len(proof.lost) == proof.results > 0
    assert len(proof.gone) == proof.references > 0


def test_a_seed_decides_the_order_of_faults():
    names = faults_of("valkey")
    assert schedule(7, names, 30, 5.0) == schedule(7, names, 30, 5.0) != schedule(8, names, 30, 5.0)
    assert {name for fault in schedule(7, names, 30, 5.0) for name in fault.names} == set(names)


def test_the_clock_of_a_process_jumps_while_it_runs(tmp_path: Path):
    clock = Clock(tmp_path / "clock")
    code = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.time_ns(), flush=True)"
    environ = {**os.environ, **clock.environ}
    with Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True, env=environ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for shift in (0.0, 86_400.0, -86_400.0):
            clock.jump(shift)
            print(file=process.stdin, flush=True)
            seconds, nanoseconds = map(float, process.stdout.readline().split())
            assert abs(seconds - time.time() - shift) < 3_600
            assert abs(nanoseconds / 1e9 - time.time() - shift) < 3_600
