"""What the budgets beside tokens (images, bytes) have in common: which parts may go, and what stands for them."""

from __future__ import annotations

from collections.abc import Iterator

from accordion.archive.references import artifact_id, pictured, reference, size_of
from accordion.compaction.strategies.base import Draft, estimated, media_of, text_of
from accordion.core.conversation import Media, ToolCall, ToolResult
from accordion.core.plan import Replace


def order(view: Draft) -> Iterator[tuple[int, int, int]]:
    """Parts that may be replaced as (last resort, slot, part): 0 for what is free, 1 for what is not, 2 for the opening
    request, 3 for the task."""
    found = []
    for index, slot in enumerate(view.slots):
        if view.gone[index] or not view.reach[index]:
            continue
        resort = 0 if view.free[index] else {view.opening: 2, view.task: 3}.get(index, 1)
        for at, part in enumerate(slot.message.parts):
            if isinstance(part, Media | ToolResult) and view.replaceable(index, at):
                found.append((resort, index, at))
    yield from sorted(found, key=lambda entry: entry[0])


def replacement(view: Draft, slot: int, part: int) -> Replace:
    """A reference in place of a medium, or of a result; of a result with media the text stays."""
    message = view.slots[slot].message
    found, kept = message.parts[part], artifact_id(view.space, message.key, part)
    media = media_of(found)
    if isinstance(found, ToolResult) and not media:
        call = view.call_of(slot, part) or ToolCall(found.call_id, "", "")
        text = reference(call.name, call.arguments, kept, size_of(text_of(found)))
    else:
        told = (pictured(_kind(medium), kept, _size(medium)) for medium in media)
        text = "\n".join(filter(None, (text_of(found) if isinstance(found, ToolResult) else "", *told)))
    return Replace(slot, part, text, estimated(text))


def bytes_of(view: Draft, slot: int, part: int) -> int:
    """Bytes of a part that a replacement would save: media are sent as base64."""
    found = view.slots[slot].message.parts[part]
    media = media_of(found)
    return sum(medium.size * 4 // 3 for medium in media) or len(text_of(found).encode())


def _kind(medium: Media) -> str:
    return {"image": "Image", "audio": "Sound", "video": "Film", "file": "File"}[medium.kind]


def _size(medium: Media) -> str:
    pixels = f"{medium.width} by {medium.height} pixels" if medium.width else ""
    size = f"{medium.size:,} bytes" if medium.size else ""
    return ", ".join(filter(None, (medium.media_type, pixels, size))) or "of unknown size"
