from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.words import mask_symbols

FOREIGN = re.compile("[^\x00-\x7f\u00c0-\u024f\u0370-\u04ff]")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain", "plain"),
        ("“so” – it’s", "?so? ? it?s"),
        ("Größe – Σ", "Größe ? Σ"),
        ("路径/src", "??/src"),
        ("\ud800x", "?x"),
        ("", ""),
    ],
)
def test_what_no_word_is_made_of_gives_way_to_a_question_mark(text: str, left: str) -> None:
    assert re.sub(r"\?+", "?", mask_symbols(text)) == re.sub(r"\?+", "?", left)


@given(st.text(st.one_of(st.characters(max_codepoint=0x500, categories=None), st.characters(categories=None))))
def test_words_are_those_that_stand_between_foreign_signs(text: str) -> None:
    assert mask_symbols(text).replace("?", " ").split() == FOREIGN.sub(" ", text).replace("?", " ").split()
