"""Token counts by tiktoken, offline: the encodings' vocabularies are in `data/` (scripts/build_model_data.py).

A model that is not in tiktoken's own tables is tokens with o200k_base; accounting/calibration.py corrects the count
by the usage that providers report. The work is bounded for any text: texts are tokens in slices, since one very long
piece (a megabyte of blanks) overflows the regular expression's stack, and long runs of base64 are estimated from
samples.

The pools of tiktoken's regular expressions belong to the thread that counts first with an encoding; in any other
thread, counting takes a fifth to a third longer. Most texts are counted in the event loop's thread. So an encoding is
loaded in another thread, and the event loop's counts first (pipeline/count.py).
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from threading import Lock

import msgspec
import tiktoken
from tiktoken.model import encoding_name_for_model

from accordion.model.cache import LONGEST_NAME
from accordion.model.conversation import copy_if_wide
from accordion.protocols.zstd import decompress

DEFAULT_ENCODING = "o200k_base"

ENCODINGS = (DEFAULT_ENCODING, "cl100k_base")
"""The encodings of conversational models. All others count as the default; o200k_harmony splits texts like it."""
DATA = files("accordion.providers.models") / "data"

_MAX_VOCABULARY_BYTES = 16 * 2**20
SLICE = 16_384  # characters of one call of tiktoken
BORDER_REACH = 1_024  # characters before a slice's end in which a safe border is searched
BLOCK = 512  # a run of two blocks or more always covers one whole aligned block
RUN = re.compile(r"[A-Za-z0-9+/=_-]*")
SAMPLES, SAMPLE = 4, 256
REMEMBERED_MODELS = 1_024
REMEMBERED_FROM = 32  # characters; counting a shorter text takes no longer than looking it up
HASHED_AT_ONCE = 1 << 20  # characters
REMEMBERED_TEXTS = 8_192  # in each of two generations, about 200 bytes each


class TiktokenCounter:
    """A TokenCounter (model/ports.py). Safe to use from several threads; tiktoken releases the GIL while it counts."""

    def __init__(self) -> None:
        self._loaded: dict[str, tiktoken.Encoding] = {}
        self._names: dict[str, str] = {}
        self._counts: dict[tuple[int, int, str], int] = {}
        self._older_counts: dict[tuple[int, int, str], int] = {}
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
        end at, and it is estimated inside runs of 1,024 or more characters of base64.

        Counts are cached: a compaction counts texts that requests tokens before it, and its own text several times.
        """
        if len(text) < REMEMBERED_FROM:
            return self._count(text, encoding)
        key = (_hash(text), len(text), encoding)
        count = self._counts.get(key)
        if count is None:
            count = self._older_counts.get(key)
            if count is None:
                count = self._count(text, encoding)
            if len(self._counts) >= REMEMBERED_TEXTS:
                self._older_counts, self._counts = self._counts, {}
            self._counts[key] = count
        return count

    def _count(self, text: str, encoding: str) -> int:
        encoder = self._encoding(encoding)
        if len(text) <= 2 * BLOCK:
            return len(encoder.encode_ordinary(copy_if_wide(text)))
        total, start = 0, 0
        for run_start, run_end in _base64_runs(text):
            total += _count_sliced(encoder, text, start, run_start) + _estimate_run(encoder, text, run_start, run_end)
            start = run_end
        return total + _count_sliced(encoder, text, start, len(text))

    def _encoding(self, name: str) -> tiktoken.Encoding:
        try:
            return self._loaded[name]
        except KeyError:
            with self._lock:
                if name not in self._loaded:
                    self._loaded[name] = _load(name)
                return self._loaded[name]


def _hash(text: str) -> int:
    """Returns a hash of a text. Hashes a long text piece by piece, so that other threads can go on in between."""
    if len(text) <= HASHED_AT_ONCE:
        return hash(text)
    return hash(tuple(hash(text[index : index + HASHED_AT_ONCE]) for index in range(0, len(text), HASHED_AT_ONCE)))


def _encoding_name(model: str) -> str:
    try:
        name = encoding_name_for_model(model.rsplit("/", 1)[-1])
    except KeyError:
        return DEFAULT_ENCODING
    return name if name in ENCODINGS else DEFAULT_ENCODING


@lru_cache(maxsize=len(ENCODINGS))
def _load(name: str) -> tiktoken.Encoding:
    """Loads an encoding once in a process, however many counters it has."""
    patterns = msgspec.json.decode((DATA / "patterns.json").read_bytes(), type=dict[str, str])
    vocabulary = decompress((DATA / f"{name}.tiktoken.zst").read_bytes(), limit=_MAX_VOCABULARY_BYTES)
    ranks = {b64decode(token): int(rank) for token, rank in (line.split() for line in vocabulary.splitlines())}
    # No special tokens: in a text they count as plain text. The Rust core copies the ranks; the dictionary takes 27 MB
    # for o200k_base and serves debugging only.
    encoder = tiktoken.Encoding(name, pat_str=patterns[name], mergeable_ranks=ranks, special_tokens={})
    ranks.clear()
    return encoder


def _count_sliced(encoder: tiktoken.Encoding, text: str, start: int, end: int) -> int:
    total = 0
    while start < end:
        stop = end if end - start <= SLICE else _find_boundary(text, start + SLICE)
        # A slice from beginning to end is the text itself, which is to be left without its UTF-8 form.
        total += len(encoder.encode_ordinary(copy_if_wide(text[start:stop])))
        start = stop
    return total


def _find_boundary(text: str, end: int) -> int:
    """Returns the last position before `end` that no token spans: before a single blank between two words."""
    first_position = end - BORDER_REACH
    position = text.rfind(" ", first_position, end - 1)
    while position > first_position:
        if not text[position - 1].isspace() and not text[position + 1].isspace():
            return position
        position = text.rfind(" ", first_position, position)
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
    distance = (end - start - SAMPLE) // (SAMPLES - 1)
    pieces = (text[start + i * distance : start + i * distance + SAMPLE] for i in range(SAMPLES))
    tokens = sum(len(encoder.encode_ordinary(piece)) for piece in pieces)
    return -(-tokens * (end - start) // (SAMPLES * SAMPLE))
