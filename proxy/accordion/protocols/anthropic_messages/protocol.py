"""The Anthropic Messages protocol: `POST /v1/messages`.

Theory of operation. A request has the system prompt in `system` and a list `messages` in which user and assistant
alternate. A message is a string or a list of content blocks: text, media, thinking, calls, and results, which come
first in the user message after their calls. message_json.py reads blocks into parts and edits them. Cache breakpoints
(`cache_control`) are explicit, so `with_breakpoint` sets them. Responses are parsed in response.py; the artifact tool
is in tools.py.

Source: the type files of the anthropic SDK (`anthropic/types`, `anthropic/types/beta`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from accordion.model.conversation import Message, Part, ProviderState
from accordion.model.errors import AccordionError, ContextOverflow, ThreadNotFound
from accordion.protocols.anthropic_messages import message_json
from accordion.protocols.anthropic_messages.context_edits import MessagesContextEdits
from accordion.protocols.anthropic_messages.message_json import read_parts
from accordion.protocols.anthropic_messages.response import MessagesParser
from accordion.protocols.base import ReadMessage, TextPrompt, WireProtocol
from accordion.protocols.json_values import (
    as_mapping,
    as_string,
    decode_field,
    encode,
    find_error,
    first_limit,
    opaque_part,
    role_of,
    tool_definitions,
)
from accordion.protocols.legality import find_messages_problems
from accordion.protocols.message_keys import canonical_object, decode_json


class AnthropicMessages(WireProtocol):
    """The Anthropic Messages protocol."""

    name = "messages"
    title = "Anthropic Messages"
    family = "anthropic"
    paths = ("/v1/messages",)
    token_count_paths = ("/v1/messages/count_tokens",)
    messages_field = "messages"
    takes_texts_with_results = True
    has_breakpoints = True
    request_id = b"request-id"
    context_edits = MessagesContextEdits()

    def is_addressed(self, path: str, fields: Mapping[bytes, bytes]) -> bool:
        """Whether the path is below `/v1/messages`, or the request has the header `anthropic-version`."""
        return path.startswith("/v1/messages/") or path in self.paths or b"anthropic-version" in fields

    def read_message(self, raw: bytes) -> ReadMessage:
        """Reads one message. User messages have the results of the user's tools, assistant messages those of the
        provider's own tools."""
        entry = decode_json(raw)
        if type(entry) is not dict:
            return ReadMessage("other", (opaque_part(entry),), [entry])
        return ReadMessage(role_of(entry.get("role")), tuple(read_parts(entry.get("content"))), canonical_object(entry))

    def is_preamble(self, message: ReadMessage) -> bool:
        """Whether a message is the system's. The prompt is a field, and a system message at the start is a part of
        it."""
        return message.role in {"system", "developer"}

    def read_preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """Reads `system`, a string or blocks."""
        return tuple(read_parts(decode_field(fields, "system")))

    def read_tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Reads tools, and the schema of the answer."""
        config = as_mapping(decode_field(fields, "output_config"))
        output_format = as_mapping(config.get("format") or decode_field(fields, "output_format"))
        return tool_definitions(decode_field(fields, "tools"), output_format.get("schema"))

    def read_max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """Reads `max_tokens`."""
        return first_limit(fields, "max_tokens")

    def read_previous(self, fields: Mapping[str, bytes]) -> str | None:
        """Reads the id of the message that a stored thread continues from (beta message-threads)."""
        thread = decode_field(fields, "thread")
        return as_string(as_mapping(thread).get("previous_message_id")) or None

    def provider_state(self, fields: Mapping[str, bytes]) -> ProviderState:
        """Returns `thread` if the request begins or continues one."""
        return "thread" if as_mapping(decode_field(fields, "thread")) else ""

    def write_prompt(self, prompt: TextPrompt) -> bytes:
        """Writes a system prompt and a user message."""
        fields = {"model": prompt.model, "max_tokens": prompt.max_tokens, "system": prompt.instructions}
        return encode({**fields, "messages": [{"role": "user", "content": prompt.text}], "stream": False})

    def render_error(self, error: AccordionError, request_id: str) -> bytes:
        """Writes `{"type": "error", "error": {type, message}, "request_id"}`.

        An overflow has exactly Anthropic's own words, since agents match the whole message. A missing thread has
        `details`, which the SDKs' helpers read.
        """
        message = error.message
        if isinstance(error, ContextOverflow):
            message = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
        details: dict[str, Any] = {"type": error.anthropic_type, "message": message}
        if isinstance(error, ThreadNotFound):
            details["details"] = {"error_code": error.code}
        return encode({"type": "error", "error": details, "request_id": request_id})

    def render_stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """Writes an `error` event, on which the official SDKs raise; no `message_stop` follows."""
        return b"event: error\ndata: " + self.render_error(error, request_id) + b"\n\n"

    def stream_provider_error(self, body: bytes) -> bytes:
        """Writes an `error` event with the provider's error."""
        error = find_error(body)
        if not error:
            return b""
        event = {**error, "type": "error", "error": {"type": "api_error", **error["error"]}}
        return b"event: error\ndata: " + encode(event) + b"\n\n"

    def edit_message(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """Returns the message with parts changed; None if only thinking is left."""
        return message_json.edit_message(message, changes)

    def text_message(self, text: str) -> bytes:
        """Returns `{"role": "user", "content": [{"type": "text", "text": text}]}`."""
        return message_json.text_message(text)

    def join_messages(self, wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
        """Merges the proxy's own blocks with the user messages beside them."""
        return message_json.join_messages(wires, own_positions)

    def with_breakpoint(self, wire: bytes) -> bytes:
        """Sets `cache_control` on the last block that may carry it."""
        return message_json.with_breakpoint(wire)

    def find_problems(self, messages: Sequence[Message]) -> list[str]:
        """Checks that results start the user message after their calls, that nothing is empty, and the user is
        first."""
        return find_messages_problems(messages)

    def parser(self, stream: bool, *, reads_content: bool = False) -> MessagesParser:
        """Creates a parser of events, or of a message."""
        return MessagesParser(is_stream=stream, reads_content=reads_content)
