"""What left the window, as it is kept: the client's own JSON by message key, and a record for each thing that a
reference may name.

Rows are content-addressed, so that a message is stored once however many folds it leaves in. An artifact says which
rows it is made of; its text is rendered from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Literal

import msgspec
import zstandard

from accordion.core.conversation import Media, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.core.ports import Key
from accordion.core.values import dataclass

_VERSION = b"\x01"
_MOST = 256 * 2**20
_LEVEL = 1
"""Of zstd: the rows of a transcript take 2 % more than at level 3, and a fifth less time."""

ArtifactKind = Literal["result", "part", "range"]
"""What one tool answered; another part of a message; a run of messages."""


@dataclass(frozen=True, slots=True)
class Row:
    """One message as the client sent it, under its key."""

    key: bytes
    wire: bytes


@dataclass(frozen=True, slots=True)
class Artifact:
    """One thing that left the window and can be read again.

    `keys` are the messages it is made of, in order; of a result the one with the call (where it is another) and the one
    with the answer. `first` and `last` are their indexes in the client's list, `part` the part within the last of them
    (-1 for a range). Sizes are of the content: `characters`, and `tokens` as an estimate. `scope` and `session` say
    where it left; the same content that left elsewhere too has the same id and a record of its own there. `at` is
    seconds since the epoch.
    """

    id: str
    kind: ArtifactKind
    dialect: str
    keys: tuple[bytes, ...]
    first: int
    last: int
    part: int = -1
    tool: str = ""
    arguments: str = ""
    """The arguments of the call, their beginning."""
    call_id: str = ""
    characters: int = 0
    tokens: int = 0
    description: str = ""
    scope: bytes = field(default=b"", repr=False)
    session: str = ""
    at: float = 0.0
    findings: tuple[str, ...] = ()
    """What a summary says was found in it."""
    slice: int = 0
    slices: int = 0
    """Of a range that is too long to be taken back at once: the first, second, … of so many slices of its text; 0 of 0
    is all of it."""
    child: str = ""
    """Of what a sub-agent returned: the session of its own conversation, where that is known."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Artifact)


def encode(artifact: Artifact) -> bytes:
    """The record as the store keeps it."""
    return _VERSION + _ENCODER.encode(artifact)


def decode(value: bytes | None) -> Artifact | None:
    """A kept record; None where there is none, or none that can be read."""
    if value is None or value[:1] != _VERSION:
        return None
    try:
        return _DECODER.decode(value[1:])
    except (msgspec.MsgspecError, ValueError):
        return None


def packer() -> Callable[[bytes], bytes]:
    """What makes rows as the store keeps them. For one thread; to make a packer takes as long as to pack a row."""
    compress = zstandard.ZstdCompressor(_LEVEL).compress
    return lambda wire: _VERSION + compress(wire)


def unpack(value: bytes | None) -> bytes | None:
    """A kept row; None where there is none, or none that can be read."""
    if value is None or value[:1] != _VERSION:
        return None
    try:
        return zstandard.ZstdDecompressor().decompress(value[1:], max_output_size=_MOST)
    except (zstandard.ZstdError, ValueError, MemoryError):
        return None


def row_key(key: bytes) -> Key:
    """Where a row is kept. A message's key is the tenant's own already."""
    return Key("", f"row/{key.hex()}")


def records(space: bytes, artifact_id: str) -> str:
    """The collection of an artifact's records, one for each session and scope that it left, of the tenant whose key is
    `space`: an id alone leads nowhere."""
    return f"artifact/{tenant_of(space)}/{artifact_id}"


def listing(space: bytes, session: str) -> str:
    """The collection that lists a session's artifacts."""
    return f"artifacts/{tenant_of(space)}/{session}"


def record_keys(space: bytes, artifact: Artifact) -> tuple[Key, Key]:
    """Where a record is kept: by its id, and in its session's list."""
    return artifact_keys(tenant_of(space), artifact.id, artifact.scope, artifact.session)


def artifact_keys(tenant: str, artifact_id: str, scope: bytes, session: str) -> tuple[Key, Key]:
    """The same for who knows a tenant by name only (see `tenant_of`)."""
    by_id = Key(f"artifact/{tenant}/{artifact_id}", f"{scope.hex()}/{session}")
    return by_id, Key(f"artifacts/{tenant}/{session}", f"{artifact_id}/{scope.hex()}")


def tenant_of(space: bytes) -> str:
    """What a tenant is called in the names of keys; nobody can tell its key from it."""
    return hashlib.sha256(b"archive" + space).hexdigest()[:24]


# -- what it says ----------------------------------------------------------------------------------------------------


def result_text(result: ToolResult) -> str:
    """What a tool answered, as text; what is no text is named."""
    return "\n".join([_plain(part) for part in result.parts])


def artifact_text(artifact: Artifact, messages: Sequence[Message]) -> str:
    """The full text of an artifact, given the messages that its rows hold, in order.

    A tool's answer has the form `## Tool: name`, `**Input:**`, `**Output:**`; a range is its messages one below the
    other, each with its index in brackets; of a slice of it, the part from one line end to another.
    """
    if artifact.kind == "range":
        tools = {part.call_id: part.name for m in messages for part in m.parts if isinstance(part, ToolCall)}
        numbered = enumerate(messages, artifact.first)
        text = "\n\n".join(f"[{index}] {_message(message, tools)}" for index, message in numbered)
        return _sliced(artifact, text) if artifact.slices else text
    if not messages:
        return ""
    parts = messages[-1].parts
    part = parts[artifact.part] if 0 <= artifact.part < len(parts) else None
    if not isinstance(part, ToolResult):
        return _part(part, {}) if part is not None else ""
    calls = (p for m in messages for p in m.parts if isinstance(p, ToolCall) and p.call_id == part.call_id)
    call = next(calls, ToolCall(part.call_id, artifact.tool, artifact.arguments))
    return f"## Tool: {call.name}\n**Input:** {call.arguments}\n**Output:**\n{result_text(part)}"


def _sliced(artifact: Artifact, text: str) -> str:
    """A slice of a text, under a line that says which it is; they are cut at line ends near equal lengths."""
    number, of = artifact.slice, artifact.slices
    ends = [len(text) * at // of for at in range(of + 1)]
    for at in range(1, of):
        ends[at] = text.rfind("\n", ends[at - 1], ends[at]) + 1 or ends[at]
    which = f"(slice {number} of {of} of messages {artifact.first} to {artifact.last})"
    return f"{which}\n{text[ends[number - 1] : ends[number]]}"


def _message(message: Message, tools: dict[str, str]) -> str:
    return "\n".join([message.role, *(_part(part, tools) for part in message.parts)])


def _part(part: Part, tools: dict[str, str]) -> str:
    if isinstance(part, ToolCall):
        return f"## Tool: {part.name}\n**Input:** {part.arguments}"
    if isinstance(part, ToolResult):
        name = tools.get(part.call_id, "")
        return f"**Output{' of ' + name if name else ''}:**\n{result_text(part)}"
    return _plain(part)


def _plain(part: Part) -> str:
    if isinstance(part, Text):
        return part.text
    if isinstance(part, Reasoning):
        return part.text
    if isinstance(part, Media):
        size = f" {part.width}x{part.height}" if part.width else f" {part.size} bytes" if part.size else ""
        return f"({part.media_type or part.kind}{size})"
    if isinstance(part, Opaque):
        return f"({part.kind}, {part.size} bytes)"
    return ""
