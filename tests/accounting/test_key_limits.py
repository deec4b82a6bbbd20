"""Limits of proxy keys: over several workers, through a restart, and while the store is away."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from accordion.accounting.key_limits import (
    KeyLimiter,
    KeyLimits,
    KeyUsage,
    KeyUsageLedger,
    read_usage,
    usage_collection,
)
from accordion.accounting.ledger import DAY
from accordion.model.costs import NANODOLLARS, Costs
from accordion.model.errors import LimitReached
from accordion.model.ports import Key, KeyValueStore, Put
from accordion.stores.guarded import GuardedStore
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import DirectOutbox, FakeClock, FickleStore
from tests.valkey import Opener, store_opener, valkey_server  # noqa: F401

COSTS = Costs(requests=1, input=900, cached=400, output=100, sent_cost=NANODOLLARS // 2, original_cost=NANODOLLARS)


class Worker:
    """One worker: its counts and its limiter."""

    def __init__(self, store: KeyValueStore, clock: FakeClock, name: str) -> None:
        self.outbox = DirectOutbox(store)
        self.ledger = KeyUsageLedger(store, self.outbox, clock, name)
        self.refused: list[tuple[str, str]] = []
        self.limiter = KeyLimiter(store, self.ledger, clock, lambda *refusal: self.refused.append(refusal))

    async def admit(self, limits: KeyLimits, key: str = "k1") -> LimitReached | None:
        try:
            await self.limiter.admit(key, "team", limits)
        except LimitReached as error:
            return error
        return None

    async def sync(self) -> None:
        await self.outbox.flush()
        await self.ledger.poll()


# -- requests a minute -------------------------------------------------------------------------------------------------


async def test_a_minutes_requests_are_counted_exactly_over_all_workers(opener: Opener) -> None:
    clock = FakeClock()
    workers = [Worker(opener(), clock, f"w{number}") for number in range(4)]
    limits = KeyLimits(requests_per_minute=10)
    for _ in range(2):
        answers = await asyncio.gather(*(worker.admit(limits) for worker in workers for _ in range(8)))
        assert sum(answer is None for answer in answers) == 10
        clock.advance(60.0)


async def test_a_restart_within_a_minute_gives_no_new_requests(opener: Opener) -> None:
    clock, limits = FakeClock(), KeyLimits(requests_per_minute=3)
    for number in range(3):
        assert await Worker(opener(), clock, f"w{number}").admit(limits) is None
    assert await Worker(opener(), clock, "w4").admit(limits) is not None


async def test_beyond_the_limit_the_store_is_not_asked_again() -> None:
    class CountingStore(InMemoryStore):
        """A store that counts entries of logs."""

        appends = 0

        async def append(self, key: Key, values: object, *, keep: int | None = None, ttl: float | None = None) -> int:
            self.appends += 1
            return await super().append(key, values, keep=keep, ttl=ttl)  # type: ignore[arg-type]

    store = CountingStore()
    worker, limits = Worker(store, FakeClock(), "w"), KeyLimits(requests_per_minute=5)
    answers = [await worker.admit(limits) for _ in range(100)]
    assert [answer is None for answer in answers] == [True] * 5 + [False] * 95
    assert store.appends <= 6
    assert worker.refused == [("team", "requests_per_minute")] * 95


async def test_while_the_store_is_away_each_worker_counts_by_itself() -> None:
    store, clock, limits = FickleStore(), FakeClock(), KeyLimits(requests_per_minute=4)
    workers = [Worker(store, clock, name) for name in ("one", "two")]
    for worker in workers:
        assert await worker.admit(limits) is None
    store.away = True
    admitted = [await worker.admit(limits) is None for worker in workers for _ in range(10)]
    # One knew of its own request, the other of both.
    assert sum(admitted) == 3 + 2


async def test_a_store_that_does_not_answer_holds_only_the_first_request_up() -> None:
    class SlowStore(InMemoryStore):
        """A store that takes long for each entry of a log."""

        appends = 0

        async def append(self, key: Key, values: object, *, keep: int | None = None, ttl: float | None = None) -> int:
            self.appends += 1
            await asyncio.sleep(60.0)
            return 0

    slow, clock, limits = SlowStore(), FakeClock(), KeyLimits(requests_per_minute=2)
    guarded = GuardedStore(slow, timeout=0.1, write_timeout=0.1, monotonic=clock.monotonic)
    worker = Worker(guarded, clock, "w")
    assert [await worker.admit(limits) is None for _ in range(4)] == [True, True, False, False]
    assert slow.appends == 1


async def test_a_refused_minute_says_how_long_to_wait() -> None:
    clock = FakeClock(time=90 * 60.0 + 12.5)
    worker, limits = Worker(InMemoryStore(), clock, "w"), KeyLimits(requests_per_minute=1)
    assert await worker.admit(limits) is None
    refused = await worker.admit(limits)
    assert refused is not None
    assert (refused.status, refused.retry_after, refused.code) == (429, 48, "rate_limit_exceeded")
    assert "k1" in refused.message
    assert "1 requests" in refused.message
    assert await worker.admit(limits, key="k2") is None
    clock.advance(float(refused.retry_after))
    assert await worker.admit(limits) is None


# -- tokens and dollars a day ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [KeyLimits(tokens_per_day=3_000), KeyLimits(dollars_per_day=1.5)])
async def test_the_day_of_a_key_is_the_sum_of_all_workers_and_survives_a_restart(
    opener: Opener, limits: KeyLimits
) -> None:
    clock = FakeClock()
    one, two = Worker(opener(), clock, "one"), Worker(opener(), clock, "two")
    for worker in (one, two, two):
        assert await worker.admit(limits) is None
        worker.ledger.count("k1", COSTS)
    await one.sync()
    await two.sync()
    await one.sync()
    late = Worker(opener(), clock, "late")
    await late.sync()
    for worker in (one, two, late):
        assert worker.ledger.usage("k1") == KeyUsage(3, 3_000, 3 * NANODOLLARS // 2)
        refused = await worker.admit(limits)
        assert refused is not None
        assert (refused.code, refused.type) == ("insufficient_quota", "insufficient_quota")
        assert await worker.admit(limits, key="k2") is None
    clock.advance(DAY - clock.time % DAY)
    for worker in (one, two, late):
        assert await worker.admit(limits) is None
        assert worker.ledger.usage("k1") == KeyUsage()


async def test_tokens_of_summaries_count_and_what_was_saved_does_not() -> None:
    worker = Worker(InMemoryStore(), FakeClock(), "w")
    worker.ledger.count("k1", Costs(1, input=10, output=5, original_input=900, summary_input=7, summary_output=3))
    assert worker.ledger.usage("k1").tokens == 25


async def test_a_days_limit_is_kept_while_the_store_is_away() -> None:
    store, clock = FickleStore(), FakeClock()
    one, two = Worker(store, clock, "one"), Worker(store, clock, "two")
    limits = KeyLimits(tokens_per_day=2_000)
    two.ledger.count("k1", COSTS)
    await two.sync()
    await one.sync()
    store.away = True
    await one.ledger.poll()
    assert await one.admit(limits) is None
    one.ledger.count("k1", COSTS)
    assert await one.admit(limits) is not None


async def test_many_rows_are_read_less_often() -> None:
    """Workers that have ended today have rows, too."""
    store, clock = InMemoryStore(), FakeClock()
    collection, value = usage_collection(int(clock.time // DAY)), msgspec.msgpack.encode(KeyUsage(1, 10, 0))
    await store.write([Put(Key(collection, f"k1|{number}"), value) for number in range(25_000)])
    worker, tokens = Worker(store, clock, "w"), []
    for number in range(8):
        await worker.ledger.poll()
        tokens.append(worker.ledger.usage("k1").tokens)
        await store.put(Key(collection, f"k1|new{number}"), value)
        clock.advance(1.0)
    assert tokens == [250_000] * 3 + [250_030] * 3 + [250_060] * 2
    # Whoever looks at the counts gets the present ones.
    await worker.ledger.read_others()
    assert worker.ledger.usage("k1").tokens == 250_080


async def test_a_refused_day_says_when_the_next_one_begins() -> None:
    clock = FakeClock(time=5 * DAY + 3_600.0)
    worker = Worker(InMemoryStore(), clock, "w")
    worker.ledger.count("k1", COSTS)
    refused = await worker.admit(KeyLimits(tokens_per_day=999))
    assert refused is not None
    assert refused.retry_after == DAY - 3_600
    assert "1,000 of 999 tokens" in refused.message
    assert "23 h 0 min" in refused.message
    clock.advance(DAY - 3_600 - 0.5)
    refused = await worker.admit(KeyLimits(dollars_per_day=0.5))
    assert refused is not None
    assert (refused.retry_after, "$0.50 of $0.50" in refused.message) == (1, True)
    assert worker.refused == [("team", "tokens_per_day"), ("team", "dollars_per_day")]


async def test_rows_that_cannot_be_read_do_not_count() -> None:
    store, clock = InMemoryStore(), FakeClock()
    worker = Worker(store, clock, "w")
    worker.ledger.count("k1", COSTS)
    await worker.sync()
    day = int(clock.time // DAY)
    await store.put(Key(usage_collection(day), "k1|other"), b"\xc1")
    await store.put(Key(usage_collection(day - 1), "k1|w"), b"\x93\x01\x01\x01")
    assert await read_usage(store, day) == {"k1": KeyUsage(1, 1_000, NANODOLLARS // 2)}


async def test_a_key_without_limits_asks_no_store() -> None:
    store = FickleStore()
    store.away = True
    assert await Worker(store, FakeClock(), "w").admit(KeyLimits()) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens_per_day": -1}', '{"tokens_per_day": 1.5}', '{"dollars_per_day": -0.01}', '{"dollars_per_day": 1e300}',
        '{"requests_per_minute": "5"}', '{"requests_per_minute": 1e30}', '{"tokens_per_day": true}',
    ],
)  # fmt: skip
def test_an_impossible_limit_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=KeyLimits)


def test_an_amount_that_is_no_number_is_refused() -> None:
    for amount in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="number"):
            KeyLimits(dollars_per_day=amount)


async def test_a_clock_that_comes_back_to_a_day_finds_what_was_counted() -> None:
    clock, store = FakeClock(), InMemoryStore()
    worker = Worker(store, clock, "a")
    worker.ledger.count("k1", COSTS)
    clock.advance(DAY)
    assert worker.ledger.usage("k1").requests == 0
    worker.ledger.count("k1", COSTS)
    clock.advance(-DAY)
    worker.ledger.count("k1", COSTS)
    assert worker.ledger.usage("k1").requests == 2
