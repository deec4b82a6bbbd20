"""Recall of the memory's search on recorded conversations that are not part of this repository (LoCoMo).

    python -m bench.memory_recall [--data FOLDER]          # or BENCH_DATA; FOLDER/locomo.jsonl.gz
    python memory_recall.py --plugin bench/memory_recall.py:make --k 10 32 50      # the tool that comes with them

`make(messages)` remembers each message as a memory of its own, with the two before it as its context, and gives
`search(query, k)`, which returns the messages' indexes. `plain` is the same with the ordinary search, which returns 32.
A question counts the share of its evidence that is among the first k, and the reciprocal rank of the first piece of
it; questions without evidence, and those that have no answer (category 5), are left out. Nothing is learnt from them.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accordion.features.memory.entries import finish_memory
from accordion.features.memory.memories import Memory, MemoryChange
from accordion.features.memory.search.memory_search import DEEP_RESULTS, RESULTS, MemorySearch, SearchQuery
from accordion.features.memory.store.static_embedder import StaticEmbedder
from accordion.features.memory.store.stored_memories import StoredMemories
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore

TENANT = TenantScope("tenant", b"bench")
CONTEXT = 2


def make(messages: Sequence[dict[str, Any]]) -> Callable[[str, int], list[int]]:
    """A deep search over a conversation."""
    return _searcher(messages, deep=True)


def plain(messages: Sequence[dict[str, Any]]) -> Callable[[str, int], list[int]]:
    """An ordinary search over a conversation."""
    return _searcher(messages, deep=False)


def _searcher(messages: Sequence[dict[str, Any]], *, deep: bool) -> Callable[[str, int], list[int]]:
    loop = asyncio.new_event_loop()
    embedder = StaticEmbedder()
    store = StoredMemories(InMemoryStore(), embedder)
    search = MemorySearch(store, embedder)
    loop.run_until_complete(store.write(TENANT, MemoryChange(put=memories(messages))))

    def find(query: str, k: int) -> list[int]:
        most = min(k, DEEP_RESULTS if deep else RESULTS)
        found = loop.run_until_complete(search.search(TENANT, SearchQuery(query, deep=deep, limit=most)))
        return [result.memory.first for result in found.results]

    return find


def memories(messages: Sequence[dict[str, Any]]) -> tuple[Memory, ...]:
    """Each message as a memory."""
    said = [f"{message.get('name') or message['role']}: {message['content']}" for message in messages]
    return tuple(
        finish_memory(
            Memory(
                id="",
                type="fact",
                content=message["content"],
                conversation="talk",
                first=at,
                last=at,
                author=message.get("name") or "",
                context="\n".join(said[max(0, at - CONTEXT) : at]),
            ),
            now=1.0 + at,
        )
        for at, message in enumerate(messages)
    )


def evidence(question: dict[str, Any], places: dict[str, int]) -> list[int]:
    """The indexes of the messages that answer a question."""
    named = [name for each in question.get("evidence") or [] for name in re.findall(r"D\d+:\d+", str(each))]
    return [places[name] for name in dict.fromkeys(named) if name in places]


def measured(path: Path, maker: Callable[[Sequence[dict[str, Any]]], Callable[[str, int], list[int]]]) -> str:
    """A row of the table."""
    shares: dict[int, list[float]] = {10: [], 32: [], 50: []}
    ranks: list[float] = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for talk in map(json.loads, file):
            places = {name: at for at, name in enumerate(talk["dia_ids"])}
            search = maker(talk["messages"])
            for question in talk["qa"]:
                wanted = evidence(question, places)
                if not wanted or question["category"] == 5:
                    continue
                found = search(question["question"], DEEP_RESULTS)
                for k, each in shares.items():
                    each.append(sum(at in found[:k] for at in wanted) / len(wanted))
                ranks.append(next((1 / rank for rank, at in enumerate(found, 1) if at in wanted), 0.0))
    cells = [*shares.values(), ranks]
    return " | ".join(f"{100 * sum(each) / len(each):.1f}" for each in cells) + f" | {len(ranks)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BENCH_DATA", "data")))
    path = parser.parse_args().data / "locomo.jsonl.gz"
    if not path.is_file():
        print("skipped: the recorded conversations are not here; name their folder with --data or BENCH_DATA")
        return
    print("| search | R@10 | R@32 | R@50 | MRR | questions |\n|---|---|---|---|---|---|")
    for name, maker in (("memory_search", plain), ("memory_deep_search", make)):
        print(f"| {name} | {measured(path, maker)} |", flush=True)


if __name__ == "__main__":
    main()
