"""Builds the archive's rows and artifacts from the content that a layout removes from the window.

Removed messages are archived in ranges that a model can read as a whole; a removed result is an artifact of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import ceil

import msgspec
from msgspec.structs import replace

from accordion.archive.artifacts import ArchivedMessage, ArchivedRange, Artifact, ArtifactKind, result_text
from accordion.archive.references import (
    artifact_id,
    describe,
    describe_agent,
    describe_size,
    range_id,
    shorten_arguments,
    slice_id,
)
from accordion.compaction.apply import PlanLayout, TextBlock
from accordion.compaction.request import CompactionRequest
from accordion.model.boundaries import (
    find_indivisible_groups,
    match_results_to_calls,
)
from accordion.model.conversation import Message, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import Slot
from accordion.summaries.author import REFERENCE_SHARE

MAX_RANGE_TOKENS = 6_000
"""Maximum number of tokens in a range, so that a model can read it as a whole. A single group may be larger; then there
are artifacts of its slices too."""


_RangeArtifacts = tuple[Artifact, ...]
"""A range, and its slices if it is too large to be read at once."""


class RemovedContent(msgspec.Struct, frozen=True):
    """The content to archive. `reference_lines` list the artifacts of the summarized messages for the summary's text;
    `ranges` are the same without the text."""

    rows: tuple[ArchivedMessage, ...]
    artifacts: tuple[Artifact, ...]
    reference_lines: tuple[str, ...]
    ranges: tuple[ArchivedRange, ...] = ()

    @property
    def artifact_ids(self) -> tuple[str, ...]:
        """The ids of the new artifacts, in order."""
        return tuple(dict.fromkeys(artifact.id for artifact in self.artifacts))


class RemovalBuilder:
    """Builds the RemovedContent of a layout.

    `count_text` counts on the scale of the blocks' budgets. `is_skipped_tool`: results of this tool make no artifacts
    of their own. `at` is in seconds since the epoch. Of items that the client only references the full messages of the
    request's `provider_items` count: the model reads those.
    """

    def __init__(
        self,
        layout: PlanLayout,
        request: CompactionRequest,
        at: float,
        count_message: Callable[[Message], int],
        count_text: Callable[[str], int],
        is_skipped_tool: Callable[[str], bool],
    ) -> None:
        self._request, self._at = request, at
        self._layout = layout
        self._messages = layout.uncompacted.messages
        self._count_message = count_message
        self._count_text = count_text
        self._is_skipped_tool = is_skipped_tool
        self._known = (
            frozenset(layout.earlier_compaction.artifacts)
            if layout.earlier_compaction is not None
            else frozenset[str]()
        )
        self._groups, self._pairs = find_indivisible_groups(self._messages), match_results_to_calls(self._messages)

    def build(self) -> RemovedContent:
        """Builds the removed content without what earlier compactions archived."""
        layout = self._layout
        ranges = [each for first, last in self._list_removed_ranges() for each in self._build_ranges(first, last)]
        notes = [self._build_note_artifact(block) for block in layout.blocks if block.note]
        artifacts = [each for each in (*ranges, *notes) if each.id not in self._known]
        for index in sorted({*layout.removed_slots, *layout.changes}):
            slot = layout.slots[index]
            if slot.origin >= 0:
                artifacts += self._list_part_artifacts(index, slot)
        indexes = {index for each in artifacts for index in self._message_indexes(each)}
        indexes.update(layout.slots[index].origin for index in (*layout.removed_slots, *layout.changes))
        rows = tuple(
            ArchivedMessage(self._messages[at].key, self._messages[at].wire) for at in sorted(indexes) if at >= 0
        )
        listed = self._list_block_ranges(layout.summary_block, ranges) if layout.summary_block is not None else []
        # Listed ranges contain only messages of `ranges`, whose rows are included.
        artifacts += [each for entry in listed for each in entry if each.id not in self._known]
        new = {artifact.id: artifact for artifact in artifacts}
        block_ranges = tuple(ArchivedRange(whole.first, whole.last, whole.id) for whole, *_ in listed)
        return RemovedContent(rows, tuple(new.values()), tuple(map(_reference_line, listed)), block_ranges)

    def _list_removed_ranges(self) -> list[tuple[int, int]]:
        """Returns runs of the client's removed messages: those replaced by blocks, and those dropped. A block's run is
        never joined with another one, because the block lists it."""
        blocks = [(block.first, block.last) for block in self._layout.blocks]
        runs: list[tuple[int, int]] = []
        for index in sorted(self._layout.removed_slots):
            slot = self._layout.slots[index]
            if any(first <= slot.first and slot.last <= last for first, last in blocks):
                continue
            if runs and index - 1 in self._layout.removed_slots and runs[-1][1] == slot.first - 1:
                runs[-1] = (runs[-1][0], slot.last)
            else:
                runs.append((slot.first, slot.last))
        return sorted([*blocks, *runs])

    def _build_ranges(self, first: int, last: int) -> Iterator[Artifact]:
        weights = [self._count_message(self._full_message(message)) for message in self._messages[first : last + 1]]
        yield from map(self._build_range, split_into_ranges(self._groups, first, last, weights, MAX_RANGE_TOKENS))

    def _list_block_ranges(self, block: TextBlock, ranges: Sequence[Artifact]) -> list[_RangeArtifacts]:
        """Returns the ranges listed in a block. The oldest are merged if there is no room for a line of each, so that
        all removed messages can still be found."""
        own = [self._add_slices(each) for each in ranges if block.first <= each.first and each.last <= block.last]
        joint = self._line_tokens((self._build_range(range(block.first, block.last + 1)),))
        costs, room = list(map(self._line_tokens, own)), int(block.budget * REFERENCE_SHARE)
        listed = [
            own[run.start]
            if len(run) == 1
            else (self._build_range(range(own[run.start][0].first, own[run.stop - 1][0].last + 1)),)
            for run in merge_oldest(costs, room, joint)
        ]
        if sum(map(self._line_tokens, listed)) > room:
            listed[0] = listed[0][:1]
        return listed

    def _add_slices(self, artifact: Artifact) -> _RangeArtifacts:
        # An image has tokens, but no text that could be sliced.
        slice_count = ceil(min(artifact.tokens, artifact.characters) / MAX_RANGE_TOKENS)
        if slice_count < 2:
            return (artifact,)
        slices = (
            replace(
                artifact,
                id=slice_id(self._request.ref.tenant, artifact.keys, number, slice_count),
                characters=artifact.characters // slice_count,
                tokens=artifact.tokens // slice_count,
                description=f"{artifact.description}, slice {number} of {slice_count}",
                slice=number,
                slices=slice_count,
            )
            for number in range(1, slice_count + 1)
        )
        return (artifact, *slices)

    def _line_tokens(self, range_artifacts: _RangeArtifacts) -> int:
        return self._count_text(f"{_reference_line(range_artifacts)}\n")

    def _build_note_artifact(self, block: TextBlock) -> Artifact:
        """Builds the artifact of all messages that a note replaces, under the id in the note."""
        return self._build_range(range(block.first, block.last + 1), range_id(self._request.ref.tenant, block.keys))

    def _build_range(self, indexes: range, name: str = "") -> Artifact:
        messages = self._messages[indexes.start : indexes.stop]
        keys = tuple(message.key for message in messages)
        return self._build_artifact(
            name or range_id(self._request.ref.tenant, keys),
            "range",
            keys,
            indexes,
            characters=sum(
                _count_characters(part) for message in messages for part in self._full_message(message).parts
            ),
            tokens=sum(self._count_message(self._full_message(message)) for message in messages),
            description=f"{len(messages)} messages",
        )

    def _full_message(self, message: Message) -> Message:
        return self._request.provider_items.get(message.key, message)

    def _list_part_artifacts(self, index: int, slot: Slot) -> Iterator[Artifact]:
        """Yields artifacts of a slot's removed or changed results, and of other parts whose new text names one."""
        original, tenant = self._messages[slot.origin], self._request.ref.tenant
        changes = self._layout.changes.get(index)
        numbers = range(len(slot.message.parts)) if changes is None else sorted(changes)
        for number in numbers:
            part, text = slot.message.parts[number], (changes or {}).get(number) or ""
            original_number = _find_original_part(original, part, number)
            # A reference contains the id of the message in the view, which an earlier compaction may have edited.
            referenced_id = artifact_id(tenant, slot.message.key, number)
            is_referenced = bool(text) and referenced_id in text
            if original_number < 0:
                # An earlier compaction edited the part beyond recognition, so the whole message is archived.
                if is_referenced and referenced_id not in self._known:
                    yield self._build_range(range(slot.origin, slot.origin + 1), referenced_id)
                continue
            content = original.parts[original_number]
            name = referenced_id if is_referenced else artifact_id(tenant, original.key, original_number)
            if name in self._known:
                continue
            if not isinstance(content, ToolResult):
                if is_referenced:
                    yield self._build_part_artifact(slot.origin, original_number, content, name)
                continue
            artifact = self._build_result_artifact(slot.origin, original_number, content, name, is_referenced)
            if artifact is not None:
                yield artifact

    def _build_result_artifact(
        self, index: int, part: int, result: ToolResult, name: str, is_referenced: bool
    ) -> Artifact | None:
        """Builds the artifact of a tool result. None if it is empty, or skipped and not referenced."""
        text = result_text(result)
        first, at = self._pairs.get((index, part), (index, -1))
        call = self._messages[first].parts[at] if at >= 0 else None
        tool, arguments = (call.name, call.arguments) if isinstance(call, ToolCall) else ("", "")
        if not is_referenced and (not text.strip() or self._is_skipped_tool(tool)):
            return None
        message, description = self._messages[index], describe(text) or describe_size(text)
        delegation = self._request.delegations_by_call.get(result.call_id)
        keys = (message.key,) if first == index else (self._messages[first].key, message.key)
        artifact = self._build_artifact(
            name, "result", keys, range(first, index + 1), part=part, tool=tool,
            arguments=shorten_arguments(arguments), call_id=result.call_id,
            characters=len(text), tokens=self._share_of_tokens(message, len(text)), description=description,
        )  # fmt: skip
        if delegation is None:
            return artifact
        agent = describe_agent(delegation.agent, delegation.session)
        return replace(artifact, description=f"answer of {agent}: {description}", child=delegation.session)

    def _build_part_artifact(self, index: int, part: int, content: Part, name: str) -> Artifact:
        message = self._messages[index]
        size = _count_characters(content)
        tool = content.name if isinstance(content, ToolCall) else ""
        return self._build_artifact(
            name, "part", (message.key,), range(index, index + 1), part=part, tool=tool, characters=size,
            tokens=self._share_of_tokens(message, size), description=type(content).__name__,
        )  # fmt: skip

    def _share_of_tokens(self, message: Message, characters: int) -> int:
        """Estimates the tokens of a number of characters of a message by its average."""
        whole = sum(_count_characters(part) for part in message.parts)
        return round(self._count_message(message) * characters / whole) if whole else 0

    def _message_indexes(self, artifact: Artifact) -> Sequence[int]:
        if artifact.kind == "range":
            return range(artifact.first, artifact.last + 1)
        return (artifact.first, artifact.last)

    def _build_artifact(
        self,
        name: str,
        kind: ArtifactKind,
        keys: tuple[bytes, ...],
        indexes: range,
        *,
        characters: int,
        tokens: int,
        description: str,
        part: int = -1,
        tool: str = "",
        arguments: str = "",
        call_id: str = "",
    ) -> Artifact:
        ref = self._request.ref
        return Artifact(
            name, kind, self._request.protocol.name, keys, indexes.start, indexes.stop - 1, part, tool, arguments,
            call_id, characters, tokens, description, ref.scope, ref.session, self._at,
        )  # fmt: skip


def _reference_line(range_artifacts: _RangeArtifacts) -> str:
    """Describes a range and its slices in one line of a summary."""
    whole, *slices = range_artifacts
    line = f"[{whole.first}-{whole.last}] {whole.id}, {whole.tokens:,} tokens"
    return line + (f"; in slices: {' '.join(each.id for each in slices)}" if slices else "")


def _find_original_part(original: Message, part: Part, number: int) -> int:
    """Returns the number of the client's part that a part of the (perhaps edited) message comes from; -1 if none."""
    if number < len(original.parts) and _is_same_part(original.parts[number], part):
        return number
    return next((index for index, other in enumerate(original.parts) if _is_same_part(other, part)), -1)


def _is_same_part(original: Part, part: Part) -> bool:
    """Whether a part is the client's part, or a result with its id: results without an id have that of others."""
    if isinstance(part, ToolResult) and isinstance(original, ToolResult):
        return original.call_id == part.call_id
    return original == part


def _count_characters(part: Part) -> int:
    if isinstance(part, Text | Reasoning):
        return len(part.text)
    if isinstance(part, ToolCall):
        return len(part.name) + len(part.arguments)
    if isinstance(part, ToolResult):
        return sum(_count_characters(inner) for inner in part.parts)
    return 0


# -- ranges ------------------------------------------------------------------------------------------------------------


def split_into_ranges(
    groups: Sequence[tuple[int, int]], first: int, last: int, weights: Sequence[int], max_tokens: int
) -> list[range]:
    """Splits the messages `first` to `last` into ranges of at most `max_tokens` each, cut between the given groups.

    A larger group is a range of its own. `weights[i]` are the tokens of message `first + i`. Ranges are filled from the
    front, so that a later compaction of the same beginning cuts at the same places.
    """
    result: list[range] = []
    start, tokens = first, 0
    for at in range(bisect_right(groups, first, key=lambda group: group[0]) - 1, len(groups)):
        begin, end = max(groups[at][0], first), min(groups[at][1], last)
        if begin > end:
            break
        group_tokens = sum(weights[begin - first : end - first + 1])
        if tokens and tokens + group_tokens > max_tokens:
            result.append(range(start, begin))
            start, tokens = begin, 0
        tokens += group_tokens
    if start <= last:
        result.append(range(start, last + 1))
    return result


def merge_oldest(costs: Sequence[int], room: int, merged_cost: int) -> list[range]:
    """Merges the oldest entries of a list until the total cost is at most `room`. Returns ranges of merged entries.

    Entry i alone costs `costs[i]`, any number of them merged `merged_cost`. Entries are merged in pairs, then pairs of
    pairs, always the same ones, so that a later compaction has the same ranges. If that is not enough, all but the
    newest are merged into one.
    """
    cost_by_start, total, size = dict(enumerate(costs)), sum(costs), 2
    while total > room and size <= len(costs):
        for start in range(0, len(costs) - size + 1, size):
            if total <= room:
                break
            total += merged_cost - sum(cost_by_start.pop(at, 0) for at in range(start, start + size))
            cost_by_start[start] = merged_cost
        size *= 2
    starts = sorted(cost_by_start)
    if total > room:
        sums = accumulate((cost_by_start[at] for at in reversed(starts)), initial=merged_cost)
        single_count = max(0, sum(each <= room for each in sums) - 1)
        starts = [0, *starts[len(starts) - single_count :]]
    return [range(start, stop) for start, stop in pairwise([*starts, len(costs)])]
