from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from accordion.compaction.strategies import (
    DEFAULT_STRATEGIES,
    STRATEGIES,
    build_strategy,
    convert_options,
    select_for_other_limits,
    select_for_tokens,
    select_without_summary,
)
from accordion.compaction.strategies.base import ProposedStep, Strategy, StrategyOptions, StrategyView


def test_every_strategy_is_built_from_its_defaults_and_bears_its_name() -> None:
    for name in STRATEGIES:
        assert build_strategy(name).name == name
        assert build_strategy(name, {}).name == name
        assert build_strategy(name, STRATEGIES[name].options_type()).name == name


def test_the_shipped_pipeline_loses_little_by_little() -> None:
    assert (
        *("stale_reasoning", "superseded", "compact_tool_results"),
        *("delegated_digests", "summarize", "fixed_limits"),
    ) == DEFAULT_STRATEGIES
    assert set(DEFAULT_STRATEGIES) <= set(STRATEGIES)


def test_an_unknown_strategy_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="no strategy 'summarise'; there are stale_reasoning"):
        build_strategy("summarise")


# Option, the least and the most that it may be, and a value on each side of them.
BOUNDS: list[tuple[str, str, Any, Any]] = [
    ("keep_last_n_turns", "n", 1, 100_000),
    ("keep_last_n_messages", "n", 1, 100_000),
    ("compact_tool_results", "keep_last_n", 0, 100_000),
    ("compact_tool_results", "threshold", 0, 100_000),
    ("compact_tool_results", "digest_characters", 0, 4_000),
    ("delegated_digests", "keep_last_n", 0, 100_000),
    ("delegated_digests", "digest_characters", 200, 20_000),
    ("summarize", "threshold", 0, 100_000),
    ("summarize", "keep_last_n", 0, 100_000),
    ("summarize", "max_summary_tokens", 128, 10**7),
    ("fixed_limits", "messages", 1, 100_000),
    ("fixed_limits", "tokens", 1, 10**9),
]


@pytest.mark.parametrize(("name", "option", "least", "most"), BOUNDS)
def test_a_number_outside_of_its_bounds_is_refused(name: str, option: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(msgspec.convert({option: value}, STRATEGIES[name].options_type), option) == value
    for value in (least - 1, most + 1, "many"):
        with pytest.raises(msgspec.ValidationError, match=rf"\$\.{option}"):
            msgspec.convert({option: value}, STRATEGIES[name].options_type)


@pytest.mark.parametrize(
    ("name", "option", "good", "bad"),
    [
        ("summarize", "budget_share", (0.01, 0.99, "99%"), (0.0, 1.0, -1.0)),
        ("images", "share", (0.01, 1.0), (0.0, 1.1)),
        ("body", "share", (0.01, 1.0), (0.0, 1.1)),
        ("summarize", "model", ("m", None, "m" * 256), ("", "m" * 257)),
        ("compact_tool_results", "replacement", ("drop", "reference", None, "x" * 4_000), ("", "x" * 4_001)),
        ("compact_tool_results", "skip", ([], ["a"]), ([""], "a", ["a" * 257])),
    ],
)
def test_other_options_are_bounded_too(name: str, option: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    for value in good:
        convert_options({option: value}, STRATEGIES[name].options_type)
    for value in bad:
        with pytest.raises(msgspec.ValidationError, match=rf"\$\.{option}"):
            convert_options({option: value}, STRATEGIES[name].options_type)


def test_every_option_of_every_strategy_is_in_one_of_these_tables() -> None:
    tried = {(name, option) for name, option, _, _ in BOUNDS} | {
        ("summarize", "budget_share"),
        ("images", "share"),
        ("body", "share"),
        ("summarize", "model"),
        ("compact_tool_results", "replacement"),
        ("compact_tool_results", "skip"),
    }
    options = {name: each.options_type.__struct_fields__ for name, each in STRATEGIES.items()}
    assert tried == {(name, field) for name, fields in options.items() for field in fields}


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_an_option_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"keep_lst_n": 1}, STRATEGIES[name].options_type)


class Stub(Strategy):
    """A strategy of another package."""

    name = "stub"

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        return ()


class StubForImages(Stub):
    name = "stub_for_images"
    budget = "images"


def test_without_a_summary_only_built_in_strategies_run_and_fixed_limits_always() -> None:
    own = [build_strategy("superseded"), build_strategy("summarize")]
    names = [each.name for each in select_without_summary([*own, Stub(StrategyOptions())])]
    assert names == ["superseded", "fixed_limits"]
    limits = build_strategy("fixed_limits", {"messages": 7})
    assert select_without_summary([limits]) == (limits,)


def test_strategies_for_other_limits_always_run_after_those_of_packages() -> None:
    stub, images = StubForImages(StrategyOptions()), build_strategy("images", {"share": 0.2})
    first, second, third = select_for_other_limits([images, Stub(StrategyOptions()), stub])
    assert (first, second, third.name) == (stub, images, "body")
    assert [each.name for each in select_for_tokens([images, Stub(StrategyOptions()), stub])] == ["stub"]


def test_an_incomplete_strategy_cannot_be_built() -> None:
    class Incomplete(Strategy):
        name = "incomplete"

    with pytest.raises(TypeError, match="propose"):
        Incomplete(StrategyOptions())  # type: ignore[abstract]
