"""What providers/models/tokenizer.py needs of tiktoken's internals."""

from __future__ import annotations

import sys

import pytest
from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS

from accordion.providers.models.tokenizer import DEFAULT_ENCODING, TiktokenCounter, package_file
from tests.library_code import changed

CODE = {
    "tiktoken.core": {
        "Encoding.__init__": "1e8130f52cd0",
        "Encoding.encode_ordinary": "619944bd61ca",
        "Encoding.encode_single_token": "c59b3634f0af",
    },
    "tiktoken_ext.openai_public": {
        "o200k_base": "98eff3c39038",
    },
}


def test_used_code_is_as_it_was() -> None:
    assert changed(CODE) == {}


def test_pythons_copy_of_the_ranks_is_large_and_not_needed() -> None:
    encoding = TiktokenCounter()._encoding(DEFAULT_ENCODING)
    assert encoding is not None
    assert len(encoding._mergeable_ranks) == 0
    assert encoding.decode(encoding.encode_ordinary("A text of several words.")) == "A text of several words."


def test_pythons_copy_takes_27_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(package_file("litellm_core_utils", "tokenizers")))
    ranks = ENCODING_CONSTRUCTORS[DEFAULT_ENCODING]()["mergeable_ranks"]
    size = sys.getsizeof(ranks) + sum(sys.getsizeof(key) + sys.getsizeof(rank) for key, rank in ranks.items())
    assert size > 20_000_000
