"""The interface of a protocol that lets a client ask for context edits, and the form of our tokens.

A compaction block or item carries a sealed token, which only the proxy can open. The client sends it back with every
later request, and the list in it takes the place of what the block stands for.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from accordion.model.context_edits import ContextEdits, ContextReport, OpenedBlock

TOKEN_PREFIX = "accordion1."  # noqa: S105  # the beginning of every token, which is no secret
"""The beginning of our tokens; no provider's encrypted content contains a dot."""
TOKEN_BYTES = TOKEN_PREFIX.encode()

OpenToken = Callable[[str], OpenedBlock | None]
"""Opens a token; returns None if it is another tenant's, or damaged."""


def block_id(token: str) -> str:
    """Returns the id of a block with this token, in the form of OpenAI's."""
    return f"cmp_{hashlib.sha256(token.encode()).hexdigest()[:32]}"


def response_id(prefix: str, token: str) -> str:
    """Returns the id of a response that has nothing but a block."""
    return f"{prefix}_{hashlib.sha256(b'response' + token.encode()).hexdigest()[:32]}"


class ReportWriter(ABC):
    """Writes what was edited into one response: a stream of whole events, or a document."""

    @abstractmethod
    def feed(self, data: bytes) -> bytes:
        """Takes whole events, or the document; returns them with the report."""


class ContextEditProtocol(ABC):
    """How one protocol asks for context edits, and answers."""

    words: tuple[bytes, ...]
    """A body without any of these asks for no edits and has no block."""

    @abstractmethod
    def read_edits(self, fields: Mapping[str, bytes]) -> ContextEdits | None:
        """Reads the edits that a request asks for, from the fields of its body; None if it asks for none."""

    def is_announced(self, beta: str) -> bool:
        """Whether a request with these betas may ask for edits. Otherwise a provider that has them refuses it too."""
        return True

    @abstractmethod
    def remove_edits(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the fields without what asks for edits."""

    @abstractmethod
    def open_blocks(
        self, entries: Sequence[bytes], open_token: OpenToken, *, reads_foreign: bool
    ) -> tuple[list[bytes], tuple[str, ...]] | None:
        """Puts the content of the last of our blocks in place of what it stands for.

        Returns the new entries of the list, and the artifacts that they name; None if there is nothing to open.
        `reads_foreign`: the provider does not know any such block, so that a readable one of another origin is put in
        as text.
        """

    @abstractmethod
    def report_writer(self, report: ContextReport, *, stream: bool) -> ReportWriter:
        """Creates the writer of a report into one response."""

    @abstractmethod
    def write_block_response(self, report: ContextReport, model: str, created_at: int, *, stream: bool) -> bytes:
        """Writes the whole response that has nothing but the report's block."""

    def write_token_count(self, document: bytes, original_tokens: int) -> bytes:
        """Writes the tokens before the edits into the response to a request that only counts tokens."""
        return document


class ListCompactionProtocol(ContextEditProtocol):
    """A protocol with a path that only compacts a list (`WireProtocol.compaction_paths`)."""

    @abstractmethod
    def write_compact_response(self, report: ContextReport, entries: Sequence[bytes], created_at: int) -> bytes:
        """Writes the response of this path; `entries` are those of the client's list."""
