"""Forms of sentences: signs that are searched in small letters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.summaries import sentence_forms
from accordion.summaries.sentence_forms import RULE, SentenceForm, rank_sentence

FORMS = [value for value in vars(sentence_forms).values() if isinstance(value, SentenceForm)]


@pytest.mark.parametrize(
    ("form", "text", "is_in"),
    [
        (sentence_forms._ORDER, "ask first, then go on", True),
        (sentence_forms._ORDER, "the first of them", False),
        (sentence_forms._TASTE, "ich esse gerne", True),
        (sentence_forms._TASTE, "ich würde gerne", False),
        (sentence_forms._CHANGE, "the port is 80 now", True),
        (sentence_forms._CHANGE, "now the port", False),
        (sentence_forms._CHANGE, "wait, the other one", True),
        (sentence_forms._CHANGE, "so wait, the other one", False),
        (sentence_forms._CHANGE, "a removed port", False),
        (sentence_forms._DECISION, "берём второй", True),
        (sentence_forms._LASTING_WORDS, "请先问我再发送", True),
        (sentence_forms._LASTING_WORDS, "先看了一下这个很长的列表里的内容再", False),
        (sentence_forms._LASTING_WORDS, "sólo en inglés", True),
        (sentence_forms._LASTING_WORDS, "die nurübung", False),
        (sentence_forms._LASTING_WORDS, "", False),
    ],
)
def test_a_sign_is_a_whole_word_in_its_place(form: SentenceForm, text: str, is_in: bool) -> None:
    assert form.is_in(text) == is_in


def test_no_form_has_a_capital_which_no_text_in_small_letters_contains() -> None:
    patterns = [re.sub(r"\\.", "", form.expression.pattern) for form in FORMS]
    assert len(patterns) > 15
    assert [each for each in patterns if each != each.lower()] == []


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_in_each_text_of_its_expression(form: SentenceForm) -> None:
    @given(st.from_regex(form.expression))
    def check(text: str) -> None:
        assert form.is_in(text)

    check()


def test_a_sentence_with_half_a_character_has_a_rank() -> None:
    assert rank_sentence("Never push \ud800 to main.") == RULE


LATIN = st.characters(max_codepoint=0xFF)


@given(st.from_regex(sentence_forms._PARTICULARS, alphabet=LATIN))
def test_a_text_with_particulars_has_a_sign_of_them(text: str) -> None:
    assert sentence_forms._PARTICULARS_SIGN.search(text)
