"""JSON paths (RFC 9535) over a document, at a bounded cost."""

from __future__ import annotations

from typing import Any

import msgspec


class InvalidPath(ValueError):
    """A path is not valid, or would cost too much; the message says why."""


class PathSelection(msgspec.Struct, frozen=True):
    """The values at a path, with their own paths, in the document's order.

    `complete` is False where there may be more: the limit was reached, or the budget was spent.
    """

    values: tuple[tuple[str, Any], ...]
    complete: bool


def select(document: Any, path: str, limit: int) -> PathSelection:
    """Returns at most `limit` values at a path, whose `$` may be left out. Raises InvalidPath.

    Slow for large documents; run it in a thread.
    """
    # The library takes some hundredths of a second to import, so it is imported at its first use.
    from accordion.archive.path_walk import walk  # noqa: PLC0415

    return walk(document, path, limit)
