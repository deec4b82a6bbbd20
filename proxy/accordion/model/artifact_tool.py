"""The artifact tool as values, whatever the wire protocol: its definition, a call, a result, a placeholder."""

from __future__ import annotations

from accordion.model.values import dataclass


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """The definition that is sent to the model. `schema` is the JSON schema of the arguments, as JSON."""

    name: str
    description: str
    schema: bytes


@dataclass(frozen=True, slots=True)
class ArtifactToolCall:
    """The model's call of the artifact tool. `arguments` is the model's text, which may be invalid JSON."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ArtifactToolResult:
    """The artifact tool's answer to a call."""

    call_id: str
    text: str
    error: bool = False


@dataclass(frozen=True, slots=True)
class ArtifactPlaceholder:
    """A reference in the arguments of a call of the client's own tool, in place of an artifact's text.

    The model writes `{"$artifact": "art_…", "path": "$.x"}`. An empty `path` means the whole artifact.
    """

    artifact: str
    path: str = ""
