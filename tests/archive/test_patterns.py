"""Searching by pattern."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.patterns import InvalidPattern, LineMatch, compile_pattern, find_lines, find_spans

TEXT = "one\ntwo x\nthree\n\nfour x x\n"


def test_each_line_that_matches_is_found_once_with_the_first_place_in_it():
    assert list(find_lines(TEXT, compile_pattern("x"))) == [LineMatch(1, 4, 5), LineMatch(4, 5, 6)]


def test_lines_are_found_from_a_line_on():
    assert [hit.line for hit in find_lines(TEXT, compile_pattern("o"), 1)] == [1, 4]
    assert list(find_lines(TEXT, compile_pattern("o"), 99)) == []


def test_a_pattern_matches_within_a_line_and_its_anchors_are_those_of_the_line():
    assert [hit.line for hit in find_lines(TEXT, compile_pattern("^t"))] == [1, 2]
    assert [hit.line for hit in find_lines(TEXT, compile_pattern("[^q]*x$"))] == [1, 4]
    assert list(find_lines(TEXT, compile_pattern("two x.three"))) == []
    assert [hit.line for hit in find_lines(TEXT, compile_pattern("^$"))] == [3, 5]


def test_places_are_counted_in_characters_not_in_bytes():
    assert list(find_lines("ää x\nü x", compile_pattern("x"))) == [LineMatch(0, 3, 4), LineMatch(1, 2, 3)]
    assert list(find_spans("ää x ü x", compile_pattern("x"))) == [(3, 4), (7, 8)]
    assert list(find_spans("ää x ü x", compile_pattern("x"), 4)) == [(7, 8)]


@pytest.mark.parametrize("pattern", ["", "x" * 501, "(", "(?<=a)b", r"(a)\1", "((a{1000}){1000}){1000}", "[z-a]"])
def test_an_invalid_pattern_is_refused_with_a_reason(pattern):
    with pytest.raises(InvalidPattern, match=r"\w"):
        compile_pattern(pattern)


def test_a_pattern_that_would_take_too_long_on_a_text_is_refused():
    with pytest.raises(InvalidPattern, match="too long"):
        list(find_lines("ab" * 200_000, compile_pattern(r"a.{500}(a|b).{400}x")))


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|a)*b", r"(a|aa)+$", r"(.*)(.*)(.*)(.*)x", r"([a-z]+)*0"])
def test_patterns_that_other_engines_take_for_ever_with_are_matched(pattern):
    assert list(find_lines("a" * 100_000 + "!", compile_pattern(pattern))) == []


def test_a_text_with_many_matches_that_each_look_far_ahead_is_given_up_in_time():
    found = list(find_spans("x" + " x" * 2_000_000, compile_pattern("x[^q]*q|x")))
    assert 0 < len(found) < 100


@given(st.text("ab\nä ", max_size=60), st.sampled_from(["a", "b", "ab", "ä", "a b", "^b", "a$", "a+b?", "[ab]+"]))
def test_the_lines_found_are_those_that_a_plain_search_of_each_line_finds(text, pattern):
    expected = [
        LineMatch(number, found.start(), found.end())
        for number, line in enumerate(text.split("\n"))
        if (found := re.search(pattern, line))
    ]
    assert list(find_lines(text, compile_pattern(pattern))) == expected


@given(st.text(max_size=40), st.text(max_size=60))
def test_any_pattern_on_any_text_finds_lines_or_is_refused(pattern, text):
    try:
        made = compile_pattern(pattern)
    except InvalidPattern:
        return
    lines = text.split("\n")
    for hit in find_lines(text, made):
        assert 0 <= hit.start <= hit.end <= len(lines[hit.line])
    for start, end in find_spans(text, made):
        assert 0 <= start <= end <= len(text)


@given(st.text(min_size=1, max_size=20), st.text(max_size=60))
def test_plain_text_is_found_where_it_stands(word, text):
    found = [hit.line for hit in find_lines(text, compile_pattern(word, literal=True))]
    assert found == [n for n, line in enumerate(text.split("\n")) if word in line]
