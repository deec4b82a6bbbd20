"""Context edits: what a client asks its provider to remove from the window or to summarize, and what was done.

Anthropic's Messages has `context_management.edits` and `compaction`, OpenAI's Responses `context_management`,
`compaction_trigger` and `POST /v1/responses/compact`. `protocols/` reads them, and writes the answer in the provider's
form.
"""

from __future__ import annotations

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

    It is due from `threshold` tokens of input on; None: from the trigger of our own compaction on. `is_alone`: the
    response has nothing but the block, so that no model answers. `instructions` are the client's own for the summary.
    """

    threshold: int | None = 150_000
    is_alone: bool = False
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

    `text` can be read by people and by any model; `token` is the sealed list that takes the place of everything before
    the block. `input` and `output` are the tokens of the model that wrote the summary; 0 without a model.
    """

    text: str
    token: str
    input: int = 0
    output: int = 0


class OpenedBlock(msgspec.Struct, frozen=True):
    """The content of one of our compaction blocks: the entries of the list, and the artifacts that they name."""

    entries: tuple[bytes, ...]
    artifacts: tuple[str, ...]


class ContextReport(msgspec.Struct, frozen=True):
    """What a response says of the edits of its request."""

    edits: ContextEdits
    cleared: ClearedContent = ClearedContent()
    block: CompactionBlock | None = None
