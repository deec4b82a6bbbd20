"""What providers taught, over workers and restarts."""

import msgspec
import pytest

from accordion.accounting.calibration import UNKNOWN, Calibrations
from accordion.accounting.learned_limits import LearnedLimits, LimitOwner
from accordion.accounting.learned_sync import LIMITS, RATIOS, LearnedSync
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import DirectOutbox, FakeClock

WHOSE = LimitOwner('tenant | of "anybody"', "up", "a model/ñ", long=True)


class Fickle(InMemoryStore):
    """A store that may be away."""

    away = False

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        if self.away:
            raise StoreUnavailable("away")
        return await super().scan(collection, prefix=prefix, after=after, limit=limit)


class Worker:
    """A worker's knowledge."""

    def __init__(self, store: Fickle, clock: FakeClock, retention: float = 1_000.0) -> None:
        self.limits, self.calibrations = LearnedLimits(clock.now), Calibrations()
        self._outbox = DirectOutbox(store)
        self._taught = LearnedSync(store, self._outbox, clock, self.limits, self.calibrations, retention)

    async def look(self) -> None:
        await self._taught.poll()
        await self._outbox.flush()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Fickle:
    return Fickle(now=clock.now)


async def test_all_workers_know_what_one_has_learnt(store: Fickle, clock: FakeClock) -> None:
    one, other = Worker(store, clock), Worker(store, clock)
    await other.look()
    one.limits.learn(WHOSE, 64_000, 60.0)
    await one.look()
    await other.look()
    assert other.limits.get(WHOSE) == 64_000
    clock.advance(61.0)
    assert other.limits.get(WHOSE) is None
    assert await store.scan(LIMITS) == []


async def test_a_later_limit_takes_the_place_of_an_earlier(store: Fickle, clock: FakeClock) -> None:
    one, other = Worker(store, clock), Worker(store, clock)
    one.limits.learn(WHOSE, 64_000, 60.0)
    await one.look()
    clock.advance(1.0)
    other.limits.learn(WHOSE, 32_000, 60.0)
    await other.look()
    await one.look()
    assert (one.limits.get(WHOSE), other.limits.get(WHOSE)) == (32_000, 32_000)


async def test_the_next_run_corrects_counts_from_its_first_request_on(store: Fickle, clock: FakeClock) -> None:
    before, after = Worker(store, clock), Worker(store, clock)
    for reported in (1_100, 1_200, 1_900):
        before.calibrations.learn("up", "model", UNKNOWN, 1_000, reported)
    await before.look()
    await after.look()
    assert after.calibrations.factor("up", "model") == 1.2
    assert after.calibrations.factor("up", "other") == 1.0


async def test_a_correction_that_is_known_here_stays(store: Fickle, clock: FakeClock) -> None:
    before, after = Worker(store, clock), Worker(store, clock)
    before.calibrations.learn("up", "model", UNKNOWN, 1_000, 1_900)
    await before.look()
    after.calibrations.learn("up", "model", UNKNOWN, 1_000, 1_100)
    await after.look()
    assert after.calibrations.factor("up", "model") == 1.1


async def test_a_store_that_is_away_is_asked_again(store: Fickle, clock: FakeClock) -> None:
    before, after = Worker(store, clock), Worker(store, clock)
    before.calibrations.learn("up", "model", UNKNOWN, 1_000, 1_200)
    await before.look()
    store.away = True
    await after.look()
    assert after.calibrations.factor("up", "model") == 1.0
    store.away = False
    await after.look()
    assert after.calibrations.factor("up", "model") == 1.2


async def test_rows_that_cannot_be_read_hide_no_others(store: Fickle, clock: FakeClock) -> None:
    one, other = Worker(store, clock), Worker(store, clock)
    for collection in (LIMITS, RATIOS):
        await store.put(Key(collection, "["), b"{}")
        await store.put(Key(collection, '["a","b"]'), b'"x"')
    one.limits.learn(WHOSE, 64_000, 60.0)
    one.calibrations.learn("up", "model", UNKNOWN, 1_000, 1_200)
    await one.look()
    await other.look()
    assert other.limits.get(WHOSE) == 64_000
    assert other.calibrations.factor("up", "model") == 1.2


async def test_nothing_new_writes_nothing(store: Fickle, clock: FakeClock) -> None:
    worker = Worker(store, clock)
    worker.limits.learn(WHOSE, 64_000, 60.0)
    await worker.look()
    await store.delete([Key(LIMITS, name) for name, _ in await store.scan(LIMITS)])
    await worker.look()
    assert await store.scan(LIMITS) == []


async def test_names_as_long_as_no_models_are_not_written(store: Fickle, clock: FakeClock) -> None:
    worker = Worker(store, clock)
    for length in (400, 4_000):
        worker.calibrations.learn("up", "m" * length, UNKNOWN, 1_000, 1_200)
    await worker.look()
    assert len(await store.scan(RATIOS)) == 1


async def test_how_long_responses_are_and_that_output_counts_is_known_to_all(store: Fickle, clock: FakeClock) -> None:
    one, later = Worker(store, clock), Worker(store, clock)
    for _ in range(9):
        one.calibrations.learn_output("up", "m", 600)
    one.limits.learn(WHOSE, 0, 60.0, counts_output=True)
    await one.look()
    await later.look()
    assert later.calibrations.output_space("up", "m", 128_000, 0, 20.0) == 12_000
    assert later.limits.counts_output(WHOSE)
    assert later.limits.get(WHOSE) is None
    assert later.limits.list_limits(WHOSE.tenant) == []


async def test_an_error_that_names_a_limit_does_not_end_what_another_taught(store: Fickle, clock: FakeClock) -> None:
    one = Worker(store, clock)
    one.limits.learn(WHOSE, 64_000, 60.0)
    one.limits.learn(WHOSE, 0, 60.0, counts_output=True)
    one.limits.learn(WHOSE, 32_000, 60.0)
    assert (one.limits.get(WHOSE), one.limits.counts_output(WHOSE)) == (32_000, True)
    clock.advance(61.0)
    assert not one.limits.counts_output(WHOSE)


async def test_limits_of_an_earlier_version_are_read(store: Fickle, clock: FakeClock) -> None:
    name = msgspec.json.encode(WHOSE).decode()
    await store.put(Key(LIMITS, name), b"[64000,%d]" % (clock.now() + 60), ttl=60.0)
    one = Worker(store, clock)
    await one.look()
    assert (one.limits.get(WHOSE), one.limits.counts_output(WHOSE)) == (64_000, False)
