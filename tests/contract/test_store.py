"""What every store does, whatever is behind it. Each test runs against all of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, KeyValueStore, Put
from accordion.stores.guarded import GuardedStore
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.open import open_store
from tests.tiers import examples
from tests.valkey import Valkey, ValkeyCluster, valkey_cluster, valkey_server  # noqa: F401

KINDS = ["sqlite", "valkey", "cluster", "memory", "guarded"]
LONG = 3_600.0
SHORT = 0.02
GONE = 0.05
"""Seconds after which what lives SHORT is gone."""

ODD_NAMES = ["a b", "ключ", "鍵", "\U0001f511", "a:b", "{x}", "}{", "%7D", "a\x00b", "=", "#index", "\ud800", "a/b"]

Opener = Callable[[], KeyValueStore]


@pytest.fixture(params=KINDS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same store again and again; empty at first."""
    kind = request.param
    if kind in ("valkey", "cluster"):
        server: Valkey | ValkeyCluster = request.getfixturevalue(f"valkey_{'server' if kind == 'valkey' else kind}")
        server.command("FLUSHALL")
        url = server.url
    else:
        url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'deep' / 'store.db'}"
    if kind != "guarded":
        return lambda: open_store(url, timeout=20.0)
    ticks = itertools.count()
    return lambda: GuardedStore(
        open_store(url, timeout=20.0), timeout=20.0, write_timeout=20.0, monotonic=lambda: float(next(ticks))
    )


@pytest.fixture
async def store(opener: Opener) -> AsyncIterator[KeyValueStore]:
    opened = opener()
    yield opened
    await opened.close()


# -- values ----------------------------------------------------------------------------------------------------------


async def test_a_value_is_read_as_it_was_put(store: KeyValueStore):
    await store.put(Key("c", "n"), b"one")
    assert await store.get(Key("c", "n")) == b"one"


async def test_a_value_that_was_never_put_is_none(store: KeyValueStore):
    assert await store.get(Key("c", "n")) is None
    assert await store.get(Key("", "n")) is None


async def test_a_later_value_replaces_an_earlier_one(store: KeyValueStore):
    for value in (b"one", b"two", b""):
        await store.put(Key("c", "n"), value)
        await store.put(Key("", "n"), value)
    assert await store.get_many([Key("c", "n"), Key("", "n")]) == [b"", b""]


async def test_every_byte_comes_back(store: KeyValueStore):
    value = bytes(range(256)) * 3 + b"\r\n$-1\r\n\x00"
    await store.put(Key("c", "n"), value)
    await store.append(Key("c", "n"), [value, b"", value])
    assert await store.get(Key("c", "n")) == value
    assert await store.read(Key("c", "n")) == [(0, value), (1, b""), (2, value)]


async def test_ten_megabytes_come_back(store: KeyValueStore):
    value = bytes(range(251)) * 41_778
    await store.put(Key("c", "big"), value)
    assert await store.put_if_absent(Key("c", "big"), b"small") == value
    assert await store.append(Key("c", "big"), [value]) == 0
    assert (await store.read(Key("c", "big")))[0][1] == value
    assert await store.scan("c") == [("big", value)]


async def test_odd_names_are_names_like_any_other(store: KeyValueStore):
    keys = [Key(collection, name) for collection in ["", *ODD_NAMES] for name in ODD_NAMES]
    for number, key in enumerate(keys):
        await store.put(key, b"%d" % number)
        await store.append(key, [b"log %d" % number])
    assert await store.get_many(keys) == [b"%d" % number for number in range(len(keys))]
    for number, key in enumerate(keys):
        assert await store.read(key) == [(0, b"log %d" % number)]
    for collection in ODD_NAMES:
        assert [name for name, _ in await store.scan(collection)] == sorted(ODD_NAMES)


async def test_many_values_come_in_the_order_of_the_keys(store: KeyValueStore):
    await store.put(Key("c", "a"), b"1")
    await store.put(Key("d", "b"), b"2")
    await store.put(Key("", "a"), b"3")
    keys = [Key("", "a"), Key("c", "x"), Key("d", "b"), Key("c", "a"), Key("d", "b")]
    assert await store.get_many(keys) == [b"3", None, b"2", b"1", b"2"]
    assert await store.get_many([]) == []


async def test_a_value_and_a_log_under_the_same_key_do_not_know_each_other(store: KeyValueStore):
    await store.put(Key("c", "n"), b"value")
    await store.append(Key("c", "n"), [b"entry"])
    assert await store.get(Key("c", "n")) == b"value"
    assert await store.read(Key("c", "n")) == [(0, b"entry")]


async def test_delete_removes_values_and_logs_and_counts_the_keys_that_held_something(store: KeyValueStore):
    await store.put(Key("c", "value"), b"1")
    await store.append(Key("c", "log"), [b"1"])
    await store.put(Key("", "both"), b"1")
    await store.append(Key("", "both"), [b"1"])
    keys = [Key("c", "value"), Key("c", "log"), Key("", "both"), Key("c", "nothing"), Key("c", "value")]
    assert await store.delete(keys) == 3
    assert await store.get_many(keys) == [None] * 5
    assert [await store.read(key) for key in keys] == [[]] * 5
    assert await store.scan("c") == []
    assert await store.delete(keys) == 0
    assert await store.delete([]) == 0


# -- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collection", ["", "c"])
async def test_an_expired_value_is_gone(store: KeyValueStore, collection: str):
    await store.put(Key(collection, "short"), b"1", ttl=SHORT)
    await store.put(Key(collection, "long"), b"2", ttl=LONG)
    await store.put(Key(collection, "ever"), b"3")
    await asyncio.sleep(GONE)
    keys = [Key(collection, name) for name in ("short", "long", "ever")]
    assert await store.get_many(keys) == [None, b"2", b"3"]
    assert await store.get(keys[0]) is None
    assert await store.delete(keys) == 2


async def test_an_expired_value_is_not_listed(store: KeyValueStore):
    for name in "abcdef":
        await store.put(Key("c", name), name.encode(), ttl=SHORT if name in "acdf" else LONG)
    await asyncio.sleep(GONE)
    assert await store.scan("c", limit=1) == [("b", b"b")]
    assert await store.scan("c", limit=2) == [("b", b"b"), ("e", b"e")]
    assert await store.scan("c") == [("b", b"b"), ("e", b"e")]


async def test_putting_again_sets_the_time_anew(store: KeyValueStore):
    await store.put(Key("c", "n"), b"1", ttl=SHORT)
    await store.put(Key("c", "n"), b"2")
    await store.put(Key("c", "m"), b"1")
    await store.put(Key("c", "m"), b"2", ttl=SHORT)
    await store.put(Key("c", "o"), b"1", ttl=SHORT)
    await store.put(Key("c", "o"), b"2", ttl=LONG)
    await asyncio.sleep(GONE)
    assert await store.scan("c") == [("n", b"2"), ("o", b"2")]


async def test_a_collection_whose_values_all_expired_can_be_filled_again(store: KeyValueStore):
    await store.put(Key("c", "n"), b"1", ttl=SHORT)
    await asyncio.sleep(GONE)
    assert await store.scan("c") == []
    await store.put(Key("c", "m"), b"2")
    await store.put(Key("c", "n"), b"3", ttl=LONG)
    assert await store.scan("c") == [("m", b"2"), ("n", b"3")]


async def test_an_expired_log_is_gone_and_a_new_one_starts_at_0(store: KeyValueStore):
    assert await store.append(Key("c", "log"), [b"1", b"2"], ttl=SHORT) == 1
    await asyncio.sleep(GONE)
    assert await store.read(Key("c", "log")) == []
    assert await store.append(Key("c", "log"), []) == -1
    assert await store.append(Key("c", "log"), [b"3"]) == 0
    assert await store.read(Key("c", "log")) == [(0, b"3")]


async def test_appending_sets_the_time_of_the_whole_log_anew(store: KeyValueStore):
    log, ever = Key("c", "log"), Key("c", "ever")
    terms = [(log, b"1", 0.5), (ever, b"1", 0.5), (log, b"2", LONG), (ever, b"2", None)]
    await store.write([Append(key, value, ttl=ttl) for key, value, ttl in terms])
    await asyncio.sleep(0.6)
    assert await store.read(Key("c", "log")) == [(0, b"1"), (1, b"2")]
    assert await store.read(Key("c", "ever")) == [(0, b"1"), (1, b"2")]


# -- first writer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collection", ["", "c"])
async def test_the_first_writer_wins(store: KeyValueStore, collection: str):
    key = Key(collection, "n")
    assert await store.put_if_absent(key, b"first") == b"first"
    assert await store.put_if_absent(key, b"second") == b"first"
    assert await store.get(key) == b"first"
    await store.delete([key])
    assert await store.put_if_absent(key, b"third", ttl=SHORT) == b"third"
    await asyncio.sleep(GONE)
    assert await store.put_if_absent(key, b"fourth", ttl=LONG) == b"fourth"
    assert await store.scan("c") == ([("n", b"fourth")] if collection else [])


@pytest.mark.parametrize("collection", ["", "c"])
async def test_one_of_many_concurrent_writers_wins_and_all_learn_which(
    store: KeyValueStore, opener: Opener, collection: str
):
    other = opener()
    stores = [store] if isinstance(other, InMemoryStore) else [store, other]
    key = Key(collection, "race")
    results = await asyncio.gather(
        *(stores[number % len(stores)].put_if_absent(key, b"%d" % number) for number in range(50))
    )
    assert len(set(results)) == 1
    assert await store.get(key) == results[0]
    await other.close()


@pytest.mark.parametrize("collection", ["", "c"])
async def test_in_a_batch_a_put_may_give_way_to_what_its_key_holds(store: KeyValueStore, collection: str):
    held, expired, new, log = (Key(collection, name) for name in ("held", "expired", "new", "log"))
    await store.put(held, b"old", ttl=LONG)
    await store.put(expired, b"gone", ttl=SHORT)
    await store.append(new, [b"a log is no value"])
    await asyncio.sleep(GONE)
    batch = [Put(key, b"mine", if_absent=True) for key in (held, expired, new)]
    assert await store.write([Put(Key("d", "n"), b"v"), *batch, Append(log, b"e")]) == {held: b"old"}
    assert await store.get_many([held, expired, new, Key("d", "n")]) == [b"old", b"mine", b"mine", b"v"]
    assert await store.read(log) == [(0, b"e")]
    assert await store.write(batch) == {held: b"old", expired: b"mine", new: b"mine"}
    assert [name for name, _ in await store.scan("c")] == (["expired", "held", "new"] if collection else [])
    assert await store.write([Put(held, b"v")]) == await store.write([]) == {}


@pytest.mark.parametrize("collection", ["", "c"])
async def test_a_put_that_does_not_give_way_lives_as_long_as_it_says(store: KeyValueStore, collection: str):
    short, long, ever = (Key(collection, name) for name in ("short", "long", "ever"))
    terms = [(short, SHORT), (long, LONG), (ever, None)]
    assert not await store.write([Put(key, b"1", ttl, if_absent=True) for key, ttl in terms])
    await asyncio.sleep(GONE)
    held = await store.write([Put(key, b"2", SHORT, if_absent=True) for key, _ in terms])
    assert held == {long: b"1", ever: b"1"}
    await asyncio.sleep(GONE)
    assert await store.get_many([short, long, ever]) == [None, b"1", b"1"]


@pytest.mark.parametrize("collection", ["", "c"])
async def test_the_first_conditional_put_wins_and_an_unconditional_one_replaces_it(
    store: KeyValueStore, collection: str
):
    first, put, after = (Key(collection, name) for name in ("first", "put", "after"))
    batch = [Put(first, b"1", if_absent=True), Put(put, b"1", if_absent=True), Put(after, b"1")]
    batch += [Put(first, b"2", if_absent=True), Put(put, b"2"), Put(after, b"2", if_absent=True)]
    assert await store.write(batch) == {}
    assert await store.get_many([first, put, after]) == [b"1", b"2", b"1"]


@pytest.mark.parametrize("collection", ["", "c"])
async def test_of_many_puts_each_gives_way_by_itself(store: KeyValueStore, collection: str):
    keys = [Key(collection, f"{number:03}") for number in range(600)]
    await store.write([Put(key, b"old %d" % number) for number, key in enumerate(keys) if number % 3 == 0])
    batch = [Put(key, b"new %d" % number, if_absent=number % 2 == 0) for number, key in enumerate(keys)]
    held = await store.write(batch)
    assert held == {key: b"old %d" % number for number, key in enumerate(keys) if number % 6 == 0}
    kept = [b"%s %d" % (b"old" if number % 6 == 0 else b"new", number) for number in range(600)]
    assert await store.get_many(keys) == kept


# -- logs ------------------------------------------------------------------------------------------------------------


async def test_positions_start_at_0_and_count_up(store: KeyValueStore):
    assert await store.append(Key("c", "log"), [b"a"]) == 0
    assert await store.append(Key("c", "log"), [b"b", b"c"]) == 2
    assert await store.read(Key("c", "log")) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_only_the_newest_stay_and_positions_go_on(store: KeyValueStore):
    key = Key("", "log")
    assert await store.append(key, [b"%d" % number for number in range(10)], keep=3) == 9
    assert await store.read(key) == [(7, b"7"), (8, b"8"), (9, b"9")]
    assert await store.append(key, [b"10"], keep=1) == 10
    assert await store.read(key) == [(10, b"10")]
    assert await store.append(key, [b"11"], keep=0) == 11
    assert await store.read(key) == []
    assert await store.append(key, [b"12"]) == 12
    assert await store.read(key) == [(12, b"12")]


async def test_a_log_is_read_from_a_position_on(store: KeyValueStore):
    key = Key("c", "log")
    await store.append(key, [b"%d" % number for number in range(10)], keep=6)
    assert await store.read(key, 8) == [(8, b"8"), (9, b"9")]
    assert await store.read(key, 2, 2) == [(4, b"4"), (5, b"5")]
    assert await store.read(key, 10) == []
    assert await store.read(key, 7, 1) == [(7, b"7")]
    assert await store.read(key, 7, 0) == []


async def test_a_negative_start_counts_from_the_end(store: KeyValueStore):
    key = Key("c", "log")
    await store.append(key, [b"%d" % number for number in range(10)], keep=6)
    assert await store.read(key, -2) == [(8, b"8"), (9, b"9")]
    assert await store.read(key, -3, 2) == [(7, b"7"), (8, b"8")]
    assert [position for position, _ in await store.read(key, -100)] == [4, 5, 6, 7, 8, 9]
    assert await store.read(Key("c", "none"), -1) == []


async def test_appending_nothing_changes_nothing(store: KeyValueStore):
    key = Key("c", "log")
    assert await store.append(key, []) == -1
    await store.append(key, [b"a", b"b"])
    assert await store.append(key, [], keep=1, ttl=SHORT) == 1
    await asyncio.sleep(GONE)
    assert await store.read(key) == [(0, b"a"), (1, b"b")]


async def test_many_appenders_at_once_never_share_a_position(store: KeyValueStore):
    key = Key("c", "log")
    positions = await asyncio.gather(*(store.append(key, [b"%d" % number], keep=1000) for number in range(60)))
    assert sorted(positions) == list(range(60))
    by_position = dict(await store.read(key))
    assert all(by_position[position] == b"%d" % number for number, position in enumerate(positions))


# -- collections -----------------------------------------------------------------------------------------------------


async def test_a_collection_is_listed_in_the_order_of_names_page_by_page(store: KeyValueStore):
    names = ["b", "a", "aa", "ä", "Z", "\uffee", "\U0001f511", "a\x00", *(f"n{number:03}" for number in range(50))]
    await store.write([Put(Key("c", name), name.encode()) for name in names])
    await store.put(Key("d", "elsewhere"), b"")
    pages: list[list[tuple[str, bytes]]] = []
    while page := await store.scan("c", after=pages[-1][-1][0] if pages else "", limit=7):
        pages.append(page)
    assert [name for page in pages for name, _ in page] == sorted(names)
    assert all(value == name.encode() for page in pages for name, value in page)
    assert {len(page) for page in pages[:-1]} == {7}


async def test_a_prefix_narrows_a_listing(store: KeyValueStore):
    for name in ["a", "ab", "ab\U0010ffff", "abc", "ac", "b"]:
        await store.put(Key("c", name), b"")
    assert [name for name, _ in await store.scan("c", prefix="ab")] == ["ab", "abc", "ab\U0010ffff"]
    assert [name for name, _ in await store.scan("c", prefix="ab", after="ab")] == ["abc", "ab\U0010ffff"]
    assert [name for name, _ in await store.scan("c", prefix="ab", after="a", limit=1)] == ["ab"]
    assert await store.scan("c", prefix="ab", after="ac") == []
    assert await store.scan("c", prefix="x") == []
    assert await store.scan("c", limit=0) == []


async def test_keys_without_a_collection_and_logs_are_not_listed(store: KeyValueStore):
    await store.put(Key("", "alone"), b"1")
    await store.put_if_absent(Key("", "first"), b"1")
    await store.append(Key("c", "log"), [b"1"])
    assert await store.scan("") == []
    assert await store.scan("c") == []


# -- batches ---------------------------------------------------------------------------------------------------------


async def test_a_batch_writes_everything(store: KeyValueStore):
    batch: list[Put | Append] = []
    for number in range(250):
        batch.append(Put(Key("c" if number % 2 else "d", f"{number:04}"), b"%d" % number, ttl=LONG))
        batch.append(Append(Key("c", f"log{number % 3}"), b"%d" % number, keep=5))
        batch.append(Put(Key("", f"{number}"), b"alone %d" % number))
    await store.write(batch)
    assert len(await store.scan("c")) == len(await store.scan("d")) == 125
    assert await store.get(Key("", "249")) == b"alone 249"
    assert await store.read(Key("c", "log0")) == [
        (79, b"237"),
        (80, b"240"),
        (81, b"243"),
        (82, b"246"),
        (83, b"249"),
    ]
    await store.write([])


async def test_in_a_batch_the_last_write_of_a_key_counts_and_entries_keep_their_order(store: KeyValueStore):
    key = Key("c", "n")
    await store.write(
        [
            Put(key, b"1"),
            Append(key, b"a"),
            Append(key, b"b", keep=1),
            Put(key, b"2", ttl=LONG),
            Append(key, b"c", keep=10),
            Append(key, b"d", keep=10),
        ]
    )
    assert await store.get(key) == b"2"
    assert await store.read(key) == [(1, b"b"), (2, b"c"), (3, b"d")]


# -- locks -----------------------------------------------------------------------------------------------------------


async def test_one_holds_a_lock_and_others_do_not(store: KeyValueStore):
    async with store.lock(Key("c", "n"), lease=LONG) as first:
        async with store.lock(Key("c", "n"), lease=LONG) as second, store.lock(Key("c", "m"), lease=LONG) as other:
            assert (first, second, other) == (True, False, True)
        async with store.lock(Key("c", "n"), lease=LONG) as third:
            assert not third, "one that was refused has let go of the holder's lock"
    async with store.lock(Key("c", "n"), lease=LONG) as after:
        assert after


async def test_a_lock_is_let_go_when_its_body_fails(store: KeyValueStore):
    with contextlib.suppress(KeyError):
        async with store.lock(Key("", "n"), lease=LONG):
            raise KeyError
    async with store.lock(Key("", "n"), lease=LONG) as held:
        assert held


async def test_a_lease_ends_and_the_late_holder_does_not_let_go_of_the_next_ones_lock(store: KeyValueStore):
    key = Key("c", "n")
    async with contextlib.AsyncExitStack() as late:
        assert await late.enter_async_context(store.lock(key, lease=SHORT))
        await asyncio.sleep(GONE)
        async with store.lock(key, lease=LONG) as taken:
            assert taken
            await late.aclose()
            async with store.lock(key, lease=LONG) as third:
                assert not third


async def test_a_lock_is_not_a_value(store: KeyValueStore):
    async with store.lock(Key("c", "n"), lease=LONG):
        assert await store.get(Key("c", "n")) is None
        assert await store.delete([Key("c", "n")]) == 0
        assert await store.scan("c") == []
        async with store.lock(Key("c", "n"), lease=LONG) as second:
            assert not second


# -- coming and going ------------------------------------------------------------------------------------------------


async def test_a_store_that_answers_is_available(store: KeyValueStore):
    await store.ping()
    await store.put(Key("c", "n"), b"1")
    assert store.is_available


async def test_a_closed_store_is_unavailable_and_may_be_closed_again(store: KeyValueStore):
    await store.put(Key("c", "n"), b"1")
    await store.close()
    await store.close()
    calls: list[Callable[[], Awaitable[object]]] = [
        store.ping,
        lambda: store.get(Key("c", "n")),
        lambda: store.get_many([Key("c", "n")]),
        lambda: store.put(Key("c", "n"), b"2"),
        lambda: store.put_if_absent(Key("c", "n"), b"2"),
        lambda: store.append(Key("c", "n"), [b"2"]),
        lambda: store.read(Key("c", "n")),
        lambda: store.scan("c"),
        lambda: store.delete([Key("c", "n")]),
        lambda: store.write([Put(Key("c", "n"), b"2")]),
        lambda: store.lock(Key("c", "n"), lease=1.0).__aenter__(),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call()
    assert not store.is_available


async def test_cancelled_calls_leave_whole_writes_and_a_store_that_goes_on(store: KeyValueStore):
    key = Key("c", "log")
    tasks = [asyncio.create_task(store.append(key, [b"x", b"y"])) for _ in range(40)]
    tasks += [asyncio.create_task(store.put(Key("c", f"{number}"), b"v")) for number in range(40)]
    for number, task in enumerate(tasks):
        if number % 2:
            await asyncio.sleep(0)
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    entries = await store.read(key)
    assert [position for position, _ in entries] == list(range(len(entries)))
    assert [value for _, value in entries] == [b"x", b"y"] * (len(entries) // 2)
    done = sum(task.done() and not task.cancelled() for task in tasks[:40])
    assert len(entries) >= 2 * done
    for name, value in await store.scan("c"):
        assert (await store.get(Key("c", name))) == value == b"v"


# -- histories -------------------------------------------------------------------------------------------------------


class Model:
    """What a store is meant to hold, in the plainest form."""

    def __init__(self) -> None:
        self.values: dict[Key, bytes] = {}
        self.logs: dict[Key, tuple[int, list[tuple[int, bytes]]]] = {}

    def put(self, key: Key, value: bytes) -> None:
        self.values[key] = value

    def put_if_absent(self, key: Key, value: bytes) -> bytes:
        return self.values.setdefault(key, value)

    def delete(self, keys: list[Key]) -> int:
        held = 0
        for key in keys:
            value, log = self.values.pop(key, None), self.logs.pop(key, None)
            held += value is not None or log is not None
        return held

    def append(self, key: Key, values: list[bytes], keep: int | None) -> int:
        if not values:
            return self.logs.get(key, (0, []))[0] - 1
        next_, entries = self.logs.get(key, (0, []))
        entries = entries + list(enumerate(values, next_))
        if keep is not None:
            entries = entries[max(0, len(entries) - keep) :]
        self.logs[key] = (next_ + len(values), entries)
        return next_ + len(values) - 1

    def read(self, key: Key, start: int, limit: int | None) -> list[tuple[int, bytes]]:
        next_, entries = self.logs.get(key, (0, []))
        first = next_ + start if start < 0 else start
        return [entry for entry in entries if entry[0] >= first][:limit]

    def scan(self, collection: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        held = sorted((key.name, value) for key, value in self.values.items() if key.collection == collection)
        return [row for row in held if row[0].startswith(prefix) and row[0] > after][:limit] if collection else []

    def write(self, batch: list[Put | Append]) -> dict[Key, bytes]:
        before = dict(self.values)
        firm = {write.key for write in batch if isinstance(write, Put) and not write.if_absent}
        yielding = {write.key for write in batch if isinstance(write, Put)} - firm
        for write in batch:
            if isinstance(write, Append):
                self.append(write.key, [write.value], write.keep)
            elif write.if_absent:
                if write.key not in firm:
                    self.put_if_absent(write.key, write.value)
            else:
                self.put(write.key, write.value)
        return {key: before[key] for key in yielding & before.keys()}


names = st.sampled_from(["a", "ab", "b", "ä", "{", "x:y"])
keys = st.builds(Key, st.sampled_from(["", "c", "c}:a"]), names)
values = st.binary(max_size=12)
keeps = st.none() | st.integers(0, 4)
operations = st.one_of(
    st.tuples(st.just("put"), keys, values),
    st.tuples(st.just("put_if_absent"), keys, values),
    st.tuples(st.just("delete"), st.lists(keys, max_size=4)),
    st.tuples(st.just("append"), keys, st.lists(values, max_size=4), keeps),
    st.tuples(st.just("read"), keys, st.integers(-5, 8), st.none() | st.integers(0, 5)),
    st.tuples(
        st.just("scan"),
        st.sampled_from(["", "c", "c}:a"]),
        st.sampled_from(["", "a", "b"]),
        st.just("") | names,
        st.integers(0, 4),
    ),
    st.tuples(
        st.just("write"),
        st.lists(
            st.builds(Put, keys, values, if_absent=st.booleans()) | st.builds(Append, keys, values, keep=keeps),
            max_size=8,
        ),
    ),
)


async def apply(store: KeyValueStore, name: str, *args: object) -> object:
    """One operation in the words of the port."""
    if name == "append":
        return await store.append(args[0], args[1], keep=args[2])
    if name == "scan":
        return await store.scan(args[0], prefix=args[1], after=args[2], limit=args[3])
    return await getattr(store, name)(*args)


@given(history=st.lists(operations, max_size=25))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_ends_as_in_the_plainest_model(opener: Opener, history: list[tuple]):
    async def play() -> None:
        store, model = opener(), Model()
        everything = [Key(c, n) for c in ("", "c", "c}:a") for n in ("a", "ab", "b", "ä", "{", "x:y")]
        await store.delete(everything)
        for name, *args in history:
            assert await apply(store, name, *args) == getattr(model, name)(*args), (name, args)
        assert await store.get_many(everything) == [model.values.get(key) for key in everything]
        assert [await store.read(key) for key in everything] == [model.read(key, 0, None) for key in everything]
        assert store.is_available
        await store.close()

    asyncio.run(play())
