"""What a strategy gets, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Protocol

import msgspec

from accordion.compaction.case import Thinking
from accordion.core.boundaries import Place
from accordion.core.conversation import Media, Message, Part, Text, ToolCall, ToolResult
from accordion.core.delegation import Delegation
from accordion.core.plan import Step, View
from accordion.core.values import dataclass

Digest = Callable[[str, int], str]
"""Makes a digest of a text, of at most so many characters; empty where there is nothing to say."""


def no_digest(_text: str, _most: int) -> str:
    """No digest."""
    return ""


Writable = Callable[[Message, int], bool]
"""Whether a text may stand instead of a part of a message."""


def anything(_message: Message, _part: int) -> bool:
    """A text may stand anywhere."""
    return True


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a strategy; a key that it does not know is an error."""


@dataclass(frozen=True, slots=True)
class Draft(View):
    """A view as the strategies before left it. Slots and parts keep their places: a slot that went is `gone`, a part
    that went is an empty text.

    `limit` is what the request may come to at most, in tokens. `reach[i]`: slot i may be touched as a last resort,
    though it is not free. `unread` is the first slot of the newest tool batch. Reasoning from slot `turn` on stays:
    its tool turn is still open. `calls` gives each result's call, by place. `images` and `size` (bytes of the request)
    stand against what a provider takes (0: anything).
    """

    gone: tuple[bool, ...] = ()
    reach: tuple[bool, ...] = ()
    limit: int = 0
    unread: int = 0
    turn: int = 0
    opening: int = -1
    thinking: Thinking = "none"
    calls: Mapping[Place, Place] = field(default_factory=dict)
    open: frozenset[Place] = frozenset()
    space: bytes = field(default=b"", repr=False)
    digest: Digest = no_digest
    count: Callable[[Message], int] = lambda _message: 0
    """Counts a message, before any correction; `scale` corrects it."""
    instructions: Callable[[Message], int] = lambda _message: 0
    """Tokens that the standing instructions in a message take, about."""
    scale: float = 1.0
    part_tokens: Callable[[int], Sequence[int]] = lambda _slot: ()
    """What each part of a slot counts now."""
    images: int = 0
    images_at_most: int = 0
    size: int = 0
    size_at_most: int = 0
    writable: Writable = anything
    afresh: bool = False
    """Whether our tool is offered from this fold on: then all that is bound to its prefix is bound to another."""
    woven: tuple[int, ...] = ()
    """What of each slot's tokens was read back or recalled there; it goes with what is touched there or behind."""
    begun: Mapping[str, Delegation] = field(default_factory=dict)
    """By call id the delegations whose returns the results are."""
    orphans: tuple[tuple[int, int], ...] = ()
    """Slots of reasoning that led to nothing but calls of our tool, each with the slot that these go with."""

    @property
    def live(self) -> list[int]:
        """The slots that are still there, without messages of system and developer."""
        return [
            index
            for index, slot in enumerate(self.slots)
            if not self.gone[index] and slot.message.role not in ("system", "developer")
        ]

    def whole_groups(self) -> list[tuple[int, int]]:
        """The groups that may leave and are still there, in order."""
        return [group for group in self.groups if self.whole[group[0]] and not all(self.gone[slice_of(group)])]

    def group_tokens(self, group: tuple[int, int]) -> int:
        """What a group counts."""
        return sum(slot.tokens for slot in self.slots[slice_of(group)])

    def results(self) -> Iterator[tuple[int, int, ToolResult]]:
        """The tool results that a step may touch, with their places, in order."""
        return self.results_in((0, len(self.slots) - 1))

    def results_in(self, group: tuple[int, int]) -> Iterator[tuple[int, int, ToolResult]]:
        """The same of one group. What a provider's own tool gave stands in what the model said, and is none."""
        for index in range(group[0], group[1] + 1):
            if self.free[index] and not self.gone[index] and self.slots[index].message.role != "assistant":
                for at, part in enumerate(self.slots[index].message.parts):
                    if isinstance(part, ToolResult) and part.call_id not in self.pinned:
                        yield index, at, part

    def replaceable(self, slot: int, part: int) -> bool:
        """Whether a text may stand instead of a part, as far as its kind goes."""
        message = self.slots[slot].message
        found = message.parts[part]
        if isinstance(found, ToolResult):
            return message.role != "assistant" and found.call_id not in self.pinned and self.writable(message, part)
        return isinstance(found, Text | Media)

    def call_of(self, slot: int, part: int) -> ToolCall | None:
        """The call that a result answers."""
        place = self.calls.get((slot, part))
        found = self.slots[place[0]].message.parts[place[1]] if place is not None else None
        return found if isinstance(found, ToolCall) else None


@dataclass(frozen=True, slots=True)
class Archive:
    """A Replace whose text is only written once it is sure that the part stays in the list. `tokens` is an estimate
    of what it will count, rather too high."""

    slot: int
    part: int
    tokens: int
    write: Callable[[], str]


class Strategy(Protocol):
    """One way to make a list shorter. Pure: the same view gives the same steps."""

    name: str

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """What is to be done, the least loss first; the planner stops where the target is met."""


def estimated(text: str) -> int:
    """Tokens of a text that is not worth counting, rather too many: three bytes each."""
    return len(text.encode()) // 3 + 4


def text_of(part: Part) -> str:
    """What is readable of a result, or of a text."""
    if isinstance(part, ToolResult):
        return "\n".join(inner.text for inner in part.parts if isinstance(inner, Text))
    return part.text if isinstance(part, Text) else ""


def media_of(part: Part) -> tuple[Media, ...]:
    """The media within a part, or the part itself."""
    if isinstance(part, ToolResult):
        return tuple(inner for inner in part.parts if isinstance(inner, Media))
    return (part,) if isinstance(part, Media) else ()


def slice_of(group: tuple[int, int]) -> slice:
    """A group as a slice."""
    return slice(group[0], group[1] + 1)
