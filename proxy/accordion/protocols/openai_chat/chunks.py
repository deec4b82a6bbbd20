"""Recognises runs of similar chunks of Chat Completions by their bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from accordion.protocols.json_values import as_mapping, encode, from_json
from accordion.protocols.openai_chat.rounds import GrowingCall, RoundBuilder

# The inside of a JSON string, followed only by fields without content up to the end of the event, with or without a
# space after commas and colons.
_TEXT = rb'((?:[^"\\]++|\\.)*+)"'
_NO_CONTENT = rb'(?:, ?+"\w++": ?+null|, ?+"role": ?+"assistant")*+\}'
_FIELDS_AFTER_TEXT = rb'\](?:, ?+"(?!error)\w++": ?+(?:null|"[^"\\]*+"|\d++))*+\}(?:\n\n|\r\n\r\n|\r\r)'
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_TEXT_END = re.compile(_TEXT + _NO_CONTENT + _NO_CONTENT + _FIELDS_AFTER_TEXT, re.DOTALL)
_ARGUMENTS_END = re.compile(_TEXT + rb"\}\}\]" + _NO_CONTENT + _NO_CONTENT + _FIELDS_AFTER_TEXT, re.DOTALL)
# Without these characters, arguments have no placeholder and no change between inside and outside of a string.
_SPECIAL = re.compile(rb"[{\\]")
_TEXT_START = {
    name: re.compile(rb'"%b"\s*+:\s*+"' % name.encode())
    for name in ("content", "refusal", "reasoning_content", "reasoning", "arguments")
}


class ChunkRun:
    """A run of chunks that each add to the same text: of the content, of reasoning, or of a call's arguments.

    Such chunks have the same first bytes, so after one was read the next need not be: it passes at the price of a
    comparison and one pattern. Any other chunk ends the run.
    """

    __slots__ = ("_buffer", "_call", "_end_bytes", "_match_end", "_separator", "_start")

    def __init__(self) -> None:
        # The bytes before the text of a chunk of this run; empty when there is no run.
        self._start = b""
        # The bytes after the text in the first chunk, and the bytes between two texts; empty where these differ.
        self._end_bytes = self._separator = b""
        self._match_end: Callable[[bytes, int], re.Match[bytes] | None] = _TEXT_END.match
        self._buffer = bytearray()
        self._call: GrowingCall | None = None

    def end(self) -> None:
        """Ends the run: the next chunk must be read."""
        self._start = b""

    @property
    def is_text_only(self) -> bool:
        """Whether the chunks of this run add to a text, not to a call."""
        return self._call is None

    def take(self, block: bytes, start: int = 0) -> tuple[bytes, int]:
        """Takes the chunks of this run from a block of whole events, from `start` on; returns the bytes that pass,
        mostly all, and the end of the chunks."""
        first_bytes = self._start
        if not first_bytes or not block.startswith(first_bytes, start):
            return b"", start
        position = self._take_similar(block, start) if self._end_bytes else start
        if position == len(block):
            return block[start:], position
        out: list[bytes] = []
        done = start
        while block.startswith(first_bytes, position):
            match = self._match_end(block, position + len(first_bytes))
            if match is None:
                break
            if not self._is_plain(match[1]):
                passed = self._scan_arguments(match[1])
                if passed is None:
                    break
                if passed != match[1]:
                    output = (
                        block[position : match.start(1)] + passed + block[match.end(1) : match.end()] if passed else b""
                    )
                    out += (block[done:position], output)
                    done = match.end()
            self._buffer += match[1]
            position = match.end()
        return (b"".join(out) + block[done:position] if out else block[start:position]), position

    def _take_similar(self, block: bytes, start: int) -> int:
        """Takes all chunks of this run at once if they also have the same last bytes; returns the end of the last.

        Without those first and last bytes, only text must be left. A quote in it means that something else is between.
        """
        first_bytes, end_bytes = self._start, self._end_bytes
        end = block.find(end_bytes, block.rfind(first_bytes) + len(first_bytes))
        text = block[start + len(first_bytes) : end].replace(self._separator, b"")
        if end < 0 or (b'"' in text and not _STRING.fullmatch(text)) or not self._is_plain(text):
            return start
        self._buffer += text
        return end + len(end_bytes)

    def _is_plain(self, text: bytes) -> bool:
        """Whether a text cannot contain a placeholder."""
        return self._call is None or (self._call.arguments.is_idle and _SPECIAL.search(text) is None)

    def _scan_arguments(self, text: bytes) -> bytes | None:
        """Scans a piece of arguments for placeholders; returns the text that passes, None where the piece cannot be
        decoded alone (half a surrogate pair)."""
        if self._call is None:
            return text
        try:
            arguments = from_json(b'"' + text + b'"')
            passed = self._call.arguments.feed(arguments)
            return text if passed == arguments else encode(passed)[1:-1]
        except ValueError:
            return None

    def begin(self, event: bytes, delta: dict[str, Any], builder: RoundBuilder) -> None:
        """Starts a run with a chunk that has one choice and only one piece of text. It has passed unchanged and has
        been added to the round."""
        content = [(name, value) for name, value in delta.items() if value is not None and name != "role"]
        if len(content) != 1:
            return
        name, value = content[0]
        call = None
        if name == "tool_calls":
            call = _only_call(value, builder)
            name, value = "arguments", value[0]["function"]["arguments"] if call is not None else None
        if type(value) is not str or name not in _TEXT_START:
            return
        starts = _TEXT_START[name].findall(event)
        match_end = _TEXT_END.match if call is None else _ARGUMENTS_END.match
        start = event.find(starts[0]) + len(starts[0]) if len(starts) == 1 else 0
        if start and (text := match_end(event, start)) is not None and from_json(b'"' + text[1] + b'"') == value:
            self._start, self._match_end, self._call = event[:start], match_end, call
            # Padding makes the end of each chunk different.
            self._end_bytes = b"" if b'"obfuscation"' in event else event[text.end(1) :]
            self._separator = self._end_bytes + self._start
            self._buffer = (builder.buffers[name] if call is None else call.buffer).raw


def _only_call(entries: Any, builder: RoundBuilder) -> GrowingCall | None:
    """Returns the call to which these entries of `tool_calls` add only arguments, if it is the only one at its index
    and has the same index for the client; else None."""
    entry = as_mapping(entries[0]) if type(entries) is list and len(entries) == 1 else {}
    if entry.keys() != {"index", "function"} or as_mapping(entry["function"]).keys() != {"arguments"}:
        return None
    calls = [call for call in builder.calls if call.index == entry["index"]]
    return calls[0] if len(calls) == 1 and calls[0].visible == calls[0].index else None
