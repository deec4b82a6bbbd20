from __future__ import annotations

import pytest
from msgspec.structs import replace

from accordion.features.memory.entries import finish_memory
from accordion.features.memory.memories import Memory, MemoryFilter, SearchCandidate
from accordion.features.memory.search.memory_search import MemorySearch, SearchQuery
from accordion.model.errors import BadRequest
from accordion.model.tenant import TenantScope
from tests.features.memory.fake_memories import FakeMemories

TENANT = TenantScope("tenant", b"tenant")


class Plain:
    """No vectors; relevance is the share of the query's letters."""

    least_relevance = 0.0

    async def embed(self, texts):
        raise AssertionError("a search embeds nothing but its query")

    async def embed_query(self, text):
        return b"vector of " + text.encode()

    async def score_relevance(self, query, candidates):
        return [sum(word in each.memory.content for word in query.split()) / 10 for each in candidates]


class Shelf(FakeMemories):
    """Gives all that a filter lets through, and notes what was asked."""

    gets = counts = 0

    async def get(self, tenant, ids):
        self.gets += 1
        return await super().get(tenant, ids)

    async def count(self, tenant, wanted):
        self.counts += 1
        return await super().count(tenant, wanted)

    async def find_candidates(self, tenant, words, vector, wanted, *, pool):
        self.asked = (tuple(words), vector, wanted, pool)
        found = self._matching(tenant, wanted)
        return [SearchCandidate(each, lexical=float(sum(word in each.content for word in words))) for each in found][
            :pool
        ]

    def add(self, content: str, **fields) -> Memory:
        memory = finish_memory(Memory(**{"id": "", "type": "fact", "content": content, **fields}), now=1.0)
        self.of(TENANT).memories[memory.id] = memory
        return memory


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def search(shelf) -> MemorySearch:
    return MemorySearch(shelf, Plain())


async def test_the_best_comes_first(shelf, search):
    for at in range(5):
        shelf.add(f"Something else, number {at}.")
    shelf.add("The dog is ill, " + "and so on " * 20)
    found = (await search.search(TENANT, SearchQuery("the dog"))).results
    assert found[0].memory.content.startswith("The dog")
    assert found[0].score >= found[1].score


async def test_a_search_gives_32_of_80_and_a_deep_one_100_of_320(shelf, search):
    for at in range(400):
        shelf.add(f"dog {at}")
    plain = await search.search(TENANT, SearchQuery("dog"))
    assert (len(plain.results), plain.candidates, shelf.asked[3]) == (32, 80, 80)
    deep = await search.search(TENANT, SearchQuery("dog", deep=True))
    assert (len(deep.results), deep.candidates, shelf.asked[3]) == (100, 320, 320)
    assert len((await search.search(TENANT, SearchQuery("dog", limit=3))).results) == 3


async def test_words_vector_and_filter_reach_the_store(shelf, search):
    wanted = MemoryFilter(types=("summary_archived",), topics=("auth",), since=1.0, until=2.0)
    await search.search(TENANT, SearchQuery("What did the dog do?", wanted))
    active = replace(wanted, active_only=True)
    assert shelf.asked == (("dog",), b"vector of What did the dog do?", active, 80)
    await search.search(TENANT, SearchQuery("What did the dog do?", wanted, inactive=True))
    assert shelf.asked[2] == wanted


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (SearchQuery(""), "search_without_words"),
        (SearchQuery(" ?! … "), "search_without_words"),
    ],
)
async def test_a_search_that_cannot_be_made_is_refused_with_its_reason(search, query, code):
    with pytest.raises(BadRequest) as refused:
        await search.search(TENANT, query)
    assert refused.value.code == code


async def test_scores_are_explained_only_where_that_is_asked_for(shelf, search):
    shelf.add("dog")
    assert (await search.search(TENANT, SearchQuery("dog"))).results[0].scores is None
    told = (await search.search(TENANT, SearchQuery("dog", explain=True))).results[0].scores
    assert told is not None
    assert told.lexical == 1.0


async def test_a_lone_surrogate_in_a_query_harms_nobody(shelf, search):
    shelf.add("dog")
    assert (await search.search(TENANT, SearchQuery("dog \ud800"))).results


# -- what fits -------------------------------------------------------------------------------------------------------


class Strict(Plain):
    """Something fits if it has six of ten words, or four where the query names its author or an entity."""

    least_relevance = 0.3


@pytest.mark.parametrize(
    ("content", "fields", "is_answer"),
    [
        ("a b c d e f", {}, True),
        ("a b c d e", {}, False),
        ("a b c d", {"author": "Ann Moss"}, True),
        ("a b c d", {"entities": ("Ann",)}, True),
        ("a b c d", {"entities": ("Ann Moss",)}, False),
        ("a b c", {"author": "Ann", "entities": ("Ann",)}, False),
    ],
)
async def test_a_search_returns_nothing_where_nothing_fits(shelf, content, fields, is_answer):
    shelf.add(content, **fields)
    shelf.add("nothing of it")
    search, query = MemorySearch(shelf, Strict()), "a b c d e f what did ann do"
    assert len((await search.search(TENANT, SearchQuery(query))).results) == (2 if is_answer else 0)
    assert len((await search.search(TENANT, SearchQuery(query, everything=True))).results) == 2


# -- stale summaries -------------------------------------------------------------------------------------------------


def summed(shelf: Shelf, count: int) -> Memory:
    sources = [shelf.add(f"source {at}", topics=("auth",)) for at in range(count)]
    return shelf.add(
        "summary of auth",
        type="summary",
        topics=("auth",),
        counted=count,
        sources=tuple((each.id, each.revision) for each in sources),
    )


async def warning(search: MemorySearch) -> str:
    found = (await search.search(TENANT, SearchQuery("summary", deep=True))).results
    assert all(not each.warning for each in found if each.memory.type != "summary")
    return next(each.warning for each in found if each.memory.type == "summary")


async def test_the_sources_of_all_summaries_are_read_at_once_and_a_topic_is_counted_once(shelf, search):
    summary = summed(shelf, 10)
    for at in range(3):
        others = tuple((each.id, each.revision) for each in (shelf.add(f"other {at} {n}") for n in range(5)))
        shelf.add(f"summary {at}", type="summary", topics=("auth",), counted=10, sources=(*others, *summary.sources))
    edited = shelf.of(TENANT).memories
    edited[others[0][0]] = replace(edited[others[0][0]], revision="other")
    found = (await search.search(TENANT, SearchQuery("summary", deep=True))).results
    assert (shelf.gets, shelf.counts) == (1, 1)
    assert [each.memory.content for each in found if each.warning] == ["summary 2"]
    assert await search.find_warnings(TENANT, [each.memory for each in found]) == [each.warning for each in found]


async def test_a_search_that_finds_no_summary_asks_the_store_for_nothing_more(shelf, search):
    shelf.add("dog")
    assert (await search.search(TENANT, SearchQuery("dog"))).results
    assert (shelf.gets, shelf.counts) == (0, 0)
