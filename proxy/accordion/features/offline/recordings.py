"""Recorded conversations and their requests, whatever file they come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from accordion.model.records import Usage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MalformedTranscript:
    """An unreadable line and the reason; line 0 means the whole file."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request of the agent. Its list has `index` entries, so its response was `messages[index]`.

    `body` is the request body, `usage` the provider's report, `at` the time in seconds since the epoch (0: not known).
    """

    index: int
    body: bytes
    usage: Usage | None
    at: float = 0.0


class PastConversation(Protocol):
    """A recorded conversation, from a transcript or from a session file."""

    @property
    def file(self) -> str:
        """The file."""

    @property
    def line(self) -> int:
        """The line of the first request, from 1."""

    @property
    def name(self) -> str:
        """The name of the conversation."""

    @property
    def session(self) -> str:
        """The session that it is a part of."""

    @property
    def path(self) -> str:
        """The path of the requests."""

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Headers of the requests."""

    @property
    def has_preamble(self) -> bool:
        """Whether the system prompt and the tools are in the requests."""

    def requests(self, model: str | None = None, preamble_tokens: int = 0) -> Iterator[AgentRequest]:
        """Yields the requests in order. `model` replaces the recorded one.

        `preamble_tokens` is the size of the text that stands for system prompt and tools where they are not on record.
        """

    def count_requests(self) -> int:
        """Counts the requests."""


def encode_json(value: Any) -> bytes:
    """Encodes JSON as OpenAI's Python SDK does, but a lone surrogate, which the SDK cannot send, as its escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def decode_line(text: bytes, kind: type[T]) -> T:
    """Decodes a line of JSON. Raises msgspec.MsgspecError, ValueError or RecursionError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # msgspec cannot decode lone surrogates, which occur in recorded tool results.
        return msgspec.convert(json.loads(text), kind)
