"""What every dialect can do: read one message, one preamble, one tool list; speak of errors; listen to a reply.

A dialect knows JSON of one wire protocol and nothing else: no I/O, no state between calls.
The walk over a whole body is the reader's (reader.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from accordion.core.conversation import Kept, Message, Part, Role
from accordion.core.errors import AccordionError
from accordion.core.http import Outbound
from accordion.core.records import ReplySeen
from accordion.core.values import dataclass


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """One entry of the list, understood. `canonical` is what its key is made from (JSON-like values only)."""

    role: Role
    parts: tuple[Part, ...]
    canonical: Any


class Tap(ABC):
    """Watches one reply go by; alters nothing and never raises."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Takes decoded bytes of the body: of a stream whole events (one or more), else any piece."""

    @abstractmethod
    def seen(self) -> ReplySeen:
        """What was understood so far."""

    ended: bool = False
    """Whether the dialect's own end of a stream went by (`[DONE]`, `message_stop`, `response.completed`, an error)."""


class Dialect(ABC):
    """One wire protocol."""

    name: str
    listing: str
    """The top-level field that holds the list of messages: `messages` or `input`."""
    marks: bool = False
    """Whether entries may have cache breakpoints."""
    request_id: bytes = b"x-request-id"
    """The header that names a request in its answer."""

    @abstractmethod
    def message(self, raw: bytes) -> ReadMessage:
        """Reads one entry of the list from the client's JSON. What is not understood becomes Opaque; raises
        ValueError (msgspec's errors are such) only where the JSON cannot be decoded at all."""

    @abstractmethod
    def is_preamble(self, message: ReadMessage) -> bool:
        """Whether a message that has only such before it belongs to the system prompt."""

    @abstractmethod
    def preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """The system prompt that stands in top-level fields."""

    @abstractmethod
    def tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Each tool definition (and response schema) as the text that is counted."""

    @abstractmethod
    def max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """The room that the request reserves for the answer, in tokens."""

    def previous(self, fields: Mapping[str, bytes]) -> str | None:
        """The id of provider-kept state that the request goes on from."""
        return None

    def kept(self, fields: Mapping[str, bytes]) -> Kept:
        """What the provider keeps of the exchange."""
        return ""

    def missing(self, refusal: bytes) -> bytes:
        """The entry that a provider misses, by the body of its error, in a list that goes on from what it keeps: a
        call without an output, or an output without a call. It is written with a placeholder, to be put in front of
        the list. Empty where the error says something else."""
        return b""

    @abstractmethod
    def error(self, error: AccordionError, request_id: str) -> bytes:
        """The body of an error of ours, in the shape that this dialect's clients parse."""

    def refusal(self, error: AccordionError, request_id: str) -> Outbound:
        """The same as a whole answer."""
        body = self.error(error, request_id)
        headers = (
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (self.request_id, request_id.encode()),
        )
        return Outbound(error.status, headers, body)

    @abstractmethod
    def stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """The same as the last event of a stream that has begun. `before` are events that went on last: where the
        dialect numbers them, it is numbered on."""

    @abstractmethod
    def stream_refusal(self, body: bytes) -> bytes:
        """A provider's own error, the body of an answer, as the last event of a stream that has begun; empty where the
        body is none."""

    @abstractmethod
    def edit(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """The message's JSON with some of its parts changed (by their index in `message.parts`): a text instead of
        what stood there, or None to take the part out. The result is None where nothing is left.

        A tool result keeps its call id and gets the text as its content; of a call the text becomes the arguments
        (JSON, an object where the dialect wants one); media become a text part. What is not changed stays as it was;
        parts that share one JSON value go together, changed if one of them is. Raises ValueError for an Opaque part.
        """

    @abstractmethod
    def text(self, text: str) -> bytes:
        """The JSON of a user's message that holds one text."""

    @abstractmethod
    def joined(self, wires: Sequence[bytes], ours: Collection[int]) -> list[bytes]:
        """The entries of the list as they are sent. `ours` are the positions of blocks that were written in place of
        others: where the dialect wants speakers to alternate, such a block becomes a part of the user's message beside
        it."""

    @abstractmethod
    def marked(self, wire: bytes) -> bytes:
        """The entry with a cache breakpoint at its end; as it was where the dialect has none there (`marks`)."""

    def waits(self, message: Message) -> bool:
        """Whether the calls of a message may be answered whenever it is, however the talk goes on meanwhile, or its
        results answer no call in particular."""
        return False

    @abstractmethod
    def problems(self, messages: Sequence[Message]) -> list[str]:
        """What a provider would refuse about a list (without its preamble), in words; empty where it is legal."""

    @abstractmethod
    def tap(self, stream: bool) -> Tap:
        """A tap for one reply; `stream` tells an event stream from one JSON document."""
