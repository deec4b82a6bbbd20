"""The OpenAI Chat Completions protocol: `POST /v1/chat/completions`.

Theory of operation. A request has one list, `messages`; system and developer messages at its start are the preamble.
`read_message` turns each message into parts, `edit_message` and `join_messages` write messages back with as few changes
as possible (message_json.py). Responses are parsed in response.py.

`ChatArtifactTool` is the artifact tool in requests: it offers the tool, answers its calls, and inserts the rounds into
later requests. Its calls in responses are hidden in tool_rounds.py. A `tool` message must follow for each call of an
assistant message, before any other message. The proxy's results come first, since the client's own list has the
client's after its copy.

Sources: the type files of the openai SDK (`openai/types/chat`), and what compatible servers add to them
(`reasoning_content` of DeepSeek and vLLM, `reasoning` and `reasoning_details` of OpenRouter, `thinking_blocks` of
LiteLLM, `video_url` of vLLM, `x_groq` of Groq); OpenAI's reference of the endpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from accordion.model.conversation import Message, Part, Text, ToolResult
from accordion.model.errors import AccordionError, ContextOverflow
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.base import ReadMessage, TextPrompt, WireProtocol
from accordion.protocols.json_spans import NULL, is_list, list_of, object_of
from accordion.protocols.json_values import (
    as_list,
    as_mapping,
    as_string,
    decode_field,
    encode,
    first_limit,
    opaque_part,
    openai_error,
    role_of,
    tool_definitions,
)
from accordion.protocols.legality import find_chat_problems
from accordion.protocols.message_keys import canonical_object, canonical_text_message, decode_json
from accordion.protocols.openai_chat import message_json
from accordion.protocols.openai_chat.message_json import (
    read_added_tools,
    read_calls,
    read_parts,
    read_reasoning,
    read_refusal_and_audio,
)
from accordion.protocols.openai_chat.response import ChatParser
from accordion.protocols.openai_chat.tool_rounds import ChunkToolLoop, CompletionToolLoop
from accordion.protocols.tool_loop import (
    MAX_OPENAI_TOOLS,
    ArtifactToolProtocol,
    ArtifactToolResult,
    ToolDefinition,
    ToolLoopResponse,
    count_client_copy,
    find_tool_names,
    list_field,
)


class OpenAIChat(WireProtocol):
    """The OpenAI Chat Completions protocol."""

    name = "chat"
    title = "Chat Completions"
    family = "openai"
    paths = ("/v1/chat/completions",)
    messages_field = "messages"
    takes_texts_with_results = True

    def read_message(self, raw: bytes) -> ReadMessage:
        """Reads one message. The function's name pairs a legacy `function_call` with its result."""
        entry = decode_json(raw)
        if type(entry) is not dict:
            return ReadMessage("other", (opaque_part(entry),), [entry])
        role = role_of(entry.get("role"))
        content = entry.get("content")
        if len(entry) == 2 and type(content) is str and role != "tool":
            canonical = canonical_object(entry) if role == "other" else canonical_text_message(entry["role"], content)
            return ReadMessage(role, (Text(content),) if content else (), canonical)
        parts: tuple[Part, ...]
        if role == "tool":
            call_id = entry.get("tool_call_id") or entry.get("name")
            parts = (ToolResult(as_string(call_id), tuple(read_parts(content))),)
        else:
            parts = (*read_reasoning(entry), *read_parts(content), *read_refusal_and_audio(entry), *read_calls(entry))
            parts += tuple(read_added_tools(entry))
        return ReadMessage(role, parts, canonical_object(entry))

    def is_preamble(self, message: ReadMessage) -> bool:
        """System and developer messages at the start are the system prompt."""
        return message.role in {"system", "developer"}

    def read_preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """Returns nothing: the system prompt is in the list."""
        return ()

    def read_tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Reads tools, legacy functions, and the schema of the answer."""
        schema = as_mapping(decode_field(fields, "response_format")).get("json_schema")
        return tool_definitions(decode_field(fields, "tools"), decode_field(fields, "functions"), schema)

    def read_max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """Reads `max_completion_tokens`, or the older `max_tokens`."""
        return first_limit(fields, "max_completion_tokens", "max_tokens")

    def write_prompt(self, prompt: TextPrompt) -> bytes:
        """Writes a system message and a user message."""
        messages = [{"role": "system", "content": prompt.instructions}, {"role": "user", "content": prompt.text}]
        fields: dict[str, Any] = {"model": prompt.model, "messages": messages, prompt.limit_field: prompt.max_tokens}
        if prompt.schema is not None:
            json_schema = {**prompt.named_schema, "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        return encode({**fields, "stream": False})

    def render_error(self, error: AccordionError, request_id: str) -> bytes:
        """Writes `{"error": {message, type, param, code}}`; an overflow in OpenAI's own words, which agents search
        for."""
        inner = openai_error(error, request_id)
        if isinstance(error, ContextOverflow):
            inner["message"] = (
                f"This model's maximum context length is {error.limit} tokens. However, your messages resulted in "
                f"{error.tokens} tokens. Please reduce the length of the messages. {error.compaction_note} "
                f"(request id: {request_id})"
            )
            inner["param"] = "messages"
        return encode({"error": inner})

    def edit_message(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """Returns the message with parts changed; None if only reasoning is left."""
        return message_json.edit_message(message, changes)

    def text_message(self, text: str) -> bytes:
        """Returns `{"role": "user", "content": text}`."""
        return message_json.text_message(text)

    def join_messages(self, wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
        """Merges the proxy's own blocks with the user messages beside them."""
        return message_json.join_messages(wires, own_positions)

    def find_problems(self, messages: Sequence[Message]) -> list[str]:
        """Checks that results directly follow their calls, every call is answered, and the user is first."""
        return find_chat_problems(messages)

    def parser(self, stream: bool, *, reads_content: bool = False) -> ChatParser:
        """Creates a parser of chunks, or of a completion."""
        return ChatParser(is_stream=stream, reads_content=reads_content)


# -- the artifact tool -------------------------------------------------------------------------------------------------


# Response formats other than free text: the artifact tool is not offered with them if the client has no tools.
_FORMATS = frozenset({"json_schema", "json_object"})


class ChatArtifactTool(ArtifactToolProtocol):
    """The artifact tool in Chat Completions."""

    def tool_names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """Returns the names of functions, custom tools, and functions of the older kind."""
        tools = as_list(decode_field(fields, "tools"))
        older = find_tool_names(as_list(decode_field(fields, "functions")), "name")
        return find_tool_names(tools, "function", "name") | find_tool_names(tools, "custom", "name") | older

    def offer(self, fields: Mapping[str, bytes], tool: ToolDefinition) -> dict[str, bytes] | None:
        """Returns `tools` with the artifact tool as the last. `tool_choice` stays: a client that forces a tool of its
        own, or none, keeps that, and the tool list stays the same from request to request.

        None with `n` above 1, with `functions`, with as many tools as OpenAI takes, and where the client has no tools
        and asks for JSON, gives a `prediction` (neither works with tools), or says which tool to choose.
        """
        choices = decode_field(fields, "n")
        if (type(choices) is int and choices > 1) or any(
            _has_field(fields, name) for name in ("functions", "function_call")
        ):
            return None
        client_list = fields.get("tools", NULL)
        if client_list != NULL and not is_list(client_list):
            return None
        client_tools = list_field(fields, "tools")
        if len(client_tools) == MAX_OPENAI_TOOLS:
            return None
        response_format = as_string(as_mapping(decode_field(fields, "response_format")).get("type"))
        has_choice = decode_field(fields, "tool_choice") not in (None, "auto")
        if not client_tools and (response_format in _FORMATS or has_choice or _has_field(fields, "prediction")):
            return None
        function = {"name": encode(tool.name), "description": encode(tool.description), "parameters": tool.schema}
        own_tool = object_of({"type": b'"function"', "function": object_of(function)})
        return {"tools": list_of([*client_tools, own_tool])}

    def open_response(self, tool: str, stream: bool) -> ToolLoopResponse:
        """Creates a response of chunks, or of one completion."""
        return ChunkToolLoop(tool) if stream else CompletionToolLoop(tool)

    def render_results(self, answers: Sequence[ArtifactToolResult], tool: str) -> tuple[bytes, ...]:
        """Writes a `tool` message for each call. Only its text tells that a call failed."""
        return tuple(
            encode({"role": "tool", "tool_call_id": answer.call_id, "content": answer.text}) for answer in answers
        )  # fmt: skip

    def insert_rounds(
        self, messages: Sequence[Message], insertion: ToolRoundInsertion, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """Replaces the assistant message (some clients make two of it) by the messages of the rounds. The proxy's
        results come before the client's."""
        count = count_client_copy(messages, insertion)
        if not count:
            return None
        return count, tuple(wire for each in insertion.rounds for wire in (*each.response, *each.results))

    def final_fields(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the tools without the last, which is the artifact tool; if it is the only one, `tool_choice` none."""
        client_tools = list_field(fields, "tools")[:-1]
        return {"tools": list_of(client_tools)} if client_tools else {"tool_choice": b'"none"'}


def _has_field(fields: Mapping[str, bytes], name: str) -> bool:
    return decode_field(fields, name) not in (None, [])
