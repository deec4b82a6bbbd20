"""Prometheus metrics. With several workers each writes to files that any of them adds up (prometheus-client's
multiprocess mode, on where PROMETHEUS_MULTIPROC_DIR is set)."""

from __future__ import annotations

import os

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from proxy.core.records import Exchange

# Model names come from clients; more of them than this are counted as one, so that nobody can flood the registry.
_MODELS = 200
_OTHER = "other"
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.83, 0.91, 1.0)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """What `GET /metrics` shows; an Observer of exchanges."""

    def __init__(self) -> None:
        self._multiple = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        own = CollectorRegistry()
        self._registry = own
        model = ("upstream", "model")
        self._requests = Counter("accordion_requests", "Requests by status class", (*model, "status"), registry=own)
        self._errors = Counter("accordion_errors", "Requests that failed, by kind", ("upstream", "error"), registry=own)
        self._tokens = Counter("accordion_tokens", "Tokens that providers reported", (*model, "kind"), registry=own)
        self._utilization = Histogram(
            "accordion_window_utilization_ratio", "Occupied share of the window", model, buckets=_RATIOS, registry=own
        )
        self._duration = Histogram(
            "accordion_request_seconds", "Time until the reply had ended", model, buckets=_SECONDS, registry=own
        )
        self._first = Histogram(
            "accordion_first_byte_seconds", "Time until the reply began", model, buckets=_SECONDS, registry=own
        )
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
        self._names: dict[str, str] = {}
        self._store.set(1)

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Counts an exchange that has ended."""
        upstream, model = exchange.upstream, self._model(exchange.model)
        self._requests.labels(upstream, model, f"{exchange.status // 100}xx").inc()
        if exchange.error:
            self._errors.labels(upstream, exchange.error).inc()
        if exchange.utilization.window:
            self._utilization.labels(upstream, model).observe(exchange.utilization.ratio)
        self._duration.labels(upstream, model).observe(exchange.duration)
        if exchange.first_byte:
            self._first.labels(upstream, model).observe(exchange.first_byte)
        usage = exchange.usage
        if usage is not None:
            for kind, tokens in (
                ("input", usage.input),
                ("output", usage.output),
                ("cached", usage.cached),
                ("cache_write", usage.cache_write),
                ("reasoning", usage.reasoning),
            ):
                if tokens:
                    self._tokens.labels(upstream, model, kind).inc(tokens)

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

    def _model(self, model: str) -> str:
        name = self._names.get(model)
        if name is None:
            name = model if len(self._names) < _MODELS else _OTHER
            if name is model:
                self._names[model] = name
        return name
