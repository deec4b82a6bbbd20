"""Assembles a compaction: plan, layout, removed content, summary task; then the record and the archive writes.

This is the slow and pure part of compacting, so the compactor calls it in a thread. `plan_compaction` runs before the
summary is written, `finish` after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from math import ceil

import msgspec
from msgspec.structs import replace

from accordion.accounting.token_meter import MessageTokenCache
from accordion.archive.archive import Archive, CompactionWrite
from accordion.archive.artifacts import Artifact
from accordion.compaction.apply import (
    CompactionTerms,
    PlanExecutor,
    PlanLayout,
    PlanNotApplicable,
    TextBlock,
    build_layout,
)
from accordion.compaction.planner import Planner
from accordion.compaction.removal import ContentOrigin, RemovalBuilder, RemovedContent
from accordion.compaction.reporting import utilization_for_report
from accordion.compaction.repository import compaction_keys, form_key, memory_size, race_key
from accordion.compaction.request import CompactionJob
from accordion.compaction.strategies import Strategy, select_without_summary
from accordion.compaction.strategies.base import HANDOFF_TOOLS, DigestFunction, StrategyView, no_digest
from accordion.compaction.view import build_view_for_request
from accordion.model.boundaries import find_skipped_messages
from accordion.model.budget import CompactionKind
from accordion.model.compaction import CompactedConversation, Compaction, scope_prefix
from accordion.model.conversation import Conversation, Message
from accordion.model.plan import Plan, View
from accordion.model.ports import Put
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.summaries.author import Summary, SummaryTask
from accordion.summaries.digest import make_digest
from accordion.summaries.extractive import ExtractiveWriter, SourceMessage


class PlannedCompaction(msgspec.Struct, frozen=True):
    """A planned compaction. `summary_task` is None if no summary is needed; `last_summarized` is the index of the last
    client message that the summary replaces, or -1."""

    plan: Plan
    layout: PlanLayout
    removed_content: RemovedContent
    summary_task: SummaryTask | None
    last_summarized: int
    at: float
    strategy_runs: int


class FinishedCompaction(msgspec.Struct, frozen=True):
    """A finished compaction: the compacted history, its record, and the writes to store before it is used."""

    history: CompactedConversation
    compaction: Compaction
    writes: tuple[Put, ...]
    strategy_runs: int


class CompactionAssembler:
    """Plans and finishes compactions. Results of tools that match `skipped_tools` (patterns of names) make no artifacts
    of their own."""

    def __init__(
        self,
        planner: Planner,
        planner_without_summary: Planner,
        archive: Archive,
        message_tokens: MessageTokenCache,
        message_reader: WrittenMessageReader,
        *,
        pinned_tools: frozenset[str] = frozenset(),
        make_digest: DigestFunction = no_digest,
        count_instruction_tokens: Callable[[Message], int] = lambda _message: 0,
        skipped_tools: Sequence[str] = HANDOFF_TOOLS,
    ) -> None:
        self._planner = planner
        self._planner_without_summary = planner_without_summary
        self._archive = archive
        self._message_tokens = message_tokens
        self._message_reader = message_reader
        self._pinned_tools = pinned_tools
        self._make_digest = make_digest
        self._count_instruction_tokens = count_instruction_tokens
        self._skipped_tools = tuple(skipped_tools)

    def plan(
        self,
        request: CompactionJob,
        without_summary: bool = False,
        count_message: Callable[[Message], int] | None = None,
    ) -> tuple[Plan, int]:
        """Returns the plan for a request, and how often the pipeline ran for it."""
        planner, decision = self._planner_without_summary if without_summary else self._planner, request.decision
        kinds: tuple[CompactionKind, ...] = (
            ("generation", "conversation") if decision.kind == "generation" else ("conversation",)
        )
        build_view = partial(
            build_view_for_request,
            request,
            count_message=count_message or self._message_counter(request),
            pinned_tools=self._pinned_tools,
            make_digest=self._make_digest,
            count_instruction_tokens=self._count_instruction_tokens,
        )
        return planner.plan_first_fitting(build_view, kinds, must_succeed=decision.must_succeed)

    def plan_compaction(
        self, request: CompactionJob, uncompacted: Conversation, *, at: float, without_summary: bool
    ) -> PlannedCompaction:
        """Plans a compaction of `uncompacted`. Raises PlanNotApplicable if there is nothing to do."""
        count_message = self._message_counter(request)
        plan, strategy_runs = self.plan(request, without_summary, count_message)
        layout = build_layout(plan, uncompacted, request.history.compaction, request.protocol)
        origin = ContentOrigin(request.ref, request.protocol.name, at)
        count_text = self._text_counter(request, plan.view)
        removal = RemovalBuilder(
            layout,
            origin,
            count_message,
            count_text,
            self._is_skipped_tool,
            request.delegations_by_call,
            request.provider_items,
        ).build()
        block = layout.summary_block
        task = self._build_summary_task(request, plan.view, layout, removal, block) if block is not None else None
        return PlannedCompaction(
            plan, layout, removal, task, block.last if block is not None else -1, at, strategy_runs
        )

    def finish(self, request: CompactionJob, planned: PlannedCompaction, summary: Summary | None) -> FinishedCompaction:
        """Makes the compaction. Raises PlanNotApplicable if it would not be legal, or not shorter."""
        decision, view = request.decision, planned.plan.view
        count_message, scale = self._message_counter(request), _count_scale(view)
        executor = PlanExecutor(
            request.protocol,
            self._message_reader.reader_for(request.protocol, request.ref.tenant),
            lambda message: round(count_message(message) * scale),
        )
        terms = CompactionTerms(
            request.cause,
            utilization_for_report(decision, request.utilization.ratio),
            planned.at,
            accepts_small_gain=decision.must_succeed or decision.is_requested or decision.trigger == 0,
            is_for_other_limits=_exceeds_other_limits(view),
            tool_tokens=request.tool_tokens,
        )
        history = executor.execute(planned.plan, planned.layout, summary, planned.removed_content.artifact_ids, terms)
        if history.compaction is None:
            raise PlanNotApplicable("nothing_to_compact", "no message may be compacted")
        artifacts = _with_findings(planned.removed_content.artifacts, summary)
        writes = self._archive.build_puts(
            request.ref.tenant,
            planned.removed_content.rows,
            artifacts,
            _build_compaction_write(request, history.compaction),
        )
        return FinishedCompaction(history, history.compaction, tuple(writes), planned.strategy_runs)

    def count_with(self, request: CompactionJob, history: CompactedConversation) -> int:
        """Counts the request with another history, that is, with another compaction applied."""
        before, after = (
            self._count_messages(request, each.conversation.messages) for each in (request.history, history)
        )
        utilization = request.utilization
        scale = (utilization.messages + utilization.media) / max(1, before)
        return max(0, utilization.tokens - round((before - after) * scale))

    def _build_summary_task(
        self,
        request: CompactionJob,
        view: View,
        layout: PlanLayout,
        removed_content: RemovedContent,
        block: TextBlock,
    ) -> SummaryTask:
        messages, prior = _with_provider_items(request, layout.uncompacted.messages), layout.earlier_compaction
        slot = view.slots[view.task] if view.task >= 0 else None
        has_task = slot is not None and view.task not in layout.removed_slots and slot.origin >= 0
        # A summary continues an earlier one only if both start at the same message: a summary of the work on one task
        # is no beginning for a summary of the whole conversation.
        if prior is not None and not (prior.narrative and prior.narrative_start == block.first):
            prior = None
        replaced = layout.replaced_messages(block)
        others = set(range(len(messages))).difference(replaced)
        return SummaryTask(
            kind=view.kind,
            sources=tuple(SourceMessage(index, messages[index]) for index in replaced),
            remaining_messages=tuple(_with_provider_items(request, layout.remaining_messages())),
            budget=block.budget,
            count_tokens=self._text_counter(request, view),
            prior_narrative=prior.narrative if prior is not None else "",
            prior_until=prior.narrative_end if prior is not None else 0,
            first_index=block.first,
            reference_lines=removed_content.reference_lines,
            others=tuple(
                SourceMessage(index, messages[index]) for index in sorted(others) if messages[index].has_user_text
            ),
            artifacts=removed_content.ranges,
            summary_caller=request.summary_caller,
            task_message=SourceMessage(slot.origin, messages[slot.origin]) if slot is not None and has_task else None,
            instructions=request.summary_instructions,
        )

    def _count_messages(self, request: CompactionJob, messages: Sequence[Message]) -> int:
        count_message, skipped = self._message_counter(request), find_skipped_messages(messages)
        return sum(count_message(message) for at, message in enumerate(messages) if at not in skipped)

    def _message_counter(self, request: CompactionJob) -> Callable[[Message], int]:
        """Returns a function that counts messages, each once: a conversation may have more than the cache holds."""
        conversation, model, counts = request.history.conversation, request.actual_model, dict[bytes, int]()

        def count_message(message: Message) -> int:
            count = counts.get(message.key)
            if count is None:
                count = counts[message.key] = self._message_tokens.count_message(message, conversation, model)
            return count

        return count_message

    def _text_counter(self, request: CompactionJob, view: View) -> Callable[[str], int]:
        """Returns a function that counts texts on the scale of the view's budgets."""
        scale, model = _count_scale(view), request.actual_model
        return lambda text: ceil(self._message_tokens.count_text(text, model) * scale)

    def _is_skipped_tool(self, tool: str) -> bool:
        return any(fnmatchcase(tool, pattern) for pattern in self._skipped_tools)


def build_assembler(
    pipeline: Sequence[Strategy],
    archive: Archive,
    message_tokens: MessageTokenCache,
    message_reader: WrittenMessageReader,
    extractor: ExtractiveWriter,
    pinned_tools: frozenset[str] = frozenset(),
) -> CompactionAssembler:
    """Builds the assembler of a pipeline, with the extractive writer's digests and instructions."""
    return CompactionAssembler(
        Planner(pipeline),
        Planner(select_without_summary(pipeline)),
        archive,
        message_tokens,
        message_reader,
        pinned_tools=pinned_tools,
        make_digest=make_digest,
        count_instruction_tokens=extractor.count_instruction_tokens,
        skipped_tools=next((each.skipped_tools for each in pipeline if each.skipped_tools is not None), HANDOFF_TOOLS),
    )


def _with_provider_items(request: CompactionJob, messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the messages with items that the client only references replaced by their full content."""
    return (
        [request.provider_items.get(message.key, message) for message in messages]
        if request.provider_items
        else messages
    )


def _build_compaction_write(request: CompactionJob, compaction: Compaction) -> CompactionWrite:
    """Describes the compaction's own record for the archive: id, size, and every key that it may be stored under."""
    earlier = request.history.compaction
    prefix = scope_prefix(request.ref)
    last_chain_key = request.history.conversation.chain[-1]
    forms = (form_key(prefix, compaction.identity_key),) if compaction.identity_key else ()
    return CompactionWrite(
        compaction.id,
        request.ref.session,
        compaction.at,
        earlier.id if earlier is not None else "",
        (*compaction_keys(prefix, compaction.anchor), race_key(prefix, last_chain_key, compaction.cause), *forms),
        memory_size(compaction),
    )


def _exceeds_other_limits(view: View) -> bool:
    """Whether a history has more bytes or images than the provider takes."""
    return isinstance(view, StrategyView) and (view.is_exceeded("images") or view.is_exceeded("bytes"))


def _count_scale(view: View) -> float:
    """Returns the factor from raw counts to the view's."""
    return float(getattr(view, "scale", 1.0))


def _with_findings(artifacts: Sequence[Artifact], summary: Summary | None) -> list[Artifact]:
    """Returns the artifacts with the findings that a summary reports for them."""
    findings: dict[int, list[str]] = {}
    for index, text in summary.findings if summary is not None else ():
        findings.setdefault(index, []).append(text)
    return [
        replace(artifact, findings=tuple(findings[artifact.last]))
        if artifact.kind == "result" and artifact.last in findings
        else artifact
        for artifact in artifacts
    ]
