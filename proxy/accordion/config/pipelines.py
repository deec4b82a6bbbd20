"""Reads lists of strategies: each is a name, or a name with options (`- stale_reasoning`, `- fixed_limits: {...}`)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accordion.compaction.strategies import DEFAULT_STRATEGIES, STRATEGIES, default_options
from accordion.config.convert import convert
from accordion.config.yaml_text import child_path
from accordion.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """One entry of a pipeline: a name in `STRATEGIES`, and options of the type registered there."""

    name: str
    options: object


DEFAULT_PIPELINE = tuple(PipelineEntry(name, default_options(name)) for name in DEFAULT_STRATEGIES)


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
    if name not in STRATEGIES:
        meant = difflib.get_close_matches(name, STRATEGIES, n=1)
        rest = f"did you mean `{meant[0]}`?" if meant else f"the strategies are {', '.join(STRATEGIES)}"
        raise ConfigError(f"unknown strategy; {rest}", path=at)
    if not isinstance(options, dict):
        raise ConfigError("expected a mapping of options", path=at)
    return PipelineEntry(name, _options(options, name, child_path(path, name)))


def _options(options: dict[str, Any], name: str, path: str) -> object:
    try:
        return convert(options, STRATEGIES[name], path)
    except ConfigError as error:
        # An error of the options as a whole belongs to one key if that key alone causes it too.
        for key, value in options.items() if error.path == path else ():
            if (alone := _problem({key: value}, name, path)) is not None and alone.message == error.message:
                raise ConfigError(error.message.removeprefix(f"{path}: "), path=child_path(path, key)) from None
        raise


def _problem(options: dict[str, Any], name: str, path: str) -> ConfigError | None:
    try:
        convert(options, STRATEGIES[name], path)
    except ConfigError as error:
        return error
    return None
