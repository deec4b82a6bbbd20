"""Reading a text in parts: every part says what of how much it is, and where the next one begins."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.reader import ReadRequest, UnanswerableRequest, outline, read, read_matches, read_page
from accordion.model.errors import InvalidPath

LOG = "\n".join(f"line {n} {'ERROR x[0]' if n % 40 == 0 else 'fine'}" for n in range(1, 101))
DATA = json.dumps({"items": [{"id": n, "name": f"n{n}"} for n in range(30)], "note": "two\nlines"})


def test_a_page_says_which_lines_it_has_and_where_the_next_begins():
    part = read_page(LOG, 11, 3, 10_000)
    assert part.text == "line 11 fine\nline 12 fine\nline 13 fine"
    assert (part.shown, part.next) == ("lines 11-13 of 100", 14)


def test_the_last_page_has_no_next():
    assert read_page(LOG, 99, 10, 10_000).next == 0
    assert read_page("all", 0, 0, 100) == read_page("all", 1, 5, 100)
    assert read_page("all", 0, 0, 100).shown == "complete, 1 line"


def test_an_offset_below_0_counts_from_the_end():
    assert read_page(LOG, -2, 0, 1_000).text == "line 99 fine\nline 100 fine"
    assert read_page(LOG, -1_000, 1, 1_000).text == "line 1 fine"


def test_an_offset_behind_the_end_says_how_much_there_is():
    with pytest.raises(UnanswerableRequest, match="100 lines"):
        read_page(LOG, 101, 0, 1_000)


def test_a_text_with_very_long_lines_is_paged_by_characters_and_says_so():
    text = "x" * 3_000 + "é" * 3_000
    part = read_page(text, 0, 0, 2_000)
    assert part.shown.startswith("characters 1-2,000 of 6,000 (long lines")
    assert read_page(text, part.next, 10, 2_000).text == "x" * 10
    assert read_page(text, -5, 0, 2_000).text == "é" * 5


def test_a_line_that_there_is_no_room_for_is_cut_and_says_so():
    part = read_page("a" * 100 + "\nb", 0, 0, 30)
    assert part.text == "a" * 30
    assert part.shown == "line 1 of 2, its first 30 of 100 characters"


@given(st.text(st.sampled_from("ab\n é"), max_size=400), st.integers(1, 60))
def test_the_pages_of_a_text_are_all_of_it(text, limit):
    pages, offset = [], 1
    while offset:
        part = read_page(text, offset, limit, 5_000)
        pages.append(part.text)
        offset = part.next
    assert "\n".join(pages) == text


@given(st.text(min_size=1, max_size=9).map(lambda text: text.replace("\n", "é") * 4_100), st.integers(500, 3_000))
def test_the_pages_of_one_long_line_are_all_of_it(text, most):
    pages, offset = "", 1
    while offset:
        part = read_page(text, offset, 0, most)
        pages += part.text
        offset = part.next
    assert pages == text


@given(st.text(max_size=600), st.integers(-50, 50), st.integers(0, 20), st.integers(1, 300), st.text(max_size=6))
def test_no_part_is_longer_than_there_is_room_for(text, offset, limit, most, pattern):
    for wish in (ReadRequest("a", offset, limit), ReadRequest("a", offset, limit, pattern)):
        try:
            assert len(read(text, wish, most).text) <= most
        except UnanswerableRequest:
            continue


def test_matches_have_their_numbers_and_the_lines_around_them():
    part = read_matches(LOG, "ERROR", 0, 1, 10_000)
    assert part.text == "38-line 38 fine\n39-line 39 fine\n40:line 40 ERROR x[0]\n41-line 41 fine\n42-line 42 fine"
    assert part.shown == '2 of 100 lines match "ERROR"; the first 1 shown'
    assert part.next == 80


def test_the_next_part_of_the_matches_goes_on_behind_the_first():
    part = read_matches(LOG, "ERROR", 80, 0, 10_000)
    assert "80:line 80 ERROR x[0]" in part.text
    assert part.shown == '1 of 100 lines matches "ERROR" from line 80 on'
    assert part.next == 0


def test_matches_that_lie_close_share_their_lines():
    part = read_matches("a\nb\na\nc\nd\ne\nf\ng\na", "a", 0, 0, 1_000)
    assert part.text == "1:a\n2-b\n3:a\n4-c\n5-d\n--\n7-f\n8-g\n9:a"


def test_a_pattern_without_a_match_says_so():
    assert read_matches(LOG, "nothing", 0, 0, 1_000).shown == '0 of 100 lines match "nothing"'


@pytest.mark.parametrize(
    ("pattern", "way"), [("x[0]", "as plain text"), ("error", "ignoring case"), ("x[", "no valid RE2")]
)
def test_a_pattern_is_also_taken_as_text_and_in_any_case_and_that_is_said(pattern, way):
    part = read_matches(LOG, pattern, 0, 0, 1_000)
    assert part.shown.startswith("2 of ")
    assert way in part.shown


def test_a_bad_pattern_that_stands_nowhere_says_what_is_bad():
    with pytest.raises(UnanswerableRequest, match="missing"):
        read_matches(LOG, "nowhere(", 0, 0, 1_000)


def test_matches_in_very_long_lines_have_their_places_in_characters():
    text = "x" * 5_000 + "needle" + "y" * 5_000 + "needle"
    part = read_matches(text, "needle", 0, 1, 1_000)
    assert part.text.startswith("5001: …" + "x" * 100 + "needleyyy")
    assert part.shown == '2 matches for "needle" in 10,012 characters; the first 1 shown'
    assert read_matches(text, "needle", part.next, 1, 1_000).text.startswith(f"{part.next}: ")


def test_a_long_line_is_shown_around_its_match():
    part = read_matches("a" * 1_000 + "needle" + "b" * 1_000, "needle", 0, 0, 5_000)
    assert "needle" in part.text
    assert len(part.text) < 420


def test_a_string_at_a_path_is_read_as_its_text():
    part = read(DATA, ReadRequest("a", path="$.note"), 1_000)
    assert part.text == "two\nlines"
    assert part.shown == "the value at $.note; complete, 2 lines"


def test_an_object_at_a_path_is_read_as_json_in_lines():
    assert json.loads(read(DATA, ReadRequest("a", path="$.items[2]"), 1_000).text) == {"id": 2, "name": "n2"}


def test_several_values_are_read_one_a_line_with_their_paths_and_counted():
    part = read(DATA, ReadRequest("a", path="$.items[*].name", limit=2), 1_000)
    assert part.text == '$.items[0].name: "n0"\n$.items[1].name: "n1"'
    assert part.shown == "30 values at $.items[*].name; lines 1-2 of 30"
    assert part.next == 3


def test_a_path_and_a_pattern_go_together():
    part = read(DATA, ReadRequest("a", path="$.items[*].name", pattern='"n2."'), 1_000)
    assert "10 values" not in part.shown
    assert "10 of 30 lines match" in part.shown


def test_lines_of_json_are_a_list():
    assert read('{"a": 1}\n{"a": 2}\n', ReadRequest("a", path="$[1].a"), 100).text == "2"


def test_a_path_without_a_value_returns_the_structure():
    with pytest.raises(InvalidPath, match=r"items \(array of 30\), note \(text\)"):
        read(DATA, ReadRequest("a", path="$.item"), 1_000)
    with pytest.raises(InvalidPath, match="not JSON"):
        read(LOG, ReadRequest("a", path="$.item"), 1_000)


def test_a_reading_shows_the_difference_to_an_earlier_one():
    part = read(LOG.replace("line 50 ", "line fifty "), ReadRequest("a", other="art_b"), 1_000, LOG)
    assert "-line 50 fine\n+line fifty fine" in part.text
    assert part.shown.startswith("diff from art_b: 1 line removed, 1 added; complete")
    assert read(LOG, ReadRequest("a", other="art_b"), 1_000, LOG).shown == "diff from art_b: no differences"


def test_the_structure_of_a_text_is_told():
    assert outline("plain\ntext") == "It has 10 characters in 2 lines."
    assert outline('[{"a": {}, "b": true}]') == (
        "It is a JSON array of 1 entries. Its first entry has a (object of 0), b (true or false)."
    )
