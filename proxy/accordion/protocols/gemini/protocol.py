"""Google's Gemini protocol: `POST /v1beta/models/{model}:generateContent`, `:streamGenerateContent`, `:countTokens`.

Theory of operation. A request names its model, and whether the response is streamed, in its path. It has the system
prompt in `systemInstruction` and a list `contents`, in which user and model alternate. A content has a role and a list
of parts: text, media, thoughts, calls, and results, which come in the user content directly after their calls, as many
as the calls. A thought signature belongs to the part that carries it; newer models refuse a turn in which the first
call of a step has lost its signature. message_json.py reads parts and edits them. Responses are parsed in response.py.

`cachedContent` names a beginning of the conversation that the provider keeps. Only the rest is in the request, and only
the rest is counted and compacted.

A token count has the list at its top level; in the form `generateContentRequest` it is passed on unread.

`GeminiArtifactTool` is the artifact tool in requests: it offers the tool, answers its calls, and inserts the rounds
into later requests. Its calls in responses are hidden in tool_rounds.py. The user content directly after calls has one
result for each of them. Functions do not go together with `cachedContent`, nor, in older models, with the provider's
own tools or with an answer in JSON.

Sources: Gemini API reference ("Generating content", "Counting tokens", "Interactions"); the guides "Function calling"
and "Thought signatures"; the type files and the converters of google-genai.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from accordion.model.conversation import Message, Part, Role
from accordion.model.errors import AccordionError, ContextOverflow
from accordion.model.http import GOOGLE_KEY
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.base import Endpoint, ReadMessage, TextPrompt, WireProtocol
from accordion.protocols.gemini import message_json
from accordion.protocols.gemini.message_json import (
    both_spellings,
    camel_case,
    dig,
    get,
    is_thought,
    read_parts,
    signature_of,
    spelling,
)
from accordion.protocols.gemini.response import GeminiParser
from accordion.protocols.gemini.tool_rounds import GeminiToolDocument, GeminiToolStream
from accordion.protocols.json_spans import (
    NULL,
    fields_of,
    is_list,
    is_object,
    items_of,
    list_of,
    object_of,
    remove_fields,
)
from accordion.protocols.json_values import (
    as_list,
    as_mapping,
    as_string,
    decode_field,
    encode,
    opaque_part,
    tool_definitions,
)
from accordion.protocols.legality import find_gemini_problems
from accordion.protocols.message_keys import decode_json
from accordion.protocols.model_name import MODEL_METHOD
from accordion.protocols.tool_loop import (
    ArtifactToolProtocol,
    ArtifactToolResult,
    ToolDefinition,
    ToolLoopResponse,
    find_tool_names,
    join_rounds,
    prepend_entries,
)

_METHODS = {"generateContent": False, "streamGenerateContent": True, "countTokens": False}
"""The methods that are read, and whether their response is streamed."""
_ANSWERING = re.compile(r"/v1[^/]*/(?:.*:(?:stream)?generatecontent|openai/chat/completions)")
_INTERACTIONS = re.compile(
    r"/v1(?:(?:alpha|beta)\d*|(?:beta\d*)?/projects/[^/]+/locations/[^/]+)/interactions(?::[^/]+)?"
)
"""The path at which the Interactions API is asked, of the Gemini API or of Vertex AI."""
_OWN_VERSION = re.compile(r"/upload/v1|/v1(?:alpha|beta)")
_SHARED_PATHS = ("/v1/models", "/v1/files")
"""Paths that several providers have. The header with the key tells them apart."""
_ROLES: dict[object, Role] = {
    None: "user", "": "user", "user": "user", "model": "assistant", "function": "tool", "system": "system",
}  # fmt: skip
_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED", 413: "INVALID_ARGUMENT", 426: "FAILED_PRECONDITION", 429: "RESOURCE_EXHAUSTED",
    431: "INVALID_ARGUMENT", 500: "INTERNAL", 501: "UNIMPLEMENTED", 502: "UNAVAILABLE", 503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}  # fmt: skip
"""Google's status for an HTTP status. Source: `google/rpc/code.proto`."""
_COUNTED = ("tools", "toolConfig")
_TYPE = "type.googleapis.com/google.rpc."


class Gemini(WireProtocol):
    """Google's Gemini protocol."""

    name = "gemini"
    title = "Gemini"
    family = "gemini"
    paths = ()
    operation = "generate_content"
    messages_field = "contents"
    overhead_fields = both_spellings(("systemInstruction", "tools", "toolConfig", "generationConfig", "cachedContent"))
    option_fields = both_spellings(("safetySettings", "serviceTier", "store"))
    system_fields = both_spellings(("systemInstruction",))
    is_translatable = False
    takes_texts_with_results = True

    def find_endpoint(self, path: str) -> Endpoint | None:
        """Reads the model and the method in a path, of the Gemini API or of Vertex AI."""
        match = MODEL_METHOD.fullmatch(path)
        method = "" if match is None else unquote(match[3])[1:]
        if match is None or method not in _METHODS:
            return None
        return Endpoint(method == "countTokens", model=unquote(match[2]), is_stream=_METHODS[method])

    def is_path(self, path: str) -> bool:
        """Knows the methods in small letters, of any kind of model, and Google's path for Chat Completions."""
        return _ANSWERING.fullmatch(path) is not None

    def unread_reason(self, path: str) -> str:
        """Knows the Interactions API, whose conversations the provider keeps in a format of their own."""
        if _INTERACTIONS.fullmatch(path) is None:
            return ""
        return "it is one of Google's Interactions API; `generateContent` and `streamGenerateContent` are read"

    def is_addressed(self, path: str, fields: Mapping[bytes, bytes]) -> bool:
        """Whether the path has a version of Google's, is a method of a model, or is one that several providers have and
        comes with Google's key."""
        if _OWN_VERSION.match(path) or MODEL_METHOD.fullmatch(path):
            return True
        return GOOGLE_KEY in fields and any(path == each or path.startswith(f"{each}/") for each in _SHARED_PATHS)

    def read_message(self, raw: bytes) -> ReadMessage:
        """Reads one content. User contents have the results of the user's functions; contents of the model have those
        of the provider's own tools."""
        entry = decode_json(raw)
        if type(entry) is not dict:
            return ReadMessage("other", (opaque_part(entry),), [entry])
        role = entry.get("role")
        known_role = _ROLES.get(role, "other") if role is None or type(role) is str else "other"
        return ReadMessage(known_role, tuple(read_parts(entry.get("parts"))), canonical_content(entry))

    def is_preamble(self, message: ReadMessage) -> bool:
        """Returns False: the system prompt is a field."""
        return False

    def read_preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """Reads `systemInstruction`, a content or a text."""
        instruction = dig(_decoded(fields, "systemInstruction"), "systemInstruction")
        parts = [{"text": instruction}] if type(instruction) is str else as_mapping(instruction).get("parts")
        return tuple(read_parts(parts))

    def system_message(self, system: bytes) -> bytes:
        """Returns the system prompt, a content or a text, as a content."""
        fields = fields_of(system) if is_object(system) else {"parts": list_of([object_of({"text": system})])}
        return object_of({**fields, "role": b'"system"'})

    def read_tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Reads the declarations of functions, the provider's own tools, and the schema of the answer."""
        texts: list[object] = []
        for tool in as_list(decode_field(fields, "tools")):
            declarations = as_list(dig(tool, "functionDeclarations"))
            texts += declarations or [tool]
        config = _decoded(fields, "generationConfig")
        schemas = (dig(config, "generationConfig", name) for name in ("responseSchema", "responseJsonSchema"))
        return tool_definitions(texts, *schemas)

    def read_max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """Reads `maxOutputTokens`."""
        limit = dig(_decoded(fields, "generationConfig"), "generationConfig", "maxOutputTokens")
        return limit if type(limit) is int and limit >= 0 else None

    def write_prompt(self, prompt: TextPrompt) -> bytes:
        """Writes a system instruction and a user content."""
        config: dict[str, Any] = {"maxOutputTokens": prompt.max_tokens}
        if prompt.schema is not None:
            config |= {"responseMimeType": "application/json", "responseSchema": _openapi_schema(prompt.schema)}
        return encode(
            {
                "systemInstruction": {"parts": [{"text": prompt.instructions}]},
                "contents": [{"role": "user", "parts": [{"text": prompt.text}]}],
                "generationConfig": config,
            }
        )

    def prompt_path(self, model: str) -> str:
        """Returns the path of a model, whose response is one document."""
        return f"/v1beta/models/{quote(model.removeprefix('models/'), safe='')}:generateContent"

    def token_count_body(self, body: bytes, client_fields: Mapping[str, bytes]) -> bytes:
        """Returns the body without tools that the client did not send: a token count has none beside the list."""
        added = [name for name in both_spellings(_COUNTED) if name not in client_fields]
        fields = fields_of(body)
        if fields.keys().isdisjoint(added):
            return body
        remove_fields(fields, *added)
        return object_of(fields)

    def render_error(self, error: AccordionError, request_id: str) -> bytes:
        """Writes `{"error": {code, message, status, details}}`; an overflow in Google's own words, which agents search
        for."""
        message = error.message
        if isinstance(error, ContextOverflow):
            message = (
                f"The input token count ({error.tokens}) exceeds the maximum number of tokens allowed ({error.limit}). "
                f"{error.compaction_note}"
            )
        details = [
            {"@type": f"{_TYPE}ErrorInfo", "reason": (error.code or error.type).upper(), "domain": "accordion"},
            {"@type": f"{_TYPE}RequestInfo", "requestId": request_id},
        ]
        status = _STATUSES.get(error.status, "UNKNOWN")
        return encode({"error": {"code": error.status, "message": message, "status": status, "details": details}})

    def edit_message(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """Returns the content with parts changed; None if only thoughts are left."""
        return message_json.edit_message(message, changes)

    def text_message(self, text: str) -> bytes:
        """Returns `{"role": "user", "parts": [{"text": text}]}`."""
        return message_json.text_message(text)

    def join_messages(self, wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
        """Merges the proxy's own blocks with the user contents beside them."""
        return message_json.join_messages(wires, own_positions)

    def find_problems(self, messages: Sequence[Message]) -> list[str]:
        """Checks that calls are answered at once and one by one, that nothing is empty, and that the user is first."""
        return find_gemini_problems(messages)

    def parser(self, stream: bool, *, reads_content: bool = False) -> GeminiParser:
        """Creates a parser of events, or of a response or a list of them."""
        return GeminiParser(is_stream=stream, reads_content=reads_content)


def _decoded(fields: Mapping[str, bytes], name: str) -> dict[str, object]:
    """Decodes one top-level field, under its name in lower camel case; in either spelling."""
    raw = get(fields, name)
    return {} if raw is None else {name: decode_field({name: raw}, name)}


_PLAIN = frozenset({"text"})
_DATA = frozenset({"functionCall", "functionResponse"})


def canonical_content(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the canonical form of a content, from which its key is made, in the names of message_keys.py.

    Beside the equivalences of all protocols, it is the same for both spellings of a name, for a role `user` that is
    left out, and for arguments that are absent or empty. Arguments and results are data and stay as they are.
    Signatures and thoughts are in the key, and not in what a message says.
    """
    fields = {name: value for name, value in entry.items() if name not in {"role", "parts"} and value is not None}
    parts = [canonical for part in as_list(entry.get("parts")) if (canonical := _canonical_part(part)) is not None]
    content = {"content": parts} if parts else {}
    return {"role": entry.get("role") or "user", **content, **fields}


def _canonical_part(part: Any) -> Any:
    """Returns the canonical form of a part; None for one that says nothing."""
    if type(part) is not dict:
        return [part]
    fields = {camel_case(name): value for name, value in part.items() if value is not None}
    if fields.keys() == _PLAIN and type(fields["text"]) is str:
        return fields["text"] or None
    for name in _DATA & fields.keys():
        fields[name] = _canonical_call(as_mapping(fields[name]))
    signature = signature_of(fields)
    if is_thought(fields) or fields.keys() == {"thoughtSignature"}:
        return {"type": "thinking", **fields}
    if signature:
        del fields["thoughtSignature"]
        fields["thought_signature"] = signature
    if "text" in fields:
        fields["type"] = "text"
    return fields


def _canonical_call(call: dict[str, Any]) -> dict[str, Any]:
    """Returns a call with its arguments in any case, or a result, without absent fields.

    `input` is a name whose value message_keys.py takes for data.
    """
    fields = {camel_case(name): value for name, value in call.items() if value is not None}
    data = fields.pop("response", None) or fields.pop("args", None)
    return {**fields, "input": data or {}}


# -- the artifact tool -------------------------------------------------------------------------------------------------


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
    config = _field_value(fields, "generationConfig")
    candidates = dig(config, "candidateCount")
    has_pieces = dig(_field_value(fields, "toolConfig"), "functionCallingConfig", "streamFunctionCallArguments")
    is_cached = _field_value(fields, "cachedContent") not in (None, "")
    return is_cached or has_pieces is True or (type(candidates) is int and candidates > 1)


def _has_choice(fields: Mapping[str, bytes]) -> bool:
    mode = as_string(dig(_field_value(fields, "toolConfig"), "functionCallingConfig", "mode"))
    return mode not in {"", "AUTO", "MODE_UNSPECIFIED"}


def _has_form(fields: Mapping[str, bytes]) -> bool:
    """Whether the request asks for another form of answer than text."""
    config = _field_value(fields, "generationConfig")
    modalities = as_list(dig(config, "responseModalities"))
    return dig(config, "responseMimeType") not in _PLAIN_TYPES or any(each != "TEXT" for each in modalities)


def _field_value(fields: Mapping[str, bytes], name: str) -> Any:
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


def _openapi_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a JSON schema in the form of `responseSchema`, OpenAPI's: types in capitals, no additionalProperties."""
    converted = {name: value for name, value in schema.items() if name != "additionalProperties"}
    converted["type"] = schema["type"].upper()
    if "items" in schema:
        converted["items"] = _openapi_schema(schema["items"])
    if "properties" in schema:
        converted["properties"] = {name: _openapi_schema(each) for name, each in schema["properties"].items()}
    return converted
