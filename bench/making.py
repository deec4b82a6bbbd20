"""A fold made in this process, step by step, with the CPU time of each; the rooms are the real ones."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from accordion.accounting.meter import Meter
from accordion.archive.holdings import HOLDERS
from accordion.archive.writing import Archive
from accordion.clockwork import LoopTasks
from accordion.compaction.case import Case, Outcome
from accordion.compaction.crafting import Craft, Made, Work
from accordion.compaction.planner import Planner
from accordion.compaction.reading import WrittenReader
from accordion.compaction.records import encode
from accordion.compaction.strategies import build
from accordion.compaction.weights import Weights
from accordion.core import conversation as core
from accordion.core.http import Inbound
from accordion.core.plan import Plan
from accordion.core.ports import Put
from accordion.models.tokens import TiktokenCounter
from accordion.offline.rooms import Rooms
from accordion.settings import Settings
from accordion.storage.ephemeral import EphemeralStore
from accordion.storage.sealed import AesSealer
from accordion.summaries.author import Author
from accordion.summaries.digest import digest
from accordion.summaries.extractive import Extractor
from accordion.summaries.prompts import load
from bench.conversations import CHAT, PATHS, Conversation
from bench.texts import Texts

T = TypeVar("T")

MODEL: Final = "bench"
"""Nobody knows it: its window is given, and tokens are counted as o200k_base has them."""
TURN: Final = 4_096
COUNT, PLAN, LAYOUT, FACTS = "count each message", "plan", "lay out, list what leaves", "look up facts"
EXTRACT, EXECUTE, ARCHIVE, RECORD = "extract", "execute", "compress for the archive", "encode the record"
STEPS: Final = (COUNT, PLAN, LAYOUT, FACTS, EXTRACT, EXECUTE, ARCHIVE, RECORD)
"""In order. Counts of messages may be cached from earlier requests, facts where the soft threshold was met before."""
BEAT: Final = 0.0005
"""Seconds between two wishes for the interpreter while a fold runs in another thread."""


@dataclass
class Steps:
    """CPU milliseconds of each step of one fold, and what it wrote."""

    ms: dict[str, float] = field(default_factory=dict)
    before: int = 0
    after: int = 0
    removed: int = 0
    """Bytes of the messages that left."""
    written: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By kind: how many writes, and their bytes."""

    def timed(self, name: str, call: Callable[[], T]) -> T:
        began = time.thread_time()
        out = call()
        self.ms[name] = self.ms.get(name, 0.0) + 1000 * (time.thread_time() - began)
        return out

    def fold(self, *, prepared: bool) -> float:
        """What a fold costs whose counts are cached; `prepared`: the facts of its messages as well."""
        left_out = {COUNT, FACTS} if prepared else {COUNT}
        return sum(ms for name, ms in self.ms.items() if name not in left_out)


@dataclass
class Capture:
    """Stands where the compactor does, and keeps what that would have been given."""

    case: Case | None = None
    client: core.Conversation | None = None

    async def fold(self, case: Case, client: core.Conversation) -> Outcome:
        self.case, self.client = case, client
        return Outcome(case.folded)


def conversation(seed: int, size: int, model: str = MODEL) -> Conversation:
    """An agent's conversation of about so many bytes; the user spoke last."""
    talk = Conversation(Texts(seed), CHAT, model=model)
    talk.reach(size, TURN)
    talk.ask(TURN)
    return talk


async def captured(body: bytes, window: int) -> tuple[Case, core.Conversation]:
    """A request as the compactor gets it, all of it counted."""
    rooms, capture = Rooms(Settings(), window), Capture()
    try:
        inbound = Inbound("POST", PATHS[CHAT], "", ((b"content-type", b"application/json"),), body, "bench")
        gauge = await rooms.gauging.gauge(inbound, inbound.fields, rooms.caller)
        folding = replace(rooms.forward.folding, gauging=rooms.gauging, compactors=lambda _model, _delegated: capture)  # type: ignore[arg-type, return-value]
        await folding.fold(gauge, lambda _gauge: None)
    finally:
        await rooms.close()
    if capture.case is None or capture.client is None:
        raise RuntimeError(f"nothing is to be folded: {gauge.decision.reason}")
    return capture.case, capture.client


class _Craft(Craft):
    """Tells what planning takes of its work."""

    steps = Steps()

    def plan(self, case: Case, plain: bool = False) -> tuple[Plan, int]:
        return self.steps.timed(PLAN, lambda: super(_Craft, self).plan(case, plain))


class Maker:
    """Makes folds with rooms of their own, which know nothing yet, and a counter that remembers what it counted."""

    def __init__(self) -> None:
        self.counter = TiktokenCounter()
        self.counter.warm()

    def make(self, case: Case, client: core.Conversation) -> Steps:
        steps, weights = Steps(before=case.utilization.tokens), Weights(Meter(self.counter))
        archive, extractor = Archive(EphemeralStore(), sealer=AesSealer([bytes(32)])), Extractor()
        author = Author(None, extractor, LoopTasks(), load())
        pipeline = [build(name, options) for name, options in Settings().compaction.pipeline_of("")]
        planner = Planner(pipeline)
        craft = _Craft(planner, planner, archive, weights, WrittenReader(), digest=digest)
        craft.steps = steps
        steps.timed(COUNT, lambda: [weights.of(message, client, case.model) for message in client.messages])
        work: Work = steps.timed(LAYOUT, lambda: craft.work(case, client, at=0.0, plain=False))
        steps.ms[LAYOUT] -= steps.ms[PLAN]
        summary = None
        if (task := work.task) is not None:
            steps.timed(FACTS, lambda: extractor.prepare(client.messages))
            summary = steps.timed(EXTRACT, lambda: author.extractive(task))
        made: Made = steps.timed(EXECUTE, lambda: craft.made(case, work, summary))
        rows, artifacts = work.removal.rows, work.removal.artifacts
        steps.timed(ARCHIVE, lambda: archive.puts(case.space, rows, artifacts))
        steps.ms[EXECUTE] -= steps.ms[ARCHIVE]
        record = steps.timed(RECORD, lambda: encode(made.compaction))
        steps.after = made.compaction.after
        steps.removed = sum(len(row.wire) for row in rows)
        steps.written = _sizes(made.puts) | {"record of the fold": (1, len(record))}
        return steps


def _sizes(puts: Sequence[Put]) -> dict[str, tuple[int, int]]:
    """How many writes of each kind, and their bytes, keys included."""
    number, size = Counter[str](), Counter[str]()
    for put in puts:
        collection, name = put.key.collection, put.key.name
        kind = (
            "entries of the session's list"
            if collection.startswith("artifacts/")
            else "lists of what is held"
            if collection.startswith("held") or collection == HOLDERS or name.startswith("contents/")
            else {"row": "messages"}.get(name.partition("/")[0], "artifacts")
        )
        number[kind] += 1
        size[kind] += len(collection) + len(name) + len(put.value)
    return {kind: (number[kind], size[kind]) for kind in number}


def holding(make: Callable[[], object]) -> list[float]:
    """Milliseconds for which this thread waited for the interpreter while `make` ran in another, one for each time it
    wanted it: the CPU time that the other thread used meanwhile, so that it does not matter how busy the machine is."""
    clock: list[int] = []
    done = threading.Event()

    def work() -> None:
        clock.append(time.pthread_getcpuclockid(threading.get_ident()))
        make()
        done.set()
        ended.wait()

    ended, waits = threading.Event(), list[float]()
    thread = threading.Thread(target=work)
    thread.start()
    while not clock:
        time.sleep(BEAT)
    while not done.is_set():
        before = time.clock_gettime(clock[0])
        time.sleep(BEAT)
        waits.append(1000 * max(0.0, time.clock_gettime(clock[0]) - before - BEAT))
    ended.set()
    thread.join()
    return waits
