"""The records of memories in Redis (7.0 or later) or Valkey: one server or a cluster. Imports redis-py.

A tenant has a hash for each kind of record, `accordion:{memories/<tenant>}#records:<kind>`, all in one slot of a
cluster. A change is one script, so it is written as a whole or not at all, also if the process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accordion.archive.sealing import PlainSealer
from accordion.model.errors import StoreUnavailable
from accordion.model.memories import Embedder
from accordion.model.ports import Key, Sealer
from accordion.model.tenant import TenantScope
from accordion.stores.batches import name_bytes, name_text
from accordion.stores.memories import KINDS, RecordChange, RecordQuery, Snapshot, StoredMemories
from accordion.stores.redis import Command, RedisStore, shard_tag
from accordion.stores.redis_scripts import Script

WRITE = Script(
    """
-- KEYS: `state`, then others. ARGV: the expected version; how many records are put, and for each the number of its key,
-- its name and its value; for each that is deleted the number of its key and its name. Returns 0 if another version is
-- stored.
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then return 0 end
local last_put = 2 + 3 * tonumber(ARGV[2])
for at = 3, last_put, 3 do redis.call('HSET', KEYS[tonumber(ARGV[at])], ARGV[at + 1], ARGV[at + 2]) end
for at = last_put + 1, #ARGV, 2 do redis.call('HDEL', KEYS[tonumber(ARGV[at])], ARGV[at + 1]) end
return 1
"""
)

ERASE = Script(
    """
-- KEYS: that of the memories first, then all of a tenant's. Returns the number of memories.
local count = redis.call('HLEN', KEYS[1])
redis.call('UNLINK', unpack(KEYS))
return count
"""
)

_ATTEMPTS = 100
"""Attempts of a read whose data changed during it."""
_NUMBERS = {kind: b"%d" % number for number, kind in enumerate(KINDS, 1)}
"""The number of each kind's key among those of a script."""


def tenant_keys(tenant: TenantScope) -> dict[str, bytes]:
    """Returns a tenant's keys by the kind of their records."""
    tag = shard_tag(Key(f"memories/{tenant.archive_namespace}", ""))
    return {kind: tag + b"#records:" + kind.encode() for kind in KINDS}


class RedisRecords:
    """MemoryRecords on a server, without server modules. Every round trip takes at most `timeout` seconds.

    `url` and `cluster` are RedisStore's. Raises ValueError for a malformed one.
    """

    def __init__(self, url: str, *, timeout: float, cluster: bool = False) -> None:
        self._server = RedisStore(url, timeout=timeout, cluster=cluster)

    async def read(self, tenant: TenantScope, queries: Sequence[RecordQuery]) -> Snapshot:
        """See MemoryRecords."""
        keys = tenant_keys(tenant)
        versions: Command = ("HMGET", keys["state"], "version")
        commands = [_command(keys, query) for query in queries]
        for _ in range(_ATTEMPTS):
            # A script would copy all values while the server does nothing else, so a pipeline is checked for changes.
            before, *replies, after = await self._server.run_pipeline(versions, *commands, versions)
            if before == after:
                return [_records(values) for values in replies]
        raise StoreUnavailable("these memories are being changed by others right now")

    async def write(self, tenant: TenantScope, version: bytes, change: RecordChange) -> bool:
        """See MemoryRecords."""
        args = [_pack("version", version) if version else b"", b"%d" % len(change.put)]
        for (kind, name), value in change.put.items():
            args += [_NUMBERS[kind], name_bytes(name), _pack(name, value)]
        for kind, name in change.delete:
            args += [_NUMBERS[kind], name_bytes(name)]
        return bool(await self._server.run_script(WRITE, list(tenant_keys(tenant).values()), args))

    async def erase(self, tenant: TenantScope) -> int:
        """See MemoryRecords. The server's own files lose the data when the server rewrites them."""
        own = tenant_keys(tenant)
        keys = [own["memory"], *own.values()]
        return int(await self._server.run_script(ERASE, keys, ()))

    async def close(self) -> None:
        """See MemoryRecords."""
        await self._server.close()


class RedisMemories(StoredMemories):
    """The shared memory store. See RedisRecords and StoredMemories."""

    def __init__(
        self,
        url: str,
        embedder: Embedder,
        *,
        timeout: float,
        cluster: bool = False,
        sealer: Sealer | None = None,
        on_write: Callable[[TenantScope], object] = lambda tenant: None,
    ) -> None:
        records = RedisRecords(url, timeout=timeout, cluster=cluster)
        super().__init__(records, embedder, timeout=timeout, sealer=sealer or PlainSealer(), on_write=on_write)


def _command(keys: dict[str, bytes], query: RecordQuery) -> Command:
    kind, names = query
    # A command without names is an error.
    return ("HVALS", keys[kind]) if names is None else ("HMGET", keys[kind], *(map(name_bytes, names or [""])))


def _records(values: Sequence[bytes | None]) -> dict[str, bytes]:
    """Returns records by name, from the reply to a query."""
    return dict(_unpack(value) for value in values if value is not None)


def _pack(name: str, value: bytes) -> bytes:
    """Puts a record's name before its value, so that all records can be read without their names."""
    encoded = name_bytes(name)
    return b"%d:%s%s" % (len(encoded), encoded, value)


def _unpack(packed: bytes) -> tuple[str, bytes]:
    length, _, rest = packed.partition(b":")
    end = int(length)
    return name_text(rest[:end]), rest[end:]
