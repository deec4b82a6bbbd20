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
    ("form", "text"),
    [
        (sentence_forms._ORDER, "ask first, then go on"),
        (sentence_forms._TASTE, "ich esse gerne"),
        (sentence_forms._CHANGE, "the port is 80 now"),
        (sentence_forms._CHANGE, "wait, the other one"),
        (sentence_forms._DECISION, "берём второй"),
        (sentence_forms._LASTING_WORDS, "请先问我再发送"),
        (sentence_forms._LASTING_WORDS, "sólo en inglés"),
    ],
)
def test_a_text_with_a_sign_is_of_the_form(form: SentenceForm, text: str) -> None:
    assert form.is_in(text)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (sentence_forms._ORDER, "the first of them"),
        (sentence_forms._TASTE, "ich würde gerne"),
        (sentence_forms._CHANGE, "now the port"),
        (sentence_forms._CHANGE, "so wait, the other one"),
        (sentence_forms._CHANGE, "a removed port"),
        (sentence_forms._LASTING_WORDS, "先看了一下这个很长的列表里的内容再"),
        (sentence_forms._LASTING_WORDS, "die nurübung"),
        (sentence_forms._LASTING_WORDS, ""),
    ],
)
def test_a_part_of_a_word_or_another_place_is_no_sign(form: SentenceForm, text: str) -> None:
    assert not form.is_in(text)


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
