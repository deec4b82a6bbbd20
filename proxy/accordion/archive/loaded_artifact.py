"""Loads an artifact from its rows: its text and a short description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from accordion.archive.artifacts import Artifact, artifact_text, result_text
from accordion.archive.references import shorten_arguments
from accordion.model.boundaries import CallInHistory
from accordion.model.conversation import Media, Message, Opaque, Part, Reasoning, Role, ToolCall, ToolResult

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
        what = f"stretch of {number:,} earlier messages" if number != 1 else "earlier message"
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
            what += f', whose arguments stand in full at path "{INPUT}"'
        return LoadedArtifact(artifact, what, result_text(part), call.arguments)
    if isinstance(part, ToolCall):
        return LoadedArtifact(artifact, f"arguments of a call of {part.name}", part.arguments, part.arguments)
    text = artifact_text(artifact, messages)
    if isinstance(part, Media | Opaque):
        kind = part.kind if isinstance(part, Media) else "part"
        return LoadedArtifact(artifact, f"{kind} of a message", f"one {kind} {text}", has_no_text=True)
    return LoadedArtifact(artifact, f"part of a message by {messages[-1].role}", text)


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
