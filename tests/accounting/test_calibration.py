import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.accounting.calibration import (
    LEAST_COUNTED,
    LEAST_OUTPUT,
    LEAST_OUTPUTS,
    LEAST_RATIO,
    MAX_OUTPUTS,
    MAX_RATIOS,
    MODELS_AT_MOST,
    MOST_RATIO,
    UNKNOWN,
    Calibrations,
    CorrectionRatios,
    ReportedCount,
    estimate_tokens,
)

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
