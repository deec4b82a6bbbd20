"""One compaction in this process, step by step, with the CPU time of each step of the real components."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from msgspec.structs import replace

from accordion.accounting.token_meter import MessageTokenCache, TokenMeter
from accordion.archive.archive import Archive
from accordion.archive.archive_entries import TENANTS_WITH_ARCHIVE
from accordion.compaction.assembly import CompactionAssembler, PlannedCompaction
from accordion.compaction.planner import Planner
from accordion.compaction.repository import encode
from accordion.compaction.request import CompactionRequest, CompactionResult
from accordion.compaction.strategies.base import Plan
from accordion.config import Settings
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.model import conversation as core
from accordion.model.conversation import Message
from accordion.model.http import Inbound
from accordion.model.ports import Put
from accordion.pipeline.request import PassthroughRequest
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.server.event_loop import LoopTasks
from accordion.stores.encryption import AesSealer
from accordion.stores.memory_store import InMemoryStore
from accordion.summaries.author import SummaryAuthor
from accordion.summaries.digest import make_digest
from accordion.summaries.extractive import ExtractiveWriter
from accordion.summaries.prompts import load_prompts
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
"""Seconds between two uses of the interpreter while a compaction runs in another thread."""


@dataclass
class Steps:
    """CPU milliseconds of each step of one compaction, and its writes."""

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

    def compact(self, *, prepared: bool) -> float:
        """The cost of a compaction with cached counts; `prepared`: with cached facts too."""
        left_out = {COUNT, FACTS} if prepared else {COUNT}
        return sum(ms for name, ms in self.ms.items() if name not in left_out)


@dataclass
class Capture:
    """Stands where the compactor does, and keeps what that would have been given."""

    case: CompactionRequest | None = None

    async def compact(self, case: CompactionRequest) -> CompactionResult:
        self.case = case
        return CompactionResult(case.history)


def conversation(seed: int, size: int, model: str = MODEL) -> Conversation:
    """An agent's conversation of about so many bytes; the user spoke last."""
    talk = Conversation(Texts(seed), CHAT, model=model)
    talk.reach(size, TURN)
    talk.ask(TURN)
    return talk


async def captured(body: bytes, window: int) -> tuple[CompactionRequest, core.Conversation]:
    """A request as the compactor gets it, all of it counted."""
    pipeline, capture = OfflinePipeline(Settings(), window), Capture()
    try:
        inbound = Inbound("POST", PATHS[CHAT], "", ((b"content-type", b"application/json"),), body, "bench")
        measured = await pipeline.forward.reader.read(inbound, pipeline.caller)
        if isinstance(measured, PassthroughRequest):
            raise RuntimeError("the conversation was not read")
        step = replace(
            pipeline.forward.prepare.compaction_step,
            compactors=lambda _model, _delegated: capture,
        )
        await step.compact(measured)
    finally:
        await pipeline.close()
    if capture.case is None:
        raise RuntimeError(f"nothing is to be compacted: {measured.decision.reason}")
    return capture.case, capture.case.uncompacted


class _Craft(CompactionAssembler):
    """Tells what planning takes of its work."""

    steps = Steps()

    def plan(
        self,
        request: CompactionRequest,
        without_summary: bool = False,
        count_message: Callable[[Message], int] | None = None,
    ) -> tuple[Plan, int]:
        return self.steps.timed(PLAN, lambda: super(_Craft, self).plan(request, without_summary, count_message))


class Maker:
    """Makes compactions with empty components of their own and a token counter with a cache."""

    def __init__(self) -> None:
        self.counter = TiktokenCounter()
        self.counter.load()

    def make(self, case: CompactionRequest, client: core.Conversation) -> Steps:
        steps, weights = Steps(before=case.utilization.tokens), MessageTokenCache(TokenMeter(self.counter))
        archive, extractor = Archive(InMemoryStore(), sealer=AesSealer([bytes(32)])), ExtractiveWriter()
        author = SummaryAuthor(None, extractor, LoopTasks(), load_prompts())
        pipeline = [entry.build() for entry in Settings().compaction.pipeline_of("")]
        planner = Planner(pipeline)
        craft = _Craft(planner, planner, archive, weights, WrittenMessageReader(), make_digest=make_digest)
        craft.steps = steps
        steps.timed(
            COUNT, lambda: [weights.count_message(message, client, case.actual_model) for message in client.messages]
        )
        work: PlannedCompaction = steps.timed(
            LAYOUT, lambda: craft.plan_compaction(case, at=0.0, without_summary=False)
        )
        steps.ms[LAYOUT] -= steps.ms[PLAN]
        summary = None
        if (task := work.summary_task) is not None:
            steps.timed(FACTS, lambda: extractor.prepare_facts(client.messages))
            summary = steps.timed(EXTRACT, lambda: author.write_extractive(task))
        _, compaction, writes = steps.timed(EXECUTE, lambda: craft.finish(case, work, summary))
        rows, artifacts = work.removed_content.rows, work.removed_content.artifacts
        steps.timed(ARCHIVE, lambda: archive.build_puts(case.ref.tenant, rows, artifacts))
        steps.ms[EXECUTE] -= steps.ms[ARCHIVE]
        record = steps.timed(RECORD, lambda: encode(compaction))
        steps.after = compaction.after
        steps.removed = sum(len(row.wire) for row in rows)
        steps.written = _sizes(writes) | {"record of the compaction": (1, len(record))}
        return steps


def _sizes(puts: Sequence[Put]) -> dict[str, tuple[int, int]]:
    """How many writes of each kind, and their bytes, keys included."""
    number, size = Counter[str](), Counter[str]()
    for put in puts:
        collection, name = put.key.collection, put.key.name
        kind = (
            "entries of the session's list"
            if collection.startswith("artifacts/")
            else "lists of the archived entries"
            if collection.startswith("held") or collection == TENANTS_WITH_ARCHIVE or name.startswith("contents/")
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
