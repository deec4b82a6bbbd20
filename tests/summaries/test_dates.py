"""The dates above what was said, and lines that have nothing else."""

from __future__ import annotations

import pytest

from accordion.summaries.dates import find_date, is_date


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("[Session 3, 7:55 pm on 9 June, 2023]\nHello.", "9 June, 2023"),
        ("2026-05-01 10:00: the release", "2026-05-01 10:00"),
        ("May 1st, 2026\nIt is out.", "May 1st, 2026"),
        ("Nothing is dated here.", ""),
    ],
)
def test_a_text_has_the_date_that_it_begins_with(text: str, date: str) -> None:
    assert find_date(text) == date


@pytest.mark.parametrize(
    ("line", "is_alone"),
    [
        ("[Session 3, 7:55 pm on 9 June, 2023]", True),
        ("*Monday, May 1, 2026*:", True),
        ("9 June 2023, 7:55 pm", True),
        ("2026-05-01 10:00", True),
        ("Clara's birthday is 5 May 2026", False),
        ("5 May 2026: the release", False),
        ("Hello.", False),
    ],
)
def test_a_line_is_a_date_if_it_says_nothing_else(line: str, is_alone: bool) -> None:
    assert is_date(line) == is_alone
