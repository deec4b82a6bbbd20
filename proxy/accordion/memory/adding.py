"""Remembering one thing, and wording it anew."""

from __future__ import annotations

from typing import Final

from accordion.core.errors import BadRequest, NotFound
from accordion.core.memories import Change, Conflict, Memories, Memory, MemoryType
from accordion.core.ports import Clock
from accordion.core.values import dataclass, replace
from accordion.memory.entries import GRAIN, Overtaken, finished, names
from accordion.memory.naming import memory_id

_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class Adding:
    """Writes single memories."""

    memories: Memories
    clock: Clock

    async def add(self, space: bytes, memory: Memory) -> tuple[Memory, bool]:
        """Remembers one thing; gives it as it is kept, and whether it is new. The same words of the same author twice
        are one memory: it is then about what both say. Raises BadRequest, Overtaken and StoreUnavailable."""
        for number in range(_TRIES):
            # Under the id of these words others may stand by now, as their new wording.
            again = (str(number),) if number else ()
            name = memory_id("added", memory.type, memory.project, memory.author, memory.content.strip(), *again)
            made = finished(replace(memory, id=name), now=self.clock.now())
            (held,) = await self.memories.get(space, [name])
            if held is None or held.revision == made.revision:
                return await self._joined(space, made, held)
        raise _overtaken(name)

    async def reword(self, space: bytes, name: str, memory: Memory, kind: MemoryType | None = None) -> Memory:
        """Gives a memory another wording, under the id and with the origin that it has; what is not said of it anew
        stays, its kind too where none is given. Raises NotFound, BadRequest, Overtaken and StoreUnavailable."""
        (held,) = await self.memories.get(space, [name])
        if held is None:
            raise NotFound(
                f"There is no memory {name!r} to replace. memory_search finds the ids.",
                code="memory_not_found",
                param="replace_id",
            )
        if held.type not in GRAIN:
            raise BadRequest(
                "This memory cannot be replaced here: memory_consolidate replaces summaries, and session memories "
                "never change.",
                code="not_replaceable",
                param="replace_id",
            )
        made = replace(
            held,
            type=kind or held.type,
            content=memory.content,
            topics=memory.topics or held.topics,
            macro_topics=memory.macro_topics or held.macro_topics,
            entities=memory.entities or held.entities,
            tags=memory.tags or held.tags,
            author=memory.author or held.author,
        )
        return await self._written(space, finished(made, now=self.clock.now()), held)

    async def _joined(self, space: bytes, made: Memory, held: Memory | None) -> tuple[Memory, bool]:
        if held is None:
            return await self._written(space, made, None), True
        joined = replace(
            held,
            topics=names((*held.topics, *made.topics), lower=True),
            macro_topics=names((*held.macro_topics, *made.macro_topics), lower=True),
            entities=names((*held.entities, *made.entities)),
            tags=names((*held.tags, *made.tags), lower=True),
        )
        if joined == held:
            return held, False
        return await self._written(space, replace(joined, updated=made.updated), held), False

    async def _written(self, space: bytes, made: Memory, held: Memory | None) -> Memory:
        require = ((made.id, held.revision if held is not None else ""),)
        try:
            await self.memories.write(space, Change(put=(made,), require=require))
        except Conflict as error:
            raise _overtaken(made.id) from error
        return made


def _overtaken(name: str) -> Overtaken:
    return Overtaken(
        f"Memory {name} was changed by somebody else meanwhile. Nothing was written; read it and try again."
    )
