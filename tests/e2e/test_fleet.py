"""Proxies on a really started cluster of three masters, with agents whose turns hop: the bench's `fleet` in small."""

from __future__ import annotations

import pytest

from bench.run_settings import RunSettings
from bench.scenarios.fleet import PHASES, Plan, carry_out
from bench.servers import Pins

pytestmark = pytest.mark.rest  # each test starts processes, or waits for real time


SMALL = Plan(
    proxies=2, sessions=6, idle_seconds=0.5, concurrency=6, long=20, pause=0.4,
    phases=("no requests", "compacted, hopping"),
)  # fmt: skip


def test_nothing_is_lost_on_a_cluster_of_three_masters_by_turns_that_hop():
    assert set(SMALL.phases) < set(PHASES)
    outcome = carry_out(RunSettings(quick=True, pins=Pins()), SMALL)
    assert outcome.problems == 0, outcome.rows
    row = outcome.rows[-1]
    assert row[2:4] == [6, 120]
    compactions, reads = row[6:8]
    assert compactions >= SMALL.sessions
    assert reads > 0
    # Each of the three masters has a part.
    assert len(outcome.usages[-1].shares) == 3
    assert outcome.usages[-1].busiest < 3
    assert outcome.phases[-1].figures["memory"] > 0
