"""What is remembered of requests: usage, exchanges, sessions."""

from __future__ import annotations

from dataclasses import field

from proxy.core.budget import Utilization
from proxy.core.values import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """The provider's own count of one reply, in tokens. `input` is all of the input, cached or not."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class CallSeen:
    """A tool call that went by in a reply."""

    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ReplySeen:
    """What a tap understood of a reply. Empty fields were not said."""

    response_id: str = ""
    model: str = ""
    usage: Usage | None = None
    finish: str = ""
    calls: tuple[CallSeen, ...] = ()
    error: str = ""
    """The text of an error that the reply carried, in its body or as an event of its stream."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request with its reply. Times in seconds (`at` since the epoch), counts in tokens."""

    at: float
    request_id: str
    session: str
    model: str
    upstream: str
    path: str
    stream: bool
    status: int
    messages: int
    utilization: Utilization
    decision: str
    usage: Usage | None = None
    finish: str = ""
    error: str = ""
    first_byte: float = 0.0
    duration: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over exchanges. Each worker keeps its own and only ever adds, so that sums over workers are right."""

    requests: int = 0
    errors: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.requests + other.requests,
            self.errors + other.errors,
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation as it is remembered over requests."""

    id: str
    tenant: str
    created: float
    label: str = ""
    client: str = ""
    agent: str = ""
    forked_from: str = ""
    model: str = ""
    updated: float = 0.0
    utilization: Utilization | None = None
    totals: Totals = field(default_factory=Totals)
    correction: float = 1.0
    """Reported over counted tokens, as seen in this session; 1.0 while nothing was reported."""

    def after(self, exchange: Exchange, gain: Totals) -> Session:
        """The session with an exchange that added `gain` to its sums."""
        return Session(
            id=self.id,
            tenant=self.tenant,
            created=self.created,
            label=self.label,
            client=self.client,
            agent=self.agent,
            forked_from=self.forked_from,
            model=exchange.model,
            updated=exchange.at,
            utilization=exchange.utilization,
            totals=self.totals + gain,
            correction=self.correction,
        )
