"""Builds the outcome of a compaction: one record for response headers, ledger, metrics and traces."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from accordion.model.budget import Decision, Utilization
from accordion.model.compaction import Cause, Compaction
from accordion.model.records import CompactionOutcome, FailureKind


def report_compaction(
    compaction: Compaction, state: str, decision: Decision | None = None, strategy_runs: int = 1
) -> CompactionOutcome:
    """Builds the outcome of a compaction. `state` is `compacted` if it was made for this request by `decision`, in
    `passes` runs of the pipeline, else `replayed`. Savings are relative to the client's own history in both cases."""
    return CompactionOutcome(
        state=state,
        id=compaction.id,
        is_triggered=decision is not None,
        kind=compaction.kind,
        trigger=decision.trigger if decision is not None else 0,
        cause=compaction.cause,
        utilization=compaction.utilization,
        steps=tuple((step.strategy, step.before, step.after) for step in compaction.steps),
        strategy_runs=strategy_runs if decision is not None else 0,
        before=compaction.before,
        after=compaction.after,
        generation=compaction.generation,
        writer=compaction.writer,
        input=compaction.input,
        output=compaction.output,
        saved=compaction.tokens_saved,
        reason=decision.reason if decision is not None else "",
        artifacts=len(compaction.artifacts),
    )


def report_dry_run(outcome: CompactionOutcome | None) -> CompactionOutcome | None:
    """Builds the report on a compaction that was tried in a dry run; None if nothing would be done.

    It has the figures of the compaction, but no id, since nothing is stored, and saves nothing. If the compaction would
    fail, the report names the failure. A summary that a model would write is an estimate: an extract took its place.
    """
    if outcome is None or outcome.state == "holdout":
        return None
    return replace(outcome, state="observed", id="", saved=0, artifacts=0)


def report_failure(
    decision: Decision,
    cause: Cause,
    utilization: float | None,
    tokens: int,
    failure: FailureKind,
    reason: str,
    in_force: Compaction | None = None,
) -> CompactionOutcome:
    """Builds the outcome of a failed compaction; the request of `tokens` is unchanged. The savings of an earlier
    compaction that is `in_force` still count."""
    return CompactionOutcome(
        state="failed",
        is_triggered=True,
        kind=decision.kind,
        trigger=decision.trigger,
        cause=cause,
        utilization=utilization,
        before=tokens,
        after=tokens,
        saved=in_force.tokens_saved if in_force is not None else 0,
        failure=failure,
        reason=reason,
    )


def report_holdout(decision: Decision, utilization: Utilization) -> CompactionOutcome:
    """Builds the outcome of a compaction that is due and not made, because of the hold-out."""
    return CompactionOutcome(
        state="holdout",
        is_triggered=True,
        kind=decision.kind,
        trigger=decision.trigger,
        utilization=utilization_for_report(decision, utilization.ratio),
        before=utilization.tokens,
        after=utilization.tokens,
        reason=decision.reason,
    )


def utilization_for_report(decision: Decision, ratio: float) -> float | None:
    """Rounds the occupied share to four decimals; None if the trigger was 0.0."""
    return None if decision.trigger == 0 else round(ratio, 4)


def is_in_force(outcome: CompactionOutcome | None) -> bool:
    """Whether a compacted history was forwarded."""
    return outcome is not None and (outcome.state in ("compacted", "replayed") or outcome.saved > 0)


def describe_outcome(outcome: CompactionOutcome) -> dict[str, Any]:
    """Converts an outcome to JSON types for people and programs (docs/figures.md)."""
    return {
        "state": outcome.state,
        "triggered": outcome.is_triggered,
        "utilization": outcome.utilization,
        "steps": [{"compactor": name, "before": before, "after": after} for name, before, after in outcome.steps],
        "passes": outcome.strategy_runs,
        "kind": outcome.kind,
        "trigger": outcome.trigger,
        "cause": outcome.cause,
        "before": outcome.before,
        "after": outcome.after,
        "saved": outcome.saved,
        "generation": outcome.generation,
        "id": outcome.id,
        "writer": outcome.writer,
        "summary_input": outcome.input,
        "summary_output": outcome.output,
        "summary_failed_answers": outcome.failed_answers,
        "summary_failed_input": outcome.failed_input,
        "summary_failed_output": outcome.failed_output,
        "artifacts": outcome.artifacts,
        "failure": outcome.failure,
        "reason": outcome.reason,
    }
