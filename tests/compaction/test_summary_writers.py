"""When a model may be asked for summaries, after it failed and after it succeeded."""

import logging

import pytest

from accordion.compaction.background import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    TOKENS_BETWEEN_TRIALS,
    SummaryFailure,
    SummaryWriter,
    WriterHistory,
)
from tests.fakes import FakeClock

MODEL = SummaryWriter("tenant", "openai", "small")
USELESS = SummaryFailure("the model's answer is not a summary", 1, 3_000, 40)
UNREACHABLE = SummaryFailure("the model answered with status 429")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def writers(clock: FakeClock) -> WriterHistory:
    return WriterHistory(clock)


def pass_on(clock: FakeClock, writers: WriterHistory, seconds: float) -> None:
    """Time and tokens enough for another trial."""
    clock.advance(seconds)
    writers.count_request(MODEL, TOKENS_BETWEEN_TRIALS)


def test_a_model_that_nobody_has_used_may_be_tried_and_is_not_proven(writers: WriterHistory):
    assert writers.may_try(MODEL, "one")
    assert not writers.is_proven(MODEL)


def test_a_first_failure_pauses_an_unproven_model_in_all_sessions(writers: WriterHistory):
    writers.record_failure(MODEL, "one", "s-1", USELESS)
    assert not writers.may_try(MODEL, "one")
    assert not writers.may_try(MODEL, "two")


@pytest.mark.parametrize("other", [("other", "openai", "small"), ("tenant", "b", "small"), ("tenant", "openai", "b")])
def test_a_pause_is_of_one_tenant_and_one_model(writers: WriterHistory, other: tuple[str, str, str]):
    writers.record_failure(MODEL, "one", "s-1", USELESS)
    assert writers.may_try(SummaryWriter(*other), "one")


def test_a_failure_of_a_proven_model_pauses_its_session_and_the_next_is_a_trial(writers: WriterHistory):
    writers.record_success(MODEL, "one")
    assert writers.is_proven(MODEL)
    writers.record_failure(MODEL, "one", "s-1", USELESS)
    assert not writers.may_try(MODEL, "one")
    assert writers.may_try(MODEL, "two")
    assert not writers.is_proven(MODEL)
    writers.record_failure(MODEL, "two", "s-2", USELESS)
    assert not writers.may_try(MODEL, "three")


def test_a_pause_ends_when_time_and_tokens_have_passed(writers: WriterHistory, clock: FakeClock):
    writers.record_failure(MODEL, "one", "s-1", USELESS)
    clock.advance(FIRST_PAUSE)
    assert not writers.may_try(MODEL, "one")
    writers.count_request(MODEL, TOKENS_BETWEEN_TRIALS)
    assert writers.may_try(MODEL, "one")


def test_every_failure_in_a_row_doubles_the_pause(writers: WriterHistory, clock: FakeClock):
    for number in range(12):
        writers.record_failure(MODEL, "one", "s-1", USELESS)
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**number)
        pass_on(clock, writers, pause - 1)
        assert not writers.may_try(MODEL, "one")
        clock.advance(1)
        assert writers.may_try(MODEL, "one")


def test_a_good_summary_ends_every_pause(writers: WriterHistory, clock: FakeClock):
    for _ in range(4):
        writers.record_failure(MODEL, "one", "s-1", USELESS)
    writers.record_success(MODEL, "one")
    assert writers.may_try(MODEL, "one")
    writers.record_failure(MODEL, "one", "s-1", USELESS)
    clock.advance(FIRST_PAUSE)
    assert writers.may_try(MODEL, "one")


def test_a_model_that_could_not_be_asked_is_not_paused(writers: WriterHistory):
    writers.record_failure(MODEL, "one", "s-1", UNREACHABLE)
    assert writers.may_try(MODEL, "one")


def test_three_failures_in_a_row_are_a_warning(writers: WriterHistory, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "accordion")
    for _ in range(6):
        writers.record_failure(MODEL, "one", "s-1", USELESS)
    assert [line.levelname for line in caplog.records] == ["INFO", "INFO", "WARNING", "INFO", "INFO", "INFO"]
    warning = caplog.records[2]
    assert warning.getMessage().startswith("session s-1: summaries by small failed 3 times in a row")
    assert USELESS.reason in warning.getMessage()
    assert warning.tokens == 3_040  # type: ignore[attr-defined]


def test_records_are_bounded(writers: WriterHistory):
    for number in range(5_000):
        writers.record_failure(MODEL, number, "s", UNREACHABLE)
    assert len(writers._records) <= 4_000
