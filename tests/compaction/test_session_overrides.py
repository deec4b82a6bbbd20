import asyncio

import pytest

from accordion.compaction.session_overrides import MOST_PINS, SessionOverrides, SessionOverrideStore
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import FickleStore

TENANT = TenantScope("t", b"key")
OTHER = TenantScope("t2", b"key of t2")


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
    store = InMemoryStore()
    one, other = SessionOverrideStore(store), SessionOverrideStore(store)
    await one.set_pins(TENANT, "s", IDS)
    assert await other.find_pins(TENANT, "s") == IDS
    assert await other.find_pins(TENANT, "s2") == await other.find_pins(TenantScope("t2", b"t2"), "s") == frozenset()
    await other.set_pins(TENANT, "s", frozenset({"call_3"}))
    assert await one.find_pins(TENANT, "s") == {"call_3"}
    await one.set_pins(TENANT, "s", frozenset())
    assert await other.find_pins(TENANT, "s") == frozenset()


async def test_a_mode_is_known_to_every_worker_after_its_next_poll_until_it_is_taken_back():
    store = InMemoryStore()
    one, other = SessionOverrideStore(store), SessionOverrideStore(store)
    await one.set_mode(TENANT, "s", "off")
    await one.demand_compaction(TENANT, "s")
    assert (one.find_mode(TENANT, "s"), other.find_mode(TENANT, "s")) == ("off", "auto")
    await other.poll()
    assert (other.find_mode(TENANT, "s"), other.is_compaction_demanded(TENANT, "s")) == ("off", True)
    assert other.find_mode(TENANT, "s2") == other.find_mode(OTHER, "s") == "auto"
    assert await other.load(TENANT, ["s"]) == [SessionOverrides(wants_compaction=True, mode="off")]
    await other.set_mode(TENANT, "s", "auto")
    await one.poll()
    assert one.find_mode(TENANT, "s") == "auto"
    assert not one.is_compaction_demanded(TENANT, "s|mode")


async def test_pins_that_a_request_brings_are_added_once_and_last():
    store = Fickle()
    one = SessionOverrideStore(store)
    await one.set_pins(TENANT, "s", frozenset({"call_0"}))
    await one.add_pins(TENANT, "s", IDS)
    await one.add_pins(TENANT, "s", IDS)
    assert store.writes == 2
    assert await SessionOverrideStore(store).find_pins(TENANT, "s") == IDS | {"call_0"}


async def test_pins_that_a_request_brings_while_the_store_is_away_are_kept_and_handed_in():
    store = Fickle()
    overrides = SessionOverrideStore(store)
    await SessionOverrideStore(store).set_pins(TENANT, "s", frozenset({"call_0"}))
    store.away = True
    await overrides.add_pins(TENANT, "s", IDS)
    assert await overrides.find_pins(TENANT, "s") == IDS
    await overrides.poll()
    store.away = False
    assert await SessionOverrideStore(store).find_pins(TENANT, "s") == {"call_0"}
    await overrides.poll()
    assert await SessionOverrideStore(store).find_pins(TENANT, "s") == IDS | {"call_0"}


async def test_while_the_store_is_away_the_pins_known_last_hold():
    store = Fickle()
    overrides = SessionOverrideStore(store)
    await overrides.set_pins(TENANT, "s", IDS)
    store.away = True
    assert await overrides.find_pins(TENANT, "s") == IDS
    with pytest.raises(StoreUnavailable):
        await overrides.set_pins(TENANT, "s", frozenset())
    with pytest.raises(StoreUnavailable):
        await overrides.load(TENANT, ["s"])


async def test_no_more_pins_are_kept_than_a_session_may_have():
    store = InMemoryStore()
    overrides = SessionOverrideStore(store)
    await overrides.set_pins(TENANT, "s", IDS)
    await overrides.add_pins(TENANT, "s", frozenset(f"a{number}" for number in range(MOST_PINS)))
    kept = await SessionOverrideStore(store).find_pins(TENANT, "s")
    assert len(kept) == MOST_PINS
    assert kept >= IDS


@pytest.mark.parametrize("value", [b"", b"{}", b'["a", 1]', b"\xff"])
async def test_a_value_that_cannot_be_read_is_no_pin(value: bytes):
    store = InMemoryStore()
    await store.put(Key("pins/t", "s"), value)
    assert await SessionOverrideStore(store).find_pins(TENANT, "s") == frozenset()


async def test_a_wanted_compaction_is_known_at_once_here_and_elsewhere_after_a_look():
    store = InMemoryStore()
    one, other = SessionOverrideStore(store), SessionOverrideStore(store)
    await one.demand_compaction(TENANT, "s")
    assert one.is_compaction_demanded(TENANT, "s")
    assert not other.is_compaction_demanded(TENANT, "s")
    await other.poll()
    assert other.is_compaction_demanded(TENANT, "s")
    assert not other.is_compaction_demanded(TENANT, "s2")
    assert not other.is_compaction_demanded(OTHER, "s")
    await other.clear_demand(TENANT, "s")
    await one.poll()
    assert not one.is_compaction_demanded(TENANT, "s")


async def test_more_overrides_than_one_page_are_all_found():
    store = InMemoryStore()
    one, other = SessionOverrideStore(store), SessionOverrideStore(store)
    for number in range(1_005):
        await one.demand_compaction(TENANT, f"s-{number}")
    await other.poll()
    assert all(other.is_compaction_demanded(TENANT, f"s-{number}") for number in range(1_005))


async def test_a_slow_read_does_not_restore_an_override_that_was_done():
    store = Fickle()
    overrides = SessionOverrideStore(store)
    await overrides.demand_compaction(TENANT, "s")
    store.gate = asyncio.Event()
    looking = asyncio.ensure_future(overrides.poll())
    await asyncio.sleep(0)
    await overrides.clear_demand(TENANT, "s")
    store.gate.set()
    await looking
    assert not overrides.is_compaction_demanded(TENANT, "s")


async def test_a_store_that_is_away_leaves_what_is_wanted_as_it_was():
    store = Fickle()
    overrides = SessionOverrideStore(store)
    await overrides.demand_compaction(TENANT, "s")
    store.away = True
    await overrides.poll()
    assert overrides.is_compaction_demanded(TENANT, "s")
    with pytest.raises(StoreUnavailable):
        await overrides.demand_compaction(TENANT, "s2")
    assert not overrides.is_compaction_demanded(TENANT, "s2")
    await overrides.clear_demand(TENANT, "s")
    assert not overrides.is_compaction_demanded(TENANT, "s")


async def test_what_is_asked_of_many_sessions_is_told_in_their_order():
    overrides = SessionOverrideStore(InMemoryStore())
    await overrides.set_pins(TENANT, "b", IDS)
    await overrides.demand_compaction(TENANT, "c")
    assert await overrides.load(TENANT, ["a", "b", "c"]) == [
        SessionOverrides(),
        SessionOverrides(IDS),
        SessionOverrides(wants_compaction=True),
    ]
    assert await overrides.load(TENANT, []) == []
