"""What a request says, whatever its wire protocol: parts, messages, a conversation.

Frozen all the way down. A message keeps the client's own bytes (`wire`), so that what is not edited
is written back as it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from sys import getsizeof
from typing import Literal

from accordion.core.values import dataclass

MediaKind = Literal["image", "audio", "video", "file"]

Kept = Literal["", "reply", "object", "thread"]
"""What a provider keeps, so that a later request need not say all of it again.

`reply`: what this reply's id stands for. `object`: what a lasting id stands for, which is more with each reply.
`thread`: as `reply`, for some minutes; the client has all of it too, leaves system prompt and tools out of what goes on
from it, and says all of it again where it is told that the thread is gone.
"""


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text that the model reads."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A model's reasoning: what is readable of it as `text`, `sealed` bytes of an encrypted or signed rest."""

    text: str
    sealed: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made. `arguments` is the text as it stood on the wire (JSON for function tools)."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image, sound, film or document. Sizes are 0 where unknown: `size` in bytes, `width` and `height` in pixels."""

    kind: MediaKind
    media_type: str = ""
    size: int = 0
    width: int = 0
    height: int = 0
    pages: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part that is not understood: counted by its size in bytes, passed on, never touched.

    `runs` are the sizes of the long base64 texts in it, which are media, whatever they show.
    """

    kind: str
    size: int
    runs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered to the call `call_id`."""

    call_id: str
    parts: tuple[Text | Reasoning | Media | Opaque, ...]
    error: bool = False


_SAID = frozenset({Text, Media, Opaque})

UNHEARD = "(words that only the provider has, as "
"""How a text begins that stands for one which a client only names."""

Part = Text | Reasoning | ToolCall | ToolResult | Media | Opaque

_PART = 150
"""Bytes that a part takes beside its texts."""
_MESSAGE = 400
"""Bytes that a message takes beside its JSON and its parts."""


def _size_of(part: Part) -> int:
    if isinstance(part, Text | Reasoning):
        return _PART + getsizeof(part.text)
    if isinstance(part, ToolCall):
        return _PART + getsizeof(part.call_id) + getsizeof(part.name) + getsizeof(part.arguments)
    if isinstance(part, ToolResult):
        return _PART + getsizeof(part.call_id) + sum(map(_size_of, part.parts))
    return _PART


Role = Literal["system", "developer", "user", "assistant", "tool", "other"]

INSTRUCTING: frozenset[Role] = frozenset({"system", "developer"})
"""Who says how all of it is to be done."""


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the client's list. `key` is its content's hash (dialects/keys.py), `wire` the client's own JSON.

    `marks` is how many cache breakpoints stand in it.
    """

    key: bytes
    role: Role
    parts: tuple[Part, ...]
    wire: bytes
    marks: int = 0

    @property
    def size(self) -> int:
        """The bytes that it takes in memory, roughly. Python keeps a text with one wide character in two or four bytes
        for each of its characters, whatever they take as JSON."""
        return _MESSAGE + getsizeof(self.wire) + sum(map(_size_of, self.parts))

    @property
    def has_user_text(self) -> bool:
        """Whether a person (or the program in a person's place) says something here."""
        return self.role == "user" and not _SAID.isdisjoint(map(type, self.parts))

    @property
    def has_tool_result(self) -> bool:
        """Whether a tool's answer stands here."""
        return ToolResult in map(type, self.parts)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request, read.

    `messages` leaves out what belongs to the `preamble` (the system prompt, wherever the dialect puts it).
    `chain[i]` is the chain key of `messages[i]`: a hash of everything up to and including it.
    `envelope` holds every other top-level field as the client's own JSON.
    """

    dialect: str
    model: str
    messages: tuple[Message, ...]
    chain: tuple[bytes, ...]
    preamble: tuple[Part, ...] = ()
    tools: tuple[str, ...] = ()
    stream: bool = False
    max_output: int | None = None
    previous: str | None = None
    """The id of provider-kept state that this request goes on from: of a reply, or of a `conversation`."""
    kept: Kept = ""
    envelope: Mapping[str, bytes] = field(default_factory=dict)
    lead: tuple[Message, ...] = ()
    """The entries of the client's list that stand before `messages` and belong to the preamble."""
    overhead_key: bytes = b""
    """Tells one preamble and tool list from another; the same for the same content."""

    @property
    def threaded(self) -> bool:
        """Whether it goes on from a thread, which may be let go of."""
        return self.kept == "thread" and self.previous is not None

    @property
    def starts_turn(self) -> bool:
        """Whether the last message, but for instructions, holds user text and no tool result; anything else is
        mid-generation."""
        for last in reversed(self.messages):
            # What the system says behind the user begins no other moment.
            if last.role not in INSTRUCTING:
                return last.has_user_text and not last.has_tool_result
        return True
