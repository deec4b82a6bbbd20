"""The slow and pure part of a fold, made to be called in a thread: from a case to a plan, a task for the summary, and
what is to be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from math import ceil

from accordion.archive.artifacts import Artifact
from accordion.archive.writing import Archive, Leaving
from accordion.compaction.case import Case
from accordion.compaction.executor import Executor, Terms
from accordion.compaction.layout import Block, Layout, Unfit, laid_out
from accordion.compaction.planner import Planner
from accordion.compaction.reading import WrittenReader
from accordion.compaction.records import keys_of, label_of, meeting, size_of
from accordion.compaction.removal import Origin, Removal, Remover
from accordion.compaction.strategies.base import Digest, Draft, no_digest
from accordion.compaction.strategies.compact_tool_results import CompactToolResultsOptions
from accordion.compaction.telling import utilization_of
from accordion.compaction.views import view_for
from accordion.compaction.weights import Weights
from accordion.core.boundaries import passed_over
from accordion.core.conversation import Conversation, Message
from accordion.core.edits import Compaction, Folded
from accordion.core.plan import Kind, Plan, View
from accordion.core.ports import Put
from accordion.core.values import dataclass, replace
from accordion.summaries.author import Summary, SummaryTask
from accordion.summaries.extractive import Source

HANDOFFS = CompactToolResultsOptions().skip
"""Tools whose results say only that another agent goes on."""


@dataclass(frozen=True, slots=True)
class Work:
    """A fold that is planned. `task` is what a summary has to tell, None where none is wanted; `last` the last of the
    client's messages that it stands for, or -1."""

    plan: Plan
    layout: Layout
    removal: Removal
    task: SummaryTask | None
    last: int
    at: float
    passes: int


@dataclass(frozen=True, slots=True)
class Made:
    """A fold that is ready: the list with it, its record, and what must be kept before it is used."""

    folded: Folded
    compaction: Compaction
    puts: tuple[Put, ...]
    passes: int


class Craft:
    """Plans and makes folds. `plain` plans without a summary. `skipped` are patterns of names of tools whose results
    make no artifacts of their own."""

    def __init__(
        self,
        planner: Planner,
        plain: Planner,
        archive: Archive,
        weights: Weights,
        reader: WrittenReader,
        *,
        pinned_tools: frozenset[str] = frozenset(),
        digest: Digest = no_digest,
        instructions: Callable[[Message], int] = lambda _message: 0,
        skipped: Sequence[str] = HANDOFFS,
    ) -> None:
        self._planner = planner
        self._plain = plain
        self._archive = archive
        self._weights = weights
        self._reader = reader
        self._pinned_tools = pinned_tools
        self._digest = digest
        self._instructions = instructions
        self._skipped = tuple(skipped)

    def plan(self, case: Case, plain: bool = False) -> tuple[Plan, int]:
        """What would be done, and how often the pipeline ran for it."""
        planner, decision = self._plain if plain else self._planner, case.decision
        kinds: tuple[Kind, ...] = ("generation", "conversation") if decision.kind == "generation" else ("conversation",)
        view = partial(
            view_for, case, count=self._weigher(case), pinned_tools=self._pinned_tools, digest=self._digest,
            instructions=self._instructions,
        )  # fmt: skip
        return planner.plan_for(view, kinds, must_succeed=decision.must_succeed)

    def work(self, case: Case, client: Conversation, *, at: float, plain: bool) -> Work:
        """Plans a fold of `client`. Raises Unfit where there is nothing to do."""
        plan, passes = self.plan(case, plain)
        layout = laid_out(plan, client, case.folded.compaction, case.dialect)
        origin = Origin(case.space, case.scope, case.session, case.dialect.name, at)
        count = self._counter(case, plan.view)
        removal = Remover(layout, origin, self._weigher(case), count, self._skips, case.begun, case.heard).removal()
        block = layout.summarized
        task = self._task(case, plan.view, layout, removal, block) if block is not None else None
        return Work(plan, layout, removal, task, block.last if block is not None else -1, at, passes)

    def made(self, case: Case, work: Work, summary: Summary | None) -> Made:
        """The fold itself. Raises Unfit where it would not be legal, or no shorter."""
        decision, view = case.decision, work.plan.view
        weigh, scale = self._weigher(case), _scale(view)
        executor = Executor(
            case.dialect, self._reader.of(case.dialect, case.space), lambda message: round(weigh(message) * scale)
        )
        terms = Terms(
            case.cause,
            utilization_of(decision, case.utilization.ratio),
            work.at,
            forced=decision.must_succeed or decision.forced or decision.trigger == 0,
            beside=_beside(view),
            brought=case.brought,
        )
        folded = executor.execute(work.plan, work.layout, summary, work.removal.ids, terms)
        if folded.compaction is None:
            raise Unfit("no message may be compacted")
        artifacts = _found(work.removal.artifacts, summary)
        puts = self._archive.puts(case.space, work.removal.rows, artifacts, _leaving(case, folded.compaction))
        return Made(folded, folded.compaction, tuple(puts), work.passes)

    def refolded(self, case: Case, folded: Folded) -> int:
        """What the request of a case counts with another fold in force."""
        before, after = (self._weight(case, each.conversation.messages) for each in (case.folded, folded))
        used = case.utilization
        return max(0, used.tokens - round((before - after) * (used.messages + used.media) / max(1, before)))

    def _task(self, case: Case, view: View, layout: Layout, removal: Removal, block: Block) -> SummaryTask:
        messages, base = _heard(case, layout.client.messages), layout.base
        slot = view.slots[view.task] if view.task >= 0 else None
        stays = slot is not None and view.task not in layout.gone and slot.origin >= 0
        # A summary goes on from an earlier one only where that began at the same place: what a model told of the work
        # on one task is no beginning for what is told of the whole.
        told = base if base is not None and base.narrative and base.narrated_from == block.first else None
        behind = layout.behind(block)
        others = set(range(len(messages))).difference(behind)
        return SummaryTask(
            kind=view.kind,
            covered=tuple(Source(index, messages[index]) for index in behind),
            kept=tuple(_heard(case, layout.kept())),
            budget=block.budget,
            count=self._counter(case, view),
            prior=told.narrative if told is not None else "",
            prior_until=told.narrated if told is not None else 0,
            since=block.first,
            references=removal.listed,
            others=tuple(Source(index, messages[index]) for index in sorted(others) if messages[index].has_user_text),
            artifacts=removal.ranges,
            asker=case.asker,
            task=Source(slot.origin, messages[slot.origin]) if slot is not None and stays else None,
        )

    def _weight(self, case: Case, messages: Sequence[Message]) -> int:
        weigh, passed = self._weigher(case), passed_over(messages)
        return sum(weigh(message) for at, message in enumerate(messages) if at not in passed)

    def _weigher(self, case: Case) -> Callable[[Message], int]:
        conversation, model = case.folded.conversation, case.model
        return lambda message: self._weights.of(message, conversation, model)

    def _counter(self, case: Case, view: View) -> Callable[[str], int]:
        """Counts texts as the view's budgets do."""
        scale, model = _scale(view), case.model
        return lambda text: ceil(self._weights.text(text, model) * scale)

    def _skips(self, tool: str) -> bool:
        return any(fnmatchcase(tool, pattern) for pattern in self._skipped)


def _heard(case: Case, messages: Sequence[Message]) -> Sequence[Message]:
    """Messages with what was said in place of what only names it."""
    return [case.heard.get(message.key, message) for message in messages] if case.heard else messages


def _leaving(case: Case, compaction: Compaction) -> Leaving:
    """What belongs to a fold beside what it took out: its own record, wherever that will be."""
    base = case.folded.compaction
    label, of = label_of(case.space, case.scope), case.folded.conversation.chain[-1]
    return Leaving(
        compaction.id,
        case.session,
        compaction.at,
        base.id if base is not None else "",
        (*keys_of(label, compaction.anchor), meeting(label, of, compaction.cause)),
        size_of(compaction),
    )


def _beside(view: View) -> bool:
    """Whether a list has more bytes or images than the provider takes."""
    return isinstance(view, Draft) and (0 < view.images_at_most < view.images or 0 < view.size_at_most < view.size)


def _scale(view: View) -> float:
    """What a raw count is multiplied with to be one of the view's."""
    return float(getattr(view, "scale", 1.0))


def _found(artifacts: Sequence[Artifact], summary: Summary | None) -> list[Artifact]:
    """The artifacts with what a summary says was found in them."""
    findings = summary.findings if summary is not None else ()
    told: dict[int, list[str]] = {}
    for index, text in findings:
        told.setdefault(index, []).append(text)
    return [
        replace(artifact, findings=tuple(told[artifact.last]))
        if artifact.kind == "result" and artifact.last in told
        else artifact
        for artifact in artifacts
    ]
