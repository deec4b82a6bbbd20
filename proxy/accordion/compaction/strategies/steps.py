"""Steps that several strategies propose: references in place of results and media, and one note in place of groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accordion.accounting.token_meter import MESSAGE
from accordion.archive.references import describe_size, media_reference, omission_note, range_id, result_reference
from accordion.compaction.strategies.base import StrategyView, estimate_tokens, group_slice, media_parts, text_of
from accordion.model.conversation import Media, ToolCall, ToolResult
from accordion.model.plan import Replace, Summarize


def find_old_batches(view: StrategyView, newest_count: int) -> list[tuple[int, int]]:
    """Returns the groups with tool results, without the newest `newest_count` of them."""
    batches = [group for group in view.groups if _has_tool_result(view, group)]
    return batches[: max(0, len(batches) - newest_count)]


def is_earlier_replacement(view: StrategyView, slot: int, result: ToolResult, max_characters: int) -> bool:
    """Whether a result is the replacement text of an earlier compaction, of at most `max_characters`. A reference to it
    would give wrong facts (size, digest) about the original."""
    return view.slots[slot].is_edited and not media_parts(result) and len(text_of(result)) <= max_characters


def _has_tool_result(view: StrategyView, group: tuple[int, int]) -> bool:
    return any(isinstance(part, ToolResult) for slot in view.slots[group_slice(group)] for part in slot.message.parts)


def list_replaceable_parts(view: StrategyView) -> Iterator[tuple[int, int, int]]:
    """Yields replaceable parts as (last resort, slot, part). Last resort is 0 for free slots, 1 for others, 2 for the
    user's first message, 3 for the task."""
    replaceable = []
    for index, slot in enumerate(view.slots):
        if view.removed[index] or not view.reachable[index]:
            continue
        resort = 0 if view.free[index] else {view.opening_request: 2, view.task: 3}.get(index, 1)
        for at, part in enumerate(slot.message.parts):
            if isinstance(part, Media | ToolResult) and view.is_replaceable(index, at):
                replaceable.append((resort, index, at))
    yield from sorted(replaceable, key=lambda entry: entry[0])


def replace_with_reference(view: StrategyView, slot: int, part: int) -> Replace:
    """Replaces a medium or a result by a reference. A result with media keeps its text."""
    message = view.slots[slot].message
    content, artifact = message.parts[part], view.artifact_id_of(slot, part)
    media = media_parts(content)
    if isinstance(content, ToolResult) and not media:
        call = view.find_call(slot, part) or ToolCall(content.call_id, "", "")
        text = result_reference(call.name, call.arguments, artifact, describe_size(text_of(content)))
    else:
        references = (media_reference(_media_name(medium), artifact, _describe_media(medium)) for medium in media)
        text = "\n".join(filter(None, (text_of(content) if isinstance(content, ToolResult) else "", *references)))
    return Replace(slot, part, text, estimate_tokens(text))


def part_bytes(view: StrategyView, slot: int, part: int) -> int:
    """Returns the bytes that replacing a part would save; media are sent as base64."""
    content = view.slots[slot].message.parts[part]
    media = media_parts(content)
    return sum(medium.size * 4 // 3 for medium in media) or len(text_of(content).encode())


def _media_name(medium: Media) -> str:
    return {"image": "Image", "audio": "Audio", "video": "Video", "file": "File"}[medium.kind]


def _describe_media(medium: Media) -> str:
    pixels = f"{medium.width} by {medium.height} pixels" if medium.width else ""
    size = f"{medium.size:,} bytes" if medium.size else ""
    return ", ".join(filter(None, (medium.media_type, pixels, size))) or "of unknown size"


def replace_groups_before(view: StrategyView, end: int) -> Sequence[Summarize]:
    """Returns a step that replaces all removable groups that end before slot `end`; none if that saves nothing.

    The note counts the client's messages, including those that an earlier compaction replaced.
    """
    groups = [group for group in view.removable_groups() if group[1] < end]
    if not groups:
        return ()
    first, last = groups[0][0], groups[-1][1]
    removable = {index: view.slots[index] for index in range(first, last + 1) if view.removable[index]}
    slots = removable.values()
    # A block of an earlier compaction spans a range that may contain messages which are still there.
    staying = {slot.origin for index, slot in enumerate(view.slots) if index not in removable}
    messages = len({origin for slot in slots for origin in range(slot.first, slot.last + 1)} - staying)
    note = omission_note(messages, range_id(view.tenant, (slot.message.key for slot in slots)))
    budget = estimate_tokens(note)
    if budget + MESSAGE >= sum(slot.tokens for slot in slots):
        return ()
    return (Summarize(first, last, budget, note),)
