"""Records which memories were recalled into a session, as numbered markers.

A later compaction takes these memories as background, so that their repetition does not become a new memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accordion.model.memories import Conflict, MemoryChange, MemoryStore
from accordion.model.tenant import TenantScope

_MAX_NOTES: Final = 10_000


async def note(memories: MemoryStore, tenant: TenantScope, session: str, ids: Sequence[str]) -> None:
    """Records that these memories were recalled into a session. Raises StoreUnavailable."""
    notes = await load_notes(memories, tenant, session)
    known_ids = {memory_id for ids_of_note in notes for memory_id in ids_of_note}
    number, new_ids = len(notes), [each for each in ids if each not in known_ids]
    value = " ".join(new_ids).encode()
    while new_ids and number < _MAX_NOTES:
        try:
            await memories.write(tenant, MemoryChange(markers=((_marker_name(session, number), value),)))
        except Conflict:
            number += 1
        else:
            return


async def load_notes(memories: MemoryStore, tenant: TenantScope, session: str) -> list[list[str]]:
    """Returns the recorded ids of a session, one list for each marker. Raises StoreUnavailable."""
    notes: list[list[str]] = []
    while (value := await memories.get_marker(tenant, _marker_name(session, len(notes)))) is not None:
        notes.append(value.decode().split())
    return notes


def _marker_name(session: str, number: int) -> str:
    return f"recalled/{number}/{session}"
