"""What a layout takes out of the window, as rows and artifacts for the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil

from accordion.archive.artifacts import Artifact, ArtifactKind, Row, result_text
from accordion.archive.references import answerer, artifact_id, describe, range_id, shortened, size_of, slice_id
from accordion.compaction.layout import Block, Layout, gathered, stretches
from accordion.core.boundaries import groups, pairs
from accordion.core.conversation import Message, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.core.delegation import Delegation
from accordion.core.plan import Slot
from accordion.core.values import dataclass, replace
from accordion.summaries.author import LISTED

MOST_TOKENS = 6_000
"""Of a range, so that a model can take one back whole; a single group may be larger, and is kept in slices too."""


Kept = tuple[Artifact, ...]
"""A range, and its slices where it has too much to be taken back at once."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where what leaves comes from: tenant's key, scope, session and dialect; `at` in seconds since the epoch."""

    space: bytes
    scope: bytes
    session: str
    dialect: str
    at: float


@dataclass(frozen=True, slots=True)
class Removal:
    """What is to be kept. `listed` says, a line each, where the archive has what a summary stands for, and `ranges` the
    same as the first message, the last one and the id of each; `ids` are those of all artifacts that are new."""

    rows: tuple[Row, ...]
    artifacts: tuple[Artifact, ...]
    listed: tuple[str, ...]
    ranges: tuple[tuple[int, int, str], ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of what is new, in order."""
        return tuple(dict.fromkeys(artifact.id for artifact in self.artifacts))


class Remover:
    """Makes a Removal of a layout. `weigh` counts a message's tokens, `count` a text's as budgets of blocks do,
    `skipped` tells of a tool's name whether its results make no artifacts of their own, `begun` which delegation a call
    began, `heard` what was said where a message only names it: that is what is read back."""

    def __init__(
        self,
        layout: Layout,
        origin: Origin,
        weigh: Callable[[Message], int],
        count: Callable[[str], int],
        skipped: Callable[[str], bool],
        begun: Mapping[str, Delegation] | None = None,
        heard: Mapping[bytes, Message] | None = None,
    ) -> None:
        self._begun = begun or {}
        self._heard = heard or {}
        self._layout = layout
        self._messages = layout.client.messages
        self._origin = origin
        self._weigh = weigh
        self._count = count
        self._skipped = skipped
        self._known = frozenset(layout.base.artifacts) if layout.base is not None else frozenset[str]()
        self._groups, self._pairs = groups(self._messages), pairs(self._messages)

    def removal(self) -> Removal:
        """All of it. Content that earlier folds put away is not put away again."""
        layout = self._layout
        ranges = [each for first, last in self._left() for each in self._ranges(first, last)]
        noted = [self._noted(block) for block in layout.blocks if block.note]
        made = [each for each in (*ranges, *noted) if each.id not in self._known]
        for index in sorted({*layout.gone, *layout.changes}):
            slot = layout.slots[index]
            if slot.origin >= 0:
                made += self._parts(index, slot)
        places = {index for each in made for index in self._places(each)}
        places.update(layout.slots[index].origin for index in (*layout.gone, *layout.changes))
        rows = tuple(Row(self._messages[at].key, self._messages[at].wire) for at in sorted(places) if at >= 0)
        listed = self._listed(layout.summarized, ranges) if layout.summarized is not None else []
        # What is listed is made of the messages of ranges, which are kept.
        made += [each for kept in listed for each in kept if each.id not in self._known]
        new = {artifact.id: artifact for artifact in made}
        spans = tuple((whole.first, whole.last, whole.id) for whole, *_ in listed)
        return Removal(rows, tuple(new.values()), tuple(map(_line, listed)), spans)

    def _left(self) -> list[tuple[int, int]]:
        """Runs of the client's messages that left as a whole: those behind blocks, and those that were dropped. A block
        lists its own run, which nothing else may be joined to."""
        blocks = [(block.first, block.last) for block in self._layout.blocks]
        runs: list[tuple[int, int]] = []
        for index in sorted(self._layout.gone):
            slot = self._layout.slots[index]
            if any(first <= slot.first and slot.last <= last for first, last in blocks):
                continue
            if runs and index - 1 in self._layout.gone and runs[-1][1] == slot.first - 1:
                runs[-1] = (runs[-1][0], slot.last)
            else:
                runs.append((slot.first, slot.last))
        return sorted([*blocks, *runs])

    def _ranges(self, first: int, last: int) -> Iterator[Artifact]:
        weights = [self._weigh(self._said(message)) for message in self._messages[first : last + 1]]
        yield from map(self._range, stretches(self._groups, first, last, weights, MOST_TOKENS))

    def _listed(self, block: Block, ranges: Sequence[Artifact]) -> list[Kept]:
        """The ranges of a block as they are listed in it, with the oldest gathered to longer ones where there is no
        room for a line of each: all that left is found by what is shown."""
        own = [self._with_slices(each) for each in ranges if block.first <= each.first and each.last <= block.last]
        joint = self._cost((self._range(range(block.first, block.last + 1)),))
        costs, room = list(map(self._cost, own)), int(block.budget * LISTED)
        listed = [
            own[run.start]
            if len(run) == 1
            else (self._range(range(own[run.start][0].first, own[run.stop - 1][0].last + 1)),)
            for run in gathered(costs, room, joint)
        ]
        if sum(map(self._cost, listed)) > room:
            listed[0] = listed[0][:1]
        return listed

    def _with_slices(self, whole: Artifact) -> Kept:
        # A picture has tokens, but no text that could be sliced.
        of = ceil(min(whole.tokens, whole.characters) / MOST_TOKENS)
        if of < 2:
            return (whole,)
        slices = (
            replace(
                whole,
                id=slice_id(self._origin.space, whole.keys, number, of),
                characters=whole.characters // of,
                tokens=whole.tokens // of,
                description=f"slice {number} of {of} of {whole.description}",
                slice=number,
                slices=of,
            )
            for number in range(1, of + 1)
        )
        return (whole, *slices)

    def _cost(self, kept: Kept) -> int:
        return self._count(f"{_line(kept)}\n")

    def _noted(self, block: Block) -> Artifact:
        """All that a note stands for, under the id that the note names."""
        return self._range(range(block.first, block.last + 1), range_id(self._origin.space, block.keys))

    def _range(self, places: range, name: str = "") -> Artifact:
        held = self._messages[places.start : places.stop]
        keys = tuple(message.key for message in held)
        return self._artifact(
            name or range_id(self._origin.space, keys),
            "range",
            keys,
            places,
            characters=sum(_characters(part) for message in held for part in self._said(message).parts),
            tokens=sum(self._weigh(self._said(message)) for message in held),
            description=f"{len(held)} messages",
        )

    def _said(self, message: Message) -> Message:
        return self._heard.get(message.key, message)

    def _parts(self, index: int, slot: Slot) -> Iterator[Artifact]:
        """The results of a slot that left or were changed, and other parts whose new text names an artifact."""
        original, space = self._messages[slot.origin], self._origin.space
        changes = self._layout.changes.get(index)
        numbers = range(len(slot.message.parts)) if changes is None else sorted(changes)
        for number in numbers:
            part, text = slot.message.parts[number], (changes or {}).get(number) or ""
            place = _same(original, part, number)
            if place < 0:
                # Changed before, and not to be told from its neighbours any more: all of the message is kept.
                again = artifact_id(space, slot.message.key, number)
                if again in text and again not in self._known:
                    yield self._range(range(slot.origin, slot.origin + 1), again)
                continue
            # A reference is named after the message as it stood, which an earlier fold may have changed.
            named = artifact_id(space, slot.message.key, number)
            shown = bool(text) and named in text
            name, whole = named if shown else artifact_id(space, original.key, place), original.parts[place]
            if name in self._known:
                continue
            if not isinstance(whole, ToolResult):
                if shown:
                    yield self._other(slot.origin, place, whole, name)
            elif (artifact := self._result(slot.origin, place, whole, name, shown)) is not None:
                yield artifact

    def _result(self, index: int, part: int, result: ToolResult, name: str, shown: bool) -> Artifact | None:
        """What a tool answered; None where there is nothing, or where its tool is skipped and nothing refers to it."""
        text = result_text(result)
        first, at = self._pairs.get((index, part), (index, -1))
        call = self._messages[first].parts[at] if at >= 0 else None
        tool, arguments = (call.name, call.arguments) if isinstance(call, ToolCall) else ("", "")
        if not shown and (not text.strip() or self._skipped(tool)):
            return None
        message, said, child = self._messages[index], describe(text) or size_of(text), self._begun.get(result.call_id)
        keys = (message.key,) if first == index else (self._messages[first].key, message.key)
        made = self._artifact(
            name, "result", keys, range(first, index + 1), part=part, tool=tool,
            arguments=shortened(arguments), call_id=result.call_id,
            characters=len(text), tokens=self._share(message, len(text)), description=said,
        )  # fmt: skip
        if child is None:
            return made
        told = f"answer of {answerer(child.agent, child.session).rstrip(',')}: {said}"
        return replace(made, description=told, child=child.session)

    def _other(self, index: int, part: int, whole: Part, name: str) -> Artifact:
        message = self._messages[index]
        size = _characters(whole)
        tool = whole.name if isinstance(whole, ToolCall) else ""
        return self._artifact(
            name, "part", (message.key,), range(index, index + 1), part=part, tool=tool, characters=size,
            tokens=self._share(message, size), description=type(whole).__name__,
        )  # fmt: skip

    def _share(self, message: Message, characters: int) -> int:
        """Tokens of so many characters of a message, by its own rate."""
        whole = sum(_characters(part) for part in message.parts)
        return round(self._weigh(message) * characters / whole) if whole else 0

    def _places(self, artifact: Artifact) -> Sequence[int]:
        if artifact.kind == "range":
            return range(artifact.first, artifact.last + 1)
        return (artifact.first, artifact.last)

    def _artifact(
        self,
        name: str,
        kind: ArtifactKind,
        keys: tuple[bytes, ...],
        places: range,
        *,
        characters: int,
        tokens: int,
        description: str,
        part: int = -1,
        tool: str = "",
        arguments: str = "",
        call_id: str = "",
    ) -> Artifact:
        origin = self._origin
        return Artifact(
            name, kind, origin.dialect, keys, places.start, places.stop - 1, part, tool, arguments, call_id, characters,
            tokens, description, origin.scope, origin.session, origin.at,
        )  # fmt: skip


def _line(kept: Kept) -> str:
    """Where the archive has a range, and its slices."""
    whole, *slices = kept
    where = f"[{whole.first}-{whole.last}] whole as {whole.id}, {whole.tokens:,} tokens"
    return where + (f", in slices {' '.join(each.id for each in slices)}" if slices else "")


def _same(original: Message, part: Part, number: int) -> int:
    """Which part of the client's message a part of its (perhaps edited) form is; -1 where it is none of them."""
    if number < len(original.parts) and original.parts[number] == part:
        return number
    for index, other in enumerate(original.parts):
        if other == part or (
            isinstance(part, ToolResult) and isinstance(other, ToolResult) and other.call_id == part.call_id
        ):
            return index
    return -1


def _characters(part: Part) -> int:
    if isinstance(part, Text | Reasoning):
        return len(part.text)
    if isinstance(part, ToolCall):
        return len(part.name) + len(part.arguments)
    if isinstance(part, ToolResult):
        return sum(_characters(inner) for inner in part.parts)
    return 0
