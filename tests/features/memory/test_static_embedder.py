from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.features.memory.memories import Memory, SearchCandidate
from accordion.features.memory.store.memory_index import find_nearest
from accordion.features.memory.store.static_embedder import StaticEmbedder
from accordion.providers.models.static_embedding import SIGN
from tests.tiers import examples


@pytest.fixture
def embedder() -> StaticEmbedder:
    return StaticEmbedder()


async def candidates(embedder: StaticEmbedder, *texts: str | tuple[str, str]) -> list[SearchCandidate]:
    pairs = [(text, "") if isinstance(text, str) else text for text in texts]
    kept = await embedder.embed(pairs)
    return [
        SearchCandidate(Memory(id=str(at), type="fact", content=text), tokens=each.tokens)
        for at, ((text, _), each) in enumerate(zip(pairs, kept, strict=True))
    ]


async def test_a_text_is_nearer_to_what_means_the_same_in_other_words(embedder):
    near, far = await embedder.embed([("My dog is ill.", ""), ("The invoice was paid.", "")])
    query = await embedder.embed_query("a sick puppy")
    assert find_nearest(query, [far.vector, near.vector], 2)[0][0] == 1


async def test_relevance_is_between_0_and_1_and_highest_for_the_matching_text(embedder):
    found = await candidates(embedder, "The invoice was paid.", "The physician saw her at the clinic.", "")
    scores = await embedder.score_relevance("Which hospital did the doctor work in?", found)
    assert scores[1] > scores[0] >= 0.0
    assert scores[2] == 0.0
    assert max(scores) <= 1.0


async def test_what_stands_in_the_context_alone_counts_for_less_than_in_the_text(embedder):
    own, around, neither = await candidates(
        embedder, "She plays the violin.", ("Yes, every day.", "She plays the violin."), "Yes, every day."
    )
    scores = await embedder.score_relevance("violin", [own, around, neither])
    assert scores[0] > scores[1] > scores[2]


async def test_a_context_moves_a_vector_towards_itself(embedder):
    plain, shifted = await embedder.embed([("Every day.", ""), ("Every day.", "She plays the violin.")])
    query = await embedder.embed_query("violin")
    cosines = dict(find_nearest(query, [plain.vector, shifted.vector], 2))
    assert cosines[1] > cosines.get(0, 0.0)


@pytest.mark.parametrize("text", ["", "the of and", "!?…", "你好", "\x00"])
async def test_a_text_that_says_nothing_to_it_has_no_vector_and_no_relevance(embedder, text):
    assert await embedder.embed_query(text) == b""
    assert await embedder.score_relevance(text, await candidates(embedder, "a dog")) == [0.0]


async def test_no_candidates_have_no_relevance(embedder):
    assert await embedder.score_relevance("dog", []) == []


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60)), max_size=4), st.text(max_size=60))
async def test_any_text_is_embedded_the_same_each_time(texts, query):
    embedder = StaticEmbedder()
    kept = await embedder.embed(texts)
    assert kept == await embedder.embed(texts)
    assert all(each.vector == b"" or (each.vector[:4] == SIGN and len(each.vector) == 132) for each in kept)
    scores = await embedder.score_relevance(query, await candidates(embedder, *texts))
    assert all(0.0 <= score <= 1.0 for score in scores)


async def test_a_very_long_text_is_embedded_by_its_beginning(embedder):
    long, begun = await embedder.embed([("dog " * 100_000, ""), ("dog " * 5_000, "")])
    assert long == begun


def test_numpy_and_tokenizers_are_imported_only_when_something_is_embedded():
    code = (
        "import sys, accordion.features.memory.store.static_embedder, accordion.features.memory.store.stored_memories;"
        "import accordion.features.memory.search.memory_search;"
        "accordion.features.memory.store.static_embedder.StaticEmbedder();"
        "sys.exit('numpy' in sys.modules or 'tokenizers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
