"""Finds the strategies of other packages, which offer them as entry points of the group `accordion.strategies`.

A package is imported only if a pipeline names its strategy. Whatever is wrong with a package is a ValueError whose
message names the package and the strategy.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points

from accordion.compaction.strategies import STRATEGIES
from accordion.compaction.strategies.base import BUDGETS, Strategy, StrategyOptions

GROUP = "accordion.strategies"


def list_strategy_names() -> list[str]:
    """Returns the names of all strategies: Accordion's own, and those that packages offer."""
    return list(dict.fromkeys((*STRATEGIES, *sorted(entry_points(group=GROUP).names))))


def find_strategy_type(name: str) -> type[Strategy] | None:
    """Returns the class of a strategy; None for an unknown name. Raises ValueError."""
    offers = {(_package_of(each), each.value): each for each in entry_points(group=GROUP, name=name)}
    packages = " and ".join(f"`{package}`" for package, _ in sorted(offers))
    if name in STRATEGIES:
        if offers:
            raise ValueError(
                f"{packages} has a strategy `{name}`, but Accordion has one of this name; uninstall one of them"
            )
        return STRATEGIES[name]
    if len(offers) > 1:
        raise ValueError(f"{packages} have a strategy `{name}` each; uninstall all but one")
    for (package, _), offer in offers.items():
        strategy = _load(offer, package)
        for problem in _find_problems(strategy, name):
            raise ValueError(f"the strategy `{name}` of the package `{package}` {problem}")
        return strategy
    return None


def describe_origin(name: str) -> str:
    """Returns the end of a sentence that names a strategy and its package; empty for Accordion's own."""
    packages = [_package_of(each) for each in entry_points(group=GROUP, name=name)] if name not in STRATEGIES else []
    return f" (strategy `{name}` of the package `{packages[0]}`)" if packages else ""


def _package_of(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else "unknown"


def _load(offer: EntryPoint, package: str) -> type[Strategy]:
    try:
        return offer.load()  # type: ignore[no-any-return]  # the caller checks what it is
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"the strategy `{offer.name}` of the package `{package}` cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error


def _find_problems(strategy: object, name: str) -> Iterator[str]:
    """Yields what makes an object no strategy of this name."""
    if not isinstance(strategy, type) or not issubclass(strategy, Strategy):
        yield "is no subclass of `accordion.Strategy`"
        return
    if strategy.name != name:
        yield f"calls itself `{strategy.name}`; its `name` and its entry point must be the same"
    if inspect.isabstract(strategy):
        yield "has no method `propose`"
    elif inspect.iscoroutinefunction(strategy.propose) or inspect.isasyncgenfunction(strategy.propose):
        yield "has an asynchronous method `propose`; it must be a plain one"
    if strategy.budget not in BUDGETS:
        yield f"has the budget {strategy.budget!r}; there are {', '.join(BUDGETS)}"
    options_type: object = strategy.options_type
    if not isinstance(options_type, type) or not issubclass(options_type, StrategyOptions):
        yield "has an `options_type` that is no subclass of `accordion.StrategyOptions`"
