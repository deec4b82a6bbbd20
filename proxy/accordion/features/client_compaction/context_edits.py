"""Context edits: what a client asks its provider to remove from the window or to summarize, what was done, and the
interface of a protocol that has such edits.

Anthropic's Messages has `context_management.edits` and `compaction`, OpenAI's Responses `context_management`,
`compaction_trigger` and `POST /v1/responses/compact`. A `ContextEditProtocol` reads them, and writes the answer in the
provider's form.

A compaction block or item carries sealed content, which only the proxy can open. The client sends it back with every
later request, and the list in it takes the place of what the block stands for.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import msgspec


class ToolUseClearing(msgspec.Struct, frozen=True):
    """Clears the results of old tool uses (`clear_tool_uses_20250919`).

    It is due from `trigger_tokens` of input on, or from `trigger_uses` tool uses on if that is not None. The newest
    `keep` uses stay, and those of `excluded_tools`. It is left out if it would clear fewer than `min_tokens`.
    `clears_inputs`: whether the inputs of the calls go too; of `input_tools` only, if that is not None.
    """

    trigger_tokens: int = 100_000
    trigger_uses: int | None = None
    keep: int = 3
    min_tokens: int = 0
    excluded_tools: frozenset[str] = frozenset()
    clears_inputs: bool = False
    input_tools: frozenset[str] | None = None


class ThinkingClearing(msgspec.Struct, frozen=True):
    """Clears the thinking of all but the newest `keep` turns that have some (`clear_thinking_20251015`)."""

    keep: int = 1


class RequestedSummary(msgspec.Struct, frozen=True):
    """Replaces the conversation by a compaction block.

    It is due from `threshold` tokens of input on; None: from the trigger of our own compaction on. `is_block_only`: the
    response has nothing but the block, so that no model answers. `instructions` are the client's own for the summary.
    """

    threshold: int | None = 150_000
    is_block_only: bool = False
    instructions: str = ""


class ContextEdits(msgspec.Struct, frozen=True):
    """The edits that one request asks for. `feature` is the name by which a provider refuses what it does not have."""

    feature: str
    tool_uses: ToolUseClearing | None = None
    thinking: ThinkingClearing | None = None
    summary: RequestedSummary | None = None


class ClearedContent(msgspec.Struct, frozen=True):
    """What was cleared in a list, with the tokens that this saves."""

    tool_uses: int = 0
    tool_use_tokens: int = 0
    thinking_turns: int = 0
    thinking_tokens: int = 0


class CompactionBlock(msgspec.Struct, frozen=True):
    """A compaction block for the client.

    `text` can be read by people and by any model; `sealed` is the sealed list that takes the place of everything before
    the block. `input` and `output` are the tokens of the model that wrote the summary; 0 without a model.
    """

    text: str
    sealed: str
    input: int = 0
    output: int = 0


class OpenedBlock(msgspec.Struct, frozen=True):
    """The content of one of our compaction blocks: the entries of the list, and the artifacts that they name."""

    entries: tuple[bytes, ...]
    artifacts: tuple[str, ...]


class ContextReport(msgspec.Struct, frozen=True):
    """The report on the edits of a request that its response contains."""

    edits: ContextEdits
    cleared: ClearedContent = ClearedContent()
    block: CompactionBlock | None = None


# -- the interface of a protocol ---------------------------------------------------------------------------------------


SEAL_PREFIX = "accordion1."
"""The beginning of our sealed content; no provider's encrypted content contains a dot."""
SEAL_BYTES = SEAL_PREFIX.encode()

OpenBlock = Callable[[str], OpenedBlock | None]
"""Opens the sealed content of a block; returns None if it is another tenant's, or damaged."""


def block_id(sealed: str) -> str:
    """Returns the id of a block with this sealed content, in the form of OpenAI's."""
    return f"cmp_{hashlib.sha256(sealed.encode()).hexdigest()[:32]}"


def response_id(prefix: str, sealed: str) -> str:
    """Returns the id of a response that has nothing but a block."""
    return f"{prefix}_{hashlib.sha256(b'response' + sealed.encode()).hexdigest()[:32]}"


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
        self, entries: Sequence[bytes], open_block: OpenBlock, *, reads_foreign: bool
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
