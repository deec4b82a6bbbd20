"""The response of a Responses tool loop as one JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from accordion.protocols.artifact_placeholders import find_placeholders_in_calls, replace_placeholders_in_calls
from accordion.protocols.json_spans import object_of
from accordion.protocols.json_values import as_list, as_mapping, as_string, to_json
from accordion.protocols.openai_responses.response import decode_object, split_object
from accordion.protocols.openai_responses.rounds import (
    ResponseObject,
    build_round,
    is_own_call,
    merge_rounds,
    without_own_tool,
)
from accordion.protocols.tool_loop import ArtifactPlaceholder, ObservedRound
from accordion.protocols.tool_loop_shared import ToolLoopDocument, list_field


class ResponsesToolDocument(ToolLoopDocument):
    """A response that is one response object."""

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool

    @property
    def response_ids(self) -> tuple[str, ...]:
        """The provider's ids of the rounds, in order."""
        return tuple(name for name in (as_string(document.get("id")) for document in self.documents) if name)

    def read_document(self, document: dict[str, Any]) -> ObservedRound:
        """Reads the items of a response object."""
        items = [(as_mapping(entry), to_json(entry)) for entry in as_list(document.get("output"))]
        finished = type(document.get("output")) is list and document.get("status", "completed") == "completed"
        fields = {"usage": to_json(document.get("usage"))}
        return build_round(items, self._tool, fields, finished=finished)

    def find_document_placeholders(self, document: dict[str, Any]) -> tuple[ArtifactPlaceholder, ...]:
        """Returns the placeholders in the client's calls, in order."""
        return find_placeholders_in_calls(self._calls(document))

    def replace_document_placeholders(self, document: dict[str, Any], texts: Sequence[str | None]) -> bool:
        """Replaces the placeholders in the client's calls."""
        return replace_placeholders_in_calls(self._calls(document), texts)

    def write_document(self) -> bytes:
        """Writes the response object of all rounds."""
        rounds = []
        for document in self.documents:
            fields = split_object(to_json(document))
            visible_items = (
                raw for raw in list_field(fields, "output") if not is_own_call(decode_object(raw), self._tool)
            )
            rounds.append(
                ResponseObject(fields, tuple(visible_items) if type(document.get("output")) is list else None)
            )
        if rounds[-1].output is None:
            # An error instead of a response: the client gets the error.
            return object_of(without_own_tool(rounds[-1].fields, self._tool))
        return object_of(merge_rounds(rounds, self._tool))

    def close(self) -> bytes:
        """Returns the response object of all rounds. A single round without own calls keeps its bytes, except for the
        artifact tool in its tools."""
        document = super().close()
        fields = split_object(document)
        visible = without_own_tool(fields, self._tool)
        return document if visible == fields else object_of(visible)

    def _calls(self, document: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """The client's calls whose arguments are text."""
        for entry in map(as_mapping, as_list(document.get("output"))):
            is_client_call = entry.get("type") == "function_call" and not is_own_call(entry, self._tool)
            if is_client_call and type(entry.get("arguments")) is str:
                yield entry
