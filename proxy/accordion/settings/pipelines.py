"""Lists of strategies, each by its name alone or with its options: `- stale_reasoning`, `- fixed_limits: {...}`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accordion.compaction.strategies import SHIPPED, STRATEGIES, shipped
from accordion.core.errors import ConfigError
from accordion.settings.convert import convert
from accordion.settings.text import step


@dataclass(frozen=True, slots=True)
class Strategy:
    """One entry of a pipeline: a name of `STRATEGIES`, and options of the type that is registered there."""

    name: str
    options: object


DEFAULT_PIPELINE = tuple(Strategy(name, shipped(name)) for name in SHIPPED)


def read_pipelines(tree: dict[str, Any]) -> None:
    """Puts strategies in place of each pipeline's entries. Raises ConfigError."""
    for path, place in _places(tree):
        if "pipeline" in place:
            place["pipeline"] = _pipeline(place["pipeline"], f"{path}.pipeline")


def _places(tree: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping that may hold a pipeline. What is no mapping where one should be is found later."""
    everywhere = tree.get("compaction")
    if not isinstance(everywhere, dict):
        return
    yield from _with_delegated("$.compaction", everywhere)
    models = everywhere.get("models")
    for name, own in models.items() if isinstance(models, dict) else ():
        if isinstance(own, dict):
            yield from _with_delegated(step("$.compaction.models", name), own)


def _with_delegated(path: str, place: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, place
    if isinstance(own := place.get("delegated"), dict):
        yield f"{path}.delegated", own


def _pipeline(entries: object, path: str) -> tuple[Strategy, ...]:
    if not isinstance(entries, list) or not entries:
        raise ConfigError(
            "expected a list with at least one strategy; to switch compaction off, set `mode: off`", path=path
        )
    return tuple(_strategy(entry, f"{path}[{index}]") for index, entry in enumerate(entries))


def _strategy(entry: object, path: str) -> Strategy:
    options: object = {}
    if isinstance(entry, str):
        name, at = entry, path
    elif isinstance(entry, dict) and len(entry) == 1:
        ((name, options),) = entry.items()
        at = step(path, name)
    else:
        raise ConfigError("expected the name of a strategy, or a name with a mapping of options", path=path)
    if name not in STRATEGIES:
        meant = difflib.get_close_matches(name, STRATEGIES, n=1)
        rest = f"did you mean `{meant[0]}`?" if meant else f"the strategies are {', '.join(STRATEGIES)}"
        raise ConfigError(f"unknown strategy; {rest}", path=at)
    if not isinstance(options, dict):
        raise ConfigError("expected a mapping of options", path=at)
    return Strategy(name, _options(options, name, step(path, name)))


def _options(options: dict[str, Any], name: str, path: str) -> object:
    try:
        return convert(options, STRATEGIES[name], path)
    except ConfigError as error:
        # What the options say of themselves as a whole is one key's fault, if it is wrong alone too.
        for key, value in options.items() if error.path == path else ():
            if (alone := _problem({key: value}, name, path)) is not None and alone.message == error.message:
                raise ConfigError(error.message.removeprefix(f"{path}: "), path=step(path, key)) from None
        raise


def _problem(options: dict[str, Any], name: str, path: str) -> ConfigError | None:
    try:
        convert(options, STRATEGIES[name], path)
    except ConfigError as error:
        return error
    return None
