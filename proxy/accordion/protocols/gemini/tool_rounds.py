"""The responses of a tool loop in Gemini's protocol: a stream of events, or one document, without the artifact tool's
calls.

Theory of operation of the stream (for its events see response.py). A call comes whole in one event. `feed` takes the
events of a round one by one:

- The parts of an event are added to the round. An event without own calls passes in its own bytes; from any other the
  own calls are removed, and it is hidden if nothing is left.
- A signature that an own call carries for the whole step goes to the next visible call of the round, so that the list
  that the client has is valid by itself.
- From the finish reason on, events are kept back (`_end_events`). `continue_response` drops them; `close` writes them,
  with the usage of all rounds. If they have content and the round has own calls, the content passes at once.
- Events of later rounds get the first round's id. A paragraph break separates the texts of two rounds.

A round is built from its parts, in the request's form: texts in a row become one, as long as they carry no signature.

Source: as for response.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_not
from typing import Any

from accordion.protocols.gemini.message_json import arguments_of, call_id_of, get, is_thought, signature_of, spelling
from accordion.protocols.gemini.response import (
    DONE,
    finish_reason,
    first_candidate,
    read_event,
    read_usage,
    write_event,
)
from accordion.protocols.json_values import as_count, as_list, as_mapping, as_string, from_json, to_json
from accordion.protocols.response_parser import BOUND
from accordion.protocols.sse import SseBuffer, event_end
from accordion.protocols.tool_loop import (
    UNREADABLE_ROUND,
    ArtifactToolCall,
    ObservedRound,
    ToolLoopDocument,
    ToolLoopResponse,
    paragraph_break,
)

Json = dict[str, Any]

_PLAIN = frozenset({"text", "thought"})
_EMPTY_PARTS: list[Json] = [{"text": ""}]
"""The parts of a content from which all were removed: clients refuse a content without parts."""
_ADDED_COUNTS = ("candidatesTokenCount", "thoughtsTokenCount")
_TOTAL_COUNTS = ("promptTokenCount", "toolUsePromptTokenCount", *_ADDED_COUNTS)


def call_of(part: Any) -> Json:
    """Returns the call that a part is; empty for any other part."""
    return as_mapping(get(as_mapping(part), "functionCall"))


def is_own(part: Any, tool: str) -> bool:
    """Whether a part is a call of the artifact tool."""
    return as_string(call_of(part).get("name")) == tool


def parts_of(data: Mapping[str, Any]) -> list[Any]:
    """Returns the parts of a response's content."""
    return as_list(as_mapping(first_candidate(data).get("content")).get("parts"))


def with_parts(data: Json, parts: Sequence[Any], *, is_finished: bool = True) -> Json:
    """Returns a response with other parts, and without its finish reason unless `is_finished`."""
    candidate = first_candidate(data)
    content = as_mapping(candidate.get("content"))
    changed = {**candidate, "content": {"role": "model", **content, "parts": list(parts) or _EMPTY_PARTS}}
    if not is_finished:
        changed = {name: value for name, value in changed.items() if name != spelling(changed, "finishReason")}
    return {**data, "candidates": [changed if each is candidate else each for each in as_list(data["candidates"])]}


def build_round(parts: Sequence[Any], tool: str, usage: Mapping[str, Any], *, finished: bool) -> ObservedRound:
    """Builds a round from its parts. Its entries have no own calls of an unfinished response: nobody answers them."""
    resent = _merge_texts([part for part in parts if finished or not is_own(part, tool)])
    calls = [call for part in parts if (call := call_of(part))]
    own = [call for call in calls if as_string(call.get("name")) == tool]
    visible_texts = [as_string(part["text"]) for part in parts if _is_text(part)]
    return ObservedRound(
        entries=(to_json({"role": "model", "parts": resent}),) if resent else (),
        own_calls=tuple(ArtifactToolCall(call_id_of(call), tool, arguments_of(call)) for call in own),
        client_call_ids=tuple(call_id_of(call) for call in calls if as_string(call.get("name")) != tool),
        text="".join(visible_texts),
        finished=finished,
        usage=read_usage(usage),
    )


def _is_text(part: Any) -> bool:
    return type(part) is dict and type(part.get("text")) is str and not is_thought(part)


def _merge_texts(parts: Sequence[Any]) -> list[Any]:
    """Joins texts in a row, and leaves out empty ones. A text with more than itself stays apart."""
    merged: list[Any] = []
    for part in parts:
        if not _is_plain(part):
            merged.append(part)
        elif merged and _is_plain(merged[-1]) and merged[-1].get("thought") == part.get("thought"):
            merged[-1] = {**merged[-1], "text": merged[-1]["text"] + part["text"]}
        elif part["text"]:
            merged.append(part)
    return merged


def _is_plain(part: Any) -> bool:
    """Whether a part is a text, or the text of a thought, and nothing else."""
    return type(part) is dict and _PLAIN.issuperset(part) and type(part.get("text")) is str


def sum_usage(usages: Sequence[Mapping[str, Any]]) -> Json:
    """Merges the usage of all rounds: the last one's, with the output of all."""
    usage = dict(usages[-1])
    for name in _ADDED_COUNTS:
        if any(get(each, name) is not None for each in usages):
            usage[spelling(usage, name)] = sum(as_count(get(each, name)) for each in usages)
    if get(usage, "totalTokenCount") is not None:
        usage[spelling(usage, "totalTokenCount")] = sum(as_count(get(usage, name)) for name in _TOTAL_COUNTS)
    return usage


class _VisibleParts:
    """Removes the own calls from the parts of a round, and carries their signature over to the next visible call."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._signature = ""
        self._has_visible_call = False

    def take(self, parts: Sequence[Any]) -> list[Any]:
        """Returns the visible ones of these parts."""
        return [visible for part in parts if (visible := self._take(part)) is not None]

    def _take(self, part: Any) -> Any:
        if not call_of(part):
            return part
        if is_own(part, self._tool):
            self._signature = self._signature or ("" if self._has_visible_call else signature_of(part))
            return None
        signature, self._signature, self._has_visible_call = self._signature, "", True
        return part if not signature or signature_of(part) else {**part, "thoughtSignature": signature}


def add_paragraph_break(parts: list[Any], text_before: str) -> list[Any]:
    """Returns the parts with a paragraph break before their first text, where it follows `text_before` of another
    round. A text with a signature, which belongs to the very text, gets the break as a part of its own."""
    index = next((at for at, part in enumerate(parts) if _is_text(part) and part["text"]), -1)
    separator = paragraph_break(text_before, parts[index]["text"]) if index >= 0 else ""
    if not separator:
        return parts
    if signature_of(parts[index]):
        return [*parts[:index], {"text": separator}, *parts[index:]]
    return [*parts[:index], {**parts[index], "text": separator + parts[index]["text"]}, *parts[index + 1 :]]


class GeminiToolStream(ToolLoopResponse):
    """A response as a stream of events."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._events = SseBuffer(BOUND)
        self._usages: list[Json] = []
        self._response_id: Any = None
        self._pending_output = b""
        # The end of the text of earlier rounds, until a text follows it.
        self._text_before = ""
        self._start_round()

    def _start_round(self) -> None:
        self._parts: list[Any] = []
        self._visible_parts = _VisibleParts(self._tool)
        self._end_events: list[bytes] = []
        self._usage: Json = {}
        self._finish = ""
        self._has_failed = False

    def feed(self, block: bytes) -> bytes:
        """Takes events in blocks of any size."""
        out, position, events = [self._take_pending()], 0, self._events.feed(block)
        while position < len(events):
            start, position = position, event_end(events, position)
            out.append(self._take_event(events[start:position]))
        return b"".join(out)

    @property
    def is_round_over(self) -> bool:
        """Whether a finish reason is kept back."""
        return bool(self._end_events)

    def read_round(self) -> ObservedRound:
        """Returns the round."""
        self._pending_output += self._flush()
        finished = self._finish == DONE and not self._has_failed
        return build_round(self._parts, self._tool, self._usage, finished=finished)

    def continue_response(self) -> None:
        """Drops the end events of this round; the next events continue the response."""
        self._usages.append(self._usage)
        text = "".join(as_string(part["text"]) for part in self._parts if _is_text(part))
        self._text_before = text[-1:] or self._text_before
        self._start_round()

    def close(self) -> bytes:
        """Returns the events that are kept back, with the usage of all rounds."""
        out = self._take_pending() + self._flush()
        events, self._end_events = self._end_events, []
        return out + b"".join(events)

    # -- events, one by one ------------------------------------------------------

    def _take_event(self, event: bytes) -> bytes:
        data = read_event(event)
        if data is None:
            # A comment, or an unreadable event, whose content may be missing from the round.
            self._has_failed = self._has_failed or b"data:" in event
            return event
        if data.get("error"):
            self._has_failed = True
            return event
        return self._take_response(data, event)

    def _take_response(self, data: Json, event: bytes) -> bytes:
        """Takes a response of the stream; `event` are its bytes."""
        self._usage = as_mapping(get(data, "usageMetadata")) or self._usage
        parts = parts_of(data)
        self._parts += parts
        visible = self._add_paragraph_break(self._visible_parts.take(parts))
        is_changed = len(visible) != len(parts) or any(map(is_not, visible, parts))
        reason = finish_reason(data)
        if self._end_events or reason:
            self._finish = reason or self._finish
            return self._keep_end(data, event, visible, is_changed=is_changed)
        if parts and not visible:
            return b""
        return self._write(with_parts(data, visible) if is_changed else data, b"" if is_changed else event)

    def _keep_end(self, data: Json, event: bytes, visible: list[Any], *, is_changed: bool) -> bytes:
        """Keeps an event of the end back. Its content passes at once if the round has own calls, since another round
        may follow then."""
        out = b""
        if visible and any(is_own(part, self._tool) for part in self._parts):
            out = self._write(with_parts(data, visible, is_finished=False), b"")
            visible, is_changed = [], True
        self._end_events.append(
            self._write(with_parts(data, visible) if is_changed else data, b"" if is_changed else event)
        )
        return out

    def _add_paragraph_break(self, parts: list[Any]) -> list[Any]:
        """Adds a paragraph break before the first text that follows one of an earlier round."""
        changed = add_paragraph_break(parts, self._text_before)
        if any(_is_text(part) and part["text"] for part in parts):
            self._text_before = ""
        return changed

    def _write(self, data: Json, event: bytes) -> bytes:
        """Returns an event for the client: `event` itself where nothing changes."""
        if not self._usages:
            self._response_id = get(data, "responseId") or self._response_id
            return event or write_event(data)
        changed = dict(data)
        if self._response_id and get(data, "responseId"):
            changed[spelling(data, "responseId")] = self._response_id
        usage = as_mapping(get(data, "usageMetadata"))
        if usage:
            changed[spelling(data, "usageMetadata")] = sum_usage([*self._usages, usage])
        return write_event(changed)

    def _take_pending(self) -> bytes:
        out, self._pending_output = self._pending_output, b""
        return out

    def _flush(self) -> bytes:
        """Takes a last event that did not end with an empty line."""
        unfinished_event = self._events.flush()
        if read_event(unfinished_event) is None:
            # Nothing, or the beginning of a truncated event.
            self._has_failed = self._has_failed or bool(unfinished_event.strip())
            return b""
        out = self._take_event(unfinished_event)
        return out if out.endswith(b"\n\n") or not out else out + b"\n\n"


class GeminiToolDocument(ToolLoopDocument):
    """Merges the responses of all rounds into one.

    A stream that is a JSON list (without `alt=sse`) is one round too: its responses are merged, and the client gets a
    list of one.
    """

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool
        self._is_list = False

    def decode_document(self, body: bytes) -> Any:
        """Returns the response, or the merged responses of a list."""
        value = from_json(body)
        if type(value) is not list:
            return value
        self._is_list = True
        responses = [each for each in value if type(each) is dict]
        if len(responses) != len(value) or not responses:
            return None
        last = {name: each for response in responses for name, each in response.items()}
        parts = [part for each in responses for part in parts_of(each)]
        return with_parts(last, parts) if parts and first_candidate(last) else last

    def read_document(self, document: Json) -> ObservedRound:
        """Reads the first candidate; there is no other where the artifact tool is offered."""
        if document.get("error"):
            return UNREADABLE_ROUND
        usage = as_mapping(get(document, "usageMetadata"))
        return build_round(parts_of(document), self._tool, usage, finished=finish_reason(document) == DONE)

    def write_document(self) -> bytes:
        """Writes the last response, with the id of the first, the visible parts and the usage of all."""
        last, parts, text_before = self.documents[-1], list[Any](), ""
        if first_candidate(last):
            for document in self.documents:
                visible = _VisibleParts(self._tool).take(parts_of(document))
                parts += add_paragraph_break(visible, text_before)
                text_before = next((part["text"] for part in reversed(visible) if _is_text(part)), text_before)
            last = with_parts(last, _merge_texts(parts) if len(self.documents) > 1 else parts)
        if get(self.documents[0], "responseId"):
            last[spelling(last, "responseId")] = get(self.documents[0], "responseId")
        usages = [usage for each in self.documents if (usage := as_mapping(get(each, "usageMetadata")))]
        if usages:
            last[spelling(last, "usageMetadata")] = sum_usage(usages)
        return to_json([last] if self._is_list else last)
