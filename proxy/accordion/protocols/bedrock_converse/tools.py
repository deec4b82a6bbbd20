"""The artifact tool in the Converse API: offers it, answers its calls, and inserts the rounds into later requests.

Many models of Bedrock have no tools, and refuse a request with some. So the tool is offered only beside tools of the
client's own.

Source: the API reference of Converse (`ToolConfiguration`, `ToolResultBlock`). Results come in the user message after
their calls. No choice forbids all tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accordion.model.conversation import Message
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.bedrock_converse.tool_rounds import ConverseToolDocument, ConverseToolStream
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, items_of, list_of, object_of
from accordion.protocols.json_values import as_list, as_mapping, decode_field, encode
from accordion.protocols.tool_loop import (
    ArtifactToolProtocol,
    ArtifactToolResult,
    ToolDefinition,
    ToolLoopResponse,
    find_tool_names,
    join_rounds,
    prepend_entries,
)

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
