"""What every dialect can do about our own tool: offer it, find its calls in a reply, and hide them from the client.

A reply to the client is made of one or more replies of the provider (rounds). What is not our call goes on at once,
event by event; the events that end a round are held until it is known whether another follows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from accordion.core.conversation import Message
from accordion.core.records import Usage
from accordion.core.tooling import Answer, OurCall, ToolOffer, Wanted
from accordion.core.values import dataclass
from accordion.core.weaves import Weave

__all__ = ["Answer", "OurCall", "RoundSeen", "Splice", "ToolOffer", "Wanted", "Weaver"]


@dataclass(frozen=True, slots=True)
class RoundSeen:
    """What one of the provider's replies said, once it has ended.

    `said` are its entries in the request's form (what may be sent back to the provider as it is), `ours` the calls of
    our tool, `theirs` the ids of the client's. `finished` is False where the reply ended for another reason than that
    the model was done (a limit, a filter, an error): then nothing of it is answered.
    """

    said: tuple[bytes, ...]
    ours: tuple[OurCall, ...]
    theirs: tuple[str, ...]
    text: str
    finished: bool
    usage: Usage | None = None
    resolved: bool = False
    """Whether an artifact was put in place of its name in one of the client's calls, so that the client has other
    arguments than the model wrote."""
    container: str = ""
    """Where the provider's own tools ran, which goes on there only if the next request names it."""


class Splice(ABC):
    """One reply to the client. Never raises on what a provider sends: what is not understood goes on as it came."""

    telling: bytes | None = None
    """What of that which `feed` returned last says more than a text, in whole events: whoever listens to the reply need
    not look through the others. None where that is not known."""

    @abstractmethod
    def feed(self, block: bytes) -> bytes:
        """Takes whole events of a stream (or any piece of a document), without content encoding; returns what may go
        on to the client now. Of a document nothing goes on before `close`."""

    @property
    @abstractmethod
    def wanted(self) -> tuple[Wanted, ...]:
        """The artifacts that are named in arguments which are held back until `give` is called; mostly none."""

    @abstractmethod
    def give(self, texts: Sequence[str | None]) -> bytes:
        """The texts of what is `wanted`, in its order (None: leave the name as it stands), each put in its place as a
        JSON string; returns what may go on now, as `feed` does."""

    @property
    @abstractmethod
    def held(self) -> bool:
        """Whether the events that end a round are being held, so that `round` can be asked for."""

    @abstractmethod
    def round(self) -> RoundSeen:
        """What the round said; to be asked at its end."""

    @abstractmethod
    def next(self) -> None:
        """Our calls are answered and the provider's next reply continues this one: its opening is not shown again, its
        indexes and ids go on from what the client has seen."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The provider's ids of the rounds, in order: the first is the one that the client sees, the last leads to all
        that was said. None where replies are not gone on from by their ids."""
        return ()

    @abstractmethod
    def close(self) -> bytes:
        """The end of the reply, as of its last round: with the finish reason that its visible calls ask for, the
        last round's input and the output of all rounds as its usage."""


class Weaver(ABC):
    """What a dialect knows about our tool. No state between calls."""

    @abstractmethod
    def names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """The names of the client's own tools."""

    @abstractmethod
    def offer(self, fields: Mapping[str, bytes], tool: ToolOffer) -> dict[str, bytes] | None:
        """The top-level fields that change so that the tool is offered, as JSON: the client's tools as they came and
        ours behind them. The same arguments give the same bytes. None where it cannot be: several answers are asked
        for, the answer must have a form that rules tools out and the client has none of its own, or functions of an
        older kind are in use."""

    @abstractmethod
    def splice(self, tool: str, stream: bool) -> Splice:
        """A splice for one reply in which the tool of this name is ours."""

    @abstractmethod
    def answers(self, answers: Sequence[Answer]) -> tuple[bytes, ...]:
        """The entries that answer our calls of one round, in the order of the calls."""

    def again(self, said: Sequence[bytes], fields: Mapping[str, bytes]) -> tuple[bytes, ...]:
        """The entries that a round made, as they go back within the same reply. `fields` is the request's envelope."""
        return tuple(said)

    @abstractmethod
    def woven(
        self, messages: Sequence[Message], weave: Weave, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """How many of the client's entries that follow the weave's anchor are replaced, and by what; None where they
        are not the reply that it is about (the client asked again, or changed what was said).

        `fields` is the request's envelope. The same arguments give the same bytes.
        """

    def without(self, weave: Weave) -> Weave | None:
        """The weave as it stands in a list that has no room or no tools for what was read: nothing of ours is in it,
        nor what led to it. None where the client's own copy may stand as it is."""
        return None

    def stranded(self, messages: Sequence[Message]) -> bool:
        """Whether there may stand in a client's list what led to our calls alone: see `without`."""
        return False

    def onward(self, fields: Mapping[str, bytes], container: str) -> Mapping[str, bytes]:
        """The top-level fields of a request that goes on behind a reply whose tools ran in `container`."""
        return fields

    @abstractmethod
    def last(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """The top-level fields that change in a request in which our tool may be called no more, although earlier
        calls of it stand in the list: the client's own tools and nothing else; where it has none, our tool stays
        and may not be chosen. `fields` is the envelope with our tool offered."""
