"""What stands in view: read word by word where it was read before, and looked through where it is new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.recall import VisibleTexts, build_view
from accordion.archive.recall_index import TurnName, words_of_name
from tests.archive.recall_samples import call, read, result, user
from tests.object_sizes import retained_bytes

SOUGHT = ("abc", "ébc_1", "abc/x_1", ".abc", "abc/abc.", "abc abc")
PIECES = ("abc", "abc", "ébc_1", "x_1", "a", "é", "_", "/", ".", " ", "—")


def name_of(text: str) -> TurnName:
    words = words_of_name(text)
    return TurnName(text, words, (0,), plain=words == (text.encode(),))


def views(texts: list[str], known: int) -> tuple[VisibleTexts, VisibleTexts]:
    """A view of what was said, and one of the first `known` of it that grew to that."""
    client = read([user("Begin."), *map(user, texts)])
    messages, chain = client.messages, client.chain
    begun = build_view(client, messages[: known + 1], chain[: known + 1])
    whole, grown = build_view(client, messages, chain), begun.extend(messages, chain)
    return VisibleTexts(whole, client, messages, ()), VisibleTexts(grown, client, messages, ())


@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sampled_from(SOUGHT),
)
def test_a_name_is_in_view_alike_in_what_was_read_before_and_in_what_is_new(
    texts: list[str], known: int, sought: str
) -> None:
    whole, grown = views(texts, min(known, len(texts)))
    assert grown.contains(name_of(sought)) == whole.contains(name_of(sought))


@pytest.mark.parametrize("around", ["xabc ", "abcx ", "abc"])
@pytest.mark.parametrize("sought", ["abc", "abc/x_1"])
def test_a_name_is_found_behind_many_words_that_only_hold_it(around: str, sought: str) -> None:
    for end, comes in ((f" {sought}", True), ("", False), (f"_{sought}", False)):
        whole, grown = views([around * 200 + end], 0)
        assert grown.contains(name_of(sought)) == whole.contains(name_of(sought)) == comes


def test_a_view_keeps_no_texts_beyond_those_that_it_counts() -> None:
    entries = [user("Begin.")]
    for number in range(60):
        entries.append(call("read_file", {"path": f"src/part_{number}.py", "why": "é" * 500}, f"call_{number}"))
        entries.append(result(f"call_{number}", f"the {number}th " + 300 * "long line "))
    client = read(entries)
    view = build_view(client, client.messages[:61], client.chain[:61]).extend(client.messages, client.chain)
    assert 0.7 < retained_bytes(view) / view.size < 1.5
