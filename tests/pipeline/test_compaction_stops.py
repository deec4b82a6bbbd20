"""Models for which compaction is stopped: when it is, what is sent for their sessions, and until when."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from accordion.accounting.ledger import DAY
from accordion.model.records import Session
from accordion.model.tenant import TenantScope
from tests.holdouts import groups, spread, write_sessions
from tests.pipeline.test_compact import sent
from tests.pipeline.test_costs import PRICES, TENANT
from tests.pipeline_setup import CHAT, PipelineSetup, header
from tests.writers import reading_request

ON = "compaction: {holdout: 0.001%, stop_if_worse: true}\n"
LOSS, GAIN = (spread(1.2, 200), spread(1.0, 60)), (spread(0.8, 200), spread(1.0, 60))
"""The dollars of sessions with compaction, and of those in the hold-out."""


async def make_setup(*rows: Session, config: str = ON, **parts: Any) -> PipelineSetup:
    """A pipeline after a comparison of these sessions."""
    setup = PipelineSetup(config=f"{config}{PRICES}", **parts)
    setup.windows.size = 4_000
    # A request puts the tenant on the list.
    await ask(setup, "first", 1)
    await write_sessions(setup.store, setup.clock.now(), TENANT.name, rows)
    await setup.compaction_stops.run_round()
    return setup


async def ask(setup: PipelineSetup, label: str, rounds: int, model: str = "gpt-5") -> dict[str, Any]:
    """Sends a conversation of so many rounds, of 200 tokens each; returns the record of its compaction."""
    request = reading_request("chat", rounds, model=model)
    out, _ = await setup.ask(CHAT, request, {"x-accordion-session": f"session-{label}"})
    return json.loads(header(out, "x-accordion-compaction") or "{}")


async def test_compaction_is_stopped_for_the_model_where_it_does_not_pay() -> None:
    setup = await make_setup(*groups(*LOSS, "gpt-5"), *groups(*GAIN, "gpt-4.1"))
    outcome = await ask(setup, "a", 15)
    assert (outcome["state"], outcome["saved"]) == ("holdout", 0)
    assert outcome["reason"].endswith("; compaction does not pay for this model, so it is not compacted")
    assert sent(setup) == reading_request("chat", 15)
    assert (await ask(setup, "b", 15, "gpt-4.1"))["state"] == "compacted"
    # Beyond the hard limit a request would not fit.
    assert (await ask(setup, "a", 19))["state"] == "compacted"
    assert (await ask(setup, "a", 20))["state"] == "replayed"


async def test_a_session_that_was_compacted_before_the_stop_goes_on_with_its_compactions() -> None:
    setup = await make_setup()
    made = await ask(setup, "compacted", 15)
    assert made["state"] == "compacted"
    await write_sessions(setup.store, setup.clock.now(), TENANT.name, groups(*LOSS))
    setup.clock.advance(300.0)
    await setup.compaction_stops.run_round()
    replayed = await ask(setup, "compacted", 16)
    assert (replayed["state"], replayed["id"]) == ("replayed", made["id"])
    states = [(await ask(setup, "compacted", rounds))["state"] for rounds in range(17, 40)]
    assert "compacted" in states
    assert "holdout" not in states


async def test_no_session_enters_the_comparison_while_compaction_is_stopped() -> None:
    setup = await make_setup(*groups(*LOSS))
    before = await setup.observe.read_holdout([TENANT], setup.clock.now())
    for number in range(20):
        await ask(setup, f"s-{number}", 15)
    assert before is not None
    assert await setup.observe.read_holdout([TENANT], setup.clock.now()) == before


@pytest.mark.parametrize(
    ("compaction", "holdout"),
    [
        pytest.param(*GAIN, id="it pays"),
        pytest.param(spread(1.2, 200), spread(1.0, 28), id="too few sessions"),
        pytest.param(spread(1.02, 200), spread(1.0, 60), id="the interval contains zero"),
    ],
)
async def test_compaction_goes_on_unless_it_surely_does_not_pay(compaction: list[float], holdout: list[float]) -> None:
    setup = await make_setup(*groups(compaction, holdout))
    assert await setup.observe.read_stops(setup.clock.now()) == []
    assert (await ask(setup, "a", 15))["state"] == "compacted"


async def test_nothing_is_stopped_unless_the_setting_says_so() -> None:
    setup = await make_setup(*groups(*LOSS), config="compaction: {holdout: 0.001%}\n")
    assert (await ask(setup, "a", 15))["state"] == "compacted"


async def test_a_stop_is_logged_once_and_is_the_same_in_all_workers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "accordion"):
        setup = await make_setup(*groups(*LOSS))
        other = await make_setup(store=setup.store)
    (line,) = (each.getMessage() for each in caplog.records if "stopped" in each.getMessage())
    assert line.startswith("tenant default: Compaction is stopped for gpt-5 since 1970-01-12: it cost 20 % more")
    # It did not compare them itself, since the first one just did.
    await other.compaction_stops.poll()
    assert (await ask(other, "a", 15))["state"] == "holdout"


async def test_a_tenant_is_not_stopped_for_the_sessions_of_another() -> None:
    setup = await make_setup(*groups(*LOSS))
    assert setup.compaction_stops.is_stopped(TENANT, "gpt-5")
    assert not setup.compaction_stops.is_stopped(TenantScope("another", b""), "gpt-5")


async def test_an_erasure_of_a_tenant_ends_its_stops() -> None:
    setup = await make_setup(*groups(*LOSS))
    await setup.observe.forget_tenant(TENANT)
    await setup.compaction_stops.poll()
    assert not setup.compaction_stops.is_stopped(TENANT, "gpt-5")


async def test_compaction_is_tried_again_when_the_sessions_are_30_days_old() -> None:
    setup = await make_setup(*groups(*LOSS))
    setup.clock.advance(29.0 * DAY)
    await setup.compaction_stops.run_round()
    assert (await ask(setup, "a", 15))["state"] == "holdout"
    setup.clock.advance(1.1 * DAY)
    await setup.compaction_stops.run_round()
    assert (await ask(setup, "b", 15))["state"] == "compacted"
