"""Estimates the tokens of long texts from samples, with a bound that a count hardly ever exceeds.

The texts are cut into cells of `CELL` bytes, before a blank if there is one near. A round counts one cell of each of so
many equal stretches. The next one counts more of them, for a caller to whom the bound is still too high. A hash of the
conversation chooses the cells, so the same texts always have the same estimates.

No encoding makes more than one token of a byte. So the tokens for each byte of a cell are a number from 0 to 1, and the
bound needs no more than that: it holds for any texts, whatever the other cells contain, except with a probability of
`RISK`. It is near the estimate where the samples are alike, and far above it where they differ. How it was found and
measured: docs/adr/0039-estimates-before-counts.md.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from hashlib import shake_128
from itertools import accumulate

import msgspec

CELL = 64  # bytes
REACH = 16  # bytes from the end of a cell within which a blank is searched; no token ends with one if a word follows
ROUNDS = (40, 60, 156)
"""Samples of each round."""
RISK = 1e-6
"""The probability that a count exceeds any of the bounds, for texts that were not made against the chosen cells."""

_MARGIN = 1 / 16
"""The share by which a count may exceed the sum of the cells' counts. It does so by 3 % for hexadecimal, and the count
of a long run of base64 is an estimate itself, with an error of up to 4 %."""
_STEPS = 12  # of the search for the bound: to one in 4,096 tokens for each byte
_LEAST = 1e-9  # the least divisor
_FRACTION = 4  # bytes of the hash for the position in a stretch


class TextEstimate(msgspec.Struct, frozen=True):
    """Tokens of texts: the `likely` number, and the `bound` that a count hardly ever exceeds."""

    likely: int
    bound: int


def estimate_text_tokens(texts: Sequence[str], seed: bytes, count: Callable[[str], int]) -> Iterator[TextEstimate]:
    """Yields estimates of the sum of `count(text)` over `texts`, each from more samples than the one before.

    `seed` stands for their content.
    """
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    ends = list(accumulate(map(len, encoded)))
    size = ends[-1] if ends else 0
    if not size:
        yield TextEstimate(0, 0)
        return
    samples, digest = list[float](), shake_128(seed).digest(_FRACTION * sum(ROUNDS))
    for stretches in ROUNDS:
        chosen, digest = digest[: _FRACTION * stretches], digest[_FRACTION * stretches :]
        for position in _choose_positions(size, chosen):
            index = bisect_right(ends, position)
            start = ends[index] - len(encoded[index])
            samples.append(_measure_density(encoded[index], position - start, count))
        mean = math.fsum(samples) / len(samples)
        bound = min(1.0, (1 + _MARGIN) * _find_bound(samples, mean))
        yield TextEstimate(math.ceil(size * mean), math.ceil(size * bound))


def _choose_positions(size: int, digest: bytes) -> list[int]:
    """Returns a position in each of equal stretches of `size` bytes, by four bytes of `digest` for each."""
    stretches, most = len(digest) // _FRACTION, 256**_FRACTION
    fractions = (int.from_bytes(digest[at : at + _FRACTION], "big") for at in range(0, len(digest), _FRACTION))
    return [(stretch * most + fraction) * size // (stretches * most) for stretch, fraction in enumerate(fractions)]


def _measure_density(text: bytes, position: int, count: Callable[[str], int]) -> float:
    """Returns the tokens for each byte of the cell at a position."""
    nominal_start = position - position % CELL
    start, end = _find_cut(text, nominal_start), _find_cut(text, nominal_start + CELL)
    if position < start:
        start, end = _find_cut(text, nominal_start - CELL), start
    return min(1.0, count(text[start:end].decode("utf-8", "surrogatepass")) / (end - start))


def _find_cut(text: bytes, position: int) -> int:
    """Returns where the text is cut near a position: before the next blank, or where a character of UTF-8 begins."""
    if position <= 0 or position >= len(text):
        return max(0, min(position, len(text)))
    blank = text.find(b" ", position, position + REACH)
    if blank >= 0:
        return blank
    while position < len(text) and text[position] & 0b1100_0000 == 0b1000_0000:
        position += 1
    return position


def _find_bound(samples: Sequence[float], mean: float) -> float:
    """Returns a density that the mean of all cells exceeds with a probability of `RISK` at most.

    Let `m` be the mean of all cells. Over the samples of a round, the products of `1 + m - sample` and of
    `(1 - sample) / (1 - m)` are 1 or less on average (at most 1, since the stretches have means of their own), and so
    is half of their sum. So over all rounds it is a supermartingale, which ever reaches `1 / RISK` with a probability
    of `RISK` at most (Ville's inequality). The bound is the least density for which it does. The second product is the
    better one for samples that are alike, the first one if any is near 1.
    """
    low, high = mean, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        wide = math.prod([1.0 + middle - sample for sample in samples])
        narrow = math.prod([(1.0 - sample) / max(1.0 - middle, _LEAST) for sample in samples])
        if wide + narrow >= 2 / RISK:
            high = middle
        else:
            low = middle
    return high
