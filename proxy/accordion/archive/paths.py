"""JSON paths (RFC 9535) over a document, at a bounded cost."""

from __future__ import annotations

from typing import Any

from accordion.core.values import dataclass


class BadPath(ValueError):
    """A path that is none, or that asks for too much; says why."""


@dataclass(frozen=True, slots=True)
class Selected:
    """What a path found: values with their own paths, in the document's order. `complete` is False where there may be
    more: the most that was asked for was found, or the budget was spent."""

    values: tuple[tuple[str, Any], ...]
    complete: bool


def select(document: Any, path: str, most: int) -> Selected:
    """The values at a path, `most` of them at the most. Raises BadPath. A path may leave out the `$` that it begins
    with. Slow for large documents; run it in a thread."""
    # The library takes some hundredths of a second to import, which only those pay who use it.
    from accordion.archive.path_walk import walked  # noqa: PLC0415

    return walked(document, path, most)
