"""Token counts by tiktoken, offline: the encodings come from litellm's package data, litellm itself is not imported.

A model that is not in tiktoken's own tables is counted with o200k_base; reported usage corrects the rest
(accounting/calibration.py). Work is bounded for any text: it is counted in slices, since one very long piece
(a megabyte of blanks) overflows the regular expression's stack, and long runs of base64 are estimated from samples.
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

from accordion.core.cache import LONGEST_NAME

DEFAULT_ENCODING = "o200k_base"

# Names of the files in litellm's package data (tiktoken's cache names: a hash of the address they come from).
ENCODING_FILES = {
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "p50k_base": "ec7223a39ce59f226a68acc30dc1af2788490e15",
}
# Encodings that split ordinary text as another one does (harmony, edit), or nearly so (p50k adds runs of blanks).
STAND_INS = {
    "o200k_harmony": "o200k_base",
    "p50k_edit": "p50k_base",
    "r50k_base": "p50k_base",
    "gpt2": "p50k_base",
}

_AHEAD = r"|\s+(?!\S)"

SLICE = 16_384  # characters that tiktoken gets at once
BORDER_REACH = 1_024  # how far back from a slice's end a safe border is looked for
BLOCK = 512  # a run of two blocks or more always covers one whole aligned block
RUN = re.compile(r"[A-Za-z0-9+/=_-]*")
SAMPLES, SAMPLE = 4, 256
BYTES_PER_TOKEN = 4  # where no encoding can be loaded
REMEMBERED_MODELS = 1_024
REMEMBERED_FROM = 32  # characters: a shorter text is counted as quickly as it is looked up
REMEMBERED_TEXTS = 8_192  # in each of two generations, about 200 bytes each


class TiktokenCounter:
    """A TokenCounter (core/ports.py). Safe to use from several threads; tiktoken lets go of the GIL while it counts."""

    def __init__(self) -> None:
        self._loaded: dict[str, tiktoken.Encoding | None] = {}
        self._names: dict[str, str] = {}
        self._recent: dict[tuple[int, int, str], int] = {}
        self._earlier: dict[tuple[int, int, str], int] = {}
        self._lock = Lock()

    def encoding(self, model: str) -> str:
        """The name of the encoding for `model`, by tiktoken's tables; provider prefixes (`openai/`) are left out."""
        name = self._names.get(model)
        if name is None:
            name = _encoding_name(model)
            if len(model) <= LONGEST_NAME:
                if len(self._names) >= REMEMBERED_MODELS:
                    self._names.clear()
                self._names[model] = name
        return name

    def warm(self, encoding: str = DEFAULT_ENCODING) -> None:
        """Load an encoding now (0.3 s of CPU for o200k_base); meant for a thread at start-up."""
        self._encoding(encoding)

    def loaded(self, encoding: str) -> bool:
        """Whether counting with `encoding` starts at once."""
        return encoding in self._loaded

    def count(self, text: str, encoding: str) -> int:
        """Tokens of `text`. Special tokens count as plain text, lone surrogates as replacement characters.

        Exact for ordinary text; off by less than one token in a thousand where a slice has no blank to end at, and
        an estimate by length inside runs of 1,024 or more characters of base64. Never fails: where no encoding can
        be loaded, four bytes are taken for a token.

        Counts are remembered: a fold counts again what requests counted before it, and its own text several times.
        """
        if len(text) < REMEMBERED_FROM:
            return self._counted(text, encoding)
        key = (hash(text), len(text), encoding)
        known = self._recent.get(key)
        if known is None:
            known = self._earlier.get(key)
            if known is None:
                known = self._counted(text, encoding)
            if len(self._recent) >= REMEMBERED_TEXTS:
                self._earlier, self._recent = self._recent, {}
            self._recent[key] = known
        return known

    def _counted(self, text: str, encoding: str) -> int:
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
    """A file of litellm's package data, without importing litellm; None where there is none."""
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = Path(folder).joinpath(*path)
        if found.exists():
            return found
    return None


def _encoding_name(model: str) -> str:
    try:
        name = encoding_name_for_model(model.rsplit("/", 1)[-1])
    except KeyError:
        return DEFAULT_ENCODING
    name = STAND_INS.get(name, name)
    return name if name in ENCODING_FILES else DEFAULT_ENCODING


def _load(name: str) -> tiktoken.Encoding | None:
    """The encoding, or None. Never goes to the network unless the user has named a cache folder of his own."""
    chosen = "TIKTOKEN_CACHE_DIR" in os.environ
    file = package_file("litellm_core_utils", "tokenizers", ENCODING_FILES.get(name, name))
    if file is None and not chosen:
        return None
    try:
        if file is not None and not chosen:
            os.environ["TIKTOKEN_CACHE_DIR"] = str(file.parent)
        encoder = _grouped() if name == DEFAULT_ENCODING else tiktoken.get_encoding(name)
        # The Rust core has its own copy of the ranks; Python's is 27 MB for o200k_base and serves debugging only.
        encoder._mergeable_ranks.clear()
        return encoder
    except Exception:  # ValueError, OSError, whatever a download raises: counting goes on with the estimate
        return None
    finally:
        if not chosen:
            os.environ.pop("TIKTOKEN_CACHE_DIR", None)


@cache
def _grouped() -> tiktoken.Encoding:
    """The default encoding as tiktoken's own `get_encoding` gives it, but for the pattern: there the alternatives
    before the one that looks ahead are one group. These are the very same tokens, in a sixth less time: where a pattern
    looks ahead, tiktoken's engine tries each alternative by itself. The older encodings would gain nothing."""
    made: dict[str, Any] = ENCODING_CONSTRUCTORS[DEFAULT_ENCODING]()
    easy, ahead, rest = made["pat_str"].partition(_AHEAD)
    return tiktoken.Encoding(**{**made, "pat_str": f"(?:{easy}){ahead}{rest}" if ahead else easy})


def _count_sliced(encoder: tiktoken.Encoding, text: str, start: int, end: int) -> int:
    total = 0
    while start < end:
        stop = end if end - start <= SLICE else _border(text, start + SLICE)
        total += len(encoder.encode_ordinary(text[start:stop]))
        start = stop
    return total


def _border(text: str, end: int) -> int:
    """The last place before `end` where no token can reach across: before a single blank between two words."""
    lowest = end - BORDER_REACH
    place = text.rfind(" ", lowest, end - 1)
    while place > lowest:
        if not text[place - 1].isspace() and not text[place + 1].isspace():
            return place
        place = text.rfind(" ", lowest, place)
    return end


def _base64_runs(text: str) -> Iterator[tuple[int, int]]:
    """Where the long base64 runs are (data: URLs, keys, blobs). Looks for whole blocks without a blank first."""
    block = 0
    while block + BLOCK <= len(text):
        piece = text[block : block + BLOCK]
        if " " in piece or "\n" in piece or not piece.isascii() or _run_end(text, block) < block + BLOCK:
            block += BLOCK
            continue
        start = block
        while start > 0 and block - start < BLOCK and _in_run(text[start - 1]):
            start -= 1
        end = _run_end(text, block)
        if end - start >= 2 * BLOCK:
            yield start, end
        block = max(block + BLOCK, end + -end % BLOCK)


def _run_end(text: str, start: int) -> int:
    found = RUN.match(text, start)
    return found.end() if found else start


def _in_run(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char in "+/=_-")


def _estimate_run(encoder: tiktoken.Encoding, text: str, start: int, end: int) -> int:
    """Tokens of a run, from samples spread over it: base64 gives 0.68 tokens a character, hex 0.57, one letter 0.13."""
    stride = (end - start - SAMPLE) // (SAMPLES - 1)
    pieces = (text[start + i * stride : start + i * stride + SAMPLE] for i in range(SAMPLES))
    counted = sum(len(encoder.encode_ordinary(piece)) for piece in pieces)
    return -(-counted * (end - start) // (SAMPLES * SAMPLE))
