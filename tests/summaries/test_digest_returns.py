"""The digest of a sub-agent's answer has its most informative parts."""

from hypothesis import given
from hypothesis import strategies as st

from accordion.summaries.digest import digest_return

FILLER = [f"Words on file number {n}, which says nothing of note at all." for n in range(80)]


def test_the_entries_of_its_lists_are_kept_before_other_lines():
    marks = ["- one 1", "* two 2", "+ three 3", "1. four 4", "12) five 5", "  - six 6", "| seven | 7 |"]
    text = "\n".join(
        ["It begins.", *FILLER, *(line for mark in marks for line in (mark, *FILLER[:9])), *FILLER, "End."]
    )
    told = digest_return(text, 1_000)
    assert all(mark.strip() in told for mark in marks)
    assert told.startswith("It begins.")
    assert told.endswith("End.")


def test_what_is_left_out_is_said():
    assert "lines left out" in digest_return("\n".join(FILLER), 600)


def test_a_short_answer_comes_back_as_it_is():
    assert digest_return("- one\n- two", 200) == "- one\n- two"


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=60), max_size=60), st.integers(0, 2_000))
def test_a_digest_is_never_longer_than_allowed(lines: list[str], most: int):
    assert len(digest_return("\n".join(lines), most)) <= most
