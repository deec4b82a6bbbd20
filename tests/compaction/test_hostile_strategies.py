"""Strategies that propose anything at all: what is forwarded is legal, and holds everything that is protected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accordion.compaction.planner import Planner
from accordion.compaction.request import RequestBudgets
from accordion.compaction.strategies import DEFAULT_STRATEGIES, build_strategy
from accordion.compaction.strategies.base import DeferredReplace, Strategy, StrategyOptions, StrategyView
from accordion.model.plan import Drop, Replace, Summarize
from accordion.protocols.registry import PROTOCOLS
from tests.compaction.compactor_setup import CompactorSetup, conversation
from tests.compaction.view_samples import (
    assistant_message,
    call_and_result,
    strategy_view,
    uncompacted,
    user_message,
    with_longer_results,
)
from tests.histories import PROTOCOL_NAMES, History, ProtocolName, histories
from tests.tiers import examples


class Hostile(Strategy):
    """Proposes the given steps, and raises an error behind them where there is one. A function makes steps of the view,
    so that some are legal by themselves."""

    name = "hostile"
    summary_model = ""

    def __init__(self, steps: Iterable[Any], error: BaseException | None = None) -> None:
        super().__init__(StrategyOptions())
        self.steps, self.error, self.calls = steps, error, 0

    def propose(self, view: StrategyView) -> Iterable[Any]:
        self.calls += 1
        for step in self.steps:
            yield from step(view) if isinstance(step, FunctionType) else [step]
        if self.error is not None:
            raise self.error


class HostileForImages(Hostile):
    name = "hostile_for_images"
    budget = "images"


def fail() -> str:
    raise RuntimeError("broken")


def replace_results(view: StrategyView) -> list[Any]:
    return [Replace(slot, part, "short") for slot, part, _ in view.list_results()]


def drop_reasoning(view: StrategyView) -> list[Any]:
    return build_strategy("stale_reasoning").propose(view)  # type: ignore[return-value]


def drop_group(number: int, view: StrategyView) -> list[Any]:
    first, last = view.groups[number % len(view.groups)]
    return [Drop(slot) for slot in range(first, last + 1)]


def as_function(call: Callable[[StrategyView], list[Any]]) -> Callable[[StrategyView], list[Any]]:
    return lambda view: call(view)


NUMBERS = st.integers(-2, 24) | st.sampled_from([None, "1", 1.5, True, 10**30, -(10**30)])
TEXTS = st.sampled_from(["", " ", "short", "\ud800", "long " * 5_000, None, b"bytes", 7])
WRITERS = st.sampled_from([lambda: "short", lambda: "", lambda: None, lambda: "\ud800", lambda: "long " * 5_000, fail])
PARTS = st.lists(st.integers(-2, 4), max_size=3).map(tuple) | st.sampled_from([None, [0], (0.0,), ("0",), "0"])
STEPS = st.one_of(
    st.builds(Replace, NUMBERS, st.integers(-1, 3) | NUMBERS, TEXTS, NUMBERS),
    st.builds(Drop, NUMBERS, PARTS),
    st.builds(Drop, st.integers(0, 24), st.just(())),
    st.builds(Summarize, st.integers(-2, 10) | NUMBERS, st.integers(2, 30) | NUMBERS, NUMBERS, TEXTS),
    st.builds(DeferredReplace, NUMBERS, st.integers(-1, 3) | NUMBERS, NUMBERS, WRITERS),
    st.sampled_from([None, "step", 7, (), Replace, {}]),
    st.sampled_from([replace_results, drop_reasoning]),
    st.builds(partial, st.just(drop_group), st.integers(0, 9)).map(as_function),
    st.builds(Summarize, st.integers(-1, 6), st.integers(6, 40), st.integers(10, 60), st.sampled_from(["", "note"])),
)
ERRORS = st.none() | st.sampled_from([RuntimeError("broken"), SystemExit(1), RecursionError(), KeyError(0)])


def shipped() -> list[Strategy]:
    return [build_strategy(name) for name in DEFAULT_STRATEGIES]


@pytest.mark.parametrize("must_succeed", [False, True])
@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow])
@given(
    history=histories(min_turns=3, max_turns=5),
    repeats=st.integers(5, 40),
    steps=st.lists(STEPS, max_size=12),
    error=ERRORS,
    alone=st.booleans(),
    pin=st.integers(1, 6),
)
async def test_any_proposal_gives_a_legal_request_with_everything_protected(
    protocol_name: ProtocolName,
    must_succeed: bool,
    history: History,
    repeats: int,
    steps: list[Any],
    error: BaseException | None,
    alone: bool,
    pin: int,
) -> None:
    client = conversation(with_longer_results(history, repeats), protocol_name)
    hostile: list[Strategy] = [Hostile(steps, error), HostileForImages(steps, error)]
    setup = CompactorSetup(pipeline=hostile if alone else [*hostile, *shipped()])
    pinned = frozenset({f"call_{pin:08d}"})
    request = setup.case(client, decision={"must_succeed": must_succeed, "is_requested": True}, pinned_call_ids=pinned)
    view = setup.compactor._assembler.plan(request)[0].view
    result = await setup.compactor.compact(request)

    messages = result.history.conversation.messages
    if result.outcome is not None and result.outcome.state == "failed":
        assert result.outcome.reason in EXPECTED_REASONS
    protocol = PROTOCOLS[protocol_name]
    assert set(protocol.find_problems(messages)) <= set(protocol.find_problems(client.messages))
    forwarded = {message.wire for message in messages}
    protected = [slot.message.wire for slot, is_free in zip(view.slots, view.free, strict=True) if not is_free]
    assert set(protected) <= forwarded
    calls = [part for message in messages for part in message.parts if getattr(part, "call_id", "") in pinned]
    assert calls == [part for each in client.messages for part in each.parts if getattr(part, "call_id", "") in pinned]


EXPECTED_REASONS = ("no message may be compacted", "it would not be shorter")
LONG = uncompacted(
    user_message("opening"),  # 0
    *call_and_result("a", "one " * 100),  # 1, 2
    assistant_message("done " * 40),  # 3
    user_message("task"),  # 4
    *call_and_result("b", "two " * 100),  # 5, 6
    *call_and_result("c", "three " * 100),  # 7, 8
)


@pytest.mark.parametrize(
    "broken",
    [
        Hostile([], RuntimeError("the conversation's text")),
        Hostile([Replace(2, 0, "short")], SystemExit(1)),
        Hostile([DeferredReplace(6, 0, 5, fail)]),
        Hostile([DeferredReplace(6, 0, 5, lambda: "long " * 5_000)]),
        Hostile([DeferredReplace(6, 0, 5, lambda: "")]),
    ],
)
def test_a_strategy_that_fails_is_logged_once_and_the_plan_is_that_without_it(
    broken: Hostile, caplog: pytest.LogCaptureFixture
) -> None:
    rest = [build_strategy("keep_last_n_messages", {"n": 3})]
    planner, view = Planner([broken, *rest]), strategy_view(LONG)
    with caplog.at_level(logging.ERROR, "accordion"):
        plans = [planner.plan(view, must_succeed=must_succeed) for must_succeed in (False, True, False)]
    assert [plan.proposals for plan in plans] == [Planner(rest).plan(view, must_succeed=False).proposals] * 3
    (record,) = caplog.records
    assert record.getMessage().startswith("the strategy hostile failed and is skipped: ")
    assert "the conversation's text" not in record.getMessage()


def test_a_strategy_without_end_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    def steps() -> Iterable[Drop]:
        while True:
            yield Drop(0)

    assert Planner([Hostile(steps())]).plan(strategy_view(LONG), must_succeed=False).proposals == ()
    assert "steps" in caplog.text


@pytest.mark.parametrize(
    ("steps", "legal"),
    [
        ([Summarize(1, 3, 20), Replace(2, 0, "short", 4)], [Summarize(1, 3, 20)]),
        ([Summarize(1, 3, 20), Drop(3)], [Summarize(1, 3, 20)]),
        ([Summarize(1, 3, 20), Summarize(3, 6, 20)], [Summarize(1, 3, 20)]),
        ([Drop(1), Drop(2), Replace(2, 0, "short", 4)], [Drop(1), Drop(2)]),
        ([Drop(3), Drop(3)], [Drop(3)]),
        ([Replace(2, 0, "short", 4), Replace(2, 0, "other", 4)], [Replace(2, 0, "other", 4)]),
        ([Replace(2, 0, "long " * 200, 1)], []),
        ([Replace(2, 0, "short", 10**9)], [Replace(2, 0, "short", 5)]),
        ([Replace(2, 0, "short")], [Replace(2, 0, "short", 5)]),
        ([Summarize(1, 3, 1, "x" * 600)], []),
        ([Summarize(1, 3, 10**9)], []),
        ([Summarize(1, 2, 20), Summarize(5, 6, 20)], [Summarize(1, 2, 20)]),
    ],
)
def test_of_contradicting_steps_the_first_counts_and_none_lengthens_the_request(
    steps: list[Any], legal: list[Any]
) -> None:
    assert list(Planner([Hostile(steps)]).plan(strategy_view(LONG), must_succeed=False).steps) == legal


def test_a_strategy_for_an_exceeded_limit_leaves_protected_texts_alone() -> None:
    class HostileForBytes(Hostile):
        budget = "bytes"

    planner = Planner([HostileForBytes([Replace(4, 0, "short"), Replace(0, 0, "x"), Replace(8, 0, "short")])])
    within, beyond = (
        planner.plan(strategy_view(LONG, size=1_000, budgets=RequestBudgets(max_body_bytes=most)), must_succeed=False)
        for most in (2_000, 999)
    )
    assert within.steps == ()
    assert [(step.slot, step.text) for step in beyond.proposals[0].steps] == [(8, "short")]  # type: ignore[union-attr]


def test_only_a_strategy_that_declares_a_summary_gets_one() -> None:
    class Silent(Hostile):
        summary_model = None

    assert Planner([Silent([Summarize(1, 3, 20)])]).plan(strategy_view(LONG), must_succeed=False).steps == ()
    noted = Summarize(1, 3, 20, "Three messages were here.")
    assert Planner([Silent([noted])]).plan(strategy_view(LONG), must_succeed=False).steps == (noted,)


def test_a_strategy_cannot_change_what_the_planner_knows() -> None:
    view = strategy_view(LONG)
    with pytest.raises(AttributeError):
        view.calls.clear()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        view.delegations_by_call.clear()  # type: ignore[attr-defined]
    assert isinstance(view.count_part_tokens(2), tuple)
