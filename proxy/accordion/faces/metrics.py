"""Prometheus metrics. With several workers each writes to files that any of them adds up (prometheus-client's
multiprocess mode, on where PROMETHEUS_MULTIPROC_DIR is set).

No metric has a tenant label: tenants may be many (a keyed hash for each credential), every label multiplies the time
series of each model, and whoever reads the page would learn of all of them. What a tenant used, its own API says.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from accordion.accounting.journal import gain_of
from accordion.archive.bounds import Swept
from accordion.compaction.telling import failure_of
from accordion.core.delegation import Evidence
from accordion.core.records import CompactionSeen, Exchange

# Model names come from clients; more of them than this are counted as one, so that nobody can flood the registry.
_MODELS = 200
_OTHER = "other"
# No provider has a longer id.
_LONGEST = 200
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.83, 0.91, 1.0)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FOLDING = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_KINDS = ("input", "output", "cached", "cache_write", "reasoning")


class _Counter(Counter):
    """A counter for one process in which one thread counts: without the library's checks and locks, which take longer
    than to count. Any thread may read it."""

    def inc(self, amount: float = 1, exemplar: Mapping[str, str] | None = None) -> None:
        """Counts up."""
        self._value._value += amount


class _Histogram(Histogram):
    """The same, and without the library's walk to the bucket."""

    def observe(self, amount: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Notes one amount."""
        self._sum._value += amount
        self._buckets[bisect_left(self._upper_bounds, amount)]._value += 1


@dataclass(frozen=True, slots=True)
class _Meters:
    """What is counted of one model and one kind of agent: requests by status class, tokens in the order of `_KINDS`."""

    labels: tuple[str, str, str]
    requests: dict[int, Counter]
    tokens: tuple[Counter, ...]
    utilization: Histogram
    duration: Histogram
    first: Histogram
    saved: Counter
    hidden: Counter
    folds: dict[tuple[str, str, str], Counter] = field(default_factory=dict)
    """By kind, state and cause."""


class Metrics:
    """What `GET /metrics` shows; an Observer of exchanges."""

    def __init__(self) -> None:
        self._multiple = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        # For what every request counts.
        counter, histogram = (Counter, Histogram) if self._multiple else (_Counter, _Histogram)
        own = CollectorRegistry()
        self._registry = own
        model = ("upstream", "model", "agent")
        self._requests = counter("accordion_requests", "Requests by status class", (*model, "status"), registry=own)
        self._errors = Counter("accordion_errors", "Requests that failed, by kind", ("upstream", "error"), registry=own)
        self._tokens = counter("accordion_tokens", "Tokens that providers reported", (*model, "kind"), registry=own)
        self._utilization = histogram(
            "accordion_window_utilization_ratio", "Occupied share of the window", model, buckets=_RATIOS, registry=own
        )
        self._duration = histogram(
            "accordion_request_seconds", "Time until the reply had ended", model, buckets=_SECONDS, registry=own
        )
        self._first = histogram(
            "accordion_first_byte_seconds", "Time until the reply began", model, buckets=_SECONDS, registry=own
        )
        self._folds = Counter(
            "accordion_compactions",
            "Folds: made, replayed, only observed, failed",
            (*model, "kind", "state", "cause"),
            registry=own,
        )
        self._saved = Counter(
            "accordion_tokens_saved", "Tokens that folds kept from being sent, at every request", model, registry=own
        )
        self._summaries = Counter(
            "accordion_summary_tokens", "Tokens that writing summaries took", (*model, "direction"), registry=own
        )
        self._memories = Counter(
            "accordion_memory_tokens", "Tokens that writing memories took", ("model", "direction"), registry=own
        )
        self._folding = Histogram(
            "accordion_folding_seconds", "Time that a fold held a request up", model, buckets=_FOLDING, registry=own
        )
        self._failures = Counter(
            "accordion_compaction_failures", "Folds that could not be made, by reason", (*model, "reason"), registry=own
        )
        self._unfold_calls = Counter(
            "accordion_unfold_calls", "Calls of our own tool that were answered", model, registry=own
        )
        self._unfold_rounds = Counter(
            "accordion_unfold_rounds", "How often providers were asked again to go on with a reply", model, registry=own
        )
        self._recalls = Counter("accordion_recalls", "Requests that something was recalled for", model, registry=own)
        self._recall_tokens = Counter("accordion_recall_tokens", "How many tokens that was", model, registry=own)
        self._hidden = Counter(
            "accordion_hidden_results", "Results that were not shown, as another delegation's", model, registry=own
        )
        edges = Counter("accordion_delegations", "Delegations that were found", ("evidence",), registry=own)
        self._edges = {evidence: edges.labels(evidence) for evidence in get_args(Evidence) if evidence != "none"}
        self._archive()
        self._store = Gauge(
            "accordion_store_available",
            "1 while the store answers",
            registry=own,
            multiprocess_mode="livemin",
        )
        self._store_changes = Counter(
            "accordion_store_outages", "How often the store was found to be away", registry=own
        )
        self._dropped = Counter(
            "accordion_store_writes_dropped", "Writes given up while the store was away", registry=own
        )
        self._by_model: dict[tuple[str, str, str], _Meters] = {}
        self._models: set[tuple[str, str]] = set()
        self._store.set(1)

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Counts an exchange that has ended."""
        agent = exchange.agent
        delegated = agent is not None and agent.delegated
        meters = self._meters(exchange.upstream, exchange.model, "delegated" if delegated else "main")
        status = exchange.status // 100
        counter = meters.requests.get(status)
        if counter is None:
            counter = meters.requests[status] = self._requests.labels(*meters.labels, f"{status}xx")
        counter.inc()
        if exchange.error:
            self._errors.labels(exchange.upstream, exchange.error).inc()
        if exchange.utilization.window:
            meters.utilization.observe(exchange.utilization.ratio)
        meters.duration.observe(exchange.duration)
        if exchange.first_byte:
            meters.first.observe(exchange.first_byte)
        usage = exchange.usage
        if usage is not None:
            counts = (usage.input, usage.output, usage.cached, usage.cache_write, usage.reasoning)
            for kind, tokens in enumerate(counts):
                if tokens:
                    meters.tokens[kind].inc(tokens)
        if agent is not None and agent.hidden:
            meters.hidden.inc(agent.hidden)
        if exchange.folding:
            self._folding.labels(*meters.labels).observe(exchange.folding)
        if exchange.compaction is not None:
            self._fold(meters, exchange, exchange.compaction)
        if exchange.unfolded is not None:
            self._unfold_calls.labels(*meters.labels).inc(exchange.unfolded.calls)
            self._unfold_rounds.labels(*meters.labels).inc(exchange.unfolded.rounds)
        if exchange.recalled is not None:
            self._recalls.labels(*meters.labels).inc()
            self._recall_tokens.labels(*meters.labels).inc(exchange.recalled.tokens)

    def edge(self, evidence: Evidence) -> None:
        """A delegation was found to work for another."""
        if (counter := self._edges.get(evidence)) is not None:
            counter.inc()

    def wrote(self, model: str, taken: int, given: int) -> None:
        """A model was asked for memories; the tokens that went in and came out."""
        for direction, tokens in (("input", taken), ("output", given)):
            self._memories.labels(model, direction).inc(tokens)

    def swept(self, swept: Swept) -> None:
        """The archive was looked through, of all tenants or of one; what was too old or too much is gone."""
        # Where nothing is held of anybody, nobody was looked at.
        if swept.tenants or not swept.entries:
            self._held.set(swept.held)
        self._evicted.inc(swept.entries)
        self._evicted_bytes.inc(swept.size)

    def store(self, available: bool) -> None:
        """The store went away or came back."""
        self._store.set(int(available))
        if not available:
            self._store_changes.inc()

    def dropped(self, count: int) -> None:
        """Writes were given up."""
        self._dropped.inc(count)

    def page(self) -> tuple[bytes, str]:
        """The exposition of all workers together, and its content type."""
        registry = self._registry
        if self._multiple:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library has no hints here
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def _archive(self) -> None:
        own = self._registry
        self._held = Gauge(
            "accordion_archive_bytes",
            "What the archive held of all tenants when it was last looked through",
            registry=own,
            # One worker at a time looks through it.
            multiprocess_mode="mostrecent",
        )
        self._evicted = Counter(
            "accordion_archive_evicted", "Entries that were removed as too old or too much", registry=own
        )
        self._evicted_bytes = Counter("accordion_archive_evicted_bytes", "How many bytes those held", registry=own)

    def _fold(self, meters: _Meters, exchange: Exchange, seen: CompactionSeen) -> None:
        name = (seen.kind or "unknown", seen.state, seen.cause)
        counter = meters.folds.get(name)
        if counter is None:
            counter = meters.folds[name] = self._folds.labels(*meters.labels, *name)
        counter.inc()
        gain = gain_of(exchange)
        if gain.saved > 0:
            meters.saved.inc(gain.saved)
        for direction, tokens in (("input", gain.summary_input), ("output", gain.summary_output)):
            if tokens > 0:
                self._summaries.labels(*meters.labels, direction).inc(tokens)
        if seen.state == "failed":
            self._failures.labels(*meters.labels, failure_of(seen.reason)).inc()

    def _meters(self, upstream: str, model: str, agent: str) -> _Meters:
        """The meters of a model, looked up once: prometheus-client's `labels` is slow."""
        known = (upstream, model, agent)
        meters = self._by_model.get(known)
        if meters is None:
            if (upstream, model) not in self._models:
                if len(self._models) >= _MODELS or len(model) > _LONGEST:
                    known = (upstream, _OTHER, agent)
                else:
                    self._models.add((upstream, model))
            meters = self._by_model.get(known)
        if meters is None:
            meters = self._by_model[known] = _Meters(
                labels=known,
                requests={},
                tokens=tuple(self._tokens.labels(*known, kind) for kind in _KINDS),
                utilization=self._utilization.labels(*known),
                duration=self._duration.labels(*known),
                first=self._first.labels(*known),
                saved=self._saved.labels(*known),
                hidden=self._hidden.labels(*known),
            )
        return meters
