"""From a view to a plan: strategies propose in order, each on what the one before left, until the target is met."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from accordion.compaction import last_resort
from accordion.compaction.permits import permitted
from accordion.compaction.sketch import Sketch
from accordion.compaction.strategies.base import Archive, Draft, Strategy, estimated
from accordion.compaction.strategies.body import Body, BodyOptions
from accordion.compaction.strategies.compact_tool_results import CompactToolResults
from accordion.compaction.strategies.delegated_digests import DelegatedDigests
from accordion.compaction.strategies.images import Images, ImagesOptions
from accordion.core.conversation import Reasoning
from accordion.core.plan import Drop, Kind, Plan, Proposal, Replace, Step, Summarize
from accordion.core.values import replace

_log = logging.getLogger("accordion")

_WORTH, _AHEAD = 0.25, 2.0
"""The share that a mid-generation fold must gain to be made without a look at what a wider one would; and how many
times as much that must gain to be made instead."""

_Steps = Sequence[Step | Archive]


class Planner:
    """Plans folds with the strategies of `pipeline`, in their order. Deterministic, and without state.

    The strategies for the two budgets beside tokens are always there; where the pipeline names them it gives their
    options.
    """

    def __init__(self, pipeline: Sequence[Strategy]) -> None:
        self._tokens = tuple(each for each in pipeline if not isinstance(each, Images | Body))
        beside = {each.name: each for each in pipeline if isinstance(each, Images | Body)}
        self._beside: tuple[Strategy, ...] = (
            beside.get(Images.name) or Images(ImagesOptions()),
            beside.get(Body.name) or Body(BodyOptions()),
        )

    def plan(self, view: Draft, *, must_succeed: bool) -> Plan:
        """What is to be done to come down to the view's target; no proposals where there is nothing to do.

        `must_succeed`: the request must come under the view's limit, and as the last resort what is not free is
        sliced for it.
        """
        if view.begun and not any(isinstance(each, DelegatedDigests) for each in self._tokens):
            # Then what sub-agents returned is a result like any other.
            view = replace(view, begun={})
        run = _ran(_Run(view), self._tokens)
        if run.summarized and any(map(_restorable, self._tokens)):
            # Most of what was archived is now behind the summary. What stays verbatim had better stay whole.
            whole = _ran(_Run(view), [each for each in self._tokens if not _restorable(each)])
            run = whole if whole.sketch.tokens <= max(view.target, run.sketch.tokens) else run
        self._take_beside(run)
        if must_succeed and run.sketch.tokens > view.limit:
            run = self._least(run)
        return Plan(view, run.proposals())

    def plan_for(self, view: Callable[[Kind], Draft], kinds: Sequence[Kind], *, must_succeed: bool) -> tuple[Plan, int]:
        """A plan of the first of `kinds` that comes under the limit, and how often the pipeline ran for it.

        A mid-generation fold escalates so: `("generation", "conversation")`; also where it would gain little and the
        wider one twice as much, or each request would soon be folded again. The last resort is the last kind's.
        """
        narrower: Plan | None = None
        for passes, kind in enumerate(kinds[:-1], 1):
            plan = self.plan(viewed := view(kind), must_succeed=False)
            if plan.after <= viewed.limit:
                if _gain(plan) >= _WORTH:
                    return plan, passes
                narrower = narrower or plan
        widest = self.plan(view(kinds[-1]), must_succeed=must_succeed)
        if narrower is not None and _gain(widest) < _AHEAD * _gain(narrower):
            return narrower, len(kinds)
        return widest, len(kinds)

    def _take_beside(self, run: _Run) -> None:
        for strategy in self._beside:
            run.take(strategy.name, _proposed(strategy, run.draft()), beyond=True)

    def _least(self, run: _Run) -> _Run:
        """The last resort: what may leave leaves; else one note stands for all of it, a summary of this very plan
        included; and only where that would not be enough is anything sliced."""
        limit = run.sketch.start.limit
        run.take(last_resort.NAME, tuple(last_resort.leaving(run.draft())))
        if run.sketch.tokens <= limit:
            return run
        noted = _Run(run.sketch.start)
        noted.take(last_resort.NAME, tuple(last_resort.noted(noted.draft())))
        self._take_beside(_ran(noted, self._tokens))
        if noted.sketch.tokens <= limit:
            return noted
        # Something of the newest batch goes either way; then what a summary says is worth more than its few tokens.
        run.take(last_resort.NAME, tuple(last_resort.slices(run.draft())), beyond=True)
        return run


def _ran(run: _Run, pipeline: Iterable[Strategy]) -> _Run:
    """The run with the pipeline, until the target is met."""
    target = run.sketch.start.target
    for strategy in pipeline:
        if run.sketch.tokens <= target:
            break
        run.take(strategy.name, _proposed(strategy, run.draft()), until=target)
    return run


def _gain(plan: Plan) -> float:
    """The share of a list that a plan takes away."""
    return 1 - plan.after / max(1, plan.view.tokens)


def _restorable(strategy: Strategy) -> bool:
    """Whether it only moves results out of the way, which a summary may make needless."""
    return isinstance(strategy, DelegatedDigests) or (isinstance(strategy, CompactToolResults) and strategy.refers)


def _proposed(strategy: Strategy, draft: Draft) -> _Steps:
    """A strategy that fails proposes nothing; the others go on."""
    try:
        return tuple(strategy.propose(draft))
    except Exception as error:
        # What it says may quote the conversation.
        _log.error("the strategy %s failed and is skipped: %s", strategy.name, type(error).__name__)
        return ()


class _Run:
    """One plan in the making."""

    def __init__(self, view: Draft) -> None:
        self.sketch = Sketch(view)
        self._bound = view.thinking == "bound"
        self._taken: list[tuple[str, list[Step | Archive], int, int]] = []

    def draft(self) -> Draft:
        """The list as the strategies so far left it."""
        return self.sketch.draft()

    def take(self, name: str, steps: _Steps, *, until: int = -1, beyond: bool = False) -> None:
        """Does of a strategy's steps what is permitted, until so many tokens are left."""
        if not steps:
            return
        before, done = self.sketch.tokens, list[Step | Archive]()
        for unit in permitted(self.draft(), steps, beyond=beyond):
            if until >= 0 and self.sketch.tokens <= until:
                break
            for step in unit:
                self.sketch.apply(step)
            done += unit
        if done and self._bound:
            done += self._unbind()
        if done:
            self._taken.append((name, done, before, self.sketch.tokens))

    @property
    def summarized(self) -> bool:
        """Whether a stretch of the list was replaced by one block."""
        return any(isinstance(step, Summarize) for _, steps, _, _ in self._taken for step in steps)

    def proposals(self) -> tuple[Proposal, ...]:
        """What was done, of each strategy what is still to be seen of it; texts that were put off are written now."""
        final: dict[tuple[int, int], Step | Archive] = {}
        for _, steps, _, _ in self._taken:
            final |= {(step.slot, step.part): step for step in steps if isinstance(step, Replace | Archive)}
        proposals: list[Proposal] = []
        before = self._taken[0][2] if self._taken else 0
        for name, steps, _, after in self._taken:
            if kept := tuple(self._written(step) for step in steps if self._stands(step, final)):
                proposals.append(Proposal(name, kept, before, after))
                before = after
        return _merged(proposals)

    def _stands(self, step: Step | Archive, final: dict[tuple[int, int], Step | Archive]) -> bool:
        """Whether a step is not undone by a later one: what was replaced has since left, or was replaced anew."""
        if not isinstance(step, Replace | Archive):
            return True
        return (
            not self.sketch.gone(step.slot) and not self._swallowed(step.slot) and final[step.slot, step.part] is step
        )

    def _swallowed(self, slot: int) -> bool:
        """Whether a block stands at a slot that was the client's."""
        return self.sketch.origin(slot) != self.sketch.start.slots[slot].origin

    def _written(self, step: Step | Archive) -> Step:
        if not isinstance(step, Archive):
            return step
        text = step.write()
        return Replace(step.slot, step.part, text, estimated(text))

    def _unbind(self) -> list[Step]:
        """Drops thinking behind the first change: it is bound to what stood before, and would be refused. Our tool
        stands before all of the list."""
        draft = self.draft()
        steps: list[Step] = []
        for index in range(0 if draft.afresh else self.sketch.first, len(draft.slots)):
            parts = draft.slots[index].message.parts
            thoughts = tuple(at for at, part in enumerate(parts) if isinstance(part, Reasoning))
            if thoughts and not draft.gone[index]:
                steps.append(Drop(index, thoughts))
                self.sketch.apply(steps[-1])
        return steps


def _merged(proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """Proposals of one name that follow each other as one."""
    out: list[Proposal] = []
    for each in proposals:
        if out and out[-1].strategy == each.strategy:
            out[-1] = replace(out[-1], steps=out[-1].steps + each.steps, after=each.after)
        else:
            out.append(each)
    return tuple(out)
