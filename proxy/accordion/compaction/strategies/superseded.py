"""The strategy that replaces tool results which a later result repeats or contains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accordion.archive.references import superseded_reference
from accordion.compaction.strategies.base import (
    ProposedStep,
    Strategy,
    StrategyView,
    estimate_tokens,
    text_of,
)
from accordion.model.conversation import ToolCall, ToolResult, canonical_arguments, decode_arguments
from accordion.model.plan import Replace

_PATHS = ("file_path", "path", "filepath", "filename", "file", "absolute_path", "notebook_path", "target_file")
_MIN_CHARACTERS = 200
"""A shorter text may be contained in another by chance."""

_PlacedResult = tuple[int, int, ToolCall, ToolResult]


class SupersededResults(Strategy):
    """Replaces the earlier result of a call made twice, and the content of a file that a later result contains.

    The replacement names the archived artifact and the call of the newer result.
    """

    name = "superseded"

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes a Replace for each earlier result that is larger than its replacement, the oldest first."""
        results = list(_list_results(view))
        later_calls = _find_repeats(results) | _find_supersets(results)
        free = {(slot, part) for slot, part, _ in view.list_results()}
        steps = []
        for slot, part, call, _ in results:
            later_call = later_calls.get((slot, part))
            if later_call is None or (slot, part) not in free:
                continue
            artifact = view.artifact_id_of(slot, part)
            text = superseded_reference(call.name, call.arguments, artifact, later_call)
            if estimate_tokens(text) < view.count_part_tokens(slot)[part]:
                steps.append(Replace(slot, part, text, estimate_tokens(text)))
        return steps


def _list_results(view: StrategyView) -> Iterator[_PlacedResult]:
    """Yields the remaining results with their calls, in order."""
    for index, slot in enumerate(view.slots):
        if view.removed[index]:
            continue
        for at, part in enumerate(slot.message.parts):
            if isinstance(part, ToolResult) and not part.error and (call := view.find_call(index, at)) is not None:
                yield index, at, call, part


def _find_repeats(results: Sequence[_PlacedResult]) -> dict[tuple[int, int], str]:
    """Maps (slot, part) of a result to the id of the latest call of the same tool with the same arguments."""
    latest: dict[tuple[str, str], str] = {}
    later = {}
    for slot, part, call, _ in reversed(results):
        signature = (call.name, canonical_arguments(call.arguments))
        if signature in latest:
            later[slot, part] = latest[signature]
        else:
            latest[signature] = call.call_id
    return later


def _find_supersets(results: Sequence[_PlacedResult]) -> dict[tuple[int, int], str]:
    """Maps (slot, part) of a file's content to the id of a later call whose result contains it.

    Compares only with the next and the last result of the same file, so that the work is linear.
    """
    following: dict[str, tuple[str, str]] = {}
    last: dict[str, tuple[str, str]] = {}
    later = {}
    for slot, part, call, result in reversed(results):
        path = _file_path(call.arguments)
        if not path:
            continue
        text = text_of(result).strip()
        for candidate in (last.get(path), following.get(path)):
            if candidate is not None and len(text) >= _MIN_CHARACTERS and text in candidate[1]:
                later[slot, part] = candidate[0]
                break
        following[path] = (call.call_id, text)
        last.setdefault(path, (call.call_id, text))
    return later


def _file_path(arguments: str) -> str:
    value = decode_arguments(arguments)
    if isinstance(value, dict):
        for name in _PATHS:
            if isinstance(path := value.get(name), str) and path:
                return path
    return ""
