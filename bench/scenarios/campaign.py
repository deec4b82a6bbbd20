"""The fault campaign in large: rounds of tests/campaign with all faults, one after the other, until the time is over.

Each round has a seed of its own, so that one that failed can be seen again: `--minutes 0.1 --seed N`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from bench.report import Table
from bench.run_settings import RunSettings
from tests.campaign.agents import KINDS
from tests.campaign.faults import faults_of
from tests.campaign.proof import Proof
from tests.campaign.replies import ANSWERED, BROKEN, ERROR_EVENT, NO_ANSWER
from tests.campaign.rounds import Plan, Result, carry_out
from tests.disks import can_mount

FAULTS = 12
"""In each round."""
STOPPED = 3
"""So many rounds that did not come to their end, and there are no more."""
LONGEST = 5.0
"""Seconds that a fault lasts at most."""
BY_FAULT = (
    "during", "times", "attempts", "answered", "refused, 4xx", "failed, 5xx", "error in the stream", "broken off",
    "no answer",
)  # fmt: skip
BY_KIND = (
    "kind", "agents", "exchanges", "compactions", "read backs", "messages", "missing", "results that left", "lost",
    "references", "gone", "illegal", "wrong answers", "malformed", "overflows", "mended", "omissions", "breaks",
)  # fmt: skip


def run(setting: RunSettings) -> list[Table]:
    """Rounds on a Valkey server and on an SQLite file by turns."""
    end = time.monotonic() + 60 * (setting.minutes or setting.fewer(10, 1))
    results, stopped = list[Result](), list[str]()
    while not (results or stopped) or time.monotonic() < end:
        try:
            results.append(asyncio.run(carry_out(_plan(setting, len(results) + len(stopped)))))
        except AssertionError as error:
            stopped.append(str(error))
            if len(stopped) == STOPPED:
                break
    return tables_of(results, stopped)


def _plan(setting: RunSettings, number: int) -> Plan:
    store = ("valkey", "sqlite")[(setting.seed + number) % 2]
    names = faults_of(store, has_disk=can_mount())
    return Plan(setting.seed + number, store, names, FAULTS, LONGEST, disk="64m")


def tables_of(results: Sequence[Result], stopped: Sequence[str]) -> list[Table]:
    """What requests came to, by fault, and what was found again, by kind of agent. `stopped`: of each round that did
    not come to its end, why not."""
    minutes, seeds = sum(each.seconds for each in results) / 60, [each.plan.seed for each in results]
    title = f"Faults: {len(results)} rounds in {minutes:.0f} minutes, seeds {', '.join(map(str, seeds))}"
    by_fault, by_kind = Table(title, BY_FAULT), Table("What was found again after the faults", BY_KIND)
    outcomes = sum((each.outcomes for each in results), Counter[tuple[str, str]]())
    times = sum((each.carried_out for each in results), Counter[str]())
    singles = sorted(dict.fromkeys(fault for fault, _ in outcomes if fault), key=lambda name: (" + " in name, name))
    for fault in ["", *singles]:
        own = {outcome: count for (during, outcome), count in outcomes.items() if during == fault}
        by_fault.rows.append([fault or "no fault", times[fault] or None, sum(own.values()), own.get(ANSWERED, 0),
                              _sum(own, "HTTP 4"), _sum(own, "HTTP 5"),
                              *(own.get(name, 0) for name in (ERROR_EVENT, BROKEN, NO_ANSWER))])  # fmt: skip
    proofs = [proof for each in results for proof in each.proofs]
    for kind in KINDS:
        by_kind.rows.append(_row(kind, [each for each in proofs if each.agent.kind == kind]))
    by_kind.rows.append(_row("", proofs))
    by_kind.notes += [*stopped, *(line for each in results for line in each.failures())]
    lost = sum(len(each.missing) + len(each.lost) + len(each.gone) for each in proofs)
    illegal = sum(len(each.agent.rules_broken) for each in proofs)
    by_kind.goal("messages, results and references that were not found again", lost, 0, "")
    by_kind.goal("requests that broke a rule of the provider's", illegal, 0, "")
    failed = len(stopped) + sum(bool(each.failures()) for each in results)
    by_kind.goal("rounds with anything that must not be", failed, 0, "")
    by_kind.has_failed = failed > 0
    return [by_fault, by_kind]


def _sum(outcomes: dict[str, int], begin: str) -> int:
    return sum(count for name, count in outcomes.items() if name.startswith(begin))


def _row(kind: str, proofs: Sequence[Proof]) -> list[str | int | float | None]:
    agents = [proof.agent for proof in proofs]
    return [
        kind or "all", len(agents), sum(len(one.steps) for one in agents), sum(one.compactions for one in agents),
        sum(one.read_backs for one in agents), sum(each.messages for each in proofs),
        sum(len(each.missing) for each in proofs), sum(each.results for each in proofs),
        sum(len(each.lost) for each in proofs), sum(each.references for each in proofs),
        sum(len(each.gone) for each in proofs), sum(len(one.rules_broken) for one in agents),
        sum(len(one.wrong_answers) for one in agents), sum(len(one.malformed) for one in agents),
        sum(len(one.model.refusals) for one in agents), sum(len(one.mended) for one in agents),
        sum(len(one.omissions) for one in agents),
        sum(len(one.breaks()) for one in agents),
    ]  # fmt: skip
