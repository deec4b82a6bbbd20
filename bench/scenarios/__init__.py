"""The scenarios by name, in the order in which they run."""

from collections.abc import Callable, Mapping

from bench.report import Table
from bench.scenarios import (
    floor,
    folding,
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
from bench.setting import Setting

SCENARIOS: Mapping[str, Callable[[Setting], list[Table]]] = {
    "small": small.run,
    "floor": floor.run,
    "growing": growing.run,
    "stream": stream.run,
    "offered": offered.run,
    "overrides": overrides.run,
    "memory": memory.run,
    "startup": startup.run,
    "trip": trip.run,
    "workers": workers.run,
    "folding": folding.run,
    "large": large.run,
    "quality": quality.run,
    "recall": recall.run,
    "rules": rules.run,
    "suites": suites.run,
    "soak": soak.run,
}
