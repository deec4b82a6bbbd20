"""What is remembered of requests: usage, exchanges, sessions.

Sums are Structs of their own, so that what is nothing is not written.
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from accordion.core.budget import Utilization
from accordion.core.values import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """The provider's own count of one reply, in tokens. `input` is all of the input, cached or not."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0


ARGUMENTS = 64 * 1024
"""The longest arguments that are noted of a call, in characters; of longer ones nothing is."""


@dataclass(frozen=True, slots=True)
class CallSeen:
    """A tool call that went by in a reply.

    `arguments` is the text that the model wrote (JSON, but for tools that take any text), as far as it came; empty
    where it has more than `ARGUMENTS` characters.
    """

    call_id: str
    name: str
    arguments: str = ""


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
    first: int | None = None
    """Input tokens of the first round, where the provider's own tools ran within the reply and `usage` adds up what all
    rounds read; 0 where it was not told. None: there was one round."""
    items: tuple[tuple[str, bytes], ...] = ()
    """Of a reply that the provider keeps, what the model said in it: the provider's id of each, and its JSON. What is
    longer than `ARGUMENTS` bytes is left out."""
    output: tuple[bytes, ...] | None = None
    """All items of a reply that the provider keeps and that was said to its end, as JSON; None where that is not known,
    or is very long."""

    @property
    def read(self) -> int:
        """The provider's count of the request as it came, in tokens; 0 where none was told."""
        if self.first is not None:
            return self.first
        return self.usage.input if self.usage is not None else 0


@dataclass(frozen=True, slots=True)
class CompactionSeen:
    """What was folded of a request, as headers, ledger and metrics tell it.

    `state` is `folded` (made for this request), `replayed` (made for an earlier one), `observed` (would have been),
    `failed`. `steps` are (strategy, tokens before, tokens after); `utilization` has four decimals, or is None where
    the trigger was 0.0. `input` and `output` are tokens that its summary cost, apart from the request's own: those of
    `failed_answers` included, answers of models that were of no use, which took `failed_input` and `failed_output`.
    """

    state: str
    id: str = ""
    triggered: bool = False
    kind: str = ""
    trigger: int = 0
    cause: str = "automatic"
    utilization: float | None = None
    steps: tuple[tuple[str, int, int], ...] = ()
    passes: int = 0
    before: int = 0
    after: int = 0
    generation: int = 0
    writer: str = ""
    input: int = 0
    output: int = 0
    saved: int = 0
    """Tokens by which the forwarded list is shorter than the client's."""
    reason: str = ""
    failed_answers: int = 0
    failed_input: int = 0
    failed_output: int = 0
    artifacts: int = 0
    """How many artifacts it made."""


@dataclass(frozen=True, slots=True)
class Unfolded:
    """What was read back within one reply: how often the provider was asked again (`rounds`), calls answered, and the
    input tokens of all rounds but the last, which the reply's own usage leaves out. `first` is what the first round
    reported: the only usage that is of the request as it was gauged."""

    rounds: int = 0
    calls: int = 0
    input: int = 0
    first: Usage | None = None


@dataclass(frozen=True, slots=True)
class Recalled:
    """What was put into one request beside what the client sent: its tokens, and of how many sources it is. `memories`
    are those among it, each with what became of it: of session memories that the user asked for such as `CMEM-…
    imported`, of those recalled unasked `mem-… recalled`. The rest is of the archive."""

    tokens: int = 0
    sources: int = 0
    memories: tuple[str, ...] = ()

    def __add__(self, other: Recalled) -> Recalled:
        return Recalled(self.tokens + other.tokens, self.sources + other.sources, (*self.memories, *other.memories))


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """Which agent a request was from, and what it was not shown. Delegations by the names that clients have for them.

    `delegated` tells a sub-agent from the main agent. `evidence` and `candidates` as for Delegation
    (core/delegation.py). `hidden` is how many results were hidden, `owners` whose they are: of those with the most.
    """

    delegated: bool = True
    name: str = ""
    delegation: str = ""
    parent: str = ""
    evidence: str = "none"
    candidates: int = 0
    hidden: int = 0
    owners: tuple[tuple[str, int], ...] = ()


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
    compaction: CompactionSeen | None = None
    folding: float = 0.0
    """How long a fold held the request up."""
    unfolded: Unfolded | None = None
    """What was read back within the reply; None where nothing was."""
    recalled: Recalled | None = None
    """None where nothing was. What was recalled for earlier requests and is sent again is not told anew."""
    agent: AgentSeen | None = None
    """None for the main agent where it says nothing of itself."""


class Totals(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Sums over exchanges. Each worker keeps its own and only ever adds, so that sums over workers are right."""

    requests: int = 0
    errors: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    compactions: int = 0
    saved: int = 0
    """Tokens that folding kept from being sent: the client's list less the forwarded one, of every request."""
    summary_input: int = 0
    summary_output: int = 0
    unfold_calls: int = 0
    unfold_rounds: int = 0
    unfold_input: int = 0
    """Input tokens of the rounds that `input` leaves out: each reply's usage tells of its last round."""

    def __add__(self, other: Totals) -> Totals:
        if self == _NO_TOTALS:
            # Most sessions have one request.
            return other
        # One by one, which takes less than half as long as going through them.
        return Totals(
            self.requests + other.requests,
            self.errors + other.errors,
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
            self.compactions + other.compactions,
            self.saved + other.saved,
            self.summary_input + other.summary_input,
            self.summary_output + other.summary_output,
            self.unfold_calls + other.unfold_calls,
            self.unfold_rounds + other.unfold_rounds,
            self.unfold_input + other.unfold_input,
        )


_NO_TOTALS = Totals()


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
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
    totals: Totals = Totals()
    correction: float = 1.0
    """Reported over counted tokens of `model`, as seen in this session; 1.0 while nothing was reported."""
    seen: AgentSeen | None = None
    """The agent that its last request was from."""
    only: bytes = b""
    """Its exchange as the log holds it, while there is no second: most never have one. With that both go to the log."""

    def after(self, exchange: Exchange, gain: Totals, only: bytes = b"") -> Session:
        """The session with an exchange that added `gain` to its sums."""
        return structs.replace(
            self,
            model=exchange.model,
            updated=exchange.at,
            utilization=exchange.utilization,
            totals=self.totals + gain,
            correction=self.correction_of(exchange.model),
            seen=exchange.agent,
            only=only,
        )

    def correction_of(self, model: str) -> float:
        """What counts for a model are corrected by: 1.0 where the last request was for another."""
        return self.correction if model == self.model else 1.0
