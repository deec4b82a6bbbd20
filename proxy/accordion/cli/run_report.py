"""The three lines at the end of `accordion run`: what happened, what was saved, and where to look."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from accordion.cli.listing import count_with_noun
from accordion.cli.running_proxy import QueryError, RunningProxy
from accordion.model.records import Totals

_CREDENTIALS = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CODEX_API_KEY")
_MAX_OBSERVED = 100
"""Sessions whose exchanges are read for a report of an observed run."""


class RunReport:
    """Compares the records of a proxy's sessions before and after an agent's run.

    `client` selects the sessions of one client, since others may use the same proxy or store; empty for all. If the
    proxy has keys of its own, the agent's credential is one of them, and gives access to these records.
    """

    def __init__(
        self, proxy: RunningProxy, client: str, environ: Mapping[str, str], *, is_observing: bool = False
    ) -> None:
        """Reads the totals before the run."""
        self._proxy, self._client, self._is_observing = proxy, client, is_observing
        key = next(filter(None, map(environ.get, _CREDENTIALS)), "")
        self._credentials = {"authorization": f"Bearer {key}"} if key else {}
        self._started_at = time.time()
        self._before: dict[str, Totals] = {}
        # Without the totals before, those of a session that goes on count as a whole.
        with suppress(QueryError):
            self._before = {session["id"]: _totals(session) for session in proxy.list_sessions(self._credentials)}

    def lines(self, log: Path | None = None) -> Iterator[str]:
        """Yields the lines. `log` is the log of a proxy that ends with the run."""
        try:
            sessions = list(self._list_changed())
            gain = sum((gain for _, gain in sessions), Totals())
            if not gain.requests:
                yield "Accordion: no request came from this command; see docs/run-an-agent.md#no-request-came"
                return
            yield self._describe_requests(sessions, gain)
            yield self._describe_effect(sessions, gain)
        except QueryError as error:
            yield f"Accordion cannot say what happened: {error}"
            return
        session = sessions[0][0]["id"]
        place = f"log {log}" if log is not None else f"{self._proxy.url}/accordion/sessions/{session}"
        yield f"Look: accordion artifacts --session {session}; {place}" if gain.compactions else f"Look: {place}"

    def _list_changed(self) -> Iterator[tuple[dict[str, Any], Totals]]:
        """Yields the sessions with requests of this run, and what the run added to their totals."""
        for session in self._proxy.list_sessions(self._credentials):
            if session["updated"] < self._started_at:
                return
            if not self._client or session["client"] == self._client:
                yield session, _difference(_totals(session), self._before.get(session["id"], Totals()))

    def _describe_requests(self, sessions: Sequence[tuple[dict[str, Any], Totals]], gain: Totals) -> str:
        count = sum(1 for _, each in sessions if each.requests)
        requests = f"{count_with_noun(gain.requests, 'request')} in {count_with_noun(count, 'session')}"
        failed = f", {gain.errors:,} of them failed" if gain.errors else ""
        if self._is_observing:
            return f"Accordion observed {requests}{failed}, and changed nothing."
        return f"Accordion: {requests}{failed}; {count_with_noun(gain.compactions, 'compaction')}."

    def _describe_effect(self, sessions: Sequence[tuple[dict[str, Any], Totals]], gain: Totals) -> str:
        if self._is_observing:
            return self._describe_observed(sessions)
        if gain.saved or gain.compactions:
            return describe_savings(gain)
        fullest = max((each for each, _ in sessions if each["last"]), key=lambda each: each["last"]["utilization"])
        last = fullest["last"]
        return (
            f"Nothing to save yet: {fullest['model']}'s window of {last['window']:,} tokens is "
            f"{last['utilization']:.0%} full."
        )

    def _describe_observed(self, sessions: Sequence[tuple[dict[str, Any], Totals]]) -> str:
        """Describes what would have been compacted, by the last exchanges of each session."""
        due, largest = 0, (0, 0, "")
        for session, _ in sessions[:_MAX_OBSERVED]:
            for exchange in self._proxy.find_session(session["id"], self._credentials)["exchanges"]:
                outcome = exchange["compaction"] or {}
                if exchange["at"] >= self._started_at and outcome.get("state") == "observed":
                    due += 1
                    largest = max(largest, (outcome["before"], outcome["after"], exchange["model"]))
        if not due:
            return "No request was large enough for a compaction."
        before, after, model = largest
        return (
            f"{count_with_noun(due, 'request')} would have been compacted, the largest from {before:,} to {after:,} "
            f"tokens ({model})."
        )


def describe_savings(gain: Totals) -> str:
    """Describes what compaction saved and what it cost, in tokens."""
    cost = gain.summary_input + gain.summary_output + gain.unfold_input
    net = gain.saved - cost
    verb = "saved" if net >= 0 else "added"
    return (
        f"{abs(net):,} tokens {verb} net: {gain.saved:,} left out of requests, {cost:,} used for summaries and for "
        "reading the archive."
    )


def _totals(session: Mapping[str, Any]) -> Totals:
    return msgspec.convert(session["totals"], Totals)


def _difference(after: Totals, before: Totals) -> Totals:
    names = Totals.__struct_fields__
    return Totals(*(getattr(after, name) - getattr(before, name) for name in names))
