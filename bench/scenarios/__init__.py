"""The scenarios by name, in the order in which they run."""

from collections.abc import Callable, Mapping

from bench.report import Table
from bench.run_settings import RunSettings
from bench.scenarios import (
    compaction,
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


def _run_campaign(setting: RunSettings) -> list[Table]:
    """Imports it only now: the others run without the packages for tests, which its agents need."""
    try:
        from bench.scenarios import campaign
    except ModuleNotFoundError as error:
        raise Unavailable(f"campaign: skipped, since {error.name} is not installed") from error
    return campaign.run(setting)


def _run_hop(setting: RunSettings) -> list[Table]:
    try:
        from bench.scenarios import hop
    except ModuleNotFoundError as error:
        raise Unavailable(f"hop: skipped, since {error.name} is not installed") from error
    return hop.run(setting)


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
    "recall": recall.run,
    "rules": rules.run,
    "suites": suites.run,
    "soak": soak.run,
    "hop": _run_hop,
    "campaign": _run_campaign,
}
