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
        ("src/billing/rules.py", ["src", "bill", "rul", "py"]),
        ("W5918442", ["w5918442", "5918442"]),
        ("发布日期 Größe", ["发布", "布日", "日期", "größe"]),
        ("x" * 65, []),
        ("a 7 ?!", []),
        ("", []),
    ],
)
def test_a_text_is_searched_by_stems_and_by_parts_of_identifiers(text: str, terms: list[str]) -> None:
    assert search_terms(text) == terms


@given(st.text(max_size=300))
def test_a_word_is_found_in_any_text(text: str) -> None:
    assert "needle_1" in search_terms(f"{text} needle_1 {text}")
