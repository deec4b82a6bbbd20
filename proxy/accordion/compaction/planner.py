"""The planner: turns a view of a history into a plan.

Theory of operation. `view.py` builds a `StrategyView`: the messages as slots, with which of them may be changed or
removed. The planner asks the strategies in their order. Each sees the history as the ones before left it, and proposes
steps (`Drop`, `Replace`, `Summarize`). A strategy may be another package's, so what it returns is not trusted: a
malformed step is left out, an implausible count is replaced by an estimate, and a step that would make the history
longer is left out. `rules.py` leaves out steps that are not legal; `PlanState` applies the others and counts them. The
planner stops when the target is met. Nothing of the client's is changed: the plan is a list of steps, which `apply.py`
carries out. A strategy that fails is left out.

The effect of a step is estimated (the parts of a message share its count by their length), so that planning needs no
tokenizer. The finished compaction is counted exactly.

The last resort are steps before a request is refused, if nothing else brought it below the hard limit. First the oldest
removable groups are left out. Then, if that is enough, one note replaces all removable messages, a summary included.
Otherwise the largest results of the newest batch are sliced, then the largest parts of the opening request and of the
task. Each step removes no more than necessary.

In the form `whole`, groups leave for the limits of images and bytes too. Parts are replaced only if that is not enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import ceil
from typing import NamedTuple

from msgspec.structs import replace

from accordion.accounting.token_meter import MESSAGE, SEALED_ENVELOPE
from accordion.archive.references import sliced_text
from accordion.compaction.rules import filter_steps
from accordion.compaction.strategies import select_for_other_limits, select_for_tokens, select_whole_groups
from accordion.compaction.strategies.base import (
    REMOVED_PART,
    Budget,
    DeferredReplace,
    Plan,
    Proposal,
    ProposedStep,
    Strategy,
    StrategyView,
    count_images,
    estimate_tokens,
    group_slice,
    media_parts,
    text_of,
)
from accordion.compaction.strategies.steps import replace_groups_before, replace_with_reference
from accordion.model.budget import CompactionKind
from accordion.model.compaction import WHOLE_GROUPS
from accordion.model.conversation import Media, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import WRITTEN_BY_COMPACTION, Drop, PlanStep, Replace, Slot, Summarize, choose_block_slot

_log = logging.getLogger("accordion")

# -- the history during planning ---------------------------------------------------------------------------------------


_PART_JSON_BYTES = 60
"""Estimated bytes of JSON around a part."""
_IMAGE_CHARACTERS = 6_000
"""Characters of text that have about as many tokens as one image."""


class PlanState:
    """A history under planning, to which steps are applied."""

    def __init__(self, view: StrategyView) -> None:
        self.initial_view = view
        self._slots = list(view.slots)
        self._removable, self._free = list(view.removable), list(view.free)
        self._removed, self._insertion_tokens = list(view.removed), list(view.insertion_tokens)
        self._tokens: dict[int, tuple[int, ...]] = {}
        self._parts: dict[int, list[Part]] = {}
        """Parts changed since the last `current_view`, by slot."""
        self._bytes: dict[int, int] = {}
        self.tokens, self.size, self.images = view.tokens, view.body_size, view.images
        self.first_changed = len(view.slots)
        """The first changed slot; the number of slots if none was changed."""

    def current_view(self) -> StrategyView:
        """Returns the view of the history as it is now."""
        self._update_messages()
        return replace(
            self.initial_view,
            slots=tuple(self._slots),
            free=tuple(self._free),
            removable=tuple(self._removable),
            removed=tuple(self._removed),
            tokens=self.tokens,
            body_size=self.size,
            images=self.images,
            count_part_tokens=self.count_part_tokens,
            insertion_tokens=tuple(self._insertion_tokens),
        )

    def parts_of(self, index: int) -> Sequence[Part]:
        """Returns the current parts of a slot."""
        return self._parts.get(index) or self._slots[index].message.parts

    def is_removed(self, index: int) -> bool:
        """Whether a slot was removed."""
        return self._removed[index]

    def origin_of(self, index: int) -> int:
        """Returns the origin of a slot's current message."""
        return self._slots[index].origin

    def count_part_tokens(self, index: int) -> tuple[int, ...]:
        """Returns the current tokens of each part. Their sum plus the overhead of a message is the slot's count."""
        if index not in self._tokens:
            insertion_tokens = self._insertion_tokens[index] if self._insertion_tokens else 0
            self._tokens[index] = self._divide_tokens(self._slots[index], insertion_tokens)
        return self._tokens[index]

    def apply(self, step: ProposedStep) -> None:
        """Applies a step. The caller makes sure that it is legal."""
        if self._insertion_tokens:
            self._drop_insertions(step)
        if isinstance(step, Summarize):
            self._summarize(step)
        elif isinstance(step, Drop):
            for at in step.parts or range(len(self.parts_of(step.slot))):
                self._replace_part(step.slot, at, REMOVED_PART, 0)
            if all(part == REMOVED_PART for part in self.parts_of(step.slot)) and not self._removed[step.slot]:
                self._remove_slot(step.slot)
            self.first_changed = min(self.first_changed, step.slot)
        else:
            text = step.text if isinstance(step, Replace) else ""
            old = self.parts_of(step.slot)[step.part]
            new: Part = Text(text)
            if isinstance(old, ToolResult):
                new = replace(old, parts=(Text(text),))
            elif isinstance(old, ToolCall):
                new = ToolCall(old.call_id, old.name, text)
            self._replace_part(step.slot, step.part, new, step.tokens)
            self.first_changed = min(self.first_changed, step.slot)

    # -- steps --------------------------------------------------------------------

    def _drop_insertions(self, step: ProposedStep) -> None:
        """Drops the tokens of read-backs and recalls up to the last slot that the step changes."""
        last = step.last if isinstance(step, Summarize) else step.slot
        while isinstance(step, Summarize) and last >= step.first and not self._removable[last]:
            last -= 1
        for index, tokens in enumerate(self._insertion_tokens[: last + 1]):
            if tokens:
                slot = self._slots[index]
                self._slots[index] = _replace_message(slot, slot.message, slot.tokens - tokens)
                self._insertion_tokens[index] = 0
                self.tokens -= tokens

    def _replace_part(self, index: int, at: int, new: Part, tokens: int) -> None:
        parts = self._parts.setdefault(index, list(self._slots[index].message.parts))
        counts, old = self.count_part_tokens(index), parts[at]
        saved, parts[at] = counts[at] - tokens, new
        self._tokens[index] = (*counts[:at], tokens, *counts[at + 1 :])
        slot = self._slots[index]
        self._slots[index] = _replace_message(slot, slot.message, slot.tokens - saved)
        self.tokens -= saved
        self.images -= count_images(old)
        self._reduce_bytes(index, _count_bytes(old) - _count_bytes(new))

    def _reduce_bytes(self, index: int, by: int) -> None:
        self._bytes[index] = self._slot_bytes(index) - by
        self.size -= by

    def _slot_bytes(self, index: int) -> int:
        return self._bytes.get(index, len(self._slots[index].message.wire))

    def _remove_slot(self, index: int) -> None:
        slot = self._slots[index]
        self.tokens -= slot.tokens
        if self.images:
            self.images -= sum(map(count_images, self.parts_of(index)))
        self._reduce_bytes(index, self._slot_bytes(index))
        self._parts.pop(index, None)
        self._slots[index] = _replace_message(slot, _replace_parts(slot.message, ()), 0)
        self._removed[index] = True
        self._tokens.pop(index, None)

    def _update_messages(self) -> None:
        """Writes the changed parts into the slots' messages."""
        for index, parts in self._parts.items():
            slot = self._slots[index]
            self._slots[index] = _replace_message(slot, _replace_parts(slot.message, tuple(parts)), slot.tokens)
        self._parts.clear()

    def _summarize(self, step: Summarize) -> None:
        """Replaces the removable slots of a range by one block; the other slots stay around it."""
        removable = [index for index in range(step.first, step.last + 1) if self._removable[index]]
        block_slot = choose_block_slot(self._slots, removable)
        first = min((self._slots[index].first for index in removable), default=WRITTEN_BY_COMPACTION)
        last = max((self._slots[index].last for index in removable), default=WRITTEN_BY_COMPACTION)
        for index in removable:
            if not self._removed[index]:
                self._remove_slot(index)
            self._removable[index] = self._free[index] = False
        if block_slot < 0:
            return
        block = Message(b"", "user", (Text(step.note),), b"")
        self._slots[block_slot] = Slot(block, WRITTEN_BY_COMPACTION, step.budget + MESSAGE, first=first, last=last)
        self._removed[block_slot] = False
        self.tokens += step.budget + MESSAGE
        self._reduce_bytes(block_slot, -(len(step.note.encode()) or 3 * step.budget))
        self.first_changed = min(self.first_changed, *removable)

    # -- tokens of parts -----------------------------------------------------------

    def _divide_tokens(self, slot: Slot, insertion_tokens: int) -> tuple[int, ...]:
        message = slot.message
        if not slot.tokens:
            # The provider ignores this message.
            return (0,) * len(message.parts)
        fixed = [self._count_media(message, at, media_parts(part)) for at, part in enumerate(message.parts)]
        lengths = [_token_weight(part) for part in message.parts]
        rest, total = max(0, slot.tokens - insertion_tokens - MESSAGE - sum(fixed)), sum(lengths) or 1
        return tuple([media + rest * length // total for media, length in zip(fixed, lengths, strict=True)])

    def _count_media(self, message: Message, at: int, media: tuple[Media, ...]) -> int:
        if not media:
            return 0
        # Counts are cached by key, so this part of the message needs its own.
        alone = Message(message.key + b"/media/%d" % at, message.role, media, b"")
        return max(0, round((self.initial_view.count_message(alone) - MESSAGE) * self.initial_view.scale))


def _replace_message(slot: Slot, message: Message, tokens: int) -> Slot:
    """Returns the slot with another message and count. Called often: `replace` takes five times as long."""
    return Slot(message, slot.origin, tokens, slot.is_edited, slot.first, slot.last)


def _replace_parts(message: Message, parts: tuple[Part, ...]) -> Message:
    return Message(message.key, message.role, parts, message.wire, message.cache_breakpoints)


def _count_bytes(part: Part) -> int:
    """Estimates the bytes of a part within the request; media are sent as base64."""
    inline = sum(media.size * 4 // 3 for media in media_parts(part))
    if isinstance(part, ToolCall):
        return inline + len(part.arguments.encode()) + _PART_JSON_BYTES
    if isinstance(part, Reasoning):
        return len(part.text.encode()) + part.encrypted_size + _PART_JSON_BYTES
    if isinstance(part, Opaque):
        return part.size
    return inline + len(text_of(part).encode()) + _PART_JSON_BYTES


def _token_weight(part: Part) -> int:
    """Returns a part's share of its message's tokens without media, in characters of text."""
    if isinstance(part, Text):
        return len(part.text)
    if isinstance(part, Reasoning):
        return max(len(part.text), part.encrypted_size * 3 // 4 - SEALED_ENVELOPE)
    if isinstance(part, ToolCall):
        return len(part.name) + len(part.arguments) + 20
    if isinstance(part, ToolResult):
        return sum(_token_weight(inner) for inner in part.parts) + 12
    if isinstance(part, Opaque):
        return part.size - sum(part.runs) + _IMAGE_CHARACTERS * len(part.runs)
    return 0


# -- planning ----------------------------------------------------------------------------------------------------------


_SUFFICIENT_GAIN = 0.25
"""A mid-generation plan that gains this share is used without planning at conversation level."""
_WIDER_GAIN_FACTOR = 2.0
"""A conversation-level plan must gain this many times as much to be used instead."""

_MAX_STEPS_PER_PART, _MORE_STEPS = 2, 1_000
"""Maximum number of steps in one proposal: this many for each part of the history, plus a constant."""

_ESTIMATE_FACTOR = 4
"""An announced count of tokens is plausible if it is at most this many times larger or smaller than the estimate."""

_WRITTEN_FACTOR, _MORE_WRITTEN_TOKENS = 8, 200
"""Maximum estimate of a deferred text: this many times the announced tokens, plus a constant."""


class Planner:
    """Plans compactions with the strategies of `pipeline`, in their order. Deterministic; logs each failure once.

    The strategies for the byte and image limits always run; `pipeline` may contain them to set their options.
    """

    def __init__(self, pipeline: Sequence[Strategy]) -> None:
        self._token_strategies = select_for_tokens(pipeline)
        self._other_limit_strategies = select_for_other_limits(pipeline)
        self._logged_failures: set[tuple[str, str]] = set()

    def plan(self, view: StrategyView, *, must_succeed: bool) -> Plan:
        """Plans the steps that bring the history down to the view's target. No proposals if there is nothing to do.

        `must_succeed`: the request must come under the view's limit; as the last resort protected parts are sliced.
        """
        if view.delegations_by_call and not any(each.handles_delegations for each in self._token_strategies):
            # Without such a strategy, results of sub-agents are results like any other.
            view = replace(view, delegations_by_call={})
        pipeline, other_limits = self._token_strategies, self._other_limit_strategies
        if view.form == "whole":
            pipeline = select_whole_groups(pipeline)
            view = _lower_target(view, other_limits)
        while True:
            try:
                return _plan(view, pipeline, other_limits, must_succeed=must_succeed)
            except _StrategyFailed as failure:
                self._log_failure(failure)
                pipeline, other_limits = (
                    tuple(each for each in strategies if each.name != failure.strategy)
                    for strategies in (pipeline, other_limits)
                )

    def plan_first_fitting(
        self,
        build_view: Callable[[CompactionKind], StrategyView],
        kinds: Sequence[CompactionKind],
        *,
        must_succeed: bool,
    ) -> tuple[Plan, int]:
        """Returns a plan of the first of `kinds` that comes under the limit, and how often the pipeline ran.

        `("generation", "conversation")` escalates a mid-generation compaction. It also escalates if the first kind
        gains little and the second at least twice as much: otherwise each request would soon be compacted again. Only
        the last kind may use the last resort.
        """
        narrower: Plan | None = None
        for strategy_runs, kind in enumerate(kinds[:-1], 1):
            view = build_view(kind)
            plan = self.plan(view, must_succeed=False)
            if plan.after <= view.limit:
                if _gain_share(plan) >= _SUFFICIENT_GAIN:
                    return plan, strategy_runs
                narrower = narrower or plan
        widest = self.plan(build_view(kinds[-1]), must_succeed=must_succeed)
        if narrower is not None and _gain_share(widest) < _WIDER_GAIN_FACTOR * _gain_share(narrower):
            return narrower, len(kinds)
        return widest, len(kinds)

    def _log_failure(self, failure: _StrategyFailed) -> None:
        key = (failure.strategy, failure.reason)
        if key not in self._logged_failures:
            self._logged_failures.add(key)
            _log.error("the strategy %s failed and is skipped: %s", *key)


def _plan(
    view: StrategyView, pipeline: Sequence[Strategy], other_limits: Sequence[Strategy], *, must_succeed: bool
) -> Plan:
    """Makes a plan with these strategies. Raises _StrategyFailed for the first one that fails."""
    run = _run_pipeline(_PlanRun(view), pipeline)
    if run.has_summary and any(each.is_restorable for each in pipeline):
        # The summary now covers most of the archived results, so the remaining ones had better stay whole.
        run_with_results = _run_pipeline(_PlanRun(view), [each for each in pipeline if not each.is_restorable])
        if run_with_results.state.tokens <= max(view.target, run.state.tokens):
            run = run_with_results
    _apply_other_limits(run, other_limits)
    if must_succeed and run.state.tokens > view.limit:
        run = _apply_last_resort(run, pipeline, other_limits)
    return Plan(view, run.build_proposals())


def _run_pipeline(run: _PlanRun, pipeline: Iterable[Strategy]) -> _PlanRun:
    """Runs the strategies until the target is met, and those that ignore it in any case."""
    for strategy in pipeline:
        target = -1 if strategy.ignores_target else run.state.initial_view.target
        if run.state.tokens > target:
            name = WHOLE_GROUPS if run.state.initial_view.form == "whole" else strategy.name
            run.apply_steps(name, _propose_steps(strategy, run.current_view()), target=target)
    return run


def _lower_target(view: StrategyView, other_limits: Iterable[Strategy]) -> StrategyView:
    """Returns the view with a target at which the groups leave that are over the limits of images and bytes."""
    targets = [view.target]
    for strategy in other_limits:
        if view.is_exceeded(strategy.budget):
            targets.append(view.tokens - sum(map(view.count_group_tokens, _find_oldest_groups(view, strategy.budget))))
    return replace(view, target=min(targets))


def _apply_other_limits(run: _PlanRun, strategies: Iterable[Strategy]) -> None:
    for strategy in strategies:
        view = run.current_view()
        if view.form == "whole" and view.is_exceeded(strategy.budget):
            run.apply_steps(WHOLE_GROUPS, tuple(_drop_oldest_groups(view, strategy.budget)))
        if (view := run.current_view()).is_exceeded(strategy.budget):
            run.apply_steps(strategy.name, _propose_steps(strategy, view), last_resort=True)


def _apply_last_resort(run: _PlanRun, pipeline: Sequence[Strategy], other_limits: Sequence[Strategy]) -> _PlanRun:
    """Applies the last resort: removes the oldest groups; if that is not enough, replaces all removable messages, this
    plan's summary included, by one note; if that is not enough either, slices the largest parts."""
    limit = run.state.initial_view.limit
    name = WHOLE_GROUPS if run.state.initial_view.form == "whole" else LAST_RESORT
    run.apply_steps(name, tuple(_drop_oldest_groups(run.current_view(), "tokens")))
    if run.state.tokens <= limit:
        return run
    run_with_note = _PlanRun(run.state.initial_view)
    run_with_note.apply_steps(name, tuple(_replace_with_note(run_with_note.current_view())))
    _apply_other_limits(_run_pipeline(run_with_note, pipeline), other_limits)
    if run_with_note.state.tokens <= limit:
        return run_with_note
    # The newest batch is sliced in both cases, and a summary is worth its few tokens.
    run.apply_steps(LAST_RESORT, tuple(_slice_largest_parts(run.current_view())), last_resort=True)
    return run


def _gain_share(plan: Plan) -> float:
    """Returns the share of the tokens that a plan removes."""
    return 1 - plan.after / max(1, plan.view.tokens)


class _AppliedSteps(NamedTuple):
    """The steps of one strategy that were applied: tokens of the whole request before and after them."""

    strategy: str
    steps: list[ProposedStep]
    before: int
    after: int


class _PlanRun:
    """One plan under construction."""

    def __init__(self, view: StrategyView) -> None:
        self.state = PlanState(view)
        self._is_thinking_bound = view.thinking == "bound"
        self._has_unwritten_summary = False
        self._applied_steps: list[_AppliedSteps] = []

    def current_view(self) -> StrategyView:
        """Returns the history as the strategies so far left it."""
        return self.state.current_view()

    def apply_steps(
        self, name: str, steps: Sequence[ProposedStep], *, target: int = -1, last_resort: bool = False
    ) -> None:
        """Applies the legal ones of a strategy's steps, until at most `target` tokens are left."""
        if not steps:
            return
        before, applied = self.state.tokens, list[ProposedStep]()
        for unit in filter_steps(self.current_view(), steps, last_resort=last_resort):
            if target >= 0 and self.state.tokens <= target:
                break
            if _is_unwritten_summary(unit[0]):
                # One text is written for a plan.
                if self._has_unwritten_summary:
                    continue
                self._has_unwritten_summary = True
            for step in unit:
                self.state.apply(step)
            applied += unit
        if applied and self._is_thinking_bound:
            applied += self._drop_bound_thinking()
        if applied:
            self._applied_steps.append(_AppliedSteps(name, applied, before, self.state.tokens))

    @property
    def has_summary(self) -> bool:
        """Whether a range of messages was replaced by one block of text."""
        return any(isinstance(step, Summarize) for each in self._applied_steps for step in each.steps)

    def build_proposals(self) -> tuple[Proposal, ...]:
        """Returns the applied steps that later steps did not undo, by strategy. Writes the deferred texts."""
        final: dict[tuple[int, int], ProposedStep] = {}
        for each in self._applied_steps:
            replaced = [step for step in each.steps if isinstance(step, Replace | DeferredReplace)]
            final |= {(step.slot, step.part): step for step in replaced}
        proposals: list[Proposal] = []
        before = self._applied_steps[0].before if self._applied_steps else 0
        for each in self._applied_steps:
            steps = (step for step in each.steps if self._is_still_valid(step, final))
            if valid := tuple(_write_text(each.strategy, step) for step in steps):
                proposals.append(Proposal(each.strategy, valid, before, each.after))
                before = each.after
        return _merge_proposals(proposals)

    def _is_still_valid(self, step: ProposedStep, final: dict[tuple[int, int], ProposedStep]) -> bool:
        """Whether no later step removed the replaced part or replaced it again."""
        if not isinstance(step, Replace | DeferredReplace):
            return True
        return (
            not self.state.is_removed(step.slot)
            and not self._is_in_summary(step.slot)
            and final[step.slot, step.part] is step
        )

    def _is_in_summary(self, slot: int) -> bool:
        """Whether a block of text took the place of the client's message."""
        return self.state.origin_of(slot) != self.state.initial_view.slots[slot].origin

    def _drop_bound_thinking(self) -> list[PlanStep]:
        """Drops the thinking after the first change: it is bound to its former prefix, and would be refused. A newly
        offered tool changes the prefix of all messages."""
        view = self.current_view()
        steps: list[PlanStep] = []
        for index in range(0 if view.is_tool_new else self.state.first_changed, len(view.slots)):
            parts = view.slots[index].message.parts
            reasoning = tuple(at for at, part in enumerate(parts) if isinstance(part, Reasoning))
            if reasoning and not view.removed[index]:
                steps.append(Drop(index, reasoning))
                self.state.apply(steps[-1])
        return steps


def _write_text(strategy: str, step: ProposedStep) -> PlanStep:
    return _write_deferred_text(strategy, step) if isinstance(step, DeferredReplace) else step


def _is_unwritten_summary(step: ProposedStep) -> bool:
    return isinstance(step, Summarize) and not step.note


def _merge_proposals(proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """Merges consecutive proposals of one strategy."""
    merged: list[Proposal] = []
    for each in proposals:
        if merged and merged[-1].strategy == each.strategy:
            merged[-1] = replace(merged[-1], steps=merged[-1].steps + each.steps, after=each.after)
        else:
            merged.append(each)
    return tuple(merged)


# -- proposals ---------------------------------------------------------------------------------------------------------


class _StrategyFailed(Exception):
    """A strategy raised an error or returned something unusable. `strategy` is its name, `reason` has no content of the
    conversation."""

    def __init__(self, strategy: str, reason: str) -> None:
        super().__init__(f"{strategy}: {reason}")
        self.strategy, self.reason = strategy, reason


def _propose_steps(strategy: Strategy, view: StrategyView) -> list[ProposedStep]:
    """Returns a strategy's well-formed steps. Raises _StrategyFailed."""
    max_steps = _MORE_STEPS + _MAX_STEPS_PER_PART * sum(len(slot.message.parts) for slot in view.slots)
    try:
        proposed = list(islice(strategy.propose(view), max_steps + 1))
    except (Exception, SystemExit) as error:
        # The error's message may quote the conversation.
        raise _StrategyFailed(strategy.name, type(error).__name__) from error
    if len(proposed) > max_steps:
        raise _StrategyFailed(strategy.name, f"more than {max_steps:,} steps")
    steps = (_plausible_step(strategy, view, step) for step in proposed)
    return [step for step in steps if step is not None]


def _write_deferred_text(strategy: str, step: DeferredReplace) -> Replace:
    """Returns a deferred step with its text. Raises _StrategyFailed."""
    try:
        text = step.render_text()
    except (Exception, SystemExit) as error:
        raise _StrategyFailed(strategy, type(error).__name__) from error
    if not _is_text(text) or not text.strip():
        raise _StrategyFailed(strategy, "a deferred step has no text")
    tokens = estimate_tokens(text)
    if tokens > _WRITTEN_FACTOR * step.tokens + _MORE_WRITTEN_TOKENS:
        raise _StrategyFailed(strategy, "a deferred text is far longer than announced")
    return Replace(step.slot, step.part, text, tokens)


def _plausible_step(strategy: Strategy, view: StrategyView, step: object) -> ProposedStep | None:
    """Returns a well-formed step, with an estimated count if the announced one is implausible; else None."""
    if type(step) is Drop:
        is_valid = _is_whole_number(step.slot) and type(step.parts) is tuple and all(map(_is_whole_number, step.parts))
        return step if is_valid else None
    if type(step) is Replace:
        return _plausible_replacement(strategy, view, step)
    if type(step) is DeferredReplace:
        is_valid = _has_position(view, step) and callable(step.render_text) and _is_whole_number(step.tokens)
        return step if is_valid and step.tokens > 0 and _is_worthwhile(strategy, view, step) else None
    return _plausible_summary(strategy, step) if type(step) is Summarize else None


def _plausible_replacement(strategy: Strategy, view: StrategyView, step: Replace) -> Replace | None:
    if not (_has_position(view, step) and _is_text(step.text) and _is_whole_number(step.tokens)):
        return None
    plausible = replace(step, tokens=_plausible_tokens(step.text, step.tokens))
    has_content = bool(step.text.strip()) or _is_result(view, step)
    return plausible if has_content and _is_worthwhile(strategy, view, plausible) else None


def _plausible_summary(strategy: Strategy, step: Summarize) -> Summarize | None:
    if not all(map(_is_whole_number, (step.first, step.last, step.budget))) or not _is_text(step.note):
        return None
    if step.note:
        return replace(step, budget=_plausible_tokens(step.note, step.budget)) if step.note.strip() else None
    return step if strategy.summary_model is not None else None


def _plausible_tokens(text: str, announced: int) -> int:
    estimate = estimate_tokens(text)
    return announced if estimate <= announced * _ESTIMATE_FACTOR <= estimate * _ESTIMATE_FACTOR**2 else estimate


def _is_worthwhile(strategy: Strategy, view: StrategyView, step: Replace | DeferredReplace) -> bool:
    """Whether a replacement is shorter than the part. One for another limit may be somewhat longer; of protected
    messages it replaces only media and results."""
    tokens = view.count_part_tokens(step.slot)[step.part]
    if strategy.budget == "tokens":
        return step.tokens < tokens
    is_permitted = view.free[step.slot] or not isinstance(view.slots[step.slot].message.parts[step.part], Text)
    return is_permitted and step.tokens <= 2 * tokens + 500


def _is_result(view: StrategyView, step: Replace) -> bool:
    return isinstance(view.slots[step.slot].message.parts[step.part], ToolResult)


def _has_position(view: StrategyView, step: Replace | DeferredReplace) -> bool:
    return (
        _is_whole_number(step.slot)
        and _is_whole_number(step.part)
        and 0 <= step.slot < len(view.slots)
        and 0 <= step.part < len(view.slots[step.slot].message.parts)
    )


def _is_whole_number(value: object) -> bool:
    return type(value) is int


def _is_text(value: object) -> bool:
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- the last resort ---------------------------------------------------------------------------------------------------


LAST_RESORT = "last_resort"
"""The name of these steps in plans and in the records of compactions."""

_MIN_SLICE_TOKENS = 200
"""Minimum number of tokens that remain of a sliced part."""

_SLICE_SAFETY = 0.95
"""Factor on the characters that would fit by a part's average tokens per character, which vary within it."""


def _drop_oldest_groups(view: StrategyView, budget: Budget) -> Iterator[PlanStep]:
    """Leaves out the oldest groups, as many as a limit requires."""
    groups = _find_oldest_groups(view, budget)
    yield from replace_groups_before(view, groups[-1][1] + 1 if groups else 0)


def _find_oldest_groups(view: StrategyView, budget: Budget) -> list[tuple[int, int]]:
    """Returns the oldest removable groups that are over the limit of tokens; or over half of that of images or bytes,
    so that the next message does not exceed it, and none if all of them are not enough."""
    groups, found = view.removable_groups(), list[tuple[int, int]]()
    if budget == "tokens":
        # The note in their place counts too.
        excess, count = view.tokens - view.limit + estimate_tokens("." * 250), view.count_group_tokens
    else:
        count = partial(_count_group_images if budget == "images" else _count_group_bytes, view)
        size, limit = (view.images, view.max_images) if budget == "images" else (view.body_size, view.max_body_size)
        excess = size - max(1, limit // 2) if size - sum(map(count, groups)) <= limit else 0
    for group in groups:
        if excess <= 0:
            break
        excess -= count(group)
        found.append(group)
    return found


def _count_group_images(view: StrategyView, group: tuple[int, int]) -> int:
    return sum(count_images(part) for slot in view.slots[group_slice(group)] for part in slot.message.parts)


def _count_group_bytes(view: StrategyView, group: tuple[int, int]) -> int:
    return sum(len(slot.message.wire) for slot in view.slots[group_slice(group)])


def _replace_with_note(view: StrategyView) -> Iterator[PlanStep]:
    """Replaces all removable messages by one note. Its tokens are counted, not estimated: here few of them matter."""
    for step in replace_groups_before(view, len(view.slots)):
        # Counts are cached by key.
        note = Message(b"note/" + step.note.encode(), "user", (Text(step.note),), b"")
        yield replace(step, budget=max(1, ceil(view.count_message(note) * view.scale) - MESSAGE))


def _slice_largest_parts(view: StrategyView) -> Iterator[Replace]:
    """Slices the largest reachable parts until the rest fits: first of the newest batch, last of the task."""
    excess = view.tokens - view.limit
    for _, negative_tokens, slot, part in sorted(_list_sliceable_parts(view)):
        if excess <= 0:
            return
        tokens = -negative_tokens
        step = _slice_part(view, slot, part, tokens, excess)
        if step is not None:
            excess -= tokens - step.tokens
            yield step


def _list_sliceable_parts(view: StrategyView) -> Iterator[tuple[int, int, int, int]]:
    """Yields (rank, negative tokens, slot, part) of the parts that are large enough."""
    for index, slot in enumerate(view.slots):
        if view.removed[index] or not view.reachable[index]:
            continue
        rank = {view.opening_request: 2, view.task: 3}.get(index, 0 if index >= view.newest_batch else 1)
        for at, part in enumerate(slot.message.parts):
            is_sliceable = isinstance(part, ToolResult) or slot.message.role == "user"
            if (
                is_sliceable
                and view.is_replaceable(index, at)
                and (tokens := view.count_part_tokens(index)[at]) > _MIN_SLICE_TOKENS
            ):
                yield rank, -tokens, index, at


def _slice_part(view: StrategyView, slot: int, part: int, tokens: int, excess_tokens: int) -> Replace | None:
    message = view.slots[slot].message
    content = message.parts[part]
    if media_parts(content):
        step = replace_with_reference(view, slot, part)
        return step if step.tokens < tokens else None
    text, artifact = text_of(content), view.artifact_id_of(slot, part)
    frame_tokens = estimate_tokens(sliced_text("", "", artifact, len(text)))
    room = max(_MIN_SLICE_TOKENS, tokens - excess_tokens) - frame_tokens
    characters = int(room * _SLICE_SAFETY * len(text) / tokens)
    if not 0 < characters < len(text):
        return None
    head = characters * 2 // 3
    tail = text[len(text) - (characters - head) :]
    return Replace(slot, part, sliced_text(text[:head], tail, artifact, len(text) - characters), room + frame_tokens)
