"""The scenarios by name, in the order in which they run."""

from collections.abc import Callable, Mapping
from importlib import import_module

from bench.report import Table
from bench.run_settings import RunSettings
from bench.scenarios import (
    compaction,
    files,
    first,
    floor,
    growing,
    large,
    memory,
    offered,
    overrides,
    quality,
    recall,
    rules,
    small,
    soak,
    startup,
    stream,
    suites,
    trip,
    workers,
)
from bench.servers import Unavailable


def _later(name: str) -> Callable[[RunSettings], list[Table]]:
    """A scenario that is imported when it runs: the others run without the packages for tests, which it needs."""

    def run(setting: RunSettings) -> list[Table]:
        try:
            scenario = import_module(f"bench.scenarios.{name}")
        except ModuleNotFoundError as error:
            raise Unavailable(f"{name}: skipped, since {error.name} is not installed") from error
        tables: list[Table] = scenario.run(setting)
        return tables

    return run


SCENARIOS: Mapping[str, Callable[[RunSettings], list[Table]]] = {
    "small": small.run,
    "floor": floor.run,
    "first": first.run,
    "growing": growing.run,
    "stream": stream.run,
    "offered": offered.run,
    "overrides": overrides.run,
    "memory": memory.run,
    "startup": startup.run,
    "trip": trip.run,
    "workers": workers.run,
    "compaction": compaction.run,
    "large": large.run,
    "quality": quality.run,
    "files": files.run,
    "recall": recall.run,
    "rules": rules.run,
    "suites": suites.run,
    "soak": soak.run,
    "hop": _later("hop"),
    "fleet": _later("fleet"),
    "reader": _later("reader"),
    "agent": _later("agent"),
    "writer": _later("writer"),
    "campaign": _later("campaign"),
}
