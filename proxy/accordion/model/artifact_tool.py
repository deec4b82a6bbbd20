"""The artifact tool as values, whatever the wire protocol: its definition, a call, a result, a placeholder."""

from __future__ import annotations

import msgspec


class ToolDefinition(msgspec.Struct, frozen=True):
    """The definition that is sent to the model. `schema` is the JSON schema of the arguments, as JSON."""

    name: str
    description: str
    schema: bytes


class ArtifactToolCall(msgspec.Struct, frozen=True):
    """The model's call of the artifact tool. `arguments` is the model's text, which may be invalid JSON."""

    call_id: str
    name: str
    arguments: str


class ArtifactToolResult(msgspec.Struct, frozen=True):
    """The artifact tool's answer to a call."""

    call_id: str
    text: str
    error: bool = False


class ArtifactPlaceholder(msgspec.Struct, frozen=True):
    """A reference in the arguments of a call of the client's own tool, in place of an artifact's text.

    The model writes `{"$artifact": "art_…", "path": "$.x"}`. An empty `path` means the whole artifact.
    """

    artifact: str
    path: str = ""
