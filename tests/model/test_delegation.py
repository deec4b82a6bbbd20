from hypothesis import given
from hypothesis import strategies as st

from accordion.model.delegation import TOP, DelegationNode, is_visible

PATHS = st.lists(st.sampled_from("abc"), max_size=4).map(tuple)


def test_the_top_sees_all_and_is_seen_by_all():
    assert is_visible(("a", "b"), ())
    assert is_visible((), ("a", "b"))


def test_a_delegation_sees_its_own_its_ancestors_and_its_descendants():
    assert is_visible(("a", "b"), ("a", "b"))
    assert is_visible(("a",), ("a", "b"))
    assert is_visible(("a", "b", "c"), ("a", "b"))


def test_a_delegation_sees_nothing_of_a_sibling_or_of_what_works_for_it():
    assert not is_visible(("a", "b"), ("a", "c"))
    assert not is_visible(("a", "b", "d"), ("a", "c"))
    assert not is_visible(("b",), ("a",))


@given(PATHS, PATHS)
def test_visibility_goes_both_ways_and_is_kinship_in_a_line(one, two):
    above = {one[:end] for end in range(len(one) + 1)}
    below = {two[:end] for end in range(len(two) + 1)}
    assert is_visible(one, two) == is_visible(two, one) == (two in above or one in below)


def test_what_was_only_named_is_a_placeholder():
    assert DelegationNode("x:a").is_placeholder
    assert not DelegationNode("x:a", evidence="header").is_placeholder
    assert not DelegationNode("m:session", TOP, session="s-1").is_placeholder
