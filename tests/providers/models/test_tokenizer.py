import base64
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from accordion.providers.models.tokenizer import DEFAULT_ENCODING, ENCODINGS, REMEMBERED_MODELS, SLICE, TiktokenCounter
from scripts.build_model_data import litellm_file

COUNTER = TiktokenCounter()

PROSE = (
    "The quick brown fox, who had 12,345 reasons, didn't jump:\n\n    return x[0] + {'a': 1}\n"
    "\tpath/to/file.py — naïve café 漢字かな 🦊🦊\r\n== done ==\n"
)


def exact(text: str) -> int:
    return len(tiktoken.get_encoding(DEFAULT_ENCODING).encode_ordinary(text))


@pytest.fixture(scope="module", autouse=True)
def _encodings_are_there() -> None:
    COUNTER.load()
    with pytest.MonkeyPatch.context() as patch:
        # tiktoken's own, which it keeps.
        patch.setenv("TIKTOKEN_CACHE_DIR", str(litellm_file("litellm_core_utils", "tokenizers", "__init__.py").parent))
        for name in ENCODINGS:
            tiktoken.get_encoding(name)


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_every_encoding_counts_as_tiktoken_does(name: str) -> None:
    assert COUNTER.count("hello world", name) == 2
    assert COUNTER.is_loaded(name)
    assert COUNTER.count(PROSE, name) == len(tiktoken.get_encoding(name).encode_ordinary(PROSE))


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-mini-2024-07-18", "o200k_base"),
        ("gpt-5.2-2025-12-11", "o200k_base"),
        ("gpt-6-sol", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("gpt-oss-120b", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo-2024-04-09", "cl100k_base"),
        ("gpt-3.5-turbo-0125", "cl100k_base"),
        ("openai/gpt-4", "cl100k_base"),
        ("azure/eu/gpt-4-turbo", "cl100k_base"),
        ("ft:gpt-4:org::id", "cl100k_base"),
        ("ft:gpt-4o:org::id", "o200k_base"),
        ("text-davinci-003", "o200k_base"),
        ("claude-sonnet-4-5", "o200k_base"),
        ("openrouter/anthropic/claude-opus-4.6:free", "o200k_base"),
        ("", "o200k_base"),
    ],
)
def test_a_model_is_counted_with_its_own_encoding_or_the_default_one(model: str, encoding: str) -> None:
    assert COUNTER.encoding(model) == encoding
    assert COUNTER.encoding(model) == encoding


def test_remembered_models_are_bounded() -> None:
    counter = TiktokenCounter()
    for number in range(2 * REMEMBERED_MODELS + 5):
        counter.encoding(f"model-{number}")
    assert len(counter._names) <= REMEMBERED_MODELS


@pytest.mark.parametrize("repeat", [1, 10, 50, 400])
def test_ordinary_text_is_counted_exactly_however_long(repeat: int) -> None:
    text = PROSE * repeat
    assert COUNTER.count(text, DEFAULT_ENCODING) == exact(text)


@given(st.text())
def test_any_short_text_is_counted_exactly_and_never_fails(text: str) -> None:
    assert COUNTER.count(text, DEFAULT_ENCODING) == exact(text)


@given(st.lists(st.sampled_from([" ", "\n", "\t", "a ", "B(", "9.", "漢", "🦊", "=;", "\ud800", "word "]), max_size=30))
def test_any_long_text_is_counted_within_two_tokens_for_each_slice(pieces: list[str]) -> None:
    text = "".join(pieces) * 300
    assert abs(COUNTER.count(text, DEFAULT_ENCODING) - exact(text)) <= 2 * (len(text) // SLICE)


def test_special_tokens_are_counted_as_the_text_that_they_are() -> None:
    assert COUNTER.count("<|endoftext|>", DEFAULT_ENCODING) == 7
    assert COUNTER.count("<|im_start|>user", DEFAULT_ENCODING) > 3


def test_lone_surrogates_are_counted_and_do_not_fail() -> None:
    assert COUNTER.count("a\ud800b", DEFAULT_ENCODING) == COUNTER.count("a\ufffdb", DEFAULT_ENCODING)
    assert COUNTER.count("x \udfff" * 10_000, DEFAULT_ENCODING) > 10_000


@pytest.mark.parametrize("letter", ["a", " ", "\n", "\t", "-", "1", "漢", "🦊", " \t"])
def test_a_megabyte_of_one_character_is_counted(letter: str) -> None:
    text = letter * 1_000_000
    counted = COUNTER.count(text, DEFAULT_ENCODING)
    sample = COUNTER.count(letter * 1_000, DEFAULT_ENCODING)
    assert 0 < counted <= 1.2 * 1_000 * sample


def test_no_slice_that_tiktoken_gets_is_longer_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    counter, given_to_it = TiktokenCounter(), []

    class Recording:
        def encode_ordinary(self, text: str) -> list[int]:
            given_to_it.append(len(text))
            return [0]

    counter._loaded[DEFAULT_ENCODING] = Recording()  # type: ignore[assignment]
    for text in (PROSE * 1_000, "a" * 300_000, " " * 300_000, "漢" * 100_000, "data:;base64," + "Zm9v" * 100_000):
        counter.count(text, DEFAULT_ENCODING)
    assert max(given_to_it) <= SLICE


def test_long_base64_is_estimated_from_samples_and_close() -> None:
    blob = base64.b64encode(random.Random(7).randbytes(150_000)).decode()
    text = f"Here it is: data:image/png;base64,{blob} and that was it. " + PROSE * 20
    assert COUNTER.count(text, DEFAULT_ENCODING) == pytest.approx(exact(text), rel=0.05)


def test_most_of_a_base64_run_never_reaches_tiktoken() -> None:
    counter, given_to_it = TiktokenCounter(), []

    class Recording:
        def encode_ordinary(self, text: str) -> list[int]:
            given_to_it.append(text)
            return [0] * len(text)

    counter._loaded[DEFAULT_ENCODING] = Recording()  # type: ignore[assignment]
    blob = base64.b64encode(random.Random(7).randbytes(750_000)).decode()
    assert counter.count(f"data:image/png;base64,{blob}", DEFAULT_ENCODING) >= len(blob)
    assert sum(map(len, given_to_it)) < 3_000


def test_words_and_code_around_a_base64_run_are_counted_exactly() -> None:
    blob = "A" * 5_000
    before, after = PROSE * 30, " and then\n" + PROSE * 30
    alone = COUNTER.count(blob, DEFAULT_ENCODING)
    assert COUNTER.count(before + blob + after, DEFAULT_ENCODING) == pytest.approx(
        exact(before) + alone + exact(after), abs=2
    )


def test_neither_the_network_nor_a_cache_of_tiktokens_is_used(tmp_path: Path) -> None:
    code = (
        "import socket, sys\n"
        "socket.socket = None\n"
        "from accordion.providers.models.tokenizer import ENCODINGS, TiktokenCounter\n"
        "print([TiktokenCounter().count('hello world', name) for name in ENCODINGS], 'litellm' in sys.modules)"
    )
    environ = {**os.environ, "TIKTOKEN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "[2, 2] False\n"
    assert not list(tmp_path.iterdir())


def test_many_threads_may_count_at_once() -> None:
    counter = TiktokenCounter()
    with ThreadPoolExecutor(8) as threads:
        counted = set(threads.map(lambda _: counter.count(PROSE, DEFAULT_ENCODING), range(40)))
    assert counted == {exact(PROSE)}


def test_counting_works_offline_and_imports_neither_litellm_nor_a_network_client() -> None:
    program = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "from accordion.providers.models.tokenizer import TiktokenCounter\n"
        "from accordion.accounting.calibration import LearnedLimits as Limits\n"
        "from accordion.providers.models.windows import ModelWindows\n"
        "print(TiktokenCounter().count('hello world', 'o200k_base'))\n"
        "print(ModelWindows(Limits(lambda: 0.0)).window('gpt-4o').size)\n"
        "print('litellm' in sys.modules, 'requests' in sys.modules, 'httpx' in sys.modules)\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_DIR")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=clean, check=True)
    assert done.stdout.split() == ["2", "128000", "False", "False", "False"]
