"""How often a turn is given memories unasked, and how often these are the right ones, on recorded conversations that
are not part of this repository (LoCoMo, and agents at work).

    python -m bench.memory_relevance [--data FOLDER]          # or BENCH_DATA; FOLDER/*.jsonl.gz

Each message of a LoCoMo conversation is a memory, as in memory_recall.py; of agents at work, what the rules remember.
Questions about a conversation should find what answers them (its evidence). Questions about another conversation, and
turns of agents at work, should be given nothing. Nothing is learnt from any of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accordion.features.memory.conversation.sentences import build_background, split_conversation
from accordion.features.memory.conversation.steps import build_record
from accordion.features.memory.entries import finish_memory
from accordion.features.memory.extraction.candidates import find_candidates
from accordion.features.memory.memories import Memory, MemoryChange
from accordion.features.memory.search.memory_search import MemorySearch, SearchQuery, SearchResult
from accordion.features.memory.search.relevant_memories import choose_relevant, find_questions
from accordion.features.memory.store.static_embedder import StaticEmbedder
from accordion.features.memory.store.stored_memories import StoredMemories
from accordion.model.conversation import Conversation
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.registry import PROTOCOLS
from accordion.stores.memory_store import InMemoryStore
from bench.memory_recall import evidence, memories

WORK = ("coding_claude_code", "coding_pi", "coding_moatless", "coding_mini_swe_agent", "service_tau")
GIVEN = 3
_CHAT = PROTOCOLS["chat"]
_READER = BodyReader()

Right = Callable[[Memory], bool]
Turn = tuple[str, Right]
WORK_TENANT = TenantScope("work", b"work")


@dataclass
class Row:
    """Counts of turns of one kind."""

    turns: int = 0
    found: int = 0
    given: int = 0
    memories: int = 0
    right: int = 0
    helped: int = 0
    seconds: float = 0.0

    def cells(self) -> str:
        share = f"{100 * self.right / self.memories:.0f}" if self.memories else "-"
        shares = " | ".join(f"{100 * count / self.turns:.1f}" for count in (self.found, self.given, self.helped))
        return f"{self.turns} | {shares} | {share} | {1_000 * self.seconds / self.turns:.1f}"


def conversation(messages: Sequence[Any]) -> Conversation:
    """A conversation as the proxy reads it."""
    return _READER.read(
        _CHAT, json.dumps({"model": "m", "messages": messages}).encode(), TenantScope("bench", b"bench")
    )


def lines(folder: Path, name: str) -> list[Any]:
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def remembered(recorded: Iterable[Any]) -> tuple[Memory, ...]:
    """What the rules remember of agents at work."""
    found: dict[str, Memory] = {}
    for line in recorded:
        read = conversation(line["messages"])
        record = build_record(read)
        for each in find_candidates(split_conversation(record), record, build_background(read)):
            if not each.weak:
                made = Memory("", each.kind, each.content, conversation=line["id"], first=each.first, last=each.last)
                found.setdefault((held := finish_memory(made, now=1.0)).id, held)
    return tuple(found.values())


async def measured(search: MemorySearch, tenant: TenantScope, turns: Iterable[Turn], least: float, row: Row) -> None:
    """Adds what becomes of these turns."""
    for text, right in turns:
        began = time.process_time()
        results: list[SearchResult] = []
        for asked in find_questions(conversation([{"role": "user", "content": text}])):
            results += (await search.search(tenant, SearchQuery(asked, explain=True))).results
        finds = choose_relevant(results, least)[:GIVEN]
        row.seconds += time.process_time() - began
        hits = sum(right(find.memory) for find in finds)
        row.turns, row.found = row.turns + 1, row.found + bool(results)
        row.given, row.helped = row.given + bool(finds), row.helped + bool(hits)
        row.memories, row.right = row.memories + len(finds), row.right + hits


def never(_: Memory) -> bool:
    return False


def answers(wanted: Sequence[int]) -> Right:
    return lambda memory: memory.first in wanted


async def run(folder: Path, least: float) -> dict[str, Row]:
    embedder = StaticEmbedder()
    store = StoredMemories(InMemoryStore(), embedder)
    search, rows = MemorySearch(store, embedder), dict[str, Row]()
    talks, work = lines(folder, "locomo"), {name: lines(folder, name) for name in WORK}
    said = [m["content"] for each in work.values() for one in each for m in one["messages"] if m["role"] == "user"]
    asides = [text for text in said if 5 < len(text) < 200]
    await store.write(
        WORK_TENANT, MemoryChange(put=remembered(one for each in list(work.values())[:4] for one in each))
    )
    for number, talk in enumerate(talks):
        tenant, places = (
            TenantScope(f"talk {number}", b"talk-%d" % number),
            {name: at for at, name in enumerate(talk["dia_ids"])},
        )
        await store.write(tenant, MemoryChange(put=memories(talk["messages"])))
        asked = [
            (each["question"], wanted)
            for each in talk["qa"]
            if (wanted := evidence(each, places)) and each["category"] != 5
        ]
        others = [each["question"] for each in talks[number - 1]["qa"][::3]]
        kinds: dict[str, tuple[TenantScope, list[Turn]]] = {
            "a question": (tenant, [(text, answers(wanted)) for text, wanted in asked]),
            "a question behind other words": (
                tenant,
                [(f"{asides[at]}\n{text}", answers(wanted)) for at, (text, wanted) in enumerate(asked)],
            ),
            "a question about other people": (tenant, [(text, never) for text in others]),
            "a turn of an agent's user": (tenant, [(text, never) for text in said[number :: len(talks)]]),
            "a question, to memories of work": (WORK_TENANT, [(text, never) for text in others]),
        }
        for kind, (where, turns) in kinds.items():
            await measured(search, where, turns, least, rows.setdefault(kind, Row()))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BENCH_DATA", "data")))
    parser.add_argument("--relevance", type=float, nargs="+", default=[0.75])
    given = parser.parse_args()
    if not (given.data / "locomo.jsonl.gz").is_file():
        print("skipped: the recorded conversations are not here; name their folder with --data or BENCH_DATA")
        return
    for least in given.relevance:
        print(f"\nrelevance {least}\n")
        shares = "a search finds any, % | given something, % | given what answers it, % | right of what was given, %"
        print(f"| turn | turns | {shares} | CPU, ms |")
        print("|---|---|---|---|---|---|---|")
        for kind, row in asyncio.run(run(given.data, least)).items():
            print(f"| {kind} | {row.cells()} |", flush=True)


if __name__ == "__main__":
    main()
