"""All of a tenant's memories at once: given out, taken in, erased with proof."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from accordion.core.errors import BadRequest
from accordion.core.memories import Change, Conflict, Entity, Filter, Memories, Memory, Relation
from accordion.core.values import replace
from accordion.faces.memory_rooms import EVERY_PROJECT, Rooms
from accordion.faces.memory_told import Brought, Erased, Held
from accordion.identity.tenants import Caller
from accordion.memory import entries

T = TypeVar("T")

_AT_ONCE = 100
"""What is written in one part: each text is embedded first, and others wait for their turn behind it."""
_TRIES = 8
_READ_AT_ONCE = 50
"""Lines of an import; between them others have their turn."""
_LONGEST_ID = 100
_TIMES = range(253_402_300_800)
"""Seconds since the epoch that are a date: to the end of the year 9999."""
_COUNT_MOST = 10**9
_EVERY = Filter(types=entries.EVERY)


async def exported(rooms: Rooms, caller: Caller) -> AsyncIterator[bytes]:
    """All of it, a JSON document a line, line ends included. Raises StoreUnavailable."""
    async for line in rooms.memories.export(caller.space):
        yield line.rstrip(b"\n") + b"\n"


async def brought(rooms: Rooms, caller: Caller, lines: Iterable[bytes]) -> Brought:
    """Takes in what was exported. What has an id that is taken stays as it is here.

    All lines are read before anything is written: BadRequest names the first that is none. Written in parts, each of
    which rests on those before it: memories, entities, relations, markers. Where it is cut short, the same import again
    completes it.
    """
    now = rooms.clock.now()
    found: list[entries.Line] = []
    for number, line in enumerate(lines, 1):
        # Some editors begin a file with the mark of UTF-8.
        if text := line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip():
            found.append(_parsed(number, text, now))
        if number % _READ_AT_ONCE == 0:
            await asyncio.sleep(0)
    memories = list({each.id: each for each in found if isinstance(each, Memory)}.values())
    entities = [each for each in found if isinstance(each, Entity)]
    relations = [each for each in found if isinstance(each, Relation)]
    markers = list({each[0]: each for each in found if isinstance(each, tuple)}.values())
    store, space = rooms.memories, caller.space
    written = [await _remembered(store, space, part) for part in _parts(memories)]
    fresh = [len(await store.write(space, Change(entities=part))) for part in _parts(entities)]
    for related in _parts(relations):
        await store.write(space, Change(relations=related))
    marked = [await _marked(store, space, part) for part in _parts(markers)]
    return Brought(
        memories=sum(written),
        entities=sum(fresh),
        relations=len(relations),
        markers=sum(marked),
        kept=len(memories) - sum(written),
    )


async def erased(rooms: Rooms, caller: Caller) -> Erased:
    """Removes all of it, and counts before and after."""
    before = await _held(rooms.memories, caller.space)
    await rooms.memories.erase(caller.space)
    after = await _held(rooms.memories, caller.space)
    return Erased(before=before, after=after, verified=after == Held(memories=0, entities=0, relations=0))


async def _held(memories: Memories, space: bytes) -> Held:
    return Held(
        memories=await memories.count(space, _EVERY),
        entities=len(await memories.entities(space, limit=-1)),
        relations=len(await memories.relations(space, limit=-1)),
    )


def _parts(found: Sequence[T]) -> Iterator[tuple[T, ...]]:
    return (tuple(found[at : at + _AT_ONCE]) for at in range(0, len(found), _AT_ONCE))


async def _remembered(memories: Memories, space: bytes, part: Sequence[Memory]) -> int:
    """Writes those whose ids are not taken; gives how many. Raises Overtaken."""
    for _ in range(_TRIES):
        held = await memories.get(space, [each.id for each in part])
        new = tuple(each for each, there in zip(part, held, strict=True) if there is None)
        with suppress(Conflict):
            if new:
                await memories.write(space, Change(put=new, require=tuple((each.id, "") for each in new)))
            return len(new)
    raise _overtaken()


async def _marked(memories: Memories, space: bytes, part: Sequence[tuple[str, bytes]]) -> int:
    """Writes those markers whose names are not taken; gives how many. Raises Overtaken."""
    for _ in range(_TRIES):
        new = tuple([each for each in part if await memories.marker(space, each[0]) is None])
        with suppress(Conflict):
            if new:
                await memories.write(space, Change(markers=new))
            return len(new)
    raise _overtaken()


def _overtaken() -> entries.Overtaken:
    return entries.Overtaken("Others write the same memories at the same time. Import again: what is there stays.")


def _parsed(number: int, line: bytes, now: float) -> entries.Line:
    """What a line holds, a memory as it may be written. Raises BadRequest with the line's number."""
    try:
        found = entries.parsed(line)
        if not isinstance(found, Memory):
            return found
        if not 0 < len(found.id) <= _LONGEST_ID or entries.name(found.id) != found.id:
            raise BadRequest("a memory needs an id.", code="bad_line")
        if entries.name(found.project) == EVERY_PROJECT:
            raise BadRequest("a memory has one project, or none.", code="bad_line")
        times, counts = (found.created, found.updated), (found.first, found.last, found.counted)
        if not all(int(at) in _TIMES for at in times) or max(map(abs, counts)) > _COUNT_MOST:
            raise BadRequest("times must be seconds since 1970, and counts at most 10^9.", code="bad_line")
        return replace(entries.finished(found, now=now), updated=found.updated or now)
    except (BadRequest, RecursionError) as error:
        told = error if isinstance(error, BadRequest) else BadRequest("the JSON is nested too deep.", code="bad_line")
        raise BadRequest(
            f"Line {number:,}: {told.message} Nothing was imported.", code=told.code, param=f"line {number}"
        ) from error
