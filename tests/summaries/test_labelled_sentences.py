"""Standing instructions are told from talk in recorded conversations (labelled_sentences.md)."""

from __future__ import annotations

import pytest

from tests.summaries.labelled_sentences import measure_standing, missing_recordings, read_labelled_sentences


def test_nine_of_ten_standing_instructions_are_found_and_nine_of_ten_found_are_such() -> None:
    if missing := missing_recordings():
        pytest.skip(f"these recordings are not at hand: {', '.join(missing)}")
    accuracy = measure_standing(read_labelled_sentences())
    assert accuracy.precision >= 0.9, accuracy
    assert accuracy.recall >= 0.9, accuracy
