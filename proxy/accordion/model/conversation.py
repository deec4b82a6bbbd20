"""A request's content as values, whatever the wire protocol: parts, messages, a conversation.

All values are frozen. A message keeps the client's own bytes (`wire`), so that a message that is not edited is written
back exactly as it came. `protocols/` builds these values from request bodies; every other package works on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import getsizeof
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

MediaKind = Literal["image", "audio", "video", "file"]

ProviderState = Literal["", "response", "object", "thread"]
"""The kind of state that a provider keeps, so that a later request need not send the whole conversation.

`response`: the conversation up to one response, under that response's id. `object`: a conversation under a lasting id,
which grows with each response. `thread`: like `response`, but for some minutes only; the client has the conversation
too, omits system prompt and tools from requests that continue the thread, and sends all of it when the thread has
ended.
"""


class Text(msgspec.Struct, frozen=True):
    """Plain text."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """A model's reasoning: the readable part as `text`, and the size in bytes of the encrypted or signed part."""

    text: str
    encrypted_size: int = 0


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call by the model. `arguments` is the text as it is on the wire (JSON for function tools).

    `approval_id` is the id of the request for the user's approval: in that request, and in all calls that it led to.
    """

    call_id: str
    name: str
    arguments: str
    approval_id: str = ""


class Media(msgspec.Struct, frozen=True):
    """An image, audio, video or document. `size` is in bytes, `width` and `height` in pixels; 0 means unknown."""

    kind: MediaKind
    media_type: str = ""
    size: int = 0
    width: int = 0
    height: int = 0
    pages: int = 0
    detail: str = ""


class Opaque(msgspec.Struct, frozen=True):
    """A part that the proxy does not understand: it is counted by its size in bytes and passed on unchanged.

    `runs` are the sizes of the long base64 texts in it, which are counted as media.
    """

    kind: str
    size: int
    runs: tuple[int, ...] = ()


class ToolResult(msgspec.Struct, frozen=True):
    """A tool's result for the call `call_id`.

    `name` is the called function, if the result has it. It tells the call where either side has no id.
    """

    call_id: str
    parts: tuple[Text | Reasoning | Media | Opaque, ...]
    error: bool = False
    name: str = ""

    @property
    def text(self) -> str:
        """The text parts, joined by line breaks."""
        return "\n".join([part.text for part in self.parts if isinstance(part, Text)])


_SPOKEN_PARTS = frozenset({Text, Media, Opaque})

UNKNOWN_WORDS = "(a message that only the provider has, with the id "
"""The beginning of a text that stands for a message which the client sends as an id only."""

Part = Text | Reasoning | ToolCall | ToolResult | Media | Opaque
P = TypeVar("P", bound=Part)

_PART = 150
"""Bytes that a part takes in memory besides its texts."""
_MESSAGE = 400
"""Bytes that a message takes in memory besides its JSON and its parts."""


def _size_of(part: Part) -> int:
    if isinstance(part, Text | Reasoning):
        return _PART + getsizeof(part.text)
    if isinstance(part, ToolCall):
        return _PART + getsizeof(part.call_id) + getsizeof(part.name) + getsizeof(part.arguments)
    if isinstance(part, ToolResult):
        return _PART + getsizeof(part.call_id) + sum(map(_size_of, part.parts))
    return _PART


def copy_if_wide(text: str) -> str:
    """Returns a copy of a text that is not ASCII, and an ASCII text itself.

    Once a text was encoded, Python keeps the UTF-8 form with it for as long as the text lives, except for ASCII.
    """
    return text if text.isascii() else text[:1] + text[1:]


def copy_wide_texts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Returns parts with copies of the texts that are not ASCII."""
    return tuple([_copy_wide_text(part) for part in parts])


def _copy_wide_text(part: P) -> P:
    if isinstance(part, Text | Reasoning):
        return part if part.text.isascii() else replace(part, text=copy_if_wide(part.text))
    if isinstance(part, ToolCall):
        return part if part.arguments.isascii() else replace(part, arguments=copy_if_wide(part.arguments))
    if isinstance(part, ToolResult):
        parts = part.parts
        if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].text.isascii():
            return part
        return replace(part, parts=tuple([_copy_wide_text(each) for each in parts]))
    return part


Role = Literal["system", "developer", "user", "assistant", "tool", "other"]

INSTRUCTION_ROLES: frozenset[Role] = frozenset({"system", "developer"})
"""The roles of messages that instruct the model: the system prompt, and instructions within the list."""


class Message(msgspec.Struct, frozen=True):
    """One entry of the client's list.

    `key` is the hash of its content (protocols/message_keys.py), `wire` the client's own JSON, which has
    `cache_breakpoints` breakpoints of the prompt cache. `content_key` is the hash of what it says, whatever its form;
    empty if that is `key`.
    """

    key: bytes
    role: Role
    parts: tuple[Part, ...]
    wire: bytes
    cache_breakpoints: int = 0
    content_key: bytes = b""

    @property
    def size(self) -> int:
        """The bytes that the message takes in memory, roughly.

        It is computed from the texts: one wide character makes Python use two or four bytes for each character.
        """
        return _MESSAGE + getsizeof(self.wire) + sum(map(_size_of, self.parts))

    @property
    def text(self) -> str:
        """The text parts, joined by line breaks: what its author wrote, without calls and results."""
        return "\n".join([part.text for part in self.parts if isinstance(part, Text)])

    @property
    def has_user_text(self) -> bool:
        """Whether the user, or the program in the user's place, wrote part of the message."""
        return self.role == "user" and not _SPOKEN_PARTS.isdisjoint(map(type, self.parts))

    @property
    def has_tool_result(self) -> bool:
        """Whether the message contains a tool result."""
        return ToolResult in map(type, self.parts)


class Conversation(msgspec.Struct, frozen=True):
    """The parsed content of a request.

    `messages` does not include the `preamble`: the system prompt, wherever the protocol puts it. `chain[i]` is the
    chain key of `messages[i]`: a hash of all messages up to and including it. `envelope` has every other top-level
    field as the client's own JSON.
    """

    protocol_name: str
    model: str
    messages: tuple[Message, ...]
    chain: tuple[bytes, ...]
    preamble: tuple[Part, ...] = ()
    tools: tuple[str, ...] = ()
    stream: bool = False
    max_output: int | None = None
    continued_id: str = ""
    """The id of the provider-kept state that this request continues: of a response, or of a `conversation`; empty if
    the request has the whole list."""
    provider_state: ProviderState = ""
    envelope: Mapping[str, bytes] = msgspec.field(default_factory=dict)
    lead: tuple[Message, ...] = ()
    """The entries of the client's list that precede `messages` and belong to the preamble."""
    overhead_key: bytes = b""
    """A hash of preamble and tool list; the same content has the same key."""
    identity: tuple[bytes, ...] = ()
    """The identity keys of `messages`: a chain of hashes of what they say. Empty if it is `chain`."""

    @property
    def identity_chain(self) -> tuple[bytes, ...]:
        """The keys by which the session is found, one for each message; those of a message that says nothing and of the
        message before it are equal."""
        return self.identity or self.chain

    @property
    def is_kept_by_provider(self) -> bool:
        """Whether the provider keeps the earlier messages, which the request continues by an id."""
        return bool(self.continued_id)

    @property
    def is_threaded(self) -> bool:
        """Whether the request continues a provider's thread, which the proxy may end."""
        return self.provider_state == "thread" and self.is_kept_by_provider

    @property
    def starts_turn(self) -> bool:
        """Whether the last message that is no instruction has user text and no tool result.

        Any other request is mid-generation.
        """
        for last in reversed(self.messages):
            # A system message after the user's does not change the moment.
            if last.role not in INSTRUCTION_ROLES:
                return last.has_user_text and not last.has_tool_result
        return True


def canonical_arguments(arguments: str) -> str:
    """Returns a call's arguments in one form for all JSON texts of the same value; other texts unchanged."""
    value = decode_arguments(arguments)
    return arguments if value is None else msgspec.json.encode(value, order="deterministic").decode()


def decode_arguments(arguments: str) -> object:
    """Returns the value of a call's arguments; None if they are no JSON."""
    try:
        return msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return None
