"""The shipped vectors, and the comparison of passages by them."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

from accordion.model.search import NEAR
from accordion.providers.models.static_embedding import load_table

FOLDER = files("accordion.providers.models") / "minilm"


def test_what_is_shipped_fits_together_and_is_small():
    vectors = np.load(str(FOLDER / "vectors.npy"))
    weights = np.load(str(FOLDER / "weights.npy"))
    names = (FOLDER / "vocabulary.txt").read_text("utf-8").splitlines()
    assert vectors.dtype == np.int8
    assert vectors.shape == (len(weights), 128) == (len(names), 128)
    assert weights[names.index("the")] == 0 < weights[names.index("dog")] < weights[names.index("violin")]
    assert 2_000_000 < sum(len((FOLDER / each).read_bytes()) for each in ("vectors.npy", "vocabulary.txt")) < 4_000_000


def test_the_licence_and_the_notice_stand_beside_it():
    assert "Apache License" in (FOLDER / "LICENSE").read_text("utf-8")
    notice = (FOLDER / "NOTICE").read_text("utf-8")
    assert "all-MiniLM-L6-v2" in notice
    assert "Changed:" in notice


def test_passages_are_compared_like_texts_with_the_passages_around_as_their_context():
    table = load_table()
    texts = ["The dog is ill.", "", "It was paid on Monday.", "She plays the violin.", "Nothing of it.", "At noon."]
    tokens = table.tokens_of(texts)
    compared = table.compare("Which instrument, and what about the puppy?", b"".join(tokens), [*map(len, tokens)])
    around = [" ".join(texts[max(0, at - NEAR) : at] + texts[at + 1 : at + NEAR + 1]) for at in range(len(texts))]
    embedded = [table.embed(*each)[1] for each in zip(texts, around, strict=True)]
    assert compared == pytest.approx(table.relevance("Which instrument, and what about the puppy?", embedded))


def test_passages_have_no_relevance_for_a_query_without_words():
    table = load_table()
    tokens = table.tokens_of(["a dog", "a cat"])
    assert table.compare("…", b"".join(tokens), [*map(len, tokens)]) == [0.0, 0.0]
    assert table.compare("dog", b"", []) == []
