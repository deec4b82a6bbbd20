"""The OpenAI Responses protocol: `POST /v1/responses`.

Theory of operation. A request has a list of items, `input` (or one string), and the system prompt in `instructions`. An
item is a message, a call, a call's output or reasoning; message_json.py reads it into parts and edits it. A request may
continue a stored response (`previous_response_id`, `conversation`), whose items it does not repeat. Responses are
parsed in response.py.

Besides the equivalences in message_keys.py, the canonical form omits the `id` of an item that has its content: a
message, an item with a `call_id`, or one with encrypted content. Clients drop or keep those ids. Any other id stands
for content that only the provider has. `"type": "message"` is the same as no type.

`ResponsesArtifactTool` is the artifact tool in requests: it offers the tool, answers its calls, and inserts the rounds
into later requests. Its calls in responses are hidden in tool_rounds.py. Clients send a response back item by item, and
incomplete: without reasoning, ids or status, with texts joined, with each output after its call or all after the last
call. So items are matched by id or content, in any order. The client's items of a response's last round stay, in their
bytes; the items of earlier rounds, and the artifact tool's calls and outputs, are inserted where they were. The rounds
before the last were sent to the provider once, when it was asked to continue: they are inserted as they were sent.

Sources: the type files of the openai SDK (`openai/types/responses`); the provider's error texts ("No tool output found
for function call …", "Item 'rs_…' of type 'reasoning' was provided without its required following item", "Item with id
'…' not found. Items are not persisted when `store` is set to false").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from accordion.model.boundaries import has_item_reference
from accordion.model.conversation import Message, Opaque, Part, ProviderState, Reasoning, Text
from accordion.model.errors import AccordionError, ContextOverflow
from accordion.model.insertions import ToolRound, ToolRoundInsertion
from accordion.protocols.base import ReadMessage, TextPrompt, WireProtocol
from accordion.protocols.json_spans import NULL, fields_of, is_list, list_of, object_of, remove_fields
from accordion.protocols.json_values import (
    as_list,
    as_mapping,
    as_string,
    decode_field,
    encode,
    find_error,
    first_limit,
    opaque_part,
    openai_error,
    tool_definitions,
)
from accordion.protocols.legality import find_responses_problems
from accordion.protocols.message_keys import canonical_object, decode_json
from accordion.protocols.openai_responses import message_json
from accordion.protocols.openai_responses.message_json import CALLS, HOSTED_CALLS, read_content, read_item
from accordion.protocols.openai_responses.response import ResponsesParser, decode_object
from accordion.protocols.openai_responses.socket_messages import CREATE
from accordion.protocols.openai_responses.tool_rounds import ResponsesToolDocument, ResponsesToolStream
from accordion.protocols.tool_loop import (
    MAX_OPENAI_TOOLS,
    ArtifactToolProtocol,
    ArtifactToolResult,
    ToolDefinition,
    find_tool_names,
    list_field,
)

# A name quoted within a text is escaped there, so it cannot match.
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,18})')
_NO_OUTPUT = re.compile(r"No tool output found for (custom )?(?:function |tool )*call (\S+?)\.?(?:\s|$)")
_NO_CALL = re.compile(
    r"No tool call found for (custom )?(?:function |tool )*call output with call_id (\S+?)\.?(?:\s|$)"
)
_LONE_REASONING = re.compile(r"Item '([^']+)' of type 'reasoning' was provided without its required following item")
_NO_REASONING = re.compile(r"Item '([^']+)'(?: of type '[^']*')? was provided without its required 'reasoning' item")
_MISSING_OUTPUT = "The result of this call is no longer available."
_LATE_ANSWER_TYPES = frozenset({"program", "mcp_approval_request"})


class OpenAIResponses(WireProtocol):
    """The OpenAI Responses protocol."""

    name = "responses"
    title = "Responses"
    family = "openai"
    paths = ("/v1/responses",)
    token_count_paths = ("/v1/responses/input_tokens",)
    compaction_paths = ("/v1/responses/compact",)
    messages_field = "input"

    def read_message(self, raw: bytes) -> ReadMessage:
        """Reads one item. A plain string is a user message."""
        entry = decode_json(raw)
        if type(entry) is str:
            text_parts = (Text(entry),) if entry else ()
            return ReadMessage("user", text_parts, canonical_object({"role": "user", "content": entry}))
        if type(entry) is not dict:
            return ReadMessage("other", (opaque_part(entry),), [entry])
        role, parts = read_item(entry, len(raw))
        return ReadMessage(role, parts, _canonical_item(entry))

    def is_preamble(self, message: ReadMessage) -> bool:
        """System and developer items at the start are part of the system prompt."""
        return message.role in {"system", "developer"}

    def read_preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """Reads `instructions`."""
        return tuple(read_content(decode_field(fields, "instructions")))

    def read_tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Reads tools, and the schema of the answer."""
        text_format = as_mapping(as_mapping(decode_field(fields, "text")).get("format"))
        schema = text_format if text_format.get("type") == "json_schema" else None
        return tool_definitions(decode_field(fields, "tools"), schema)

    def is_streamed(self, fields: Mapping[str, bytes]) -> bool:
        """Reads `stream`. The message of a WebSocket does not have it: its response is a stream."""
        return decode_field(fields, "type") == CREATE or super().is_streamed(fields)

    def read_max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """Reads `max_output_tokens`."""
        return first_limit(fields, "max_output_tokens")

    def read_continued_id(self, fields: Mapping[str, bytes]) -> str:
        """Reads `previous_response_id`, or the id of the `conversation`."""
        previous = decode_field(fields, "previous_response_id") or decode_field(fields, "conversation")
        return as_string(previous) or as_string(as_mapping(previous).get("id")) or ""

    def provider_state(self, fields: Mapping[str, bytes]) -> ProviderState:
        """Returns `object` for a `conversation`, else `response`: each response is stored under its id. `store` is
        ignored, since a client that sets it to false does not continue from the response."""
        is_conversation = (
            decode_field(fields, "previous_response_id") is None and decode_field(fields, "conversation") is not None
        )
        return "object" if is_conversation else "response"

    def is_background(self, fields: Mapping[str, bytes]) -> bool:
        """Reads `background`. Some servers also take a number or a text for true."""
        return decode_field(fields, "background") not in (None, False)

    def missing_entry(self, refusal: bytes) -> bytes:
        """Builds the output of a call that has none, or the call of an output that has none.

        Source: OpenAI's error texts as clients quote them (openai/codex#17630, microsoft/vscode#320060,
        smallmain/vscode-unify-chat-provider#40); `param` is `input`, `code` null.
        """
        text = _error_text(refusal)
        if (match := _NO_OUTPUT.search(text)) is not None:
            kind = "custom_tool_call_output" if match[1] == "custom " else "function_call_output"
            return encode({"type": kind, "call_id": match[2], "output": _MISSING_OUTPUT})
        if (match := _NO_CALL.search(text)) is not None:
            if match[1] == "custom ":
                call = {"type": "custom_tool_call", "call_id": match[2], "name": "unknown", "input": ""}
            else:
                call = {"type": "function_call", "call_id": match[2], "name": "unknown", "arguments": "{}"}
            return encode(call)
        return b""

    def without_refused_reasoning(self, entries: Sequence[bytes], refusal: bytes) -> list[bytes] | None:
        """Removes reasoning that leads to nothing, or the id by which an item requires its reasoning.

        An item that must have an id, as calls of the provider's own tools must, is removed as a whole.

        Source: OpenAI's error texts as clients quote them (continuedev/continue#8933, #11466).
        """
        text = _error_text(refusal)
        lone, led = _LONE_REASONING.search(text), _NO_REASONING.search(text)
        match = lone or led
        if match is None:
            return None
        at = next((at for at, wire in enumerate(entries) if as_mapping(decode_json(wire)).get("id") == match[1]), None)
        if at is None:
            return None
        fields = fields_of(entries[at])
        is_removed = lone or not message_json.is_self_contained(fields)
        remove_fields(fields, "id")
        return [*entries[:at], *(() if is_removed else (object_of(fields),)), *entries[at + 1 :]]

    def write_prompt(self, prompt: TextPrompt) -> bytes:
        """Writes instructions and a user message. The provider does not store the response."""
        content = [{"type": "input_text", "text": prompt.text}]
        fields: dict[str, Any] = {
            "model": prompt.model,
            "instructions": prompt.instructions,
            "input": [{"role": "user", "content": content}],
            "max_output_tokens": prompt.max_tokens,
        }
        if prompt.schema is not None:
            fields["text"] = {"format": {"type": "json_schema", **prompt.named_schema, "strict": True}}
        return encode({**fields, "store": False, "stream": False})

    def render_error(self, error: AccordionError, request_id: str) -> bytes:
        """Writes `{"error": {message, type, param, code}}`."""
        return encode({"error": _error_fields(error, request_id)})

    def render_stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """Writes an `error` event. The documented form has message, code and param beside the type; the official SDKs
        raise only on an inner `error`, which the provider sends too. The event has both."""
        numbers = _NUMBER.findall(before)
        return _error_event(_error_fields(error, request_id), int(numbers[-1]) + 1 if numbers else 0)

    def stream_provider_error(self, body: bytes) -> bytes:
        """Writes an `error` event with the provider's error, numbered 0."""
        error = find_error(body)
        return _error_event(error["error"], 0) if error else b""

    def edit_message(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """Returns the item with parts changed. Reasoning and hosted calls can only be removed as a whole."""
        return message_json.edit_message(message, changes)

    def text_message(self, text: str) -> bytes:
        """Returns a user's `message` item with one `input_text`."""
        return message_json.text_message(text)

    def join_messages(self, wires: Sequence[bytes], own_positions: Collection[int]) -> list[bytes]:
        """Returns the items, a plain string as a message, and without ids that refer to removed reasoning."""
        return message_json.join_messages(wires)

    def find_problems(self, messages: Sequence[Message]) -> list[str]:
        """Checks that outputs and calls are paired, and that reasoning comes with the item that follows it."""
        return find_responses_problems(messages)

    def allows_late_answers(self, message: Message) -> bool:
        """Whether a message is a program, an approval request, an `async` function, or an output without a call id.

        Source: type files of the openai SDK (`program`, `mcp_approval_request`, `async`; the `call_id` of an output is
        optional).
        """
        try:
            entry = as_mapping(decode_json(message.wire))
        except ValueError:
            return False
        kind = as_string(entry.get("type"))
        is_unpaired_output = kind.endswith("_output") and not entry.get("call_id")
        return is_unpaired_output or kind in _LATE_ANSWER_TYPES or entry.get("async") is True

    def parser(self, stream: bool, *, reads_content: bool = False) -> ResponsesParser:
        """Creates a parser of events, or of a response object."""
        return ResponsesParser(is_stream=stream, reads_content=reads_content)


def _error_event(error: Mapping[str, Any], number: int) -> bytes:
    top_fields = {name: error.get(name) for name in ("code", "message", "param")}
    event = {"type": "error", "sequence_number": number, **top_fields, "error": error}
    return b"event: error\ndata: " + encode(event) + b"\n\n"


def _error_fields(error: AccordionError, request_id: str) -> dict[str, Any]:
    """Returns the inner object of an error; an overflow in the words of this API, which agents search for."""
    error_fields = openai_error(error, request_id)
    if isinstance(error, ContextOverflow):
        error_fields["message"] = (
            "Your input exceeds the context window of this model. Please adjust your input and try again. "
            f"(Its maximum context length is {error.limit} tokens; your input resulted in {error.tokens} tokens. "
            f"{error.compaction_note} request id: {request_id})"
        )
        error_fields["param"] = "input"
    return error_fields


def _canonical_item(entry: dict[str, Any]) -> dict[str, Any]:
    canonical = canonical_object(entry)
    kind = canonical.get("type")
    if kind == "message":
        del canonical["type"]
        kind = None
    if kind is None and "role" not in canonical:
        canonical["type"] = "item_reference"
    elif kind is None or "call_id" in canonical or "encrypted_content" in canonical:
        canonical.pop("id", None)
    return canonical


def _error_text(refusal: bytes) -> str:
    """Returns the message of an error about the list of items; empty where it is another."""
    try:
        error = as_mapping(as_mapping(decode_json(refusal)).get("error"))
    except ValueError:
        return ""
    return as_string(error.get("message")) if error.get("param") in (None, "input") else ""


# -- the artifact tool -------------------------------------------------------------------------------------------------


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

        None with `max_tool_calls`, with `background`, with as many tools as OpenAI takes, and where the client has no
        tools and asks for a form of answer, or names a stored prompt, whose own tools a list would replace.
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
            if len(list_field(fields, "tools")) == MAX_OPENAI_TOOLS:
                return None
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
        that led to an own call is inserted with it where the client no longer has it. None where the client has no item
        of the last round.
        """
        return _insert_rounds(messages, insertion, lambda entries: self.render_round(entries, fields))

    def without_own_calls(self, insertion: ToolRoundInsertion) -> ToolRoundInsertion | None:
        """Returns the rounds without own calls and the reasoning that led only to them."""
        return _remove_own_calls(insertion)

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


# -- insertion of rounds into the client's copies of responses ---------------------------------------------------------


RenderRound = Callable[[Sequence[bytes]], Sequence[bytes]]

# Fields that identify an item: the provider's ids, and content that only the provider can read.
_ID_FIELDS = ("id", "call_id", "encrypted_content")


class _ProviderItem(msgspec.Struct, frozen=True):
    """An item of the round `number`. An own call that was answered is `hidden`."""

    number: int
    wire: bytes
    kind: str
    ids: frozenset[tuple[str, str]]
    text: str
    hidden: bool


def _insert_rounds(
    messages: Sequence[Message], insertion: ToolRoundInsertion, render_round: RenderRound
) -> tuple[int, tuple[bytes, ...]] | None:
    """See ArtifactToolProtocol.insert_rounds. `render_round` prepares a round's items for sending."""
    items = [one_round for number in range(len(insertion.rounds)) for one_round in _list_items(insertion, number)]
    matches, client_end = _match_items(messages, items, has_calls=bool(insertion.calls))
    if not any(items[index].number == len(insertion.rounds) - 1 for index in matches):
        return None
    last_round = len(insertion.rounds) - 1
    last_matches = {index: position for index, position in matches.items() if items[index].number == last_round}
    dropped_indexes = _find_dropped(items, matches)
    replacements = _replace_client_items(messages, items, matches, last_matches, render_round)
    replacements |= {matches[index]: () for index in dropped_indexes if index in matches}
    unsupported_indexes = _find_unsupported(items, dropped_indexes)
    for index in unsupported_indexes & last_matches.keys():
        position = last_matches[index]
        is_reference = has_item_reference(messages[position])
        replacements[position] = tuple(
            map(_without_id, (items[index].wire,) if is_reference else replacements[position])
        )
    insertions_by_position: dict[int, list[bytes]] = {}
    for position, wires in _place_hidden_items(
        messages[:client_end], items, last_matches, last_round, render_round, insertion.rounds[last_round].results
    ):
        insertions_by_position.setdefault(position, []).extend(wires)
    end = max(max(matches.values()) + 1, *insertions_by_position, 0)
    entries: list[bytes] = []
    for number, one_round in enumerate(insertion.rounds[:last_round]):
        remaining = [
            index for index, item in enumerate(items) if item.number == number and index not in dropped_indexes
        ]
        wires = [
            _without_id(items[index].wire) if index in unsupported_indexes else items[index].wire for index in remaining
        ]
        entries += (*render_round(wires), *one_round.results)
    for position in range(end + 1):
        entries += insertions_by_position.get(position, ())
        if position < end:
            entries += replacements.get(position, (messages[position].wire,))
    return end, tuple(entries)


def _remove_own_calls(insertion: ToolRoundInsertion) -> ToolRoundInsertion | None:
    """See ArtifactToolProtocol.without_own_calls: without results, own calls are not `hidden` and are dropped."""
    if not any(one_round.results for one_round in insertion.rounds):
        # It has no own calls.
        return insertion
    items = [one_round for number in range(len(insertion.rounds)) for one_round in _list_items(insertion, number)]
    has_stranded_reasoning = any(item.kind == "reasoning" and next_item.hidden for item, next_item in pairwise(items))
    rounds = tuple(ToolRound(one_round.response) for one_round in insertion.rounds)
    return (
        ToolRoundInsertion(insertion.anchor, rounds, insertion.calls, insertion.text, insertion.at)
        if has_stranded_reasoning
        else None
    )


def _find_dropped(items: Sequence[_ProviderItem], matches: Mapping[int, int]) -> set[int]:
    """Finds the items to drop: unanswered calls that the client does not have, and the reasoning that led to them,
    which the provider rejects without them. If that reasoning led to another item too, which stays, all reasoning
    before it is dropped: only then does the provider accept that item alone. So are calls before it that the provider
    ran itself: they must have their id, and with it their reasoning."""
    dropped = {
        index
        for index, item in enumerate(items)
        if item.kind == "function_call" and not item.hidden and index not in matches
    }
    reasoning: set[int] = set()
    for index in range(len(items) - 2, -1, -1):
        if (
            items[index].kind != "reasoning"
            or items[index + 1].number != items[index].number
            or index + 1 not in dropped | reasoning
        ):
            continue
        reasoning.add(index)
        followers = [later for later in range(index + 1, len(items)) if items[later].number == items[index].number]
        if any(later not in dropped for later in followers if items[later].kind != "reasoning"):
            reasoning |= {later for later in range(index) if items[later].kind in {"reasoning", *HOSTED_CALLS}}
    return dropped | reasoning


def _find_unsupported(items: Sequence[_ProviderItem], dropped_indexes: set[int]) -> set[int]:
    """Finds the items that followed dropped reasoning: by an item's id the provider knows its reasoning, and rejects
    the item without it (`message_json.join_messages`)."""
    unsupported, reasoning = set[int](), -1
    for index, item in enumerate(items):
        if item.kind == "reasoning":
            reasoning = index
        elif reasoning in dropped_indexes and items[reasoning].number == item.number:
            unsupported.add(index)
    return unsupported


def _without_id(wire: bytes) -> bytes:
    fields = fields_of(wire)
    remove_fields(fields, "id")
    return object_of(fields)


def _replace_client_items(
    messages: Sequence[Message],
    items: Sequence[_ProviderItem],
    matches: Mapping[int, int],
    last_matches: Mapping[int, int],
    render_round: RenderRound,
) -> dict[int, Sequence[bytes]]:
    """Returns the replacements of the client's items, by position: nothing for those of earlier rounds, which are
    inserted before them, and the last round's own items for a text that the client joined over rounds. `last_matches`
    are the matches of the last round."""
    replacements: dict[int, Sequence[bytes]] = dict.fromkeys(matches.values(), ())
    earlier_positions = {index for position, index in matches.items() if position not in last_matches}
    for index in set(last_matches.values()):
        matching_indexes = [position for position, match_position in last_matches.items() if match_position == index]
        if index in earlier_positions:
            replacements[index] = render_round(
                [
                    items[position].wire
                    for position in (*_find_reasoning_before(items, matching_indexes[0], matches), *matching_indexes)
                ]
            )
        else:
            replacements[index] = (messages[index].wire,)
    return replacements


def _list_items(insertion: ToolRoundInsertion, number: int) -> Iterable[_ProviderItem]:
    answered_ids = {decode_object(wire).get("call_id") for wire in insertion.rounds[number].results}
    for wire in insertion.rounds[number].response:
        entry = decode_object(wire)
        kind = _kind(entry)
        yield _ProviderItem(
            number,
            wire,
            kind,
            _identifiers(entry),
            _text(read_item(entry, len(wire))[1]),
            hidden=kind == "function_call" and entry.get("call_id") in answered_ids,
        )


def _match_items(
    messages: Sequence[Message], items: Sequence[_ProviderItem], *, has_calls: bool
) -> tuple[dict[int, int], int]:
    """Matches the client's items: returns each item's position in `items` with its position in `messages`, and the end
    of the response in the client's list: the next turn, a call of another response, or any item after outputs of
    calls."""
    matches: dict[int, int] = {}
    after_output, reasoning_positions = False, set[int]()
    for position, message in enumerate(messages):
        if message.role == "user" or (message.role == "tool" and not has_calls):
            return matches, position
        if message.role == "tool":
            after_output = True
            continue
        unmatched = [index for index in range(len(items)) if index not in matches and not items[index].hidden]
        # The next response may have the same text, so after outputs the text proves nothing. But the item directly
        # after the response's own reasoning belongs to it, since the provider accepts neither without the other.
        follows_reasoning = position - 1 in reasoning_positions
        by_content = () if after_output and not follows_reasoning else _match_by_content(message, unmatched, items)
        by_id = _match_by_id(message, unmatched, items)
        # An item with its own id may hold the texts of other items too.
        matching_indexes = by_content if set(by_id) <= set(by_content) else by_id
        if (
            message.role == "assistant"
            and not matching_indexes
            and not follows_reasoning
            and (after_output or _is_client_call(message))
        ):
            return matches, position
        matches |= dict.fromkeys(matching_indexes, position)
        if any(items[index].kind == "reasoning" for index in matching_indexes):
            reasoning_positions.add(position)
    return matches, len(messages)


def _match_by_id(message: Message, unmatched: Sequence[int], items: Sequence[_ProviderItem]) -> Sequence[int]:
    """Returns the item that shares an id with a client's item."""
    ids = _identifiers(decode_object(message.wire))
    return next(((position,) for position in unmatched if ids & items[position].ids), ())


def _match_by_content(message: Message, unmatched: Sequence[int], items: Sequence[_ProviderItem]) -> Sequence[int]:
    """Returns the items with the content of a client's item: one, or several whose texts the client joined."""
    text, kind = _text(message.parts), _kind(decode_object(message.wire))
    candidates = (
        [position for position in unmatched if items[position].kind == kind and items[position].text] if text else []
    )
    for first in range(len(candidates)):
        joined_text = ""
        for last in range(first, len(candidates)):
            joined_text += items[candidates[last]].text
            if joined_text == text:
                return candidates[first : last + 1]
            if not text.startswith(joined_text):
                break
    return ()


def _is_client_call(message: Message) -> bool:
    """Whether a message is a call that the client answers."""
    return decode_object(message.wire).get("type") in CALLS


def _kind(entry: Mapping[str, Any]) -> str:
    return as_string(entry.get("type")) or ("message" if "role" in entry else "item_reference")


def _identifiers(entry: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    return frozenset((name, entry[name]) for name in _ID_FIELDS if type(entry.get(name)) is str and entry[name])


def _text(parts: Iterable[Any]) -> str:
    """Returns texts and reasoning without white space: clients join texts with it or without."""
    return "".join("".join(part.text.split()) for part in parts if isinstance(part, Text | Reasoning))


def _place_hidden_items(
    messages: Sequence[Message],
    items: Sequence[_ProviderItem],
    matches: Mapping[int, int],
    last_round: int,
    render_round: RenderRound,
    results: Sequence[bytes],
) -> list[tuple[int, Sequence[bytes]]]:
    """Returns the hidden items of the last round, each with the position in the client's list before which it belongs.

    Own calls go before the item that followed them, their outputs before the first output of the client's calls.
    `matches` are those of the last round.
    """
    own_runs = _group_own_calls(items, matches, last_round)
    if not own_runs:
        return []
    end = max(matches.values(), default=len(messages) - 1) + 1
    positions = [min([matches[index] for index in matches if index > run[-1]] or [end]) for run in own_runs]
    outputs = (index for index in range(max(positions), len(messages)) if messages[index].role == "tool")
    output_position = next(outputs, max(end, *positions))
    wires = [render_round([items[index].wire for index in run]) for run in own_runs]
    return [*zip(positions, wires, strict=True), (output_position, results)]


def _group_own_calls(items: Sequence[_ProviderItem], matches: Mapping[int, int], number: int) -> list[list[int]]:
    """Groups a round's own calls in runs, each with the reasoning directly before it that the client no longer has."""
    runs: list[list[int]] = []
    for index, item in enumerate(items):
        if item.number != number or not item.hidden:
            continue
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([*_find_reasoning_before(items, index, matches), index])
    return runs


def _find_reasoning_before(items: Sequence[_ProviderItem], position: int, matches: Mapping[int, int]) -> list[int]:
    """Finds the reasoning directly before an item, in its round, that the client no longer has."""
    first = position
    while first > 0 and items[first - 1].number == items[position].number and items[first - 1].kind == "reasoning":
        first -= 1
    return [index for index in range(first, position) if index not in matches]
