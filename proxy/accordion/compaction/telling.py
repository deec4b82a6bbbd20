"""What is told of a fold: on the response, in the ledger, in metrics, in traces. Always the same record."""

from __future__ import annotations

from typing import Any

from accordion.core.budget import Decision
from accordion.core.edits import Cause, Compaction
from accordion.core.plan import Plan
from accordion.core.records import CompactionSeen

FAILURES = ("put_off", "too_little", "nothing_to_fold", "illegal", "unwritable", "store", "internal", "other")
"""Why folds fail, for who counts: a fixed set of words."""

_FAILURES = (
    ("not tried again under", "put_off"),
    ("internal error", "internal"),
    ("would gain only", "too_little"),
    ("would not be shorter", "too_little"),
    ("no message may be compacted", "nothing_to_fold"),
    ("no message would be left", "nothing_to_fold"),
    ("would be invalid", "illegal"),
    ("cannot be edited this way", "unwritable"),
    ("no replacement text", "unwritable"),
    ("the store", "store"),
    ("Redis", "store"),
    ("SQLite", "store"),
)
"""Words that a reason holds, and what it is counted as; the first that is found."""


def seen_of(compaction: Compaction, state: str, decision: Decision | None = None, passes: int = 1) -> CompactionSeen:
    """A compaction as it is told: `folded` where it was made for this request, by `decision`, in so many passes of the
    pipeline; else `replayed`. What it saves is counted against the client's own list in both."""
    return CompactionSeen(
        state=state,
        id=compaction.id,
        triggered=decision is not None,
        kind=compaction.kind,
        trigger=decision.trigger if decision is not None else 0,
        cause=compaction.cause,
        utilization=compaction.utilization,
        steps=tuple((step.compactor, step.before, step.after) for step in compaction.steps),
        passes=passes if decision is not None else 0,
        before=compaction.before,
        after=compaction.after,
        generation=compaction.generation,
        writer=compaction.writer,
        input=compaction.input,
        output=compaction.output,
        saved=compaction.removed,
        reason=decision.reason if decision is not None else "",
        artifacts=len(compaction.artifacts),
    )


def observed(
    plan: Plan, decision: Decision, cause: Cause, utilization: float | None, passes: int, brought: int = 0
) -> CompactionSeen:
    """A plan that is only reported. A summary is counted by its budget; nothing is saved. `brought` tokens of what the
    plan counts are not in the request yet."""
    return CompactionSeen(
        state="observed",
        triggered=True,
        kind=plan.view.kind,
        trigger=decision.trigger,
        cause=cause,
        utilization=utilization,
        steps=tuple((each.strategy, each.before, each.after) for each in plan.proposals),
        passes=passes,
        before=plan.view.tokens - brought,
        after=plan.after,
        reason=decision.reason,
    )


def failed(
    decision: Decision,
    cause: Cause,
    utilization: float | None,
    tokens: int,
    reason: str,
    in_force: Compaction | None = None,
) -> CompactionSeen:
    """A fold that was wanted and could not be made; the request stays as it was, of so many tokens. What an earlier
    fold that is `in_force` saves is still saved."""
    return CompactionSeen(
        state="failed",
        triggered=True,
        kind=decision.kind,
        trigger=decision.trigger,
        cause=cause,
        utilization=utilization,
        before=tokens,
        after=tokens,
        saved=in_force.removed if in_force is not None else 0,
        reason=reason,
    )


def utilization_of(decision: Decision, ratio: float) -> float | None:
    """The occupied share as it is told: four decimals, or None where the trigger was 0.0."""
    return None if decision.trigger == 0 else round(ratio, 4)


def in_force(seen: CompactionSeen | None) -> bool:
    """Whether what was forwarded is a folded list."""
    return seen is not None and (seen.state in ("folded", "replayed") or seen.saved > 0)


def record_of(seen: CompactionSeen) -> dict[str, Any]:
    """The record as people and programs read it (docs/figures.md), of types that JSON has."""
    return {
        "state": seen.state,
        "triggered": seen.triggered,
        "utilization": seen.utilization,
        "steps": [{"compactor": name, "before": before, "after": after} for name, before, after in seen.steps],
        "passes": seen.passes,
        "kind": seen.kind,
        "trigger": seen.trigger,
        "cause": seen.cause,
        "before": seen.before,
        "after": seen.after,
        "saved": seen.saved,
        "generation": seen.generation,
        "id": seen.id,
        "writer": seen.writer,
        "summary_input": seen.input,
        "summary_output": seen.output,
        "summary_failed_answers": seen.failed_answers,
        "summary_failed_input": seen.failed_input,
        "summary_failed_output": seen.failed_output,
        "artifacts": seen.artifacts,
        "reason": seen.reason,
    }


def failure_of(reason: str) -> str:
    """What a failure is counted as, one of FAILURES; its reason is free text."""
    return next((name for words, name in _FAILURES if words in reason), "other")
