"""Choosing among a tenant's memories by packed lists of them. Imports numpy at first need."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from accordion.core.errors import BadRequest
from accordion.core.memories import Filter, Listing, Memory, MemoryType
from accordion.core.values import dataclass
from accordion.memory.ranking import AUTHOR_WEIGHT, BODY_WEIGHT, CONTEXT_WEIGHT, fuse
from accordion.storage import memories_labels
from accordion.storage.nearest import nearest_of

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
"""What a type is in a row. Stores hold them: none may change."""
_TYPES: Final = {str(code): kind for kind, code in _CODES.items()}

# How rows and posting lists are packed.
ROW: Final = [("row", "<u4"), ("words", "<u4"), ("created", "<f8"), ("type", "u1")]
POSTING: Final = [("row", "<u4"), ("times", "<u2", (3,))]
_FEW: Final = 0xFF

Place = tuple[float, int]
"""Where a memory stands in a list: when it was made, and its row."""
_PLACE: Final = struct.Struct(">dI")

_SATURATION, _LENGTH = 1.2, 0.75
"""BM25's k1 and b, and the least that a word which most memories have counts: as FTS5 has them."""
_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class Held:
    """What was read of a tenant. `rows` are chunks; `labels` by name; `words` the posting lists of each word's stems;
    `vectors` chunks of entries that are as long as the query's vector and its row."""

    rows: Sequence[bytes]
    labels: Mapping[str, bytes]
    words: Sequence[Sequence[bytes]] = ()
    vectors: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Pick:
    """A row that a search chose, with what Candidate says of it."""

    row: int
    lexical: float
    dense: float
    lexical_rank: int
    dense_rank: int


def row_entry(memory: Memory, words: int) -> bytes:
    """A memory's entry in the rows, without its row; `words` is how many it has in all columns."""
    return struct.pack("<IdB", words, memory.created, _CODES[memory.type])


def posting(times: Sequence[int]) -> bytes:
    """A memory's entry in a posting list, without its row: how often the word is in each column."""
    return struct.pack("<3H", *(min(count, _FEW) for count in times))


def labels(memory: Memory) -> list[str]:
    """What a memory is listed under here: its project and its conversation too."""
    found = [*memories_labels.labels(memory), f"p:{memory.project}"]
    if memory.conversation:
        found.append(f"c:{memory.conversation}")
    return found


def groups(wanted: Filter) -> list[list[str]]:
    """The labels that a filter asks for: of each group one."""
    found = memories_labels.groups(wanted)
    if wanted.project is not None:
        found.append([f"p:{wanted.project}"])
    if wanted.conversation:
        found.append([f"c:{wanted.conversation}"])
    return found


def count(held: Held, wanted: Filter) -> int:
    """How many rows the filter lets through."""
    return int(_chosen(_table(held), held, wanted).sum())


def newest(held: Held, wanted: Filter, behind: Place | None) -> list[int]:
    """The rows that the filter lets through, newest first; where a place is given, from behind it on."""
    import numpy as np  # noqa: PLC0415  # slow to import, and not wanted by all

    table = _table(held)
    chosen = _chosen(table, held, wanted)
    if behind is not None:
        created, row = behind
        chosen &= (table["created"] < created) | ((table["created"] == created) & (table["row"] < row))
    found = table[chosen]
    return [int(row) for row in found["row"][np.lexsort((found["row"], found["created"]))[::-1]]]


def place(after: str) -> Place | None:
    """The place that a listing named; None for the beginning. Raises BadRequest."""
    try:
        return _PLACE.unpack(bytes.fromhex(after)) if after else None
    except (ValueError, struct.error) as error:
        raise BadRequest(
            "after must be the value of `next` in the previous page.", code="invalid_page", param="after"
        ) from error


def listing(shown: Sequence[tuple[int, Memory]], *, more: bool) -> Listing:
    """Memories with their rows, as a list has them; whether more come behind."""
    ends = _PLACE.pack(shown[-1][1].created, shown[-1][0]).hex() if shown and more else ""
    return Listing(tuple(memory for _, memory in shown), ends)


def picked(held: Held, vector: bytes, wanted: Filter, pool: int) -> list[Pick]:
    """The best by words and by vector, fused by rank."""
    table = _table(held)
    chosen = _chosen(table, held, wanted)
    lexical = _by_words(table, held.words, chosen, pool)
    dense = _by_vector(table, held.vectors, vector, chosen, pool) if vector else {}
    rows = table["row"]
    types = {name: _TYPES[str(table["type"][rows.searchsorted(int(name))])] for name in (*lexical, *dense)}
    return [
        Pick(int(name), lexical.get(name, 0.0), dense.get(name, 0.0), by_words, by_vector)
        for name, by_words, by_vector in fuse(list(lexical), list(dense), types, pool)
    ]


def _table(held: Held) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415

    return np.frombuffer(_joined(held.rows), ROW)


def _joined(chunks: Sequence[bytes]) -> bytes:
    """Chunks of a list by their first rows."""
    ordered: list[bytes] = sorted(chunks, key=lambda chunk: int.from_bytes(chunk[:4], "little"))
    return b"".join(ordered)


def _chosen(table: NDArray[Any], held: Held, wanted: Filter) -> Flags:
    """Which of the rows the filter lets through."""
    import numpy as np  # noqa: PLC0415

    kinds = wanted.types or tuple(kind for kind in _CODES if kind not in memories_labels.HIDDEN)
    chosen: Flags = np.isin(table["type"], [_CODES[kind] for kind in kinds])
    for names in groups(wanted):
        listed = b"".join(held.labels.get(name, b"") for name in names)
        chosen &= np.isin(table["row"], np.frombuffer(listed, "<u4"))
    if wanted.since is not None:
        chosen &= table["created"] >= wanted.since
    if wanted.until is not None:
        chosen &= table["created"] <= wanted.until
    return chosen


def _by_words(table: NDArray[Any], words: Sequence[Sequence[bytes]], chosen: Flags, pool: int) -> dict[str, float]:
    """Rows by BM25 over all of the tenant's memories, the best first. Of a word of several stems all must be there."""
    import numpy as np  # noqa: PLC0415

    if not len(table):
        return {}
    length = 1 - _LENGTH + _LENGTH * table["words"] / max(float(table["words"].mean()), 1e-9)
    scores = np.zeros(len(table))
    for stems in words:
        times = _times(table, stems)
        hits = int(np.count_nonzero(times))
        if hits:
            weight = max(float(np.log((len(table) - hits + 0.5) / (hits + 0.5))), _LEAST)
            scores += weight * times * (_SATURATION + 1) / (times + _SATURATION * length)
    found = np.flatnonzero(chosen & (scores > 0))
    best = found[np.argsort(-scores[found], kind="stable")[:pool]]
    return {str(int(table["row"][at])): float(scores[at]) for at in best}


def _times(table: NDArray[Any], stems: Sequence[bytes]) -> NDArray[np.float64]:
    """How often a word is in each of the rows, by what a column counts."""
    import numpy as np  # noqa: PLC0415

    least: NDArray[np.float64] | None = None
    for packed in stems:
        entries = np.frombuffer(packed, POSTING)
        at = np.minimum(table["row"].searchsorted(entries["row"]), len(table) - 1)
        # The lists are read one after the other: one may know a row that another does not.
        both = table["row"][at] == entries["row"]
        times = np.zeros(len(table))
        times[at[both]] = entries["times"][both] @ np.array((BODY_WEIGHT, CONTEXT_WEIGHT, AUTHOR_WEIGHT))
        least = times if least is None else np.minimum(least, times)
    return np.zeros(len(table)) if least is None else least


def _by_vector(
    table: NDArray[Any], chunks: Sequence[bytes], vector: bytes, chosen: Flags, pool: int
) -> dict[str, float]:
    """Rows by how near their vectors are, the nearest first."""
    import numpy as np  # noqa: PLC0415

    entries = np.frombuffer(_joined(chunks), [("row", "<u4"), ("vector", f"V{len(vector)}")])
    wanted = entries[np.isin(entries["row"], table["row"][chosen])]
    found = nearest_of(vector, wanted["vector"].tobytes(), pool)
    return {str(int(wanted["row"][at])): cosine for at, cosine in found}
