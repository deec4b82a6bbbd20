"""The list while a fold is planned: steps are applied to it, each at once counted, nothing of the client's is changed.

Counts are estimates where a step is concerned (the parts of a message share its count by their length), so that
planning needs no tokenizer; the request is counted anew when the fold was made.
"""

from __future__ import annotations

from collections.abc import Sequence

from accordion.accounting.meter import MESSAGE, SEALED_ENVELOPE
from accordion.compaction.strategies.base import Archive, Draft, media_of, text_of
from accordion.core.conversation import Media, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.core.plan import OURS, Drop, Replace, Slot, Step, Summarize, placed
from accordion.core.values import replace

GONE = Text("")
"""What stands where a part was dropped."""

_JSON = 60
"""Bytes of JSON around a part, roughly."""
_PICTURE = 6_000
"""Characters of text that count like a picture, roughly."""


class Sketch:
    """A draft that steps are applied to."""

    def __init__(self, draft: Draft) -> None:
        self.start = draft
        self._slots = list(draft.slots)
        self._whole, self._free = list(draft.whole), list(draft.free)
        self._gone, self._woven = list(draft.gone), list(draft.woven)
        self._tokens: dict[int, list[int]] = {}
        self._parts: dict[int, list[Part]] = {}
        """The parts of slots that were changed since the last draft."""
        self._bytes: dict[int, int] = {}
        self.tokens, self.size, self.images = draft.tokens, draft.size, draft.images
        self.first = len(draft.slots)
        """The first slot that was changed."""

    def draft(self) -> Draft:
        """The list as it is now."""
        self._settle()
        return replace(
            self.start,
            slots=tuple(self._slots),
            free=tuple(self._free),
            whole=tuple(self._whole),
            gone=tuple(self._gone),
            tokens=self.tokens,
            size=self.size,
            images=self.images,
            part_tokens=self.part_tokens,
            woven=tuple(self._woven),
        )

    def parts(self, index: int) -> Sequence[Part]:
        """The parts of a slot as they are now."""
        return self._parts.get(index) or self._slots[index].message.parts

    def gone(self, index: int) -> bool:
        """Whether a slot has left the list."""
        return self._gone[index]

    def origin(self, index: int) -> int:
        """Where what stands at a slot is from."""
        return self._slots[index].origin

    def part_tokens(self, index: int) -> list[int]:
        """What each part of a slot counts now; together with what any message costs, the count of the slot."""
        if index not in self._tokens:
            woven = self._woven[index] if self._woven else 0
            self._tokens[index] = self._shared(self._slots[index], woven)
        return self._tokens[index]

    def apply(self, step: Step | Archive) -> None:
        """Carries a step out. That it is allowed is the planner's business."""
        if self._woven:
            self._unweave(step)
        if isinstance(step, Summarize):
            self._summarize(step)
        elif isinstance(step, Drop):
            for at in step.parts or range(len(self.parts(step.slot))):
                self._put(step.slot, at, GONE, 0)
            if all(part == GONE for part in self.parts(step.slot)) and not self._gone[step.slot]:
                self._leave(step.slot)
            self.first = min(self.first, step.slot)
        else:
            text = step.text if isinstance(step, Replace) else ""
            old = self.parts(step.slot)[step.part]
            new = ToolResult(old.call_id, (Text(text),), old.error) if isinstance(old, ToolResult) else Text(text)
            self._put(step.slot, step.part, new, step.tokens)
            self.first = min(self.first, step.slot)

    # -- steps --------------------------------------------------------------------

    def _unweave(self, step: Step | Archive) -> None:
        """What was read back up to where a fold touches the list is dropped."""
        last = step.last if isinstance(step, Summarize) else step.slot
        while isinstance(step, Summarize) and last >= step.first and not self._whole[last]:
            last -= 1
        for index, more in enumerate(self._woven[: last + 1]):
            if more:
                slot = self._slots[index]
                self._slots[index] = _slot(slot, slot.message, slot.tokens - more)
                self._woven[index] = 0
                self.tokens -= more

    def _put(self, index: int, at: int, new: Part, tokens: int) -> None:
        parts = self._parts.setdefault(index, list(self._slots[index].message.parts))
        counts, old = self.part_tokens(index), parts[at]
        saved, parts[at] = counts[at] - tokens, new
        counts[at] = tokens
        slot = self._slots[index]
        self._slots[index] = _slot(slot, slot.message, slot.tokens - saved)
        self.tokens -= saved
        self.images -= images_of(old)
        self._shrink(index, bytes_of(old) - bytes_of(new))

    def _shrink(self, index: int, by: int) -> None:
        self._bytes[index] = self._bytes_of(index) - by
        self.size -= by

    def _bytes_of(self, index: int) -> int:
        return self._bytes.get(index, len(self._slots[index].message.wire))

    def _leave(self, index: int) -> None:
        slot = self._slots[index]
        self.tokens -= slot.tokens
        if self.images:
            self.images -= sum(map(images_of, self.parts(index)))
        self._shrink(index, self._bytes_of(index))
        self._parts.pop(index, None)
        self._slots[index] = _slot(slot, _message(slot.message, ()), 0)
        self._gone[index] = True
        self._tokens.pop(index, None)

    def _settle(self) -> None:
        """Puts changed parts into their messages."""
        for index, parts in self._parts.items():
            slot = self._slots[index]
            self._slots[index] = _slot(slot, _message(slot.message, tuple(parts)), slot.tokens)
        self._parts.clear()

    def _summarize(self, step: Summarize) -> None:
        """The block takes the place that leaving slots have for it; what stays stands around it."""
        first, last = OURS, OURS
        leaving = [index for index in range(step.first, step.last + 1) if self._whole[index]]
        place = placed(self._slots, leaving)
        for index in leaving:
            slot = self._slots[index]
            first, last = slot.first if first == OURS else first, max(last, slot.last)
            if not self._gone[index]:
                self._leave(index)
            self._whole[index] = self._free[index] = False
        if place < 0:
            return
        block = Message(b"", "user", (Text(step.note),), b"")
        self._slots[place] = Slot(block, OURS, step.budget + MESSAGE, first=first, last=last)
        self._gone[place] = False
        self.tokens += step.budget + MESSAGE
        self._shrink(place, -(len(step.note.encode()) or 3 * step.budget))
        self.first = min(self.first, *leaving)

    # -- what parts count ----------------------------------------------------------

    def _shared(self, slot: Slot, woven: int) -> list[int]:
        message = slot.message
        if not slot.tokens:
            # The provider does not read it any more.
            return [0] * len(message.parts)
        fixed = [self._media(message, at, media_of(part)) for at, part in enumerate(message.parts)]
        lengths = [_length(part) for part in message.parts]
        rest, total = max(0, slot.tokens - woven - MESSAGE - sum(fixed)), sum(lengths) or 1
        return [more + rest * length // total for more, length in zip(fixed, lengths, strict=True)]

    def _media(self, message: Message, at: int, media: tuple[Media, ...]) -> int:
        if not media:
            return 0
        # Counts are remembered by key, so this piece of the message needs one of its own.
        alone = Message(message.key + b"/media/%d" % at, message.role, media, b"")
        return max(0, round((self.start.count(alone) - MESSAGE) * self.start.scale))


def _slot(slot: Slot, message: Message, tokens: int) -> Slot:
    """The slot with another message and count. There are many: `replace` takes five times as long."""
    return Slot(message, slot.origin, tokens, slot.edited, slot.first, slot.last)


def _message(message: Message, parts: tuple[Part, ...]) -> Message:
    return Message(message.key, message.role, parts, message.wire, message.marks)


def images_of(part: Part) -> int:
    """How many images stand in a part."""
    return sum(media.kind == "image" for media in media_of(part))


def bytes_of(part: Part) -> int:
    """Bytes of a part within the request, roughly: media are sent as base64."""
    inline = sum(media.size * 4 // 3 for media in media_of(part))
    if isinstance(part, ToolCall):
        return inline + len(part.arguments.encode()) + _JSON
    if isinstance(part, Reasoning):
        return len(part.text.encode()) + part.sealed + _JSON
    if isinstance(part, Opaque):
        return part.size
    return inline + len(text_of(part).encode()) + _JSON


def _length(part: Part) -> int:
    """A measure of what a part counts beside media: characters of text."""
    if isinstance(part, Text):
        return len(part.text)
    if isinstance(part, Reasoning):
        return max(len(part.text), part.sealed * 3 // 4 - SEALED_ENVELOPE)
    if isinstance(part, ToolCall):
        return len(part.name) + len(part.arguments) + 20
    if isinstance(part, ToolResult):
        return sum(_length(inner) for inner in part.parts) + 12
    if isinstance(part, Opaque):
        return part.size - sum(part.runs) + _PICTURE * len(part.runs)
    return 0
