"""The short form of one long tool result."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from accordion.summaries.digest import make_digest

LOG = "\n".join(
    [
        "$ make test",
        *(f"compiling unit {n}" for n in range(500)),
        "ERROR: unit 77 has no header",
        *(f"linking {n}" for n in range(500)),
        "2 passed",
    ]
)


def test_a_text_that_fits_comes_back_as_it_is():
    assert make_digest("short\ntext", 100) == "short\ntext"


def test_head_tail_and_errors_are_kept():
    text = make_digest(LOG, 800)
    assert text.startswith("$ make test\n")
    assert text.endswith("2 passed")
    assert "ERROR: unit 77 has no header" in text


def test_what_was_left_out_is_counted_right():
    text = make_digest(LOG, 800)
    left = sum(int(n) for n in re.findall(r"… (\d+) lines left out …", text))
    shown = sum("left out" not in line for line in text.split("\n"))
    assert left + shown == LOG.count("\n") + 1


def test_wanted_strings_come_first():
    assert "linking 300" in make_digest(LOG, 400, keywords=["linking 300"])
    assert "linking 300" not in make_digest(LOG, 400)


def test_json_keeps_scalars_by_path_and_says_how_much_there_is():
    text = make_digest(json.dumps({"orders": [{"id": f"W{n}"} for n in range(300)]}), 400)
    assert "$.orders: array, 300 items" in text
    assert "$.orders[0].id: W0" in text
    assert text.endswith("… more left out …")


def test_a_huge_single_line_is_cut_in_the_middle_and_says_so():
    text = make_digest("word " * 100_000, 300)
    assert re.search(r"… \d+ characters left out …", text)


def test_no_room_gives_nothing():
    assert make_digest(LOG, 0) == ""
    assert make_digest(LOG, 39) == ""


@given(st.text(max_size=400), st.integers(0, 300))
def test_the_room_is_kept_whatever_the_text(text, room):
    assert len(make_digest(text, room)) <= room or (make_digest(text, room) == text and len(text) <= room)


@given(st.lists(st.text(max_size=60), max_size=40), st.integers(40, 500))
def test_many_lines_keep_the_room_too(lines, room):
    assert len(make_digest("\n".join(lines), room)) <= room
