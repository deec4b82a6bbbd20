from __future__ import annotations

from accordion.features.memory.memories import Memory, SearchCandidate
from accordion.features.memory.search.ranking import fuse, order_candidates


def candidate(name: str, lexical: float = 0.0, dense: float = 0.0, **fields) -> SearchCandidate:
    return SearchCandidate(Memory(**{"id": name, "type": "fact", "content": name, **fields}), lexical, dense)


def names(found) -> list[str]:
    return [each.memory.id for each, _ in found]


def test_a_result_of_both_lists_ranks_before_one_of_a_single_list():
    assert [each[0] for each in fuse(["a", "b"], ["c", "b"], {}, 3)] == ["b", "a", "c"]


def test_fusing_tells_both_ranks():
    assert fuse(["a"], ["b", "a"], {}, 2) == [("a", 0, 1), ("b", -1, 0)]


def test_a_summary_survives_the_limit_of_the_pool_and_a_preference_comes_next():
    lexical = [f"fact{at}" for at in range(20)] + ["preference", "summary"]
    types = {"summary": "summary", "preference": "preference"}
    assert {"summary", "preference"} <= {each[0] for each in fuse(lexical, [], types, 10)}
    assert {"summary", "preference"}.isdisjoint(each[0] for each in fuse(lexical, [], {}, 10))


def test_the_final_order_follows_the_scores_not_the_ranks():
    found = order_candidates("query", [candidate("a", 1.0), candidate("b", 9.0), candidate("c", 2.0)], [0.1, 0.9, 0.2])
    assert names(found) == ["b", "c", "a"]
    assert all(0.0 <= told.score <= 1.0 for _, told in found)


def test_relevance_decides_where_words_and_vectors_do_not():
    assert names(order_candidates("query", [candidate("a"), candidate("b")], [0.2, 0.6])) == ["b", "a"]


def test_statements_of_the_person_named_in_the_query_rank_first():
    found = order_candidates(
        "What does Ann like?", [candidate("a", 2.0, author="Bob"), candidate("b", 1.0, author="Ann Lee")], [0, 0]
    )
    assert names(found) == ["b", "a"]
    assert found[0][1].author > 0.0 == found[1][1].author


def test_neighbours_of_a_result_in_its_conversation_rank_higher():
    def mention(name, first, lexical=0.0, talk="talk"):
        return candidate(name, lexical, conversation=talk, first=first, last=first)

    found = order_candidates(
        "q", [mention("find", 4, 9.0), mention("far", 9), mention("other", 5, talk="else"), mention("next", 5)], [0] * 4
    )
    assert names(found)[:2] == ["find", "next"]


def test_a_summary_that_fits_is_lifted_but_never_above_1():
    pool = [candidate("fact", 9.0), candidate("summary", 8.5, type="summary"), *map(candidate, "abcdefghijklmnop")]
    found = order_candidates("query", pool, [0.9, 0.85, *([0.0] * 16)])
    assert names(found)[0] == "summary"
    assert found[0][1].score == 1.0
    assert found[0][1].boost == 1.3


def test_the_summary_of_the_topic_in_the_query_ranks_first():
    pool = [candidate(name, 1.0) for name in "abcdefgh"]
    pool.append(candidate("summary", 0.1, type="summary", topics=("ledger",)))
    assert names(order_candidates("what is the ledger", pool, [0.9] * 8 + [1.0]))[0] == "summary"
    assert names(order_candidates("what is the archive", pool, [0.9] * 8 + [0.8]))[0] != "summary"


def test_a_topic_without_words_is_not_asked_for_by_every_query():
    pool = [candidate("fact", 9.0), candidate("summary", 0.0, type="summary", topics=("->",)), candidate("other", 5.0)]
    assert names(order_candidates("query", pool, [0.9, 0.0, 0.5]))[-1] == "summary"


def test_a_summary_that_does_not_fit_is_not_put_first():
    pool = [candidate("fact", 9.0), candidate("summary", 0.0, type="summary"), candidate("other", 5.0)]
    assert names(order_candidates("query", pool, [0.9, 0.0, 0.5]))[-1] == "summary"


def test_one_candidate_and_none_are_ordered_too():
    assert names(order_candidates("query", [candidate("a", 3.0)], [0.5])) == ["a"]
    assert order_candidates("query", [], []) == []
