"""The artifact tool in Gemini's requests: offers it, answers its calls, and inserts the rounds into later requests.

Source: the guide "Function calling". The user content directly after calls has one result for each of them. Functions
do not go together with `cachedContent`, nor, in older models, with the provider's own tools or with an answer in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accordion.model.conversation import Message
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.gemini.message_json import dig, get, spelling
from accordion.protocols.gemini.tool_rounds import GeminiToolDocument, GeminiToolStream
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, items_of, list_of, object_of
from accordion.protocols.json_values import as_list, as_string, decode_field, encode
from accordion.protocols.message_keys import decode_json
from accordion.protocols.tool_loop import (
    ArtifactToolProtocol,
    ArtifactToolResult,
    ToolDefinition,
    ToolLoopResponse,
    find_tool_names,
    join_rounds,
    prepend_entries,
)

_DECLARATIONS = "functionDeclarations"
_NO_CALLS = {"functionCallingConfig": {"mode": "NONE"}}
_PLAIN_TYPES = (None, "", "text/plain")


class GeminiArtifactTool(ArtifactToolProtocol):
    """The artifact tool in Gemini's protocol."""

    def tool_names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """Returns the names of all functions."""
        tools = as_list(decode_field(fields, "tools"))
        return find_tool_names([each for tool in tools for each in as_list(dig(tool, _DECLARATIONS))], "name")

    def offer(self, fields: Mapping[str, bytes], tool: ToolDefinition) -> dict[str, bytes] | None:
        """Returns `tools` with the artifact tool as the last declaration of the first list of functions, since a second
        list is refused by some servers. The client's declarations and `toolConfig` stay.

        None with several candidates, with `cachedContent`, with arguments that come in pieces, where the client has
        only tools of the provider's, and where it has no tools and asks for another form of answer than text, or says
        which tool to choose.
        """
        if _excludes_tools(fields):
            return None
        own = object_of(
            {"name": encode(tool.name), "description": encode(tool.description), "parameters": _schema(tool.schema)}
        )
        client_list = fields.get("tools", NULL)
        if client_list != NULL and not is_list(client_list):
            return None
        tools = items_of(client_list) if client_list != NULL else []
        if not tools:
            entry = object_of({_DECLARATIONS: list_of([own])})
            return None if _has_choice(fields) or _has_form(fields) else {"tools": list_of([entry])}
        index = _find_functions(tools)
        return None if index < 0 else {"tools": _replace_declarations(tools, index, lambda each: [*each, own])}

    def open_response(self, tool: str, stream: bool) -> ToolLoopResponse:
        """Creates a response of events, or of one document."""
        return GeminiToolStream(tool) if stream else GeminiToolDocument(tool)

    def render_results(self, answers: Sequence[ArtifactToolResult], tool: str) -> tuple[bytes, ...]:
        """Writes one user content with a result for each call. A call without an id has a result without one."""
        parts = [{"functionResponse": _response(answer, tool)} for answer in answers]
        return (encode({"role": "user", "parts": parts}),) if parts else ()

    def insert_rounds(
        self, messages: Sequence[Message], insertion: ToolRoundInsertion, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """Replaces the contents of the model by the rounds.

        Results of the last round's own calls are put at the start of the next user content, before the client's, so it
        is replaced too.
        """
        joined = join_rounds(messages, insertion, _prepend_results)
        return None if joined is None else (joined.replaced_count, (*joined.rounds, *joined.following))

    def final_fields(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the tools without the artifact tool, which is the last declaration of the first list of functions; if
        it is the only one, it stays, and no function may be called."""
        tools = items_of(fields.get("tools", b"[]"))
        index = _find_functions(tools)
        if index >= 0 and len(_declarations(tools[index])) > 1:
            return {"tools": _replace_declarations(tools, index, lambda each: each[:-1])}
        return {spelling(fields, "toolConfig"): encode(_NO_CALLS)}


def _excludes_tools(fields: Mapping[str, bytes]) -> bool:
    config = _decoded(fields, "generationConfig")
    candidates = dig(config, "candidateCount")
    has_pieces = dig(_decoded(fields, "toolConfig"), "functionCallingConfig", "streamFunctionCallArguments")
    is_cached = _decoded(fields, "cachedContent") not in (None, "")
    return is_cached or has_pieces is True or (type(candidates) is int and candidates > 1)


def _has_choice(fields: Mapping[str, bytes]) -> bool:
    mode = as_string(dig(_decoded(fields, "toolConfig"), "functionCallingConfig", "mode"))
    return mode not in {"", "AUTO", "MODE_UNSPECIFIED"}


def _has_form(fields: Mapping[str, bytes]) -> bool:
    """Whether the request asks for another form of answer than text."""
    config = _decoded(fields, "generationConfig")
    modalities = as_list(dig(config, "responseModalities"))
    return dig(config, "responseMimeType") not in _PLAIN_TYPES or any(each != "TEXT" for each in modalities)


def _decoded(fields: Mapping[str, bytes], name: str) -> Any:
    raw = get(fields, name)
    return None if raw is None else decode_field({name: raw}, name)


def _schema(schema: bytes) -> bytes:
    """Returns a schema of arguments without the keyword that `parameters` does not have."""
    return encode({name: value for name, value in decode_json(schema).items() if name != "additionalProperties"})


def _find_functions(tools: Sequence[bytes]) -> int:
    """Returns the index of the first tool that is a list of functions; -1 without one."""
    return next((index for index, tool in enumerate(tools) if is_object(tool) and _declarations(tool)), -1)


def _declarations(tool: bytes) -> list[bytes]:
    raw = get(fields_of(tool), _DECLARATIONS)
    return items_of(raw) if raw is not None and is_list(raw) else []


def _replace_declarations(tools: Sequence[bytes], index: int, change: Any) -> bytes:
    fields = fields_of(tools[index])
    declarations = list_of(change(_declarations(tools[index])))
    entry = object_of({**fields, spelling(fields, _DECLARATIONS): declarations})
    return list_of([*tools[:index], entry, *tools[index + 1 :]])


def _response(answer: ArtifactToolResult, tool: str) -> dict[str, Any]:
    given_id = {} if answer.call_id == tool else {"id": answer.call_id}
    return {**given_id, "name": tool, "response": {"error" if answer.error else "output": answer.text}}


def _prepend_results(results: Sequence[bytes], message: Message) -> bytes | None:
    """Returns the user content with own results before its parts; None where it cannot hold them."""
    return prepend_entries(results, message, "parts") if message.role in {"user", "tool"} else None
