from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.compaction.repository import CompactedPrefixCache, CompactionRepository, decode, encode
from accordion.model.compaction import Cause, Compaction, CompactionEntry, StrategyRecord, with_content_id
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key
from accordion.model.tenant import ConversationRef, TenantScope
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.stores.memory_store import InMemoryStore
from tests.compaction.compactor_setup import CONVERSATION, SCOPE, TENANT, conversation, long_history
from tests.fakes import FakeClock
from tests.histories import History
from tests.tiers import examples

OTHER = TenantScope("other", b"other")

CHAT = OpenAIChat()


def compact(
    client: Conversation, covered: int, *, text: str = "what was", generation: int = 1, cause: Cause = "automatic"
) -> Compaction:
    """A record that puts a text in place of all but the first of the covered messages."""
    return with_content_id(
        Compaction(
            id="", anchor=client.chain[covered - 1], covered_count=covered,
            entries=(CompactionEntry(0, 0), CompactionEntry(1, covered - 1, CHAT.text_message(text))),
            kind="conversation", cause=cause, utilization=0.5123, steps=(StrategyRecord("summarize", 100, 10),),
            before=100, after=10, generation=generation, at=12.5, writer="extractive", artifacts=("art_1",),
            narrative="told", narrative_end=3,
        )
    )  # fmt: skip


def client(turns: int = 6, keep: int | None = None) -> Conversation:
    history = long_history(turns, words=3, end="done")
    return conversation(history if keep is None else History(history.turns[:keep], history.system), "chat")


class Counting(InMemoryStore):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.away = False
        self.puts_left = 10**9

    async def get_many(self, keys):
        if self.away:
            raise StoreUnavailable("away")
        self.asked.append(len(keys))
        return await super().get_many(keys)

    async def put_if_absent(self, key, value, *, ttl=None):
        self.puts_left -= 1
        if self.away or self.puts_left < 0:
            raise StoreUnavailable("away")
        return await super().put_if_absent(key, value, ttl=ttl)


async def find(
    compactions: CompactionRepository,
    of: Conversation,
    *,
    fresh: bool = False,
    scope: bytes = SCOPE,
    tenant: TenantScope = TENANT,
):
    found = await compactions.find(CHAT, ConversationRef(tenant, scope, "s-1"), of, check_store=fresh)
    return found.compaction.id if found.compaction is not None else None


async def publish(
    compactions: CompactionRepository, client: Conversation, compaction: Compaction, *, of: bytes = b""
) -> Compaction:
    return await compactions.publish(CONVERSATION, client.chain[0], compaction, last_chain_key=of)


# -- records ---------------------------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was():
    made = compact(client(), 5)
    assert decode(encode(made)) == made


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(max_examples=examples(80))
def test_a_record_that_was_damaged_is_ignored(place: int, change: int):
    kept = bytearray(encode(compact(client(), 5, text="what was " * 50)))
    kept[place % len(kept)] ^= change
    found = decode(bytes(kept))
    assert found is None or found == compact(client(), 5, text="what was " * 50)


def test_a_record_of_a_later_version_or_cut_short_is_ignored():
    kept = encode(compact(client(), 5))
    assert decode(None) is None
    assert decode(b"\x02" + kept[1:]) is None
    assert decode(kept[:-4]) is None
    assert decode(b"") is None


def test_other_content_has_another_id():
    assert compact(client(), 5).id == compact(client(), 5).id
    assert len({compact(client(), 5).id, compact(client(), 4).id, compact(client(), 5, text="else").id}) == 3


# -- finding ---------------------------------------------------------------------------------------------------------


async def test_a_history_that_was_never_compacted_goes_on_as_it_came():
    whole = client()
    found = await CompactionRepository(InMemoryStore()).find(CHAT, CONVERSATION, whole, check_store=True)
    assert found.compaction is None
    assert found.conversation is whole


async def test_the_deepest_compaction_that_still_holds_is_used_after_a_rewind():
    compactions, whole = CompactionRepository(InMemoryStore()), client()
    shallow, deep = compact(whole, 5), compact(whole, 13, text="more", generation=2)
    await publish(compactions, whole, shallow)
    for turns in (2, 3, 4, 5):
        assert await find(compactions, client(keep=turns)) == shallow.id
    await publish(compactions, whole, deep)
    assert await find(compactions, client(keep=6)) == deep.id
    assert await find(compactions, client(keep=4)) == deep.id
    assert await find(compactions, client(keep=3)) == shallow.id
    assert await find(compactions, client(keep=1)) is None


async def test_an_answer_from_before_a_compaction_does_not_hide_it():
    compactions, whole = CompactionRepository(InMemoryStore()), client()
    assert await find(compactions, client(keep=5)) is None
    await publish(compactions, whole, compact(whole, 5))
    assert await find(compactions, client(keep=5)) == compact(whole, 5).id
    assert await find(compactions, client(keep=6)) == compact(whole, 5).id


async def test_a_compaction_that_is_evicted_before_its_first_use_is_found_in_the_store():
    """Else the conversation would be compacted anew, with other bytes and at the cost of a new summary."""
    whole = client()
    repository = CompactionRepository(InMemoryStore(), capacity=1)
    assert await find(repository, client(keep=5)) is None
    await publish(repository, whole, compact(whole, 5))
    await repository.publish(ConversationRef(TENANT, b"other", "s-2"), whole.chain[0], compact(whole, 5, text="else"))
    for turns in (5, 6, 7):
        assert await find(repository, client(keep=turns)) == compact(whole, 5).id


async def test_a_compaction_that_is_published_during_a_look_up_is_found():
    class Busy(InMemoryStore):
        async def get_many(self, keys):
            values = await super().get_many(keys)
            if not published:
                published.append(compact(whole, 5))
                await publish(compactions, whole, published[0])
            return values

    whole, published = client(), list[Compaction]()
    compactions = CompactionRepository(Busy())
    assert await find(compactions, client(keep=5), fresh=True) == compact(whole, 5).id
    assert await find(compactions, whole) == compact(whole, 5).id


async def test_a_compaction_of_another_branch_costs_no_read_of_the_store():
    store, whole = Counting(), client()
    other = replace(whole, messages=whole.messages[:5], chain=(*whole.chain[:4], b"branch"))
    compactions = CompactionRepository(store)
    assert await find(compactions, other) is None
    await publish(compactions, whole, compact(whole, 5))
    assert await find(compactions, replace(other, messages=whole.messages[:6], chain=(*other.chain, b"next"))) is None
    assert store.asked == []


async def test_another_scope_and_another_tenant_find_nothing():
    compactions, whole = CompactionRepository(InMemoryStore()), client()
    await publish(compactions, whole, compact(whole, 5))
    assert await find(compactions, whole, scope=b"other", fresh=True) is None
    assert await find(compactions, whole, tenant=OTHER, fresh=True) is None
    assert await find(compactions, whole) is not None


async def test_a_restart_finds_the_same_bytes_in_the_store():
    store, whole = InMemoryStore(), client()
    before = CompactionRepository(store)
    await publish(before, whole, compact(whole, 5))
    first = await before.find(CHAT, CONVERSATION, whole, check_store=False)
    again = await CompactionRepository(store).find(CHAT, CONVERSATION, whole, check_store=True)
    assert again == first


async def test_the_store_is_asked_only_where_others_may_know_more():
    store, whole = Counting(), client()
    compactions = CompactionRepository(store)
    await find(compactions, client(keep=3))
    assert store.asked == []
    await find(compactions, client(keep=3), fresh=True)
    assert store.asked == [len(client(keep=3).chain)]
    await CompactionRepository(store).publish(CONVERSATION, whole.chain[0], compact(whole, 13))
    assert await find(compactions, whole) is None
    assert await find(compactions, whole, fresh=True) == compact(whole, 13).id


async def test_a_long_history_is_asked_for_in_batches_the_newest_first():
    store, whole = Counting(), conversation(long_history(400, words=1, end="done"), "chat")
    assert len(whole.chain) == 1_600
    assert await find(CompactionRepository(store), whole, fresh=True) is None
    assert store.asked == [64, 512, 1_024]
    store.asked.clear()
    await publish(CompactionRepository(store), whole, compact(whole, 1_592))
    assert await find(CompactionRepository(store), whole, fresh=True) == compact(whole, 1_592).id
    assert store.asked[0] == 64
    assert sum(store.asked) < 80


async def test_a_history_that_could_not_be_looked_up_is_looked_up_again():
    store, of = Counting(), client()
    made = await publish(CompactionRepository(store), of, compact(of, 5))
    compactions = CompactionRepository(store)
    store.away = True
    assert await find(compactions, of, fresh=True) is None
    store.away = False
    assert not compactions.knows_position(CONVERSATION, of.chain[-1])
    assert await find(compactions, of, fresh=True) == made.id
    assert compactions.knows_position(CONVERSATION, of.chain[-1])


async def test_while_the_store_is_away_what_is_known_here_must_do():
    store, whole = Counting(), client()
    compactions = CompactionRepository(store)
    await publish(compactions, whole, compact(whole, 5))
    store.away = True
    assert await find(compactions, whole, fresh=True) == compact(whole, 5).id
    with pytest.raises(StoreUnavailable):
        await publish(compactions, whole, compact(whole, 9))
    assert await find(compactions, whole) == compact(whole, 5).id


async def test_the_second_publisher_takes_the_first_compaction():
    store, whole = InMemoryStore(), client()
    one, other = CompactionRepository(store), CompactionRepository(store)
    mine, theirs = compact(whole, 5, text="mine"), compact(whole, 5, text="theirs")
    assert await publish(one, whole, theirs) == theirs
    assert await publish(other, whole, mine) == theirs
    assert await find(other, whole) == theirs.id


async def test_workers_that_compact_one_list_at_two_places_use_the_first_ones_compact():
    store, whole = InMemoryStore(), client()
    one, other = CompactionRepository(store), CompactionRepository(store)
    shallow, deep = compact(whole, 5), compact(whole, 9)
    assert await publish(one, whole, shallow, of=whole.chain[-1]) == shallow
    assert await publish(other, whole, deep, of=whole.chain[-1]) == shallow
    for compactions in (one, other, CompactionRepository(store)):
        assert await find(compactions, whole, fresh=True) == shallow.id


async def test_the_second_worker_publishes_the_compaction_of_a_worker_that_died():
    store, whole = Counting(), client()
    store.puts_left = 1
    first = compact(whole, 5)
    with pytest.raises(StoreUnavailable):
        await publish(CompactionRepository(store), whole, first, of=whole.chain[-1])
    store.puts_left = 10
    assert await find(CompactionRepository(store), whole, fresh=True) is None
    assert await publish(CompactionRepository(store), whole, compact(whole, 9), of=whole.chain[-1]) == first
    assert await find(CompactionRepository(store), whole, fresh=True) == first.id


async def test_another_list_or_another_cause_is_compacted_by_itself():
    store, whole = InMemoryStore(), client()
    first, second, forced = compact(whole, 5), compact(whole, 9), compact(whole, 13, cause="overflow")
    await publish(CompactionRepository(store), whole, first, of=whole.chain[-1])
    assert await publish(CompactionRepository(store), whole, forced, of=whole.chain[-1]) == forced
    assert await publish(CompactionRepository(store), whole, second, of=whole.chain[-2]) == second


async def test_a_list_is_compacted_alike_for_as_long_as_it_may_be_sent_again():
    clock, whole = FakeClock(), client()
    store = InMemoryStore(now=clock.now)
    first, second = compact(whole, 5), compact(whole, 9)
    await publish(CompactionRepository(store), whole, first, of=whole.chain[-1])
    clock.advance(800)
    assert await publish(CompactionRepository(store), whole, second, of=whole.chain[-1]) == first
    clock.advance(200)
    assert await publish(CompactionRepository(store), whole, second, of=whole.chain[-1]) == second


async def test_what_cannot_be_read_where_workers_meet_is_passed_over():
    store, whole = InMemoryStore(), client()
    await publish(CompactionRepository(store), whole, compact(whole, 5), of=whole.chain[-1])
    [name] = [key.name for key in store._values if key.name.startswith("compaction_claim/")]
    await store.put(Key("", name), b"\x01rubbish")
    assert await publish(CompactionRepository(store), whole, compact(whole, 9), of=whole.chain[-1]) == compact(whole, 9)


async def test_a_request_that_overflowed_does_not_get_the_longer_compaction():
    store, whole = InMemoryStore(), client()
    longer, less = compact(whole, 5), compact(whole, 5, text="less", cause="overflow")
    await publish(CompactionRepository(store), whole, longer)
    assert await publish(CompactionRepository(store), whole, less) == less
    assert await find(CompactionRepository(store), whole, fresh=True) == less.id
    assert await publish(CompactionRepository(store), whole, compact(whole, 5, text="least", cause="overflow")) == less


async def test_a_compaction_upon_the_one_held_here_is_found_when_another_worker_made_it():
    store, whole = InMemoryStore(), client()
    one, other = CompactionRepository(store), CompactionRepository(store)
    first, second = compact(whole, 5), compact(whole, 5, text="less", generation=2)
    await publish(one, whole, first)
    assert await find(other, whole, fresh=True) == first.id
    await publish(one, whole, second)
    assert await find(other, client(keep=5), fresh=True) == second.id
    assert await find(other, whole) == second.id


async def test_a_compacted_list_that_is_still_too_long_is_compacted_again():
    store, whole = InMemoryStore(), client()
    compactions, first = CompactionRepository(store), compact(whole, 5)
    second = compact(whole, 5, text="less", generation=2)
    await publish(compactions, whole, first)
    assert await publish(compactions, whole, second) == second
    assert await find(compactions, whole) == second.id
    assert await find(CompactionRepository(store), whole, fresh=True) == second.id


async def test_an_evicted_compaction_is_fetched_again():
    store, whole = Counting(), client()
    other = conversation(long_history(4, words=4, end="done"), "chat")
    compactions = CompactionRepository(store, capacity=1_500)
    await publish(compactions, whole, compact(whole, 5))
    assert await find(compactions, client(keep=4)) == compact(whole, 5).id
    await publish(compactions, other, compact(other, 5))
    assert compactions.size <= 2_500
    assert store.asked == []
    assert await find(compactions, whole) == compact(whole, 5).id
    assert store.asked


async def test_a_damaged_record_is_passed_over_for_a_shallower_one():
    store, whole = InMemoryStore(), client()
    compactions = CompactionRepository(store)
    await publish(compactions, whole, compact(whole, 5))
    deep = compact(whole, 9, generation=2)
    await publish(compactions, whole, deep)
    [name] = [key.name for key in store._values if deep.anchor.hex() in key.name]
    await store.put(Key("", name), b"\x01rubbish")
    assert await find(CompactionRepository(store), whole, fresh=True) == compact(whole, 5).id


class UnavailableStore(InMemoryStore):
    """Takes what is written, as a spool does, and says that the store behind it is away."""

    is_available = False


async def test_while_the_store_is_away_all_that_the_spool_has_is_found():
    """A read of which the spool has nothing fails, and the next one may find the compaction."""

    class Spool(UnavailableStore):
        async def get_many(self, keys):
            values = await super().get_many(keys)
            if not any(values):
                raise StoreUnavailable("away, and the spool has none of these")
            return values

    whole, spool = client(turns=40), Spool()
    made = await publish(CompactionRepository(spool), whole, compact(whole, 5))
    compactions = CompactionRepository(spool)
    spool.is_available = True
    assert await find(compactions, whole, fresh=True) == made.id
    assert not compactions.knows_position(CONVERSATION, whole.chain[-1])


async def test_a_compaction_in_force_here_alone_is_replaced_by_who_was_first():
    whole, store = client(), InMemoryStore()
    here, there = CompactionRepository(UnavailableStore()), CompactionRepository(store)
    mine, theirs = compact(whole, 5, text="mine"), compact(whole, 5, text="theirs")
    await publish(here, whole, mine)
    assert await find(here, whole) == mine.id
    await publish(there, whole, theirs)
    [key] = [key for key in store._values if theirs.anchor.hex() in key.name]
    here.adopt(key, await store.get(key) or b"")
    assert await find(here, whole) == theirs.id


async def test_a_local_compaction_gives_way_to_the_published_one_from_the_spool():
    """The workers of one machine share its spool, and who publishes it may not be who is to be told."""
    spool, whole = UnavailableStore(), client()
    here = CompactionRepository(spool)
    mine, theirs = compact(whole, 5, text="mine"), compact(whole, 5, text="theirs")
    await publish(here, whole, mine)
    assert await find(here, whole, fresh=True) == mine.id
    store = InMemoryStore()
    here._store = store
    await publish(CompactionRepository(store), whole, theirs)
    assert await find(here, whole, fresh=True) == theirs.id
    assert await find(here, client(keep=5)) == theirs.id


async def test_a_client_that_compacted_itself_is_not_given_the_old_compact():
    compactions, whole = CompactionRepository(InMemoryStore()), client()
    await publish(compactions, whole, compact(whole, 5))
    shorter = replace(whole, messages=whole.messages[3:], chain=tuple(key[::-1] for key in whole.chain[3:]))
    assert await find(compactions, shorter, fresh=True) is None


# A turn has four messages; no compaction parts the call in its second from the result in its third.
WHOLE = st.integers(2, 24).filter(lambda covered: covered % 4 != 2)


@given(st.lists(st.tuples(WHOLE, st.integers(1, 6), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=examples(60), deadline=None)
def test_the_cache_never_differs_from_a_plain_search(steps: list[tuple[int, int, bool]]):
    import asyncio

    async def run() -> None:
        store, whole = InMemoryStore(), client()
        compactions, made = CompactionRepository(store), dict[int, Compaction]()
        for number, (covered, turns, publishes) in enumerate(steps):
            if publishes and covered not in made:
                made[covered] = compact(whole, covered, text=f"compaction {number}", generation=number + 1)
                await publish(compactions, whole, made[covered])
            length = len(client(keep=turns).chain)
            # The newest message is never behind a block, so that a compaction of all of a list is none of that list's.
            deepest = max((each for each in made if each < length), default=0)
            assert await find(compactions, client(keep=turns)) == (made[deepest].id if deepest else None)

    asyncio.run(run())


def test_what_was_applied_is_remembered_within_a_bound_in_bytes():
    heads, whole = CompactedPrefixCache(WrittenMessageReader(), 20_000), client()
    for number in range(40):
        heads.apply(CHAT, TENANT, whole, compact(whole, 5, text=f"what was, {number}"))
    assert 1 < len(heads._prefixes) < 20


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(2, 6), st.booleans()), min_size=2, max_size=6))
def test_the_outcome_of_earlier_requests_does_not_change_a_later_one(asked) -> None:
    known, record = CompactedPrefixCache(WrittenMessageReader(), 2**20), compact(client(), 3)
    for turns, forked in asked:
        history = client(keep=turns)
        if forked:
            other = replace(history.messages[-1], key=b"another")
            history = replace(history, messages=(*history.messages[:-1], other), chain=(*history.chain[:-1], b"fork"))
        if len(history.chain) < 3:
            continue
        once = CompactedPrefixCache(WrittenMessageReader(), 2**20).apply(CHAT, TENANT, history, record)
        assert known.apply(CHAT, TENANT, history, record) == once
