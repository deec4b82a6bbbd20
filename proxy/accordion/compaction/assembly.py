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
    PlanExecutor,
    PlanLayout,
    PlanNotApplicable,
    TextBlock,
    build_layout,
)
from accordion.compaction.planner import Planner
from accordion.compaction.removal import RemovalBuilder, RemovedContent
from accordion.compaction.repository import compaction_keys, form_key, memory_size, race_key
from accordion.compaction.request import CompactionRequest
from accordion.compaction.strategies import Strategy, select_without_summary
from accordion.compaction.strategies.base import HANDOFF_TOOLS, DigestFunction, Plan, StrategyView, no_digest
from accordion.compaction.view import NO_PINS, PinRules, build_view_for_request
from accordion.model.boundaries import find_skipped_messages
from accordion.model.budget import CompactionKind
from accordion.model.compaction import CompactedConversation, Compaction, scope_prefix
from accordion.model.conversation import Message
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
        pin_rules: PinRules = NO_PINS,
        make_digest: DigestFunction = no_digest,
        count_instruction_tokens: Callable[[Message], int] = lambda _message: 0,
        skipped_tools: Sequence[str] = HANDOFF_TOOLS,
    ) -> None:
        self._planner = planner
        self._planner_without_summary = planner_without_summary
        self._archive = archive
        self._message_tokens = message_tokens
        self._message_reader = message_reader
        self._pin_rules = pin_rules
        self._make_digest = make_digest
        self._count_instruction_tokens = count_instruction_tokens
        self._skipped_tools = tuple(skipped_tools)

    def plan(
        self,
        request: CompactionRequest,
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
            pin_rules=self._pin_rules,
            make_digest=self._make_digest,
            count_instruction_tokens=self._count_instruction_tokens,
        )
        return planner.plan_first_fitting(build_view, kinds, must_succeed=decision.must_succeed)

    def plan_compaction(self, request: CompactionRequest, *, at: float, without_summary: bool) -> PlannedCompaction:
        """Plans a compaction. Raises PlanNotApplicable if there is nothing to do."""
        count_message = self._message_counter(request)
        plan, strategy_runs = self.plan(request, without_summary, count_message)
        layout = build_layout(plan, request)
        count_text = self._text_counter(request, plan.view)
        removal = RemovalBuilder(
            layout,
            request,
            at,
            count_message,
            count_text,
            self._is_skipped_tool,
        ).build()
        block = layout.summary_block
        task = self._build_summary_task(request, plan.view, layout, removal, block) if block is not None else None
        return PlannedCompaction(
            plan, layout, removal, task, block.last if block is not None else -1, at, strategy_runs
        )

    def finish(
        self, request: CompactionRequest, planned: PlannedCompaction, summary: Summary | None
    ) -> tuple[CompactedConversation, Compaction, list[Put]]:
        """Makes the compaction: returns the compacted history, its record, and the writes to store before it is used.
        Raises PlanNotApplicable if it would not be legal, or not shorter."""
        count_message, scale = self._message_counter(request), planned.plan.view.scale
        executor = PlanExecutor(
            request,
            self._message_reader.reader_for(request.protocol, request.ref.tenant),
            lambda message: round(count_message(message) * scale),
        )
        removed = planned.removed_content
        history = executor.execute(planned.plan, planned.layout, summary, removed.artifact_ids, planned.at)
        if history.compaction is None:
            raise PlanNotApplicable("nothing_to_compact", "no message may be compacted")
        write = _build_compaction_write(request, history.compaction)
        artifacts = _with_findings(removed.artifacts, summary)
        writes = self._archive.build_puts(request.ref.tenant, removed.rows, artifacts, write)
        return history, history.compaction, writes

    def count_with(self, request: CompactionRequest, history: CompactedConversation) -> int:
        """Counts the request with another history, that is, with another compaction applied."""
        before, after = (
            self._count_messages(request, each.conversation.messages) for each in (request.history, history)
        )
        utilization = request.utilization
        scale = (utilization.messages + utilization.media) / max(1, before)
        return max(0, utilization.tokens - round((before - after) * scale))

    def _build_summary_task(
        self,
        request: CompactionRequest,
        view: StrategyView,
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
            earlier_messages=request.earlier_messages,
        )

    def _count_messages(self, request: CompactionRequest, messages: Sequence[Message]) -> int:
        count_message, skipped = self._message_counter(request), find_skipped_messages(messages)
        return sum(count_message(message) for at, message in enumerate(messages) if at not in skipped)

    def _message_counter(self, request: CompactionRequest) -> Callable[[Message], int]:
        """Returns a function that counts messages, each once: a conversation may have more than the cache holds."""
        conversation, model, counts = request.history.conversation, request.actual_model, dict[bytes, int]()

        def count_message(message: Message) -> int:
            count = counts.get(message.key)
            if count is None:
                count = counts[message.key] = self._message_tokens.count_message(message, conversation, model)
            return count

        return count_message

    def _text_counter(self, request: CompactionRequest, view: StrategyView) -> Callable[[str], int]:
        """Returns a function that counts texts on the scale of the view's budgets."""
        scale, model = view.scale, request.actual_model
        return lambda text: ceil(self._message_tokens.count_text(text, model) * scale)

    def _is_skipped_tool(self, tool: str) -> bool:
        return any(fnmatchcase(tool, pattern) for pattern in self._skipped_tools)


def build_assembler(
    pipeline: Sequence[Strategy],
    archive: Archive,
    message_tokens: MessageTokenCache,
    message_reader: WrittenMessageReader,
    extractor: ExtractiveWriter,
    pin_rules: PinRules = NO_PINS,
) -> CompactionAssembler:
    """Builds the assembler of a pipeline, with the extractive writer's digests and instructions."""
    return CompactionAssembler(
        Planner(pipeline),
        Planner(select_without_summary(pipeline)),
        archive,
        message_tokens,
        message_reader,
        pin_rules=pin_rules,
        make_digest=make_digest,
        count_instruction_tokens=extractor.count_instruction_tokens,
        skipped_tools=next((each.skipped_tools for each in pipeline if each.skipped_tools is not None), HANDOFF_TOOLS),
    )


def _with_provider_items(request: CompactionRequest, messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the messages with items that the client only references replaced by their full content."""
    return (
        [request.provider_items.get(message.key, message) for message in messages]
        if request.provider_items
        else messages
    )


def _build_compaction_write(request: CompactionRequest, compaction: Compaction) -> CompactionWrite:
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
