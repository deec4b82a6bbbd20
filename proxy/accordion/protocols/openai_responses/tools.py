"""The artifact tool in Responses requests: offers it, answers its calls, and inserts the rounds into later requests.

Clients send a response back item by item, and leave out any of them. Their items of its last round stay, in their
bytes; the items of earlier rounds, and the artifact tool's calls and outputs, are inserted where they were.

Sources: the type files of the openai SDK; the provider's error texts ("No tool output found for function call …",
"Item 'rs_…' of type 'reasoning' was provided without its required following item", "Item with id '…' not found. Items
are not persisted when `store` is set to false").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accordion.model.boundaries import has_item_reference
from accordion.model.conversation import Message, Opaque, Reasoning
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.json_spans import NULL, fields_of, is_list, list_of, object_of, remove_fields
from accordion.protocols.json_values import as_list, as_mapping, decode_field, encode
from accordion.protocols.openai_responses.client_copies import insert_rounds, remove_own_calls
from accordion.protocols.openai_responses.response import decode_object
from accordion.protocols.openai_responses.tool_rounds import ResponsesToolDocument, ResponsesToolStream
from accordion.protocols.tool_loop import (
    ArtifactToolProtocol,
    ArtifactToolResult,
    ToolDefinition,
    find_tool_names,
    list_field,
)

_NO_CHOICE = b'"none"'


@dataclass(frozen=True, slots=True)
class ResponsesArtifactTool(ArtifactToolProtocol):
    """The artifact tool in Responses."""

    def tool_names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """Returns the names of functions and custom tools, also within namespaces."""
        tools = as_list(decode_field(fields, "tools"))
        inner = [tool for each in tools for tool in as_list(as_mapping(each).get("tools"))]
        return find_tool_names([*tools, *inner], "name")

    def offer(self, fields: Mapping[str, bytes], tool: ToolDefinition) -> dict[str, bytes] | None:
        """Returns `tools` with the artifact tool as the last; `tool_choice` and `parallel_tool_calls` stay.

        None with `max_tool_calls`, with `background`, and where the client has no tools and asks for a form of answer,
        or names a stored prompt, whose own tools a list would replace.
        """
        if decode_field(fields, "background") is True or decode_field(fields, "max_tool_calls") is not None:
            return None
        own_tool = object_of(
            {
                "type": b'"function"', "name": encode(tool.name), "description": encode(tool.description),
                "parameters": tool.schema, "strict": b"false",
            }
        )  # fmt: skip
        client_list = fields.get("tools", NULL).strip()
        if is_list(client_list) and client_list[1:-1].strip():
            return {"tools": client_list[:-1].rstrip() + b"," + own_tool + b"]"}
        text_format = as_mapping(as_mapping(decode_field(fields, "text")).get("format")).get("type", "text")
        is_free = client_list == NULL or is_list(client_list)
        if text_format != "text" or decode_field(fields, "prompt") is not None or not is_free:
            return None
        return {"tools": list_of([own_tool])}

    def open_response(self, tool: str, stream: bool) -> ResponsesToolStream | ResponsesToolDocument:
        """Creates a response of events, or of one response object. Both have `response_ids`."""
        return ResponsesToolStream(tool) if stream else ResponsesToolDocument(tool)

    def render_results(self, answers: Sequence[ArtifactToolResult], tool: str) -> tuple[bytes, ...]:
        """Writes a `function_call_output` for each call."""
        return tuple(
            encode({"type": "function_call_output", "call_id": answer.call_id, "output": answer.text})
            for answer in answers
        )

    def render_round(self, entries: Sequence[bytes], fields: Mapping[str, bytes]) -> tuple[bytes, ...]:
        """Returns a round's items as they are sent back. If the provider stores nothing, it rejects ids: they are
        removed, and so is reasoning that has only an id."""
        if decode_field(fields, "store") is not False:
            return tuple(entries)
        return tuple(wire for wire in map(_without_stored_id, entries) if wire is not None)

    def insert_rounds(
        self, messages: Sequence[Message], insertion: ToolRoundInsertion, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """Returns all rounds before the last as they were sent to the provider, then the client's items of the last.

        Own calls are inserted between the client's calls, their outputs before the client's first output. Reasoning
        that led to an own call is inserted with it where the client no longer has it. Arguments with placeholders get
        the model's own text again. None where the client has no item of the last round.
        """
        return insert_rounds(messages, insertion, lambda entries: self.render_round(entries, fields))

    def without_own_calls(self, insertion: ToolRoundInsertion) -> ToolRoundInsertion | None:
        """Returns the rounds without own calls and the reasoning that led only to them."""
        return remove_own_calls(insertion)

    def may_have_stranded_reasoning(self, messages: Sequence[Message]) -> bool:
        """Whether there is an item of reasoning, or a reference, which may be one."""
        # This runs for every unchanged list, so it is quick: such an item has only this part.
        kinds = {type(message.parts[0]) for message in messages if message.parts}
        return Reasoning in kinds or (Opaque in kinds and any(map(has_item_reference, messages)))

    def final_fields(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the client's own tools; where it has none, the artifact tool stays and may not be chosen."""
        tools = list_field(fields, "tools")
        return {"tools": list_of(tools[:-1])} if len(tools) > 1 else {"tool_choice": _NO_CHOICE}


def _without_stored_id(wire: bytes) -> bytes | None:
    """Returns an item without reference to the provider's store; None where nothing is left of it."""
    entry = decode_object(wire)
    if entry.get("type") == "reasoning" and not entry.get("encrypted_content"):
        # Servers of open models send the reasoning itself, and require the id beside it.
        return wire if entry.get("content") else None
    fields = fields_of(wire)
    remove_fields(fields, "id")
    return object_of(fields)
