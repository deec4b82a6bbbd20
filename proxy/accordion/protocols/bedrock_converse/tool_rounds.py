"""The responses of a tool loop in the Converse API: a stream of events, or one document, without the artifact tool's
calls.

Theory of operation of the stream (for its events see response.py). `feed` takes the events of a round one by one:

- messageStart passes in the first round and is hidden in later ones.
- A block begins with contentBlockStart, or with its first delta. The events of a block that is an own call are hidden;
  those of later blocks get lower indexes (`_index_shift`), so that the client sees no gap.
- messageStop and metadata are kept back (`_end_events`). `continue_response` drops them; `close` writes them, with the
  stop reason and the usage of all rounds.

An event in which nothing changes passes in its own bytes.

A round is built from its blocks, in the request's form (`build_round`): without blank texts and without reasoning at
the end, as Anthropic's models require it.

Source: as for response.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accordion.protocols.bedrock_converse.message_json import block_type
from accordion.protocols.bedrock_converse.response import DONE, content_of, read_usage, sum_usage, write_event
from accordion.protocols.json_values import arguments_text, as_count, as_mapping, as_string, from_json, to_json
from accordion.protocols.response_parser import BOUND
from accordion.protocols.sse import SseBuffer, SseEvent, event_end, parse
from accordion.protocols.tool_loop import (
    UNREADABLE_ROUND,
    ArtifactToolCall,
    ObservedRound,
    ToolLoopDocument,
    ToolLoopResponse,
    legible_arguments,
)

Json = dict[str, Any]


def call_of(block: Any) -> Json:
    """Returns the call that a block is; empty for any other block."""
    return as_mapping(as_mapping(block).get("toolUse"))


def is_own(block: Any, tool: str) -> bool:
    """Whether a block is a call of the artifact tool."""
    return as_string(call_of(block).get("name")) == tool


def arguments_of(block: Any) -> str:
    """Returns the arguments of a block that is a call, as JSON; empty for any other block."""
    call = call_of(block)
    return (arguments_text(call.get("input")) or "{}") if call else ""


def build_round(blocks: Sequence[Any], tool: str, usage: Mapping[str, Any], *, finished: bool) -> ObservedRound:
    """Builds a round from its blocks. Own calls of an unfinished response are left out: nobody answers them."""
    resent = [block for block in blocks if (finished or not is_own(block, tool)) and not _is_blank(block)]
    while resent and "reasoningContent" in as_mapping(resent[-1]):
        resent.pop()
    calls = [block for block in blocks if call_of(block)]
    return ObservedRound(
        entries=(to_json({"role": "assistant", "content": [*map(_as_sent_back, resent)]}),) if resent else (),
        own_calls=tuple(
            ArtifactToolCall(as_string(call_of(block).get("toolUseId")), tool, arguments_of(block))
            for block in calls
            if is_own(block, tool)
        ),
        client_call_ids=tuple(as_string(call_of(block).get("toolUseId")) for block in calls if not is_own(block, tool)),
        text=" ".join(as_string(as_mapping(block).get("text")) for block in blocks if "text" in as_mapping(block)),
        finished=finished,
        usage=read_usage(usage),
    )


def _is_blank(block: Any) -> bool:
    fields = as_mapping(block)
    return fields.keys() == {"text"} and not as_string(fields["text"]).strip()


def _as_sent_back(block: Any) -> Any:
    """Returns a block with a call's input as an object: the API accepts no other."""
    call = call_of(block)
    if not call or type(call.get("input")) is dict:
        return block
    return {**block, "toolUse": {**call, "input": from_json(legible_arguments(arguments_of(block)))}}


def visible_reason(reason: str, blocks: Sequence[Any], tool: str) -> str:
    """Returns the stop reason for the visible blocks, where the provider's was `reason`."""
    own = [is_own(block, tool) for block in blocks if call_of(block)]
    return "end_turn" if reason == "tool_use" and own and all(own) else reason


class StreamedBlock:
    """One content block of a stream as it grows. `client_index` is its index for the client."""

    def __init__(self, start: Json, tool: str, client_index: int) -> None:
        self.kind = block_type(start)
        self.client_index = client_index
        self._start = start
        self._pieces: list[str] = []
        self._reasoning: Json = {}
        self.is_own = is_own(start, tool)
        self.has_unknown_content = bool(start) and self.kind != "toolUse"
        """Whether it cannot be sent back: it has content of an unknown type, or citations."""

    def grow(self, delta: Json) -> None:
        """Adds a delta."""
        kind = block_type(delta)
        self.kind = self.kind or kind
        if kind != self.kind:
            self.has_unknown_content = True
        elif kind == "text":
            self._pieces.append(as_string(delta["text"]))
        elif kind == "toolUse":
            self._pieces.append(as_string(as_mapping(delta[kind]).get("input")))
        elif kind == "reasoningContent":
            for name, value in as_mapping(delta[kind]).items():
                self._reasoning[name] = as_string(self._reasoning.get(name)) + as_string(value)
        else:
            self.has_unknown_content = True

    @property
    def block(self) -> Json:
        """The block in the request's form. The input of a call is a text where it is no object."""
        if self.kind == "toolUse":
            text = "".join(self._pieces)
            return {"toolUse": {**call_of(self._start), "input": _read_input(text)}}
        if self.kind != "reasoningContent":
            return {"text": "".join(self._pieces)}
        if "redactedContent" in self._reasoning:
            return {"reasoningContent": {"redactedContent": self._reasoning["redactedContent"]}}
        # The text is required, also of reasoning of which only the signature came.
        return {"reasoningContent": {"reasoningText": {"text": "", **self._reasoning}}}


def _read_input(text: str) -> Any:
    try:
        value = from_json(text or "{}")
    except ValueError:
        return text
    return value if type(value) is dict else text


class ConverseToolStream(ToolLoopResponse):
    """A response as a stream of events."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._next_index = 0
        """The next index for the client."""
        self._usages: list[Json] = []
        self._start_round()

    def _start_round(self) -> None:
        self._events = SseBuffer(BOUND)
        self._blocks: dict[int, StreamedBlock] = {}
        # The difference from the provider's index to the client's.
        self._index_shift = self._next_index
        self._end_events: list[tuple[str, Json, bytes]] = []
        self._usage: Json = {}
        self._finish = ""
        self._has_failed = False

    def feed(self, block: bytes) -> bytes:
        """Takes events, or pieces of large ones; returns those that pass."""
        return self._take_events(self._events.feed(block))

    @property
    def is_round_over(self) -> bool:
        """Whether messageStop has come, the end of the round."""
        return bool(self._finish)

    def read_round(self) -> ObservedRound:
        """Returns the round."""
        blocks = self._blocks.values()
        has_unknown_content = self._has_failed or any(block.has_unknown_content for block in blocks)
        known = [block.block for block in blocks if not block.has_unknown_content]
        finished = self._finish in DONE and not has_unknown_content
        return build_round(known, self._tool, self._usage, finished=finished)

    def continue_response(self) -> None:
        """Drops the end events of this round; the next events continue the response."""
        self._usages.append(self._usage)
        self._start_round()

    def close(self) -> bytes:
        """Returns the end events, with the stop reason and the usage of all rounds."""
        return self._take_events(self._events.flush()) + self._release_end()

    # -- events, one by one ------------------------------------------------------

    def _take_events(self, block: bytes) -> bytes:
        out, position = list[bytes](), 0
        while position < len(block):
            start, position = position, event_end(block, position)
            out.append(self._take_event(block[start:position]))
        return b"".join(out)

    def _take_event(self, piece: bytes) -> bytes:
        event = parse(piece)
        if event is None:
            return piece  # A comment.
        data = _read_data(event)
        if data is None:
            return self._forward_unreadable(piece)
        name = event.name.decode(errors="replace")
        if "contentBlockIndex" in data:
            return self._release_end() + self._take_content(name, data, piece)
        if name == "messageStart":
            return b"" if self._usages else piece
        if name in ("messageStop", "metadata") or (self._end_events and name != "error"):
            self._finish = as_string(data.get("stopReason")) or self._finish
            self._usage = as_mapping(data.get("usage")) or self._usage
            self._end_events.append((name, data, piece))
            return b""
        if name == "error":
            self._has_failed = True
            return self._release_end() + piece
        return piece

    def _take_content(self, name: str, data: Json, piece: bytes) -> bytes:
        index = as_count(data["contentBlockIndex"])
        if "start" in data or index not in self._blocks:
            self._open_block(index, as_mapping(data.get("start")))
        block = self._blocks[index]
        if "delta" in data:
            block.grow(as_mapping(data["delta"]))
        if block.is_own:
            return b""
        if block.client_index == index:
            return piece
        return write_event(name, {**data, "contentBlockIndex": block.client_index})

    def _open_block(self, index: int, start: Json) -> None:
        block = self._blocks[index] = StreamedBlock(start, self._tool, index + self._index_shift)
        if block.is_own:
            self._index_shift -= 1
        else:
            self._next_index = max(self._next_index, block.client_index + 1)

    def _forward_unreadable(self, piece: bytes) -> bytes:
        """Passes an unreadable event, unless it may belong to an own call."""
        self._has_failed = True
        last = next(reversed(self._blocks.values()), None)
        return b"" if last is not None and last.is_own else piece

    # -- the end --------------------------------------------------------------------

    def _release_end(self) -> bytes:
        """Returns the end events, as the end of the client's response."""
        events, self._end_events = self._end_events, []
        return b"".join([self._write_end(name, data, piece) for name, data, piece in events])

    def _write_end(self, name: str, data: Json, piece: bytes) -> bytes:
        changed = dict(data)
        if reason := as_string(data.get("stopReason")):
            blocks = [block.block for block in self._blocks.values() if block.kind == "toolUse"]
            changed["stopReason"] = visible_reason(reason, blocks, self._tool)
        if self._usages and (usage := as_mapping(data.get("usage"))):
            changed["usage"] = sum_usage([*self._usages, usage])
        return piece if changed == data else write_event(name, changed)


def _read_data(event: SseEvent) -> Json | None:
    try:
        value = from_json(event.data)
    except ValueError:
        return None
    return value if type(value) is dict else None


class ConverseToolDocument(ToolLoopDocument):
    """A response that is one document."""

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool

    def read_document(self, document: Json) -> ObservedRound:
        """Reads the blocks of a response."""
        if "output" not in document:
            return UNREADABLE_ROUND
        finished = as_string(document.get("stopReason")) in DONE
        return build_round(content_of(document), self._tool, as_mapping(document.get("usage")), finished=finished)

    def write_document(self) -> bytes:
        """Writes the last response, with the visible blocks and the usage of all; an error as it came."""
        last = self.documents[-1]
        if "output" not in last:
            return bytes(self._body)
        reason = visible_reason(as_string(last.get("stopReason")), content_of(last), self._tool)
        blocks = [block for each in self.documents for block in content_of(each) if not is_own(block, self._tool)]
        output = as_mapping(last["output"])
        message = {"role": "assistant", **as_mapping(output.get("message")), "content": blocks}
        written = {**last, "output": {**output, "message": message}, "stopReason": reason}
        if usage := as_mapping(last.get("usage")):
            written["usage"] = sum_usage([*(as_mapping(each.get("usage")) for each in self.documents[:-1]), usage])
        return to_json(written)
