"""The port for summaries written by a model, with its request and response."""

from __future__ import annotations

from typing import Protocol

import msgspec

from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import Headers, Route


class SummaryCaller(StructWithHiddenFields, frozen=True):
    """The caller on whose behalf a summary is requested: route, headers and credential of the compacted request.

    `dialect` is that request's protocol, `model` its model; `keyed` is True where it presented a proxy key.
    """

    hidden_fields = frozenset({"headers", "credential"})

    tenant: str
    route: Route
    dialect: str
    model: str
    headers: Headers
    credential: str = ""
    keyed: bool = False


class SummaryRequest(msgspec.Struct, frozen=True):
    """A request for a summary: the system prompt, the user's text, and the longest response in tokens."""

    instructions: str
    text: str
    max_tokens: int


class SummaryResponse(msgspec.Struct, frozen=True):
    """The model's response, and the tokens that it used."""

    text: str
    model: str
    input: int = 0
    output: int = 0


class Summarizer(Protocol):
    """A model that writes summaries. Raises SummaryFailed."""

    def input_limit(self, asker: SummaryCaller) -> int:
        """Returns the largest input of one request, in tokens; 0 where there is no model."""

    async def write(self, request: SummaryRequest, asker: SummaryCaller) -> SummaryResponse:
        """Sends one request to the model."""
