"""Log lines about exchanges: compactions, windows that are too small, failures. They never contain message text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from accordion.model.budget import TokenLimits
from accordion.model.cache import BoundedCache, count_entry
from accordion.model.records import ESTIMATED_WRITER, CompactionOutcome, Exchange

LimitsOf = Callable[[str, bool, int], TokenLimits | None]
"""Returns the limits for a model name, for a sub-agent (True) or not, and a window in tokens; None if compaction is
off."""

REQUESTS: Final = 10
OFTEN: Final = 4
"""A session with this many compactions in its last `REQUESTS` requests has too small a window."""
MAX_UNKNOWN_MODELS: Final = 100
_ADVICE: Final = "use a model with a larger window, offer fewer tools, or raise the trigger (thresholds)"


_log = logging.getLogger("accordion")


class CompactionLogger:
    """An exchange observer that logs each new compaction.

    It warns once about a session whose window is too small, and once about a model whose window is not known. It
    remembers the last `sessions` sessions.
    """

    def __init__(self, limits: LimitsOf, sessions: int) -> None:
        self._limits = limits
        self._history: BoundedCache[str, int] = BoundedCache(sessions, count_entry)
        """By session: its last requests as bits, set for a new compaction. The lowest bit is the latest request."""
        self._logged: BoundedCache[tuple[str, str], bool] = BoundedCache(sessions, count_entry)
        self._unknown_models: set[str] = set()

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Logs the exchange's compaction and checks its session's window."""
        if not exchange.session:
            return
        outcome, is_automatic = exchange.compaction, False
        if outcome is not None and outcome.state == "compacted":
            _write_line(exchange, outcome, "compacted")
            is_automatic = outcome.cause in ("automatic", "cold_cache") and outcome.trigger > 0
        elif (
            outcome is not None
            and outcome.is_observed_compaction
            and self._is_first(exchange.session, f"would {outcome.kind}")
        ):
            _write_line(exchange, outcome, "would compact")
        elif outcome is not None and outcome.state == "holdout" and self._is_first(exchange.session, "holdout"):
            _log.info("%s: %s", _describe_session(exchange), outcome.reason, extra={"request_id": exchange.request_id})
        self._check_window(exchange, is_automatic=is_automatic)
        if not exchange.utilization.is_window_known:
            self._report_unknown_window(exchange)

    def _check_window(self, exchange: Exchange, *, is_automatic: bool) -> None:
        """Warns once about a session that compaction cannot help, or that is compacted again and again."""
        session, usage = exchange.session, exchange.utilization
        history = self._history.get(session)
        if is_automatic or history is not None:
            history = ((history or 0) << 1 | is_automatic) & ((1 << REQUESTS) - 1)
            self._history[session] = history
        fixed = usage.preamble + usage.tools + usage.reserved_output
        is_frequent = (history or 0).bit_count() >= OFTEN
        if not is_frequent and 4 * fixed < usage.window:
            return
        agent = exchange.agent
        limits = self._limits(exchange.model, agent is not None and agent.delegated, usage.window)
        if limits is None or not (problem := _find_problem(exchange, fixed, limits, is_frequent)):
            return
        if self._is_first(session, "small"):
            fields = {"request_id": exchange.request_id}
            _log.warning("session %s (%s) %s; %s", session, exchange.model, problem, _ADVICE, extra=fields)

    def _report_unknown_window(self, exchange: Exchange) -> None:
        """Warns once about each model, and about some models only, since clients choose the names."""
        model, models = exchange.model, self._unknown_models
        if model in models or len(models) >= MAX_UNKNOWN_MODELS:
            return
        models.add(model)
        _log.warning(
            "session %s (%s): the context window of this model is not known; %s tokens are assumed (windows.default). "
            "Set model_info.max_input_tokens for it in model_list",
            exchange.session,
            model,
            f"{exchange.utilization.window:,}",
            extra={"request_id": exchange.request_id},
        )

    def _is_first(self, session: str, subject: str) -> bool:
        key = (session, subject)
        is_first = key not in self._logged
        self._logged[key] = True
        return is_first


def _describe_session(exchange: Exchange) -> str:
    agent = exchange.agent
    agent_name = (
        f", agent {agent.name or agent.delegation}" if agent is not None and (agent.name or agent.delegation) else ""
    )
    return f"session {exchange.session} ({exchange.model}{agent_name})"


def _write_line(exchange: Exchange, outcome: CompactionOutcome, verb: str) -> None:
    parts = [f"{verb} {_describe_session(exchange)}: {_describe_figures(outcome)}"]
    parts += [", ".join(f"{name} {before - after:,}" for name, before, after in outcome.steps)] if outcome.steps else []
    parts += _describe_summary(outcome)
    parts += [f"{outcome.artifacts:,} artifact{'s' * (outcome.artifacts != 1)}"] if outcome.artifacts else []
    if outcome.state == "compacted":
        parts.append(
            f"{outcome.saved:,} tokens less than the client sent; took {exchange.compaction_seconds * 1_000:,.0f} ms"
        )
    _log.info("%s", "; ".join(parts), extra={"request_id": exchange.request_id})


def _describe_figures(outcome: CompactionOutcome) -> str:
    """Returns the tokens before and after, and the reason as the API and the page have it."""
    overflow = "the provider said that it does not fit; " if outcome.cause == "overflow" else ""
    return f"{outcome.before:,} to {outcome.after:,} tokens; {overflow}{outcome.reason}"


def _describe_summary(outcome: CompactionOutcome) -> list[str]:
    """Returns the summary's author and its cost, and the failed attempts before it."""
    parts = []
    if outcome.writer == "extractive":
        parts.append("summary by the extractive writer")
    elif outcome.writer == ESTIMATED_WRITER:
        parts.append("a model would write the summary, whose length is estimated")
    elif outcome.writer:
        tokens_in, tokens_out = outcome.input - outcome.failed_input, outcome.output - outcome.failed_output
        parts.append(f"summary by {outcome.writer} ({tokens_in:,} tokens in, {tokens_out:,} out)")
    if outcome.failed_answers:
        failed_tokens = outcome.failed_input + outcome.failed_output
        answers = "1 answer" if outcome.failed_answers == 1 else f"{outcome.failed_answers} answers"
        parts.append(f"{answers} of the model failed before ({failed_tokens:,} tokens)")
    return parts


def _find_problem(exchange: Exchange, fixed: int, limits: TokenLimits, is_frequent: bool) -> str:
    """Returns the reason why compaction helps a session little; empty if it helps."""
    usage = exchange.utilization
    parts = "system prompt, tools and the room for the answer" if usage.reserved_output else "system prompt and tools"
    share = f"{parts} take {fixed:,} of {usage.window:,} tokens"
    trigger, level = limits.conversation, "conversation"
    if fixed >= limits.generation:
        trigger, level = limits.generation, "generation"
    if fixed >= trigger > 0 and level not in limits.never:
        return f"cannot be helped by compaction: {share}, over the {level} trigger of {trigger:,}"
    if is_frequent:
        remaining = max(0, limits.conversation - fixed)
        return (
            f"was compacted {OFTEN} times in its last {REQUESTS} requests: {share}, which leaves {remaining:,} for "
            f"messages below the conversation trigger of {limits.conversation:,}"
        )
    return ""


class FailureLogger:
    """An exchange observer that logs failed requests under the request id that the client received.

    The level is WARNING for a failure of the connection to the provider, else INFO.
    """

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Logs an exchange that failed."""
        if not exchange.has_failed:
            return
        error = exchange.error
        fields = {
            "request_id": exchange.request_id,
            "error": error,
            "status": exchange.status,
            "upstream": exchange.upstream,
            "session": exchange.session,
            "seconds": round(exchange.duration, 3),
        }
        level = logging.WARNING if error.startswith("upstream_") else logging.INFO
        _log.log(level, "a request failed", extra={name: value for name, value in fields.items() if value != ""})
