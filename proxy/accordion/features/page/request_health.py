"""Remembers what went wrong lately, for the page's view of health: by tenant, in the memory of this worker.

An exchange observer (model/ports.py). It keeps kinds of errors and counts, and no text of a message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

from accordion.model.cache import BoundedCache, count_entry
from accordion.model.records import Exchange

MOST_EVENTS: Final = 20
"""Failed requests and failed compactions of a tenant that are remembered."""
_MOST_TENANTS: Final = 1_000
_MOST_NAMES: Final = 50
"""Upstreams and models of a tenant that are remembered. Clients choose the names of models."""
_NO_FAILURE: Final = ("", "client_disconnected")


class UpstreamState(msgspec.Struct):
    """The last success and the last failure of one upstream; 0.0 for none. `failures` came since the last success.

    A success is any answer to a request that a client could have sent right: a refusal is one, too.
    """

    name: str
    succeeded: float = 0.0
    failed: float = 0.0
    error: str = ""
    status: int = 0
    failures: int = 0


class FailedRequest(msgspec.Struct, frozen=True):
    """A request that failed. `error` is the kind of the error, `status` that of the answer (0: none)."""

    at: float
    session: str
    model: str
    upstream: str
    error: str
    status: int


class FailedCompaction(msgspec.Struct, frozen=True):
    """A compaction that was not made, or whose summary a model failed to write, with the reason."""

    at: float
    session: str
    model: str
    reason: str


@dataclass(slots=True)
class TenantHealth:
    """What went wrong lately for one tenant. `assumed_windows` has tokens by model."""

    upstreams: dict[str, UpstreamState] = field(default_factory=dict)
    failed_requests: deque[FailedRequest] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    failed_compactions: deque[FailedCompaction] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    assumed_windows: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    delayed_requests: int = 0
    """Requests that waited for a compaction."""
    delay: float = 0.0
    """The seconds that these requests waited, in all."""

    @property
    def mean_delay(self) -> float:
        """The seconds that a delayed request waited on average."""
        return self.delay / self.delayed_requests if self.delayed_requests else 0.0

    @property
    def upstream_states(self) -> list[UpstreamState]:
        """The states of all upstreams."""
        return list(self.upstreams.values())


class RequestHealth:
    """Remembers what went wrong lately."""

    def __init__(self) -> None:
        self._tenants: BoundedCache[str, TenantHealth] = BoundedCache(_MOST_TENANTS, count_entry)

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        """Notes an exchange that has ended."""
        health = self._tenants.get(tenant)
        if health is None:
            health = self._tenants[tenant] = TenantHealth()
        health.requests += 1
        if exchange.compaction_seconds > 0:
            health.delayed_requests += 1
            health.delay += exchange.compaction_seconds
        if exchange.upstream:
            _note_upstream(health, exchange)
        if exchange.error not in _NO_FAILURE:
            health.failed_requests.appendleft(
                FailedRequest(
                    exchange.at, exchange.session, exchange.model, exchange.upstream, exchange.error, exchange.status
                )
            )
        if exchange.compaction is not None and (reason := _failure_of(exchange)):
            health.failed_compactions.appendleft(
                FailedCompaction(exchange.at, exchange.session, exchange.model, reason)
            )
        if not exchange.utilization.is_window_known and exchange.utilization.window:
            _note_window(health, exchange)

    def of(self, tenant: str) -> TenantHealth:
        """Returns what went wrong lately for a tenant."""
        return self._tenants.get(tenant) or TenantHealth()


def _note_upstream(health: TenantHealth, exchange: Exchange) -> None:
    state = health.upstreams.get(exchange.upstream)
    if state is None:
        if len(health.upstreams) >= _MOST_NAMES:
            return
        state = health.upstreams[exchange.upstream] = UpstreamState(exchange.upstream)
    # The provider answered a request that it refuses. It did not if the connection failed, or with 429 and 5xx.
    if exchange.error.startswith("upstream_") or exchange.status == 429 or exchange.status >= 500:
        state.failed, state.error, state.status = exchange.at, exchange.error, exchange.status
        state.failures += 1
    elif exchange.error != "client_disconnected" and exchange.status:
        state.succeeded, state.failures = exchange.at, 0


def _note_window(health: TenantHealth, exchange: Exchange) -> None:
    windows = health.assumed_windows
    if exchange.model in windows or len(windows) < _MOST_NAMES:
        windows[exchange.model] = exchange.utilization.window


def _failure_of(exchange: Exchange) -> str:
    """Returns what failed in an exchange's compaction; empty if nothing did."""
    outcome = exchange.compaction
    if outcome is None:
        return ""
    if outcome.state == "failed" and outcome.failure not in ("put_off", "too_little", "nothing_to_compact"):
        return outcome.reason
    if outcome.state == "compacted" and outcome.failed_answers:
        answers = "An answer" if outcome.failed_answers == 1 else f"{outcome.failed_answers} answers"
        writer = "the extractive writer" if outcome.writer == "extractive" else outcome.writer or "nobody"
        return f"{answers} of the model could not be used as a summary. It was written by {writer}."
    return ""
