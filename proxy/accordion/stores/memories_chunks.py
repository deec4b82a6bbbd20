"""The search index of a tenant's memories in chunks of neighbouring rows.

A chunk has three parts, each of which is read, sealed and written as a whole. All numbers are little-endian:

    rows     count (2 bytes); for each its row (4) and its entry (see `memories_columns.row_entry`, 13); for each how
             many stems (2) and labels (2) it has; the labels, as digests of 8 bytes
    words    the stems, as digests of 8 bytes; for each how often it stands in text, context and author (a byte each)
    vectors  for each kind of vector: its length (2), how many (2), and the vectors, each behind its row (4)

A search reads all chunks, which is fast enough for ten thousand memories. Nothing of a removed memory stays in a chunk,
and a sealed chunk reveals nothing. The probability that two 64-bit digests collide is 1 in 10^8 for a tenant with a
million words.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from accordion.stores.memories_columns import POSTING, ROW, SearchColumns
from accordion.stores.nearest_vectors import KIND_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS: Final = 32
"""Rows of a complete chunk."""

_ROW_BYTES, _DIGEST_BYTES, _COLUMNS = 17, 8, 3
_MOST: Final = 0xFFFF
"""Stems of a memory: the maximum of two bytes."""
Parts = tuple[bytes, bytes, bytes]


class ChunkEntry(msgspec.Struct, frozen=True):
    """A memory in a chunk: its row entry, digests and counts of its stems, digests of its labels, its vector."""

    row_entry: bytes
    stems: bytes
    stem_counts: bytes
    labels: bytes
    vector: bytes


def digest(name: str) -> bytes:
    """Returns the digest of a stem or a label."""
    return _cached_digest(name) if len(name) <= _CACHED_LENGTH else _digest(name)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()


_CACHED_LENGTH = 64
_cached_digest = functools.lru_cache(maxsize=20_000)(_digest)


def make_entry(
    row_entry: bytes, stems: Mapping[str, Sequence[int]], labels: Sequence[str], vector: bytes
) -> ChunkEntry:
    """Makes the entry of a memory from the counts of its stems by column, its labels and its vector.

    Stems beyond the maximum, which no ordinary text reaches, are left out.
    """
    stems = dict(islice(stems.items(), _MOST))
    stem_counts = bytes([min(count, 255) for each in stems.values() for count in each])
    return ChunkEntry(row_entry, b"".join(map(digest, stems)), stem_counts, b"".join(map(digest, labels)), vector)


def pack(entries: Mapping[int, ChunkEntry]) -> Parts:
    """Packs entries by row into a chunk."""
    ordered = sorted(entries.items())
    rows = [struct.pack("<H", len(ordered))]
    rows += [struct.pack("<I", row) + each.row_entry for row, each in ordered]
    rows += [
        struct.pack("<HH", len(each.stems) // _DIGEST_BYTES, len(each.labels) // _DIGEST_BYTES) for _, each in ordered
    ]
    rows += [each.labels for _, each in ordered]
    words = [each.stems for _, each in ordered] + [each.stem_counts for _, each in ordered]
    kinds: dict[tuple[bytes, int], list[bytes]] = {}
    for row, each in ordered:
        if each.vector:
            kinds.setdefault((each.vector[:KIND_BYTES], len(each.vector)), []).append(
                struct.pack("<I", row) + each.vector
            )
    vectors = [struct.pack("<HH", length, len(packed)) + b"".join(packed) for (_, length), packed in kinds.items()]
    return b"".join(rows), b"".join(words), b"".join(vectors)


def unpack(parts: Parts) -> dict[int, ChunkEntry]:
    """Unpacks a chunk into entries by row."""
    rows, words, packed_vectors = parts
    vectors = {
        int.from_bytes(each[:4], "little"): each[4:]
        for length, packed in _split_vectors(packed_vectors)
        for each in _split_fixed(packed, 4 + length)
    }
    count, row_entries, counts, labels = _split_rows(rows)
    stems, stem_counts = _split_stems(words)
    entries, at_stem, at_label = {}, 0, 0
    for at in range(count):
        row_entry = row_entries[at * _ROW_BYTES : (at + 1) * _ROW_BYTES]
        row = int.from_bytes(row_entry[:4], "little")
        stem_count, label_count = struct.unpack_from("<HH", counts, at * 4)
        entries[row] = ChunkEntry(
            row_entry[4:],
            stems[at_stem * _DIGEST_BYTES : (at_stem + stem_count) * _DIGEST_BYTES],
            stem_counts[at_stem * _COLUMNS : (at_stem + stem_count) * _COLUMNS],
            labels[at_label * _DIGEST_BYTES : (at_label + label_count) * _DIGEST_BYTES],
            vectors.get(row, b""),
        )
        at_stem, at_label = at_stem + stem_count, at_label + label_count
    return entries


def find_unused_labels(rows: Iterable[bytes], labels: Iterable[str]) -> set[str]:
    """Returns the labels that no memory in these chunks has."""
    used_digests = {label_digest for each in rows for label_digest in _split_fixed(_split_rows(each)[3], _DIGEST_BYTES)}
    return {label for label in labels if digest(label) not in used_digests}


def select(
    chunks: Sequence[tuple[bytes, bytes, bytes]],
    labels: Iterable[str],
    stems: Sequence[Sequence[str]] = (),
    vector: bytes = b"",
) -> SearchColumns:
    """Returns the columns that a search needs from chunks, in their order. Imports numpy.

    They are all rows, the rows of each label, the posting lists of each word's stems, and the vectors of the kind of
    `vector`. Parts of a chunk that the search does not need may be empty.
    """
    import numpy as np  # noqa: PLC0415  # slow to import, and not always needed

    row_parts = [_split_rows(rows) for rows, _, _ in chunks]
    table = b"".join(row_entries for _, row_entries, _, _ in row_parts)
    numbers = np.frombuffer(table, ROW)["row"]
    counts = np.frombuffer(b"".join(each for _, _, each, _ in row_parts), "<u2").reshape(-1, 2)
    label_digests = np.frombuffer(b"".join(each for _, _, _, each in row_parts), "<u8")
    label_rows = np.repeat(numbers, counts[:, 1]) if label_digests.size else numbers[:0]
    rows_by_label = {
        name: label_rows[label_digests == _label_number(name)].astype("<u4").tobytes() for name in dict.fromkeys(labels)
    }
    unique_stems = dict.fromkeys(stem for each in stems for stem in each)
    postings = (
        _posting_lists([_split_stems(words) for _, words, _ in chunks], numbers, counts[:, 0], unique_stems)
        if unique_stems
        else {}
    )
    comparable = [
        packed
        for _, _, vectors in chunks
        for length, packed in _split_vectors(vectors)
        if length == len(vector) and packed[4 : 4 + KIND_BYTES] == vector[:KIND_BYTES]
    ]
    return SearchColumns(
        [table], rows_by_label, [[postings[stem] for stem in each] for each in stems if each], comparable
    )


def _posting_lists(
    words: Sequence[tuple[bytes, bytes]], rows: NDArray[np.uint32], counts: NDArray[np.uint16], names: Iterable[str]
) -> dict[str, bytes]:
    """Returns the posting list of each stem."""
    import numpy as np  # noqa: PLC0415

    digests = np.frombuffer(b"".join(each for each, _ in words), "<u8")
    times = np.frombuffer(b"".join(each for _, each in words), "u1").reshape(-1, _COLUMNS)
    ends = np.cumsum(counts)
    lists = {}
    for name in names:
        at = np.flatnonzero(digests == _label_number(name))
        posting = np.empty(len(at), POSTING)
        posting["row"], posting["times"] = rows[np.searchsorted(ends, at, "right")], times[at]
        lists[name] = posting.tobytes()
    return lists


def _label_number(name: str) -> int:
    return int.from_bytes(digest(name), "little")


def _split_rows(part: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Returns the number of rows, their entries, their counts and their labels."""
    count = int.from_bytes(part[:2], "little")
    counts, labels = 2 + count * _ROW_BYTES, 2 + count * (_ROW_BYTES + 4)
    return count, part[2:counts], part[counts:labels], part[labels:]


def _split_stems(part: bytes) -> tuple[bytes, bytes]:
    """Returns the digests of stems and their counts."""
    end = len(part) // (_DIGEST_BYTES + _COLUMNS) * _DIGEST_BYTES
    return part[:end], part[end:]


def _split_vectors(part: bytes) -> Iterable[tuple[int, bytes]]:
    """Returns for each kind its length and its vectors with their rows."""
    at = 0
    while at < len(part):
        length, count = struct.unpack_from("<HH", part, at)
        end = at + 4 + count * (4 + length)
        yield length, part[at + 4 : end]
        at = end


def _split_fixed(part: bytes, width: int) -> list[bytes]:
    return [part[at : at + width] for at in range(0, len(part), width)]
