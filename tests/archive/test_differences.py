"""The difference between two readings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.differences import LINES_MOST, find_difference

OLD = "\n".join(f"line {n}" for n in range(100))


def test_a_difference_shows_its_position_and_the_lines_around_it():
    text, told = find_difference(OLD, OLD.replace("line 50", "LINE 50"))
    assert text == ("@@ -48,7 +48,7 @@\n line 47\n line 48\n line 49\n-line 50\n+LINE 50\n line 51\n line 52\n line 53")
    assert told == "1 line removed, 1 added"


def test_equal_texts_have_no_difference():
    assert find_difference(OLD, OLD) == ("", "no differences")


def test_too_much_that_differs_is_told_as_the_lines_that_one_side_has():
    many = range(2 * LINES_MOST)
    text, told = find_difference("\n".join(f"a{n}" for n in many), "\n".join(f"b{n}" for n in many) + "\na0")
    assert "too many to align" in told
    assert text.startswith("-a1\n-a2\n")
    assert "-a0" not in text.split("\n")


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "-x", "+y"]), max_size=25)


@given(LINES, LINES)
def test_a_difference_holds_every_line_that_changed(old, new):
    text, _ = find_difference("\n".join(old), "\n".join(new))
    before, after = ("\n".join(each).split("\n") for each in (old, new))
    rows = [row for row in text.split("\n") if not row.startswith("@@")] if text else []
    less = [row[1:] for row in rows if row[0] == "-"]
    more = [row[1:] for row in rows if row[0] == "+"]
    for line in {*before, *after}:
        assert before.count(line) - less.count(line) == after.count(line) - more.count(line)
    assert (before == after) == (not rows)
