"""Compactions, and windows that are too small for them, as lines of the log. Never what was said."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from accordion.core.budget import Limits
from accordion.core.records import CompactionSeen, Exchange

LimitsOf = Callable[[str, bool, int], Limits | None]
"""The limits of a model, by its name, whether a sub-agent asks, and the window in tokens; None where compaction is
off."""

REQUESTS: Final = 10
OFTEN: Final = 4
"""A session that was compacted so often in its last `REQUESTS` requests has too small a window."""
_SESSIONS: Final = 2_000
_LEVELS: Final = {"conversation": "conversation", "generation": "mid-generation"}
_CAUSES: Final = {"manual": "on request", "overflow": "after the provider said that it does not fit"}
_ADVICE: Final = "use a model with a larger window, offer fewer tools, or raise the trigger (thresholds)"

K = TypeVar("K")
V = TypeVar("V")

_log = logging.getLogger("accordion")


class CompactionLines:
    """An Observer that writes a line for each compaction when it is made, and warns once of a session whose window is
    too small for its system prompt and tools."""

    def __init__(self, limits: LimitsOf) -> None:
        self._limits = limits
        self._made: OrderedDict[str, int] = OrderedDict()
        """By session: its last requests, a bit each, set where a compaction was made. The lowest is the last."""
        self._logged: OrderedDict[tuple[str, str], None] = OrderedDict()

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Writes the lines that an exchange is worth."""
        if not exchange.session:
            return
        seen = exchange.compaction
        made = seen is not None and seen.state == "folded"
        if seen is not None and made:
            _line(exchange, seen, "compacted")
        elif seen is not None and seen.state == "observed" and self._is_first(exchange.session, f"would {seen.kind}"):
            _line(exchange, seen, "would compact")
        self._watch(exchange, is_automatic=made and seen is not None and seen.cause == "automatic" and seen.trigger > 0)

    def _watch(self, exchange: Exchange, *, is_automatic: bool) -> None:
        """Warns once of a session that compaction cannot help, or that is compacted again and again."""
        session, used = exchange.session, exchange.utilization
        known = self._made.get(session)
        if is_automatic or known is not None:
            known = ((known or 0) << 1 | is_automatic) & ((1 << REQUESTS) - 1)
            self._made[session] = known
            _bound(self._made, session)
        fixed = used.preamble + used.tools + used.reserved_output
        often = (known or 0).bit_count() >= OFTEN
        if not often and 4 * fixed < used.window:
            return
        agent = exchange.agent
        limits = self._limits(exchange.model, agent is not None and agent.delegated, used.window)
        if limits is None or not (problem := _problem(exchange, fixed, limits, often)):
            return
        if self._is_first(session, "small"):
            fields = {"request_id": exchange.request_id}
            _log.warning("session %s (%s) %s; %s", session, exchange.model, problem, _ADVICE, extra=fields)

    def _is_first(self, session: str, what: str) -> bool:
        key = (session, what)
        is_first = key not in self._logged
        self._logged[key] = None
        _bound(self._logged, key)
        return is_first


def _bound(entries: OrderedDict[K, V], newest: K) -> None:
    entries.move_to_end(newest)
    while len(entries) > _SESSIONS:
        entries.popitem(last=False)


def _line(exchange: Exchange, seen: CompactionSeen, verb: str) -> None:
    agent = exchange.agent
    named = (
        f", agent {agent.name or agent.delegation}" if agent is not None and (agent.name or agent.delegation) else ""
    )
    parts = [f"{verb} session {exchange.session} ({exchange.model}{named}): {_figures(seen)}"]
    parts += [", ".join(f"{name} {before - after:,}" for name, before, after in seen.steps)] if seen.steps else []
    parts += _summary(seen)
    parts += [f"{seen.artifacts:,} artifact{'s' * (seen.artifacts != 1)}"] if seen.artifacts else []
    _log.info("%s", "; ".join(parts), extra={"request_id": exchange.request_id})


def _figures(seen: CompactionSeen) -> str:
    """The tokens before and after, and what led to it."""
    level = _LEVELS.get(seen.kind, seen.kind)
    why = _CAUSES.get(seen.cause, f"over the {level} trigger of {seen.trigger:,}")
    if seen.cause in _CAUSES or not seen.trigger:
        why = f"{_CAUSES.get(seen.cause, 'the trigger is 0')}, {level} level"
    return f"{seen.before:,} to {seen.after:,} tokens, {why}"


def _summary(seen: CompactionSeen) -> list[str]:
    """Who wrote the summary and what that took, and what failed before."""
    parts = []
    if seen.writer == "extractive":
        parts.append("summary by the extractive writer")
    elif seen.writer:
        paid, got = seen.input - seen.failed_input, seen.output - seen.failed_output
        parts.append(f"summary by {seen.writer} ({paid:,} tokens in, {got:,} out)")
    if seen.failed_answers:
        failed = seen.failed_input + seen.failed_output
        times = "1 answer" if seen.failed_answers == 1 else f"{seen.failed_answers} answers"
        parts.append(f"{times} of the model failed before ({failed:,} tokens)")
    return parts


def _problem(exchange: Exchange, fixed: int, limits: Limits, often: bool) -> str:
    """Why compaction is of little use in a session, in words; empty where it is of use."""
    used = exchange.utilization
    what = "system prompt, tools and the room for the answer" if used.reserved_output else "system prompt and tools"
    share = f"{what} take {fixed:,} of {used.window:,} tokens"
    trigger, level = limits.conversation, "conversation"
    if fixed >= limits.generation:
        trigger, level = limits.generation, "generation"
    if fixed >= trigger > 0 and level not in limits.never:
        return f"cannot be helped by compaction: {share}, over the {_LEVELS[level]} trigger of {trigger:,}"
    if often:
        left = max(0, limits.conversation - fixed)
        return (
            f"was compacted {OFTEN} times in its last {REQUESTS} requests: {share}, which leaves {left:,} for messages "
            f"below the conversation trigger of {limits.conversation:,}"
        )
    return ""
