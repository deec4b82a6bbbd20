"""Parses the responses of Gemini.

Theory of operation. A response is a JSON object: candidates with a content and a finish reason, `usageMetadata`, and
`promptFeedback` where the prompt was blocked. A stream has such an object in each event (`alt=sse`), or is a JSON list
of them; each has more parts of the content, and the usage so far. There is no event that ends the stream: the last
object has the finish reason. Only one candidate is usual; of several, the first counts.

GeminiParser turns either into the events of response_parser.py. Every object has usage, so each is parsed. The tool
loop rewrites events; `read_event` returns an event's JSON object, in which numbers stay as they are.

Sources: Gemini API reference ("GenerateContentResponse", "UsageMetadata"); the type files of google-genai.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accordion.model.records import Usage
from accordion.protocols.gemini.message_json import arguments_of, call_id_of, dig, get, is_thought, part_type
from accordion.protocols.json_values import (
    as_count,
    as_list,
    as_mapping,
    as_string,
    find_error_text,
    from_json,
    to_json,
)
from accordion.protocols.message_keys import decode_json
from accordion.protocols.response_parser import (
    END,
    UNDECODABLE,
    CallPiece,
    Content,
    ErrorReport,
    Finish,
    Identity,
    ResponseEvent,
    ResponseParser,
    ResponsePart,
    UsageReport,
    frame_event,
)

DONE = "STOP"
"""The finish reason of a complete response, with calls or without; any other is a limit, a filter or an error."""


class GeminiParser(ResponseParser):
    """Parses a response, a list of responses, or a stream of them."""

    def __init__(self, *, is_stream: bool, reads_content: bool = False) -> None:
        super().__init__(is_stream=is_stream, reads_content=reads_content)
        self._call_count = 0

    def may_matter(self, block: bytes) -> bool:
        """Selects all events: each has the usage so far."""
        return True

    def read_data(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of one response of a stream."""
        parts = self._read_response(data)
        return (*parts, END) if any(type(part) is Finish for part in parts) else parts

    def read_document(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of a response that is the only one."""
        self._call_count = 0
        return self._read_response(data)

    def parse_document(self, body: bytes) -> ResponseEvent:
        """Parses a whole document, which may be a list of responses."""
        try:
            value = decode_json(body)
        except ValueError:
            return ResponseEvent(body, data=body, parts=(UNDECODABLE,))
        if type(value) is not list:
            return super().parse_document(body)
        self._call_count = 0
        parts = tuple(part for each in value if type(each) is dict for part in self._read_response(each))
        error = next(filter(None, map(find_error_text, value)), "")
        return ResponseEvent(body, data=body, value=value, parts=(*parts, ErrorReport(error)) if error else parts)

    def _read_response(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        candidate = first_candidate(data)
        usage = as_mapping(get(data, "usageMetadata"))
        reason = finish_reason(data)
        return (
            Identity(as_string(get(data, "responseId")), as_string(get(data, "modelVersion"))),
            *self._read_content(as_mapping(candidate.get("content"))),
            *([UsageReport(read_usage(usage), _first_input(usage))] if usage else ()),
            *([Finish(reason)] if reason else ()),
        )

    def _read_content(self, content: dict[str, Any]) -> Iterable[ResponsePart]:
        for part in map(as_mapping, as_list(content.get("parts"))):
            call = get(part, "functionCall")
            if type(call) is dict:
                arguments = arguments_of(call)
                yield CallPiece(
                    self._call_count, call_id_of(call), as_string(call.get("name")), arguments, is_whole=True
                )
                self._call_count += 1
            elif self.reads_content:
                yield from _content_of(part)


def _content_of(part: dict[str, Any]) -> Iterable[Content]:
    text = as_string(part.get("text"))
    if is_thought(part):
        return (Content("reasoning", text),)
    if part_type(part) == "text":
        return (Content("text", text),) if text else ()
    return (Content("other"),)


def first_candidate(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the first candidate of a response; empty where it has none."""
    candidates = [as_mapping(each) for each in as_list(data.get("candidates"))]
    return next((each for each in candidates if not each.get("index")), {})


def finish_reason(data: Mapping[str, Any]) -> str:
    """Returns the reason why the model stopped, or why the prompt was blocked; empty where there is more to come."""
    reason = as_string(get(first_candidate(data), "finishReason"))
    return reason or as_string(dig(get(data, "promptFeedback"), "blockReason"))


def read_usage(usage: Mapping[str, Any]) -> Usage | None:
    """Reads `usageMetadata`; None where it has no counts.

    The prompt's count has the cached tokens, and not the results of the provider's own tools; the candidates' count has
    no thoughts.
    """
    if get(usage, "promptTokenCount") is None and get(usage, "candidatesTokenCount") is None:
        return None
    thoughts = _count(usage, "thoughtsTokenCount")
    return Usage(
        input=_count(usage, "promptTokenCount") + _count(usage, "toolUsePromptTokenCount"),
        output=_count(usage, "candidatesTokenCount") + thoughts,
        cached=_count(usage, "cachedContentTokenCount"),
        reasoning=thoughts,
    )


def _first_input(usage: Mapping[str, Any]) -> int | None:
    """Returns the input before the provider's own tools ran; None where none ran."""
    return _count(usage, "promptTokenCount") if _count(usage, "toolUsePromptTokenCount") else None


def _count(usage: Mapping[str, Any], name: str) -> int:
    return as_count(get(usage, name))


def read_event(raw: bytes) -> dict[str, Any] | None:
    """Reads the data of an event; None where it is no object."""
    data = frame_event(raw).data
    try:
        value = from_json(data) if data else None
    except ValueError:
        return None
    return value if type(value) is dict else None


def write_event(data: dict[str, Any]) -> bytes:
    """Returns an event with this data."""
    return b"data: " + to_json(data) + b"\n\n"
