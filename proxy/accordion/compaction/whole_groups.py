"""Finds the cuts that are safe with a provider whose rules are not known.

A provider refused a compacted list and took the client's own. So the next compaction takes from the client's list only:
whole groups leave, no message changes but the user's that takes the summary (rendering.py), and where messages have
left, the two that are now neighbours are of kinds that are neighbours in the client's own list. No rule about a
message, its fields or its neighbours that the client's list obeys can then be broken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from accordion.model.boundaries import is_reasoning_only
from accordion.model.conversation import Message, Opaque, ToolCall, ToolResult
from accordion.model.plan import Slot

Group = tuple[int, int]
KindFunction = Callable[[Message], Hashable]


def join_groups(
    slots: Sequence[Slot], groups: Sequence[Group], removable: Sequence[bool], must_leave: int
) -> tuple[tuple[Group, ...], tuple[bool, ...]]:
    """Returns the groups, joined up to the next safe cut, and which slots may leave.

    The kind of a message is its role and the kinds of its parts; its role alone if else fewer than `must_leave` tokens
    could leave; and if that is not enough either, the groups stay as they are.
    """
    for kind_of in (_find_kind, _find_role):
        joined = _join_between_cuts(slots, groups, removable, kind_of)
        if sum(slot.tokens for slot, may_leave in zip(slots, joined[1], strict=True) if may_leave) >= must_leave:
            return joined
    return tuple(groups), tuple(removable)


def _find_kind(message: Message) -> Hashable:
    types = {type(part) for part in message.parts}
    opaque = tuple(part.kind for part in message.parts if isinstance(part, Opaque))
    return message.role, ToolCall in types, ToolResult in types, is_reasoning_only(message), opaque


def _find_role(message: Message) -> Hashable:
    return message.role


def _join_between_cuts(
    slots: Sequence[Slot], groups: Sequence[Group], removable: Sequence[bool], kind_of: KindFunction
) -> tuple[tuple[Group, ...], tuple[bool, ...]]:
    kinds, neighbours = [kind_of(slot.message) for slot in slots], set[tuple[Hashable, Hashable]]()
    for at in range(1, len(slots)):
        if slots[at].origin == slots[at - 1].origin + 1 and slots[at - 1].origin >= 0:
            neighbours.add((kinds[at - 1], kinds[at]))
    joined, may_leave = list[Group](), list(removable)
    for run in _list_runs(groups, removable):
        if not removable[run[0][0]]:
            joined += run
            continue
        before = next((kinds[at] for at in range(run[0][0] - 1, -1, -1) if not slots[at].is_summary), None)
        start = run[0][0]
        for _, last in run:
            if last + 1 < len(slots) and (before, kinds[last + 1]) in neighbours:
                joined.append((start, last))
                start = last + 1
        if start <= run[-1][1]:
            joined += [group for group in run if group[0] >= start]
            may_leave[start : run[-1][1] + 1] = [False] * (run[-1][1] + 1 - start)
    return tuple(joined), tuple(may_leave)


def _list_runs(groups: Sequence[Group], removable: Sequence[bool]) -> Iterator[list[Group]]:
    """Yields runs of groups that may all leave, or none of which may."""
    run: list[Group] = []
    for group in groups:
        if run and removable[run[-1][0]] != removable[group[0]]:
            yield run
            run = []
        run.append(group)
    if run:
        yield run
