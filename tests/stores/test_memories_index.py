"""Words are weighed as SQLite's full-text index weighs them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.memory.ranking import AUTHOR_WEIGHT, BODY_WEIGHT, CONTEXT_WEIGHT
from accordion.model.memories import ALL_TYPES, MemoryFilter
from accordion.stores import memories_index
from accordion.stores.memory_store import InMemoryStore
from tests.memories import TENANT, memory, open_memories, put
from tests.tiers import examples

WORDS = ("run", "running", "runs", "violin", "pet", "naïve", "NAIVE", "42", "the", "x", "日本")
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
spoken = st.lists(st.tuples(texts, st.sampled_from(("", "violin run")), st.sampled_from(("", "Violin"))), max_size=40)


@settings(max_examples=examples(30), deadline=None)
@given(spoken, st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
def test_scores_are_those_of_fts5(said, words):
    with closing(sqlite3.connect(":memory:")) as index:
        index.execute("CREATE VIRTUAL TABLE words USING fts5 (body, context, author, tokenize = 'porter unicode61')")
        index.executemany("INSERT INTO words VALUES (?, ?, ?)", said)
        wanted = index.execute(
            "SELECT rowid, -bm25(words, ?, ?, ?) FROM words WHERE words MATCH ?",
            (BODY_WEIGHT, CONTEXT_WEIGHT, AUTHOR_WEIGHT, " OR ".join(f'"{word}"' for word in words)),
        ).fetchall()

    async def scores() -> dict[int, float]:
        store = open_memories(InMemoryStore())
        many = [memory(*said[at][:1], id=f"{at}", context=said[at][1], author=said[at][2]) for at in range(len(said))]
        await put(store, *many)
        found = await store.find_candidates(TENANT, words, b"", MemoryFilter(), pool=100)
        await store.close()
        return {int(each.memory.id) + 1: each.lexical for each in found}

    assert asyncio.run(scores()) == {row: pytest.approx(score) for row, score in wanted}


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_matrices_are_not_divided_among_threads_unless_somebody_says_so(given, threads):
    kept = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    asked = "import os, accordion; print(os.environ['OPENBLAS_NUM_THREADS'])"
    told = subprocess.run([sys.executable, "-c", asked], env=kept | given, capture_output=True, check=True, text=True)
    assert told.stdout.strip() == threads


def test_every_type_has_a_code_that_never_changes():
    assert dict(memories_index._CODES) == {kind: code for code, kind in enumerate(ALL_TYPES, 1)}
