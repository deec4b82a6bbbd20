"""Replaces results that a later result makes needless."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from accordion.archive.references import artifact_id, newer
from accordion.compaction.strategies.base import Archive, Draft, Section, estimated, text_of
from accordion.core.conversation import ToolCall, ToolResult
from accordion.core.plan import Replace, Step

_PATHS = ("file_path", "path", "filepath", "filename", "file", "absolute_path", "notebook_path", "target_file")
_LEAST = 200
"""Characters that a text must have for its being contained in another to say anything."""

_Found = tuple[int, int, ToolCall, ToolResult]


class SupersededOptions(Section, frozen=True):
    """No options."""


class Superseded:
    """The earlier of two results of one call made twice, and a reading of a file that a later reading contains.

    In its place stand the id of what is archived and the call at which the newer one stands.
    """

    name = "superseded"

    def __init__(self, options: SupersededOptions) -> None:
        pass

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """A Replace for each earlier result that is larger than the note in its place, the oldest first."""
        found = list(_results(view))
        later = _repeated(found) | _contained(found)
        free = {(slot, part) for slot, part, _ in view.results()}
        steps = []
        for slot, part, call, _ in found:
            by = later.get((slot, part))
            if by is None or (slot, part) not in free:
                continue
            kept = artifact_id(view.space, view.slots[slot].message.key, part)
            text = newer(call.name, call.arguments, kept, by)
            if estimated(text) < view.part_tokens(slot)[part]:
                steps.append(Replace(slot, part, text, estimated(text)))
        return steps


def _results(view: Draft) -> Iterator[_Found]:
    """The results that stand in the list, with their calls, in order."""
    for index, slot in enumerate(view.slots):
        if view.gone[index]:
            continue
        for at, part in enumerate(slot.message.parts):
            if isinstance(part, ToolResult) and not part.error and (call := view.call_of(index, at)) is not None:
                yield index, at, call, part


def _repeated(found: Sequence[_Found]) -> dict[tuple[int, int], str]:
    """By the place of a result, the id of the latest call of the same tool with the same arguments."""
    latest: dict[tuple[str, str], str] = {}
    later = {}
    for slot, part, call, _ in reversed(found):
        made = (call.name, _canonical(call.arguments))
        if made in latest:
            later[slot, part] = latest[made]
        else:
            latest[made] = call.call_id
    return later


def _contained(found: Sequence[_Found]) -> dict[tuple[int, int], str]:
    """By the place of a reading, the id of a later call whose result contains it. Of each file the next reading and
    the last one are looked into, so that the work grows with their number only."""
    following: dict[str, tuple[str, str]] = {}
    last: dict[str, tuple[str, str]] = {}
    later = {}
    for slot, part, call, result in reversed(found):
        path = _path(call.arguments)
        if not path:
            continue
        text = text_of(result).strip()
        for candidate in (last.get(path), following.get(path)):
            if candidate is not None and len(text) >= _LEAST and text in candidate[1]:
                later[slot, part] = candidate[0]
                break
        following[path] = (call.call_id, text)
        last.setdefault(path, (call.call_id, text))
    return later


def _path(arguments: str) -> str:
    value = _decoded(arguments)
    if isinstance(value, dict):
        for name in _PATHS:
            if isinstance(path := value.get(name), str) and path:
                return path
    return ""


def _canonical(arguments: str) -> str:
    value = _decoded(arguments)
    return arguments if value is None else msgspec.json.encode(value, order="deterministic").decode()


def _decoded(arguments: str) -> object:
    try:
        return msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return None
