"""Carries out a plan: builds the compaction record, applies it, and validates the resulting history.

Pure and slow (it edits JSON and counts tokens), so it is called in a thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from accordion.compaction.layout import PlanLayout, PlanNotApplicable
from accordion.compaction.policy import MIN_GAIN
from accordion.compaction.record_format import with_content_id
from accordion.model.boundaries import find_skipped_messages
from accordion.model.compaction import (
    Cause,
    CompactedConversation,
    Compaction,
    Entry,
    ReplacementMessage,
    StepRecord,
    VerbatimRange,
    apply_compaction,
)
from accordion.model.conversation import Message
from accordion.model.plan import Plan, Slot
from accordion.protocols.base import WireProtocol
from accordion.protocols.json_writing import without_breakpoints
from accordion.summaries.author import Summary


class CompactionTerms(msgspec.Struct, frozen=True):
    """Metadata of a compaction record, and what it must gain.

    `is_forced`: it may gain less than a tenth. `is_for_other_budgets`: it is made for the byte or image limit, and may
    gain no tokens at all. `at` is in seconds since the epoch.
    """

    cause: Cause
    utilization: float | None
    at: float
    is_forced: bool = False
    is_for_other_budgets: bool = False
    tool_tokens: int = 0


class PlanExecutor:
    """Carries out plans in one protocol. `read_message` parses written JSON, `count_message` counts tokens."""

    def __init__(
        self, protocol: WireProtocol, read_message: Callable[[bytes], Message], count_message: Callable[[Message], int]
    ) -> None:
        self._protocol = protocol
        self._read_message = read_message
        self._count_message = count_message

    def execute(
        self, plan: Plan, layout: PlanLayout, summary: Summary | None, artifacts: Sequence[str], terms: CompactionTerms
    ) -> CompactedConversation:
        """Returns the compacted history with its record. `summary` is the text of the layout's summary block.

        Raises PlanNotApplicable if the protocol cannot express it, a provider would refuse it, or it is not shorter.
        """
        entries = self._build_entries(layout, summary)
        earlier = layout.earlier_compaction
        earlier_artifacts = earlier.artifacts if earlier is not None else ()
        narrative, narrated, narrated_from = _narrative_of(summary, earlier)
        bare = Compaction(
            id="",
            anchor=layout.original.chain[layout.covered_count - 1],
            covered=layout.covered_count,
            entries=entries,
            kind=plan.view.kind,
            cause=terms.cause,
            utilization=terms.utilization,
            steps=(),
            before=plan.view.tokens - terms.tool_tokens,
            after=0,
            generation=earlier.generation + 1 if earlier is not None else 1,
            at=terms.at,
            writer=summary.writer if summary is not None else "",
            input=summary.input if summary is not None else 0,
            output=summary.output if summary is not None else 0,
            artifacts=tuple(dict.fromkeys((*earlier_artifacts, *artifacts))),
            narrative=narrative,
            narrated=narrated,
            narrated_from=narrated_from,
        )
        # Our tool is offered only if there are artifacts to read.
        after = self._count_after(plan, layout, bare) - (0 if bare.artifacts else terms.tool_tokens)
        if not terms.is_forced and bare.before - after < MIN_GAIN * bare.before:
            raise PlanNotApplicable("too_little", f"it would gain only {max(0.0, 1 - after / max(1, bare.before)):.1%}")
        if after >= bare.before and not terms.is_for_other_budgets:
            raise PlanNotApplicable("too_little", "it would not be shorter")
        # Read-backs are removed too, but the client never sent them.
        saved = bare.before - after - sum(_insertion_tokens(plan, layout).values())
        removed = max(0, (earlier.removed if earlier is not None else 0) + saved)
        compaction = with_content_id(
            replace(bare, after=after, removed=removed, steps=_build_step_records(plan, after, terms.tool_tokens))
        )
        try:
            history = apply_compaction(layout.original, compaction, self._read_message)
        except ValueError as error:
            raise PlanNotApplicable("illegal", f"the compacted list would be invalid: {error}") from error
        self._validate(layout, history)
        return history

    # -- entries ------------------------------------------------------------------

    def _build_entries(self, layout: PlanLayout, summary: Summary | None) -> tuple[Entry, ...]:
        blocks = {block.slot: block for block in layout.blocks}
        summary_block = layout.summary_block
        entries: list[Entry] = []
        for index, slot in enumerate(layout.slots):
            if slot.first >= layout.covered_count:
                break
            if (block := blocks.get(index)) is not None:
                text = summary.text if block is summary_block and summary is not None else block.note
                if not text:
                    raise PlanNotApplicable("unwritable", "a removed message would have no replacement text")
                entries.append(ReplacementMessage(self._protocol.text_message(text), block.first, block.last))
            if index not in layout.removed_slots:
                _append_entry(entries, self._build_entry(slot, layout.changes.get(index)))
        return tuple(entries)

    def _build_entry(self, slot: Slot, changes: Mapping[int, str | None] | None) -> Entry | None:
        if changes:
            try:
                wire = self._protocol.edit_message(slot.message, changes)
            except ValueError as error:
                raise PlanNotApplicable("unwritable", f"a message cannot be edited this way: {error}") from error
            # The stored bytes are sent with every later request. Breakpoints move, and providers take only four.
            return (
                ReplacementMessage(without_breakpoints(wire), slot.first, slot.last, edited=True)
                if wire is not None
                else None
            )
        if slot.is_summary or slot.edited:
            return ReplacementMessage(slot.message.wire, slot.first, slot.last, slot.edited)
        return VerbatimRange(slot.origin, slot.origin)

    def _count_after(self, plan: Plan, layout: PlanLayout, compaction: Compaction) -> int:
        """Counts the whole request with the compaction: the request before, minus the covered slots, plus entries."""
        covered = [slot for slot in layout.slots if slot.first < layout.covered_count]
        messages = layout.original.messages
        insertion_tokens = _insertion_tokens(plan, layout)
        known_tokens = {
            slot.origin: slot.tokens - insertion_tokens.get(slot.first, 0)
            for slot in covered
            if not slot.is_summary and not slot.edited
        }
        listed: list[tuple[Message, int | None]] = []
        for entry in compaction.entries:
            if isinstance(entry, ReplacementMessage):
                listed.append((self._read_message(entry.wire), None))
            else:
                listed += [(messages[index], known_tokens.get(index)) for index in range(entry.first, entry.last + 1)]
        skipped = find_skipped_messages([message for message, _ in listed] + list(messages[layout.covered_count :]))
        after = plan.view.tokens - sum(slot.tokens for slot in covered)
        for at, (message, tokens) in enumerate(listed):
            if at not in skipped:
                after += self._count_message(message) if tokens is None else tokens
        return after

    def _validate(self, layout: PlanLayout, history: CompactedConversation) -> None:
        """Raises PlanNotApplicable for a problem that providers refuse, unless the client's history has it too."""
        problems = Counter(self._protocol.find_problems(history.conversation.messages))
        if problems and (new := problems - Counter(self._protocol.find_problems(layout.original.messages))):
            raise PlanNotApplicable("illegal", f"the compacted list would be invalid: {next(iter(new))}")
        if not history.conversation.messages:
            raise PlanNotApplicable("nothing_to_fold", "no message would be left")


def _insertion_tokens(plan: Plan, layout: PlanLayout) -> dict[int, int]:
    """Returns the tokens of read-backs in the covered part, by the client's message that they belong to."""
    insertion_tokens = getattr(plan.view, "insertion_tokens", ())
    return {
        slot.first: tokens
        for slot, tokens in zip(layout.slots, insertion_tokens, strict=False)
        if slot.first < layout.covered_count
    }


def _append_entry(entries: list[Entry], entry: Entry | None) -> None:
    last = entries[-1] if entries else None
    if isinstance(entry, VerbatimRange) and isinstance(last, VerbatimRange) and last.last + 1 == entry.first:
        entries[-1] = VerbatimRange(last.first, entry.last)
    elif entry is not None:
        entries.append(entry)


def _build_step_records(plan: Plan, after: int, tool_tokens: int) -> tuple[StepRecord, ...]:
    """Returns the record of each strategy. A plan counts a summary by its budget; the last step ends with the real
    count."""
    steps = [StepRecord(proposal.strategy, proposal.before, proposal.after) for proposal in plan.proposals]
    if steps:
        steps[0] = StepRecord(steps[0].compactor, steps[0].before - tool_tokens, steps[0].after)
        steps[-1] = StepRecord(steps[-1].compactor, steps[-1].before, after)
    return tuple(steps)


def _narrative_of(summary: Summary | None, earlier: Compaction | None) -> tuple[str, int, int]:
    """Returns the model's narrative with end and start of the messages it covers; by default the earlier one's."""
    if summary is not None and (summary.narrative or earlier is None):
        return summary.narrative, summary.narrated_until, summary.narrated_from
    return (earlier.narrative, earlier.narrated, earlier.narrated_from) if earlier is not None else ("", 0, 0)
