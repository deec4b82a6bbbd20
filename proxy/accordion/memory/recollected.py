"""Which memories were put into a session unasked: numbered markers, so that what is said of them there afterwards is
known for nobody's new word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accordion.core.memories import Change, Conflict, Memories

_MOST: Final = 10_000


async def note(memories: Memories, space: bytes, session: str, ids: Sequence[str]) -> None:
    """Notes that these memories stand in a session. Raises StoreUnavailable."""
    held = await noted(memories, space, session)
    known = {name for names in held for name in names}
    number, new = len(held), [each for each in ids if each not in known]
    value = " ".join(new).encode()
    while new and number < _MOST:
        try:
            await memories.write(space, Change(markers=((_name(session, number), value),)))
        except Conflict:
            number += 1
        else:
            return


async def noted(memories: Memories, space: bytes, session: str) -> list[list[str]]:
    """The ids of these memories, as they were noted. Raises StoreUnavailable."""
    found: list[list[str]] = []
    while (value := await memories.marker(space, _name(session, len(found)))) is not None:
        found.append(value.decode().split())
    return found


def _name(session: str, number: int) -> str:
    return f"recalled/{number}/{session}"
