"""How answers are judged, and the intervals of shares."""

from __future__ import annotations

import pytest

from bench.judging import interval, is_right, show_interval
from bench.question_sets import AnswerForm, ReaderQuestion


@pytest.mark.parametrize(
    ("form", "expected", "reply", "right"),
    [
        ("words", "Adoption agencies", "She researched adoption agencies.", True),
        ("words", "Adoption agencies", "An agency", False),
        ("value", "8080", "The port is 8080.", True),
        ("value", "8080", "18080", False),
        ("value", "a.b@example.com", "A.B@example.com", True),
        ("letter", "B", "B: Use the service Zivazi.", True),
        ("letter", "B", "A", False),
        ("letter", "B", "Both hold", False),
        ("unknown", "", "Unknown.", True),
        ("unknown", "", "It is not mentioned.", True),
        ("unknown", "", "Paris", False),
    ],
)
def test_a_reply_is_judged_by_its_literal(form: AnswerForm, expected: str, reply: str, right: bool):
    assert is_right(ReaderQuestion("?", expected, form), reply) is right


def test_an_interval_is_wider_if_whole_conversations_differ():
    mixed = {str(each): [0.0, 1.0] * 5 for each in range(8)}
    apart = {str(each): [float(each % 2)] * 10 for each in range(8)}
    assert interval(mixed) == (0.5, 0.5, 0.5)
    mean, low, high = interval(apart)
    assert mean == 0.5
    assert 0.0 < low < 0.3
    assert 0.7 < high < 1.0
    assert interval(apart) == (mean, low, high)


def test_a_share_without_figures_is_shown_as_none():
    assert show_interval({"a": []}) is None
    assert show_interval({"a": [1.0, 0.0]}) == "50 (50-50)"
    assert show_interval({"a": [-1.0, 0.0]}, is_difference=True) == "-50 (-50 to -50)"
