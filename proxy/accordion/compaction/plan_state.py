"""The history during planning: applies steps and counts their effect, without changing the client's messages.

The effect of a step is estimated (the parts of a message share its count by their length), so that planning needs no
tokenizer. The finished compaction is counted exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from accordion.accounting.token_meter import MESSAGE, SEALED_ENVELOPE
from accordion.compaction.strategies.base import ProposedStep, StrategyView, media_parts, text_of
from accordion.model.conversation import Media, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import WRITTEN_BY_COMPACTION, Drop, Replace, Slot, Summarize, choose_block_slot

REMOVED_PART = Text("")
"""Takes the place of a dropped part, so that the other parts keep their indexes."""

_PART_OVERHEAD = 60
"""Estimated bytes of JSON around a part."""
_IMAGE_CHARACTERS = 6_000
"""Characters of text that have about as many tokens as one image."""


class PlanState:
    """A history under planning, to which steps are applied."""

    def __init__(self, view: StrategyView) -> None:
        self.initial_view = view
        self._slots = list(view.slots)
        self._removable, self._free = list(view.removable), list(view.free)
        self._removed, self._insertion_tokens = list(view.removed), list(view.insertion_tokens)
        self._tokens: dict[int, tuple[int, ...]] = {}
        self._parts: dict[int, list[Part]] = {}
        """Parts changed since the last `current_view`, by slot."""
        self._bytes: dict[int, int] = {}
        self.tokens, self.size, self.images = view.tokens, view.body_size, view.images
        self.first_changed = len(view.slots)
        """The first changed slot; the number of slots if none was changed."""

    def current_view(self) -> StrategyView:
        """Returns the view of the history as it is now."""
        self._update_messages()
        return replace(
            self.initial_view,
            slots=tuple(self._slots),
            free=tuple(self._free),
            removable=tuple(self._removable),
            removed=tuple(self._removed),
            tokens=self.tokens,
            body_size=self.size,
            images=self.images,
            count_part_tokens=self.count_part_tokens,
            insertion_tokens=tuple(self._insertion_tokens),
        )

    def parts_of(self, index: int) -> Sequence[Part]:
        """Returns the current parts of a slot."""
        return self._parts.get(index) or self._slots[index].message.parts

    def is_removed(self, index: int) -> bool:
        """Whether a slot was removed."""
        return self._removed[index]

    def origin_of(self, index: int) -> int:
        """Returns the origin of a slot's current message."""
        return self._slots[index].origin

    def count_part_tokens(self, index: int) -> tuple[int, ...]:
        """Returns the current tokens of each part. Their sum plus the overhead of a message is the slot's count."""
        if index not in self._tokens:
            insertion_tokens = self._insertion_tokens[index] if self._insertion_tokens else 0
            self._tokens[index] = self._divide_tokens(self._slots[index], insertion_tokens)
        return self._tokens[index]

    def apply(self, step: ProposedStep) -> None:
        """Applies a step. The caller makes sure that it is legal."""
        if self._insertion_tokens:
            self._drop_insertions(step)
        if isinstance(step, Summarize):
            self._summarize(step)
        elif isinstance(step, Drop):
            for at in step.parts or range(len(self.parts_of(step.slot))):
                self._replace_part(step.slot, at, REMOVED_PART, 0)
            if all(part == REMOVED_PART for part in self.parts_of(step.slot)) and not self._removed[step.slot]:
                self._remove_slot(step.slot)
            self.first_changed = min(self.first_changed, step.slot)
        else:
            text = step.text if isinstance(step, Replace) else ""
            old = self.parts_of(step.slot)[step.part]
            new: Part = Text(text)
            if isinstance(old, ToolResult):
                new = ToolResult(old.call_id, (Text(text),), old.error)
            elif isinstance(old, ToolCall):
                new = ToolCall(old.call_id, old.name, text)
            self._replace_part(step.slot, step.part, new, step.tokens)
            self.first_changed = min(self.first_changed, step.slot)

    # -- steps --------------------------------------------------------------------

    def _drop_insertions(self, step: ProposedStep) -> None:
        """Drops the tokens of read-backs and recalls up to the last slot that the step changes."""
        last = step.last if isinstance(step, Summarize) else step.slot
        while isinstance(step, Summarize) and last >= step.first and not self._removable[last]:
            last -= 1
        for index, tokens in enumerate(self._insertion_tokens[: last + 1]):
            if tokens:
                slot = self._slots[index]
                self._slots[index] = _replace_message(slot, slot.message, slot.tokens - tokens)
                self._insertion_tokens[index] = 0
                self.tokens -= tokens

    def _replace_part(self, index: int, at: int, new: Part, tokens: int) -> None:
        parts = self._parts.setdefault(index, list(self._slots[index].message.parts))
        counts, old = self.count_part_tokens(index), parts[at]
        saved, parts[at] = counts[at] - tokens, new
        self._tokens[index] = (*counts[:at], tokens, *counts[at + 1 :])
        slot = self._slots[index]
        self._slots[index] = _replace_message(slot, slot.message, slot.tokens - saved)
        self.tokens -= saved
        self.images -= count_images(old)
        self._reduce_bytes(index, count_bytes(old) - count_bytes(new))

    def _reduce_bytes(self, index: int, by: int) -> None:
        self._bytes[index] = self._slot_bytes(index) - by
        self.size -= by

    def _slot_bytes(self, index: int) -> int:
        return self._bytes.get(index, len(self._slots[index].message.wire))

    def _remove_slot(self, index: int) -> None:
        slot = self._slots[index]
        self.tokens -= slot.tokens
        if self.images:
            self.images -= sum(map(count_images, self.parts_of(index)))
        self._reduce_bytes(index, self._slot_bytes(index))
        self._parts.pop(index, None)
        self._slots[index] = _replace_message(slot, _replace_parts(slot.message, ()), 0)
        self._removed[index] = True
        self._tokens.pop(index, None)

    def _update_messages(self) -> None:
        """Writes the changed parts into the slots' messages."""
        for index, parts in self._parts.items():
            slot = self._slots[index]
            self._slots[index] = _replace_message(slot, _replace_parts(slot.message, tuple(parts)), slot.tokens)
        self._parts.clear()

    def _summarize(self, step: Summarize) -> None:
        """Replaces the removable slots of a range by one block; the other slots stay around it."""
        first, last = WRITTEN_BY_COMPACTION, WRITTEN_BY_COMPACTION
        removable = [index for index in range(step.first, step.last + 1) if self._removable[index]]
        block_slot = choose_block_slot(self._slots, removable)
        for index in removable:
            slot = self._slots[index]
            first, last = slot.first if first == WRITTEN_BY_COMPACTION else first, max(last, slot.last)
            if not self._removed[index]:
                self._remove_slot(index)
            self._removable[index] = self._free[index] = False
        if block_slot < 0:
            return
        block = Message(b"", "user", (Text(step.note),), b"")
        self._slots[block_slot] = Slot(block, WRITTEN_BY_COMPACTION, step.budget + MESSAGE, first=first, last=last)
        self._removed[block_slot] = False
        self.tokens += step.budget + MESSAGE
        self._reduce_bytes(block_slot, -(len(step.note.encode()) or 3 * step.budget))
        self.first_changed = min(self.first_changed, *removable)

    # -- tokens of parts -----------------------------------------------------------

    def _divide_tokens(self, slot: Slot, insertion_tokens: int) -> tuple[int, ...]:
        message = slot.message
        if not slot.tokens:
            # The provider ignores this message.
            return (0,) * len(message.parts)
        fixed = [self._count_media(message, at, media_parts(part)) for at, part in enumerate(message.parts)]
        lengths = [_token_weight(part) for part in message.parts]
        rest, total = max(0, slot.tokens - insertion_tokens - MESSAGE - sum(fixed)), sum(lengths) or 1
        return tuple([media + rest * length // total for media, length in zip(fixed, lengths, strict=True)])

    def _count_media(self, message: Message, at: int, media: tuple[Media, ...]) -> int:
        if not media:
            return 0
        # Counts are cached by key, so this part of the message needs its own.
        alone = Message(message.key + b"/media/%d" % at, message.role, media, b"")
        return max(0, round((self.initial_view.count_message(alone) - MESSAGE) * self.initial_view.scale))


def _replace_message(slot: Slot, message: Message, tokens: int) -> Slot:
    """Returns the slot with another message and count. Called often: `replace` takes five times as long."""
    return Slot(message, slot.origin, tokens, slot.is_edited, slot.first, slot.last)


def _replace_parts(message: Message, parts: tuple[Part, ...]) -> Message:
    return Message(message.key, message.role, parts, message.wire, message.cache_breakpoints)


def count_images(part: Part) -> int:
    """Counts the images in a part."""
    return sum(media.kind == "image" for media in media_parts(part))


def count_bytes(part: Part) -> int:
    """Estimates the bytes of a part within the request; media are sent as base64."""
    inline = sum(media.size * 4 // 3 for media in media_parts(part))
    if isinstance(part, ToolCall):
        return inline + len(part.arguments.encode()) + _PART_OVERHEAD
    if isinstance(part, Reasoning):
        return len(part.text.encode()) + part.encrypted_size + _PART_OVERHEAD
    if isinstance(part, Opaque):
        return part.size
    return inline + len(text_of(part).encode()) + _PART_OVERHEAD


def _token_weight(part: Part) -> int:
    """Returns a part's share of its message's tokens without media, in characters of text."""
    if isinstance(part, Text):
        return len(part.text)
    if isinstance(part, Reasoning):
        return max(len(part.text), part.encrypted_size * 3 // 4 - SEALED_ENVELOPE)
    if isinstance(part, ToolCall):
        return len(part.name) + len(part.arguments) + 20
    if isinstance(part, ToolResult):
        return sum(_token_weight(inner) for inner in part.parts) + 12
    if isinstance(part, Opaque):
        return part.size - sum(part.runs) + _IMAGE_CHARACTERS * len(part.runs)
    return 0
