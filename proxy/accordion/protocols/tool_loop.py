"""The interface of the tool loop: how a protocol offers the artifact tool, finds its calls and hides them from the
client.

Theory of operation. The proxy adds one tool of its own to the client's request, with which the model reads archived
artifacts. When the model calls it, the proxy answers the call itself and asks the provider to continue; the client must
see one ordinary response. Each response of the provider is a *round*; the client's response is made of all its rounds.

    request --offer--> provider --round 1--> [hide own calls] --round 2--> ... --> one response to the client

pipeline/tool_loop.py drives a ToolLoopResponse like this:

1. `feed` takes the provider's bytes and returns the bytes that the client may have now. Everything except the proxy's
   own calls is returned at once; the events that end a round are kept back until it is known whether another follows.
2. `pending_placeholders` are artifacts that the model named in a client call's arguments instead of quoting them.
   `resolve` puts their texts in place.
3. Once `is_round_over`, `read_round` returns the round. If it calls the artifact tool, the proxy sends a request with
   the round and its results (`render_round`, `render_results`), calls `continue_response` and feeds the next round.
4. `close` returns the end of the response, with the finish reason and the usage of all rounds.

Later requests of the client contain its own copy of that response, without the calls that it never saw.
`insert_rounds` finds the copy and puts the rounds in its place, so that the provider reads what the model wrote.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from accordion.model.artifact_tool import ArtifactPlaceholder, ArtifactToolCall, ArtifactToolResult, ToolDefinition
from accordion.model.conversation import Message
from accordion.model.insertions import ToolRoundInsertion
from accordion.model.records import Usage

__all__ = [
    "ArtifactPlaceholder",
    "ArtifactToolCall",
    "ArtifactToolProtocol",
    "ArtifactToolResult",
    "ObservedRound",
    "ToolDefinition",
    "ToolLoopResponse",
]


class ObservedRound(msgspec.Struct, frozen=True):
    """One complete response of the provider.

    `entries` are its messages or items in the request's form, ready to be sent back to the provider. `finished` is
    False where the response ended before the model was done (a limit, a filter, an error): none of its calls is
    answered then.
    """

    entries: tuple[bytes, ...]
    own_calls: tuple[ArtifactToolCall, ...]
    """The calls of the artifact tool."""
    client_call_ids: tuple[str, ...]
    text: str
    finished: bool
    usage: Usage | None = None
    resolved: bool = False
    """Whether an artifact replaced a placeholder in a client call, so that the client has other arguments than the
    model wrote."""
    container: str = ""
    """The container in which the provider's own tools ran. The next request must name it to continue there."""


class ToolLoopResponse(ABC):
    """One response to the client. It never raises on what a provider sends: unknown content passes unchanged."""

    observable_output: bytes | None = None
    """The whole events of what `feed` returned last that an observer must read: those with more than text. None where
    that is not known."""

    @abstractmethod
    def feed(self, block: bytes) -> bytes:
        """Takes whole events of a stream, or any piece of a document, without content encoding; returns the bytes that
        may go to the client now. A document returns nothing before `close`."""

    @property
    @abstractmethod
    def pending_placeholders(self) -> tuple[ArtifactPlaceholder, ...]:
        """The placeholders in arguments that are kept back until `resolve` is called; mostly none."""

    @abstractmethod
    def resolve(self, texts: Sequence[str | None]) -> bytes:
        """Replaces the pending placeholders, in their order, by these texts as JSON strings (None leaves a placeholder
        as it is); returns the bytes that may go to the client now, as `feed` does."""

    @property
    @abstractmethod
    def is_round_over(self) -> bool:
        """Whether the events that end a round are kept back, so that `read_round` may be called."""

    @abstractmethod
    def read_round(self) -> ObservedRound:
        """Returns the round. To be called at its end."""

    @abstractmethod
    def continue_response(self) -> None:
        """Starts the next round. Its opening events are not shown again; its indexes and ids follow those that the
        client has seen."""

    @property
    def response_ids(self) -> tuple[str, ...]:
        """The provider's ids of the rounds, in order: the client sees the first, the last stands for the whole history.
        Empty where the protocol does not continue responses by id."""
        return ()

    @abstractmethod
    def close(self) -> bytes:
        """Returns the end of the response: with the finish reason that the visible calls require, and as usage the
        last round's input and the output of all rounds."""


class ArtifactToolProtocol(ABC):
    """A protocol's side of the artifact tool. It keeps no state between calls."""

    @abstractmethod
    def tool_names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """Returns the names of the client's own tools."""

    @abstractmethod
    def offer(self, fields: Mapping[str, bytes], tool: ToolDefinition) -> dict[str, bytes] | None:
        """Returns the top-level fields, as JSON, that change when the tool is offered.

        The client's tools stay as they came and the artifact tool follows them. The same arguments give the same bytes.
        None where the tool cannot be offered: the request asks for several answers, or for a form of answer that
        excludes tools while the client has none, or uses functions of an older kind.
        """

    @abstractmethod
    def open_response(self, tool: str, stream: bool) -> ToolLoopResponse:
        """Creates the response to the client; `tool` is the artifact tool's name in this request."""

    @abstractmethod
    def render_results(self, answers: Sequence[ArtifactToolResult]) -> tuple[bytes, ...]:
        """Writes the messages that answer the artifact tool's calls of one round, in the order of the calls."""

    def render_round(self, entries: Sequence[bytes], fields: Mapping[str, bytes]) -> tuple[bytes, ...]:
        """Returns a round's entries as they are sent back within the same response. `fields` is the request's
        envelope."""
        return tuple(entries)

    @abstractmethod
    def insert_rounds(
        self, messages: Sequence[Message], insertion: ToolRoundInsertion, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """Replaces the client's copy of a response by its rounds.

        `messages` follow the insertion's anchor. Returns how many of them are replaced, and the entries that replace
        them; None where they are not a copy of that response (the client asked again, or changed the text). `fields` is
        the request's envelope. The same arguments give the same bytes.
        """

    def without_own_calls(self, insertion: ToolRoundInsertion) -> ToolRoundInsertion | None:
        """Returns the insertion without the artifact tool's calls and the reasoning that led to them, for a list that
        has no space or no tools for them. None where the client's own copy may stay as it is."""
        return None

    def may_have_stranded_reasoning(self, messages: Sequence[Message]) -> bool:
        """Whether a client's list may contain reasoning that led only to artifact tool calls; see
        `without_own_calls`."""
        return False

    def continuation_fields(self, fields: Mapping[str, bytes], container: str) -> Mapping[str, bytes]:
        """Returns the top-level fields of the request for the next round, after one whose tools ran in `container`."""
        return fields

    @abstractmethod
    def final_fields(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the top-level fields that change so that the artifact tool may not be called any more.

        Earlier calls of it stay in the list. The tools are the client's own; where it has none, the artifact tool stays
        and may not be chosen. `fields` is the envelope with the artifact tool offered.
        """
