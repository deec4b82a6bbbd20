"""Filters and ranks a tenant's memories by packed columns: rows, labels, posting lists and vectors.

Both memory stores read the columns that a query needs and call this module in a thread. Imports numpy at first use.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from accordion.memory.ranking import AUTHOR_WEIGHT, BODY_WEIGHT, CONTEXT_WEIGHT, fuse
from accordion.model.errors import BadRequest
from accordion.model.memories import Memory, MemoryFilter, MemoryPage, MemoryType
from accordion.stores.nearest_vectors import find_nearest_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]

_CODES: Final[Mapping[MemoryType, int]] = {
    "fact": 1,
    "decision": 2,
    "preference": 3,
    "solution": 4,
    "question": 5,
    "summary": 6,
    "summary_archived": 7,
    "session": 8,
}
"""Codes of types in rows. Stores hold them, so no code may change."""
_TYPES: Final = {str(code): kind for kind, code in _CODES.items()}

HIDDEN: Final[tuple[MemoryType, ...]] = ("summary_archived", "session")
"""Types that a filter includes only if it names them."""

# The packed formats of rows and posting lists.
ROW: Final = [("row", "<u4"), ("words", "<u4"), ("created", "<f8"), ("type", "u1")]
POSTING: Final = [("row", "<u4"), ("times", "<u2", (3,))]
_MAX_COUNT: Final = 0xFF

ListPosition = tuple[float, int]
"""The position of a memory in a list: its creation time and its row."""
_POSITION: Final = struct.Struct(">dI")

_SATURATION, _LENGTH = 1.2, 0.75
"""BM25's k1 and b, and the least weight of a word that most memories have, as in FTS5."""
_MIN_WEIGHT = 1e-6


class SearchColumns(msgspec.Struct, frozen=True):
    """The columns of a tenant that a query needs.

    `rows` are chunks; `labels` are rows by label; `words` are the posting lists of each word's stems; `vectors` are
    chunks of rows with vectors as long as the query's.
    """

    rows: Sequence[bytes]
    labels: Mapping[str, bytes]
    words: Sequence[Sequence[bytes]] = ()
    vectors: Sequence[bytes] = ()


class ChosenRow(msgspec.Struct, frozen=True):
    """A row that a search chose, with the scores and ranks of its SearchCandidate."""

    row: int
    lexical: float
    dense: float
    lexical_rank: int
    dense_rank: int


def row_entry(memory: Memory, words: int) -> bytes:
    """Packs a memory's entry in the rows, without the row number; `words` is its number of words in all columns."""
    return struct.pack("<IdB", words, memory.created, _CODES[memory.type])


def posting_entry(times: Sequence[int]) -> bytes:
    """Packs a memory's entry in a posting list, without the row number: the word's count in each column."""
    return struct.pack("<3H", *(min(count, _MAX_COUNT) for count in times))


def fold_case(name: str) -> str:
    """Returns a form of a name that is equal for names which differ only in case."""
    return name.strip().casefold()


def labels_of(memory: Memory) -> list[str]:
    """Returns the labels of a memory: topics, tags, entities, project and conversation, without duplicates."""
    labels = [f"t:{fold_case(topic)}" for topic in (*memory.topics, *memory.macro_topics)]
    labels += [f"g:{fold_case(tag)}" for tag in memory.tags]
    labels += [f"e:{fold_case(name)}" for name in memory.entities]
    labels.append(f"p:{memory.project}")
    if memory.conversation:
        labels.append(f"c:{memory.conversation}")
    return list(dict.fromkeys(labels))


def label_groups(memory_filter: MemoryFilter) -> list[list[str]]:
    """Returns the groups of labels of a filter. A memory must have at least one label of each group."""
    groups = [[f"t:{fold_case(topic)}" for topic in memory_filter.topics]] if memory_filter.topics else []
    groups += [[f"g:{fold_case(tag)}"] for tag in memory_filter.tags]
    if memory_filter.project is not None:
        groups.append([f"p:{memory_filter.project}"])
    if memory_filter.conversation:
        groups.append([f"c:{memory_filter.conversation}"])
    return groups


def count(columns: SearchColumns, memory_filter: MemoryFilter) -> int:
    """Counts the rows that pass the filter."""
    return int(_filter_rows(_row_table(columns), columns, memory_filter).sum())


def newest_rows(columns: SearchColumns, memory_filter: MemoryFilter, after: ListPosition | None) -> list[int]:
    """Returns the rows that pass the filter, newest first, after a position if one is given."""
    import numpy as np  # noqa: PLC0415  # slow to import, and not always needed

    table = _row_table(columns)
    mask = _filter_rows(table, columns, memory_filter)
    if after is not None:
        created, row = after
        mask &= (table["created"] < created) | ((table["created"] == created) & (table["row"] < row))
    rows = table[mask]
    return [int(row) for row in rows["row"][np.lexsort((rows["row"], rows["created"]))[::-1]]]


def parse_position(after: str) -> ListPosition | None:
    """Parses the position of a cursor; returns None for the beginning. Raises BadRequest."""
    try:
        return _POSITION.unpack(bytes.fromhex(after)) if after else None
    except (ValueError, struct.error) as error:
        raise BadRequest(
            "after must be the value of `next` in the previous page.", code="invalid_page", param="after"
        ) from error


def make_page(memories: Sequence[tuple[int, Memory]], *, has_more: bool) -> MemoryPage:
    """Builds a page from memories with their rows; `has_more` says whether others follow."""
    next_position = _POSITION.pack(memories[-1][1].created, memories[-1][0]).hex() if memories and has_more else ""
    return MemoryPage(tuple(memory for _, memory in memories), next_position)


def choose_rows(columns: SearchColumns, vector: bytes, memory_filter: MemoryFilter, pool: int) -> list[ChosenRow]:
    """Chooses the best rows by words and by vector, fused by rank."""
    table = _row_table(columns)
    mask = _filter_rows(table, columns, memory_filter)
    lexical = _rank_by_words(table, columns.words, mask, pool)
    dense = _rank_by_vector(table, columns.vectors, vector, mask, pool) if vector else {}
    rows = table["row"]
    types = {name: _TYPES[str(table["type"][rows.searchsorted(int(name))])] for name in (*lexical, *dense)}
    return [
        ChosenRow(int(name), lexical.get(name, 0.0), dense.get(name, 0.0), by_words, by_vector)
        for name, by_words, by_vector in fuse(list(lexical), list(dense), types, pool)
    ]


def _row_table(columns: SearchColumns) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415

    return np.frombuffer(_join_chunks(columns.rows), ROW)


def _join_chunks(chunks: Sequence[bytes]) -> bytes:
    """Joins chunks in the order of their first rows."""
    ordered: list[bytes] = sorted(chunks, key=lambda chunk: int.from_bytes(chunk[:4], "little"))
    return b"".join(ordered)


def _filter_rows(table: NDArray[Any], columns: SearchColumns, memory_filter: MemoryFilter) -> Flags:
    """Returns a mask of the rows that pass the filter."""
    import numpy as np  # noqa: PLC0415

    types = memory_filter.types or tuple(kind for kind in _CODES if kind not in HIDDEN)
    mask: Flags = np.isin(table["type"], [_CODES[kind] for kind in types])
    for names in label_groups(memory_filter):
        rows_with_label = b"".join(columns.labels.get(name, b"") for name in names)
        mask &= np.isin(table["row"], np.frombuffer(rows_with_label, "<u4"))
    if memory_filter.since is not None:
        mask &= table["created"] >= memory_filter.since
    if memory_filter.until is not None:
        mask &= table["created"] <= memory_filter.until
    return mask


def _rank_by_words(table: NDArray[Any], words: Sequence[Sequence[bytes]], mask: Flags, pool: int) -> dict[str, float]:
    """Ranks rows by BM25 over all of the tenant's memories. A word with several stems matches only with all of them."""
    import numpy as np  # noqa: PLC0415

    if not len(table):
        return {}
    length = 1 - _LENGTH + _LENGTH * table["words"] / max(float(table["words"].mean()), 1e-9)
    scores = np.zeros(len(table))
    for stems in words:
        times = _count_word(table, stems)
        hits = int(np.count_nonzero(times))
        if hits:
            weight = max(float(np.log((len(table) - hits + 0.5) / (hits + 0.5))), _MIN_WEIGHT)
            scores += weight * times * (_SATURATION + 1) / (times + _SATURATION * length)
    matches = np.flatnonzero(mask & (scores > 0))
    best = matches[np.argsort(-scores[matches], kind="stable")[:pool]]
    return {str(int(table["row"][at])): float(scores[at]) for at in best}


def _count_word(table: NDArray[Any], stems: Sequence[bytes]) -> NDArray[np.float64]:
    """Counts a word in each row, weighted by column."""
    import numpy as np  # noqa: PLC0415

    min_counts: NDArray[np.float64] | None = None
    for packed in stems:
        entries = np.frombuffer(packed, POSTING)
        at = np.minimum(table["row"].searchsorted(entries["row"]), len(table) - 1)
        # The lists are read one after the other, so one may have a row that another does not.
        is_in_table = table["row"][at] == entries["row"]
        times = np.zeros(len(table))
        times[at[is_in_table]] = entries["times"][is_in_table] @ np.array((BODY_WEIGHT, CONTEXT_WEIGHT, AUTHOR_WEIGHT))
        min_counts = times if min_counts is None else np.minimum(min_counts, times)
    return np.zeros(len(table)) if min_counts is None else min_counts


def _rank_by_vector(
    table: NDArray[Any], chunks: Sequence[bytes], vector: bytes, mask: Flags, pool: int
) -> dict[str, float]:
    """Ranks rows by the cosine of their vectors, the nearest first."""
    import numpy as np  # noqa: PLC0415

    entries = np.frombuffer(_join_chunks(chunks), [("row", "<u4"), ("vector", f"V{len(vector)}")])
    candidates = entries[np.isin(entries["row"], table["row"][mask])]
    nearest = find_nearest_in(vector, candidates["vector"].tobytes(), pool)
    return {str(int(candidates["row"][at])): cosine for at, cosine in nearest}
