"""What a search and a write cost in a store of a million memories of a thousand tenants.

    python -m bench.memory_million FOLDER [--tenants 1000] [--each 1000] [--queries 400] [--writes 400] [--sealed]
        [--url redis://…]

FOLDER is filled once (some 15 minutes) and kept; a later run measures only. With `--sealed` it is filled, or sealed,
with a key. With `--url` the memories are in that server, and the files are left alone. CPU time is the process's,
all threads; a server's own is not in it.
Texts are made of the embedding's own vocabulary, common words more often than rare ones (Zipf), the same every time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from importlib.resources import files
from pathlib import Path
from typing import Final

from accordion.archive.sealing import PlainSealer
from accordion.features.memory.entries import finish_memory
from accordion.features.memory.memories import Memory, MemoryChange, MemoryFilter, MemoryStore, MemoryType
from accordion.features.memory.search.memory_search import MemorySearch, SearchQuery
from accordion.features.memory.store.static_embedder import StaticEmbedder
from accordion.features.memory.store.stored_memories import StoredMemories
from accordion.model.tenant import TenantScope
from accordion.stores.encryption import AesSealer
from accordion.stores.open import open_store

BATCH = 500
KINDS: Final[tuple[MemoryType, ...]] = ("fact", "fact", "fact", "decision", "preference", "solution", "question")


class Texts:
    """Sentences of a vocabulary."""

    def __init__(self, seed: int) -> None:
        names = (files("accordion.providers.models") / "minilm" / "vocabulary.txt").read_text("utf-8").splitlines()
        self.words = [name for name in names if name.isalpha()][200:20_000]
        self.weights = list(itertools.accumulate(1 / (rank + 20) for rank in range(len(self.words))))
        self.random = random.Random(seed)

    def sentence(self, fewest: int, most: int) -> str:
        count = self.random.randint(fewest, most)
        return " ".join(self.random.choices(self.words, cum_weights=self.weights, k=count)) + "."

    def memory(self, at: int) -> Memory:
        made = Memory(
            id="",
            type=self.random.choice(KINDS),
            content=self.sentence(8, 40),
            topics=(self.random.choice(self.words[:200]),),
            conversation=f"talk-{at // 50}",
            first=at % 50,
            last=at % 50,
            author=self.random.choice(("user", "assistant")),
            context=self.sentence(16, 60),
            created=1_700_000_000.0 + at,
        )
        return finish_memory(made, now=made.created)


def scope(tenant: int) -> TenantScope:
    return TenantScope(f"tenant {tenant}", f"tenant {tenant}".encode())


async def fill(store: MemoryStore, tenants: int, each: int) -> None:
    for tenant in range(tenants):
        if await store.count(scope(tenant), MemoryFilter()):
            continue
        texts = Texts(tenant)
        for start in range(0, each, BATCH):
            put = tuple(texts.memory(at) for at in range(start, min(each, start + BATCH)))
            await store.write(scope(tenant), MemoryChange(put=put))
        if tenant % 50 == 49:
            print(f"{tenant + 1} tenants", flush=True)


async def measure(store: MemoryStore, tenants: int, queries: int, writes: int) -> None:
    texts, chosen = Texts(-1), random.Random(0)
    # What is written is new each time: what is there already would be rewritten.
    began = int(time.time() * 1_000)
    search = MemorySearch(store, StaticEmbedder())
    await search.search(scope(0), SearchQuery("warm up"))
    for deep in (False, True):
        times: dict[str, list[float]] = {"any tenant": [], "the same tenant again": []}
        for _ in range(queries):
            tenant = chosen.randrange(tenants)
            for spent in times.values():
                query = SearchQuery(texts.sentence(3, 10), deep=deep)
                start = time.process_time()
                await search.search(scope(tenant), query)
                spent.append(time.process_time() - start)
        for name, spent in times.items():
            tell(f"{'deep search' if deep else 'search'}, {name}", spent)
    for name, among in (("write, any tenant", tenants), ("write, ten tenants", 10)):
        spent = []
        for at in range(writes):
            tenant = chosen.randrange(among)
            memory = texts.memory(began + at)
            start = time.process_time()
            await store.write(scope(tenant), MemoryChange(put=(memory,)))
            spent.append(time.process_time() - start)
        tell(name, spent)
    spent = []
    for at in range(min(writes, 40)):
        tenant = chosen.randrange(tenants)
        memory = texts.memory(at)
        await store.write(scope(tenant), MemoryChange(put=(memory,)))
        start = time.process_time()
        await store.write(scope(tenant), MemoryChange(delete=(memory.id,)))
        spent.append(time.process_time() - start)
    tell("deletion", spent)


def tell(name: str, spent: list[float]) -> None:
    spent = sorted(spent)
    middle, high = spent[len(spent) // 2], spent[int(len(spent) * 0.95)]
    print(
        f"{name}: p50 {middle * 1e3:.2f} ms, p95 {high * 1e3:.2f} ms CPU, mean {sum(spent) / len(spent) * 1e3:.2f} ms"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, default in (("tenants", 1_000), ("each", 1_000), ("queries", 400), ("writes", 400)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sealed", action="store_true")
    parser.add_argument("--url", default="")
    options = parser.parse_args()
    sealer = AesSealer([b"k" * 32]) if options.sealed else PlainSealer()
    options.folder.mkdir(exist_ok=True)
    kept = open_store(options.url or f"sqlite:///{options.folder.absolute()}/store.db", timeout=120.0)
    store = StoredMemories(kept, StaticEmbedder(), sealer=sealer)
    await fill(store, options.tenants, options.each)
    start, wall = time.process_time(), time.perf_counter()
    if any([await store.seal(scope(tenant)) for tenant in range(options.tenants)]):
        print(f"sealed: {time.process_time() - start:.2f} s CPU, {time.perf_counter() - wall:.2f} s")
    await measure(store, options.tenants, options.queries, options.writes)
    await kept.close()


if __name__ == "__main__":
    asyncio.run(main())
