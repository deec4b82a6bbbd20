import asyncio
from collections.abc import Callable, Sequence

import pytest

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.write_queue import WriteQueue

KEY = Key("c", "k")


def do_nothing() -> None:
    """Who does not care whether a key held something."""


class Watched(InMemoryStore):
    """A store that notes its batches, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.asked = 0
        self.away = False

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        self.asked += 1
        return await super().get_many(keys)

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        if self.away:
            raise StoreUnavailable("away")
        self.batches.append(len(batch))
        return await super().write(batch)


class Stalled(InMemoryStore):
    """A store whose writes wait until they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        self.begun.set()
        await self.may_go_on.wait()
        return await super().write(batch)


async def test_writes_reach_the_store_without_being_waited_for() -> None:
    store = Watched()
    outbox = WriteQueue(store.write)
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
    outbox = WriteQueue(store.write)

    def value(text: bytes) -> bytes:
        made.append(text)
        return text

    for text in (b"1", b"2", b"3"):
        outbox.put(KEY, lambda text=text: value(text))  # type: ignore[misc]
    await outbox.flush()
    assert made == [b"3"]
    assert await store.get(KEY) == b"3"


async def test_while_a_write_takes_long_no_other_attempts_queue_up_behind_it() -> None:
    store = Stalled()
    outbox = WriteQueue(store.write)
    outbox.put(Key("c", "0"), bytes)
    await store.begun.wait()
    before = len(asyncio.all_tasks())
    for number in range(1, 6):
        outbox.put(Key("c", str(number)), bytes)
        await asyncio.sleep(0.06)
    assert len(asyncio.all_tasks()) == before
    store.may_go_on.set()
    await outbox.flush()
    assert len(await store.scan("c")) == 6


def append_text(text: bytes) -> Callable[[bytes | None], bytes]:
    """Adds `text` to what there is."""
    return lambda held: (held or b"-") + text


async def test_a_merged_value_is_made_of_what_the_store_has_when_it_is_written() -> None:
    store = Watched()
    outbox = WriteQueue(store.write)
    outbox.merge(KEY, append_text(b"1"), do_nothing)
    outbox.merge(Key("c", "new"), append_text(b"1"), do_nothing)
    await store.put(KEY, b"old")
    await outbox.flush()
    assert [await store.get(key) for key in (KEY, Key("c", "new"))] == [b"old1", b"-1"]
    assert store.batches == [2, 1]
    assert not store.asked


async def test_a_value_to_be_merged_with_nothing_goes_with_the_others_and_nothing_is_read() -> None:
    store = Watched()
    outbox = WriteQueue(store.write)
    told: list[int] = []
    outbox.merge(KEY, append_text(b"1"), lambda: told.append(len(store.batches)))
    outbox.put(Key("c", "other"), lambda: b"v")
    outbox.append(Key("c", "log"), lambda: b"e")
    await outbox.flush()
    assert await store.get(KEY) == b"-1"
    assert (store.batches, store.asked, told) == ([3], 0, [1])


async def test_who_merges_with_something_is_told_what_and_not_that_there_was_nothing() -> None:
    store = Watched()
    outbox = WriteQueue(store.write)
    given: list[bytes | None] = []
    await store.put(KEY, b"old", ttl=60.0)

    def value(held: bytes | None) -> bytes:
        given.append(held)
        return (held or b"-") + b"1"

    outbox.merge(KEY, value, lambda: given.append(b"nothing"), 60.0)
    await outbox.flush()
    assert given == [None, b"old"]
    assert await store.get(KEY) == b"old1"


async def test_a_merge_that_comes_meanwhile_is_called_with_the_value_that_is_stored_now() -> None:
    class Meanwhile(Watched):
        async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
            if not self.batches:
                outbox.merge(KEY, append_text(b"2"), lambda: absent.append(2))
            return await super().write(batch)

    absent: list[int] = []
    store = Meanwhile()
    outbox = WriteQueue(store.write)
    outbox.merge(KEY, append_text(b"1"), lambda: absent.append(1))
    await outbox.flush()
    assert await store.get(KEY) == b"-1"
    await outbox.flush()
    assert (await store.get(KEY), absent) == (b"-12", [])


async def test_a_put_that_comes_while_a_merge_is_written_is_the_last() -> None:
    class Meanwhile(Watched):
        async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
            if not self.batches:
                outbox.put(KEY, lambda: b"put")
            return await super().write(batch)

    store = Meanwhile()
    outbox = WriteQueue(store.write)
    await store.put(KEY, b"old")
    outbox.merge(KEY, append_text(b"1"), do_nothing)
    await outbox.flush()
    await outbox.flush()
    assert await store.get(KEY) == b"put"


async def test_the_last_merge_or_put_of_a_key_is_written() -> None:
    store = Watched()
    outbox = WriteQueue(store.write)
    await store.put(KEY, b"old")
    outbox.merge(KEY, append_text(b"1"), do_nothing)
    outbox.merge(KEY, append_text(b"2"), do_nothing)
    await outbox.flush()
    assert await store.get(KEY) == b"old2"
    outbox.merge(KEY, append_text(b"3"), do_nothing)
    outbox.put(KEY, lambda: b"put")
    await outbox.flush()
    assert await store.get(KEY) == b"put"


async def test_a_merged_value_that_cannot_be_made_is_dropped_alone() -> None:
    def bad(held: bytes | None) -> bytes:
        raise ValueError("no")

    dropped: list[int] = []
    store = Watched()
    outbox = WriteQueue(store.write, on_drop=dropped.append)
    outbox.merge(Key("c", "bad"), bad, do_nothing)
    outbox.merge(KEY, append_text(b"1"), do_nothing)
    outbox.merge(Key("c", "held"), lambda held: b"first" if held is None else bad(held), do_nothing)
    await store.put(Key("c", "held"), b"old")
    await outbox.flush()
    assert await store.get_many([KEY, Key("c", "bad")]) == [b"-1", None]
    assert await store.get(Key("c", "held")) == b"old"
    assert dropped == [1, 1]


async def test_a_flush_writes_everything_in_batches() -> None:
    store = Watched()
    outbox = WriteQueue(store.write)
    for number in range(1_000):
        outbox.put(Key("c", str(number)), lambda: b"v")
    await outbox.flush()
    assert sum(store.batches) == 1_000
    assert max(store.batches) < 1_000


async def test_a_value_that_cannot_be_made_is_dropped_alone() -> None:
    dropped: list[int] = []
    store = Watched()
    outbox = WriteQueue(store.write, on_drop=dropped.append)
    outbox.put(Key("c", "bad"), lambda: (2**70).to_bytes(4, "big"))
    outbox.append(Key("c", "log"), lambda: (2**70).to_bytes(4, "big"))
    outbox.put(KEY, lambda: b"good")
    await outbox.flush()
    assert await store.get(KEY) == b"good"
    assert dropped == [1, 1]


async def test_a_flush_does_not_wait_for_what_comes_in_meanwhile() -> None:
    class Slow(Watched):
        async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
            outbox.put(Key("c", f"new {len(self.batches)}"), lambda: b"v")
            return await super().write(batch)

    store = Slow()
    outbox = WriteQueue(store.write)
    outbox.put(KEY, lambda: b"v")
    await asyncio.wait_for(outbox.flush(), 5)
    assert store.batches == [1]


async def test_a_backlog_is_written_in_few_turns_of_the_loop() -> None:
    outbox = WriteQueue(Watched().write)
    for number in range(2_560):
        outbox.put(Key("c", str(number)), lambda: b"v")
    writing, turns = asyncio.ensure_future(outbox.flush()), 0
    while not writing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns < 40


async def test_values_go_to_the_store_by_their_names_and_logs_as_they_came() -> None:
    class Noting(InMemoryStore):
        async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
            noted.extend(write.key.name for write in batch)
            return {}

    noted: list[str] = []
    outbox = WriteQueue(Noting().write)
    outbox.append(Key("c", "y"), lambda: b"e")
    outbox.append(Key("c", "x"), lambda: b"e")
    for name in ("b", "c", "a"):
        outbox.put(Key("c", name), lambda: b"v")
    await outbox.flush()
    assert noted == ["a", "b", "c", "y", "x"]


async def test_deferred_writes_of_a_second_go_out_together_in_the_order_of_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches: list[list[str]] = []

    class RecordingStore(InMemoryStore):
        async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
            batches.append([write.key.name for write in batch])
            return await super().write(batch)

    # The loop's clock moves by hand: on a machine that stalls for a second, the timers of both queues are due at once.
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    queue = WriteQueue(RecordingStore().write)
    slow_queue = queue.slow_queue()
    assert queue.slow_queue() is slow_queue
    for number in range(600):
        slow_queue.put(Key("c", f"{number * 7 % 600:03}"), lambda: b"v")
    queue.put(KEY, lambda: b"v")
    await asyncio.sleep(0)  # Both begin to wait.
    await asyncio.sleep(0)
    now = 0.5
    while not batches:
        await asyncio.sleep(0)
    assert batches == [[KEY.name]]
    now = 1.5
    while sum(map(len, batches)) < 601:
        await asyncio.sleep(0)
    assert [name for names in batches[1:] for name in names] == [f"{number:03}" for number in range(600)]
    # In several batches: a write whose caller waits can run between two.
    assert max(map(len, batches)) <= 256


async def test_a_flush_writes_what_is_queued_slowly_too() -> None:
    store = InMemoryStore()
    outbox = WriteQueue(store.write)
    outbox.slow_queue().put(Key("c", "1"), lambda: b"v")
    await outbox.flush()
    assert await store.get(Key("c", "1")) == b"v"


async def test_writes_that_the_store_does_not_take_are_dropped_and_counted() -> None:
    store, dropped = Watched(), list[int]()
    outbox = WriteQueue(store.write, on_drop=dropped.append)
    store.away = True
    outbox.put(KEY, lambda: b"v")
    outbox.append(Key("c", "log"), lambda: b"e")
    await outbox.flush()
    store.away = False
    outbox.put(Key("c", "later"), lambda: b"v")
    await outbox.flush()
    assert (dropped, outbox.waiting) == ([2], 0)
    assert [name for name, _ in await store.scan("c")] == ["later"]


async def test_a_batch_that_the_store_does_not_take_does_not_hold_up_the_others() -> None:
    class Refusing(InMemoryStore):
        async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
            if batch[0].key.name == "000":
                raise StoreUnavailable("refused")
            return await super().write(batch)

    store, dropped = Refusing(), list[int]()
    outbox = WriteQueue(store.write, on_drop=dropped.append)
    for number in range(600):
        outbox.put(Key("c", f"{number:03}"), lambda: b"v")
    await outbox.flush()
    assert dropped == [256]
    assert len(await store.scan("c")) == 600 - 256


async def test_a_write_goes_on_though_its_caller_does_not_wait_any_longer() -> None:
    outbox = WriteQueue((store := Stalled()).write)
    outbox.put(KEY, lambda: b"v")
    caller = asyncio.create_task(outbox.flush())
    await store.begun.wait()
    caller.cancel()
    store.may_go_on.set()
    await outbox.flush()
    assert await store.get(KEY) == b"v"
