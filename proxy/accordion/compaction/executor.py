"""Carrying a plan out: the record of what the list is from now on, checked before anybody uses it.

Pure and slow (it edits JSON and counts tokens): made to be called in a thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from accordion.compaction.layout import Layout, Unfit
from accordion.compaction.policy import WORTHWHILE
from accordion.compaction.records import identified
from accordion.core.boundaries import passed_over
from accordion.core.conversation import Message
from accordion.core.edits import Cause, Compaction, Entry, Folded, Kept, StepRecord, Written, apply
from accordion.core.plan import Plan, Slot
from accordion.core.values import dataclass, replace
from accordion.dialects.base import Dialect
from accordion.dialects.writing import unmarked
from accordion.summaries.author import Summary


@dataclass(frozen=True, slots=True)
class Terms:
    """What a record says beside its list. `forced`: it need not gain a tenth. `beside`: it is made for bytes or images,
    and need not gain a token. `at` in seconds since the epoch."""

    cause: Cause
    utilization: float | None
    at: float
    forced: bool = False
    beside: bool = False
    brought: int = 0


class Executor:
    """Carries plans out in one dialect. `read` makes a Message of written JSON, `weigh` counts a message's tokens."""

    def __init__(self, dialect: Dialect, read: Callable[[bytes], Message], weigh: Callable[[Message], int]) -> None:
        self._dialect = dialect
        self._read = read
        self._weigh = weigh

    def execute(
        self, plan: Plan, layout: Layout, summary: Summary | None, artifacts: Sequence[str], terms: Terms
    ) -> Folded:
        """The list as it is forwarded from now on, with its record. `summary` is the text of the block that wants one.

        Raises Unfit where the dialect cannot write it, where a provider would refuse it, or where it is not shorter.
        """
        entries = self._entries(layout, summary)
        base = layout.base
        known = base.artifacts if base is not None else ()
        narrative, narrated, since = _told(summary, base)
        bare = Compaction(
            id="",
            anchor=layout.client.chain[layout.covered - 1],
            covered=layout.covered,
            entries=entries,
            kind=plan.view.kind,
            cause=terms.cause,
            utilization=terms.utilization,
            steps=(),
            before=plan.view.tokens - terms.brought,
            after=0,
            generation=base.generation + 1 if base is not None else 1,
            at=terms.at,
            writer=summary.writer if summary is not None else "",
            input=summary.input if summary is not None else 0,
            output=summary.output if summary is not None else 0,
            artifacts=tuple(dict.fromkeys((*known, *artifacts))),
            narrative=narrative,
            narrated=narrated,
            narrated_from=since,
        )
        # Our tool is offered where there is something to read.
        after = self._after(plan, layout, bare) - (0 if bare.artifacts else terms.brought)
        if not terms.forced and bare.before - after < WORTHWHILE * bare.before:
            raise Unfit(f"it would gain only {max(0.0, 1 - after / max(1, bare.before)):.1%}")
        if after >= bare.before and not terms.beside:
            raise Unfit("it would not be shorter")
        # What was read back goes too, but the client never sent it.
        less = bare.before - after - sum(_woven(plan, layout).values())
        removed = max(0, (base.removed if base is not None else 0) + less)
        compaction = identified(replace(bare, after=after, removed=removed, steps=_steps(plan, after, terms.brought)))
        try:
            folded = apply(layout.client, compaction, self._read)
        except ValueError as error:
            raise Unfit(f"the compacted list would be invalid: {error}") from error
        self._check(layout, folded)
        return folded

    # -- the list -----------------------------------------------------------------

    def _entries(self, layout: Layout, summary: Summary | None) -> tuple[Entry, ...]:
        blocks = {block.slot: block for block in layout.blocks}
        wanted = layout.summarized
        entries: list[Entry] = []
        for index, slot in enumerate(layout.slots):
            if slot.first >= layout.covered:
                break
            if (block := blocks.get(index)) is not None:
                text = summary.text if block is wanted and summary is not None else block.note
                if not text:
                    raise Unfit("a removed message would have no replacement text")
                entries.append(Written(self._dialect.text(text), block.first, block.last))
            if index not in layout.gone:
                _add(entries, self._entry(slot, layout.changes.get(index)))
        return tuple(entries)

    def _entry(self, slot: Slot, changes: Mapping[int, str | None] | None) -> Entry | None:
        if changes:
            try:
                wire = self._dialect.edit(slot.message, changes)
            except ValueError as error:
                raise Unfit(f"a message cannot be edited this way: {error}") from error
            # What is stored is sent for ever; breakpoints are the client's to move, and providers take only four.
            return Written(unmarked(wire), slot.first, slot.last, edited=True) if wire is not None else None
        if slot.summary or slot.edited:
            return Written(slot.message.wire, slot.first, slot.last, slot.edited)
        return Kept(slot.origin, slot.origin)

    def _after(self, plan: Plan, layout: Layout, compaction: Compaction) -> int:
        """What the whole request counts with the record: what it counted, less what is covered, and its entries."""
        covered = [slot for slot in layout.slots if slot.first < layout.covered]
        messages = layout.client.messages
        woven = _woven(plan, layout)
        known = {
            slot.origin: slot.tokens - woven.get(slot.first, 0)
            for slot in covered
            if not slot.summary and not slot.edited
        }
        listed: list[tuple[Message, int | None]] = []
        for entry in compaction.entries:
            if isinstance(entry, Written):
                listed.append((self._read(entry.wire), None))
            else:
                listed += [(messages[index], known.get(index)) for index in range(entry.first, entry.last + 1)]
        passed = passed_over([message for message, _ in listed] + list(messages[layout.covered :]))
        after = plan.view.tokens - sum(slot.tokens for slot in covered)
        for at, (message, tokens) in enumerate(listed):
            if at not in passed:
                after += self._weigh(message) if tokens is None else tokens
        return after

    def _check(self, layout: Layout, folded: Folded) -> None:
        """The last look before the wire: what providers refuse, unless the client's own list has the same fault."""
        found = Counter(self._dialect.problems(folded.conversation.messages))
        if found and (new := found - Counter(self._dialect.problems(layout.client.messages))):
            raise Unfit(f"the compacted list would be invalid: {next(iter(new))}")
        if not folded.conversation.messages:
            raise Unfit("no message would be left")


def _woven(plan: Plan, layout: Layout) -> dict[int, int]:
    """Tokens of what was read back before what is covered ends, by the client's message that it goes with."""
    woven = getattr(plan.view, "woven", ())
    return {slot.first: more for slot, more in zip(layout.slots, woven, strict=False) if slot.first < layout.covered}


def _add(entries: list[Entry], entry: Entry | None) -> None:
    last = entries[-1] if entries else None
    if isinstance(entry, Kept) and isinstance(last, Kept) and last.last + 1 == entry.first:
        entries[-1] = Kept(last.first, entry.last)
    elif entry is not None:
        entries.append(entry)


def _steps(plan: Plan, after: int, brought: int) -> tuple[StepRecord, ...]:
    """What each strategy did. Plans count a summary by its budget; the last step ends with what came of it."""
    steps = [StepRecord(proposal.strategy, proposal.before, proposal.after) for proposal in plan.proposals]
    if steps:
        steps[0] = StepRecord(steps[0].compactor, steps[0].before - brought, steps[0].after)
        steps[-1] = StepRecord(steps[-1].compactor, steps[-1].before, after)
    return tuple(steps)


def _told(summary: Summary | None, base: Compaction | None) -> tuple[str, int, int]:
    """What a model told, and of which messages; where none did now, what one told for an earlier fold."""
    if summary is not None and (summary.narrative or base is None):
        return summary.narrative, summary.narrated, summary.since
    return (base.narrative, base.narrated, base.narrated_from) if base is not None else ("", 0, 0)
