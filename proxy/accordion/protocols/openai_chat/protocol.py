"""The OpenAI Chat Completions protocol: `POST /v1/chat/completions`.

Theory of operation. A request has one list, `messages`; system and developer messages at its start are the preamble.
`read_message` turns each message into parts, `edit_message` and `join_messages` write messages back with as few changes
as possible (message_json.py). Responses are parsed in response.py; the artifact tool is in tools.py.

Source: the type files of the openai SDK (`openai/types/chat`), and what compatible servers add to them
(`reasoning_content` of DeepSeek and vLLM, `reasoning` and `reasoning_details` of OpenRouter,
`thinking_blocks` of LiteLLM, `video_url` of vLLM, `x_groq` of Groq).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from accordion.model.conversation import Message, Part, Text, ToolResult
from accordion.model.errors import AccordionError, ContextOverflow
from accordion.protocols.base import ReadMessage, TextPrompt, WireProtocol
from accordion.protocols.json_values import (
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
from accordion.protocols.openai_chat.message_json import read_calls, read_parts, read_reasoning, read_refusal_and_audio
from accordion.protocols.openai_chat.response import ChatParser


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
        limit = {prompt.limit_field: prompt.max_tokens}
        return encode({"model": prompt.model, "messages": messages, **limit, "stream": False})

    def render_error(self, error: AccordionError, request_id: str) -> bytes:
        """Writes `{"error": {message, type, param, code}}`; an overflow in OpenAI's own words, which agents search
        for."""
        inner = openai_error(error, request_id)
        if isinstance(error, ContextOverflow):
            inner["message"] = (
                f"This model's maximum context length is {error.limit} tokens. However, your messages resulted in "
                f"{error.tokens} tokens. Please reduce the length of the messages. {error.folding} "
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
