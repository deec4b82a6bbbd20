"""The search over the embedded store with the embedding that is shipped, as the proxy has it."""

from __future__ import annotations

import pytest

from accordion.features.memory.entries import finish_memory
from accordion.features.memory.memories import Memory, MemoryChange, MemoryFilter
from accordion.features.memory.search.memory_search import MemorySearch, SearchQuery
from accordion.features.memory.store.static_embedder import StaticEmbedder
from accordion.features.memory.store.stored_memories import StoredMemories
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore

TENANT = TenantScope("tenant", b"tenant")
SAID = (
    "The deployment runs on three machines behind nginx.",
    "Her dog has been ill since Tuesday.",
    "We pay invoices on the last day of a month.",
    "Tests are run before each release.",
    "The database is backed up every night.",
    "Lunch is at noon.",
)


@pytest.fixture
async def store():
    made = StoredMemories(InMemoryStore(), StaticEmbedder())
    await made.write(TENANT, MemoryChange(put=tuple(memory(text) for text in SAID)))
    return made


def memory(content: str, **fields) -> Memory:
    return finish_memory(Memory(**{"id": "", "type": "fact", "content": content, **fields}), now=1.0)


async def first(store: StoredMemories, query: str, wanted: MemoryFilter = MemoryFilter()) -> str:  # noqa: B008
    search = MemorySearch(store, StaticEmbedder())
    return (await search.search(TENANT, SearchQuery(query, wanted, everything=True))).results[0].memory.content


@pytest.mark.parametrize(
    ("query", "place"),
    [("a sick puppy", 1), ("When are bills settled?", 2), ("nightly backups", 4), ("meal", 5)],
)
async def test_a_query_finds_memories_with_other_words(store, query, place):
    assert await first(store, query) == SAID[place]


async def test_a_topics_summary_comes_before_its_memories(store):
    await store.write(
        TENANT, MemoryChange(put=(memory("Backups: the database, every night, kept a month.", type="summary"),))
    )
    assert (await first(store, "database backups")).startswith("Backups:")


async def test_archived_summaries_are_found_only_by_their_type(store):
    old = memory("Backups were made by hand.", type="summary_archived")
    await store.write(TENANT, MemoryChange(put=(old,)))
    assert await first(store, "backups by hand") != old.content
    assert await first(store, "backups by hand", MemoryFilter(types=("summary_archived",))) == old.content


async def test_a_query_that_no_memory_fits_finds_none_unless_everything_is_asked_for(store):
    search, query = MemorySearch(store, StaticEmbedder()), "Who won the chess tournament in Reykjavik?"
    assert (await search.search(TENANT, SearchQuery(query))).results == ()
    assert (await search.search(TENANT, SearchQuery(query, everything=True))).results


async def test_what_has_several_names_is_found_by_each(store):
    search, query = MemorySearch(store, StaticEmbedder()), SearchQuery("Which version of k8s is it?")
    version = memory("The cluster runs Kubernetes 1.30 on three nodes.")
    await store.write(TENANT, MemoryChange(put=(version,)))
    assert (await search.search(TENANT, query)).results == ()
    named = memory("The cranes are at the port.", entities=("Kubernetes (also k8s)",))
    await store.write(TENANT, MemoryChange(put=(named,)))
    assert version in [each.memory for each in (await search.search(TENANT, query)).results[:2]]
    await store.write(TENANT, MemoryChange(delete=(named.id,)))
    assert (await search.search(TENANT, query)).results == ()


async def test_a_name_that_is_given_as_an_entity_is_found_like_a_word(store):
    named = memory("The crane needs oil every week.", entities=("Wotan",))
    await store.write(TENANT, MemoryChange(put=(named,)))
    assert await first(store, "Wotan") == named.content
