"""Asking a model for a summary: the port, and what passes through it."""

from __future__ import annotations

from dataclasses import field
from typing import Protocol

from accordion.core.ports import Headers, Route
from accordion.core.values import dataclass


@dataclass(frozen=True, slots=True)
class Asker:
    """In whose name a summary is asked for: the route, headers and credential of the request that is folded.

    `dialect` is its protocol, `model` the model that it names.
    """

    tenant: str
    route: Route
    dialect: str
    model: str
    headers: Headers = field(repr=False)
    credential: str = field(default="", repr=False)
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """What a model is asked for: `instructions` (system), `text` (user), and the longest answer in tokens."""

    instructions: str
    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class SummaryReply:
    """What it answered, and what that cost in tokens."""

    text: str
    model: str
    input: int = 0
    output: int = 0


class Summarizer(Protocol):
    """A model that writes summaries. Raises SummaryFailed."""

    def room(self, asker: Asker) -> int:
        """How many tokens of input may be sent to it in one request; 0 where no model can be had."""

    async def write(self, request: SummaryRequest, asker: Asker) -> SummaryReply:
        """Asks the model once."""
