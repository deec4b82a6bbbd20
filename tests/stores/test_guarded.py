import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import uvloop

from accordion.model.errors import StoreFull, StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores.guarded import GuardedStore
from accordion.stores.memory_store import InMemoryStore

KEY = Key("c", "n")


class Flaky(InMemoryStore):
    """A store with a switch: it answers, fails, or hangs. `asked` counts the calls that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.fails: Exception | None = None
        self.full = False
        self.hangs: asyncio.Event | None = None

    async def get(self, key: Key) -> bytes | None:
        self.asked += 1
        if self.hangs is not None:
            await self.hangs.wait()
        if self.fails is not None:
            raise self.fails
        return await super().get(key)

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        await self.write((Put(key, value, ttl),))

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        if self.hangs is not None:
            await self.hangs.wait()
        if self.full:
            raise StoreUnavailable("the disk is full")
        return await super().write(batch)


class Bench:
    """A guarded flaky store, and the time."""

    def __init__(self, timeout: float = 20.0, write_timeout: float = 20.0, inner: type[Flaky] = Flaky) -> None:
        self.time = 100.0
        self.changes: list[bool] = []
        self.inner = inner()
        self.store = GuardedStore(
            self.inner,
            timeout=timeout,
            write_timeout=write_timeout,
            monotonic=lambda: self.time,
            retry_after=1.0,
            on_change=self.changes.append,
        )


async def expect_unavailable(call: Callable[[], Any]) -> None:
    with pytest.raises(StoreUnavailable):
        await call()


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ConnectionResetError("reset"), TimeoutError()])
async def test_after_a_failure_calls_fail_at_once_until_a_probe_is_due(error: Exception):
    bench = Bench()
    bench.inner.fails = error
    for _ in range(5):
        await expect_unavailable(lambda: bench.store.get(KEY))
    assert bench.inner.asked == 1
    assert not bench.store.is_available
    bench.time += 1.0
    for _ in range(5):
        await expect_unavailable(lambda: bench.store.get(KEY))
    assert bench.inner.asked == 2


async def test_a_store_that_is_back_is_used_again():
    bench = Bench()
    bench.inner.fails = StoreUnavailable("away")
    await expect_unavailable(lambda: bench.store.get(KEY))
    bench.inner.fails = None
    await expect_unavailable(lambda: bench.store.put(KEY, b"1"))
    bench.time += 1.0
    assert await bench.store.get(KEY) is None
    assert bench.store.is_available
    await bench.store.put(KEY, b"2")
    assert await bench.store.get(KEY) == b"2"
    assert bench.changes == [False, True]


async def test_a_store_that_hangs_is_given_up_after_the_time_out():
    bench = Bench(timeout=0.05)
    bench.inner.hangs = asyncio.Event()
    await expect_unavailable(lambda: bench.store.get(KEY))
    assert not bench.store.is_available
    await expect_unavailable(lambda: bench.store.get(KEY))
    assert bench.inner.asked == 1


async def test_a_write_is_given_more_time_than_a_read():
    bench = Bench(timeout=0.01, write_timeout=20.0)
    bench.inner.hangs = asyncio.Event()
    writing = asyncio.create_task(bench.store.put(KEY, b"1"))
    await expect_unavailable(lambda: bench.store.get(KEY))
    assert not writing.done()
    bench.inner.hangs.set()
    await writing
    assert await bench.inner.get(KEY) == b"1"


async def test_a_write_that_hangs_is_given_up_after_its_time_out():
    bench = Bench(timeout=20.0, write_timeout=0.01)
    bench.inner.hangs = asyncio.Event()
    await expect_unavailable(lambda: bench.store.put(KEY, b"1"))
    assert not bench.store.is_available


async def test_a_read_that_probes_waits_no_longer_than_a_read():
    bench = Bench(timeout=0.01, write_timeout=20.0)
    bench.inner.full = True
    await expect_unavailable(lambda: bench.store.put(KEY, b"1"))
    bench.time += 2.0
    bench.inner.hangs = asyncio.Event()
    async with asyncio.timeout(5.0):
        await expect_unavailable(lambda: bench.store.get(KEY))


async def test_only_one_call_probes_while_others_fail_at_once():
    bench = Bench()
    bench.inner.fails = StoreUnavailable("away")
    await expect_unavailable(lambda: bench.store.get(KEY))
    bench.inner.fails, bench.inner.hangs = None, asyncio.Event()
    bench.time += 1.0
    probe = asyncio.create_task(bench.store.get(KEY))
    await asyncio.sleep(0)
    for _ in range(3):
        await expect_unavailable(lambda: bench.store.get(KEY))
    bench.inner.hangs.set()
    assert await probe is None
    assert bench.inner.asked == 2
    assert bench.store.is_available


async def test_a_probe_that_is_cancelled_leaves_the_next_call_to_probe():
    bench = Bench()
    bench.inner.fails = StoreUnavailable("away")
    await expect_unavailable(lambda: bench.store.get(KEY))
    bench.inner.fails, bench.inner.hangs = None, asyncio.Event()
    bench.time += 1.0
    probe = asyncio.create_task(bench.store.get(KEY))
    await asyncio.sleep(0)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    bench.inner.hangs = None
    assert await bench.store.get(KEY) is None
    assert bench.store.is_available


async def test_a_call_that_its_caller_cancels_says_nothing_of_the_store():
    bench = Bench()
    bench.inner.hangs = asyncio.Event()
    call = asyncio.create_task(bench.store.get(KEY))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert bench.store.is_available
    assert bench.changes == []


async def test_an_error_of_one_call_is_translated_and_stops_no_others():
    bench = Bench()
    bench.inner.fails = ValueError("odd key")
    with pytest.raises(StoreUnavailable, match="odd key"):
        await bench.store.get(KEY)
    assert bench.store.is_available
    bench.inner.fails = None
    assert await bench.store.get(KEY) is None


async def test_a_store_whose_ping_fails_unexpectedly_is_away_and_logged_once(
    caplog: pytest.LogCaptureFixture,
):
    bench = Bench()

    async def ping() -> None:
        raise TypeError("odd option")

    bench.inner.ping = ping  # type: ignore[method-assign]
    bench.inner.fails = TypeError("odd option")
    for _ in range(3):
        await expect_unavailable(lambda: bench.store.get(KEY))
        bench.time += 1.0
    assert (bench.store.is_available, bench.changes) == (False, [False])
    assert "odd option" in bench.store.problem
    assert len(caplog.records) == 1


async def test_a_store_is_back_when_it_can_be_written_to_and_not_because_it_can_be_read():
    bench = Bench()
    bench.inner.full = True
    await expect_unavailable(lambda: bench.store.put(KEY, b"1"))
    for _ in range(3):
        bench.time += 1.0
        await expect_unavailable(lambda: bench.store.get(KEY))
    assert (bench.changes, bench.inner.asked) == ([False], 0)
    bench.inner.full = False
    bench.time += 1.0
    assert await bench.store.get(KEY) is None
    assert bench.changes == [False, True]


async def test_an_old_call_that_ends_late_does_not_end_the_rest():
    bench = Bench()
    bench.inner.hangs = hangs = asyncio.Event()
    old = asyncio.create_task(bench.store.get(KEY))
    await asyncio.sleep(0)
    bench.inner.hangs, bench.inner.fails = None, StoreUnavailable("away")
    await expect_unavailable(lambda: bench.store.get(KEY))
    bench.inner.fails = None
    hangs.set()
    assert await old is None
    assert not bench.store.is_available


async def test_a_lock_whose_release_fails_ends_quietly_and_the_bodys_error_goes_through():
    bench = Bench()
    async with bench.store.lock(KEY, lease=60.0) as held:
        assert held
        bench.inner.fails = StoreUnavailable("away")
        await expect_unavailable(lambda: bench.store.get(KEY))
    bench.time += 1.0
    with contextlib.suppress(KeyError):
        async with bench.store.lock(KEY, lease=60.0):
            raise KeyError
        pytest.fail("the error was swallowed")


async def test_a_lock_on_a_store_that_is_away_raises_store_unavailable():
    bench = Bench()
    bench.inner.fails = StoreUnavailable("away")
    await expect_unavailable(lambda: bench.store.get(KEY))
    await expect_unavailable(lambda: bench.store.lock(KEY, lease=1.0).__aenter__())


async def test_a_store_that_is_away_can_be_closed():
    bench = Bench()
    bench.inner.fails = StoreUnavailable("away")
    await expect_unavailable(lambda: bench.store.get(KEY))
    await bench.store.close()
    await expect_unavailable(bench.inner.ping)


class Full(Flaky):
    """A store on a full disk: it refuses usual writes, and takes what an erasure needs."""

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        if self.full and not all(isinstance(each, Put) and each.for_erasing for each in batch):
            raise StoreFull("the disk is full")
        return await InMemoryStore.write(self, batch)


async def test_a_full_store_is_read_and_erased_while_its_writes_are_refused():
    bench = Bench(inner=Full)
    await bench.store.put(KEY, b"1")
    bench.inner.full = True
    for _ in range(3):
        with pytest.raises(StoreFull):
            await bench.store.put(KEY, b"2")
        assert not bench.store.is_available
        assert await bench.store.get(KEY) == b"1"
        bench.time += 2.0
    assert await bench.store.write([Put(Key("n", "note"), b"1", for_erasing=True)]) == {}
    assert await bench.store.delete([KEY]) == 1
    assert not bench.store.is_available
    bench.inner.full = False
    bench.time += 2.0
    # Any read tries whether it takes writes again.
    assert await bench.store.get(KEY) is None
    assert bench.store.is_available


@pytest.mark.parametrize("create_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_answer_that_came_while_the_loop_was_busy_is_taken(create_loop: Callable[[], asyncio.AbstractEventLoop]):
    class Busy(InMemoryStore):
        async def get(self, key: Key) -> bytes | None:
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[bytes] = loop.create_future()
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=(answer.set_result, b"v"))
            thread.start()
            thread.join()
            time.sleep(0.03)  # noqa: ASYNC251  # The loop does other work for longer than the time-out.
            return await answer

    store = GuardedStore(Busy(), timeout=0.01, write_timeout=20.0, monotonic=lambda: 0.0)
    with asyncio.Runner(loop_factory=create_loop) as runner:
        assert runner.run(store.get(KEY)) == b"v"
    assert store.is_available


@pytest.mark.parametrize("create_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_answer_in_a_socket_counts_while_the_loop_was_busy(create_loop: Callable[[], asyncio.AbstractEventLoop]):
    class Busy(InMemoryStore):
        async def get(self, key: Key) -> bytes | None:
            ours, theirs = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=ours)
            theirs.send(b"v")
            theirs.close()
            time.sleep(0.03)  # noqa: ASYNC251
            try:
                return await reader.readexactly(1)
            finally:
                writer.close()

    store = GuardedStore(Busy(), timeout=0.01, write_timeout=20.0, monotonic=lambda: 0.0)
    with asyncio.Runner(loop_factory=create_loop) as runner:
        assert runner.run(store.get(KEY)) == b"v"
    assert store.is_available
