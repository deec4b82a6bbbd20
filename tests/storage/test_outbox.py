import asyncio
from collections.abc import Callable, Sequence

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.ports import Append, Key, Put
from proxy.storage.ephemeral import EphemeralStore
from proxy.storage.outbox import GatheringOutbox
from tests.fakes import FickleStore

KEY = Key("c", "k")


class Watched(EphemeralStore):
    """A store that notes its batches, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.away = False

    async def write(self, batch: Sequence[Put | Append]) -> None:
        if self.away:
            raise StoreUnavailable("away")
        self.batches.append(len(batch))
        await super().write(batch)


async def test_writes_reach_the_store_without_being_waited_for() -> None:
    store = Watched()
    outbox = GatheringOutbox(store)
    outbox.put(KEY, lambda: b"v")
    outbox.append(Key("c", "log"), lambda: b"e")
    assert await store.get(KEY) is None
    for _ in range(100):
        await asyncio.sleep(0.02)
        if store.batches:
            break
    assert await store.get(KEY) == b"v"
    assert [value for _, value in await store.read(Key("c", "log"))] == [b"e"]
    assert store.batches == [2]


async def test_a_value_that_is_replaced_before_it_was_written_is_never_made() -> None:
    made: list[bytes] = []
    store = Watched()
    outbox = GatheringOutbox(store)

    def value(text: bytes) -> bytes:
        made.append(text)
        return text

    for text in (b"1", b"2", b"3"):
        outbox.put(KEY, lambda text=text: value(text))  # type: ignore[misc]
    await outbox.flush()
    assert made == [b"3"]
    assert await store.get(KEY) == b"3"


def onto(text: bytes) -> Callable[[bytes | None], bytes]:
    """Adds `text` to what there is."""
    return lambda held: (held or b"-") + text


async def test_a_merged_value_is_made_of_what_the_store_has_when_it_is_written() -> None:
    store = Watched()
    outbox = GatheringOutbox(store)
    outbox.merge(KEY, onto(b"1"))
    outbox.merge(Key("c", "new"), onto(b"1"))
    await store.put(KEY, b"old")
    await outbox.flush()
    assert await store.get_many([KEY, Key("c", "new")]) == [b"old1", b"-1"]
    assert store.batches == [2]


async def test_of_merged_values_the_last_one_wins_and_a_put_wins_over_them() -> None:
    store = Watched()
    outbox = GatheringOutbox(store)
    await store.put(KEY, b"old")
    outbox.merge(KEY, onto(b"1"))
    outbox.merge(KEY, onto(b"2"))
    await outbox.flush()
    assert await store.get(KEY) == b"old2"
    outbox.merge(KEY, onto(b"3"))
    outbox.put(KEY, lambda: b"put")
    await outbox.flush()
    assert await store.get(KEY) == b"put"


async def test_a_merged_value_is_made_of_what_still_waits_to_be_written() -> None:
    store = Watched()
    outbox = GatheringOutbox(store)
    await store.put(KEY, b"old")
    outbox.put(KEY, lambda: b"put")
    outbox.merge(KEY, onto(b"1"))
    outbox.merge(KEY, onto(b"2"))
    await outbox.flush()
    assert await store.get(KEY) == b"put12"


async def test_a_merged_value_waits_for_a_store_that_is_away_and_is_told_what_that_has_then() -> None:
    store = FickleStore()
    outbox = GatheringOutbox(store)
    store.away = True
    outbox.merge(KEY, onto(b"1"))
    with pytest.raises(StoreUnavailable):
        await outbox.flush()
    store.away = False
    await store.put(KEY, b"old")
    await outbox.flush()
    assert await store.get(KEY) == b"old1"


async def test_a_value_whose_write_fails_is_not_lost_to_one_that_is_to_be_merged_with_it() -> None:
    class Failing(Watched):
        async def write(self, batch: Sequence[Put | Append]) -> None:
            outbox.merge(KEY, onto(b"M"))
            raise StoreUnavailable("away")

    store = Failing()
    outbox = GatheringOutbox(store)
    outbox.put(KEY, lambda: b"P")
    with pytest.raises(StoreUnavailable):
        await outbox.flush()
    store.__class__ = Watched
    await outbox.flush()
    assert await store.get(KEY) == b"PM"


async def test_a_merged_value_that_cannot_be_made_is_dropped_alone() -> None:
    def bad(held: bytes | None) -> bytes:
        raise ValueError("no")

    dropped: list[int] = []
    store = Watched()
    outbox = GatheringOutbox(store, on_drop=dropped.append)
    outbox.merge(Key("c", "bad"), bad)
    outbox.merge(KEY, onto(b"1"))
    outbox.put(Key("c", "waits"), lambda: b"put")
    outbox.merge(Key("c", "waits"), bad)
    await outbox.flush()
    assert await store.get_many([KEY, Key("c", "bad"), Key("c", "waits")]) == [b"-1", None, b"put"]
    assert dropped == [1, 1]


async def test_a_flush_writes_everything_in_batches() -> None:
    store = Watched()
    outbox = GatheringOutbox(store)
    for number in range(1_000):
        outbox.put(Key("c", str(number)), lambda: b"v")
    await outbox.flush()
    assert sum(store.batches) == 1_000
    assert max(store.batches) < 1_000


async def test_what_could_not_be_written_is_kept_and_newer_values_win() -> None:
    store = Watched()
    outbox = GatheringOutbox(store)
    store.away = True
    outbox.put(KEY, lambda: b"old")
    outbox.append(Key("c", "log"), lambda: b"e")
    with pytest.raises(StoreUnavailable):
        await outbox.flush()
    outbox.put(KEY, lambda: b"new")
    store.away = False
    await outbox.flush()
    assert await store.get(KEY) == b"new"
    assert len(await store.read(Key("c", "log"))) == 1


async def test_while_the_store_is_away_memory_is_bounded_and_what_is_dropped_is_counted() -> None:
    dropped: list[int] = []
    store = Watched()
    store.away = True
    outbox = GatheringOutbox(store, capacity=10, on_drop=dropped.append)
    for number in range(25):
        outbox.put(Key("c", str(number)), lambda: b"v")
        outbox.append(Key("c", "log"), lambda: b"e")
    for _ in range(100):
        await asyncio.sleep(0.02)
        if dropped:
            break
    assert sum(dropped) == 30
    store.away = False
    await outbox.flush()
    assert await store.get(Key("c", "24")) == b"v"
    assert await store.get(Key("c", "0")) is None


async def test_closing_writes_what_is_left_and_counts_what_cannot_be_written() -> None:
    dropped: list[int] = []
    store = Watched()
    outbox = GatheringOutbox(store, on_drop=dropped.append)
    outbox.put(KEY, lambda: b"v")
    await outbox.close()
    assert await store.get(KEY) == b"v"
    store.away = True
    outbox.put(KEY, lambda: b"w")
    await outbox.close()
    assert dropped == [1]


async def test_a_value_that_cannot_be_made_is_dropped_alone() -> None:
    dropped: list[int] = []
    store = Watched()
    outbox = GatheringOutbox(store, on_drop=dropped.append)
    outbox.put(Key("c", "bad"), lambda: (2**70).to_bytes(4, "big"))
    outbox.append(Key("c", "log"), lambda: (2**70).to_bytes(4, "big"))
    outbox.put(KEY, lambda: b"good")
    await outbox.flush()
    assert await store.get(KEY) == b"good"
    assert dropped == [1, 1]


async def test_a_flush_does_not_wait_for_what_comes_in_meanwhile() -> None:
    class Slow(Watched):
        async def write(self, batch: Sequence[Put | Append]) -> None:
            outbox.put(Key("c", f"new {len(self.batches)}"), lambda: b"v")
            await super().write(batch)

    store = Slow()
    outbox = GatheringOutbox(store)
    outbox.put(KEY, lambda: b"v")
    await asyncio.wait_for(outbox.flush(), 5)
    assert store.batches == [1]


async def test_a_backlog_is_written_in_few_turns_of_the_loop() -> None:
    outbox = GatheringOutbox(Watched())
    for number in range(2_560):
        outbox.put(Key("c", str(number)), lambda: b"v")
    writing, turns = asyncio.ensure_future(outbox.flush()), 0
    while not writing.done():
        turns += 1
        await asyncio.sleep(0)
    # The last batch alone is no backlog, and gives way now and then.
    assert turns < 40


async def test_values_go_to_the_store_by_their_names_and_logs_as_they_came() -> None:
    class Noting(EphemeralStore):
        async def write(self, batch: Sequence[Put | Append]) -> None:
            noted.extend(write.key.name for write in batch)

    noted: list[str] = []
    outbox = GatheringOutbox(Noting())
    outbox.append(Key("c", "y"), lambda: b"e")
    outbox.append(Key("c", "x"), lambda: b"e")
    for name in ("b", "c", "a"):
        outbox.put(Key("c", name), lambda: b"v")
    await outbox.flush()
    assert noted == ["a", "b", "c", "y", "x"]


async def test_what_nobody_goes_on_by_is_written_later_with_all_of_a_second_in_the_order_of_names() -> None:
    noted: list[list[str]] = []

    class Noting(EphemeralStore):
        async def write(self, batch: Sequence[Put | Append]) -> None:
            noted.append([write.key.name for write in batch])

    outbox = GatheringOutbox(Noting())
    ledger = outbox.patient()
    assert outbox.patient() is ledger
    for number in range(600):
        ledger.put(Key("c", f"{number * 7 % 600:03}"), lambda: b"v")
    outbox.put(KEY, lambda: b"v")
    async with asyncio.timeout(20):
        while not noted:
            await asyncio.sleep(0.01)
        assert noted == [[KEY.name]]
        while len(noted) < 2:
            await asyncio.sleep(0.01)
    assert noted[1] == [f"{number:03}" for number in range(600)]


async def test_who_asks_an_outbox_to_flush_to_hurry_or_to_close_has_what_is_patient_too() -> None:
    store = EphemeralStore()
    outbox = GatheringOutbox(store)
    ledger = outbox.patient()
    ledger.put(Key("c", "1"), lambda: b"v")
    await outbox.flush()
    assert await store.get(Key("c", "1")) == b"v"
    ledger.append(Key("c", "2"), lambda: b"v")
    outbox.hurry()
    # By far not the second that it would else take.
    for _ in range(20):
        await asyncio.sleep(0)
    assert await store.read(Key("c", "2")) == [(0, b"v")]
    ledger.put(Key("c", "3"), lambda: b"v")
    await outbox.close()
    assert await store.get(Key("c", "3")) == b"v"


async def test_what_is_patient_and_cannot_be_written_at_the_end_is_counted_as_dropped() -> None:
    store, dropped = Watched(), list[int]()
    outbox = GatheringOutbox(store, on_drop=dropped.append)
    ledger = outbox.patient()
    for name in ("1", "2"):
        ledger.put(Key("c", name), lambda: b"v")
    store.away = True
    await outbox.close()
    assert sum(dropped) == 2
