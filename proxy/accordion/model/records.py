"""The records of requests: usage, exchanges, sessions.

`Totals` and `Session` are Structs with `omit_defaults`, so that fields without content are not written.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import structs

from accordion.model.budget import HoldoutGroup, Utilization
from accordion.model.costs import Costs


class Usage(msgspec.Struct, frozen=True):
    """The provider's own count for one response, in tokens. `input` is all of the input, cached or not."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )


ARGUMENTS = 64 * 1024
"""The longest arguments of a call that are recorded, in characters; longer ones are left out."""


class ObservedCall(msgspec.Struct, frozen=True):
    """A tool call in a response.

    `arguments` is the model's text (JSON, except for tools that take free text), as far as it arrived; empty if it
    has more than `ARGUMENTS` characters.
    """

    call_id: str
    name: str
    arguments: str = ""


class ObservedResponse(msgspec.Struct, frozen=True):
    """The content of a response that the observer read. A field is empty if the response does not have it."""

    response_id: str = ""
    model: str = ""
    usage: Usage | None = None
    finish: str = ""
    calls: tuple[ObservedCall, ...] = ()
    error: str = ""
    """The text of an error in the response: in its body, or in an event of its stream."""
    first: int | None = None
    """Input tokens of the first round, if the provider ran its own tools and `usage` is the sum of all rounds; 0
    if it is not reported. None: there was one round."""
    items: tuple[tuple[str, bytes], ...] = ()
    """The model's items of a response that the provider keeps: the provider's id and the JSON of each. Items of more
    than `ARGUMENTS` bytes are left out."""
    output: tuple[bytes, ...] | None = None
    """All items of a complete response that the provider keeps, as JSON; None if they are not known, or very
    long."""
    characters: int = 0
    """Characters of text and arguments that the model wrote; 0 if they are not counted."""

    @property
    def input_tokens(self) -> int:
        """The provider's count of the request's input, in tokens; 0 if it is not reported."""
        if self.first is not None:
            return self.first
        return self.usage.input if self.usage is not None else 0


FailureKind = Literal[
    "put_off", "too_little", "nothing_to_compact", "illegal", "refused", "unwritable", "store", "internal", "other"
]
"""Why a compaction failed: it was tried a short time ago; it would gain too little; no message may be compacted; the
list would be invalid; the provider refused it; a message cannot be edited; the store is unavailable; an error of the
proxy; another reason."""


ESTIMATED_WRITER: Final = "estimated"
"""The `writer` of a summary that a model would write, in the report of a compaction that was only tried."""


class CompactionOutcome(msgspec.Struct, frozen=True):
    """The outcome of compaction for a request, as headers, ledger and metrics report it.

    `state` is `compacted` (compacted for this request), `replayed` (compacted for an earlier one), `observed` (tried,
    only reported), `holdout` (due, and not made since the session is in the hold-out, or compaction is stopped for its
    model) or `failed`. An observed one has the failure that it would have had. `steps` are
    (strategy, tokens before, tokens after); `utilization` has four decimals, or is None if the trigger was 0.0.
    `input` and `output` are the tokens of the model calls for its summary, including `failed_input` and
    `failed_output`, the tokens of `failed_answers` unusable responses.
    """

    state: str
    id: str = ""
    is_triggered: bool = msgspec.field(default=False, name="triggered")
    kind: str = ""
    trigger: int = 0
    cause: str = "automatic"
    utilization: float | None = None
    steps: tuple[tuple[str, int, int], ...] = ()
    strategy_runs: int = msgspec.field(default=0, name="passes")
    before: int = 0
    after: int = 0
    generation: int = 0
    writer: str = ""
    input: int = 0
    output: int = 0
    saved: int = 0
    """Tokens by which the forwarded list is shorter than the client's."""
    reason: str = ""
    failure: FailureKind | Literal[""] = ""
    """The kind of the failure; empty if the compaction did not fail, or would not."""
    failed_answers: int = 0
    failed_input: int = 0
    failed_output: int = 0
    artifacts: int = 0
    """The number of artifacts that the compaction archived."""

    @property
    def is_observed_compaction(self) -> bool:
        """Whether the request would be compacted if compactions were not only reported."""
        return self.state == "observed" and self.is_triggered and not self.failure


class ToolLoopUsage(msgspec.Struct, frozen=True):
    """The usage of the tool loop in one response.

    `rounds` is the number of further requests to the provider, `calls` the number of answered calls. `input` has the
    input tokens of all rounds but the last, which the response's own usage does not include. `first` is the first
    round's usage, the only one that belongs to the request as it was measured. `earlier` is the sum of the usage of all
    rounds but the last; None if there was one round.
    """

    rounds: int = 0
    calls: int = 0
    input: int = 0
    first: Usage | None = None
    earlier: Usage | None = None


class RecallUsage(msgspec.Struct, frozen=True):
    """The content that was recalled into one request: its tokens, and the number of its sources.

    `memories` has an entry for each memory among the sources, such as `CMEM-… imported` (a session memory that the user
    requested) or `mem-… recalled`. The other sources are artifacts.
    """

    tokens: int = 0
    sources: int = 0
    memories: tuple[str, ...] = ()

    def __add__(self, other: RecallUsage) -> RecallUsage:
        return RecallUsage(self.tokens + other.tokens, self.sources + other.sources, (*self.memories, *other.memories))


class AgentReport(msgspec.Struct, frozen=True):
    """The agent of a request, and the results that were hidden from it. Delegations have the names that clients use.

    `delegated` is True for a sub-agent. `evidence` and `candidates` are as in `DelegationNode` (model/delegation.py).
    `hidden` is the number of hidden results; `owners` are (owner, number) for the owners with the most.
    """

    delegated: bool = True
    name: str = ""
    delegation: str = ""
    parent: str = ""
    evidence: str = "none"
    candidates: int = 0
    hidden: int = 0
    owners: tuple[tuple[str, int], ...] = ()


CLIENT_LEFT = "client_disconnected"
"""The `error` of an exchange whose client closed the connection before the end of the response."""


class Exchange(msgspec.Struct, frozen=True):
    """One request with its response. Times in seconds (`at` since the epoch), counts in tokens."""

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
    compaction: CompactionOutcome | None = None
    compaction_seconds: float = 0.0
    """The seconds that compaction delayed the request."""
    tool_loop: ToolLoopUsage | None = msgspec.field(default=None, name="read_back")
    """None if the model read no artifact in the response."""
    recall: RecallUsage | None = msgspec.field(default=None, name="recalled")
    """None if nothing was recalled. Content that was recalled for an earlier request is not reported again."""
    agent: AgentReport | None = None
    """None for the main agent if the request has no metadata about it."""
    costs: Costs | None = None
    """None if the request cost nothing: it failed, or only asked for a count."""

    @property
    def has_failed(self) -> bool:
        """Whether something went wrong. A client that leaves, such as a person who stops an agent, is no failure."""
        return self.error != CLIENT_LEFT and (self.status >= 400 or bool(self.error))


class Totals(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Sums over exchanges. Each worker has its own and only adds to it, so that sums over workers are right."""

    requests: int = 0
    errors: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    compactions: int = 0
    saved: int = 0
    """Tokens that were not sent because of compactions: the client's list, or the window if that is less, without the
    forwarded one, summed over all requests."""
    summary_input: int = 0
    summary_output: int = 0
    read_back_calls: int = 0
    read_back_rounds: int = 0
    read_back_input: int = 0
    """Input tokens of the rounds that `input` does not include: a response's usage is that of its last round."""

    def __add__(self, other: Totals) -> Totals:
        if self == _NO_TOTALS:
            # Most sessions have one request.
            return other
        # Written out, which takes less than half as long as a loop over the fields.
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
            self.read_back_calls + other.read_back_calls,
            self.read_back_rounds + other.read_back_rounds,
            self.read_back_input + other.read_back_input,
        )


_NO_TOTALS = Totals()


class HoldoutEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a session in the comparison with the hold-out (accounting/holdout.py).

    `unit` names the sessions that are assigned together. `group` and `model` are set once a compaction was due for the
    first time. `repeated_calls` counts the calls with the tool and the arguments of an earlier call in the
    conversation.
    """

    unit: str
    group: HoldoutGroup = ""
    repeated_calls: int = 0
    model: str = ""


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a conversation over its requests."""

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
    """Reported tokens divided by counted tokens of `model` in this session; 1.0 while nothing is reported."""
    newest_agent: AgentReport | None = msgspec.field(default=None, name="seen")
    """The agent of its last request."""
    scope: bytes = b""
    """The first bytes of its nodes' names, which other labels do not share (sessions/prefix_nodes.py)."""
    only_exchange: bytes = msgspec.field(default=b"", name="only")
    """Its only exchange, in the log's format. Most sessions have one exchange; a second one moves both to the log."""
    costs: Costs = Costs()
    longest_output: int = 0
    """The tokens of its longest response."""
    holdout: HoldoutEntry | None = None
    """None if there was no hold-out."""
    sealed_title: bytes = msgspec.field(default=b"", name="title")
    """Its name and project, sealed (sessions/session_names.py)."""
    named_at: float = 0.0
    """The time at which a person gave it the name of this row; 0.0 in all other rows."""
    name: str = ""
    """Its name. It is only set for readers, and never stored."""
    project: str = ""
    """Its project. It is only set for readers, and never stored."""

    @property
    def display_name(self) -> str:
        """Its name, else its label, else its id."""
        return self.name or self.label or self.id

    def after(self, exchange: Exchange, gain: Totals, only_exchange: bytes = b"") -> Session:
        """Returns the session after an exchange that adds `gain` to its totals."""
        return structs.replace(
            self,
            model=exchange.model,
            updated=exchange.at,
            utilization=exchange.utilization,
            totals=self.totals + gain,
            correction=self.correction_of(exchange.model),
            newest_agent=exchange.agent,
            only_exchange=only_exchange,
            costs=self.costs if exchange.costs is None else self.costs + exchange.costs,
        )

    def correction_of(self, model: str) -> float:
        """Returns the correction for a model's counts: 1.0 if the last request was for another model."""
        return self.correction if model == self.model else 1.0
