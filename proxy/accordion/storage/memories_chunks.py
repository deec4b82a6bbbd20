"""What a tenant's memories are chosen and weighed by, in chunks of neighbouring rows, each a few bytes in one piece.

A chunk has three parts, which are read, sealed and written as wholes; all numbers stand with the lowest byte first:

    rows     how many (2 bytes); for each its row (4) and its entry (see `memories_columns.row_entry`, 13); for each how
             many stems (2) and labels (2) it has; the labels, as digests of 8 bytes
    words    the stems, as digests of 8 bytes; for each how often it stands in text, context and author (a byte each)
    vectors  for each kind of vector: its length (2), how many (2), and the vectors, each behind its row (4)

So a search reads them all, which a tenant of ten thousand memories can afford, nothing is left of what was taken out of
a chunk, and a chunk tells nothing when it is sealed. Digests of 64 bits meet by chance once in 10^8 for a tenant that
knows a million words.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from accordion.core.values import dataclass
from accordion.storage.memories_columns import POSTING, ROW, Held
from accordion.storage.nearest import SIGN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS: Final = 32
"""Rows that come to stand in one chunk."""

_ENTRY, _NUMBER, _COLUMNS = 17, 8, 3
_MOST: Final = 0xFFFF
"""Stems of a memory: as many as two bytes count."""
Parts = tuple[bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Entry:
    """A memory in a chunk: its entry in the rows, the digests of its stems with the times of each, those of its labels,
    and its vector."""

    lead: bytes
    stems: bytes
    times: bytes
    labels: bytes
    vector: bytes


def digest(name: str) -> bytes:
    """What a stem or a label is in a chunk."""
    return _remembered(name) if len(name) <= _REMEMBERED else _digest(name)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_NUMBER).digest()


_REMEMBERED = 64
_remembered = functools.lru_cache(maxsize=20_000)(_digest)


def entry(lead: bytes, stems: Mapping[str, Sequence[int]], labels: Sequence[str], vector: bytes) -> Entry:
    """A memory's, of how often each stem is in each column, and what it is listed under. Of more stems than can be
    counted, which nobody's speech has, it is found by the first."""
    stems = dict(islice(stems.items(), _MOST))
    times = bytes([min(count, 255) for each in stems.values() for count in each])
    return Entry(lead, b"".join(map(digest, stems)), times, b"".join(map(digest, labels)), vector)


def packed(entries: Mapping[int, Entry]) -> Parts:
    """A chunk of entries by row."""
    ordered = sorted(entries.items())
    rows = [struct.pack("<H", len(ordered))]
    rows += [struct.pack("<I", row) + each.lead for row, each in ordered]
    rows += [struct.pack("<HH", len(each.stems) // _NUMBER, len(each.labels) // _NUMBER) for _, each in ordered]
    rows += [each.labels for _, each in ordered]
    words = [each.stems for _, each in ordered] + [each.times for _, each in ordered]
    kinds: dict[tuple[bytes, int], list[bytes]] = {}
    for row, each in ordered:
        if each.vector:
            kinds.setdefault((each.vector[:SIGN], len(each.vector)), []).append(struct.pack("<I", row) + each.vector)
    vectors = [struct.pack("<HH", length, len(of)) + b"".join(of) for (_, length), of in kinds.items()]
    return b"".join(rows), b"".join(words), b"".join(vectors)


def unpacked(parts: Parts) -> dict[int, Entry]:
    """The other way round."""
    rows, words, packed_vectors = parts
    vectors = {
        int.from_bytes(each[:4], "little"): each[4:]
        for length, of in _vectors(packed_vectors)
        for each in _pieces(of, 4 + length)
    }
    count, leads, counts, labels = _rows(rows)
    stems, times = _words(words)
    found, at_stem, at_label = {}, 0, 0
    for at in range(count):
        lead = leads[at * _ENTRY : (at + 1) * _ENTRY]
        row = int.from_bytes(lead[:4], "little")
        stem_count, label_count = struct.unpack_from("<HH", counts, at * 4)
        found[row] = Entry(
            lead[4:],
            stems[at_stem * _NUMBER : (at_stem + stem_count) * _NUMBER],
            times[at_stem * _COLUMNS : (at_stem + stem_count) * _COLUMNS],
            labels[at_label * _NUMBER : (at_label + label_count) * _NUMBER],
            vectors.get(row, b""),
        )
        at_stem, at_label = at_stem + stem_count, at_label + label_count
    return found


def unlabelled(rows: Iterable[bytes], labels: Iterable[str]) -> set[str]:
    """Those of the labels under which no memory of these chunks' rows is listed."""
    held = {piece for each in rows for piece in _pieces(_rows(each)[3], _NUMBER)}
    return {label for label in labels if digest(label) not in held}


def held(
    chunks: Sequence[tuple[bytes, bytes, bytes]],
    labels: Iterable[str],
    stems: Sequence[Sequence[str]] = (),
    vector: bytes = b"",
) -> Held:
    """What a search needs of chunks, in their order: all rows, those of the labels, the postings of the stems of each
    word, and the vectors of the kind of `vector`. Parts that are not needed may be empty. Imports numpy."""
    import numpy as np  # noqa: PLC0415  # slow to import, and not wanted by all

    split = [_rows(rows) for rows, _, _ in chunks]
    table = b"".join(leads for _, leads, _, _ in split)
    numbers = np.frombuffer(table, ROW)["row"]
    counts = np.frombuffer(b"".join(each for _, _, each, _ in split), "<u2").reshape(-1, 2)
    listed = np.frombuffer(b"".join(each for _, _, _, each in split), "<u8")
    of_labels = np.repeat(numbers, counts[:, 1]) if listed.size else numbers[:0]
    found = {name: of_labels[listed == _number(name)].astype("<u4").tobytes() for name in dict.fromkeys(labels)}
    names = dict.fromkeys(stem for each in stems for stem in each)
    postings = _postings([_words(words) for _, words, _ in chunks], numbers, counts[:, 0], names) if names else {}
    near = [
        of
        for _, _, vectors in chunks
        for length, of in _vectors(vectors)
        if length == len(vector) and of[4 : 4 + SIGN] == vector[:SIGN]
    ]
    return Held([table], found, [[postings[stem] for stem in each] for each in stems if each], near)


def _postings(
    words: Sequence[tuple[bytes, bytes]], rows: NDArray[np.uint32], counts: NDArray[np.uint16], names: Iterable[str]
) -> dict[str, bytes]:
    """The posting list of each stem."""
    import numpy as np  # noqa: PLC0415

    digests = np.frombuffer(b"".join(each for each, _ in words), "<u8")
    times = np.frombuffer(b"".join(each for _, each in words), "u1").reshape(-1, _COLUMNS)
    ends = np.cumsum(counts)
    found = {}
    for name in names:
        at = np.flatnonzero(digests == _number(name))
        made = np.empty(len(at), POSTING)
        made["row"], made["times"] = rows[np.searchsorted(ends, at, "right")], times[at]
        found[name] = made.tobytes()
    return found


def _number(name: str) -> int:
    return int.from_bytes(digest(name), "little")


def _rows(part: bytes) -> tuple[int, bytes, bytes, bytes]:
    """How many rows, their entries, their counts, their labels."""
    count = int.from_bytes(part[:2], "little")
    counts, labels = 2 + count * _ENTRY, 2 + count * (_ENTRY + 4)
    return count, part[2:counts], part[counts:labels], part[labels:]


def _words(part: bytes) -> tuple[bytes, bytes]:
    """The stems and their times."""
    end = len(part) // (_NUMBER + _COLUMNS) * _NUMBER
    return part[:end], part[end:]


def _vectors(part: bytes) -> Iterable[tuple[int, bytes]]:
    """The length of each kind, and its vectors with their rows."""
    at = 0
    while at < len(part):
        length, count = struct.unpack_from("<HH", part, at)
        end = at + 4 + count * (4 + length)
        yield length, part[at + 4 : end]
        at = end


def _pieces(part: bytes, width: int) -> list[bytes]:
    return [part[at : at + width] for at in range(0, len(part), width)]
