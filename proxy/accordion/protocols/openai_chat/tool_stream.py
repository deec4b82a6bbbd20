"""The streamed response of a Chat Completions tool loop: chunks in, chunks out.

Theory of operation. Each chunk has a delta of the first choice. `feed` adds every delta to a RoundBuilder (rounds.py)
and returns the chunk without the artifact tool's calls:

- A chunk that only adds text, like the one before it, passes unread (ChunkRun in chunks.py). All others are parsed.
- A call is hidden or shown once its name is known; pieces before that are kept back. Shown calls get new indexes, so
  that the hidden ones leave no gap. Placeholders in their arguments are kept back until `resolve`.
- From the finish reason on, events are kept back (`_end_events`): finish, usage and `[DONE]`. `continue_response` drops
  them; `close` writes them, with the usage of all rounds.
- Chunks of later rounds get the first round's id, no second role, and renumbered calls and reasoning blocks.

A chunk in which nothing changes passes in its own bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from accordion.protocols.json_values import as_list, as_mapping, as_string
from accordion.protocols.openai_chat.chunks import ChunkRun
from accordion.protocols.openai_chat.response import ChatParser, event_data, is_done, write_event
from accordion.protocols.openai_chat.rounds import (
    GrowingCall,
    RoundBuilder,
    find_usage_holders,
    has_content,
    is_finished,
    paragraph_break,
    renumber_blocks,
    round_from_message,
    sum_usage,
)
from accordion.protocols.response_parser import BOUND
from accordion.protocols.sse import SseBuffer, event_end
from accordion.protocols.tool_loop import ArtifactPlaceholder, ObservedRound, ToolLoopResponse

# Fields that all chunks of a response have in common.
_COMMON = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_FROM_FIRST = ("id", "created", "system_fingerprint")


class ChunkToolLoop(ToolLoopResponse):
    """A response as a stream of chunks."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._events = SseBuffer(BOUND)
        self._parser = ChatParser(is_stream=True)
        self._builder = RoundBuilder()
        self._end_events: list[bytes] = []
        self._pending_output = b""
        self._first_chunk: dict[str, Any] = {}
        # The number of complete rounds, of the calls and reasoning blocks that they showed, and their usage.
        self._rounds = self._visible_calls = 0
        self._block_counts = Counter[str]()
        # The last character of each text of earlier rounds, by field, until a text follows it.
        self._last_characters: dict[str, str] = {}
        self._usages: list[dict[str, Any]] = []
        self._usage: dict[str, Any] | None = None
        self._finish, self._has_ended, self._has_failed, self._is_role_sent = "", False, False, False
        self._run = ChunkRun()

    def feed(self, block: bytes) -> bytes:
        """Takes events in blocks of any size."""
        out, taken_end = self._run.take(block)
        self.observable_output = observable = b"" if taken_end and self._run.is_text_only else out
        if taken_end == len(block):
            return out
        remaining_output, remaining_observable = self._take_events(self._events.feed(block[taken_end:]))
        if self._events.pending or self._events.is_mid_event:
            self._run.end()
        pending = self._take_pending()
        self.observable_output = pending + observable + remaining_observable
        return pending + out + remaining_output

    @property
    def is_round_over(self) -> bool:
        """Whether a finish reason, a last usage or `[DONE]` is kept back."""
        return bool(self._end_events)

    @property
    def pending_placeholders(self) -> tuple[ArtifactPlaceholder, ...]:
        """The pending placeholders in the client's calls."""
        return tuple(each for call in self._builder.calls for each in call.arguments.pending_placeholders)

    def resolve(self, texts: Sequence[str | None]) -> bytes:
        """Replaces the placeholders; the rest of the calls' arguments follows in chunks of the proxy's own."""
        remaining, out = list(texts), self._take_pending()
        for call in self._builder.calls:
            count = len(call.arguments.pending_placeholders)
            if count:
                out += self._arguments_chunk(call, call.arguments.resolve(remaining[:count]))
                del remaining[:count]
        return out + self._finish_calls() if self._finish else out

    def read_round(self) -> ObservedRound:
        """Returns the round. Own calls without an id get one."""
        self._pending_output += self._flush()
        finished = bool(self._finish or self._has_ended) and not self._has_failed and is_finished(self._finish)
        message = self._builder.build_message()
        observed_round = round_from_message(message, self._tool, self._id_prefix(), self._usage, finished=finished)
        return replace(observed_round, resolved=any(call.arguments.resolved for call in self._builder.calls))

    def continue_response(self) -> None:
        """Drops the end events of this round; the next chunks continue the response."""
        self._pending_output += self._flush()
        if self._usage:
            self._usages.append(self._usage)
        self._visible_calls += sum(call.is_own is False for call in self._builder.calls)
        self._block_counts += self._builder.count_thinking_blocks()
        self._last_characters |= self._builder.last_characters()
        self._rounds += 1
        self._builder, self._end_events, self._usage = RoundBuilder(), [], None
        self._finish, self._has_ended, self._has_failed = "", False, False
        self._run.end()

    def close(self) -> bytes:
        """Returns the events that are kept back, as the end of the last round."""
        self._pending_output += self._flush()
        out = self._take_pending() + self._finish_calls()
        is_changed = self._rounds or any(call.is_own for call in self._builder.calls)
        events, self._end_events = self._end_events, []
        return out + b"".join([self._write_last_event(event) if is_changed else event for event in events])

    # -- reading -----------------------------------------------------------------

    def _take_events(self, block: bytes) -> tuple[bytes, bytes]:
        """Takes whole events, those of a run together. Returns the bytes that pass, and the observable ones of them."""
        output, observable, position = list[bytes](), list[bytes](), 0
        while position < len(block):
            start, (out, position) = position, self._run.take(block, position)
            is_text = position > start and self._run.is_text_only
            if position == start:
                position = event_end(block, position)
                out = self._take_event(block[start:position])
            output.append(out)
            observable.append(b"" if is_text else out)
        return b"".join(output), b"".join(observable)

    def _take_event(self, event: bytes) -> bytes:
        """Reads an event; returns the bytes that pass."""
        self._run.end()
        chunk = self._parser.read_value(event)
        if chunk is None:
            return self._take_marker(event, event_data(event))
        if chunk.get("error"):
            self._has_failed = True
            return event
        return self._take_chunk(event, chunk)

    def _take_marker(self, event: bytes, data: bytes) -> bytes:
        if is_done(data):
            self._has_ended = True
            self._end_events.append(event)
            return self._finish_calls() if not self._finish else b""
        # A comment, or an unreadable event, whose content may be missing from the round.
        self._has_failed = self._has_failed or bool(data)
        return event

    def _take_chunk(self, event: bytes, data: dict[str, Any]) -> bytes:
        usage_holders = find_usage_holders(data)
        if usage_holders:
            self._usage = as_mapping(usage_holders[-1]["usage"])
        choices = as_list(data.get("choices"))
        index = next(
            (index for index, choice in enumerate(choices) if type(choice) is dict and not choice.get("index")), None
        )
        if index is None:
            if self._finish or usage_holders:
                self._end_events.append(event)
                return b""
            return self._write_chunk(data, event)
        self._first_chunk = self._first_chunk or data
        choice = as_mapping(choices[index])
        delta, finish = as_mapping(choice.get("delta")), as_string(choice.get("finish_reason"))
        visible_delta = self._take_delta(delta)
        if not finish:
            return self._forward_chunk(
                event, data, index, visible_delta, is_alone=len(choices) == 1 and not usage_holders
            )
        out = self._finish_calls()
        self._finish = finish
        if has_content(visible_delta):
            # The content passes at once, the finish reason is kept back.
            part = {**choice, "delta": visible_delta, "finish_reason": None}
            finish_choice = {**choice, "delta": {}, **({"logprobs": None} if "logprobs" in choice else {})}
            part.pop("usage", None)
            content = {name: value for name, value in data.items() if name not in ("usage", "x_groq")}
            content["choices"] = [*choices[:index], part, *choices[index + 1 :]]
            self._is_role_sent = self._is_role_sent or "role" in visible_delta
            out = self._write_chunk(content, b"") + out
            event = write_event({**data, "choices": [*choices[:index], finish_choice, *choices[index + 1 :]]})
        elif visible_delta is not delta:
            event = write_event(
                {**data, "choices": [*choices[:index], {**choice, "delta": visible_delta}, *choices[index + 1 :]]}
            )
        self._end_events.append(event)
        return out

    def _forward_chunk(
        self, event: bytes, data: dict[str, Any], position: int, visible_delta: dict[str, Any], *, is_alone: bool
    ) -> bytes:
        """Returns a chunk without a finish reason, with `visible_delta` as the delta of the choice at `position`.

        `is_alone` tells that it has no other choice and no usage.
        """
        choices = data["choices"]
        delta = as_mapping(choices[position].get("delta"))
        if (
            not has_content(visible_delta)
            and (visible_delta is not delta or self._finish)
            and ("role" not in visible_delta or self._is_role_sent)
        ):
            if visible_delta is delta:
                self._end_events.append(event)
            return b""
        self._is_role_sent = self._is_role_sent or "role" in visible_delta
        if visible_delta is not delta:
            choices = [*choices[:position], {**choices[position], "delta": visible_delta}, *choices[position + 1 :]]
            return self._write_chunk({**data, "choices": choices}, b"")
        if is_alone and not self._rounds:
            self._run.begin(event, delta, self._builder)
        return self._write_chunk(data, event)

    # -- hiding ------------------------------------------------------------------

    def _take_delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        """Adds a delta to the round; returns its visible part, the same object where nothing is hidden or changed."""
        self._builder.add(delta)
        visible_delta = self._add_paragraph_break(renumber_blocks(delta, self._block_counts))
        calls = as_list(delta.get("tool_calls"))
        if calls:
            entries = [self._visible_entry(position, entry) for position, entry in enumerate(calls)]
            if any(
                visible_entry is not original_entry
                for visible_entry, original_entry in zip(entries, calls, strict=True)
            ):
                visible_delta = {name: value for name, value in visible_delta.items() if name != "tool_calls"}
                visible_calls = [entry for entry in entries if entry is not None]
                if visible_calls:
                    visible_delta["tool_calls"] = visible_calls
        if self._rounds and self._is_role_sent and "role" in visible_delta:
            visible_delta = {name: value for name, value in visible_delta.items() if name != "role"}
        return visible_delta

    def _add_paragraph_break(self, delta: dict[str, Any]) -> dict[str, Any]:
        """Adds a paragraph break before each text that follows one of an earlier round; returns the same object where
        there is none."""
        for name in [name for name in self._last_characters if delta.get(name)]:
            text, last_character = delta[name], self._last_characters.pop(name)
            if type(text) is str and (separator := paragraph_break(last_character, text)):
                delta = {**delta, name: separator + text}
        return delta

    def _visible_entry(self, position: int, entry: Any) -> Any:
        """Returns the visible form of an entry of `tool_calls`; None where it is hidden or kept back."""
        if type(entry) is not dict:
            return entry
        call = self._builder.call(position, entry)
        if call.is_own is None:
            if not call.name:
                call.is_delayed = True
                return None
            call.is_own = call.name == self._tool
            if call.is_delayed and not call.is_own:
                entry = {"index": call.index, **call.entry()}
        if call.is_own:
            return None
        inner = as_mapping(entry.get("function"))
        text = inner.get("arguments")
        if type(text) is str and text:
            passed = call.arguments.feed(text)
            if not passed and entry.keys() <= {"index", "type", "function"} and len(inner) == 1:
                return None
            if passed != text:
                entry = {**entry, "function": {**inner, "arguments": passed}}
        call.visible = self._visible_calls + self._builder.visible_index(call) if call.visible is None else call.visible
        if type(entry.get("index")) is int and entry["index"] != call.visible:
            entry = {**entry, "index": call.visible}
        return entry

    # -- writing -----------------------------------------------------------------

    def _take_pending(self) -> bytes:
        out, self._pending_output = self._pending_output, b""
        return out

    def _write_chunk(self, data: dict[str, Any], event: bytes) -> bytes:
        """Returns the chunk for the client: `event` itself where nothing changes."""
        if not self._rounds:
            return event or write_event(data)
        data = {
            **data,
            **{name: self._first_chunk[name] for name in _FROM_FIRST if name in data and name in self._first_chunk},
        }
        return write_event(self._with_total_usage(data))

    def _with_total_usage(self, data: dict[str, Any]) -> dict[str, Any]:
        """Replaces the chunk's usage by that of all rounds."""
        if not self._usages:
            return data
        for holder in find_usage_holders(data):
            holder["usage"] = sum_usage([*self._usages, holder["usage"]])
        return data

    def _write_last_event(self, event: bytes) -> bytes:
        """Returns an end event of a response with hidden calls."""
        data = self._parser.read_value(event)
        if data is None:
            return event
        is_changed = self._rounds > 0
        has_visible_calls = any(call.is_own is False for call in self._builder.calls)
        for choice in map(as_mapping, as_list(data.get("choices"))):
            if choice.get("finish_reason") in {"tool_calls", "function_call"} and not has_visible_calls:
                choice["finish_reason"], is_changed = "stop", True
        return self._write_chunk(data, b"") if is_changed else event

    def _arguments_chunk(self, call: GrowingCall, text: str) -> bytes:
        """Returns a chunk with more of a call's arguments."""
        if not text:
            return b""
        return self._own_chunk({"index": call.visible, "function": {"arguments": text}})

    def _own_chunk(self, entry: dict[str, Any]) -> bytes:
        common_fields = {name: self._first_chunk[name] for name in _COMMON if name in self._first_chunk}
        delta = {"tool_calls": [entry]}
        return write_event({**common_fields, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def _finish_calls(self) -> bytes:
        """Returns the kept back pieces of the calls, now that they are complete, except after a pending placeholder."""
        out = b""
        for call in self._builder.calls:
            if call.is_own is None:
                call.is_own, call.visible = False, self._visible_calls + self._builder.visible_index(call)
                out += self._own_chunk({**call.entry(), "index": call.visible})
            elif not call.arguments.pending_placeholders:
                out += self._arguments_chunk(call, call.arguments.finish())
        return out

    def _flush(self) -> bytes:
        """Takes a last event that did not end with an empty line."""
        unfinished_event = self._events.flush()
        if not self._parser.read_value(unfinished_event) and not is_done(event_data(unfinished_event)):
            # Nothing, or the beginning of a truncated event.
            self._has_failed = self._has_failed or bool(unfinished_event.strip())
            return b""
        out = self._take_event(unfinished_event)
        return out if out.endswith(b"\n\n") or not out else out + b"\n\n"

    def _id_prefix(self) -> str:
        """Returns the prefix of ids for calls that have none."""
        return f"{as_string(self._first_chunk.get('id'))}_{self._rounds}"
