"""The artifact tool in Anthropic requests: offers it, answers its calls, and inserts the rounds into later requests.

Source: the reference of the Messages API. Results come first in the user message after their calls; a list with calls
needs `tools`; `tool_choice` is valid only with `tools`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accordion.model.conversation import Message
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.anthropic_messages import message_json
from accordion.protocols.anthropic_messages.tool_rounds import MessagesToolDocument, MessagesToolStream
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, is_text, items_of, list_of, object_of
from accordion.protocols.json_values import as_list, as_mapping, as_string, decode_field, encode
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
