import pytest

from accordion.model.ports import Key
from accordion.stores.memory_store import OVERHEAD, InMemoryStore


async def test_the_oldest_records_expire_at_the_bound():
    store = InMemoryStore(max_bytes=10 * (OVERHEAD + 1_000))
    for number in range(9):
        await store.put(Key("c", f"{number}"), bytes(990))
    await store.put(Key("c", "0"), bytes(990))
    await store.append(Key("c", "log"), [bytes(700)])
    await store.put(Key("c", "new"), bytes(990))
    assert await store.get(Key("c", "1")) is None
    assert await store.get(Key("c", "0")) is not None
    assert store.size <= 10 * (OVERHEAD + 1_000)


async def test_the_store_stays_within_its_bound_and_returns_all_it_holds():
    store = InMemoryStore(max_bytes=50_000)
    for number in range(2_000):
        await store.put(Key(f"c{number % 7}", f"{number % 301}"), bytes(number % 900))
        await store.append(Key("logs", f"{number % 11}"), [bytes(number % 500)] * 3, keep=number % 9)
        assert store.size <= 50_000
    keys = [Key(f"c{c}", f"{n}") for c in range(7) for n in range(301)] + [Key("logs", f"{n}") for n in range(11)]
    await store.delete(keys)
    assert store.size == 0
    assert [await store.scan(f"c{c}") for c in range(7)] == [[]] * 7


async def test_a_log_that_is_all_there_is_loses_its_oldest_entries():
    store = InMemoryStore(max_bytes=5_000)
    assert await store.append(Key("c", "log"), [b"%d" % number for number in range(100)]) == 99
    entries = await store.read(Key("c", "log"))
    assert entries[-1] == (99, b"99")
    assert 10 < len(entries) < 100
    assert await store.append(Key("c", "log"), [b"100"]) == 100


async def test_a_value_larger_than_the_bound_is_not_kept():
    store = InMemoryStore(max_bytes=1_000)
    await store.put(Key("c", "n"), bytes(2_000))
    assert await store.get(Key("c", "n")) is None
    assert await store.put_if_absent(Key("c", "n"), bytes(3_000)) == bytes(3_000)
    assert store.size == 0


@pytest.mark.parametrize(("later", "value"), [(9.9, b"1"), (10.0, None)])
async def test_a_value_lives_as_long_as_it_was_said(later: float, value: bytes | None):
    time = 5.0
    store = InMemoryStore(now=lambda: time)
    await store.put(Key("c", "n"), b"1", ttl=10.0)
    time += later
    assert await store.get(Key("c", "n")) == value
