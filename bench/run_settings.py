"""The settings of a run, and the contenders, started together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench import load, servers
from bench.servers import CONTENDERS, DIRECT, Pins, Server, Unavailable


def default_pins() -> Pins:
    """The server under test alone on the first core, generator and upstream on the others."""
    cores = sorted(os.sched_getaffinity(0))
    return Pins(frozenset(cores[:1]), frozenset(cores[1:])) if len(cores) > 1 else Pins()


@dataclass
class RunSettings:
    """The choices of this run."""

    quick: bool = False
    rounds: int = 3
    only: Sequence[str] = ()
    store: str = "sqlite"
    pins: Pins = field(default_factory=default_pins)
    tools: Path | None = None
    """Where quality.py is."""
    data: Path | None = None
    """Where recorded runs are."""
    seconds: float = 0.0
    """How long `soak` takes; 0: as long as it usually does."""
    minutes: float = 0.0
    """The minutes that `campaign` takes at least; 0: as long as it usually does."""
    seed: int = 1
    """Decides what fails in `campaign`, and in which order."""
    proxies: int = 0
    """The proxies of `fleet`; 0: as many as usual."""
    sessions: int = 0
    """The sessions of the phases of `fleet`; 0: as many as usual."""
    windows: Sequence[int] = ()
    """The windows that quality is measured at; empty: all."""
    endpoint: str = ""
    """The base URL of a model's API, with /v1, for `reader`, `agent` and `writer`."""
    model: str = ""
    """The model's name there; empty: its only one."""
    key_env: str = ""
    """The environment variable with its key."""
    context: int = 32_000
    """The model's real window: a full history that is longer is not asked about."""
    tokens: int = 0
    """The size of a recorded conversation; 0: twice Accordion's window."""
    conversations: int = 0
    """Conversations of each kind; 0: as many as usual."""
    questions: int = 0
    """Questions about a conversation at most; 0: as many as usual."""
    skipped: dict[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """The contenders chosen, `direct` first."""
        wanted = [name.lower() for name in self.only]
        chosen = [name for name in CONTENDERS if not wanted or any(each in name.lower() for each in wanted)]
        return [DIRECT, *chosen]

    def fewer(self, count: int, quick: int) -> int:
        return quick if self.quick else count

    @contextmanager
    def contenders(self, upstream: int, names: Sequence[str] = ()) -> Iterator[list[Server]]:
        """Everything chosen, or these, running; what cannot run is left out and remembered in `skipped`."""
        with ExitStack() as stack:
            running = []
            for name in names or self.names():
                try:
                    running.append(
                        stack.enter_context(servers.serving(name, upstream, pins=self.pins, store=self.store))
                    )
                except Unavailable as reason:
                    self.skipped[name] = str(reason)
            yield running

    def measure(self, server: Server, job: load.Job) -> dict[str, Any]:
        return load.run(replace(job, port=server.port, pids=server.pids), self.pins.prefix())

    def missing(self) -> list[str]:
        return [f"{name}: skipped, {reason}" for name, reason in self.skipped.items()]


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Every figure's median over the rounds, so that one disturbed round does not count."""
    return {key: float(median(each[key] for each in rounds)) for key in rounds[0]}
