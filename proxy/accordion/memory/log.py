"""The log of a conversation's compactions: one marker for each, numbered, written with what it stored.

A marker is written once. Two that compact one conversation at once reach for the same number: one gets it, the other
reads what that one did. A search leaves a marker with the number that was next then; it lets one compaction through.
"""

from __future__ import annotations

from typing import Final

import msgspec

from accordion.core.memories import Change, Conflict, Memories

_MOST: Final = 100_000


class Writing(msgspec.Struct, frozen=True):
    """Who wrote the memories: the rules, or a model; the tokens that a model took; what there is to be said of it."""

    writer: str = "rules"
    input: int = 0
    output: int = 0
    notice: str = ""


class Entry(msgspec.Struct, frozen=True):
    """One compaction. `keys` are the short keys of the messages of its range, `memories` the ids that it stored,
    `entities` (name, type) and `relations` (from, to, type) what it found. No text of a memory stands here: what is
    deleted is gone."""

    first: int
    last: int
    keys: list[bytes]
    focus: list[str]
    memories: list[str]
    entities: list[tuple[str, str]]
    relations: list[tuple[str, str, str]]
    by: Writing = Writing()


_DECODER: Final = msgspec.json.Decoder(Entry)
_NAMES: Final = msgspec.json.Decoder(list[tuple[str, str]])


async def entries(memories: Memories, space: bytes, conversation: str) -> list[Entry]:
    """All compactions of a conversation, in order. Raises StoreUnavailable."""
    found: list[Entry] = []
    while len(found) < _MOST and (value := await memories.marker(space, _name(conversation, len(found)))) is not None:
        found.append(_DECODER.decode(value))
    return found


def marker(conversation: str, number: int, entry: Entry) -> tuple[str, bytes]:
    """The marker of a compaction."""
    return _name(conversation, number), msgspec.json.encode(entry)


async def note_search(memories: Memories, space: bytes, conversation: str, number: int) -> None:
    """Notes that somebody was shown so many compactions of a conversation. Raises StoreUnavailable."""
    try:
        await memories.write(space, Change(markers=((_searched(conversation, number), b"1"),)))
    except Conflict:
        # It is noted already.
        return


async def was_searched(memories: Memories, space: bytes, conversation: str, number: int) -> bool:
    """Whether somebody looked since the compaction before this number."""
    return await memories.marker(space, _searched(conversation, number)) is not None


async def note_new(
    memories: Memories, space: bytes, conversation: str, number: int, new: list[tuple[str, str]]
) -> None:
    """Notes which entities were new with a compaction, which is known only once it is written."""
    await memories.write(space, Change(markers=((f"{_name(conversation, number)}/new", msgspec.json.encode(new)),)))


async def noted_new(memories: Memories, space: bytes, conversation: str, number: int) -> set[tuple[str, str]]:
    """Which entities were new with a compaction."""
    value = await memories.marker(space, f"{_name(conversation, number)}/new")
    return set(_NAMES.decode(value)) if value is not None else set()


def _name(conversation: str, number: int) -> str:
    return f"compacted/{number}/{conversation}"


def _searched(conversation: str, number: int) -> str:
    return f"searched/{number}/{conversation}"
