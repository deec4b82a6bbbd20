"""Which tool results are old, and which are already replacements: shared by the strategies that replace results."""

from __future__ import annotations

from accordion.compaction.strategies.base import StrategyView, group_slice, media_parts, text_of
from accordion.model.conversation import ToolResult


def find_old_batches(view: StrategyView, kept_count: int) -> list[tuple[int, int]]:
    """Returns the groups with tool results, without the newest `kept_count` of them."""
    batches = [group for group in view.groups if _has_tool_result(view, group)]
    return batches[: max(0, len(batches) - kept_count)]


def is_earlier_replacement(view: StrategyView, slot: int, result: ToolResult, max_characters: int) -> bool:
    """Whether a result is the replacement text of an earlier compaction, of at most `max_characters`. A reference to it
    would give wrong facts (size, digest) about the original."""
    return view.slots[slot].edited and not media_parts(result) and len(text_of(result)) <= max_characters


def _has_tool_result(view: StrategyView, group: tuple[int, int]) -> bool:
    return any(isinstance(part, ToolResult) for slot in view.slots[group_slice(group)] for part in slot.message.parts)
