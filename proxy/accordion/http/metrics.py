"""Prometheus metrics, for `GET /metrics`.

Several workers each write to files, and any worker adds them up (prometheus-client's multiprocess mode, if
PROMETHEUS_MULTIPROC_DIR is set).

Few metrics have a tenant label, and none of them a model: every label multiplies the time series. They count only
where there are proxy keys. There the operator chose the tenants' names, and only the administrator reads the page;
elsewhere there may be many tenants, a keyed hash for each credential.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from accordion.accounting.ledger import totals_of_exchange
from accordion.archive.retention import SweepResult
from accordion.model.costs import Costs, to_dollars
from accordion.model.delegation import Evidence
from accordion.model.records import CompactionOutcome, Exchange, FailureKind

# Clients choose model names. Beyond this number they are counted together, so that no client can flood the registry.
_MAX_MODELS = 200
_OTHER = "other"
_MAX_TENANTS = 200
# No provider's model name is longer.
_MAX_NAME = 200
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.83, 0.91, 1.0)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_COMPACTION_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_KINDS = ("input", "output", "cached", "cache_write", "reasoning")


@dataclass(frozen=True, slots=True)
class _ModelMetrics:
    """The metrics of one model and kind of agent: requests by status class, tokens in the order of `_KINDS`."""

    labels: tuple[str, str, str]
    requests: dict[int, Counter]
    tokens: tuple[Counter, ...]
    utilization: Histogram
    duration: Histogram
    first_byte: Histogram
    saved: Counter
    hidden: Counter
    compactions: dict[tuple[str, str, str], Counter] = field(default_factory=dict)
    """By kind, state and cause."""
    dollars: dict[str, Counter] = field(default_factory=dict)
    """By kind."""


class _TenantMetrics:
    """The metrics with a tenant label. Beyond `_MAX_TENANTS` names, tenants count together."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "accordion_tenant_requests",
            "With proxy keys: requests of a tenant by status class",
            ("tenant", "status"),
            registry=registry,
        )
        self._tokens = Counter(
            "accordion_tenant_tokens",
            "With proxy keys: reported tokens of a tenant: input, output",
            ("tenant", "kind"),
            registry=registry,
        )
        self._dollars = Counter(
            "accordion_tenant_dollars",
            "With proxy keys: US dollars of a tenant: spent, without_accordion",
            ("tenant", "kind"),
            registry=registry,
        )
        self._refused = Counter(
            "accordion_limited_requests",
            "Requests beyond a limit of their proxy key: tokens_per_day, dollars_per_day, requests_per_minute",
            ("tenant", "limit"),
            registry=registry,
        )
        self.is_counting = False
        """Whether tenants are named."""
        self._names: set[str] = set()
        self._counters: dict[tuple[Counter, str, str], Counter] = {}

    def count(self, tenant: str, exchange: Exchange) -> None:
        """Counts an exchange, if tenants are named."""
        if not self.is_counting:
            return
        name = self._label(tenant)
        self._counter(self._requests, name, f"{exchange.status // 100}xx").inc()
        if (usage := exchange.usage) is not None:
            self._counter(self._tokens, name, "input").inc(usage.input)
            self._counter(self._tokens, name, "output").inc(usage.output)
        if (costs := exchange.costs) is not None:
            self._counter(self._dollars, name, "spent").inc(to_dollars(costs.spent))
            self._counter(self._dollars, name, "without_accordion").inc(to_dollars(costs.original_cost))

    def count_refused(self, tenant: str, limit: str) -> None:
        """Counts a request that a limit refused."""
        self._counter(self._refused, self._label(tenant), limit).inc()

    def _counter(self, metric: Counter, name: str, label: str) -> Counter:
        """Returns the counter of a tenant, which is cached because prometheus-client's `labels` is slow."""
        key = metric, name, label
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = metric.labels(name, label)
        return counter

    def _label(self, tenant: str) -> str:
        if tenant not in self._names:
            if len(self._names) >= _MAX_TENANTS:
                return _OTHER
            self._names.add(tenant)
        return tenant


class Metrics:
    """The metrics of this process; an exchange observer."""

    def __init__(self) -> None:
        self._is_multiprocess = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        registry = self.registry = CollectorRegistry()
        model = ("upstream", "model", "agent")
        self._requests = Counter(
            "accordion_requests",
            "Requests by status class; an open WebSocket is a 1xx",
            (*model, "status"),
            registry=registry,
        )
        self._errors = Counter("accordion_errors", "Failed requests", ("upstream", "error"), registry=registry)
        self._tokens = Counter(
            "accordion_tokens", "Tokens that providers reported", (*model, "kind"), registry=registry
        )
        self._utilization = Histogram(
            "accordion_window_utilization_ratio",
            "Used share of the window",
            model,
            buckets=_RATIOS,
            registry=registry,
        )
        self._duration = Histogram(
            "accordion_request_seconds", "Time to the end of the response", model, buckets=_SECONDS, registry=registry
        )
        self._first = Histogram(
            "accordion_first_byte_seconds",
            "Time to the beginning of the response",
            model,
            buckets=_SECONDS,
            registry=registry,
        )
        self._compactions = Counter(
            "accordion_compactions",
            "Compactions, with the words of the record",
            (*model, "kind", "state", "cause"),
            registry=registry,
        )
        self._saved = Counter(
            "accordion_tokens_saved",
            "Tokens that were not sent because of compactions, at every request, of at most the window",
            model,
            registry=registry,
        )
        self._summaries = Counter(
            "accordion_summary_tokens", "Tokens of summaries: input, output", (*model, "direction"), registry=registry
        )
        self._dollars = Counter(
            "accordion_dollars",
            "US dollars: spent, without_accordion, and the own costs prefix, summaries, insertions and reads. The net "
            "is without_accordion less spent; add the own costs for what was saved before them",
            (*model, "kind"),
            registry=registry,
        )
        self._unpriced = Counter(
            "accordion_unpriced_requests",
            "Requests whose price is not known; they are not in the dollars",
            model,
            registry=registry,
        )
        self._estimated = Counter(
            "accordion_estimated_requests", "Requests whose usage was not reported", model, registry=registry
        )
        self._memories = Counter(
            "accordion_memory_tokens",
            "Tokens of the model in memory.writer: input, output",
            ("model", "direction"),
            registry=registry,
        )
        self._compaction_seconds = Histogram(
            "accordion_compaction_seconds",
            "Time that a compaction delayed a request",
            model,
            buckets=_COMPACTION_SECONDS,
            registry=registry,
        )
        self._failures = Counter(
            "accordion_compaction_failures",
            f"Compactions that could not be made: {', '.join(get_args(FailureKind))}",
            (*model, "reason"),
            registry=registry,
        )
        self._read_back_calls = Counter(
            "accordion_read_back_calls", "Calls of read_artifact that were answered", model, registry=registry
        )
        self._read_back_rounds = Counter(
            "accordion_read_back_rounds",
            "How often providers were asked to continue a response",
            model,
            registry=registry,
        )
        self._recalls = Counter(
            "accordion_recalls", "Requests with a recall from the archive or from memories", model, registry=registry
        )
        self._recall_tokens = Counter("accordion_recall_tokens", "Tokens of these recalls", model, registry=registry)
        self._hidden = Counter(
            "accordion_hidden_results", "Results of other agents that were hidden", model, registry=registry
        )
        delegations = Counter(
            "accordion_delegations", "Sub-agents that were found, by evidence", ("evidence",), registry=registry
        )
        self._delegations = {
            evidence: delegations.labels(evidence) for evidence in get_args(Evidence) if evidence != "none"
        }
        self._create_archive_metrics()
        self._tenants = _TenantMetrics(registry)
        self._store = Gauge(
            "accordion_store_available",
            "1 while the store answers",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._store_changes = Counter("accordion_store_outages", "How often the store went down", registry=registry)
        self._dropped = Counter("accordion_store_writes_dropped", "Writes that were given up", registry=registry)
        self._by_model: dict[tuple[str, str, str], _ModelMetrics] = {}
        self._models: set[tuple[str, str]] = set()
        self._store.set(1)

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Counts a finished exchange."""
        self._tenants.count(tenant, exchange)
        agent = exchange.agent
        delegated = agent is not None and agent.delegated
        model_metrics = self._metrics_of(exchange.upstream, exchange.model, "delegated" if delegated else "main")
        status = exchange.status // 100
        counter = model_metrics.requests.get(status)
        if counter is None:
            counter = model_metrics.requests[status] = self._requests.labels(*model_metrics.labels, f"{status}xx")
        counter.inc()
        if exchange.error:
            self._errors.labels(exchange.upstream, exchange.error).inc()
        if exchange.utilization.window:
            model_metrics.utilization.observe(exchange.utilization.ratio)
        model_metrics.duration.observe(exchange.duration)
        if exchange.first_byte:
            model_metrics.first_byte.observe(exchange.first_byte)
        usage = exchange.usage
        if usage is not None:
            counts = (usage.input, usage.output, usage.cached, usage.cache_write, usage.reasoning)
            for kind, tokens in enumerate(counts):
                if tokens:
                    model_metrics.tokens[kind].inc(tokens)
        if agent is not None and agent.hidden:
            model_metrics.hidden.inc(agent.hidden)
        if exchange.compaction_seconds:
            self._compaction_seconds.labels(*model_metrics.labels).observe(exchange.compaction_seconds)
        if exchange.costs is not None:
            self._count_costs(model_metrics, exchange.costs)
        if exchange.compaction is not None:
            self._count_compaction(model_metrics, exchange, exchange.compaction)
        if exchange.tool_loop is not None or exchange.recall is not None:
            self._count_ways_back(model_metrics, exchange)

    def count_delegation(self, evidence: Evidence) -> None:
        """Counts a new delegation, by its evidence."""
        if (counter := self._delegations.get(evidence)) is not None:
            counter.inc()

    def name_tenants(self, is_wanted: bool) -> None:
        """Sets whether metrics name tenants; only where there are proxy keys."""
        self._tenants.is_counting = is_wanted

    def count_refused(self, tenant: str, limit: str) -> None:
        """Counts a request beyond a limit of its proxy key."""
        self._tenants.count_refused(tenant, limit)

    def count_memory_writer(self, model: str, input_tokens: int, output_tokens: int) -> None:
        """Counts the tokens of a call that wrote memories."""
        for direction, tokens in (("input", input_tokens), ("output", output_tokens)):
            self._memories.labels(model, direction).inc(tokens)

    def note_sweep(self, result: SweepResult) -> None:
        """Counts the result of a retention sweep, of all tenants or of one."""
        # A sweep of an empty archive visits no tenant, and its size of 0 counts.
        if result.tenants or not result.entries:
            self._archive_size.set(result.stored_bytes)
        self._evicted.inc(result.entries)
        self._evicted_bytes.inc(result.size)

    def note_store(self, available: bool) -> None:
        """Sets whether the store is available."""
        self._store.set(int(available))
        if not available:
            self._store_changes.inc()

    def count_dropped_writes(self, count: int) -> None:
        """Counts dropped writes."""
        self._dropped.inc(count)

    def render(self) -> tuple[bytes, str]:
        """Returns the exposition of all workers together, and its content type."""
        registry = self.registry
        if self._is_multiprocess:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library has no hints here
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def _create_archive_metrics(self) -> None:
        registry = self.registry
        self._archive_size = Gauge(
            "accordion_archive_bytes",
            "Size of the archive of all tenants at the last check, a few times an hour",
            registry=registry,
            # One worker at a time sweeps.
            multiprocess_mode="mostrecent",
        )
        self._evicted = Counter(
            "accordion_archive_evicted", "Entries that were removed by age or size", registry=registry
        )
        self._evicted_bytes = Counter("accordion_archive_evicted_bytes", "Bytes of these entries", registry=registry)

    def _count_compaction(self, model_metrics: _ModelMetrics, exchange: Exchange, outcome: CompactionOutcome) -> None:
        if outcome.state == "observed" and not outcome.is_observed_compaction:
            return
        name = (outcome.kind or "unknown", outcome.state, outcome.cause)
        counter = model_metrics.compactions.get(name)
        if counter is None:
            counter = model_metrics.compactions[name] = self._compactions.labels(*model_metrics.labels, *name)
        counter.inc()
        totals = totals_of_exchange(exchange)
        if totals.saved > 0:
            model_metrics.saved.inc(totals.saved)
        for direction, tokens in (("input", totals.summary_input), ("output", totals.summary_output)):
            if tokens > 0:
                self._summaries.labels(*model_metrics.labels, direction).inc(tokens)
        if outcome.state == "failed":
            self._failures.labels(*model_metrics.labels, outcome.failure or "other").inc()

    def _count_ways_back(self, model_metrics: _ModelMetrics, exchange: Exchange) -> None:
        """Counts what the model read back, and what was recalled."""
        if exchange.tool_loop is not None:
            self._read_back_calls.labels(*model_metrics.labels).inc(exchange.tool_loop.calls)
            self._read_back_rounds.labels(*model_metrics.labels).inc(exchange.tool_loop.rounds)
        if exchange.recall is not None:
            self._recalls.labels(*model_metrics.labels).inc()
            self._recall_tokens.labels(*model_metrics.labels).inc(exchange.recall.tokens)

    def _count_costs(self, model_metrics: _ModelMetrics, costs: Costs) -> None:
        if costs.estimated:
            self._estimated.labels(*model_metrics.labels).inc(costs.estimated)
        if costs.unpriced:
            self._unpriced.labels(*model_metrics.labels).inc(costs.unpriced)
            return
        self._count_dollars(model_metrics, "spent", costs.spent)
        self._count_dollars(model_metrics, "without_accordion", costs.original_cost)
        if costs.own_cost:
            self._count_dollars(model_metrics, "prefix", costs.prefix_cost)
            self._count_dollars(model_metrics, "summaries", costs.summary_cost)
            self._count_dollars(model_metrics, "insertions", costs.insertion_cost)
            self._count_dollars(model_metrics, "reads", costs.read_cost)

    def _count_dollars(self, model_metrics: _ModelMetrics, kind: str, cost: int) -> None:
        counter = model_metrics.dollars.get(kind)
        if counter is None:
            counter = model_metrics.dollars[kind] = self._dollars.labels(*model_metrics.labels, kind)
        counter.inc(to_dollars(cost))

    def _metrics_of(self, upstream: str, model: str, agent: str) -> _ModelMetrics:
        """Returns a model's metrics, which are cached because prometheus-client's `labels` is slow."""
        labels = (upstream, model, agent)
        model_metrics = self._by_model.get(labels)
        if model_metrics is None:
            if (upstream, model) not in self._models:
                if len(self._models) >= _MAX_MODELS or len(model) > _MAX_NAME:
                    labels = (upstream, _OTHER, agent)
                else:
                    self._models.add((upstream, model))
            model_metrics = self._by_model.get(labels)
        if model_metrics is None:
            model_metrics = self._by_model[labels] = _ModelMetrics(
                labels=labels,
                requests={},
                tokens=tuple(self._tokens.labels(*labels, kind) for kind in _KINDS),
                utilization=self._utilization.labels(*labels),
                duration=self._duration.labels(*labels),
                first_byte=self._first.labels(*labels),
                saved=self._saved.labels(*labels),
                hidden=self._hidden.labels(*labels),
            )
        return model_metrics
