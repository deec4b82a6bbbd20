"""The artifact tool in Chat Completions: offers it, answers its calls, and inserts the rounds into later requests.

Source: OpenAI's reference of the endpoint. A `tool` message must follow for each call of an assistant message, before
any other message. The proxy's results come first, since the client's own list has the client's after its copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accordion.model.conversation import Message
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.json_spans import NULL, is_list, list_of, object_of
from accordion.protocols.json_values import as_list, as_mapping, as_string, decode_field, encode
from accordion.protocols.openai_chat.tool_rounds import (
    ChunkToolLoop,
    CompletionToolLoop,
)
from accordion.protocols.tool_loop import (
    ArtifactToolProtocol,
    ArtifactToolResult,
    ToolDefinition,
    ToolLoopResponse,
    count_client_copy,
    find_tool_names,
    list_field,
)

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

        None with `n` above 1, with `functions`, and where the client has no tools and asks for JSON, gives a
        `prediction` (neither works with tools), or says which tool to choose.
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
