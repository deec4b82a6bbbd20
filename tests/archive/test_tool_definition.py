"""The tool that is offered, and what is made of the arguments that models write."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.reader import ReadRequest
from accordion.archive.tool_calls import NAME, OTHER_NAME, define_tool, find_artifact_ids, parse_arguments

ONE, OTHER = "art_0123456789ab", "art_ba9876543210"


def test_the_tool_has_the_name_that_references_say():
    assert define_tool([]).name == NAME == "read_artifact"
    assert define_tool(["read", "write"]) == define_tool([])


def test_our_tool_takes_another_name_where_the_client_has_a_tool_of_that_name():
    made = define_tool([NAME])
    assert made.name == OTHER_NAME
    assert f"says `{NAME}` with such an id" in made.description
    assert define_tool([NAME, OTHER_NAME]).name not in (NAME, OTHER_NAME)


def test_every_argument_that_is_offered_is_understood():
    schema = json.loads(define_tool([]).schema)
    values = {"id": ONE, "offset": 5, "limit": 6, "pattern": "x", "path": "$.a", "diff_with": OTHER}
    assert set(schema["properties"]) == {*values, "search"}
    assert parse_arguments('{"search": "the words"}') == ReadRequest("", search="the words")
    assert parse_arguments(json.dumps(values)) == ReadRequest(ONE, 5, 6, "x", "$.a", OTHER)


@pytest.mark.parametrize(
    ("arguments", "wish"),
    [
        ({"id": ONE}, ReadRequest(ONE)),
        ({"id": f'read_artifact("{ONE}") please'}, ReadRequest(ONE)),
        ({"id": ONE.upper()}, ReadRequest(ONE)),
        ({"artifact_id": ONE, "unknown": [1]}, ReadRequest(ONE)),
        ({"id": [ONE]}, ReadRequest(ONE)),
        ({"id": ONE, "offset": "12", "limit": "20 lines"}, ReadRequest(ONE, 12, 20)),
        ({"id": ONE, "offset": 12.0, "limit": "1,000"}, ReadRequest(ONE, 12, 1_000)),
        ({"id": ONE, "offset": -5, "limit": -5}, ReadRequest(ONE, -5, 0)),
        ({"id": ONE, "offset": True, "limit": "all"}, ReadRequest(ONE)),
        ({"id": ONE, "offset": None, "pattern": None, "path": "", "diff_with": "null"}, ReadRequest(ONE)),
        ({"id": ONE, "pattern": "None"}, ReadRequest(ONE, pattern="None")),
        ({"diff_with": OTHER, "id": ONE}, ReadRequest(ONE, other=OTHER)),
        ({"what": ONE, "diff_with": OTHER}, ReadRequest(ONE, other=OTHER)),
        ({"id": ONE, "offset": 10**30}, ReadRequest(ONE, 10**9)),
        ({"id": "none"}, ReadRequest("")),
        ({}, ReadRequest("")),
    ],
)
def test_arguments_are_taken_as_models_write_them(arguments, wish):
    assert parse_arguments(json.dumps(arguments)) == wish


@pytest.mark.parametrize("arguments", [ONE, f'"{ONE}"', f'{{"id": "{ONE}"', json.dumps(json.dumps({"id": ONE}))])
def test_arguments_that_are_no_object_still_name_the_artifact(arguments):
    assert parse_arguments(arguments) == ReadRequest(ONE)


def test_text_that_resembles_an_id_is_none():
    assert find_artifact_ids(f"art_12 art_{'0' * 13} art_zzzzzzzzzzzz") == []
    assert find_artifact_ids(f"{ONE}, {OTHER}.") == [ONE, OTHER]


@given(st.text(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["id", "offset", "limit", "pattern", "path", "diff_with", "x"]), inner, max_size=4),
).map(json.dumps))  # fmt: skip
def test_no_arguments_whatever_raise(arguments):
    wish = parse_arguments(arguments)
    assert wish.limit >= 0
    assert isinstance(wish.offset, int)
