"""What is learnt of limits, by one worker."""

from accordion.accounting.learned_limits import MAX_LIMITS, LearnedLimit, LearnedLimits, LimitOwner
from tests.fakes import FakeClock

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
