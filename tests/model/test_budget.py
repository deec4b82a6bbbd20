import pytest

from accordion.model.budget import Thresholds, TokenLimits, Utilization

WORKED = [
    (99_999, 84_999, 75_000),
    (100_000, 90_000, 83_000),
    (200_000, 180_000, 166_000),
    (400_000, 360_000, 332_000),
    (500_000, 475_000, 455_000),
    (1_048_576, 996_147, 954_204),
]
"""Window, the most that is under the hard limit, the trigger of a mid-generation compaction."""


@pytest.mark.parametrize(("window", "hard", "trigger"), WORKED)
def test_the_limits_of_a_generation_follow_from_the_windows_size(window: int, hard: int, trigger: int) -> None:
    limits = Thresholds().limits(window)
    assert (limits.hard, limits.generation) == (hard, trigger)


def test_a_conversation_is_compacted_from_half_of_the_window_on() -> None:
    assert Thresholds().limits(200_000).conversation == 100_000


def test_window_triggers_and_hard_limit_can_each_be_set() -> None:
    limits = Thresholds(conversation=0.4, generation=0.6, hard=0.8).limits(1_000)
    assert limits == TokenLimits(
        window=1_000,
        conversation=400,
        generation=600,
        hard=800,
        conversation_target=250,
        generation_target=250,
        soft=100,
        warning=50,
        cold_cache=100,
    )


@pytest.mark.parametrize(
    ("shares", "occupied", "left"),
    [
        ({}, 449, None),
        ({}, 450, 50),
        ({}, 499, 1),
        ({}, 700, 0),
        ({"warning": 0.2}, 300, 200),
        ({"warning": 0.0}, 499, None),
        ({"conversation": 1.0}, 990, None),
        ({"conversation": 0.9, "hard": 0.8}, 790, 10),
    ],
)
def test_the_tokens_left_are_known_near_the_trigger(shares: dict[str, float], occupied: int, left: int | None) -> None:
    assert Thresholds(**shares).limits(1_000).tokens_left(occupied) == left


def test_a_trigger_of_one_switches_its_kind_off() -> None:
    assert Thresholds(conversation=1.0).limits(1_000).never == ("conversation",)
    assert Thresholds(generation=1.0).limits(1_000).never == ("generation",)


def test_a_given_hard_limit_keeps_the_buffer_below_it() -> None:
    assert Thresholds(hard=0.5).limits(100_000).generation == 50_000 - 7_000


def test_utilization_counts_everything_sent_and_the_room_for_the_answer() -> None:
    used = Utilization(window=1_000, preamble=10, tools=20, messages=30, media=40, reserved_output=100, insertions=50)
    assert used.tokens == 150
    assert used.occupied_tokens == 250
    assert used.ratio == 0.25


def test_a_window_of_unknown_size_is_never_divided_by() -> None:
    assert Utilization(0, messages=5).ratio == 0.0


def test_a_correction_keeps_the_parts_and_puts_the_difference_into_the_messages() -> None:
    used = Utilization(window=1_000, preamble=10, tools=20, messages=30, insertions=5).with_total(
        160, includes_report=True, factor=2.0
    )
    assert (used.preamble, used.tools, used.messages, used.insertions, used.tokens) == (20, 40, 90, 10, 160)
    assert used.includes_report


def test_parts_that_were_taken_for_more_than_was_reported_in_all_give_way_to_it() -> None:
    used = Utilization(window=200_000, preamble=100, tools=300, messages=50, media=85_000)
    corrected = used.with_total(20_000, includes_report=True)
    assert corrected.tokens == 20_000
    assert corrected.media > 19_000
    assert min(corrected.preamble, corrected.tools, corrected.messages) >= 0
    assert used.with_total(0, factor=0.5, includes_report=True).tokens == 0
