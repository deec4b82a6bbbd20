"""Helpers for the memory stores: an embedder with two dimensions, and access to what stores contain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from accordion.features.memory.entries import finish_memory
from accordion.features.memory.memories import (
    Embedding,
    Memory,
    MemoryChange,
    MemoryFilter,
    MemoryStore,
    SearchCandidate,
)
from accordion.features.memory.store.stored_memories import StoredMemories
from accordion.model.ports import KeyValueStore
from accordion.model.tenant import TenantScope
from accordion.model.words import search_terms

TENANT, OTHER = TenantScope("tenant", b"tenant"), TenantScope("other", b"other")
PET, WORK = b"test\x64\x00", b"test\x00\x64"
ALL = MemoryFilter()


class Embedder:
    """Two dimensions: pets, and everything else."""

    least_relevance = 0.0

    async def embed(self, texts: Sequence[tuple[str, str]]) -> list[Embedding]:
        return [Embedding(PET if "pet" in text else WORK, text.encode()[:8]) for text, _ in texts]

    async def embed_query(self, text: str) -> bytes:
        return PET if "pet" in text else WORK

    async def score_relevance(self, query: str, candidates: Sequence[SearchCandidate]) -> list[float]:
        return [0.0] * len(candidates)


def open_memories(store: KeyValueStore, **options) -> StoredMemories:
    """Opens the memories in a store, with the embedder of this module unless another is given."""
    return StoredMemories(store, options.pop("embedder", None) or Embedder(), **options)


def memory(content: str, **fields) -> Memory:
    return finish_memory(Memory(**{"id": "", "type": "fact", "content": content, **fields}), now=1.0)


async def put(store: MemoryStore, *memories: Memory, tenant: TenantScope = TENANT) -> None:
    await store.write(tenant, MemoryChange(put=memories))


async def find_candidates(
    store: MemoryStore, *words: str, wanted: MemoryFilter = ALL, vector: bytes = b"", tenant: TenantScope = TENANT
) -> list[SearchCandidate]:
    return await store.find_candidates(tenant, search_terms(" ".join(words)), vector, wanted, pool=64)


def everything(folder: Path) -> bytes:
    """All bytes of a folder's files."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@contextmanager
def connect_redis(url: str) -> Iterator[Redis]:
    """A client of a server, to look at its keys."""
    with Redis.from_url(url) as client:
        yield client


def everything_on(url: str) -> bytes:
    """All keys of a server with all that they hold."""
    values: list[bytes] = []
    with connect_redis(url) as client:
        for key in client.scan_iter():
            values += [key, *client.zrange(key, 0, -1)] if client.type(key) == b"zset" else [key, client.get(key)]
    return b"\n".join(values)
