"""The three lines at the end of `accordion run`: what happened, what was saved, and where to look."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from accordion.cli.document_links import document_link
from accordion.cli.listing import count_with_noun, format_dollars
from accordion.cli.running_proxy import QueryError, RunningProxy
from accordion.model.records import Totals

_CREDENTIALS = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CODEX_API_KEY")
_MAX_OBSERVED = 100
"""Sessions whose exchanges are read for a report of an observed run."""


class RunSums(msgspec.Struct, frozen=True):
    """Sums over sessions: the totals, and the nanodollars that were saved net; None if a price is not known."""

    totals: Totals = Totals()
    net_cost: int | None = 0

    def __add__(self, other: RunSums) -> RunSums:
        return RunSums(self.totals + other.totals, _add(self.net_cost, other.net_cost))

    @property
    def own_tokens(self) -> int:
        """The tokens used for summaries and for reading the archive."""
        return self.totals.summary_input + self.totals.summary_output + self.totals.unfold_input

    @property
    def net_tokens(self) -> int:
        """The tokens that were left out of requests, less the own ones."""
        return self.totals.saved - self.own_tokens

    def since(self, before: RunSums) -> RunSums:
        """Returns what was added since an earlier time."""
        names = Totals.__struct_fields__
        gain = Totals(*(getattr(self.totals, name) - getattr(before.totals, name) for name in names))
        return RunSums(gain, _add(self.net_cost, None if before.net_cost is None else -before.net_cost))


def _add(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


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
        self._before: dict[str, RunSums] = {}
        # Without the totals before, those of a session that goes on count as a whole.
        with suppress(QueryError):
            self._before = {session["id"]: read_sums(session) for session in proxy.list_sessions(self._credentials)}

    def lines(self, log: Path | None = None) -> Iterator[str]:
        """Yields the lines. `log` is the log of a proxy that ends with the run."""
        try:
            sessions = list(self._list_changed())
            gain = sum((gain for _, gain in sessions), RunSums())
            if not gain.totals.requests:
                page = document_link("docs/run-an-agent.md#no-request-came")
                yield f"Accordion: no request came from this command; see {page}"
                return
            yield self._describe_requests(sessions, gain.totals)
            yield self._describe_effect(sessions, gain)
        except QueryError as error:
            yield f"Accordion cannot say what happened: {error}"
            return
        session = sessions[0][0]["id"]
        place = f"log {log}" if log is not None else f"{self._proxy.url}/accordion/sessions/{session}"
        yield f"Look: accordion artifacts --session {session}; {place}" if gain.totals.compactions else f"Look: {place}"

    def _list_changed(self) -> Iterator[tuple[dict[str, Any], RunSums]]:
        """Yields the sessions with requests of this run, and what the run added to their totals."""
        for session in self._proxy.list_sessions(self._credentials):
            if session["updated"] < self._started_at:
                return
            if not self._client or session["client"] == self._client:
                yield session, read_sums(session).since(self._before.get(session["id"], RunSums()))

    def _describe_requests(self, sessions: Sequence[tuple[dict[str, Any], RunSums]], gain: Totals) -> str:
        count = sum(1 for _, each in sessions if each.totals.requests)
        requests = f"{count_with_noun(gain.requests, 'request')} in {count_with_noun(count, 'session')}"
        failed = f", {gain.errors:,} of them failed" if gain.errors else ""
        if self._is_observing:
            return f"Accordion observed {requests}{failed}, and changed nothing."
        return f"Accordion: {requests}{failed}; {count_with_noun(gain.compactions, 'new compaction')}."

    def _describe_effect(self, sessions: Sequence[tuple[dict[str, Any], RunSums]], gain: RunSums) -> str:
        if self._is_observing:
            return self._describe_observed(sessions)
        if gain.totals.saved or gain.totals.compactions:
            return describe_savings(gain)
        fullest = max((each for each, _ in sessions if each["last"]), key=lambda each: each["last"]["utilization"])
        last = fullest["last"]
        return (
            f"Nothing to save yet: {fullest['model']}'s window of {last['window']:,} tokens is "
            f"{last['utilization']:.0%} full."
        )

    def _describe_observed(self, sessions: Sequence[tuple[dict[str, Any], RunSums]]) -> str:
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


def describe_savings(gain: RunSums) -> str:
    """Describes what compaction saved net, in tokens, and in dollars where the prices are known."""
    verb = "saved" if gain.net_tokens >= 0 else "added"
    dollars = "" if gain.net_cost is None else f" ({format_dollars(gain.net_cost)}, prompt caching counted)"
    return (
        f"{abs(gain.net_tokens):,} tokens {verb} net{dollars}: {gain.totals.saved:,} left out of requests, "
        f"{gain.own_tokens:,} used for summaries and for reading the archive."
    )


def read_sums(session: Mapping[str, Any]) -> RunSums:
    """Returns the sums of one session, as the API describes it."""
    dollars = session["costs"]["dollars"]
    return RunSums(
        msgspec.convert(session["totals"], Totals), None if dollars is None else round(dollars["net"] * 10**9)
    )
