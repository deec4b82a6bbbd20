from __future__ import annotations

import pytest

from accordion.memory.entries import revision
from accordion.memory.reader import MemoryReader, empty_proof, issue_token, verify_tokens, with_deep_search, with_reads
from accordion.model.errors import BadRequest
from accordion.model.memories import Memory
from accordion.model.tenant import TenantScope
from tests.fakes import FakeClock
from tests.memory.fake_memories import FakeMemories

TENANT, OTHER, NOW = TenantScope("tenant", b"tenant"), TenantScope("other", b"other"), 1_000.0


def memory(name: str, content: str = "Said.") -> Memory:
    return Memory(id=name, type="fact", content=content, revision=revision(content))


def fill_memories(count: int) -> FakeMemories:
    memories = FakeMemories()
    memories.of(TENANT).memories |= {f"mem-{at}": memory(f"mem-{at}", str(at)) for at in range(count)}
    return memories


async def test_memories_are_read_in_full_in_the_order_asked_and_what_is_missing_is_named():
    reading = await MemoryReader(fill_memories(3), FakeClock()).read(TENANT, ["mem-2", "mem-9", "mem-0", "mem-2"])
    assert [memory.content for memory in reading.memories] == ["2", "0"]
    assert reading.missing == ("mem-9",)


async def test_another_tenants_ids_lead_nowhere():
    reading = await MemoryReader(fill_memories(3), FakeClock()).read(OTHER, ["mem-0"])
    assert (reading.memories, reading.missing) == ((), ("mem-0",))


async def test_a_reading_token_proves_what_was_read_and_nothing_else():
    clock = FakeClock()
    reader = MemoryReader(fill_memories(5), clock)
    first = await reader.read(TENANT, ["mem-0", "mem-1", "mem-7"])
    second = await reader.read(TENANT, ["mem-2"], first.token)
    asked = [memory(f"mem-{at}", str(at)) for at in range(9)]
    assert verify_tokens(TENANT, first.token, now=clock.now()).find_read(asked) == asked[:2]
    assert verify_tokens(TENANT, second.token, now=clock.now()).find_read(asked) == asked[:3]
    assert not verify_tokens(TENANT, second.token, now=clock.now()).has_searched_deeply("auth")


async def test_a_memory_that_was_edited_since_counts_as_unread():
    memories, clock = fill_memories(2), FakeClock()
    token = (await MemoryReader(memories, clock).read(TENANT, ["mem-0", "mem-1"])).token
    same, edited = memory("mem-0", "0"), memory("mem-1", "something else")
    assert verify_tokens(TENANT, token, now=clock.now()).find_read([same, edited]) == [same]


def test_what_is_called_and_says_the_same_in_another_division_is_not_taken_for_it():
    proof = with_reads(empty_proof(TENANT), [Memory("mem-a", "fact", "", revision="bc")])
    assert not proof.find_read([Memory("mem-ab", "fact", "", revision="c")])


@pytest.mark.parametrize(("ids", "code"), [([], "no_ids"), ([str(at) for at in range(101)], "too_many_ids")])
async def test_reading_nothing_or_too_much_is_refused(ids, code):
    with pytest.raises(BadRequest) as refused:
        await MemoryReader(fill_memories(0), FakeClock()).read(TENANT, ids)
    assert refused.value.code == code


def test_a_deep_search_proves_its_query_and_its_topics():
    deep = with_deep_search(empty_proof(TENANT), "login", ["Auth  Flow"])
    assert deep.has_searched_deeply("AUTH flow")
    assert deep.has_searched_deeply("login")
    assert not deep.has_searched_deeply("auth")


def test_several_tokens_prove_together():
    every = [memory(name) for name in "abc"]
    tokens = [issue_token(with_reads(empty_proof(TENANT), [each]), now=NOW) for each in every[:2]]
    assert verify_tokens(TENANT, tokens, now=NOW).find_read(every) == every[:2]
    assert verify_tokens(TENANT, " ".join(tokens), now=NOW).find_read(every) == every[:2]


def test_no_token_proves_nothing():
    assert verify_tokens(TENANT, "", now=NOW) == empty_proof(TENANT)


def test_a_token_of_another_tenant_an_altered_one_and_nonsense_are_refused():
    token = issue_token(with_reads(empty_proof(TENANT), [memory("a")]), now=NOW)
    changed = token[:-3] + ("AAA" if token[-3:] != "AAA" else "BBB")
    for tenant, given in ((OTHER, token), (TENANT, changed), (TENANT, token[4:]), (TENANT, "é"), (TENANT, "x" * 40)):
        with pytest.raises(BadRequest) as refused:
            verify_tokens(tenant, given, now=NOW)
        assert refused.value.code == "reading_token_invalid"


def test_a_token_expires():
    token = issue_token(empty_proof(TENANT), now=NOW)
    verify_tokens(TENANT, token, now=NOW + 3_500)
    with pytest.raises(BadRequest, match="expired"):
        verify_tokens(TENANT, token, now=NOW + 3_700)


def test_a_token_of_twenty_memories_is_short_enough_to_be_passed_on():
    proof = with_deep_search(with_reads(empty_proof(TENANT), [memory(str(at)) for at in range(20)]), "auth", [])
    assert len(issue_token(proof, now=NOW)) < 200
