"""`accordion savings` and `accordion sessions`: costs from the store itself."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accordion.accounting.ledger import day_name
from accordion.cli.listing import format_dollars
from accordion.cli.main import app
from accordion.model.ports import Key
from accordion.server.event_loop import LoopClock
from accordion.stores.sqlite import SqliteStore
from tests.holdouts import groups, spread, write_sessions
from tests.pipeline.test_costs import PRICES, Talk, answered, compacted, unreported
from tests.pipeline_setup import PipelineSetup


@dataclass
class CostStore:
    """A store with the costs of three conversations: one compacted, one of unknown price, one without usage."""

    config: Path

    def run(self, *args: str) -> Result:
        return CliRunner().invoke(app, [*args, "--config", str(self.config)])

    def json_lines(self, *args: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*args, "--json").stdout.splitlines()]


async def fill(folder: Path) -> None:
    store: Any = SqliteStore(folder / "kept.db", timeout=30.0)
    await store.put_if_absent(Key("", "secret/tenants"), b"secret" * 6)
    setup = PipelineSetup(store=store, config=PRICES)
    setup.clock.time = LoopClock().now()
    talk = await compacted(setup)
    await talk.say(5, answered(1_606, cached=1_540))
    setup.clock.advance(1.0)
    await Talk(setup, "b", model="nobody-knows-it", agent="planner").say(20, answered(2_000))
    setup.clock.advance(1.0)
    await Talk(setup, "c").say(20, unreported())
    await setup.outbox.flush()
    await store.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CostStore:
    folder = tmp_path_factory.mktemp("costs")
    asyncio.run(fill(folder))
    config = folder / "config.yaml"
    config.write_text(f"store: {{url: 'sqlite:///{folder}/kept.db'}}\n{PRICES}")
    return CostStore(config)


def test_the_sums_are_shown_with_own_cost_net_and_what_is_an_estimate(store: CostStore) -> None:
    shown = store.run("savings").stdout
    (found,) = store.json_lines("savings")
    dollars = found["total"]["dollars"]
    assert dollars["net"] < 0 < dollars["own_cost"]
    assert f"net                ~{format_dollars(round(dollars['net'] * 1e9))}" in shown
    assert "net                ~-$0.0" in shown
    assert "~ is an estimate" in shown
    assert "1 request of unknown price" in shown
    assert "7 requests" in shown


def test_days_models_and_agents_have_tables(store: CostStore) -> None:
    lines = store.run("savings").stdout.splitlines()
    today = day_name(LoopClock().now())
    assert any(line.startswith(today) for line in lines)
    (unknown,) = (line for line in lines if line.startswith("nobody-knows-it"))
    assert unknown.split()[2:] == ["2,000", "2,000", "unknown", "unknown", "unknown", "unknown"]
    (planner,) = (line for line in lines if line.startswith("planner"))
    assert "unknown" in planner


def test_the_sessions_are_listed_latest_first_and_add_up_to_the_total(store: CostStore) -> None:
    found = store.json_lines("sessions")
    assert [session["model"] for session in found] == ["m", "nobody-knows-it", "m"]
    assert found[1]["costs"]["dollars"] is None
    (report,) = store.json_lines("savings")
    spent = sum(session["costs"]["dollars"]["spent"] for session in found if session["costs"]["dollars"])
    assert spent == pytest.approx(report["total"]["dollars"]["spent"])
    table = store.run("sessions").stdout
    assert all(session["id"] in table for session in found)
    assert table.count("unknown") == 3
    assert len(store.json_lines("sessions", "--limit", "1")) == 1


def test_an_erased_session_is_no_longer_listed_and_its_day_stays(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    config = tmp_path / "config.yaml"
    config.write_text(f"store: {{url: 'sqlite:///{tmp_path}/kept.db'}}\n{PRICES}")
    store = CostStore(config)
    (before,) = store.json_lines("savings")
    gone = store.json_lines("sessions")[0]["id"]
    assert store.run("erase", "--session", gone, "--yes").exit_code == 0
    assert gone not in [session["id"] for session in store.json_lines("sessions")]
    assert store.json_lines("savings") == [before]


def test_a_store_without_requests_says_so(tmp_path: Path) -> None:
    async def create() -> None:
        store: Any = SqliteStore(tmp_path / "kept.db", timeout=30.0)
        await store.put_if_absent(Key("", "secret/tenants"), b"secret" * 6)
        await store.close()

    asyncio.run(create())
    config = tmp_path / "config.yaml"
    config.write_text(f"store: {{url: 'sqlite:///{tmp_path}/kept.db'}}\n")
    store = CostStore(config)
    assert store.run("savings").stdout.startswith("no request is on record from ")
    assert store.run("sessions").stdout == "there are no sessions\n"
    (found,) = store.json_lines("savings")
    assert found["total"]["dollars"]["spent"] == 0


def test_too_many_days_are_refused(store: CostStore) -> None:
    done = store.run("savings", "--days", "401")
    assert done.exit_code == 2
    assert "1<=x<=400" in done.output


@pytest.mark.parametrize(
    ("nanodollars", "text"),
    [
        (0, "$0.00"),
        (1_500_000_000_000, "$1,500.00"),
        (-253_350_000, "-$0.25"),
        (1_234_567, "$0.0012"),
        (-1_234_567, "-$0.0012"),
        (40_000, "<$0.0001"),
    ],
)
def test_small_amounts_have_four_decimals(nanodollars: int, text: str) -> None:
    assert format_dollars(nanodollars) == text


def test_the_comparison_with_a_hold_out_is_printed(tmp_path: Path) -> None:
    asyncio.run(fill_with_holdout(tmp_path))
    config = tmp_path / "config.yaml"
    compaction = "compaction: {holdout: 5%, stop_if_worse: true}"
    config.write_text(f"store: {{url: 'sqlite:///{tmp_path}/kept.db'}}\n{compaction}\n{PRICES}")
    compared = CostStore(config)
    (found,) = compared.json_lines("savings")
    assert found["holdout"]["verdict"] == "pays"
    shown = compared.run("savings").stdout
    assert f"\n{found['holdout']['models']['gpt-4.1']['sentence']}\n" in shown
    (stop,) = found["stops"]
    assert stop["model"] == "gpt-4.1"
    assert f"\n{stop['sentence']}\n" in shown
    assert f"\n{found['holdout']['sentence']}\n" in shown
    (dollars,) = (line for line in shown.splitlines() if line.startswith("Dollars"))
    assert "-41 % (" in dollars


def test_without_a_hold_out_none_is_mentioned(store: CostStore) -> None:
    assert store.json_lines("savings")[0]["holdout"] is None
    assert "hold-out" not in store.run("savings").stdout


async def fill_with_holdout(folder: Path) -> None:
    store: Any = SqliteStore(folder / "kept.db", timeout=30.0)
    await store.put_if_absent(Key("", "secret/tenants"), b"secret" * 6)
    setup = PipelineSetup(store=store, config=f"compaction: {{holdout: 5%, stop_if_worse: true}}\n{PRICES}")
    setup.clock.time = LoopClock().now()
    await Talk(setup, "a").say(20, answered(2_000))
    rows = groups(spread(0.5, 80), spread(2.0, 40)) + groups(spread(1.2, 80), spread(0.9, 40), "gpt-4.1")
    await write_sessions(setup.store, setup.clock.now(), "default", rows)
    await setup.compaction_stops.run_round()
    await setup.outbox.flush()
    await store.close()
