import asyncio

import pytest

from accordion.compaction.wishes import MOST_PINS, Wish, Wishes
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key
from accordion.storage.ephemeral import EphemeralStore
from tests.fakes import FickleStore


class Fickle(FickleStore):
    """A store that can be away, and that can be made to wait before it lists."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.gate: asyncio.Event | None = None

    async def put(self, key, value, *, ttl=None):
        await super().put(key, value, ttl=ttl)
        self.writes += 1

    async def scan(self, collection, *, prefix="", after="", limit=1000):
        found = await super().scan(collection, prefix=prefix, after=after, limit=limit)
        if self.gate is not None:
            await self.gate.wait()
        return found


IDS = frozenset({"call_1", "call_2"})


async def test_pins_are_known_to_every_worker_and_to_one_session_of_one_tenant():
    store = EphemeralStore()
    one, other = Wishes(store), Wishes(store)
    await one.pin("t", "s", IDS)
    assert await other.pinned("t", "s") == IDS
    assert await other.pinned("t", "s2") == await other.pinned("t2", "s") == frozenset()
    await other.pin("t", "s", frozenset({"call_3"}))
    assert await one.pinned("t", "s") == {"call_3"}
    await one.pin("t", "s", frozenset())
    assert await other.pinned("t", "s") == frozenset()


async def test_pins_that_a_request_brings_are_added_once_and_last():
    store = Fickle()
    one = Wishes(store)
    await one.pin("t", "s", frozenset({"call_0"}))
    await one.add("t", "s", IDS)
    await one.add("t", "s", IDS)
    assert store.writes == 2
    assert await Wishes(store).pinned("t", "s") == IDS | {"call_0"}


async def test_pins_that_a_request_brings_while_the_store_is_away_are_kept_and_handed_in():
    store = Fickle()
    wishes = Wishes(store)
    await Wishes(store).pin("t", "s", frozenset({"call_0"}))
    store.away = True
    await wishes.add("t", "s", IDS)
    assert await wishes.pinned("t", "s") == IDS
    await wishes.look()
    store.away = False
    assert await Wishes(store).pinned("t", "s") == {"call_0"}
    await wishes.look()
    assert await Wishes(store).pinned("t", "s") == IDS | {"call_0"}


async def test_while_the_store_is_away_the_pins_known_last_hold():
    store = Fickle()
    wishes = Wishes(store)
    await wishes.pin("t", "s", IDS)
    store.away = True
    assert await wishes.pinned("t", "s") == IDS
    with pytest.raises(StoreUnavailable):
        await wishes.pin("t", "s", frozenset())
    with pytest.raises(StoreUnavailable):
        await wishes.of("t", ["s"])


async def test_no_more_pins_are_kept_than_a_session_may_have():
    store = EphemeralStore()
    wishes = Wishes(store)
    await wishes.pin("t", "s", IDS)
    await wishes.add("t", "s", frozenset(f"a{number}" for number in range(MOST_PINS)))
    kept = await Wishes(store).pinned("t", "s")
    assert len(kept) == MOST_PINS
    assert kept >= IDS


@pytest.mark.parametrize("value", [b"", b"{}", b'["a", 1]', b"\xff"])
async def test_a_value_that_cannot_be_read_is_no_pin(value: bytes):
    store = EphemeralStore()
    await store.put(Key("pins/t", "s"), value)
    assert await Wishes(store).pinned("t", "s") == frozenset()


async def test_a_wanted_fold_is_known_at_once_here_and_elsewhere_after_a_look():
    store = EphemeralStore()
    one, other = Wishes(store), Wishes(store)
    await one.force("t", "s")
    assert one.forced("t", "s")
    assert not other.forced("t", "s")
    await other.look()
    assert other.forced("t", "s")
    assert not other.forced("t", "s2")
    assert not other.forced("t2", "s")
    await other.done("t", "s")
    await one.look()
    assert not one.forced("t", "s")


async def test_more_wishes_than_one_look_lists_are_all_found():
    store = EphemeralStore()
    one, other = Wishes(store), Wishes(store)
    for number in range(1_005):
        await one.force("t", f"s-{number}")
    await other.look()
    assert all(other.forced("t", f"s-{number}") for number in range(1_005))


async def test_a_look_that_began_before_a_wish_was_fulfilled_does_not_bring_it_back():
    store = Fickle()
    wishes = Wishes(store)
    await wishes.force("t", "s")
    store.gate = asyncio.Event()
    looking = asyncio.ensure_future(wishes.look())
    await asyncio.sleep(0)
    await wishes.done("t", "s")
    store.gate.set()
    await looking
    assert not wishes.forced("t", "s")


async def test_a_store_that_is_away_leaves_what_is_wanted_as_it_was():
    store = Fickle()
    wishes = Wishes(store)
    await wishes.force("t", "s")
    store.away = True
    await wishes.look()
    assert wishes.forced("t", "s")
    with pytest.raises(StoreUnavailable):
        await wishes.force("t", "s2")
    assert not wishes.forced("t", "s2")
    await wishes.done("t", "s")
    assert not wishes.forced("t", "s")


async def test_what_is_asked_of_many_sessions_is_told_in_their_order():
    wishes = Wishes(EphemeralStore())
    await wishes.pin("t", "b", IDS)
    await wishes.force("t", "c")
    assert await wishes.of("t", ["a", "b", "c"]) == [Wish(), Wish(IDS), Wish(forced=True)]
    assert await wishes.of("t", []) == []
