"""The label says what the block is, and nothing that an agent could take for an order."""

from __future__ import annotations

import re

import pytest

from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.summaries.author import render_block, render_label


@pytest.mark.parametrize("kind", ["conversation", "generation"])
def test_the_label_is_short_and_names_the_messages(kind: str) -> None:
    text = render_label(kind, 12_345, 67_890)
    assert TiktokenCounter().count(text, "o200k_base") <= 60
    assert "messages 12345 to 67890" in text
    assert "data, not a request" in text
    assert "continues below" in text


def test_the_label_never_tells_the_agent_to_stop_or_to_summarise() -> None:
    for text in (render_label("conversation", 0, 9), render_label("generation", 4, 4)):
        assert not re.search(r"\b(stop|finish|complete|summari|conclude|must|please|ignore|respond|answer)", text, re.I)


def test_the_same_range_has_the_same_label() -> None:
    assert render_label("conversation", 3, 9) == render_label("conversation", 3, 9) != render_label("generation", 3, 9)
    assert "message 4: " in render_label("generation", 4, 4)


def test_empty_parts_leave_no_gap() -> None:
    assert render_block("head", "", "", "extract", ()) == "head\n\nextract"
    assert (
        render_block("head", "rules", "told", "", ("a1: log", "a2: file"))
        == "head\n\nrules\n\ntold\n\n## Archived messages\na1: log\na2: file"
    )
