from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.archive_entries import EntryContents, SharedValues
from accordion.archive.artifacts import artifact_keys, row_key
from accordion.model.ports import Key
from accordion.model.tenant import ArchiveNamespace

SIZES = st.integers(0, 9)
CONTENTS = st.builds(
    EntryContents,
    st.sampled_from(["s-1", "s-2"]),
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), SIZES), max_size=4),
    st.lists(st.tuples(st.sampled_from([b"x", b"y"]), st.lists(st.sampled_from("pq"), max_size=3)), max_size=3),
    st.lists(st.tuples(st.sampled_from(["", "c"]), st.sampled_from("mn"), SIZES), max_size=4),
)
NAMESPACE = ArchiveNamespace("t")


def plainly(contents: EntryContents) -> set[Key]:
    keys = {row_key(key) for key, _ in contents.rows} | {Key(*key[:2]) for key in contents.keys}
    return keys | {
        place
        for scope, ids in contents.artifacts
        for each in ids
        for place in artifact_keys(NAMESPACE, each, scope, contents.session)
    }


@given(st.lists(CONTENTS, max_size=4), st.lists(CONTENTS, max_size=4))
def test_what_is_left_is_what_those_that_go_name_and_those_that_stay_do_not(gone, rest):
    named = SharedValues(gone)
    spared = named.exclude_all(rest)
    expected = set().union(*map(plainly, gone)) - set().union(*map(plainly, rest))
    places = named.keys(NAMESPACE)
    assert set(places) == expected
    assert len(places) == len(set(places)) == len(named)
    assert sum(spared) <= sum(size for each in gone for _, size in each.rows) + sum(
        key[2] for each in gone for key in each.keys
    )


def test_what_is_spared_is_counted_once_with_its_largest_size():
    named = SharedValues([EntryContents("s", rows=[(b"a", 3)]), EntryContents("s", rows=[(b"a", 5), (b"b", 2)])])
    both = EntryContents("s", rows=[(b"a", 0)])
    assert named.exclude_all([both, both]) == [5, 0]
