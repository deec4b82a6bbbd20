"""Parts of the tool loop that the protocols share: usage of several rounds, the client's copy of a response, responses
that are one JSON document. For placeholders in arguments see artifact_placeholders.py.

Nothing here raises on what a provider sends or a client sends back.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from accordion.model.conversation import Message, Part, Text, ToolCall, ToolResult
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.json_spans import NULL, is_list, items_of
from accordion.protocols.json_values import HOSTED, as_count, as_mapping, from_json, to_json
from accordion.protocols.response_parser import BOUND
from accordion.protocols.tool_loop import ArtifactPlaceholder, ObservedRound, ToolLoopResponse

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

    A protocol reads each document once (`read_document`), replaces placeholders in it (`replace_document_placeholders`)
    and writes the document of all rounds (`write_document`). A document that cannot be read, or is larger than `BOUND`,
    passes unchanged; so does a single round without own calls and without replaced placeholders.
    """

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        """The documents of all rounds, including the last."""
        self.rounds: list[ObservedRound] = []
        """The rounds before the last."""
        self._body = bytearray()
        self._round: ObservedRound | None = None
        self._placeholders: tuple[ArtifactPlaceholder, ...] = ()
        self._changed = False
        self._too_large = False

    @abstractmethod
    def read_document(self, document: dict[str, Any]) -> ObservedRound:
        """Reads the last document. An error, or a document of another kind, is an unfinished round."""

    @abstractmethod
    def find_document_placeholders(self, document: dict[str, Any]) -> tuple[ArtifactPlaceholder, ...]:
        """Returns the placeholders in the arguments of the document's client calls."""

    @abstractmethod
    def replace_document_placeholders(self, document: dict[str, Any], texts: Sequence[str | None]) -> bool:
        """Replaces the document's placeholders by these texts; whether any was replaced."""

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

    @property
    def pending_placeholders(self) -> tuple[ArtifactPlaceholder, ...]:
        """The document's placeholders, until `resolve` is called."""
        self._last_round()
        return self._placeholders

    def resolve(self, texts: Sequence[str | None]) -> bytes:
        """Replaces the placeholders; returns nothing."""
        if self._placeholders:
            self._placeholders = ()
            self._changed = self.replace_document_placeholders(self.documents[-1], texts) or self._changed
        return b""

    def read_round(self) -> ObservedRound:
        """Returns the round."""
        last = self._last_round()
        return UNREADABLE_ROUND if last is None else replace(last, resolved=self._changed)

    def continue_response(self) -> None:
        """Starts the next document."""
        self.rounds.append(self.read_round())
        self._body.clear()
        self._round, self._placeholders = None, ()

    def close(self) -> bytes:
        """Returns one document of all rounds. If the last is unreadable, it is returned as it came; if it never came,
        the document has the rounds before it."""
        last = self._last_round()
        if last is None and (self._body or not self.rounds):
            return bytes(self._body)
        if last is not None and not (self.rounds or last.own_calls or self._changed):
            return bytes(self._body)
        return self.write_document()

    def _last_round(self) -> ObservedRound | None:
        if self._round is None and self._body.rstrip().endswith(b"}"):
            try:
                document = from_json(bytes(self._body))
            except ValueError:
                return None
            if type(document) is dict:
                self._round = self.read_document(document)
                self.documents.append(document)
                self._placeholders = self.find_document_placeholders(document)
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
