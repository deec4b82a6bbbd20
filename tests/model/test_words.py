from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.words import search_terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The invoices were sent, sending one invoice.", ["invoic", "sent", "send", "invoic"]),
        ("parse_config", ["parse_config", "pars", "config"]),
        ("parseConfig HTTPServer", ["parseconfig", "pars", "config", "httpserver", "http", "server"]),
        ("src/billing/rules.py", ["src", "bill", "rule", "py"]),
        ("W5918442", ["w5918442", "5918442"]),
        ("发布日期 Größe", ["发布", "布日", "日期", "größe"]),
        ("x" * 65, []),
        ("a 7 ?!", []),
        ("", []),
    ],
)
def test_a_text_is_searched_by_stems_and_by_parts_of_identifiers(text: str, terms: list[str]) -> None:
    assert search_terms(text) == terms


@pytest.mark.parametrize(
    "words",
    [
        "class classes", "family families", "feel feels feeling feelings", "hike hiking hiked", "move moving",
        "run running runs", "plan planned planning", "box boxes", "apply applies applied", "invoice invoices invoicing",
        "week weekly", "cache caches caching", "city cities", "size sizes",
    ],
)  # fmt: skip
def test_the_forms_of_a_word_have_one_stem(words: str) -> None:
    assert len(set(search_terms(words))) == 1


@pytest.mark.parametrize("words", ["Tim time", "car care", "jam James", "apply app", "reply rep", "string str"])
def test_different_words_have_different_stems(words: str) -> None:
    assert len(set(search_terms(words))) == 2


@given(st.text(max_size=300))
def test_a_word_is_found_in_any_text(text: str) -> None:
    assert "needle_1" in search_terms(f"{text} needle_1 {text}")
