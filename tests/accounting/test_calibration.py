import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.accounting.calibration import (
    LEAST_COUNTED,
    LEAST_OUTPUT,
    LEAST_OUTPUTS,
    LEAST_RATIO,
    LIMITS_COLLECTION,
    MAX_LIMITS,
    MAX_OUTPUTS,
    MAX_RATIOS,
    MODELS_AT_MOST,
    MOST_RATIO,
    RATIOS_COLLECTION,
    UNKNOWN,
    Calibrations,
    CorrectionRatios,
    LearnedLimit,
    LearnedLimits,
    LearnedSync,
    LimitOwner,
    ReportedCount,
    estimate_tokens,
)
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import DirectOutbox, FakeClock

UP, MODEL = "up", "model"


def test_nothing_reported_means_no_correction() -> None:
    assert Calibrations().factor(UP, MODEL) == 1.0
    assert CorrectionRatios().factor == 1.0


def test_the_first_report_sets_the_session_and_the_model() -> None:
    known = Calibrations()
    assert known.learn(UP, MODEL, UNKNOWN, 1_000, 1_200) == 1.2
    assert known.factor(UP, MODEL) == 1.2
    assert known.factor(UP, MODEL, 1.3) == 1.3


def test_models_and_upstreams_are_kept_apart() -> None:
    known = Calibrations()
    known.learn(UP, MODEL, UNKNOWN, 1_000, 1_200)
    assert known.factor("other", MODEL) == 1.0
    assert known.factor(UP, "other") == 1.0


@pytest.mark.parametrize(("counted", "reported"), [(1_000, 0), (1_000, -1), (LEAST_COUNTED - 1, 500), (0, 0), (0, 9)])
def test_a_missing_report_or_a_tiny_count_changes_nothing(counted: int, reported: int) -> None:
    known = Calibrations()
    assert known.learn(UP, MODEL, 1.1, counted, reported) == 1.1
    assert known.learn(UP, MODEL, UNKNOWN, counted, reported) == UNKNOWN
    assert known.factor(UP, MODEL) == 1.0


@pytest.mark.parametrize(("reported", "factor"), [(1, LEAST_RATIO), (10**9, MOST_RATIO)])
def test_absurd_reports_are_held_to_a_sane_range_and_say_nothing_of_other_sessions(
    reported: int, factor: float
) -> None:
    known = Calibrations()
    assert known.learn(UP, MODEL, UNKNOWN, 10_000, reported) == factor
    assert known.factor(UP, MODEL) == UNKNOWN
    assert not known.drain_changes()


def test_a_session_follows_its_reports_and_starts_from_its_models() -> None:
    known = Calibrations()
    for _ in range(5):
        known.learn(UP, MODEL, UNKNOWN, 1_000, 1_200)
    correction = known.learn(UP, MODEL, UNKNOWN, 1_000, 1_400)
    assert correction == pytest.approx(1.3)
    for _ in range(10):
        correction = known.learn(UP, MODEL, correction, 1_000, 1_400)
    assert correction == pytest.approx(1.4, rel=0.001)


def test_one_odd_report_moves_little() -> None:
    known = Calibrations()
    correction = UNKNOWN
    for _ in range(5):
        correction = known.learn(UP, MODEL, correction, 1_000, 1_200)
    after = known.learn(UP, MODEL, correction, 1_000, 3_000)
    assert 1.2 < after <= 1.2 * 1.25 + 0.001
    assert known.factor(UP, MODEL) == 1.2


def test_a_models_correction_forgets_old_reports() -> None:
    known = Calibrations()
    for reported in [1_200] * MAX_RATIOS + [1_500] * MAX_RATIOS:
        known.learn(UP, MODEL, UNKNOWN, 1_000, reported)
    assert known.factor(UP, MODEL) == 1.5
    assert len(known.drain_changes()[UP, MODEL]) == MAX_RATIOS


def test_the_number_of_models_is_bounded() -> None:
    known = Calibrations()
    for number in range(MODELS_AT_MOST + 50):
        known.learn(UP, f"model-{number}", UNKNOWN, 1_000, 1_200)
    assert len(known._models) == MODELS_AT_MOST
    assert known.factor(UP, "model-0") == 1.0


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(-5, 10**8)), max_size=30))
def test_no_series_of_reports_leads_out_of_the_sane_range(reports: list[tuple[int, int]]) -> None:
    known, correction = Calibrations(), UNKNOWN
    for counted, reported in reports:
        correction = known.learn(UP, MODEL, correction, counted, reported)
        assert LEAST_RATIO <= correction <= MOST_RATIO
        assert LEAST_RATIO <= known.factor(UP, MODEL) <= MOST_RATIO


def test_an_estimate_is_the_corrected_count() -> None:
    assert estimate_tokens(1_000, None, 1.2) == 1_200
    assert estimate_tokens(0, None, 1.2) == 0


def test_reported_usage_carries_forward_with_only_what_is_new_corrected() -> None:
    assert estimate_tokens(1_000, ReportedCount(900, 1_500), 1.2) == 1_500 + 120
    assert estimate_tokens(900, ReportedCount(900, 1_500), 1.2) == 1_500


def test_a_reported_0_leaves_the_count_alone() -> None:
    assert estimate_tokens(1_000, ReportedCount(900, 0), 1.2) == 1_200


def test_a_count_that_shrank_takes_nothing_off_the_report() -> None:
    assert estimate_tokens(800, ReportedCount(900, 1_500), 1.2) == 1_500


# -- the length of responses -------------------------------------------------------------------------------------------


def responses(*lengths: int) -> Calibrations:
    known = Calibrations()
    for length in lengths:
        known.learn_output(UP, MODEL, length)
    return known


def test_all_the_output_asked_for_is_kept_free_until_some_responses_are_known() -> None:
    few, some = responses(*[500] * (LEAST_OUTPUTS - 1)), responses(*[500] * LEAST_OUTPUTS)
    assert few.output_space(UP, MODEL, 128_000, 0, 2.0) == 128_000
    assert some.output_space(UP, MODEL, 128_000, 0, 2.0) == LEAST_OUTPUT
    assert some.output_space("other", MODEL, 128_000, 0, 2.0) == 128_000


def test_the_longest_response_of_the_model_or_the_session_counts() -> None:
    known = responses(*[500] * 9, 10_000, *[500] * 9)
    assert known.output_space(UP, MODEL, 128_000, 0, 2.0) == 20_000
    assert known.output_space(UP, MODEL, 128_000, 30_000, 2.0) == 60_000
    assert known.output_space(UP, MODEL, 128_000, 0, 0.0) == 128_000
    for _ in range(MAX_OUTPUTS):
        known.learn_output(UP, MODEL, 500)
    assert known.output_space(UP, MODEL, 128_000, 0, 2.0) == LEAST_OUTPUT


@given(
    st.lists(st.integers(-5, 200_000), max_size=20),
    st.integers(0, 200_000),
    st.integers(0, 200_000),
    st.sampled_from([0.0, 1.0, 2.0, 7.5]),
)
def test_never_more_is_kept_free_than_asked_for_and_never_less_than_was_needed(
    lengths: list[int], asked: int, longest: int, factor: float
) -> None:
    space = responses(*lengths).output_space(UP, MODEL, asked, longest, factor)
    assert min(asked, max([LEAST_OUTPUT, longest, *lengths])) <= space <= asked


def test_models_whose_responses_are_known_are_bounded() -> None:
    known = responses(*[500] * LEAST_OUTPUTS)
    for at in range(MODELS_AT_MOST):
        known.learn_output(UP, f"m{at}", 500)
    assert known.output_space(UP, MODEL, 128_000, 0, 2.0) == 128_000
    assert (UP, MODEL) not in known.drain_output_changes()


MINE = LimitOwner("t", "up", "model", long=False)


def test_the_newest_limit_counts_and_their_number_is_bounded() -> None:
    known = LearnedLimits(lambda: 0.0)
    for number in range(2 * MAX_LIMITS):
        known.learn(MINE._replace(model=f"model-{number}"), 1_000 + number, 60.0)
    last = MINE._replace(model=f"model-{2 * MAX_LIMITS - 1}")
    known.learn(last, 5_000, 60.0)
    assert known.get(last) == 5_000
    assert known.get(MINE._replace(model="model-0")) is None
    assert len(known.limits) == len(known.drain_changes()) == MAX_LIMITS


def test_a_limit_that_no_longer_holds_is_let_go() -> None:
    clock = FakeClock()
    known = LearnedLimits(clock.now)
    known.learn(MINE, 5_000, 60.0)
    clock.advance(59.9)
    assert known.get(MINE) == 5_000
    clock.advance(0.2)
    assert known.get(MINE) is None
    assert not known.limits


def test_the_later_of_two_workers_limits_holds() -> None:
    clock = FakeClock()
    known = LearnedLimits(clock.now)
    known.learn(MINE, 5_000, 60.0)
    known.restore(MINE, LearnedLimit(9_000, clock.now() + 59.0))
    assert known.get(MINE) == 5_000
    known.restore(MINE, LearnedLimit(4_000, clock.now() + 61.0))
    assert known.get(MINE) == 4_000


def test_limits_from_other_workers_are_not_written_again() -> None:
    known = LearnedLimits(lambda: 0.0)
    known.restore(MINE, LearnedLimit(9_000, 60.0))
    assert known.get(MINE) == 9_000
    assert known.drain_changes() == {}


def test_an_expired_limit_is_not_used() -> None:
    known = LearnedLimits(lambda: 100.0)
    known.restore(MINE, LearnedLimit(9_000, 100.0))
    assert not known.limits


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
    assert await store.scan(LIMITS_COLLECTION) == []


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
    for collection in (LIMITS_COLLECTION, RATIOS_COLLECTION):
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
    await store.delete([Key(LIMITS_COLLECTION, name) for name, _ in await store.scan(LIMITS_COLLECTION)])
    await worker.look()
    assert await store.scan(LIMITS_COLLECTION) == []


async def test_names_as_long_as_no_models_are_not_written(store: Fickle, clock: FakeClock) -> None:
    worker = Worker(store, clock)
    for length in (400, 4_000):
        worker.calibrations.learn("up", "m" * length, UNKNOWN, 1_000, 1_200)
    await worker.look()
    assert len(await store.scan(RATIOS_COLLECTION)) == 1


def refusal(worker: Worker) -> LearnedLimit:
    found = worker.limits.find(WHOSE)
    assert found is not None
    return found


async def test_how_long_responses_are_and_that_output_counts_is_known_to_all(store: Fickle, clock: FakeClock) -> None:
    one, later = Worker(store, clock), Worker(store, clock)
    for _ in range(9):
        one.calibrations.learn_output("up", "m", 600)
    one.limits.learn(WHOSE, 0, 60.0, counts_output=True)
    await one.look()
    await later.look()
    assert later.calibrations.output_space("up", "m", 128_000, 0, 20.0) == 12_000
    assert refusal(later).counts_output
    assert later.limits.get(WHOSE) is None
    assert later.limits.list_limits(WHOSE.tenant) == []


async def test_an_error_that_names_a_limit_does_not_end_what_another_taught(store: Fickle, clock: FakeClock) -> None:
    one = Worker(store, clock)
    one.limits.learn(WHOSE, 64_000, 60.0)
    one.limits.learn(WHOSE, 0, 60.0, counts_output=True)
    one.limits.learn(WHOSE, 32_000, 60.0)
    assert (one.limits.get(WHOSE), refusal(one).counts_output) == (32_000, True)
    clock.advance(61.0)
    assert one.limits.find(WHOSE) is None


async def test_all_workers_know_what_a_provider_refuses(store: Fickle, clock: FakeClock) -> None:
    one, other = Worker(store, clock), Worker(store, clock)
    one.limits.learn(WHOSE, 0, 60.0, refused_form="whole")
    one.limits.learn(WHOSE, 0, 60.0, refused_fields=("schema",))
    one.limits.learn(WHOSE, 0, 60.0, refused_form="free")
    await one.look()
    await other.look()
    assert (refusal(other).refused_form, refusal(other).refused_fields) == ("whole", ("schema",))
    assert len(other.limits.list_limits(WHOSE.tenant)) == 1
    clock.advance(61.0)
    assert other.limits.find(WHOSE) is None


async def test_limits_of_an_earlier_version_are_read(store: Fickle, clock: FakeClock) -> None:
    name = msgspec.json.encode(WHOSE).decode()
    await store.put(Key(LIMITS_COLLECTION, name), b"[64000,%d]" % (clock.now() + 60), ttl=60.0)
    one = Worker(store, clock)
    await one.look()
    assert (one.limits.get(WHOSE), refusal(one).counts_output) == (64_000, False)
