"""The artifact tool in Chat Completions: offers it, answers its calls, and inserts the rounds into later requests.

Source: OpenAI's reference of the endpoint. A `tool` message must follow for each call of an assistant message, before
any other message. The proxy's results come first, since the client's own list has the client's after its copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accordion.model.conversation import Message
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.artifact_placeholders import find_placeholders_in_calls, replace_placeholders_in_calls
from accordion.protocols.json_spans import NULL, is_list, list_of, object_of
from accordion.protocols.json_values import as_list, as_mapping, as_string, decode_field, encode, to_json
from accordion.protocols.openai_chat.rounds import (
    find_usage_holders,
    is_finished,
    paragraph_break,
    round_from_message,
    sum_usage,
    tool_name,
)
from accordion.protocols.openai_chat.tool_stream import ChunkToolLoop
from accordion.protocols.tool_loop import (
    ArtifactPlaceholder,
    ArtifactToolProtocol,
    ArtifactToolResult,
    ObservedRound,
    ToolDefinition,
    ToolLoopResponse,
)
from accordion.protocols.tool_loop_shared import (
    ToolLoopDocument,
    count_client_copy,
    find_tool_names,
    list_field,
)

# Response formats other than free text: the artifact tool is not offered with them if the client has no tools.
_FORMATS = frozenset({"json_schema", "json_object"})
# Fields of a message that are joined over rounds; of all others the last round's value counts.
_JOINED_MESSAGE_FIELDS = frozenset(
    {"content", "refusal", "reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "annotations"}
)


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
        return ChunkToolLoop(tool) if stream else _CompletionToolLoop(tool)

    def render_results(self, answers: Sequence[ArtifactToolResult]) -> tuple[bytes, ...]:
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
        return count, tuple(wire for each in insertion.rounds for wire in (*each.said, *each.answered))

    def final_fields(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the tools without the last, which is the artifact tool; if it is the only one, `tool_choice` none."""
        client_tools = list_field(fields, "tools")[:-1]
        return {"tools": list_of(client_tools)} if client_tools else {"tool_choice": b'"none"'}


def _has_field(fields: Mapping[str, bytes], name: str) -> bool:
    return decode_field(fields, name) not in (None, [])


class _CompletionToolLoop(ToolLoopDocument):
    """Merges the completions of all rounds into one."""

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool

    def read_document(self, document: dict[str, Any]) -> ObservedRound:
        """Reads the first choice; there is no other where the artifact tool is offered."""
        choice, message = _first_choice(document)
        id_prefix, usage_holders = f"{as_string(document.get('id'))}_{len(self.rounds)}", find_usage_holders(document)
        finished = bool(message) and not document.get("error") and is_finished(as_string(choice.get("finish_reason")))
        usage = usage_holders[-1]["usage"] if usage_holders else None
        return round_from_message(message, self._tool, id_prefix, usage, finished=finished)

    def find_document_placeholders(self, document: dict[str, Any]) -> tuple[ArtifactPlaceholder, ...]:
        """Returns the placeholders in the client's calls."""
        return find_placeholders_in_calls(self._functions(document))

    def replace_document_placeholders(self, document: dict[str, Any], texts: Sequence[str | None]) -> bool:
        """Replaces the placeholders in the client's calls."""
        return replace_placeholders_in_calls(self._functions(document), texts)

    def write_document(self) -> bytes:
        """Writes the last completion, with the id of the first, the texts and usage of all, and the client's calls."""
        last = self.documents[-1]
        choice, message = _first_choice(last)
        if not choice:
            return to_json(last)
        for document in reversed(self.documents[:-1]):
            for name, value in _first_choice(document)[1].items():
                if name in _JOINED_MESSAGE_FIELDS:
                    message[name] = _join_field(value, message.get(name))
        calls = [call for call in as_list(message.get("tool_calls")) if tool_name(call) != self._tool]
        if calls:
            message["tool_calls"] = calls
        elif "tool_calls" in message:
            del message["tool_calls"]
        if choice.get("finish_reason") == "tool_calls" and not calls:
            choice["finish_reason"] = "stop"
        first = self.documents[0]
        last |= {name: first[name] for name in ("id", "created", "system_fingerprint") if name in first}
        usages = [holders[-1]["usage"] for holders in map(find_usage_holders, self.documents) if holders]
        for holder in find_usage_holders(last):
            holder["usage"] = sum_usage(usages)
        return to_json(last)

    def _functions(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the functions of the client's calls, if their arguments are text."""
        calls = [
            call for call in as_list(_first_choice(document)[1].get("tool_calls")) if tool_name(call) != self._tool
        ]
        functions = [as_mapping(as_mapping(call).get("function")) for call in calls]
        return [function for function in functions if type(function.get("arguments")) is str]


def _first_choice(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the first choice, and its message."""
    choices = as_list(document.get("choices"))
    choice = as_mapping(choices[0]) if choices else {}
    return choice, as_mapping(choice.get("message"))


def _join_field(before: Any, after: Any) -> Any:
    """Joins a field of a message with that of an earlier round."""
    if not before or not after:
        return after or before
    if type(before) is str and type(after) is str:
        return before + paragraph_break(before, after) + after
    return before + after if type(before) is list and type(after) is list else after
