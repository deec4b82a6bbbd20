"""Extends the retention of compactions in use, and of the content that they removed from the window.

The store's retention starts when a value is written. A conversation may continue for longer, and its history still
refers to its first artifacts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from accordion.archive.archive import Archive
from accordion.archive.artifacts import ArchivedMessage
from accordion.compaction.repository import compaction_keys, form_key
from accordion.model.cache import BoundedCache, entry_size
from accordion.model.compaction import Compaction, scope_prefix
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore, Tasks
from accordion.model.tenant import ConversationRef, TenantScope

_BATCH = 64


class RetentionRenewal:
    """Rewrites the stored values of compactions in use, at most once a day for all workers, and in the background.

    They are kept for another `archive.retention` seconds. The times of the next renewals take `capacity` bytes at most.
    """

    def __init__(
        self, store: KeyValueStore, archive: Archive, tasks: Tasks, clock: Clock, capacity: int = 2 * 2**20
    ) -> None:
        self._store = store
        self._archive = archive
        self._tasks = tasks
        self._clock = clock
        self._every = archive.renewal_seconds
        self._due = BoundedCache[str, float](capacity, entry_size)

    def renew_compaction(self, ref: ConversationRef, conversation: Conversation, compaction: Compaction) -> None:
        """Schedules the renewal of a compaction that a request uses, if it is due."""
        now, name = self._clock.now(), compaction.id
        if now < (self._due.get(name) or compaction.at + self._every):
            return
        self._due[name] = now + self._every
        rows = tuple(message.key for message in conversation.messages[: compaction.covered_count])
        self._tasks.spawn(self._renew_compaction(ref, compaction, rows), "renew a compaction")

    async def _renew_compaction(self, ref: ConversationRef, compaction: Compaction, rows: Sequence[bytes]) -> None:
        with suppress(StoreUnavailable):
            # If two workers find no mark at the same moment, both write, which does no harm.
            mark = Key("", f"renewed/{compaction.id}")
            if await self._store.get(mark) is not None:
                return
            await self._store.put(mark, b"1", ttl=self._every)
            await self._archive.note_use(ref.tenant, compaction.id)
            await self._rewrite_compactions(ref, compaction)
            await self._rewrite_artifacts(ref.tenant, compaction.artifacts, rows)

    async def _rewrite_compactions(self, ref: ConversationRef, compaction: Compaction) -> None:
        """Rewrites all levels at an anchor, sealed anew because encryption keys may have changed."""
        archive, prefix, anchor = self._archive, scope_prefix(ref), compaction.anchor
        keys = compaction_keys(prefix, anchor)
        if compaction.identity_key:
            await self._store.put(form_key(prefix, compaction.identity_key), anchor, ttl=archive.retention)
        stored = zip(keys, await self._store.get_many(keys), strict=True)
        opened = ((key, archive.open_value(ref.tenant, key, value)) for key, value in stored)
        await self._store.write(
            [archive.sealed_put(ref.tenant, key, value) for key, value in opened if value is not None]
        )

    async def _rewrite_artifacts(self, tenant: TenantScope, ids: Sequence[str], rows: Sequence[bytes]) -> None:
        archive, row_keys = self._archive, dict.fromkeys(rows)
        for name in ids:
            records = await archive.load_records(tenant, name)
            row_keys.update(dict.fromkeys(key for record in records for key in record.keys))
            await archive.write(archive.build_puts(tenant, (), records))
        keys = list(row_keys)
        for at in range(0, len(keys), _BATCH):
            messages = [
                ArchivedMessage(key, wire)
                for key, wire in (await archive.load_rows(tenant, keys[at : at + _BATCH])).items()
            ]
            await archive.write(await self._tasks.offload(archive.build_puts, tenant, messages, ()))
