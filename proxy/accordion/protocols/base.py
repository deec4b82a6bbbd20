"""The interface of a wire protocol: how its messages are read, edited and checked, and how its responses are observed.

A protocol knows the JSON of one API and nothing else. It does no I/O and keeps no state between calls. body_reader.py
walks a whole request body and calls the protocol for each message; the tool loop has an interface of its own
(tool_loop.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from accordion.model.conversation import Message, Part, ProviderState, Role
from accordion.model.errors import AccordionError
from accordion.model.http import Outbound
from accordion.model.ports import Headers
from accordion.protocols.compaction_blocks import ContextEditProtocol
from accordion.protocols.response_observer import ResponseObserver
from accordion.protocols.response_parser import ResponseParser

_LONGEST_RETRY = 60
"""Seconds for which the official SDKs wait before they send a request again. For a longer time they need not try."""


class ReadMessage(msgspec.Struct, frozen=True):
    """One message as a protocol reads it. Its key is made from `canonical` (JSON-like values only)."""

    role: Role
    parts: tuple[Part, ...]
    canonical: Any


class WireProtocol(ABC):
    """One wire protocol."""

    name: str
    messages_field: str
    """The top-level field that holds the list of messages: `messages` or `input`."""
    has_breakpoints: bool = False
    """Whether messages may carry cache breakpoints."""
    request_id: bytes = b"x-request-id"
    """The response header that carries the request id."""
    context_edits: ContextEditProtocol | None = None
    """How clients ask for context edits; None if the protocol has none."""

    @abstractmethod
    def read_message(self, raw: bytes) -> ReadMessage:
        """Reads one message of the list from the client's JSON.

        Unknown content becomes an Opaque part. Raises ValueError (msgspec's errors are such) only where the JSON cannot
        be decoded at all.
        """

    @abstractmethod
    def is_preamble(self, message: ReadMessage) -> bool:
        """Whether a message at the start of the list belongs to the system prompt."""

    @abstractmethod
    def read_preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """Reads the system prompt from top-level fields."""

    @abstractmethod
    def read_tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Returns the text of each tool definition and response schema, for counting."""

    @abstractmethod
    def read_max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """Returns the output limit that the request sets, in tokens."""

    def read_previous(self, fields: Mapping[str, bytes]) -> str | None:
        """Returns the id of the stored response, conversation or thread that the request continues."""
        return None

    def provider_state(self, fields: Mapping[str, bytes]) -> ProviderState:
        """Returns the kind of state that the provider stores for this request."""
        return ""

    def is_background(self, fields: Mapping[str, bytes]) -> bool:
        """Whether the provider goes on with the response in the background, and later requests get its output."""
        return False

    def missing_entry(self, refusal: bytes) -> bytes:
        """Builds the message whose absence a provider reports, from the body of its error.

        A list that continues stored state may lack a call or a call's output. The message has a placeholder as its
        content and is put in front of the list. Empty where the error reports something else.
        """
        return b""

    @abstractmethod
    def render_error(self, error: AccordionError, request_id: str) -> bytes:
        """Writes the body of one of the proxy's own errors in the form that this protocol's clients parse."""

    def error_response(self, error: AccordionError, request_id: str) -> Outbound:
        """Builds the complete response for one of the proxy's own errors."""
        body = self.render_error(error, request_id)
        headers: Headers = (
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (self.request_id, request_id.encode()),
        )
        if error.retry_after:
            headers += ((b"retry-after", b"%d" % error.retry_after),)
        if error.retry_after > _LONGEST_RETRY:
            headers += ((b"x-should-retry", b"false"),)
        return Outbound(error.status, headers, body)

    @abstractmethod
    def render_stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """Writes one of the proxy's own errors as the last event of a stream that has begun.

        `before` are the last events that the client got: where the protocol numbers its events, the error gets the next
        number.
        """

    @abstractmethod
    def stream_provider_error(self, body: bytes) -> bytes:
        """Writes a provider's error body as the last event of a stream that has begun; empty if it is no error."""

    @abstractmethod
    def edit_message(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """Returns the message's JSON with some of its parts changed; None where nothing is left.

        `changes` maps the index of a part in `message.parts` to its new text, or to None to remove the part. A tool
        result keeps its call id and gets the text as its content; for a call the text replaces the arguments (JSON, an
        object where the protocol wants one); media become a text part. Everything else stays as it was. Parts that
        share one JSON value are changed together if one of them is. Raises ValueError for an Opaque part.
        """

    @abstractmethod
    def text_message(self, text: str) -> bytes:
        """Returns the JSON of a user message with one text."""

    @abstractmethod
    def join_messages(self, wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
        """Returns the messages of the list as they are sent.

        `own_positions` are the positions of blocks that the proxy wrote in place of other messages. Where the protocol
        wants roles to alternate, such a block becomes a part of the user message beside it.
        """

    @abstractmethod
    def with_breakpoint(self, wire: bytes) -> bytes:
        """Returns the message with a cache breakpoint at its end; unchanged without `has_breakpoints`."""

    def allows_late_answers(self, message: Message) -> bool:
        """Whether a message's calls may be answered at any later time, or its results name no call."""
        return False

    @abstractmethod
    def find_problems(self, messages: Sequence[Message]) -> list[str]:
        """Lists what a provider would reject in a list of messages (without its preamble), as sentences."""

    @abstractmethod
    def parser(self, stream: bool, *, reads_content: bool = False) -> ResponseParser:
        """Creates a parser for one response: an event stream or one JSON document. With `reads_content` it returns all
        events, with their text; without, those that matter to an observer."""

    def observer(self, stream: bool, *, counts_text: bool = False) -> ResponseObserver:
        """Creates an observer for one response: an event stream or one JSON document. With `counts_text` it counts the
        characters of what the model writes."""
        return ResponseObserver(self.parser(stream, reads_content=counts_text))
