"""JSON paths at a bounded cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive import path_walk
from accordion.archive.path_walk import select
from accordion.model.errors import InvalidPath

DOC = {
    "items": [{"id": n, "name": f"n{n}", "tags": ["a", "b"], "odd key": n % 2 == 1} for n in range(20)],
    "next": None,
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("$.items[3].name", ["n3"]),
        ("$['items'][-1].id", [19]),
        ("$.items[2:4].id", [2, 3]),
        ("$..name", [f"n{n}" for n in range(20)]),
        ("$.items[?@.id > 17].id", [18, 19]),
        ("$.items[?@.name == 'n5' || @.id == 7].id", [5, 7]),
        ("$.items[?@['odd key'] == true && @.id < 4].id", [1, 3]),
        ("$.items[?search(@.name, '^n1.$')].id", list(range(10, 20))),
        ("$.items[?match(@.name, 'n[12]')].id", [1, 2]),
        ("$.items[?length(@.tags) == 2 && @.id == 1].id", [1]),
        ("$.next", [None]),
        ("$.nothing", []),
    ],
)
def test_paths_find_what_the_standard_says(path, values):
    found = select(DOC, path, 100)
    assert [value for _, value in found.values] == values
    assert found.complete


def test_each_value_has_its_own_path():
    assert select(DOC, "$.items[1].*", 9).values[3] == ('$.items[1]["odd key"]', True)


@pytest.mark.parametrize("path", ["items[3].name", ".items[3].name", "$.items.[3].name", "['items'][3].name"])
def test_a_path_is_taken_as_models_write_it(path):
    assert select(DOC, path, 9).values == (("$.items[3].name", "n3"),)


def test_empty_brackets_mean_every_entry():
    assert len(select(DOC, ".items[].id", 100).values) == 20


def test_no_more_is_given_than_was_asked_for_and_that_is_said():
    found = select(DOC, "$..name", 3)
    assert [value for _, value in found.values] == ["n0", "n1", "n2"]
    assert not found.complete


@pytest.mark.parametrize(
    "path",
    ["", "$(", "$.items[?", "$[?@..x]", "$..a..b..c", "$" + ".a" * 40, "$.a" * 300, "$[?" + "(" * 450, "$[?f(@.a)]",
     "$[" + ",".join("0" * 40) + "]", "$.items[?@.tags == @.tags]", "$[99999999999999999999]"],
)  # fmt: skip
def test_an_invalid_or_excessive_path_is_refused_with_a_reason(path):
    with pytest.raises(InvalidPath, match=r"\w"):
        select(DOC, path, 100)


WIDE = {"a": [list(range(300)) for _ in range(300)], "s": ["x" * 50_000] * 300}


@pytest.mark.parametrize(
    "path",
    ["$..*..*", "$[*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*]", "$.a[*,*,*,*,*,*,*,*,*,*][*,*,*,*,*,*,*,*]",
     "$..[?@ == 1 || @ == 2 || @ == 3 || @ == 4]..*", "$..[?$.s[0] <= $.s[1]]..[?$.s[0] <= $.s[1]]",
     "$..[?search($.s[0], '(x{1,50}y?){1,15}z')]"],
)  # fmt: skip
def test_a_slow_selection_is_given_up_within_the_budget(path, monkeypatch):
    spent: list[int] = []
    spend = path_walk._WalkBudget.spend

    def noted(self: path_walk._WalkBudget, units: int) -> None:
        spent.append(units)
        spend(self, units)

    monkeypatch.setattr(path_walk._WalkBudget, "spend", noted)
    try:
        select(WIDE, path, 10**9)
    except InvalidPath:
        return
    assert sum(spent[:-1]) <= path_walk._BUDGET


def test_a_document_that_is_very_deep_is_refused_not_walked():
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(InvalidPath):
        select(deep, "$..x", 10)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
PIECES = st.sampled_from(
    ["$", "@", ".", "..", "a", "b", "*", "[", "]", "[*]", "[?", "'a'", "0", "-1", ":", ",", "(", ")", "==", "<", "&&",
     "||", "!", "search(", "count(", "length(", "value(", "1", "true", '"x"', " ", "$.a", "@.b", "\\", "'", "☃"]
)  # fmt: skip


@given(JSON, st.lists(PIECES, max_size=14).map("".join) | st.text(max_size=20))
def test_any_path_into_any_document_finds_values_or_is_refused(document, path):
    try:
        found = select(document, path, 5)
    except InvalidPath:
        return
    assert len(found.values) <= 5
    for place, value in found.values:
        # The path of a value leads to it again.
        assert select(document, place, 2).values == ((place, value),)
