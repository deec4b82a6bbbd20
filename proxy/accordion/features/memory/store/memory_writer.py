"""Writing single memories: adding one, replacing its text, and setting its status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.features.memory.entries import ConcurrentWrite, clean_names, finish_memory, make_memory_id
from accordion.features.memory.memories import (
    SINGLE_TYPES,
    Conflict,
    Memory,
    MemoryChange,
    MemoryStatus,
    MemoryStore,
    MemoryType,
)
from accordion.model.errors import BadRequest, NotFound
from accordion.model.ports import Clock
from accordion.model.tenant import TenantScope

_MAX_ATTEMPTS: Final = 8


class MemoryWriter(msgspec.Struct, frozen=True):
    """Adds and rewords single memories."""

    memories: MemoryStore
    clock: Clock

    async def add(self, tenant: TenantScope, memory: Memory) -> tuple[Memory, bool]:
        """Stores a memory; returns the stored memory and whether it is new.

        The same text of the same author is stored once, with the topics, entities and tags of both. Raises BadRequest,
        ConcurrentWrite and StoreUnavailable.
        """
        for number in range(_MAX_ATTEMPTS):
            # A memory with this id may have been reworded since. Then the next id is tried.
            suffix = (str(number),) if number else ()
            memory_id = make_memory_id(
                "added", memory.type, memory.project, memory.author, memory.content.strip(), *suffix
            )
            new = finish_memory(replace(memory, id=memory_id), now=self.clock.now())
            (old,) = await self.memories.get(tenant, [memory_id])
            if old is None or old.revision == new.revision:
                return await self._merge(tenant, new, old)
        raise _concurrent_write_error(memory_id)

    async def reword(
        self, tenant: TenantScope, memory_id: str, memory: Memory, kind: MemoryType | None = None
    ) -> Memory:
        """Replaces a memory's text and keeps its id and origin.

        Fields that are empty in `memory` stay as they were, and so does the type unless `kind` is given. Raises
        NotFound, BadRequest, ConcurrentWrite and StoreUnavailable.
        """
        (old,) = await self.memories.get(tenant, [memory_id])
        if old is None:
            raise NotFound(
                f"There is no memory {memory_id!r} to replace. memory_search finds the ids.",
                code="memory_not_found",
                param="replace_id",
            )
        if old.type not in SINGLE_TYPES:
            raise BadRequest(
                "This memory cannot be replaced here: memory_consolidate replaces summaries, and session memories "
                "never change.",
                code="not_replaceable",
                param="replace_id",
            )
        reworded = replace(
            old,
            type=kind or old.type,
            content=memory.content,
            topics=memory.topics or old.topics,
            macro_topics=memory.macro_topics or old.macro_topics,
            entities=memory.entities or old.entities,
            tags=memory.tags or old.tags,
            author=memory.author or old.author,
        )
        return await self._write(tenant, finish_memory(reworded, now=self.clock.now()), old)

    async def set_status(self, tenant: TenantScope, ids: Sequence[str], status: MemoryStatus) -> list[Memory]:
        """Sets the status of memories, of all or none; returns those that exist.

        Raises ConcurrentWrite and StoreUnavailable.
        """
        now = self.clock.now()
        existing = [memory for memory in await self.memories.get(tenant, ids) if memory is not None]
        changed = [memory for memory in existing if memory.status != status]
        change = MemoryChange(
            put=tuple(replace(memory, status=status, updated=now) for memory in changed),
            require=tuple((memory.id, memory) for memory in changed),
        )
        try:
            if changed:
                await self.memories.write(tenant, change)
        except Conflict as error:
            raise _concurrent_write_error(changed[0].id) from error
        return existing

    async def _merge(self, tenant: TenantScope, new: Memory, old: Memory | None) -> tuple[Memory, bool]:
        if old is None:
            return await self._write(tenant, new, None), True
        merged = replace(
            old,
            topics=clean_names((*old.topics, *new.topics), lower=True),
            macro_topics=clean_names((*old.macro_topics, *new.macro_topics), lower=True),
            entities=clean_names((*old.entities, *new.entities)),
            tags=clean_names((*old.tags, *new.tags), lower=True),
        )
        if merged == old:
            return old, False
        return await self._write(tenant, replace(merged, updated=new.updated), old), False

    async def _write(self, tenant: TenantScope, memory: Memory, old: Memory | None) -> Memory:
        try:
            await self.memories.write(tenant, MemoryChange(put=(memory,), require=((memory.id, old),)))
        except Conflict as error:
            raise _concurrent_write_error(memory.id) from error
        return memory


def _concurrent_write_error(memory_id: str) -> ConcurrentWrite:
    return ConcurrentWrite(
        f"Memory {memory_id} was changed by somebody else meanwhile. Nothing was written; read it and try again."
    )
