"""Token counts by tiktoken, offline. The encodings come from litellm's package data; litellm is not imported.

A model that is not in tiktoken's own tables is tokens with o200k_base; accounting/calibration.py corrects the count
by the usage that providers report. The work is bounded for any text: texts are tokens in slices, since one very long
piece (a megabyte of blanks) overflows the regular expression's stack, and long runs of base64 are estimated from
samples.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import tiktoken
from tiktoken.model import encoding_name_for_model
from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS  # type: ignore[import-untyped]  # a plugin of tiktoken's own

from accordion.model.cache import LONGEST_NAME

DEFAULT_ENCODING = "o200k_base"

# Files in litellm's package data. tiktoken's cache names a file by a hash of its address.
ENCODING_FILES = {
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "p50k_base": "ec7223a39ce59f226a68acc30dc1af2788490e15",
}
# Encodings that split ordinary text like another one (harmony, edit), or nearly so (p50k adds runs of blanks).
STAND_INS = {
    "o200k_harmony": "o200k_base",
    "p50k_edit": "p50k_base",
    "r50k_base": "p50k_base",
    "gpt2": "p50k_base",
}

_AHEAD = r"|\s+(?!\S)"

SLICE = 16_384  # characters of one call of tiktoken
BORDER_REACH = 1_024  # characters before a slice's end in which a safe border is searched
BLOCK = 512  # a run of two blocks or more always covers one whole aligned block
RUN = re.compile(r"[A-Za-z0-9+/=_-]*")
SAMPLES, SAMPLE = 4, 256
BYTES_PER_TOKEN = 4  # if no encoding can be loaded
REMEMBERED_MODELS = 1_024
REMEMBERED_FROM = 32  # characters; counting a shorter text takes no longer than looking it up
REMEMBERED_TEXTS = 8_192  # in each of two generations, about 200 bytes each


class TiktokenCounter:
    """A TokenCounter (model/ports.py). Safe to use from several threads; tiktoken releases the GIL while it counts."""

    def __init__(self) -> None:
        self._loaded: dict[str, tiktoken.Encoding | None] = {}
        self._names: dict[str, str] = {}
        self._recent: dict[tuple[int, int, str], int] = {}
        self._earlier: dict[tuple[int, int, str], int] = {}
        self._lock = Lock()

    def encoding(self, model: str) -> str:
        """Returns the encoding's name for `model`, by tiktoken's tables; provider prefixes (`openai/`) are ignored."""
        name = self._names.get(model)
        if name is None:
            name = _encoding_name(model)
            if len(model) <= LONGEST_NAME:
                if len(self._names) >= REMEMBERED_MODELS:
                    self._names.clear()
                self._names[model] = name
        return name

    def load(self, encoding: str = DEFAULT_ENCODING) -> None:
        """Loads an encoding (0.3 s of CPU for o200k_base); meant for a thread at start-up."""
        self._encoding(encoding)

    def is_loaded(self, encoding: str) -> bool:
        """Whether `encoding` is loaded, so that counting starts at once."""
        return encoding in self._loaded

    def count(self, text: str, encoding: str) -> int:
        """Returns the number of tokens of `text`. Special tokens count as plain text, lone surrogates as U+FFFD.

        The count is exact for ordinary text. It is off by less than one token in a thousand if a slice has no blank to
        end at, and it is estimated inside runs of 1,024 or more characters of base64. Never fails: if no encoding can
        be loaded, four bytes count as a token.

        Counts are cached: a compaction counts texts that requests tokens before it, and its own text several times.
        """
        if len(text) < REMEMBERED_FROM:
            return self._count(text, encoding)
        key = (hash(text), len(text), encoding)
        count = self._recent.get(key)
        if count is None:
            count = self._earlier.get(key)
            if count is None:
                count = self._count(text, encoding)
            if len(self._recent) >= REMEMBERED_TEXTS:
                self._earlier, self._recent = self._recent, {}
            self._recent[key] = count
        return count

    def _count(self, text: str, encoding: str) -> int:
        encoder = self._encoding(encoding)
        if encoder is None:
            return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
        if len(text) <= 2 * BLOCK:
            return len(encoder.encode_ordinary(text))
        total, start = 0, 0
        for run_start, run_end in _base64_runs(text):
            total += _count_sliced(encoder, text, start, run_start) + _estimate_run(encoder, text, run_start, run_end)
            start = run_end
        return total + _count_sliced(encoder, text, start, len(text))

    def _encoding(self, name: str) -> tiktoken.Encoding | None:
        try:
            return self._loaded[name]
        except KeyError:
            with self._lock:
                if name not in self._loaded:
                    self._loaded[name] = _load(name)
                return self._loaded[name]


def package_file(*path: str) -> Path | None:
    """Returns the path of a file of litellm's package data, without importing litellm; None if there is none."""
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder).joinpath(*path)
        if file.exists():
            return file
    return None


def _encoding_name(model: str) -> str:
    try:
        name = encoding_name_for_model(model.rsplit("/", 1)[-1])
    except KeyError:
        return DEFAULT_ENCODING
    name = STAND_INS.get(name, name)
    return name if name in ENCODING_FILES else DEFAULT_ENCODING


def _load(name: str) -> tiktoken.Encoding | None:
    """Loads an encoding; None on failure. Uses the network only if the user has set TIKTOKEN_CACHE_DIR."""
    has_own_cache = "TIKTOKEN_CACHE_DIR" in os.environ
    file = package_file("litellm_core_utils", "tokenizers", ENCODING_FILES.get(name, name))
    if file is None and not has_own_cache:
        return None
    try:
        if file is not None and not has_own_cache:
            os.environ["TIKTOKEN_CACHE_DIR"] = str(file.parent)
        encoder = _load_default_encoding() if name == DEFAULT_ENCODING else tiktoken.get_encoding(name)
        # The Rust core has its own copy of the ranks; Python's is 27 MB for o200k_base and serves debugging only.
        encoder._mergeable_ranks.clear()
        return encoder
    except Exception:  # ValueError, OSError, any error of a download: the count is estimated instead
        return None
    finally:
        if not has_own_cache:
            os.environ.pop("TIKTOKEN_CACHE_DIR", None)


@cache
def _load_default_encoding() -> tiktoken.Encoding:
    """Returns tiktoken's default encoding with a faster, equivalent pattern.

    In the pattern, the alternatives before the look-ahead become one group. The tokens are the same, in a sixth less
    time: if a pattern looks ahead, tiktoken's engine tries each alternative by itself. The older encodings would gain
    nothing.
    """
    arguments: dict[str, Any] = ENCODING_CONSTRUCTORS[DEFAULT_ENCODING]()
    simple, look_ahead, rest = arguments["pat_str"].partition(_AHEAD)
    pattern = f"(?:{simple}){look_ahead}{rest}" if look_ahead else simple
    return tiktoken.Encoding(**{**arguments, "pat_str": pattern})


def _count_sliced(encoder: tiktoken.Encoding, text: str, start: int, end: int) -> int:
    total = 0
    while start < end:
        stop = end if end - start <= SLICE else _find_boundary(text, start + SLICE)
        total += len(encoder.encode_ordinary(text[start:stop]))
        start = stop
    return total


def _find_boundary(text: str, end: int) -> int:
    """Returns the last position before `end` that no token spans: before a single blank between two words."""
    lowest = end - BORDER_REACH
    position = text.rfind(" ", lowest, end - 1)
    while position > lowest:
        if not text[position - 1].isspace() and not text[position + 1].isspace():
            return position
        position = text.rfind(" ", lowest, position)
    return end


def _base64_runs(text: str) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each long base64 run (data: URLs, keys, blobs), searching whole blocks first."""
    block = 0
    while block + BLOCK <= len(text):
        piece = text[block : block + BLOCK]
        if " " in piece or "\n" in piece or not piece.isascii() or _run_end(text, block) < block + BLOCK:
            block += BLOCK
            continue
        start = block
        while start > 0 and block - start < BLOCK and _is_run_character(text[start - 1]):
            start -= 1
        end = _run_end(text, block)
        if end - start >= 2 * BLOCK:
            yield start, end
        block = max(block + BLOCK, end + -end % BLOCK)


def _run_end(text: str, start: int) -> int:
    match = RUN.match(text, start)
    return match.end() if match else start


def _is_run_character(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char in "+/=_-")


def _estimate_run(encoder: tiktoken.Encoding, text: str, start: int, end: int) -> int:
    """Estimates the tokens of a run from samples: base64 has 0.68 tokens a character, hex 0.57, one letter 0.13."""
    stride = (end - start - SAMPLE) // (SAMPLES - 1)
    pieces = (text[start + i * stride : start + i * stride + SAMPLE] for i in range(SAMPLES))
    tokens = sum(len(encoder.encode_ordinary(piece)) for piece in pieces)
    return -(-tokens * (end - start) // (SAMPLES * SAMPLE))
