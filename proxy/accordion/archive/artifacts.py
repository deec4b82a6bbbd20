"""Artifacts and rows: the archived content, its encoding, its keys in the store, its text, and how an artifact is
loaded from its rows.

A row is the client's own JSON of one message, by message key, so that a message is stored once however many compactions
take it out. An artifact is the record of one thing that a reference names: it lists its rows, and its text is rendered
from them. A client may only reference an item that its provider stores; such an item has a key of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from accordion.archive.references import shorten_arguments
from accordion.model.boundaries import CallInHistory
from accordion.model.conversation import Media, Message, Opaque, Part, Reasoning, Role, Text, ToolCall, ToolResult
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import Key
from accordion.model.tenant import ArchiveNamespace, TenantScope
from accordion.protocols.zstd import ZstdError, decompress, make_compressor

_VERSION = b"\x01"
_MAX_BYTES = 256 * 2**20
_LEVEL = 1
"""The level of zstd: the rows of a transcript take 2 % more than at level 3, and a fifth less time."""

ArtifactKind = Literal["result", "part", "range"]
"""A tool result; another part of a message; a range of messages."""


class ArchivedMessage(msgspec.Struct, frozen=True):
    """One message as the client sent it, under its key."""

    key: bytes
    wire: bytes


class Artifact(StructWithHiddenFields, frozen=True):
    """The record of a result, a part or a range of messages that left the window and can be read again.

    `keys` are its messages, in order; for a result the one with the call (if it is another) and the one with the
    result. `first` and `last` are their indexes in the client's list, `part` the part within the last of them (-1 for a
    range). Sizes are of the content: `characters`, and `tokens` as an estimate. `scope` and `session` are those that it
    left; the same content that left others has the same id and a record of its own there. `at` is seconds since the
    epoch.
    """

    hidden_fields = frozenset({"scope"})

    id: str
    kind: ArtifactKind
    protocol_name: str
    keys: tuple[bytes, ...]
    first: int
    last: int
    part: int = -1
    tool: str = ""
    arguments: str = ""
    """The beginning of the call's arguments."""
    call_id: str = ""
    characters: int = 0
    tokens: int = 0
    description: str = ""
    scope: bytes = b""
    session: str = ""
    at: float = 0.0
    findings: tuple[str, ...] = ()
    """Findings in it that a summary states."""
    slice: int = 0
    slices: int = 0
    """`slice` is the number of a slice, from 1 on, and `slices` their count, if a range is too long to be read back at
    once; both are 0 for a whole range."""
    child: str = ""
    """For the result of a sub-agent: the session of its own conversation, if that is known."""


class ArchivedRange(NamedTuple):
    """A range of messages that is an artifact: the client's indexes of the first and the last one, and its id."""

    first: int
    last: int
    artifact_id: str


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Artifact)


def encode(artifact: Artifact) -> bytes:
    """Encodes a record for the store."""
    return _VERSION + _ENCODER.encode(artifact)


def decode(value: bytes | None) -> Artifact | None:
    """Decodes a record; None if there is none, or none that can be read."""
    if value is None or value[:1] != _VERSION:
        return None
    try:
        return _DECODER.decode(value[1:])
    except (msgspec.MsgspecError, ValueError):
        return None


def make_packer() -> Callable[[bytes], bytes]:
    """Returns a function that packs rows for the store. For one thread; to make one takes as long as to pack a row."""
    compress = make_compressor(level=_LEVEL)
    return lambda wire: _VERSION + compress(wire)


def unpack(value: bytes | None) -> bytes | None:
    """Unpacks a row; None if there is none, or none that can be read."""
    if value is None or value[:1] != _VERSION:
        return None
    try:
        return decompress(value[1:], limit=_MAX_BYTES)
    except ZstdError:
        return None


def row_key(key: bytes) -> Key:
    """Returns the key of a row. A message's key is specific to the tenant already."""
    return Key("", f"row/{key.hex()}")


def records_collection(tenant: TenantScope, artifact_id: str) -> str:
    """Returns the collection of an artifact's records of a tenant, one for each session and scope that it left."""
    return f"artifact/{tenant.archive_namespace}/{artifact_id}"


def session_collection(tenant: TenantScope, session: str) -> str:
    """Returns the collection that lists a session's artifacts."""
    return f"artifacts/{tenant.archive_namespace}/{session}"


def record_keys(tenant: TenantScope, artifact: Artifact) -> tuple[Key, Key]:
    """Returns the keys of a record: by its id, and in its session's list."""
    return artifact_keys(tenant.archive_namespace, artifact.id, artifact.scope, artifact.session)


def artifact_keys(namespace: ArchiveNamespace, artifact_id: str, scope: bytes, session: str) -> tuple[Key, Key]:
    """Returns the keys of a record."""
    by_id = Key(f"artifact/{namespace}/{artifact_id}", f"{scope.hex()}/{session}")
    return by_id, Key(f"artifacts/{namespace}/{session}", f"{artifact_id}/{scope.hex()}")


# -- text --------------------------------------------------------------------------------------------------------------


def result_text(result: ToolResult) -> str:
    """Returns a tool result as text; other parts (images, files) are named."""
    return "\n".join([_render_plain(part) for part in result.parts])


def artifact_text(artifact: Artifact, messages: Sequence[Message]) -> str:
    """Returns the full text of an artifact, given its messages in order.

    A tool result has the form `## Tool: name`, `**Input:**`, `**Output:**`. A range is its messages one below the
    other, each with its index in brackets; a slice is cut at line ends.
    """
    if artifact.kind == "range":
        tools = {part.call_id: part.name for m in messages for part in m.parts if isinstance(part, ToolCall)}
        numbered = enumerate(messages, artifact.first)
        text = "\n\n".join(f"[{index}] {_render_message(message, tools)}" for index, message in numbered)
        return _slice_text(artifact, text) if artifact.slices else text
    if not messages:
        return ""
    parts = messages[-1].parts
    part = parts[artifact.part] if 0 <= artifact.part < len(parts) else None
    if not isinstance(part, ToolResult):
        return _render_part(part, {}) if part is not None else ""
    calls = (p for m in messages for p in m.parts if isinstance(p, ToolCall) and p.call_id == part.call_id)
    call = next(calls, ToolCall(part.call_id, artifact.tool, artifact.arguments))
    return f"## Tool: {call.name}\n**Input:** {call.arguments}\n**Output:**\n{result_text(part)}"


def _slice_text(artifact: Artifact, text: str) -> str:
    """Returns a slice of a text, under a line with its number; slices are cut at line ends near equal lengths."""
    number, count = artifact.slice, artifact.slices
    ends = [len(text) * at // count for at in range(count + 1)]
    for at in range(1, count):
        ends[at] = text.rfind("\n", ends[at - 1], ends[at]) + 1 or ends[at]
    label = f"(slice {number} of {count} of messages {artifact.first} to {artifact.last})"
    return f"{label}\n{text[ends[number - 1] : ends[number]]}"


def _render_message(message: Message, tools: dict[str, str]) -> str:
    return "\n".join([message.role, *(_render_part(part, tools) for part in message.parts)])


def _render_part(part: Part, tools: dict[str, str]) -> str:
    if isinstance(part, ToolCall):
        return f"## Tool: {part.name}\n**Input:** {part.arguments}"
    if isinstance(part, ToolResult):
        name = part.name or tools.get(part.call_id, "")
        return f"**Output{' of ' + name if name else ''}:**\n{result_text(part)}"
    return _render_plain(part)


def _render_plain(part: Part) -> str:
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


# -- loading -----------------------------------------------------------------------------------------------------------


INPUT: Final = "$input"
"""The path that selects the arguments of a result's call."""
_ARGUMENTS: Final = 160


class ReadableMessage(Protocol):
    """A message as a wire protocol parses it."""

    @property
    def role(self) -> Role:
        """The role of the message."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the message."""


class MessageParser(Protocol):
    """Parses messages of a wire protocol from the client's JSON. Raises ValueError."""

    def read_message(self, raw: bytes) -> ReadableMessage:
        """Parses one entry of the client's list."""


class LoadedArtifact(msgspec.Struct, frozen=True):
    """An artifact that was loaded from the archive.

    `artifact` is its record, `what` a short description, `text` its text, `input` the arguments of its call as JSON.
    """

    artifact: Artifact
    what: str
    text: str
    input: str = ""
    has_no_text: bool = False
    """Whether it has no text, such as an image."""
    has_more: bool = False
    """Whether it has content that its text lacks: media, or reasoning that only the provider can read."""


def load_artifact(
    artifact: Artifact, rows: Mapping[bytes, bytes], parsers: Mapping[str, MessageParser]
) -> LoadedArtifact | None:
    """Loads an artifact from its rows; None if a row is missing or cannot be parsed.

    Of a result, the row of the call may be missing: the record has the call's name and arguments.
    """
    parser = parsers.get(artifact.protocol_name)
    required = artifact.keys[-1:] if artifact.kind == "result" else artifact.keys
    if parser is None or not required or any(key not in rows for key in required):
        return None
    try:
        parsed = [(key, parser.read_message(rows[key])) for key in artifact.keys if key in rows]
    except ValueError:
        return None
    messages = [Message(key, each.role, each.parts, rows[key]) for key, each in parsed]
    return replace(_build_artifact(artifact, messages), has_more=_has_more(artifact, messages))


def find_calls(
    artifact: Artifact, rows: Mapping[bytes, bytes], parsers: Mapping[str, MessageParser]
) -> list[CallInHistory]:
    """Returns the calls whose results the artifact has."""
    call_id = artifact.call_id if artifact.kind == "result" else ""
    return [
        CallInHistory(key, number, part)
        for key in artifact.keys
        if key in rows
        for number, part in enumerate(parsers[artifact.protocol_name].read_message(rows[key]).parts)
        if isinstance(part, ToolCall) and call_id in ("", part.call_id)
    ]


def _build_artifact(artifact: Artifact, messages: Sequence[Message]) -> LoadedArtifact:
    """Builds an artifact from its messages in order. A result's text is the tool's output."""
    if artifact.kind == "range":
        number = len(messages)
        what = f"range of {number:,} earlier messages" if number != 1 else "earlier message"
        return LoadedArtifact(artifact, what, artifact_text(artifact, messages))
    parts = messages[-1].parts
    part = parts[artifact.part] if 0 <= artifact.part < len(parts) else None
    if isinstance(part, ToolResult):
        calls = (p for m in messages for p in m.parts if isinstance(p, ToolCall) and p.call_id == part.call_id)
        call = next(calls, ToolCall(part.call_id, artifact.tool, artifact.arguments))
        line = shorten_arguments(call.arguments)
        brief = line if len(line) <= _ARGUMENTS else line[: _ARGUMENTS - 1] + "…"
        what = f"result of {call.name}({brief})" if call.name else "tool result"
        if len(line) > _ARGUMENTS:
            what += f' (its full arguments: path "{INPUT}")'
        return LoadedArtifact(artifact, what, result_text(part), call.arguments)
    if isinstance(part, ToolCall):
        return LoadedArtifact(artifact, f"arguments of a call to {part.name}", part.arguments, part.arguments)
    text = artifact_text(artifact, messages)
    if isinstance(part, Media | Opaque):
        kind = part.kind if isinstance(part, Media) else "part"
        return LoadedArtifact(artifact, f"{kind} of a message", f"one {kind} {text}", has_no_text=True)
    return LoadedArtifact(artifact, f"part of a message from the {messages[-1].role}", text)


def _has_more(artifact: Artifact, messages: Sequence[Message]) -> bool:
    """Whether the artifact has content that is not text."""
    if artifact.kind == "range":
        return any(_is_not_text(part) for message in messages for part in message.parts)
    parts = messages[-1].parts
    return 0 <= artifact.part < len(parts) and _is_not_text(parts[artifact.part])


def _is_not_text(part: Part) -> bool:
    if isinstance(part, ToolResult):
        return any(_is_not_text(inner) for inner in part.parts)
    return isinstance(part, Media | Opaque) or (isinstance(part, Reasoning) and part.encrypted_size > 0)


def resolve_path(loaded: LoadedArtifact, path: str) -> tuple[str, str]:
    """Returns the text that a path refers to, the output or the arguments, and the path within it."""
    if path.startswith(INPUT):
        rest = path.removeprefix(INPUT)
        return loaded.input, "$" + rest if rest else ""
    return loaded.text, path


# -- items that a provider stores --------------------------------------------------------------------------------------


_MAX_REFERENCE = 512
"""Bytes of an item reference: it has nothing but the id."""


class _NamedItem(msgspec.Struct):
    id: str
    type: str | None = None
    role: str | None = None


_ITEM_DECODER = msgspec.json.Decoder(_NamedItem)


def item_key(tenant: TenantScope, name: str) -> Key:
    """Returns the key of an item of a tenant's response."""
    return provider_key("item", tenant, name)


def provider_key(kind: str, tenant: TenantScope, name: str) -> Key:
    """Returns the key of a tenant's value of some kind that a provider stores under this id."""
    digest = hashlib.sha256(len(tenant.key).to_bytes(4, "big") + tenant.key)
    digest.update(name.encode("utf-8", "surrogatepass"))
    return Key("", f"{kind}/{digest.hexdigest()}")


def item_name(wire: bytes) -> str:
    """Returns the id in an item reference; empty for all other messages. The type may be left out.

    Source: openai SDK, `types/responses/response_input_item_param.py` (`ItemReference`).
    """
    if len(wire) > _MAX_REFERENCE or b'"id"' not in wire:
        return ""
    try:
        item = _ITEM_DECODER.decode(wire)
    except (msgspec.MsgspecError, ValueError):
        return ""
    is_reference = item.type == "item_reference" or (item.type is None and item.role is None)
    return item.id if is_reference and item.id.startswith("msg_") else ""
