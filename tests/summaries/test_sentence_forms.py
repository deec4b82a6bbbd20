"""Forms of sentences: signs that are searched in small letters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.summaries import sentence_forms
from accordion.summaries.sentence_forms import SentenceForm

FORM = SentenceForm(
    r"never(?! ?mind)|no (?:one|body)|(?<=, )now|e?très|i am \w+ing|[xy]z", "不要|先.{1,3}再", r"^wait\b[,.]"
)


@pytest.mark.parametrize(
    "text", ["never", "no one", "so, now", "très", "etrès", "i am going", "yz.", "请不要", "先看再", "wait, no"]
)
def test_a_text_with_a_sign_is_of_the_form(text: str) -> None:
    assert FORM.is_in(text)


@pytest.mark.parametrize(
    "text", ["nevermore", "never mind", "now", "no", "am going", "xyz", "先看了一下再", "so wait, no", "不 要", ""]
)
def test_a_part_of_a_word_or_another_place_is_no_sign(text: str) -> None:
    assert not FORM.is_in(text)


def test_each_sign_is_removed() -> None:
    assert FORM.remove("he never said, now 不要 xz") == "he   said,      "


def test_no_form_has_a_capital_which_no_text_in_small_letters_contains() -> None:
    forms = [value for value in vars(sentence_forms).values() if isinstance(value, SentenceForm)]
    patterns = [re.sub(r"\\.", "", each.pattern) for form in forms for each in (form._words, form._east_asia) if each]
    assert len(forms) > 15
    assert [each for each in patterns if each != each.lower()] == []


def test_a_union_has_the_signs_of_all_its_forms() -> None:
    union = SentenceForm.union(FORM, SentenceForm("soon|(?<!at )(?:on|in) time", "必须", r"[?]"), SentenceForm("later"))
    for text in ("no one", "先看再", "wait, no", "soon", "he is in time", "the 必须", "so?", "later"):
        assert union.is_in(text), text
    for text in ("at on time", "nothing", "sooner", "so wait", "先看了一下再"):
        assert not union.is_in(text), text


@pytest.mark.parametrize("form", [sentence_forms._ANY_SIGN, sentence_forms._ANY_PROMISE])
def test_a_condition_before_a_word_precedes_a_plain_character(form: SentenceForm) -> None:
    alternatives = list(sentence_forms._list_alternatives(form._sources[0]))
    assert len(alternatives) > 30
    assert [each for each in alternatives if "(?<" in each[:6] and not each[0].isalpha()] == []


LATIN = st.characters(max_codepoint=0xFF)


@given(st.from_regex(sentence_forms._PARTICULARS, alphabet=LATIN))
def test_a_text_with_particulars_has_a_sign_of_them(text: str) -> None:
    assert sentence_forms._PARTICULARS_SIGN.search(text)
