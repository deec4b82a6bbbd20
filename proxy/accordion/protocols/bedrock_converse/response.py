"""Parses the responses of the Converse API.

Theory of operation. A response is a JSON object: a message in `output`, `stopReason`, `usage`. A stream has frames,
each named after its event; they are read as an event stream with the same names (bedrock_frames.py):

    messageStart, then for each block contentBlockStart (calls), contentBlockDelta, contentBlockStop, by its index;
    then messageStop with the stop reason, and metadata with the usage.

A text begins with its first delta. A call's input comes in pieces of JSON. What an event is follows from its fields.
Counts: `inputTokens` is without the cache's, as Anthropic's is.

Source: `ConverseResponse` and `ConverseStreamOutput` in botocore's model of bedrock-runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accordion.model.records import Usage
from accordion.protocols.bedrock_converse.message_json import block_type
from accordion.protocols.json_values import arguments_text, as_count, as_list, as_mapping, as_string, to_json
from accordion.protocols.response_parser import (
    END,
    RESPONSE_START,
    CallPiece,
    Content,
    ErrorReport,
    Finish,
    ResponseParser,
    ResponsePart,
    UsageReport,
)

DONE = frozenset({"end_turn", "tool_use", "stop_sequence"})
"""The stop reasons of a complete response; any other is a limit, a filter or an error."""
_SEARCHED = (b"essageSt", b"contentBlockStart", b"toolUse", b"etadata", b"error")
_INPUT_COUNTS = ("inputTokens", "cacheWriteInputTokens", "cacheReadInputTokens")


class ConverseParser(ResponseParser):
    """Parses a response, or a stream of events."""

    def __init__(self, *, is_stream: bool, reads_content: bool = False) -> None:
        super().__init__(is_stream=is_stream, reads_content=reads_content)

    def may_matter(self, block: bytes) -> bool:
        """Selects all events but the deltas of texts and reasoning."""
        return any(word in block for word in _SEARCHED)

    def read_data(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of an event by its fields."""
        if "contentBlockIndex" in data:
            index = as_count(data["contentBlockIndex"])
            if "start" in data:
                return tuple(self._read_start(index, as_mapping(data["start"])))
            return tuple(self._read_delta(index, as_mapping(data.get("delta"))))
        if "role" in data:
            return (RESPONSE_START,)
        if reason := as_string(data.get("stopReason")):
            return (Finish(reason),)
        if "usage" in data:
            return (UsageReport(read_usage(as_mapping(data["usage"]))), END)
        return ()

    def read_document(self, data: dict[str, Any]) -> tuple[ResponsePart, ...]:
        """Returns the meaning of a response, or of an error, which has only a message."""
        if "output" not in data:
            message = as_string(data.get("message")) or as_string(data.get("Message"))
            return (ErrorReport(message),) if message else ()
        return (
            *self._read_content(content_of(data)),
            UsageReport(read_usage(as_mapping(data.get("usage")))),
            Finish(as_string(data.get("stopReason"))),
        )

    def _read_content(self, blocks: list[Any]) -> Iterable[ResponsePart]:
        for index, block in enumerate(map(as_mapping, blocks)):
            if "toolUse" in block:
                call = as_mapping(block["toolUse"])
                yield _call_piece(index, call, arguments_text(call.get("input")) or "{}")
            elif self.reads_content:
                yield _content_of(block)

    def _read_start(self, index: int, start: dict[str, Any]) -> Iterable[ResponsePart]:
        if "toolUse" in start:
            yield _call_piece(index, as_mapping(start["toolUse"]), "")
        elif self.reads_content and start:
            yield Content("other")

    def _read_delta(self, index: int, delta: dict[str, Any]) -> Iterable[ResponsePart]:
        if "toolUse" in delta:
            yield CallPiece(index, arguments=as_string(as_mapping(delta["toolUse"]).get("input")))
        elif self.reads_content and delta:
            yield _content_of(delta)


def _content_of(block: dict[str, Any]) -> Content:
    """Returns the content of a block, or of a delta."""
    kind = block_type(block)
    if kind == "text":
        return Content("text", as_string(block["text"]))
    if kind == "reasoningContent":
        reasoning = as_mapping(block[kind])
        text = reasoning.get("text") or as_mapping(reasoning.get("reasoningText")).get("text")
        return Content("reasoning", as_string(text))
    if kind == "citationsContent":
        texts = (as_string(as_mapping(each).get("text")) for each in as_list(as_mapping(block[kind]).get("content")))
        return Content("text", "".join(texts))
    return Content("other")


def _call_piece(index: int, call: dict[str, Any], arguments: str) -> CallPiece:
    return CallPiece(index, as_string(call.get("toolUseId")), as_string(call.get("name")), arguments, is_whole=True)


def content_of(document: Mapping[str, Any]) -> list[Any]:
    """Returns the blocks of a response's message."""
    return as_list(as_mapping(as_mapping(document.get("output")).get("message")).get("content"))


def read_usage(usage: Mapping[str, Any]) -> Usage | None:
    """Reads a usage object; None where it has no counts."""
    if "inputTokens" not in usage and "outputTokens" not in usage:
        return None
    uncached, cache_writes, cache_reads = (as_count(usage.get(name)) for name in _INPUT_COUNTS)
    return Usage(
        input=uncached + cache_writes + cache_reads,
        output=as_count(usage.get("outputTokens")),
        cached=cache_reads,
        cache_write=cache_writes,
    )


def sum_usage(usages: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges the usage of all rounds: the last one's, with the output of all."""
    last, earlier = dict(usages[-1]), sum(as_count(each.get("outputTokens")) for each in usages[:-1])
    for name in ("outputTokens", "totalTokens"):
        if earlier and name in last:
            last[name] = as_count(last[name]) + earlier
    return last


def write_event(name: str, data: dict[str, Any]) -> bytes:
    """Returns an event with this data."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), to_json(data))
