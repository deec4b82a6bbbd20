"""The Converse API of Amazon Bedrock: `POST /model/{model}/converse` and `/model/{model}/converse-stream`.

Theory of operation. A request names its model, and whether the response is streamed, in its path. It has the system
prompt in `system` and a list `messages` in which user and assistant alternate. A message has a role and a list of
blocks, each an object with one field that names its type: text, media, reasoning, calls, and results, which come in the
user message after their calls. Cache points are blocks of their own. message_json.py reads blocks into parts and edits
them. Responses are parsed in response.py.

Errors have the field `message` and the name of the exception in the header `x-amzn-errortype` (clouds.py).

`ConverseArtifactTool` is the artifact tool in requests: it offers the tool, answers its calls, and inserts the rounds
into later requests. Its calls in responses are hidden in tool_rounds.py. Results come in the user message after their
calls. No choice forbids all tools. Many models of Bedrock have no tools, and refuse a request with some. So the tool is
offered only beside tools of the client's own.

Sources: botocore's model of bedrock-runtime (`ConverseRequest`, `ContentBlock`); the API reference of Converse (also
`ToolConfiguration`, `ToolResultBlock`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from accordion.model.conversation import Message, Part
from accordion.model.errors import AccordionError, ContextOverflow
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.base import Endpoint, ReadMessage, TextPrompt, WireProtocol
from accordion.protocols.bedrock_converse import message_json
from accordion.protocols.bedrock_converse.message_json import block_type, read_parts
from accordion.protocols.bedrock_converse.response import ConverseParser
from accordion.protocols.bedrock_converse.tool_rounds import ConverseToolDocument, ConverseToolStream
from accordion.protocols.bedrock_frames import exception_event, exception_name
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, items_of, list_of, object_of
from accordion.protocols.json_values import (
    as_list,
    as_mapping,
    decode_field,
    encode,
    find_error,
    opaque_part,
    role_of,
    tool_definitions,
)
from accordion.protocols.legality import find_messages_problems
from accordion.protocols.message_keys import CACHE_POINT, decode_json
from accordion.protocols.tool_loop import (
    ArtifactToolProtocol,
    ArtifactToolResult,
    ToolDefinition,
    ToolLoopResponse,
    find_tool_names,
    join_rounds,
    prepend_entries,
)

_PATH = re.compile(r"/model/([^/]+)/converse(-stream)?")


class BedrockConverse(WireProtocol):
    """The Converse API of Amazon Bedrock."""

    name = "converse"
    title = "Bedrock Converse"
    family = "bedrock"
    paths = ()
    messages_field = "messages"
    overhead_fields = ("system", "toolConfig", "outputConfig")
    option_fields = ("inferenceConfig", "performanceConfig", "serviceTier", "guardrailConfig")
    system_fields = ("system",)
    is_translatable = False
    takes_texts_with_results = True
    request_id = b"x-amzn-requestid"

    def find_endpoint(self, path: str) -> Endpoint | None:
        """Reads the model in a path, and whether the response is streamed."""
        match = _PATH.fullmatch(path)
        return None if match is None else Endpoint(model=unquote(match[1]), is_stream=match[2] is not None)

    def is_addressed(self, path: str, fields: Mapping[bytes, bytes]) -> bool:
        """Whether the path is below `/model/`."""
        return path.startswith("/model/")

    def read_message(self, raw: bytes) -> ReadMessage:
        """Reads one message."""
        entry = decode_json(raw)
        if type(entry) is not dict:
            return ReadMessage("other", (opaque_part(entry),), [entry])
        return ReadMessage(
            role_of(entry.get("role")), tuple(read_parts(entry.get("content"))), canonical_message(entry)
        )

    def is_preamble(self, message: ReadMessage) -> bool:
        """Returns False: the system prompt is a field."""
        return False

    def read_preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """Reads `system`, a list of blocks."""
        return tuple(read_parts(decode_field(fields, "system")))

    def read_tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Reads tools, and the schema of the answer."""
        tools = as_list(as_mapping(decode_field(fields, "toolConfig")).get("tools"))
        output_format = as_mapping(decode_field(fields, "outputConfig")).get("textFormat")
        definitions = [each for tool in tools for name, each in as_mapping(tool).items() if name != CACHE_POINT]
        return tool_definitions(definitions, output_format)

    def read_max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """Reads `maxTokens`."""
        limit = as_mapping(decode_field(fields, "inferenceConfig")).get("maxTokens")
        return limit if type(limit) is int and limit >= 0 else None

    def write_prompt(self, prompt: TextPrompt) -> bytes:
        """Writes a system prompt and a user message."""
        fields: dict[str, Any] = {
            "system": [{"text": prompt.instructions}],
            "messages": [{"role": "user", "content": [{"text": prompt.text}]}],
            "inferenceConfig": {"maxTokens": prompt.max_tokens},
        }
        if prompt.schema is not None:
            json_schema = {**prompt.named_schema, "schema": encode(prompt.schema).decode()}
            structure = {"jsonSchema": json_schema}
            fields["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": structure}}
        return encode(fields)

    def prompt_path(self, model: str) -> str:
        """Returns the path of a model, whose response is one document."""
        return f"/model/{quote(model, safe='')}/converse"

    def render_error(self, error: AccordionError, request_id: str) -> bytes:
        """Writes `{"message": …}`; an overflow in Bedrock's own words, which agents search for."""
        message = error.message
        if isinstance(error, ContextOverflow):
            figures = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
            message = f"Input is too long for requested model ({figures}). {error.compaction_note}"
        return encode({"message": message})

    def render_stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """Writes an event that becomes an exception."""
        return exception_event(exception_name(error.status), error.message)

    def stream_provider_error(self, body: bytes) -> bytes:
        """Writes an event with the provider's error that becomes an exception."""
        error = as_mapping(find_error(body).get("error"))
        return exception_event("modelStreamErrorException", str(error.get("message", ""))) if error else b""

    def edit_message(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """Returns the message with parts changed; None if only reasoning is left."""
        return message_json.edit_message(message, changes)

    def text_message(self, text: str) -> bytes:
        """Returns `{"role": "user", "content": [{"text": text}]}`."""
        return message_json.text_message(text)

    def join_messages(self, wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
        """Merges the proxy's own blocks with the user messages beside them."""
        return message_json.join_messages(wires, own_positions)

    def find_problems(self, messages: Sequence[Message]) -> list[str]:
        """Checks that results start the user message after their calls, that nothing is empty, and the user is first.

        Roles alternate as `join_messages` writes the list.
        """
        return find_messages_problems(messages)

    def parser(self, stream: bool, *, reads_content: bool = False) -> ConverseParser:
        """Creates a parser of events, or of a response."""
        return ConverseParser(is_stream=stream, reads_content=reads_content)


def canonical_message(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the canonical form of a message, from which its key is made, in the names of message_keys.py.

    Beside the equivalences of all protocols, it is the same with and without cache points, which clients move from turn
    to turn, and for a result's status `success`. Inputs and JSON results are data and stay as they are. Reasoning is in
    the key, and not in what a message says.
    """
    fields = {name: value for name, value in entry.items() if name != "content" and value is not None}
    content = entry.get("content")
    if type(content) is not list:
        return entry
    parts = [part for block in content if (part := _canonical_block(block)) is not None]
    return {**fields, "content": parts} if parts else fields


def _canonical_block(block: Any) -> Any:
    """Returns the canonical form of a block; None for one that says nothing."""
    if type(block) is not dict:
        return [block]
    fields = {name: value for name, value in block.items() if value is not None}
    kind = block_type(fields)
    if kind == CACHE_POINT and len(fields) == 1:
        return None
    if fields.keys() == {"text"} and type(fields["text"]) is str:
        return fields["text"] or None
    if kind == "toolUse":
        return {"toolUse": {"input": {}, **_without_nulls(fields[kind])}}
    if kind == "toolResult":
        return {"toolResult": _canonical_result(as_mapping(fields[kind]))}
    return {"type": "reasoning", **fields} if kind == "reasoningContent" else {"type": kind, **fields}


def _canonical_result(result: dict[str, Any]) -> dict[str, Any]:
    fields = _without_nulls(result)
    if fields.get("status") == "success":
        del fields["status"]
    content = fields.get("content", [])
    if type(content) is not list:
        return fields
    return {**fields, "content": [part for block in content if (part := _canonical_block(block)) is not None]}


def _without_nulls(value: Any) -> dict[str, Any]:
    return {name: field for name, field in as_mapping(value).items() if field is not None}


# -- the artifact tool -------------------------------------------------------------------------------------------------


_CONFIG = "toolConfig"


class ConverseArtifactTool(ArtifactToolProtocol):
    """The artifact tool in the Converse API."""

    def tool_names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """Returns the names of all tools."""
        tools = as_list(as_mapping(decode_field(fields, _CONFIG)).get("tools"))
        return find_tool_names(tools, "toolSpec", "name") | find_tool_names(tools, "systemTool", "name")

    def offer(self, fields: Mapping[str, bytes], tool: ToolDefinition) -> dict[str, bytes] | None:
        """Returns `toolConfig` with the artifact tool as the last; None where the client has no tools.

        The client's tools keep their bytes and cache points.
        """
        config = fields_of(fields[_CONFIG]) if is_object(fields.get(_CONFIG, NULL)) else {}
        tools = config.get("tools", NULL).strip()
        if not is_list(tools) or not tools[1:-1].strip():
            return None
        own = {"name": encode(tool.name), "description": encode(tool.description)}
        own["inputSchema"] = object_of({"json": tool.schema})
        entry = object_of({"toolSpec": object_of(own)})
        return {_CONFIG: object_of({**config, "tools": tools[:-1].rstrip() + b"," + entry + b"]"})}

    def open_response(self, tool: str, stream: bool) -> ToolLoopResponse:
        """Creates a response of events, or of one document."""
        return ConverseToolStream(tool) if stream else ConverseToolDocument(tool)

    def render_results(self, answers: Sequence[ArtifactToolResult], tool: str) -> tuple[bytes, ...]:
        """Writes one user message with a result for each call. The text says it where a call failed: not all models
        accept a status."""
        blocks = [
            {"toolResult": {"toolUseId": answer.call_id, "content": [{"text": answer.text}]}} for answer in answers
        ]
        return (encode({"role": "user", "content": blocks}),) if blocks else ()

    def insert_rounds(
        self, messages: Sequence[Message], insertion: ToolRoundInsertion, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """Replaces the assistant messages by the rounds.

        Results of the last round's own calls are put at the start of the next user message, before the client's, so it
        is replaced too.
        """
        joined = join_rounds(messages, insertion, _prepend_results)
        return None if joined is None else (joined.replaced_count, (*joined.rounds, *joined.following))

    def final_fields(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the client's own tools."""
        config = fields_of(fields[_CONFIG])
        return {_CONFIG: object_of({**config, "tools": list_of(items_of(config["tools"])[:-1])})}


def _prepend_results(results: Sequence[bytes], message: Message) -> bytes | None:
    """Returns the user message with own results before its blocks; None where it cannot hold them."""
    return prepend_entries(results, message, "content") if message.role == "user" else None
