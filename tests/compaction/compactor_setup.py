"""Parsed histories, planners with fixed plans, and a compactor with fakes around it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import structs
from msgspec.structs import replace

from accordion.accounting.token_meter import RESPONSE_START, MessageTokenCache, TokenMeter
from accordion.archive.archive import Archive
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.references import artifact_id, describe_size, result_reference
from accordion.compaction.assembly import CompactionAssembler
from accordion.compaction.background import BackgroundSummaries, PreparationLimits, WriterHistory
from accordion.compaction.compactor import Compactor, CompactorServices
from accordion.compaction.planner import Planner
from accordion.compaction.policy import PolicyOptions, decide
from accordion.compaction.repository import CompactionRepository, is_compaction_key
from accordion.compaction.request import CompactionRequest, CompactionResult
from accordion.compaction.strategies import build_strategy
from accordion.compaction.strategies.base import Plan, Proposal, StrategyView
from accordion.model.budget import CompactionKind, Decision, Thresholds, Utilization, Window
from accordion.model.compaction import CompactedConversation, without_compaction
from accordion.model.conversation import Conversation, ToolCall, ToolResult
from accordion.model.plan import Drop, PlanStep, Replace, Summarize
from accordion.model.ports import KeyValueStore, Put, Route, Sealer, SummaryCaller
from accordion.model.tenant import ConversationRef, TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.registry import PROTOCOLS
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.server.event_loop import LoopWaiter
from accordion.stores.memory_store import InMemoryStore
from accordion.summaries.author import Summary, SummaryAuthor, SummaryTask
from accordion.summaries.extractive import ExtractiveWriter
from accordion.summaries.prompts import load_prompts
from tests.fakes import FakeClock, WordCounter
from tests.histories import Call, History, HistoryRound, ProtocolName, Turn, body
from tests.spools import with_spool

T = TypeVar("T")

TENANT = TenantScope("tenant", b"tenant key " * 3)
SCOPE = b"scope"
CONVERSATION = ConversationRef(TENANT, SCOPE, "s-1")
WINDOW = Window(100_000, 100_000, "config")


def read(request: dict[str, Any], protocol_name: str, tenant: TenantScope = TENANT) -> Conversation:
    """A request as the reader gives it."""
    return BodyReader().read(PROTOCOLS[protocol_name], json.dumps(request).encode(), tenant)


def long_history(turns: int, rounds: int = 1, words: int = 150, end: Literal["ask", "work", "done"] = "ask") -> History:
    """A history whose results are many words long. It ends with a question, in the middle of the work, or done."""
    made = []
    for at in range(turns):
        calls = [
            HistoryRound((Call(f"call_{at:03d}_{number:02d}", "read", {"path": f"src/file_{at}_{number}.py"},
                        " ".join(f"word{at}_{number}_{n}" for n in range(words))),))
            for number in range(rounds)
        ]  # fmt: skip
        made.append(Turn((f"Please do thing number {at} with care.",), tuple(calls), f"Turn {at} is done."))
    if end == "ask":
        made.append(Turn(("What is next?",)))
    elif end == "work":
        made[-1] = Turn(made[-1].said, made[-1].rounds, "")
    return History(tuple(made), "You are an agent.")


def with_long_results(history: History) -> History:
    """The same with results long enough for a compaction."""
    return dataclasses.replace(
        history,
        turns=tuple(
            dataclasses.replace(turn, rounds=tuple(
                dataclasses.replace(round_, calls=tuple(
                    dataclasses.replace(call, result=f"{call.result} " + " ".join(f"{call.id}_{n}" for n in range(120)))
                    for call in round_.calls
                ))
                for round_ in turn.rounds
            ))
            for turn in history.turns
        ),
    )  # fmt: skip


def conversation(history: History, protocol_name: ProtocolName, **fields: Any) -> Conversation:
    """A history as a request that was read."""
    return read(body(history, protocol_name, **fields), protocol_name)


class LoopTasks:
    """Work in the background on the running loop; what is offloaded runs at once."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[Any]] = set()
        self.offloaded = 0

    def spawn(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def offload(self, call: Callable[..., T], *args: Any) -> T:
        self.offloaded += 1
        await asyncio.sleep(0)
        return call(*args)

    async def done(self) -> None:
        """Returns when nothing runs any longer."""
        while self.running:
            await asyncio.gather(*self.running, return_exceptions=True)


Strategy = Callable[[StrategyView], Sequence[PlanStep]]


@dataclass
class FunctionPlanner:
    """Plans by one function, on the view of the decision's kind."""

    propose: Strategy
    name: str = "by_hand"
    planned: int = 0

    def plan_first_fitting(
        self, view: Callable[[CompactionKind], StrategyView], kinds: Sequence[CompactionKind], *, must_succeed: bool
    ) -> tuple[Plan, int]:
        self.planned += 1
        viewed = view(kinds[-1] if must_succeed else kinds[0])
        steps = tuple(self.propose(viewed))
        made = (Proposal(self.name, steps, viewed.tokens, max(0, viewed.tokens // 2)),) if steps else ()
        return Plan(viewed, made), 1


def summarize_most(view: StrategyView) -> Sequence[PlanStep]:
    """One summary of all groups that may leave."""
    groups = [group for group in view.groups if view.removable[group[0]]]
    if not groups or all(view.slots[index].is_summary for first, last in groups for index in range(first, last + 1)):
        return ()
    return (Summarize(groups[0][0], groups[-1][1], 400),)


def drop_most(view: StrategyView) -> Sequence[PlanStep]:
    """Every message that may leave, without a word."""
    return [Drop(index) for index, leaves in enumerate(view.removable) if leaves and not view.slots[index].is_summary]


def archive_results(view: StrategyView) -> Sequence[PlanStep]:
    """A reference in place of every result that may be touched."""
    steps: list[PlanStep] = []
    made = {part.call_id: part for slot in view.slots for part in slot.message.parts if isinstance(part, ToolCall)}
    for index, slot in enumerate(view.slots):
        for part, held in enumerate(slot.message.parts):
            if not view.free[index] or not isinstance(held, ToolResult) or slot.is_edited:
                continue
            kept = artifact_id(TENANT, slot.message.key, part)
            text = "\n".join(getattr(inner, "text", "") for inner in held.parts)
            told = result_reference(made[held.call_id].name, made[held.call_id].arguments, kept, describe_size(text))
            steps.append(Replace(index, part, told, len(told.split())))
    return steps


class ScriptedAuthor(SummaryAuthor):
    """An author whose model covers all sources once `may` is set, or fails with `error`."""

    def __init__(self, author: SummaryAuthor) -> None:
        self._author = author
        self.asked: list[SummaryTask] = []
        self.trials: list[bool] = []
        self.may = asyncio.Event()
        self.may.set()
        self.error: Exception | None = None

    @property
    def has_model(self) -> bool:
        return True

    def write_extractive(self, task: SummaryTask) -> Summary:
        return self._author.write_extractive(task)

    async def write(
        self, task: SummaryTask, on_partial: Callable[[Summary], None] | None = None, *, is_trial: bool = False
    ) -> Summary:
        self.asked.append(task)
        self.trials.append(is_trial)
        await self.may.wait()
        if self.error is not None:
            raise self.error
        return Summary(
            "text",
            "A model told this.",
            task.sources[-1].index + 1,
            "model-x",
            100,
            20,
            narrative_start=task.first_index,
        )


@dataclass
class CompactorSetup:
    """A compactor with its real services, and fakes for the outside."""

    propose: Strategy = summarize_most
    plain: Strategy = drop_most
    store: KeyValueStore = field(default_factory=InMemoryStore)
    has_spool: bool = False
    spool_path: Path | None = None
    spool_bytes: int = 2**26
    teller: bool = False
    pipeline: Sequence[Any] | None = None
    """The real planner with these strategies, in place of one by hand."""
    window: int = WINDOW.size
    bounds: PreparationLimits = field(default_factory=PreparationLimits)
    wait_seconds: float = 5.0
    sealer: Sealer | None = None

    def __post_init__(self) -> None:
        self.clock, self.tasks, self.waiting = FakeClock(), LoopTasks(), LoopWaiter()
        self.meter = TokenMeter(WordCounter())
        self.weights = MessageTokenCache(self.meter)
        main = self.store
        if self.has_spool:
            self.store = self.spooled = with_spool(main, self.spool_path, capacity=self.spool_bytes)
            self.spooled.settle = self._settle
        self.archive = Archive(self.store, sealer=self.sealer, clock=self.clock)
        self.reader = WrittenMessageReader()
        self.compactions = CompactionRepository(self.store, message_reader=self.reader, sealer=self.sealer)
        self.extractor = ExtractiveWriter()
        self.author = SummaryAuthor(None, self.extractor, self.tasks, load_prompts())
        if self.teller:
            self.author = ScriptedAuthor(self.author)
        self.erasures = ErasureNotices(main, self.clock, 100.0)
        self.writers = WriterHistory(self.clock)
        self.preparations = BackgroundSummaries(
            self.author, self.store, self.tasks, self.waiting, self.bounds, self.archive, self.erasures,
            self.writers,
        )  # fmt: skip
        self.planner, self.plain_planner = FunctionPlanner(self.propose), FunctionPlanner(self.plain, "plain")
        planners = (self.planner, self.plain_planner)
        if self.pipeline is not None:
            planners = (Planner(self.pipeline), Planner([build_strategy("fixed_limits", {"tokens": self.window // 8})]))
        craft = CompactionAssembler(*planners, self.archive, self.weights, self.reader)
        setup = CompactorServices(
            self.compactions, self.archive, self.author, self.extractor, self.preparations, self.tasks, self.clock,
            self.waiting, self.erasures,
        )  # fmt: skip
        self.compactor = Compactor(craft, setup, wait_seconds=self.wait_seconds)

    def _settle(self, claim: Put, winner: bytes) -> None:
        if is_compaction_key(claim.key):
            self.compactions.adopt(claim.key, winner)

    def case(
        self, client: Conversation, compacted: CompactedConversation | None = None, **changes: Any
    ) -> CompactionRequest:
        """A request over its trigger."""
        compacted = compacted or without_compaction(client)
        tokens = self.meter.measure(compacted.conversation, WINDOW).tokens - RESPONSE_START
        kind = "conversation" if client.starts_turn else "generation"
        decision = Decision("compact", "a test", target=tokens // 4, kind=kind, trigger=max(1, tokens // 2))
        if "decision" in changes:
            decision = replace(decision, **changes.pop("decision"))
        ref = CONVERSATION
        if "tenant" in changes:
            tenant = changes.pop("tenant")
            ref = replace(ref, tenant=TenantScope(tenant, tenant.encode()))
        if "session" in changes:
            ref = replace(ref, session=changes.pop("session"))
        return replace(
            CompactionRequest(
                ref=ref,
                protocol=PROTOCOLS[client.protocol_name],
                uncompacted=client,
                history=compacted,
                utilization=Utilization(WINDOW.size, messages=tokens + RESPONSE_START),
                window=WINDOW,
                limits=Thresholds().limits(WINDOW.size),
                decision=decision,
                actual_model="",
                started_at=self.clock.monotonic(),
                request_id="req-1",
            ),
            **changes,
        )

    async def step(
        self, client: Conversation, *, fresh: bool = False, summary_caller: SummaryCaller | None = None
    ) -> CompactionResult:
        """Takes one request through replay, measurement, decision and compaction."""
        protocol = PROTOCOLS[client.protocol_name]
        compacted = await self.compactions.find(protocol, CONVERSATION, client, check_store=fresh)
        window = Window(self.window, self.window, "config")
        case = self.case(
            client, compacted, window=window, limits=Thresholds().limits(self.window), summary_caller=summary_caller
        )
        used = structs.replace(case.utilization, window=self.window)
        decision = decide(compacted, used, case.limits, window, options=PolicyOptions())
        return await self.compactor.compact(replace(case, utilization=used, decision=decision))


def summary_caller() -> SummaryCaller:
    """A caller whose credential may ask a model for summaries."""
    return SummaryCaller("local", Route("openai", "openai"), "chat", "gpt-5", ())
