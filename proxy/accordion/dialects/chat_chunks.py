"""The chunks of Chat Completions as bytes: read, written, and known by their beginning."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from accordion.dialects.chat_round import Call, Saying
from accordion.dialects.shared import encode, mapping
from accordion.dialects.splicing import from_json, to_json
from accordion.dialects.sse import events

DONE = object()
"""Stands for the data `[DONE]`."""

# The inside of a JSON string; behind it only values that say nothing more, up to the end of the event, with a space
# behind commas and colons or without.
_TEXT = rb'((?:[^"\\]++|\\.)*+)"'
_NOTHING = rb'(?:, ?+"\w++": ?+null|, ?+"role": ?+"assistant")*+\}'
_REST = rb'\](?:, ?+"(?!error)\w++": ?+(?:null|"[^"\\]*+"|\d++))*+\}(?:\n\n|\r\n\r\n|\r\r)'
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SAID = re.compile(_TEXT + _NOTHING + _NOTHING + _REST, re.DOTALL)
_CALLED = re.compile(_TEXT + rb"\}\}\]" + _NOTHING + _NOTHING + _REST, re.DOTALL)
# Arguments without these name nothing, and stay within the string, or without it, that they are in.
_MARKS = re.compile(rb"[{\\]")
_OPENS = {
    name: re.compile(rb'"%b"\s*+:\s*+"' % name.encode())
    for name in ("content", "refusal", "reasoning_content", "reasoning", "arguments")
}


class Run:
    """A run of chunks that each say more of the same text: of the content, of thoughts, of a call's arguments.

    Such chunks begin alike, byte for byte, so what is known of one is known of the next: it goes on unread, at the
    price of a comparison and one pattern. Any other chunk ends the run.
    """

    __slots__ = ("_begins", "_between", "_call", "_ends", "_rest", "_sink")

    def __init__(self) -> None:
        # How the next chunk begins if it says more of the same, how it then ends, and where its text goes.
        self._begins = b""
        # What followed the text in the first of them, and what then stands between two texts; empty where that differs.
        self._rest = self._between = b""
        self._ends: Callable[[bytes, int], re.Match[bytes] | None] = _SAID.match
        self._sink = bytearray()
        self._call: Call | None = None

    def end(self) -> None:
        """What comes next is to be read."""
        self._begins = b""

    @property
    def silent(self) -> bool:
        """Whether such chunks say more of a text, and nothing of a call."""
        return self._call is None

    def take(self, block: bytes, start: int = 0) -> tuple[bytes, int]:
        """Takes in such chunks of whole events, from `start` on; returns what of them may go on, mostly all of it, and
        where they end."""
        begins = self._begins
        if not begins or not block.startswith(begins, start):
            return b"", start
        at = self._alike(block, start) if self._rest else start
        if at == len(block):
            return block[start:], at
        out: list[bytes] = []
        done = start
        while block.startswith(begins, at):
            found = self._ends(block, at + len(begins))
            if found is None:
                break
            if not self._plain(found[1]):
                passed = self._searched(found[1])
                if passed is None:
                    break
                if passed != found[1]:
                    shown = block[at : found.start(1)] + passed + block[found.end(1) : found.end()] if passed else b""
                    out += (block[done:at], shown)
                    done = found.end()
            self._sink += found[1]
            at = found.end()
        return (b"".join(out) + block[done:at] if out else block[start:at]), at

    def _alike(self, block: bytes, start: int) -> int:
        """Takes in the chunks from `start` to the last one that begins so, where they all end alike, too; returns where
        that ends. What is left of them without ends and beginnings is text, or it has a quote: then something else
        stands between."""
        begins, rest = self._begins, self._rest
        end = block.find(rest, block.rfind(begins) + len(begins))
        text = block[start + len(begins) : end].replace(self._between, b"")
        if end < 0 or (b'"' in text and not _STRING.fullmatch(text)) or not self._plain(text):
            return start
        self._sink += text
        return end + len(rest)

    def _plain(self, text: bytes) -> bool:
        """Whether there is nothing to look for in a text."""
        return self._call is None or (self._call.arguments.idle and _MARKS.search(text) is None)

    def _searched(self, text: bytes) -> bytes | None:
        """What may go on of a piece of arguments in which an artifact may be named; None where it cannot be read alone
        (half a character)."""
        if self._call is None:
            return text
        try:
            read = from_json(b'"' + text + b'"')
            passed = self._call.arguments.feed(read)
            return text if passed == read else encode(passed)[1:-1]
        except ValueError:
            return None

    def begin(self, event: bytes, delta: dict[str, Any], saying: Saying) -> None:
        """Takes a chunk of one choice, which went on as it came and was taken in, as the first of a run, if one piece
        of text is all that it says."""
        said = [(name, held) for name, held in delta.items() if held is not None and name != "role"]
        if len(said) != 1:
            return
        name, held = said[0]
        call = None
        if name == "tool_calls":
            call = _alone(held, saying)
            name, held = "arguments", held[0]["function"]["arguments"] if call is not None else None
        if type(held) is not str or name not in _OPENS:
            return
        found = _OPENS[name].findall(event)
        ends = _SAID.match if call is None else _CALLED.match
        start = event.find(found[0]) + len(found[0]) if len(found) == 1 else 0
        if start and (text := ends(event, start)) is not None and from_json(b'"' + text[1] + b'"') == held:
            self._begins, self._ends, self._call = event[:start], ends, call
            # Padding ends each of them in another way.
            self._rest = b"" if b'"obfuscation"' in event else event[text.end(1) :]
            self._between = self._rest + self._begins
            self._sink = (saying.sinks[name] if call is None else call.sink).raw


def _alone(entries: Any, saying: Saying) -> Call | None:
    """The call of which these entries of `tool_calls` give nothing but more arguments, if it is the only one at its
    index, and the client sees it there."""
    entry = mapping(entries[0]) if type(entries) is list and len(entries) == 1 else {}
    if entry.keys() != {"index", "function"} or mapping(entry["function"]).keys() != {"arguments"}:
        return None
    calls = [call for call in saying.calls if call.index == entry["index"]]
    return calls[0] if len(calls) == 1 and calls[0].visible == calls[0].index else None


def read(event: bytes) -> Any:
    """The data of an event: an object, `DONE`, None where there is none, False where it cannot be read."""
    if event.startswith(b"data:") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        data = event[5:-2].lstrip()
    else:
        data = next((found.data for found in events(event)), b"").strip()
    if not data:
        return None
    if data.startswith(b"[DONE]"):
        return DONE
    try:
        value = from_json(data)
    except ValueError:
        return False
    return value if type(value) is dict else False


def write(data: dict[str, Any]) -> bytes:
    """An event of this data."""
    return b"data: " + to_json(data) + b"\n\n"
