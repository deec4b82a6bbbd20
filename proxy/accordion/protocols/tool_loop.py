"""The tool loop: how a protocol offers the artifact tool, finds its calls and hides them from the client.

It has the interface, and the parts that the protocols share.

Theory of operation. The proxy adds one tool of its own to the client's request, with which the model reads archived
artifacts. When the model calls it, the proxy answers the call itself and asks the provider to continue; the client must
see one ordinary response. Each response of the provider is a *round*; the client's response is made of all its rounds.

    request --offer--> provider --round 1--> [hide own calls] --round 2--> ... --> one response to the client

pipeline/tool_loop.py drives a ToolLoopResponse like this:

1. `feed` takes the provider's bytes and returns the bytes that the client may have now. Everything except the proxy's
   own calls is returned at once; the events that end a round are kept back until it is known whether another follows.
2. Once `is_round_over`, `read_round` returns the round. If it calls the artifact tool, the proxy sends a request with
   the round and its results (`render_round`, `render_results`), calls `continue_response` and feeds the next round.
3. `close` returns the end of the response, with the finish reason and the usage of all rounds.

Later requests of the client contain its own copy of that response, without the calls that it never saw.
`insert_rounds` finds the copy and puts the rounds in its place, so that the provider reads what the model wrote.

Nothing here raises on what a provider sends or a client sends back.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from accordion.model.conversation import Message, Part, Text, ToolCall, ToolResult
from accordion.model.insertions import ToolRoundInsertion
from accordion.model.records import Usage
from accordion.protocols.json_spans import NULL, fields_of, is_list, is_object, items_of, object_of
from accordion.protocols.json_values import HOSTED, as_count, as_mapping, from_json, to_json
from accordion.protocols.response_parser import BOUND


class ToolDefinition(msgspec.Struct, frozen=True):
    """The definition that is sent to the model. `schema` is the JSON schema of the arguments, as JSON."""

    name: str
    description: str
    schema: bytes


class ArtifactToolCall(msgspec.Struct, frozen=True):
    """The model's call of the artifact tool. `arguments` is the model's text, which may be invalid JSON."""

    call_id: str
    name: str
    arguments: str


class ArtifactToolResult(msgspec.Struct, frozen=True):
    """The artifact tool's answer to a call."""

    call_id: str
    text: str
    error: bool = False


class ObservedRound(msgspec.Struct, frozen=True):
    """One complete response of the provider.

    `entries` are its messages or items in the request's form, ready to be sent back to the provider. `finished` is
    False where the response ended before the model was done (a limit, a filter, an error): none of its calls is
    answered then.
    """

    entries: tuple[bytes, ...]
    own_calls: tuple[ArtifactToolCall, ...]
    """The calls of the artifact tool, also those of an unfinished response: the client sees neither."""
    client_call_ids: tuple[str, ...]
    text: str
    finished: bool
    usage: Usage | None = None
    container: str = ""
    """The container in which the provider's own tools ran. The next request must name it to continue there."""


class ToolLoopResponse(ABC):
    """One response to the client. It never raises on what a provider sends: unknown content passes unchanged."""

    non_text_events: bytes | None = None
    """The whole events of what `feed` returned last that an observer must read: those with more than text. None where
    that is not known."""

    @abstractmethod
    def feed(self, block: bytes) -> bytes:
        """Takes whole events of a stream, or any piece of a document, without content encoding; returns the bytes that
        may go to the client now. A document returns nothing before `close`."""

    @property
    @abstractmethod
    def is_round_over(self) -> bool:
        """Whether the events that end a round are kept back, so that `read_round` may be called."""

    @abstractmethod
    def read_round(self) -> ObservedRound:
        """Returns the round. To be called at its end."""

    @abstractmethod
    def continue_response(self) -> None:
        """Starts the next round. Its opening events are not shown again; its indexes and ids follow those that the
        client has seen."""

    @property
    def response_ids(self) -> tuple[str, ...]:
        """The provider's ids of the rounds, in order: the client sees the first, the last stands for the whole history.
        Empty where the protocol does not continue responses by id."""
        return ()

    @abstractmethod
    def close(self) -> bytes:
        """Returns the end of the response: with the finish reason that the visible calls require, and as usage the
        last round's input and the output of all rounds."""


class ArtifactToolProtocol(ABC):
    """A protocol's side of the artifact tool. It keeps no state between calls."""

    @abstractmethod
    def tool_names(self, fields: Mapping[str, bytes]) -> frozenset[str]:
        """Returns the names of the client's own tools."""

    @abstractmethod
    def offer(self, fields: Mapping[str, bytes], tool: ToolDefinition) -> dict[str, bytes] | None:
        """Returns the top-level fields, as JSON, that change when the tool is offered.

        The client's tools stay as they came and the artifact tool follows them. The same arguments give the same bytes.
        None where the tool cannot be offered: the request asks for several answers, or for a form of answer that
        excludes tools while the client has none, or uses functions of an older kind.
        """

    @abstractmethod
    def open_response(self, tool: str, stream: bool) -> ToolLoopResponse:
        """Creates the response to the client; `tool` is the artifact tool's name in this request."""

    @abstractmethod
    def render_results(self, answers: Sequence[ArtifactToolResult], tool: str) -> tuple[bytes, ...]:
        """Writes the messages that answer the artifact tool's calls of one round, in the order of the calls. `tool` is
        the tool's name in this request."""

    def render_round(self, entries: Sequence[bytes], fields: Mapping[str, bytes]) -> tuple[bytes, ...]:
        """Returns a round's entries as they are sent back within the same response. `fields` is the request's
        envelope."""
        return tuple(entries)

    @abstractmethod
    def insert_rounds(
        self, messages: Sequence[Message], insertion: ToolRoundInsertion, fields: Mapping[str, bytes]
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """Replaces the client's copy of a response by its rounds.

        `messages` follow the insertion's anchor. Returns how many of them are replaced, and the entries that replace
        them; None where they are not a copy of that response (the client asked again, or changed the text). `fields` is
        the request's envelope. The same arguments give the same bytes.
        """

    def without_own_calls(self, insertion: ToolRoundInsertion) -> ToolRoundInsertion | None:
        """Returns the insertion without the artifact tool's calls and the reasoning that led to them, for a list that
        has no space or no tools for them. None where the client's own copy may stay as it is."""
        return None

    def may_have_stranded_reasoning(self, messages: Sequence[Message]) -> bool:
        """Whether a client's list may contain reasoning that led only to artifact tool calls; see
        `without_own_calls`."""
        return False

    def continuation_fields(self, fields: Mapping[str, bytes], container: str) -> Mapping[str, bytes]:
        """Returns the top-level fields of the request for the next round, after one whose tools ran in `container`."""
        return fields

    @abstractmethod
    def final_fields(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the top-level fields that change so that the artifact tool may not be called any more.

        Earlier calls of it stay in the list. The tools are the client's own; where it has none, the artifact tool stays
        and may not be chosen. `fields` is the envelope with the artifact tool offered.
        """


MAX_OPENAI_TOOLS = 128
"""The most tools that OpenAI takes ("Invalid 'tools': array too long. Expected an array with maximum length 128"), so
that clients send no more. A list that has more goes to a server without this limit."""

UNREADABLE_ROUND = ObservedRound((), (), (), "", finished=False)
"""A round that could not be read: none of its calls is answered."""

# -- usage ---------------------------------------------------------------------------


def sum_round_usage(
    rounds: Sequence[Mapping[str, Any]], input_name: str, output_name: str, details: str, total: str = ""
) -> dict[str, Any]:
    """Merges the usage objects of a response's rounds: the last round's, with the output tokens of all.

    The other arguments name fields: `input_name` and `output_name` the counts of tokens, `details` the object with the
    composition of the output (its counts are added up), `total` the sum of input and output, where the protocol has one
    and the last round gave it. `rounds` has at least one object; a single one is returned as it is.
    """
    usage = dict(rounds[-1])
    if len(rounds) == 1:
        return usage
    usage[output_name] = sum(as_count(each.get(output_name)) for each in rounds)
    summed = _sum_details([as_mapping(each.get(details)) for each in rounds])
    if summed:
        usage[details] = summed
    if total and total in usage:
        usage[total] = as_count(usage.get(input_name)) + usage[output_name]
    return usage


def _sum_details(details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summed: dict[str, Any] = {}
    for each in details:
        for name, value in each.items():
            summed[name] = as_count(summed.get(name)) + value if as_count(value) else summed.get(name, value)
    return summed


# -- the client's copy of a response ---------------------------------------------------


def normalize_space(texts: Iterable[str]) -> str:
    """Joins the visible texts of a response with single spaces, as an insertion stores them."""
    return " ".join(" ".join(texts).split())


def is_same_text(first: str, second: str) -> bool:
    """Whether two texts are equal apart from white space: clients join texts with it or without."""
    return "".join(first.split()) == "".join(second.split())


class JoinedRounds(NamedTuple):
    """The rounds, in place of `replaced_count` messages of the client's.

    `following` is the client's next message, if results of ours were put into it.
    """

    replaced_count: int
    rounds: list[bytes]
    following: tuple[bytes, ...]


def join_rounds(
    messages: Sequence[Message],
    insertion: ToolRoundInsertion,
    prepend_results: Callable[[Sequence[bytes], Message], bytes | None],
) -> JoinedRounds | None:
    """Puts the rounds in place of the client's copy, in protocols in which one message has all results of a turn.

    Results of the last round's own calls go to the start of the next user message. `prepend_results` writes it, or
    returns None if it cannot hold them. Returns None if the list has no copy, or the results have no place.
    """
    copy_length = count_client_copy(messages, insertion)
    if not copy_length:
        return None
    rounds = [wire for one_round in insertion.rounds for wire in (*one_round.response, *one_round.results)]
    results = insertion.rounds[-1].results if insertion.rounds else ()
    if not results:
        return JoinedRounds(copy_length, rounds, ())
    joined = prepend_results(results, messages[copy_length]) if copy_length < len(messages) else None
    if joined is not None:
        return JoinedRounds(copy_length + 1, rounds[: -len(results)], (joined,))
    return None if insertion.calls else JoinedRounds(copy_length, rounds, ())


def prepend_entries(results: Sequence[bytes], message: Message, name: str) -> bytes | None:
    """Returns a message with the entries of results before its own, in the list `name`; None if it has no such list."""
    if not is_object(message.wire):
        return None
    fields = fields_of(message.wire)
    entries = fields.get(name, NULL)
    if not is_list(entries):
        return None
    own = [entry for wire in results for entry in items_of(fields_of(wire)[name])]
    comma = b"," if entries[1:-1].strip() else b""
    return object_of({**fields, name: b"[" + b",".join(own) + comma + entries[1:]})


def count_client_copy(messages: Sequence[Message], insertion: ToolRoundInsertion) -> int:
    """Counts the messages after the insertion's anchor that are the client's copy of the response; 0 if there is none.

    A copy is a run of assistant messages. It is identified by its call ids, in any order, or by its text if the
    response had no calls; reasoning after the text belongs to it. The copy of a response with neither is an empty
    message. Calls that the provider itself answers count only where the insertion names them.
    """
    copies = list(takewhile(lambda message: message.role == "assistant", messages))
    hosted = {call for message in copies for call in _hosted_call_ids(message)}.difference(insertion.calls)
    ids: set[str] = set()
    texts: list[str] = []
    run = 0
    for message in copies:
        calls = _call_ids(message) - hosted
        message_texts = [part.text for part in message.parts if isinstance(part, Text)]
        if (
            not insertion.calls
            and run
            and (calls or message_texts)
            and not ids
            and is_same_text("".join(texts), insertion.text)
        ):
            # This message belongs to the next response.
            break
        ids |= calls
        texts += message_texts
        run += 1
    if insertion.calls or ids:
        return run if ids == set(insertion.calls) else 0
    return run if is_same_text("".join(texts), insertion.text) else 0


def _call_ids(message: Message) -> set[str]:
    return {part.call_id for part in message.parts if isinstance(part, ToolCall) and part.call_id}


def _hosted_call_ids(message: Message) -> Iterable[str]:
    """Returns the calls of the provider's own tools: those with its ids, and those with the result in the same
    message."""
    answered = (part.call_id for part in message.parts if isinstance(part, ToolResult))
    return (*answered, *(call for call in _call_ids(message) if call.startswith(HOSTED)))


def paragraph_break(before: str, after: str) -> str:
    """Returns the separator of two rounds' texts: an empty line, so that Markdown separates them; nothing if a text is
    empty or white space separates them already. Copies of a response are compared without white space, so a client need
    not keep it."""
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    return "\n\n"


def legible_arguments(arguments: str) -> str:
    """Returns a call's arguments as a JSON object, since servers of open models reject a list with any other. Invalid
    ones are wrapped, as Anthropic's guide to fine-grained tool streaming does it."""
    if not arguments.strip():
        return "{}"
    try:
        if type(from_json(arguments)) is dict:
            return arguments
    except ValueError:
        pass
    return json.dumps({"INVALID_JSON": arguments}, ensure_ascii=False)


# -- responses that are one document -------------------------------------------------


class ToolLoopDocument(ToolLoopResponse):
    """A response that is one JSON document: nothing is returned before all rounds are read.

    A protocol reads each document once (`read_document`) and writes the document of all rounds (`write_document`). A
    document that cannot be read, or is larger than `BOUND`, passes unchanged; so does a single round without own calls.
    """

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        """The documents of all rounds, including the last."""
        self.rounds: list[ObservedRound] = []
        """The rounds before the last."""
        self._body = bytearray()
        self._round: ObservedRound | None = None
        self._too_large = False

    def decode_document(self, body: bytes) -> Any:
        """Decodes a whole document; anything but an object is not read. Raises ValueError."""
        return from_json(body)

    @abstractmethod
    def read_document(self, document: dict[str, Any]) -> ObservedRound:
        """Reads the last document. An error, or a document of another kind, is an unfinished round."""

    @abstractmethod
    def write_document(self) -> bytes:
        """Writes the response of all `documents`: texts and client calls in order, without own calls."""

    def feed(self, block: bytes) -> bytes:
        """Takes any piece; returns nothing, unless the document is too large to be read."""
        if self._too_large:
            return block
        self._body += block
        if len(self._body) <= BOUND:
            return b""
        self._too_large, out = True, bytes(self._body)
        self._body.clear()
        return out

    @property
    def is_round_over(self) -> bool:
        """Whether the document is complete."""
        return self._last_round() is not None

    def read_round(self) -> ObservedRound:
        """Returns the round."""
        return self._last_round() or UNREADABLE_ROUND

    def continue_response(self) -> None:
        """Starts the next document."""
        self.rounds.append(self.read_round())
        self._body.clear()
        self._round = None

    def close(self) -> bytes:
        """Returns one document of all rounds. If the last is unreadable, it is returned as it came; if it never came,
        the document has the rounds before it."""
        last = self._last_round()
        if last is None and (self._body or not self.rounds):
            return bytes(self._body)
        if last is not None and not (self.rounds or last.own_calls):
            return bytes(self._body)
        return self.write_document()

    def _last_round(self) -> ObservedRound | None:
        if self._round is None and self._body.rstrip().endswith((b"}", b"]")):
            try:
                document = self.decode_document(bytes(self._body))
            except ValueError:
                return None
            if type(document) is dict:
                self._round = self.read_document(document)
                self.documents.append(document)
        return self._round


def find_tool_names(tools: Collection[Any], *path: str) -> frozenset[str]:
    """Returns the names of tools; `path` leads to the name within each definition."""
    names = set()
    for tool in tools:
        value: Any = tool
        for step in path:
            value = as_mapping(value).get(step)
        if type(value) is str:
            names.add(value)
    return frozenset(names)


def list_field(fields: Mapping[str, bytes], name: str) -> list[bytes]:
    """Returns the entries of a list in an object's field, as they came; none where it is no list."""
    raw = fields.get(name, NULL)
    if not is_list(raw):
        return []
    try:
        return items_of(raw)
    except (ValueError, RecursionError):
        return [to_json(each) for each in from_json(raw)]


# -- bytes -----------------------------------------------------------------------------


def repair_utf8(raw: bytes) -> bytes:
    """Replaces invalid UTF-8 by U+FFFD. JSON is UTF-8 (RFC 8259 8.1), and a call of the artifact tool that cannot be
    decoded could not be hidden."""
    if raw.isascii():
        return raw
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="replace").encode()
    return raw


def visible_text(parts: Iterable[Part]) -> str:
    """Returns the text of the text parts."""
    return "".join(part.text for part in parts if isinstance(part, Text))
