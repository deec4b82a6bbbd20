"""What a reply of Anthropic's Messages said: content blocks as they grow in a stream, and in the form of a request.

What a reply gives may be sent back as it came, but for blank text, thinking that nothing follows, and arguments that
are no object. Sources: the type files and the stream accumulator of the anthropic SDK; the guide to fine-grained tool
streaming for arguments that are no JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accordion.core.records import Usage
from accordion.dialects.arguments import Arguments
from accordion.dialects.keys import read
from accordion.dialects.messages_blocks import CALLS
from accordion.dialects.messages_events import Alike, Delta, event_of, opening_of
from accordion.dialects.shared import count, encode, mapping, string
from accordion.dialects.spans import NULL, fields_of, is_list, is_object, items_of, list_of, object_of
from accordion.dialects.splice import OurCall, RoundSeen
from accordion.dialects.splicing import cut, usage_of_all

NO_INPUT = b"{}"
DONE = frozenset({"end_turn", "tool_use", "stop_sequence"})
"""Why a reply ends when the model was done; any other reason is a limit, a refusal, a pause."""

_THINKING = frozenset({"thinking", "redacted_thinking"})
_GROWING = {"text": "text", "thinking": "thinking"}
_UNREAD = 64 * 1024
"""How much of a block is kept unread at most, in bytes."""


class Block:
    """One content block of a reply, from its start on. `start` is the JSON of it, `place` the index that the client
    knows it by. Raises ValueError where `start` is no object."""

    __slots__ = (
        *("_alike", "_behind", "_late", "_pieces", "_size", "_start", "_unread"),
        *("arguments", "id", "kind", "name", "odd", "ours", "place"),
    )

    def __init__(self, start: bytes, tool: str, place: int) -> None:
        held = read(start)
        if type(held) is not dict:
            raise ValueError("a content block is an object")
        self.kind, self.id, self.name = (string(held.get(name)) for name in ("type", "id", "name"))
        self.ours = self.kind == "tool_use" and self.name == tool
        self.place = place
        self.arguments = Arguments() if self.kind == "tool_use" and not self.ours else None
        self.odd = False
        """Whether something was said of it that is not understood."""
        self._start = start
        self._pieces: list[str] = []
        self._late: dict[str, list[bytes]] = {}
        self._alike: Alike | None = None
        # Events that went on unread, and their bytes.
        self._unread: list[bytes] = []
        self._size = 0
        # What of them the arguments have not been told.
        self._behind: list[str] = []

    def takes(self, events: bytes) -> bool:
        """Whether these events are more of the same, and may go on unread; they are read when somebody asks. A brace in
        arguments may begin the name of an artifact: there the text is wanted."""
        alike, arguments = self._alike, self.arguments
        if alike is None or (arguments is not None and not arguments.idle) or alike.match(events) is None:
            return False
        self._keep(events)
        return True

    def follow(self, block: bytes, at: int) -> int:
        """Takes of whole events those from `at` on that are more of the same; returns where they end."""
        alike, arguments = self._alike, self.arguments
        idle = alike is not None and (arguments is None or arguments.idle)
        found = alike.run(block, at) if alike is not None and idle else None
        if found is None:
            return at
        self._keep(found.group())
        return found.end()

    @property
    def silent(self) -> bool:
        """Whether what is said of it is a text, and nothing of a call."""
        return self.kind in {"text", "thinking"}

    def _keep(self, events: bytes) -> None:
        self._unread.append(events)
        self._size += len(events)
        if self._size > _UNREAD:
            self.settle()

    def learn(self, piece: bytes) -> None:
        """Takes a delta as the pattern of those that may go on unread."""
        opening = opening_of(piece, self.place) if self._alike is None else b""
        if opening:
            self._alike = Alike(opening, b"{" if self.arguments is not None else b"")

    def settle(self) -> None:
        """Reads what went on unread."""
        if not self._unread:
            return
        raw, begun = b"".join(self._unread), len(self._pieces)
        self._unread.clear()
        self._size = 0
        text = self._alike.text(raw) if self._alike is not None else None
        if text is not None:
            self._pieces.append(text)
        else:
            for piece in cut(raw):
                event = event_of(piece)
                if event is None:
                    self.odd = True
                elif event.delta is not None:
                    self.grow(event.delta)
        if self.arguments is not None:
            self._behind += self._pieces[begun:]

    def catch_up(self) -> None:
        """Tells the arguments what went on unread. It has no brace in it, so nothing of it waits."""
        if self.arguments is not None and self._behind:
            self.arguments.feed("".join(self._behind))
            self._behind.clear()

    def grow(self, delta: Delta) -> None:
        """Takes what a delta adds."""
        if self._unread:
            self.settle()
        kind = delta.type
        if kind == "text_delta":
            self._pieces.append(delta.text)
        elif kind == "input_json_delta":
            self._pieces.append(delta.partial_json)
        elif kind == "thinking_delta":
            self._pieces.append(delta.thinking)
        elif kind == "signature_delta":
            self._late["signature"] = [encode(delta.signature)]
        elif kind == "citations_delta" and bytes(delta.citation):
            self._late.setdefault("citations", []).append(bytes(delta.citation))
        elif kind == "compaction_delta":
            self._late |= {
                name: [bytes(value)]
                for name, value in (("content", delta.content), ("encrypted_content", delta.encrypted_content))
                if bytes(value)
            }
        else:
            self.odd = True

    @property
    def text(self) -> str:
        """What a block of text says; empty for any other."""
        return string(mapping(read(self._start)).get("text")) + "".join(self._pieces) if self.kind == "text" else ""

    @property
    def given(self) -> str:
        """The arguments of a call as the text that the model wrote."""
        told = "".join(self._pieces)
        return told if told.strip() else fields_of(self._start).get("input", NO_INPUT).decode()

    @property
    def wire(self) -> bytes:
        """The block as it may be sent back."""
        fields = fields_of(self._start)
        changed: dict[str, bytes] = {}
        if self.kind in CALLS:
            changed["input"] = _object(self.given)
        elif self._pieces and (name := _GROWING.get(self.kind, "")):
            before = string(read(fields.get(name, b'""')))
            changed[name] = encode(before + "".join(self._pieces))
        for name, values in self._late.items():
            known = fields.get(name, b"")
            if name == "citations":
                changed[name] = list_of([*(items_of(known) if is_list(known) else ()), *values])
            else:
                changed[name] = values[-1]
        same = all(fields.get(name) == value for name, value in changed.items())
        return self._start if same else object_of({**fields, **changed})


def seen(
    blocks: Sequence[Block], *, finished: bool, usage: Usage | None, resolved: bool = False, container: str = ""
) -> RoundSeen:
    """What a reply of these blocks said. Of one that is not finished our calls are left out: nobody answers them."""
    for block in blocks:
        block.settle()
    finished = finished and not any(block.odd for block in blocks)
    kept = [block for block in blocks if finished or not block.ours]
    kept = [block for block in kept if block.kind != "text" or block.text.strip()]
    while kept and kept[-1].kind in _THINKING:
        kept.pop()
    said = object_of({"role": b'"assistant"', "content": list_of(block.wire for block in kept)})
    return RoundSeen(
        said=(said,) if kept else (),
        ours=tuple(OurCall(block.id, block.name, block.given) for block in blocks if block.ours),
        theirs=tuple(block.id for block in blocks if block.kind == "tool_use" and not block.ours),
        text=" ".join(block.text for block in blocks if block.kind == "text"),
        finished=finished,
        usage=usage,
        resolved=resolved,
        container=container,
    )


def ended(reason: str, blocks: Sequence[Block]) -> str:
    """The stop reason that the visible blocks of the last reply ask for, where the provider's was `reason`."""
    calls = [block.ours for block in blocks if block.kind == "tool_use"]
    return "end_turn" if reason == "tool_use" and calls and all(calls) else reason


def summed(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last reply's usage with the output of all, and with what the provider's own tools were asked in all."""
    usage = usage_of_all(usages, "input_tokens", "output_tokens", "output_tokens_details")
    asked = [mapping(each.get("server_tool_use")) for each in usages]
    names = {name: None for each in asked for name in each}
    if names:
        usage["server_tool_use"] = {name: sum(count(each.get(name)) for each in asked) for name in names}
    return usage


def _object(text: str) -> bytes:
    """Arguments as an object; what is none is wrapped as the provider's guide says."""
    raw = text.strip().encode()
    if raw in {b"", NULL}:
        return NO_INPUT
    try:
        if is_object(raw) and type(read(raw)) is dict:
            return raw
    except ValueError:
        pass
    return encode({"INVALID_JSON": text})
