"""Reads lists of strategies: each is a name, or a name with options (`- stale_reasoning`, `- fixed_limits: {...}`).

A strategy is Accordion's own, or one that another package offers as an entry point of the group `accordion.strategies`.
A package is imported only if a pipeline names its strategy. Whatever is wrong with a package is a ConfigError whose
message names the package and the strategy.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from accordion.compaction.strategies import DEFAULT_STRATEGIES, STRATEGIES, default_options
from accordion.compaction.strategies.base import BUDGETS, Strategy, StrategyOptions
from accordion.config.yaml_text import child_path, convert
from accordion.model.errors import ConfigError
from accordion.model.suggestions import find_nearest

_GROUP = "accordion.strategies"
"""The group of entry points by which packages offer strategies."""


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """One entry of a pipeline: a strategy, and options of its `options_type`."""

    strategy_type: type[Strategy]
    options: StrategyOptions

    @property
    def name(self) -> str:
        """The strategy's name."""
        return self.strategy_type.name

    def build(self) -> Strategy:
        """Builds the strategy with its options."""
        return self.strategy_type(self.options)


DEFAULT_PIPELINE = tuple(PipelineEntry(STRATEGIES[name], default_options(name)) for name in DEFAULT_STRATEGIES)


def read_pipelines(tree: dict[str, Any]) -> None:
    """Replaces the entries of each pipeline by PipelineEntry objects. Raises ConfigError."""
    for path, section in _sections(tree):
        if "pipeline" in section:
            section["pipeline"] = _pipeline(section["pipeline"], f"{path}.pipeline")


def _sections(tree: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields every mapping that may have a pipeline. A wrong type is reported later."""
    everywhere = tree.get("compaction")
    if not isinstance(everywhere, dict):
        return
    yield from _with_delegated("$.compaction", everywhere)
    models = everywhere.get("models")
    for name, own in models.items() if isinstance(models, dict) else ():
        if isinstance(own, dict):
            yield from _with_delegated(child_path("$.compaction.models", name), own)


def _with_delegated(path: str, section: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, section
    if isinstance(own := section.get("delegated"), dict):
        yield f"{path}.delegated", own


def _pipeline(entries: object, path: str) -> tuple[PipelineEntry, ...]:
    if not isinstance(entries, list) or not entries:
        raise ConfigError(
            "expected a list with at least one strategy; to switch compaction off, set `mode: off`", path=path
        )
    return tuple(_strategy(entry, f"{path}[{index}]") for index, entry in enumerate(entries))


def _strategy(entry: object, path: str) -> PipelineEntry:
    options: object = {}
    if isinstance(entry, str):
        name, at = entry, path
    elif isinstance(entry, dict) and len(entry) == 1:
        ((name, options),) = entry.items()
        at = child_path(path, name)
    else:
        raise ConfigError("expected the name of a strategy, or a name with a mapping of options", path=path)
    strategy_type = _find_strategy(name, at)
    if not isinstance(options, dict):
        raise ConfigError("expected a mapping of options", path=at)
    try:
        built = PipelineEntry(strategy_type, _options(options, strategy_type.options_type, child_path(path, name)))
        built.build()
        list(built.options.find_useless_options())
    except ConfigError as error:
        raise ConfigError(error.reason + _describe_origin(name), path=error.path) from error
    except Exception as error:
        message = f"the strategy cannot be built: {type(error).__name__}: {error}{_describe_origin(name)}"
        raise ConfigError(message, path=at) from error
    return built


def _find_strategy(name: str, path: str) -> type[Strategy]:
    try:
        strategy_type = _find_strategy_type(name)
    except ValueError as error:
        raise ConfigError(str(error), path=path) from error
    if strategy_type is None:
        names = _list_strategy_names()
        nearest = find_nearest(name, names)
        rest = f"did you mean `{nearest}`?" if nearest else f"the strategies are {', '.join(names)}"
        raise ConfigError(f"unknown strategy; {rest}", path=path)
    return strategy_type


def _options(options: dict[str, Any], kind: type[StrategyOptions], path: str) -> StrategyOptions:
    try:
        return convert(options, kind, path)
    except ConfigError as error:
        # An error of the options as a whole belongs to one key if that key alone causes it too.
        for key, value in options.items() if error.path == path else ():
            if (alone := _problem({key: value}, kind, path)) is not None and alone.message == error.message:
                raise ConfigError(error.reason, path=child_path(path, key)) from None
        raise


def _problem(options: dict[str, Any], kind: type[StrategyOptions], path: str) -> ConfigError | None:
    try:
        convert(options, kind, path)
    except ConfigError as error:
        return error
    return None


# -- strategies of other packages --------------------------------------------------------------------------------------


def _list_strategy_names() -> list[str]:
    """Returns the names of all strategies: Accordion's own, and those that packages offer."""
    return list(dict.fromkeys((*STRATEGIES, *sorted(entry_points(group=_GROUP).names))))


def _find_strategy_type(name: str) -> type[Strategy] | None:
    """Returns the class of a strategy; None for an unknown name. Raises ValueError."""
    offers = {(_package_of(each), each.value): each for each in entry_points(group=_GROUP, name=name)}
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


def _describe_origin(name: str) -> str:
    """Returns the end of a sentence that names a strategy and its package; empty for Accordion's own."""
    packages = [_package_of(each) for each in entry_points(group=_GROUP, name=name)] if name not in STRATEGIES else []
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
