"""Carries out a plan: builds its layout and the compaction record, applies the record and validates the result.

Theory of operation. `build_layout` turns the steps of a plan into a `PlanLayout`: changed parts, removed slots, and
blocks of text in their place. No text is written yet; the summary task (assembly.py) and the archive content
(removal.py) are made from the layout. `PlanExecutor.execute` then builds the record, applies it, and has the protocol
validate the resulting history.

Pure and slow (it edits JSON and counts tokens), so it is called in a thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from accordion.compaction.policy import MIN_GAIN
from accordion.compaction.reporting import utilization_for_report
from accordion.compaction.request import CompactionRequest
from accordion.compaction.strategies.base import Plan
from accordion.model.boundaries import (
    find_open_calls,
    find_skipped_messages,
    has_item_reference,
    is_reasoning_only,
    match_results_to_calls,
)
from accordion.model.compaction import (
    CompactedConversation,
    Compaction,
    CompactionEntry,
    StrategyRecord,
    append_entry,
    apply_compaction,
    with_content_id,
    with_forms,
)
from accordion.model.conversation import Conversation, Message, ToolCall, ToolResult
from accordion.model.errors import AccordionError
from accordion.model.plan import Replace, Slot, Summarize, choose_block_slot
from accordion.model.records import FailureKind
from accordion.protocols.base import WireProtocol
from accordion.protocols.json_writing import without_breakpoints
from accordion.summaries.author import Summary


class PlanNotApplicable(AccordionError):
    """A plan cannot be carried out, or would gain nothing. The message gives the reason; clients never see it."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class TextBlock(msgspec.Struct, frozen=True):
    """A text in place of the removed messages among the client's messages `first` to `last`. It stands before the slot
    `slot`. `note` is its text, empty if a summary is to be written."""

    slot: int
    first: int
    last: int
    budget: int
    note: str = ""
    keys: tuple[bytes, ...] = ()
    """The keys of the removed messages, edits included; the artifact id in a note is made of them."""


class PlanLayout(msgspec.Struct, frozen=True):
    """The changes to `slots`. `changes` are texts by slot and part, None for removed parts; `removed_slots` are removed
    completely; `covered_count` is how many of the client's messages the record covers."""

    slots: tuple[Slot, ...]
    uncompacted: Conversation
    earlier_compaction: Compaction | None
    changes: Mapping[int, Mapping[int, str | None]]
    removed_slots: frozenset[int]
    blocks: tuple[TextBlock, ...]
    covered_count: int

    @property
    def summary_block(self) -> TextBlock | None:
        """The block whose text is a summary; the last one, should there be several."""
        return next((block for block in reversed(self.blocks) if not block.note), None)

    def remaining_messages(self) -> list[Message]:
        """Returns the remaining messages as they were before the plan."""
        return [
            slot.message
            for index, slot in enumerate(self.slots)
            if index not in self.removed_slots and not slot.is_summary
        ]

    def replaced_messages(self, block: TextBlock) -> list[int]:
        """Returns the indexes of the client's messages that a block replaces: those of its range that do not remain."""
        remaining = {
            slot.origin
            for index, slot in enumerate(self.slots)
            if index not in self.removed_slots and not slot.is_summary
        }
        return [index for index in range(block.first, block.last + 1) if index not in remaining]


def build_layout(plan: Plan, request: CompactionRequest) -> PlanLayout:
    """Builds the layout of a plan for a request. Raises PlanNotApplicable if there is nothing to do."""
    view, earlier_compaction = plan.view, request.history.compaction
    changes: dict[int, dict[int, str | None]] = {}
    removed: set[int] = set()
    # By slot: the index in `summaries` of the step that replaces it.
    step_of_slot: dict[int, int] = {}
    summaries: list[Summarize] = []
    for step in plan.steps:
        if isinstance(step, Summarize):
            # Protected slots stay around the block; a slot belongs to one block only.
            removable = [at for at in range(step.first, step.last + 1) if view.removable[at] and at not in step_of_slot]
            step_of_slot.update(dict.fromkeys(removable, len(summaries)))
            summaries.append(step)
            removed.update(removable)
        elif isinstance(step, Replace):
            changes.setdefault(step.slot, {})[step.part] = step.text
        elif step.parts:
            changes.setdefault(step.slot, {}).update(dict.fromkeys(step.parts))
        else:
            removed.add(step.slot)
    _remove_orphans(view.slots, request.protocol, changes)
    changed = {index: parts for index, parts in changes.items() if index not in removed and parts}
    affected = [view.slots[index] for index in (*changed, *removed)]
    if not affected:
        raise PlanNotApplicable("nothing_to_compact", "no message may be compacted")
    covered = max(
        earlier_compaction.covered_count if earlier_compaction is not None else 0, *(slot.last + 1 for slot in affected)
    )
    for index, successor in view.orphan_reasoning:
        # It led only to calls of our tool. These are insertions, which are dropped in the covered part of the list.
        if view.slots[successor].first < covered:
            removed.add(index)
            covered = max(covered, view.slots[index].last + 1)
    changed = {index: parts for index, parts in changed.items() if index not in removed}
    return PlanLayout(
        view.slots,
        request.uncompacted,
        earlier_compaction,
        changed,
        frozenset(removed),
        _build_blocks(view.slots, summaries, step_of_slot),
        covered,
    )


def _build_blocks(
    slots: Sequence[Slot], summaries: Sequence[Summarize], step_of_slot: Mapping[int, int]
) -> tuple[TextBlock, ...]:
    blocks = []
    for number, step in enumerate(summaries):
        own = [index for index, step_number in step_of_slot.items() if step_number == number]
        if own:
            first = min(slots[index].first for index in own)
            last = max(slots[index].last for index in own)
            keys = tuple(slots[index].message.key for index in sorted(own))
            blocks.append(TextBlock(choose_block_slot(slots, sorted(own)), first, last, step.budget, step.note, keys))
    return tuple(sorted(blocks, key=lambda block: block.slot))


# -- execution ---------------------------------------------------------------------------------------------------------


class PlanExecutor:
    """Carries out plans for a request. `read_message` parses written JSON, `count_message` counts tokens."""

    def __init__(
        self,
        request: CompactionRequest,
        read_message: Callable[[bytes], Message],
        count_message: Callable[[Message], int],
    ) -> None:
        self._request, self._protocol = request, request.protocol
        self._read_message = read_message
        self._count_message = count_message

    def execute(
        self, plan: Plan, layout: PlanLayout, summary: Summary | None, artifacts: Sequence[str], at: float
    ) -> CompactedConversation:
        """Returns the compacted history with its record. `summary` is the text of the layout's summary block, `at`
        the time in seconds since the epoch.

        Raises PlanNotApplicable if the protocol cannot express it, a provider would refuse it, or it is not shorter.
        """
        request, tool_tokens = self._request, self._request.tool_tokens
        earlier = layout.earlier_compaction
        earlier_artifacts = earlier.artifacts if earlier is not None else ()
        narrative, narrative_end, narrative_start = _narrative_of(summary, earlier)
        bare = Compaction(
            id="",
            anchor=layout.uncompacted.chain[layout.covered_count - 1],
            covered_count=layout.covered_count,
            entries=self._build_entries(layout, summary),
            kind=plan.view.kind,
            cause=request.cause,
            utilization=utilization_for_report(request.decision, request.utilization.ratio),
            steps=(),
            before=plan.view.tokens - tool_tokens,
            after=0,
            generation=earlier.generation + 1 if earlier is not None else 1,
            at=at,
            writer=summary.writer if summary is not None else "",
            input=summary.input if summary is not None else 0,
            output=summary.output if summary is not None else 0,
            artifacts=tuple(dict.fromkeys((*earlier_artifacts, *artifacts))),
            narrative=narrative,
            narrative_end=narrative_end,
            narrative_start=narrative_start,
        )
        # Our tool is offered only if there are artifacts to read.
        after = self._count_after(plan, layout, bare) - (0 if bare.artifacts else tool_tokens)
        self._refuse_small_gain(plan, bare.before, after)
        # Read-backs are removed too, but the client never sent them.
        saved = bare.before - after - sum(_insertion_tokens(plan, layout).values())
        tokens_saved = max(0, (earlier.tokens_saved if earlier is not None else 0) + saved)
        steps = _build_strategy_records(plan, after, tool_tokens)
        compaction = replace(bare, after=after, tokens_saved=tokens_saved, steps=steps)
        compaction = with_content_id(with_forms(compaction, layout.uncompacted))
        try:
            history = apply_compaction(layout.uncompacted, compaction, self._read_message)
        except ValueError as error:
            raise PlanNotApplicable("illegal", f"the compacted list would be invalid: {error}") from error
        self._validate(layout, history)
        return history

    def _refuse_small_gain(self, plan: Plan, before: int, after: int) -> None:
        """Raises PlanNotApplicable if the compaction gains under a tenth, or nothing.

        One that must succeed, or was asked for, may gain less; one for the limit of bytes or images no tokens at all.
        """
        decision, view = self._request.decision, plan.view
        accepts_small_gain = decision.must_succeed or decision.is_requested or decision.trigger == 0
        if not accepts_small_gain and before - after < MIN_GAIN * before:
            raise PlanNotApplicable("too_little", f"it would gain only {max(0.0, 1 - after / max(1, before)):.1%}")
        if after >= before and not (view.is_exceeded("images") or view.is_exceeded("bytes")):
            raise PlanNotApplicable("too_little", "it would not be shorter")

    def _build_entries(self, layout: PlanLayout, summary: Summary | None) -> tuple[CompactionEntry, ...]:
        blocks = {block.slot: block for block in layout.blocks}
        summary_block = layout.summary_block
        entries: list[CompactionEntry] = []
        for index, slot in enumerate(layout.slots):
            if slot.first >= layout.covered_count:
                break
            if (block := blocks.get(index)) is not None:
                text = summary.text if block is summary_block and summary is not None else block.note
                if not text:
                    raise PlanNotApplicable("unwritable", "a removed message would have no replacement text")
                entries.append(CompactionEntry(block.first, block.last, self._protocol.text_message(text)))
            if index not in layout.removed_slots:
                entry = self._build_entry(slot, layout.changes.get(index))
                if entry is not None:
                    append_entry(entries, entry)
        return tuple(entries)

    def _build_entry(self, slot: Slot, changes: Mapping[int, str | None] | None) -> CompactionEntry | None:
        if changes:
            try:
                wire = self._protocol.edit_message(slot.message, changes)
            except ValueError as error:
                raise PlanNotApplicable("unwritable", f"a message cannot be edited this way: {error}") from error
            # The stored bytes are sent with every later request. Breakpoints move, and providers take only four.
            return (
                CompactionEntry(slot.first, slot.last, without_breakpoints(wire), is_edited=True)
                if wire is not None
                else None
            )
        if slot.is_summary or slot.is_edited:
            return CompactionEntry(slot.first, slot.last, slot.message.wire, slot.is_edited)
        return CompactionEntry(slot.origin, slot.origin)

    def _count_after(self, plan: Plan, layout: PlanLayout, compaction: Compaction) -> int:
        """Counts the whole request with the compaction: the request before, minus the covered slots, plus entries."""
        covered = [slot for slot in layout.slots if slot.first < layout.covered_count]
        messages = layout.uncompacted.messages
        insertion_tokens = _insertion_tokens(plan, layout)
        known_tokens = {
            slot.origin: slot.tokens - insertion_tokens.get(slot.first, 0)
            for slot in covered
            if not slot.is_summary and not slot.is_edited
        }
        listed: list[tuple[Message, int | None]] = []
        for entry in compaction.entries:
            if entry.wire is not None:
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
        if problem := find_new_problem(self._protocol, layout.uncompacted.messages, history.conversation.messages):
            raise PlanNotApplicable("illegal", f"the compacted list would be invalid: {problem}")
        if not history.conversation.messages:
            raise PlanNotApplicable("nothing_to_compact", "no message would be left")


def find_new_problem(protocol: WireProtocol, uncompacted: Sequence[Message], compacted: Sequence[Message]) -> str:
    """Returns a problem that providers refuse a compacted list for, and not the client's; empty if it has none."""
    problems = Counter(protocol.find_problems(compacted))
    return next(iter(problems - Counter(protocol.find_problems(uncompacted))), "") if problems else ""


def _insertion_tokens(plan: Plan, layout: PlanLayout) -> dict[int, int]:
    """Returns the tokens of read-backs in the covered part, by the client's message that they belong to."""
    return {
        slot.first: tokens
        for slot, tokens in zip(layout.slots, plan.view.insertion_tokens, strict=False)
        if slot.first < layout.covered_count
    }


def _build_strategy_records(plan: Plan, after: int, tool_tokens: int) -> tuple[StrategyRecord, ...]:
    """Returns the record of each strategy. A plan counts a summary by its budget; the last step ends with the real
    count."""
    steps = [StrategyRecord(proposal.strategy, proposal.before, proposal.after) for proposal in plan.proposals]
    if steps:
        steps[0] = StrategyRecord(steps[0].strategy, steps[0].before - tool_tokens, steps[0].after)
        steps[-1] = StrategyRecord(steps[-1].strategy, steps[-1].before, after)
    return tuple(steps)


def _narrative_of(summary: Summary | None, earlier: Compaction | None) -> tuple[str, int, int]:
    """Returns the model's narrative with end and start of the messages it covers; by default the earlier one's."""
    if summary is not None and (summary.narrative or earlier is None):
        return summary.narrative, summary.narrative_end, summary.narrative_start
    return (earlier.narrative, earlier.narrative_end, earlier.narrative_start) if earlier is not None else ("", 0, 0)


# -- orphans -----------------------------------------------------------------------------------------------------------


def find_orphan_parts(
    messages: Sequence[Message], allows_late_answers: Callable[[Message], bool] = lambda _: False
) -> Iterator[tuple[int, int]]:
    """Yields (message, part) of calls without a result although messages follow, and of results without a call.

    Not orphans: calls at the end, which are still open; messages for which `allows_late_answers` is true; and results
    after a reference to an item that only the provider has, which may be their call.
    """
    calls, has_reference = match_results_to_calls(messages), False
    end = len(messages)
    while end and messages[end - 1].has_tool_result:
        end -= 1
    while end and _has_tool_call(messages[end - 1]):
        end -= 1
    for index, message in enumerate(messages):
        has_reference = has_reference or has_item_reference(message)
        for number, part in enumerate(message.parts):
            is_orphan = isinstance(part, ToolResult) and (index, number) not in calls and not has_reference
            if is_orphan and not allows_late_answers(message):
                yield index, number
    yield from (
        (index, part)
        for index, part in find_open_calls(messages)
        if index < end and not allows_late_answers(messages[index])
    )


def _remove_orphans(slots: Sequence[Slot], protocol: WireProtocol, changes: dict[int, dict[int, str | None]]) -> None:
    """Adds the removal of orphans to the changes, as far as the protocol can express it. Missing results and calls are
    not made up. Reasoning that led only to orphans is removed too."""
    messages, removed = [slot.message for slot in slots], set[int]()
    for index, part in find_orphan_parts(messages, protocol.allows_late_answers):
        with suppress(ValueError):
            if protocol.edit_message(messages[index], {part: None}) is None:
                removed.add(index)
            changes.setdefault(index, {})[part] = None
    for index in range(len(messages) - 1, -1, -1) if removed else ():
        if is_reasoning_only(messages[index]) and _find_reasoning_result(messages, index) <= removed:
            removed.add(index)
            changes.setdefault(index, {}).update(dict.fromkeys(range(len(messages[index].parts))))


def _find_reasoning_result(messages: Sequence[Message], index: int) -> set[int]:
    """Returns the indexes of the assistant's messages right after a message; the message itself if there are none."""
    end = index + 1
    while end < len(messages) and messages[end].role == "assistant":
        end += 1
    return set(range(index + 1, end)) or {index}


def _has_tool_call(message: Message) -> bool:
    return any(isinstance(part, ToolCall) for part in message.parts)
