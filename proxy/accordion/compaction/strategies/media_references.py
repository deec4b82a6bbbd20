"""Shared by the strategies for the image and byte limits: which parts may be replaced, and their references."""

from __future__ import annotations

from collections.abc import Iterator

from accordion.archive.references import describe_size, media_reference, result_reference
from accordion.compaction.strategies.base import StrategyView, estimate_tokens, media_parts, text_of
from accordion.model.conversation import Media, ToolCall, ToolResult
from accordion.model.plan import Replace


def list_replaceable_parts(view: StrategyView) -> Iterator[tuple[int, int, int]]:
    """Yields replaceable parts as (last resort, slot, part). Last resort is 0 for free slots, 1 for others, 2 for the
    opening request, 3 for the task."""
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
    return {"image": "Image", "audio": "Sound", "video": "Film", "file": "File"}[medium.kind]


def _describe_media(medium: Media) -> str:
    pixels = f"{medium.width} by {medium.height} pixels" if medium.width else ""
    size = f"{medium.size:,} bytes" if medium.size else ""
    return ", ".join(filter(None, (medium.media_type, pixels, size))) or "of unknown size"
