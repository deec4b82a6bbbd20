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
from msgspec.structs import replace

from accordion.model.conversation import Conversation, Message, Part, ProviderState, Role
from accordion.model.errors import AccordionError
from accordion.model.http import Outbound
from accordion.model.ports import Family, Headers
from accordion.protocols.json_values import encode, find_error
from accordion.protocols.message_keys import count_breakpoints
from accordion.protocols.response_parser import ResponseObserver, ResponseParser

_LONGEST_RETRY = 60
"""Seconds for which the official SDKs wait before they send a request again. For a longer time they need not try."""


class ReadMessage(msgspec.Struct, frozen=True):
    """One message as a protocol reads it. Its key is made from `canonical` (JSON-like values only)."""

    role: Role
    parts: tuple[Part, ...]
    canonical: Any


class Endpoint(msgspec.Struct, frozen=True):
    """What the path of a request says about it. `model` and `is_stream` are None where the body says them."""

    is_token_count: bool = False
    """Whether clients count the tokens of a request at this path."""
    is_compaction: bool = False
    """Whether clients have a list compacted at this path."""
    model: str | None = None
    is_stream: bool | None = None

    def complete(self, conversation: Conversation) -> Conversation:
        """Returns the conversation of a request's body with what the path says."""
        if self.model is None:
            return conversation
        is_stream = conversation.stream if self.is_stream is None else self.is_stream
        return replace(conversation, model=self.model, stream=is_stream)


class TextPrompt(msgspec.Struct, frozen=True):
    """A request of the proxy's own for one text. The answer is not streamed and has at most `max_tokens`.

    `limit_field` is the field for that limit, where a protocol has two of them (Chat Completions). `schema` is the JSON
    schema of the answer; None for free text.
    """

    model: str
    instructions: str
    text: str
    max_tokens: int
    limit_field: str = "max_tokens"
    schema: dict[str, Any] | None = None

    @property
    def named_schema(self) -> dict[str, Any]:
        """The schema with the name that some providers demand."""
        return {"name": "answer", "schema": self.schema}


_ENDPOINT, _TOKEN_COUNT, _COMPACTION = Endpoint(), Endpoint(is_token_count=True), Endpoint(is_compaction=True)


class WireProtocol(ABC):
    """One wire protocol."""

    name: str
    title: str
    """The name of the API for people."""
    family: Family
    """The family of the providers that speak it."""
    paths: tuple[str, ...]
    """The paths of its requests; the first is that of the proxy's own."""
    token_count_paths: tuple[str, ...] = ()
    """The paths at which clients count the tokens of a request."""
    compaction_paths: tuple[str, ...] = ()
    """The paths at which clients have a list compacted."""
    operation: str = "chat"
    """The name of its operation in traces (OpenTelemetry's conventions for generative AI)."""
    messages_field: str
    """The top-level field that holds the list of messages, such as `messages`."""
    overhead_fields: tuple[str, ...] = (
        *("system", "instructions", "tools", "functions", "response_format", "text", "output_config", "output_format"),
    )
    """The top-level fields of which the model reads something with every request, beside the messages."""
    option_fields: tuple[str, ...] = (
        "max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "top_k", "seed", "n",
        "stop", "stop_sequences", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs",
        "tool_choice", "function_call", "parallel_tool_calls", "max_tool_calls", "reasoning", "reasoning_effort",
        "thinking", "verbosity", "modalities", "include", "truncation", "context_management", "service_tier", "store",
        "stream", "stream_options",
    )  # fmt: skip
    """The top-level fields that are recorded too: what else decides how the model answers.

    All others are left out, since they may name a person (`user`, `metadata`) or hold a credential (`mcp_servers`).
    """
    system_fields: tuple[str, ...] = ("system", "instructions")
    """The top-level fields that may hold the system prompt."""
    is_translatable: bool = True
    """Whether requests can be translated for providers of other families."""
    has_breakpoints: bool = False
    """Whether messages may carry cache breakpoints."""
    takes_texts_with_results: bool = False
    """Whether a text of the proxy's own before a tool result becomes a part of the result or of its message."""
    request_id: bytes = b"x-request-id"
    """The response header that carries the request id."""

    def find_endpoint(self, path: str) -> Endpoint | None:
        """Returns what a path says; None where it is not a path of this protocol's requests."""
        if path in self.paths:
            return _ENDPOINT
        if path in self.token_count_paths:
            return _TOKEN_COUNT
        return _COMPACTION if path in self.compaction_paths else None

    def is_path(self, path: str) -> bool:
        """Returns whether a path is that of requests which get an answer, as the most lenient server reads it.
        `path` is in small letters, decoded, and without empty segments."""
        return path in self.paths

    def unread_reason(self, path: str) -> str:
        """Returns why a request that a model of this protocol's provider answers is forwarded unread; empty for all
        other paths."""
        return ""

    def is_addressed(self, path: str, fields: Mapping[bytes, bytes]) -> bool:
        """Whether a request is for the API of this protocol's provider, by its path and its headers, although no
        protocol reads it. No other provider's API counts."""
        return False

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

    def system_message(self, system: bytes) -> bytes:
        """Returns a system prompt outside the list as an entry of the list; both are JSON."""
        return b'{"role":"system","content":%s}' % system

    @abstractmethod
    def read_tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Returns the text of each tool definition and response schema, for counting."""

    def is_streamed(self, fields: Mapping[str, bytes]) -> bool:
        """Whether the body asks for a stream."""
        return fields.get("stream") == b"true"

    @abstractmethod
    def read_max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """Returns the output limit that the request sets, in tokens."""

    def read_continued_id(self, fields: Mapping[str, bytes]) -> str:
        """Returns the id of the stored response, conversation or thread that the request continues; empty if none."""
        return ""

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

    def without_refused_reasoning(self, entries: Sequence[bytes], refusal: bytes) -> list[bytes] | None:
        """Returns a list without the reasoning that a provider refuses because what it led to is not there.

        `refusal` is the body of the error. None where it reports something else, or of an entry that is not in the
        list.
        """
        return None

    @abstractmethod
    def write_prompt(self, prompt: TextPrompt) -> bytes:
        """Writes the body of one of the proxy's own requests. Nothing that newer models refuse is in it: no
        temperature, no format; and the provider is told not to store it."""

    def prompt_path(self, model: str) -> str:
        """Returns the path of the proxy's own requests to a model."""
        return self.paths[0]

    def token_count_body(self, body: bytes, client_fields: Mapping[str, bytes]) -> bytes:
        """Returns the body of a request that counts tokens, without the proxy's own fields that the provider refuses
        there. `client_fields` are the top-level fields that the client sent."""
        return body

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

    def render_stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """Writes one of the proxy's own errors as the last event of a stream that has begun: here the body of the error
        as data, on which the official SDKs raise.

        `before` are the last events that the client got: where the protocol numbers its events, the error gets the next
        number.
        """
        return b"data: " + self.render_error(error, request_id) + b"\n\n"

    def stream_provider_error(self, body: bytes) -> bytes:
        """Writes a provider's error body as the last event of a stream that has begun; empty if it is no error."""
        error = find_error(body)
        return b"data: " + encode(error) + b"\n\n" if error else b""

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

    def count_breakpoints(self, wire: bytes) -> int:
        """Counts the cache breakpoints in a message; 0 without `has_breakpoints`, where the count decides nothing."""
        return count_breakpoints(wire) if self.has_breakpoints else 0

    def with_breakpoint(self, wire: bytes) -> bytes:
        """Returns the message with a cache breakpoint at its end; unchanged without `has_breakpoints`, where the
        provider finds its cached prefix by itself."""
        return wire

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
