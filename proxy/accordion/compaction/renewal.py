"""Folds that are still in use are kept for longer, and with them all that they took out of the window.

The store counts what it keeps from the day when it was written. A conversation may go on for longer than that, and its
first artifacts are still named in its list.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from accordion.archive.artifacts import Artifact, Row
from accordion.archive.writing import Archive
from accordion.compaction.records import keys_of, label_of
from accordion.core.cache import Cache, weigh_entry
from accordion.core.conversation import Conversation
from accordion.core.edits import Compaction
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Clock, Key, Store, Tasks

_BATCH = 64


class Renewals:
    """Writes anew what folds in use need, at most once a day for all workers, and never while a request waits for it.

    `archive.retention` is for how long all of it is kept again, in seconds; `capacity` bounds in bytes what is
    remembered of it.
    """

    def __init__(self, store: Store, archive: Archive, tasks: Tasks, clock: Clock, capacity: int = 2 * 2**20) -> None:
        self._store = store
        self._archive = archive
        self._tasks = tasks
        self._clock = clock
        self._every = archive.every
        self._due = Cache[str, float](capacity, weigh_entry)

    def used(self, space: bytes, scope: bytes, conversation: Conversation, compaction: Compaction) -> None:
        """A request was found to have this fold in force."""
        now, name = self._clock.now(), compaction.id
        if now < (self._due.get(name) or compaction.at + self._every):
            return
        self._noted(name, now)
        rows = tuple(message.key for message in conversation.messages[: compaction.covered])
        self._tasks.spawn(self._renew(space, scope, compaction, rows), "renew a compaction")

    def read(self, space: bytes, artifact: Artifact) -> None:
        """A person read an artifact."""
        now, name = self._clock.now(), f"{artifact.id}/{artifact.scope.hex()}/{artifact.session}"
        if now < (self._due.get(name) or artifact.at + self._every):
            return
        self._noted(name, now)
        self._tasks.spawn(self._read_back(space, artifact), "renew an artifact")

    def _noted(self, name: str, now: float) -> None:
        self._due[name] = now + self._every

    async def _read_back(self, space: bytes, artifact: Artifact) -> None:
        with suppress(StoreUnavailable):
            await self._archive.read_back(space, artifact)

    async def _renew(self, space: bytes, scope: bytes, compaction: Compaction, rows: Sequence[bytes]) -> None:
        with suppress(StoreUnavailable):
            # That two workers find nothing at the same moment, and both write, does no harm.
            mark = Key("", f"renewed/{compaction.id}")
            if await self._store.get(mark) is not None:
                return
            await self._store.put(mark, b"1", ttl=self._every)
            await self._archive.used(space, compaction.id)
            await self._folds(space, scope, compaction.anchor)
            await self._archived(space, compaction.artifacts, rows)

    async def _folds(self, space: bytes, scope: bytes, anchor: bytes) -> None:
        """All that lie upon each other at an anchor; sealed anew, for keys are changed one day."""
        archive, keys = self._archive, keys_of(label_of(space, scope), anchor)
        kept = zip(keys, await self._store.get_many(keys), strict=True)
        opened = ((key, archive.opened(space, key, value)) for key, value in kept)
        await self._store.write([archive.sealed(space, key, value) for key, value in opened if value is not None])

    async def _archived(self, space: bytes, ids: Sequence[str], rows: Sequence[bytes]) -> None:
        archive, wanted = self._archive, dict.fromkeys(rows)
        for name in ids:
            records = await archive.records(space, name)
            wanted.update(dict.fromkeys(key for record in records for key in record.keys))
            await archive.keep(archive.puts(space, (), records))
        keys = list(wanted)
        for at in range(0, len(keys), _BATCH):
            found = [Row(key, wire) for key, wire in (await archive.rows(space, keys[at : at + _BATCH])).items()]
            await archive.keep(await self._tasks.offload(archive.puts, space, found, ()))
