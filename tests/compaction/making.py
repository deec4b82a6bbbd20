"""Histories read, plans made by hand, and a compactor with fakes around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from msgspec import structs

from accordion.accounting.meter import REPLY, Meter
from accordion.archive.erasures import Erasures
from accordion.archive.references import artifact_id, reference, size_of
from accordion.archive.writing import Archive
from accordion.compaction.background import Bounds, Preparations
from accordion.compaction.case import Case, Outcome
from accordion.compaction.compactor import Compactor, Rooms
from accordion.compaction.crafting import Craft
from accordion.compaction.planner import Planner
from accordion.compaction.policy import Options, decide
from accordion.compaction.reading import WrittenReader
from accordion.compaction.records import is_compaction
from accordion.compaction.replay import Folds
from accordion.compaction.strategies import build
from accordion.compaction.weights import Weights
from accordion.compaction.writers import Writers
from accordion.core.budget import Decision, Thresholds, Utilization, Window
from accordion.core.conversation import Conversation, ToolCall, ToolResult
from accordion.core.edits import Folded, unfolded
from accordion.core.plan import Drop, Kind, Plan, Proposal, Replace, Step, Summarize, View
from accordion.core.ports import Put, Route, Sealer, Store
from accordion.core.summarizing import Asker
from accordion.dialects.base import Dialect
from accordion.dialects.chat import ChatCompletions
from accordion.dialects.messages import Messages
from accordion.dialects.reader import Reader
from accordion.dialects.responses import Responses
from accordion.storage.ephemeral import EphemeralStore
from accordion.storage.spool import Spool, SpooledStore
from accordion.summaries.author import Author, Summary, SummaryTask
from accordion.summaries.extractive import Extractor
from accordion.summaries.prompts import load
from tests.fakes import FakeClock, WordCounter
from tests.histories import Call, DialectName, History, Round, Turn, body

T = TypeVar("T")

SPACE = b"tenant key " * 3
SCOPE = b"scope"
DIALECTS: dict[str, Dialect] = {each.name: each for each in (ChatCompletions(), Responses(), Messages())}
WINDOW = Window(100_000, 100_000, "config")


def read(request: dict[str, Any], dialect: str, space: bytes = SPACE) -> Conversation:
    """A request as the reader gives it."""
    return Reader().read(DIALECTS[dialect], json.dumps(request).encode(), space)


def long_history(turns: int, rounds: int = 1, words: int = 150, end: Literal["ask", "work", "done"] = "ask") -> History:
    """A history whose results are many words long. It ends with a question, in the middle of the work, or done."""
    made = []
    for at in range(turns):
        calls = [
            Round((Call(f"call_{at:03d}_{number:02d}", "read", {"path": f"src/file_{at}_{number}.py"},
                        " ".join(f"word{at}_{number}_{n}" for n in range(words))),))
            for number in range(rounds)
        ]  # fmt: skip
        made.append(Turn((f"Please do thing number {at} with care.",), tuple(calls), f"Turn {at} is done."))
    if end == "ask":
        made.append(Turn(("What is next?",)))
    elif end == "work":
        made[-1] = Turn(made[-1].said, made[-1].rounds, "")
    return History(tuple(made), "You are an agent.")


def fat(history: History) -> History:
    """The same with results that are worth folding."""
    return replace(
        history,
        turns=tuple(
            replace(turn, rounds=tuple(
                replace(round_, calls=tuple(
                    replace(call, result=f"{call.result} " + " ".join(f"{call.id}_{n}" for n in range(120)))
                    for call in round_.calls
                ))
                for round_ in turn.rounds
            ))
            for turn in history.turns
        ),
    )  # fmt: skip


def conversation(history: History, dialect: DialectName, **fields: Any) -> Conversation:
    """A history as a request that was read."""
    return read(body(history, dialect, **fields), dialect)


class Loop:
    """Waiting on asyncio."""

    def signal(self) -> asyncio.Event:
        return asyncio.Event()

    async def within(self, seconds: float, work: Awaitable[T]) -> T:
        async with asyncio.timeout(seconds):
            return await work


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


Strategy = Callable[[View], Sequence[Step]]


@dataclass
class HandPlanner:
    """Plans by one function, on the view of the decision's kind."""

    propose: Strategy
    name: str = "by_hand"
    planned: int = 0

    def plan_for(self, view: Callable[[Kind], View], kinds: Sequence[Kind], *, must_succeed: bool) -> tuple[Plan, int]:
        self.planned += 1
        viewed = view(kinds[-1] if must_succeed else kinds[0])
        steps = tuple(self.propose(viewed))
        made = (Proposal(self.name, steps, viewed.tokens, max(0, viewed.tokens // 2)),) if steps else ()
        return Plan(viewed, made), 1


def summarize_most(view: View) -> Sequence[Step]:
    """One summary of all groups that may leave."""
    groups = [group for group in view.groups if view.whole[group[0]]]
    if not groups or all(view.slots[index].summary for first, last in groups for index in range(first, last + 1)):
        return ()
    return (Summarize(groups[0][0], groups[-1][1], 400),)


def drop_most(view: View) -> Sequence[Step]:
    """Every message that may leave, without a word."""
    return [Drop(index) for index, leaves in enumerate(view.whole) if leaves and not view.slots[index].summary]


def archive_results(view: View) -> Sequence[Step]:
    """A reference in place of every result that may be touched."""
    steps: list[Step] = []
    made = {part.call_id: part for slot in view.slots for part in slot.message.parts if isinstance(part, ToolCall)}
    for index, slot in enumerate(view.slots):
        for part, held in enumerate(slot.message.parts):
            if not view.free[index] or not isinstance(held, ToolResult) or slot.edited:
                continue
            kept = artifact_id(SPACE, slot.message.key, part)
            text = "\n".join(getattr(inner, "text", "") for inner in held.parts)
            told = reference(made[held.call_id].name, made[held.call_id].arguments, kept, size_of(text))
            steps.append(Replace(index, part, told, len(told.split())))
    return steps


class Teller(Author):
    """An author whose model tells of all that is covered, when it is let; or fails."""

    def __init__(self, author: Author) -> None:
        self._author = author
        self.asked: list[SummaryTask] = []
        self.trials: list[bool] = []
        self.may = asyncio.Event()
        self.may.set()
        self.error: Exception | None = None

    @property
    def asks(self) -> bool:
        return True

    def extractive(self, task: SummaryTask) -> Summary:
        return self._author.extractive(task)

    async def write(
        self, task: SummaryTask, heard: Callable[[Summary], None] | None = None, *, is_trial: bool = False
    ) -> Summary:
        self.asked.append(task)
        self.trials.append(is_trial)
        await self.may.wait()
        if self.error is not None:
            raise self.error
        return Summary("text", "A model told this.", task.covered[-1].index + 1, "model-x", 100, 20, since=task.since)


@dataclass
class House:
    """The rooms around a compactor, fakes at the walls."""

    propose: Strategy = summarize_most
    plain: Strategy = drop_most
    store: Store = field(default_factory=EphemeralStore)
    spool: Spool | None = None
    teller: bool = False
    pipeline: Sequence[Any] | None = None
    """The real planner with these strategies, in place of one by hand."""
    window: int = WINDOW.size
    bounds: Bounds = field(default_factory=Bounds)
    wait_seconds: float = 5.0
    sealer: Sealer | None = None

    def __post_init__(self) -> None:
        self.clock, self.tasks, self.waiting = FakeClock(), LoopTasks(), Loop()
        self.meter = Meter(WordCounter())
        self.weights = Weights(self.meter)
        main = self.store
        if self.spool is not None:
            self.spooled = SpooledStore(main, self.spool, settle=self._settle)
            self.store = self.spooled
        self.archive = Archive(self.store, sealer=self.sealer, clock=self.clock)
        self.reader = WrittenReader()
        self.folds = Folds(self.store, reader=self.reader, sealer=self.sealer)
        self.extractor = Extractor()
        self.author = Author(None, self.extractor, self.tasks, load())
        if self.teller:
            self.author = Teller(self.author)
        self.erasures = Erasures(main, self.clock, 100.0)
        self.writers = Writers(self.clock)
        self.preparations = Preparations(
            self.author, self.store, self.tasks, self.waiting, self.bounds, self.archive, self.erasures,
            self.writers,
        )  # fmt: skip
        self.planner, self.plain_planner = HandPlanner(self.propose), HandPlanner(self.plain, "plain")
        planners = (self.planner, self.plain_planner)
        if self.pipeline is not None:
            planners = (Planner(self.pipeline), Planner([build("fixed_limits", {"tokens": self.window // 8})]))
        craft = Craft(*planners, self.archive, self.weights, self.reader)
        rooms = Rooms(
            self.folds, self.archive, self.author, self.extractor, self.preparations, self.tasks, self.clock,
            self.waiting, self.erasures,
        )  # fmt: skip
        self.compactor = Compactor(craft, rooms, wait_seconds=self.wait_seconds)

    def _settle(self, claim: Put, winner: bytes) -> None:
        if is_compaction(claim.key):
            self.folds.adopt(claim.key, winner)

    def case(self, client: Conversation, folded: Folded | None = None, **changes: Any) -> Case:
        """A request over its trigger."""
        folded = folded or unfolded(client)
        tokens = self.meter.measure(folded.conversation, WINDOW).tokens - REPLY
        kind = "conversation" if client.starts_turn else "generation"
        decision = Decision("compact", "a test", target=tokens // 4, kind=kind, trigger=max(1, tokens // 2))
        if "decision" in changes:
            decision = replace(decision, **changes.pop("decision"))
        return replace(
            Case(
                tenant="local", space=SPACE, scope=SCOPE, session="s-1", dialect=DIALECTS[client.dialect],
                folded=folded, utilization=Utilization(WINDOW.size, messages=tokens + REPLY), window=WINDOW,
                limits=Thresholds().limits(WINDOW.size), decision=decision, model="", began=self.clock.monotonic(),
                request_id="req-1",
            ),
            **changes,
        )  # fmt: skip

    async def step(self, client: Conversation, *, fresh: bool = False, asker: Asker | None = None) -> Outcome:
        """One request on its way: replay, measure, decide, fold."""
        dialect = DIALECTS[client.dialect]
        folded = await self.folds.find(dialect, SPACE, SCOPE, client, fresh=fresh)
        window = Window(self.window, self.window, "config")
        case = self.case(client, folded, window=window, limits=Thresholds().limits(self.window), asker=asker)
        used = structs.replace(case.utilization, window=self.window)
        decision = decide(folded, used, case.limits, window, options=Options())
        return await self.compactor.fold(replace(case, utilization=used, decision=decision), client)


def asker() -> Asker:
    """Somebody in whose name a model may be asked."""
    return Asker("local", Route("openai", "openai"), "chat", "gpt-5", ())
