"""The tool that is offered, and what is made of the arguments that models write."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.reader import Wish
from accordion.archive.tool import NAME, OTHER_NAME, all_ids, offer, wish_of

ONE, OTHER = "art_0123456789ab", "art_ba9876543210"


def test_the_tool_has_the_name_that_references_say():
    assert offer([]).name == NAME == "read_artifact"
    assert offer(["read", "write"]) == offer([])


def test_where_the_client_has_a_tool_of_that_name_ours_has_another_and_says_what_it_is_meant_for():
    made = offer([NAME])
    assert made.name == OTHER_NAME
    assert f"wherever `{NAME}` is named" in made.description
    assert offer([NAME, OTHER_NAME]).name not in (NAME, OTHER_NAME)


def test_every_argument_that_is_offered_is_understood():
    schema = json.loads(offer([]).schema)
    values = {"id": ONE, "offset": 5, "limit": 6, "pattern": "x", "path": "$.a", "diff_with": OTHER}
    assert set(schema["properties"]) == set(values)
    assert schema["required"] == ["id"]
    assert wish_of(json.dumps(values)) == Wish(ONE, 5, 6, "x", "$.a", OTHER)


def test_the_description_tells_of_artifacts_in_other_tools_arguments():
    assert '{"$artifact": "art_…", "path": "…"}' in offer([]).description


@pytest.mark.parametrize(
    ("arguments", "wish"),
    [
        ({"id": ONE}, Wish(ONE)),
        ({"id": f'read_artifact("{ONE}") please'}, Wish(ONE)),
        ({"id": ONE.upper()}, Wish(ONE)),
        ({"artifact_id": ONE, "unknown": [1]}, Wish(ONE)),
        ({"id": {"$artifact": ONE}}, Wish(ONE)),
        ({"id": [ONE]}, Wish(ONE)),
        ({"id": ONE, "offset": "12", "limit": "20 lines"}, Wish(ONE, 12, 20)),
        ({"id": ONE, "offset": 12.0, "limit": "1,000"}, Wish(ONE, 12, 1_000)),
        ({"id": ONE, "offset": -5, "limit": -5}, Wish(ONE, -5, 0)),
        ({"id": ONE, "offset": True, "limit": "all"}, Wish(ONE)),
        ({"id": ONE, "offset": None, "pattern": None, "path": "", "diff_with": "null"}, Wish(ONE)),
        ({"id": ONE, "pattern": "None"}, Wish(ONE, pattern="None")),
        ({"diff_with": OTHER, "id": ONE}, Wish(ONE, other=OTHER)),
        ({"what": ONE, "diff_with": OTHER}, Wish(ONE, other=OTHER)),
        ({"id": ONE, "offset": 10**30}, Wish(ONE, 10**9)),
        ({"id": "none"}, Wish("")),
        ({}, Wish("")),
    ],
)
def test_arguments_are_taken_as_models_write_them(arguments, wish):
    assert wish_of(json.dumps(arguments)) == wish


@pytest.mark.parametrize("arguments", [ONE, f'"{ONE}"', f'{{"id": "{ONE}"', json.dumps(json.dumps({"id": ONE}))])
def test_arguments_that_are_no_object_still_name_the_artifact(arguments):
    assert wish_of(arguments) == Wish(ONE)


def test_what_only_looks_like_an_id_is_none():
    assert all_ids(f"art_12 art_{'0' * 13} art_zzzzzzzzzzzz") == []
    assert all_ids(f"{ONE}, {OTHER}.") == [ONE, OTHER]


@given(st.text(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["id", "offset", "limit", "pattern", "path", "diff_with", "x"]), inner, max_size=4),
).map(json.dumps))  # fmt: skip
def test_no_arguments_whatever_raise(arguments):
    wish = wish_of(arguments)
    assert wish.limit >= 0
    assert isinstance(wish.offset, int)
