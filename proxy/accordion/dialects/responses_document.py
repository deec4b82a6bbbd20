"""One reply of Responses that is no stream, made of one or more of the provider's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from accordion.dialects.arguments import give_to, wanted_by
from accordion.dialects.responses_round import Told, as_one, is_ours, object_in, parsed, seen, without_ours
from accordion.dialects.shared import entries, mapping, string
from accordion.dialects.spans import object_of
from accordion.dialects.splice import RoundSeen, Wanted
from accordion.dialects.splicing import Document, listed, to_json


class ResponsesDocument(Document):
    """A reply that is one response object."""

    def __init__(self, tool: str) -> None:
        super().__init__()
        self._tool = tool

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the rounds, in order."""
        return tuple(name for name in (string(document.get("id")) for document in self.documents) if name)

    def understand(self, document: dict[str, Any]) -> RoundSeen:
        """What the response said, in the provider's words."""
        items = [(mapping(entry), to_json(entry)) for entry in entries(document.get("output"))]
        finished = type(document.get("output")) is list and document.get("status", "completed") == "completed"
        fields = {"usage": to_json(document.get("usage"))}
        return seen(items, self._tool, fields, finished=finished)

    def named(self, document: dict[str, Any]) -> tuple[Wanted, ...]:
        """The artifacts named in the client's calls, in order."""
        return wanted_by(self._calls(document))

    def put(self, document: dict[str, Any], texts: Sequence[str | None]) -> bool:
        """Writes the arguments of the client's calls anew."""
        return give_to(self._calls(document), texts)

    def written(self) -> bytes:
        """The response of all rounds."""
        rounds = []
        for document in self.documents:
            fields = parsed(to_json(document))
            shown = (raw for raw in listed(fields, "output") if not is_ours(object_in(raw), self._tool))
            rounds.append(Told(fields, tuple(shown) if type(document.get("output")) is list else None))
        if rounds[-1].output is None:
            # No response, but an error: it is the answer.
            return object_of(without_ours(rounds[-1].fields, self._tool))
        return object_of(as_one(rounds, self._tool))

    def close(self) -> bytes:
        """The response of all rounds. One in which nothing is ours keeps its bytes, but for our tool in its tools."""
        whole = super().close()
        fields = parsed(whole)
        shown = without_ours(fields, self._tool)
        return whole if shown == fields else object_of(shown)

    def _calls(self, document: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """The client's calls whose arguments are text."""
        for entry in map(mapping, entries(document.get("output"))):
            theirs = entry.get("type") == "function_call" and not is_ours(entry, self._tool)
            if theirs and type(entry.get("arguments")) is str:
                yield entry
