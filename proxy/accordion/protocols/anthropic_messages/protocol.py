"""The Anthropic Messages protocol: `POST /v1/messages`.

Theory of operation. A request has the system prompt in `system` and a list `messages` in which user and assistant
alternate. A message is a string or a list of content blocks: text, media, thinking, calls, and results, which come
first in the user message after their calls. message_json.py reads blocks into parts and edits them. Cache breakpoints
(`cache_control`) are explicit, so `with_breakpoint` sets them. Responses are parsed in response.py.

`MessagesArtifactTool` is the artifact tool in requests: it offers the tool, answers its calls, and inserts the rounds
into later requests. Its calls in responses are hidden in tool_rounds.py. Results come first in the user message after
their calls; a list with calls needs `tools`; `tool_choice` is valid only with `tools`.

Sources: the type files of the anthropic SDK (`anthropic/types`, `anthropic/types/beta`); the reference of the Messages
API.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accordion.model.conversation import Message, Part, ProviderState
from accordion.model.errors import AccordionError, ContextOverflow, ThreadNotFound
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.anthropic_messages import message_json
from accordion.protocols.anthropic_messages.message_json import read_parts, read_settings
from accordion.protocols.anthropic_messages.response import MessagesParser
from accordion.protocols.anthropic_messages.tool_rounds import MessagesToolDocument, MessagesToolStream
from accordion.protocols.base import ReadMessage, TextPrompt, WireProtocol
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, is_text, items_of, list_of, object_of
from accordion.protocols.json_values import (
    as_list,
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
from accordion.protocols.tool_loop import (
    ArtifactToolProtocol,
    ArtifactToolResult,
    ToolDefinition,
    ToolLoopResponse,
    find_tool_names,
    join_rounds,
    list_field,
    prepend_entries,
)


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

    def is_addressed(self, path: str, fields: Mapping[bytes, bytes]) -> bool:
        """Whether the path is below `/v1/messages`, or the request has the header `anthropic-version`."""
        return path.startswith("/v1/messages/") or path in self.paths or b"anthropic-version" in fields

    def read_message(self, raw: bytes) -> ReadMessage:
        """Reads one message. User messages have the results of the user's tools, assistant messages those of the
        provider's own tools."""
        entry = decode_json(raw)
        if type(entry) is not dict:
            return ReadMessage("other", (opaque_part(entry),), [entry])
        parts = (*read_parts(entry.get("content")), *read_settings(entry))
        return ReadMessage(role_of(entry.get("role")), parts, canonical_object(entry))

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

    def read_continued_id(self, fields: Mapping[str, bytes]) -> str:
        """Reads the id of the message that a stored thread continues from (beta message-threads)."""
        thread = decode_field(fields, "thread")
        return as_string(as_mapping(thread).get("previous_message_id")) or ""

    def provider_state(self, fields: Mapping[str, bytes]) -> ProviderState:
        """Returns `thread` if the request begins or continues one."""
        return "thread" if as_mapping(decode_field(fields, "thread")) else ""

    def write_prompt(self, prompt: TextPrompt) -> bytes:
        """Writes a system prompt and a user message."""
        fields: dict[str, Any] = {
            "model": prompt.model,
            "max_tokens": prompt.max_tokens,
            "system": prompt.instructions,
        }
        if prompt.schema is not None:
            fields["output_config"] = {"format": {"type": "json_schema", "schema": prompt.schema}}
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


# -- the artifact tool -------------------------------------------------------------------------------------------------


_NO_CHOICE = b'{"type":"none"}'


@dataclass(frozen=True, slots=True)
class MessagesArtifactTool(ArtifactToolProtocol):
    """The artifact tool in Anthropic Messages."""

    def tool_names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """Returns the names of all tools, including the provider's own."""
        return find_tool_names(as_list(decode_field(fields, "tools")), "name")

    def offer(self, fields: Mapping[str, bytes], tool: ToolDefinition) -> dict[str, bytes] | None:
        """Returns `tools` with the artifact tool as the last. The client's tools keep their bytes and cache
        breakpoints;
        `tool_choice` stays. None where the client has no tools and either asks for a form of answer, or says which tool
        to choose."""
        own_tool = object_of(
            {"name": encode(tool.name), "description": encode(tool.description), "input_schema": tool.schema}
        )  # fmt: skip
        client_list = fields.get("tools", NULL).strip()
        if is_list(client_list) and client_list[1:-1].strip():
            return {"tools": client_list[:-1].rstrip() + b"," + own_tool + b"]"}
        if client_list != NULL and not is_list(client_list):
            return None
        has_choice = as_string(as_mapping(decode_field(fields, "tool_choice")).get("type")) not in {"", "auto"}
        return None if has_choice or _has_output_format(fields) else {"tools": list_of([own_tool])}

    def open_response(self, tool: str, stream: bool) -> ToolLoopResponse:
        """Creates a response of events, or of one message."""
        return MessagesToolStream(tool) if stream else MessagesToolDocument(tool)

    def render_results(self, answers: Sequence[ArtifactToolResult], tool: str) -> tuple[bytes, ...]:
        """Writes one user message with a result for each call."""
        blocks = [
            {"type": "tool_result", "tool_use_id": answer.call_id, "content": answer.text}
            | ({"is_error": True} if answer.error else {})
            for answer in answers
        ]
        return (encode({"role": "user", "content": blocks}),) if blocks else ()

    def insert_rounds(
        self, messages: Sequence[Message], insertion: ToolRoundInsertion, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """Replaces the assistant messages by the rounds.

        Results of the last round's own calls are put at the start of the next user message, before the client's, so it
        is replaced too. A cache breakpoint of the copy moves to the end of the rounds. Thinking is the provider's,
        whether the client kept it or not.
        """
        joined = join_rounds(messages, insertion, _prepend_results)
        if joined is None:
            return None
        cache_control = _find_breakpoint(messages[: joined.replaced_count - len(joined.following)])
        rounds = _set_breakpoint(joined.rounds, cache_control) if cache_control else joined.rounds
        return joined.replaced_count, (*rounds, *joined.following)

    def continuation_fields(self, fields: Mapping[str, bytes], container: str) -> Mapping[str, bytes]:
        """Returns the fields with the container in which code ran. Without it the provider creates another one, without
        the files that the code left."""
        if not container:
            return fields
        requested = decode_field(fields, "container")
        value = {**requested, "id": container} if type(requested) is dict else container
        return {**fields, "container": encode(value)}

    def final_fields(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the client's own tools. Where it has none, or the model thinks, all tools stay and none may be
        chosen: a list with calls needs tools, and thinking is valid only with the tools that it was made with."""
        tools = list_field(fields, "tools")
        has_thinking = as_string(as_mapping(decode_field(fields, "thinking")).get("type")) not in {"", "disabled"}
        if len(tools) > 1 and not has_thinking:
            return {"tools": list_of(tools[:-1])}
        return {"tool_choice": _NO_CHOICE}


def _has_output_format(fields: Mapping[str, bytes]) -> bool:
    config = as_mapping(decode_field(fields, "output_config"))
    return (config.get("format") or decode_field(fields, "output_format")) is not None


def _prepend_results(results: Sequence[bytes], message: Message) -> bytes | None:
    """Returns the user message with own results before its content; None where it cannot hold them."""
    if message.role != "user" or not is_object(message.wire):
        return None
    fields = fields_of(message.wire)
    content = fields.get("content", NULL)
    if not is_text(content):
        return prepend_entries(results, message, "content")
    blocks = [block for wire in results for block in items_of(fields_of(wire)["content"])]
    text_blocks = () if content == b'""' else (object_of({"type": b'"text"', "text": content}),)
    return object_of({**fields, "content": list_of([*blocks, *text_blocks])})


def _find_breakpoint(messages: Sequence[Message]) -> bytes:
    """Returns the last cache breakpoint of the messages' blocks; empty where there is none."""
    for message in reversed(messages):
        content = fields_of(message.wire).get("content", NULL) if message.cache_breakpoints else NULL
        for block in reversed(items_of(content) if is_list(content) else []):
            cache_control = fields_of(block).get("cache_control", NULL) if is_object(block) else NULL
            if cache_control != NULL:
                return cache_control
    return b""


def _set_breakpoint(wires: Sequence[bytes], cache_control: bytes) -> list[bytes]:
    """Sets this `cache_control` on the last block of the messages that may carry one."""
    marked = list(wires)
    for position in range(len(marked) - 1, -1, -1):
        message = message_json.with_breakpoint(marked[position])
        if message == marked[position]:
            continue
        fields, original_blocks = fields_of(message), items_of(fields_of(marked[position])["content"])
        blocks = items_of(fields["content"])
        index = next(index for index, block in enumerate(blocks) if block != original_blocks[index])
        blocks[index] = object_of({**fields_of(blocks[index]), "cache_control": cache_control})
        marked[position] = object_of({**fields, "content": list_of(blocks)})
        break
    return marked
