"""Automatic recall on labelled turns: what it adds, and what it should have added.

    python -m tests.features.memory.test_labelled_turns 0.65 0.7 0.75

prints both by values of `memory.recall.relevance`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from accordion.config.settings import MemoryRecallConfig
from accordion.features.memory.entries import finish_memory
from accordion.features.memory.memories import Memory, MemoryChange
from accordion.features.memory.search.memory_search import MemorySearch, SearchQuery, SearchResult
from accordion.features.memory.search.relevant_memories import choose_relevant, find_questions
from accordion.features.memory.store.static_embedder import StaticEmbedder
from accordion.features.memory.store.stored_memories import StoredMemories
from accordion.stores.memory_store import InMemoryStore
from tests.archive.archive_setup import TENANT
from tests.compaction.compactor_setup import read

FILE = Path(__file__).with_name("labelled_turns.txt")
Turn = tuple[frozenset[str], str]


def read_labels() -> tuple[tuple[Memory, ...], list[Turn]]:
    """The memories, and the turns with the ids of the memories that help."""
    memories, turns = list[Memory](), list[Turn]()
    for line in FILE.read_text("utf-8").splitlines():
        labels, is_turn, text = line.partition(" > ")
        name, is_memory, content = line.partition(": ")
        if line.startswith("#"):
            continue
        if is_turn:
            turns.append((frozenset(labels.split()) - {"-"}, text))
        elif is_memory:
            memories.append(finish_memory(Memory(name, "fact", content), now=1.0))
    return tuple(memories), turns


async def recall_shares(turns: Sequence[Turn], relevance: float) -> tuple[float, float, float]:
    """Precision and recall over all memories, and the share of turns that need none and get one."""
    embedder = StaticEmbedder()
    store = StoredMemories(InMemoryStore(), embedder)
    await store.write(TENANT, MemoryChange(put=read_labels()[0]))
    search = MemorySearch(store, embedder)
    right = recalled = wanted = disturbed = 0
    for helpful, text in turns:
        results = list[SearchResult]()
        for question in find_questions(read({"model": "m", "messages": [{"role": "user", "content": text}]}, "chat")):
            results += (await search.search(TENANT, SearchQuery(question, explain=True))).results
        chosen = {each.memory.id for each in choose_relevant(results, relevance)[: MemoryRecallConfig().memories]}
        right, recalled, wanted = right + len(chosen & helpful), recalled + len(chosen), wanted + len(helpful)
        disturbed += bool(chosen and not helpful)
    return right / max(1, recalled), right / wanted, disturbed / sum(not helpful for helpful, _ in turns)


async def test_most_recalled_memories_help_and_most_that_help_are_recalled() -> None:
    _, turns = read_labels()
    precision, recall, disturbed = await recall_shares(turns[1::2], MemoryRecallConfig().relevance)
    assert precision >= 0.6
    assert recall >= 0.8
    assert disturbed <= 0.05


def main() -> None:
    _, turns = read_labels()
    print(
        "| relevance | turns | precision, % | recall, % | turns that need none and get one, % |\n|---|---|---|---|---|"
    )
    for relevance in map(float, sys.argv[1:] or [MemoryRecallConfig().relevance]):
        for name, part in (("development", turns[::2]), ("judging", turns[1::2])):
            shares = asyncio.run(recall_shares(part, relevance))
            print(f"| {relevance} | {name}, {len(part)} | {' | '.join(f'{100 * each:.0f}' for each in shares)} |")


if __name__ == "__main__":
    main()
