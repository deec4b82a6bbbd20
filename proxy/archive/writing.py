"""Putting away what leaves the window, before the request that lacks it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from proxy.archive.artifacts import Artifact, Row, artifact_key, decode, encode, listing, packer, row_key, unpack
from proxy.core.ports import Key, Put, Store
from proxy.core.values import dataclass

_BATCH_ROWS, _BATCH_BYTES = 128, 2 * 2**20
"""One write is what a store manages well within its time-out."""


class Spool(Protocol):
    """A place on this machine for what must be kept while the store is away. It is published when that is back."""

    async def hold(self, values: Sequence[Put], claims: Sequence[Put]) -> bool:
        """Keeps writes for later; of `claims` the first writer wins. False where there is no room for all of them, or
        where nothing can be written; then nothing is kept."""

    async def publish(self) -> list[tuple[Key, bytes]]:
        """Writes all that is held to the store, and lets go of it. Gives the claims that others had made first, with
        what they had written. Raises StoreUnavailable; then what is left is still held."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What left the window, of all tenants. `retention` is how long it is kept, in seconds."""

    store: Store
    retention: float = 30 * 86_400.0

    def puts(self, space: bytes, rows: Iterable[Row], artifacts: Iterable[Artifact]) -> list[Put]:
        """The writes that keep these. Slow where there is much to compress; safe to call in a thread."""
        pack, rest = packer(), self.retention
        writes = {row.key: Put(row_key(row.key), pack(row.wire), rest) for row in rows}
        records: list[Put] = []
        for artifact in artifacts:
            value = encode(artifact)
            records.append(Put(artifact_key(space, artifact.id), value, rest))
            if artifact.session:
                # The same content may be an artifact of several sessions: each lists its own record of it.
                records.append(Put(Key(listing(space, artifact.session), artifact.id), value, rest))
        return [*writes.values(), *records]

    async def keep(self, puts: Sequence[Put]) -> None:
        """Writes. Raises StoreUnavailable; then it may be that some was kept, which does no harm: it is found by
        content."""
        for batch in _batches(puts):
            await self.store.write(batch)

    async def rows(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The original JSON of messages by their keys; what is not there is left out. Raises StoreUnavailable."""
        values = await self.store.get_many([row_key(key) for key in keys])
        unpacked = ((key, unpack(value)) for key, value in zip(keys, values, strict=True))
        return {key: wire for key, wire in unpacked if wire is not None}

    async def artifacts(self, space: bytes, ids: Sequence[str]) -> list[Artifact | None]:
        """Artifacts of a tenant by id, None where there is none. Raises StoreUnavailable. Whether who asks may see
        them is for the caller to say, by their scope."""
        return [decode(value) for value in await self.store.get_many([artifact_key(space, each) for each in ids])]

    async def listed(self, space: bytes, session: str, *, after: str = "", limit: int = 1_000) -> list[Artifact]:
        """The artifacts of a session by id, from behind `after` on. Raises StoreUnavailable."""
        found = await self.store.scan(listing(space, session), after=after, limit=limit)
        return [artifact for _, value in found if (artifact := decode(value)) is not None]


def _batches(puts: Sequence[Put]) -> Iterator[list[Put]]:
    batch: list[Put] = []
    size = 0
    for put in puts:
        if batch and (len(batch) >= _BATCH_ROWS or size + len(put.value) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(put)
        size += len(put.value)
    if batch:
        yield batch
