"""The search index of a tenant's memories: filters them with numpy, and ranks them by model/search.py.

The store holds an entry for each memory (`IndexEntry`). A worker builds the index of a tenant from all entries, in its
own memory (see memories.py).
Terms and labels are digests of 64 bits: the probability that two collide is 1 in 10^8 for a tenant with a million
words. Imports numpy at first use.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import nlargest
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from accordion.features.memory.extraction.relations import find_names, names_of
from accordion.features.memory.memories import (
    Embedding,
    Memory,
    MemoryFilter,
    MemoryPage,
    MemoryType,
    searchable_content,
)
from accordion.features.memory.search.ranking import AUTHOR_WEIGHT, BODY_WEIGHT, CONTEXT_WEIGHT, fuse
from accordion.model.errors import BadRequest
from accordion.model.search import TermBlock, TermIndex, TermScores, names_topic
from accordion.model.words import search_terms

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
"""Codes of types in entries. Stores hold them, so no code may change."""
_TYPES: Final[Mapping[int, MemoryType]] = {code: kind for kind, code in _CODES.items()}

_INACTIVE: Final = "s:inactive"
"""The label of memories that are superseded or resolved."""
HIDDEN: Final[tuple[MemoryType, ...]] = ("summary_archived", "session")
"""Types that a filter includes only if it names them."""

ListPosition = tuple[float, int]
"""The position of a memory in a list: its creation time and its order."""
_POSITION: Final = struct.Struct(">dQ")

_DIGEST_BYTES, _COLUMNS = 8, 3
_ENTRY_BYTES: Final = 1_000
"""Bytes that an index takes for each memory besides its words, labels and vector, roughly."""
_SATURATION, _LENGTH = 1.2, 0.75
"""BM25's k1 and b."""


class IndexEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A memory in the index.

    `order` counts up with each written memory of a tenant, and `record` names the record with the memory. `length` is
    the number of all terms. `terms` are digests, and `term_counts` are a byte for each term and column (text, context,
    author). `labels` are digests. `names` are those of people and things with more than one.
    """

    order: int
    created: float
    type_code: int
    length: int
    terms: bytes
    term_counts: bytes
    labels: bytes
    vector: bytes
    record: str = ""
    names: tuple[tuple[str, ...], ...] = ()


class ChosenMemory(msgspec.Struct, frozen=True):
    """A memory that a search chose, with the scores and ranks of its SearchCandidate."""

    id: str
    lexical: float
    dense: float
    lexical_rank: int
    dense_rank: int


def make_entry(memory: Memory, embedding: Embedding) -> IndexEntry:
    """Makes the entry of a memory, without order and record."""
    columns = [Counter(search_terms(text)) for text in (searchable_content(memory), memory.context, memory.author)]
    terms = dict.fromkeys(chain.from_iterable(columns))
    return IndexEntry(
        0,
        memory.created,
        _CODES[memory.type],
        sum(column.total() for column in columns),
        b"".join(map(_digest, terms)),
        bytes(min(column[term], 255) for term in terms for column in columns),
        b"".join(map(_digest, labels_of(memory))),
        embedding.vector,
        names=tuple(find_names(memory.content, memory.entities)),
    )


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()


def normalize_case(name: str) -> str:
    """Returns a form of a name that is equal for names which differ only in case."""
    return name.strip().casefold()


def labels_of(memory: Memory) -> list[str]:
    """Returns the labels of a memory: topics, tags, entities, project, conversation and status, without duplicates."""
    labels = [f"t:{normalize_case(topic)}" for topic in (*memory.topics, *memory.macro_topics)]
    labels += [f"g:{normalize_case(tag)}" for tag in memory.tags]
    labels += [f"e:{normalize_case(name)}" for entity in memory.entities for name in names_of(entity)]
    labels.append(f"p:{memory.project}")
    if memory.conversation:
        labels.append(f"c:{memory.conversation}")
    if memory.status != "active":
        labels.append(_INACTIVE)
    return list(dict.fromkeys(labels))


def _label_groups(memory_filter: MemoryFilter) -> list[list[str]]:
    """Returns the groups of labels of a filter. A memory must have at least one label of each group."""
    groups = [[f"t:{normalize_case(topic)}" for topic in memory_filter.topics]] if memory_filter.topics else []
    groups += [[f"g:{normalize_case(tag)}"] for tag in memory_filter.tags]
    if memory_filter.project is not None:
        groups.append([f"p:{memory_filter.project}"])
    if memory_filter.conversation:
        groups.append([f"c:{memory_filter.conversation}"])
    return groups


def parse_position(after: str) -> ListPosition | None:
    """Parses the position of a cursor; returns None for the beginning. Raises BadRequest."""
    try:
        return _POSITION.unpack(bytes.fromhex(after)) if after else None
    except (ValueError, struct.error) as error:
        raise BadRequest(
            "after must be the value of `next` in the previous page.", code="invalid_page", param="after"
        ) from error


def make_page(memories: Sequence[tuple[int, Memory]], *, has_more: bool) -> MemoryPage:
    """Builds a page from memories with their order; `has_more` says whether others follow."""
    next_position = _POSITION.pack(memories[-1][1].created, memories[-1][0]).hex() if memories and has_more else ""
    return MemoryPage(tuple(memory for _, memory in memories), next_position)


class TenantIndex:
    """The index of a tenant's memories after the change with this number.

    `entries` are by id, in the order of their writing, `markers` by name.
    """

    def __init__(
        self,
        number: int = 0,
        entries: Mapping[str, IndexEntry] = MappingProxyType({}),
        markers: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        self.number, self.entries, self.markers = number, entries, markers
        self._ids = list(entries)
        self.size = sum(
            _ENTRY_BYTES + 3 * (len(entry.terms) + len(entry.labels)) + len(entry.vector) for entry in entries.values()
        ) + sum(len(name) + len(value) for name, value in markers.items())
        """Its bytes in memory, roughly."""

    def count(self, memory_filter: MemoryFilter) -> int:
        """Counts the memories that pass the filter."""
        return int(self._columns.filter(memory_filter).sum()) if self.entries else 0

    def list_newest(self, memory_filter: MemoryFilter, after: ListPosition | None) -> list[str]:
        """Returns the ids of the memories that pass the filter, newest first, after a position if one is given."""
        rows = self._columns.list_newest(memory_filter, after) if self.entries else ()
        return [self._ids[row] for row in rows]

    def find_unknown_entities(self, names: Iterable[str]) -> set[str]:
        """Returns those of the names that no memory has among its entities."""
        labels = b"".join(entry.labels for entry in self.entries.values())
        digests = {labels[at : at + _DIGEST_BYTES] for at in range(0, len(labels), _DIGEST_BYTES)}
        return {name for name in names if _digest(f"e:{normalize_case(name)}") not in digests}

    def find_other_names(self, terms: frozenset[str]) -> list[tuple[str, str]]:
        """Returns the names in a query with these terms, each with another name of the same."""
        pairs = (
            (name, other)
            for names in self._names
            for name in names
            if names_topic(name, terms)
            for other in names
            if not names_topic(other, terms)
        )
        return list(dict.fromkeys(pairs))

    @cached_property
    def _names(self) -> list[tuple[str, ...]]:
        return list(dict.fromkeys(names for entry in self.entries.values() for names in entry.names))

    def choose(self, terms: Sequence[str], vector: bytes, memory_filter: MemoryFilter, pool: int) -> list[ChosenMemory]:
        """Chooses the best memories by terms and by vector, fused by rank."""
        if not self.entries:
            return []
        mask = self._columns.filter(memory_filter)
        lexical = {self._ids[row]: score for row, score in self._columns.rank_by_terms(terms, mask, pool)}
        dense = {self._ids[row]: cosine for row, cosine in self._columns.rank_by_vector(vector, mask, pool)}
        types = {each: _TYPES[self.entries[each].type_code] for each in (*lexical, *dense)}
        return [
            ChosenMemory(each, lexical.get(each, 0.0), dense.get(each, 0.0), by_words, by_vector)
            for each, by_words, by_vector in fuse(list(lexical), list(dense), types, pool)
        ]

    @cached_property
    def _columns(self) -> _Columns:
        return _Columns(list(self.entries.values()))


class _Columns:
    """The entries of an index as columns of numpy. A row is the position of an entry."""

    def __init__(self, entries: Sequence[IndexEntry]) -> None:
        import numpy as np  # noqa: PLC0415  # slow to import, and not always needed

        self._order = np.array([entry.order for entry in entries], np.uint64)
        self._created = np.array([entry.created for entry in entries])
        self._types = np.array([entry.type_code for entry in entries], np.uint8)
        self._vectors = [entry.vector for entry in entries]
        self._labels = _index_digests([entry.labels for entry in entries])
        lengths = np.array([entry.length for entry in entries], np.uint32)
        norms = 1 - _LENGTH + _LENGTH * lengths / max(float(lengths.mean()), 1e-9)
        counts = np.frombuffer(b"".join([entry.term_counts for entry in entries]), np.uint8).reshape(-1, _COLUMNS)
        times = counts @ np.array((BODY_WEIGHT, CONTEXT_WEIGHT, AUTHOR_WEIGHT))
        norms = np.repeat(norms, [len(entry.terms) // _DIGEST_BYTES for entry in entries])
        shares = times * (_SATURATION + 1) / (times + _SATURATION * norms)
        self._terms = _index_digests([entry.terms for entry in entries], shares)

    def filter(self, memory_filter: MemoryFilter) -> Flags:
        """Returns a mask of the rows that pass the filter."""
        import numpy as np  # noqa: PLC0415

        types = memory_filter.types or tuple(kind for kind in _CODES if kind not in HIDDEN)
        mask: Flags = np.isin(self._types, [_CODES[kind] for kind in types])
        for labels in _label_groups(memory_filter):
            mask &= self._have_label(labels)
        if memory_filter.active_only:
            mask &= ~self._have_label([_INACTIVE])
        if memory_filter.since is not None:
            mask &= self._created >= memory_filter.since
        if memory_filter.until is not None:
            mask &= self._created <= memory_filter.until
        return mask

    def _have_label(self, labels: Sequence[str]) -> Flags:
        """Returns a mask of the rows that have one of the labels."""
        import numpy as np  # noqa: PLC0415

        mask = np.zeros(len(self._types), np.bool_)
        for label in labels:
            mask[self._labels.find(label)] = True
        return mask

    def list_newest(self, memory_filter: MemoryFilter, after: ListPosition | None) -> NDArray[np.intp]:
        """Returns the rows that pass the filter, newest first, after a position if one is given."""
        import numpy as np  # noqa: PLC0415

        mask = self.filter(memory_filter)
        if after is not None:
            created, order = after
            mask &= (self._created < created) | ((self._created == created) & (self._order < order))
        rows = np.flatnonzero(mask)
        newest: NDArray[np.intp] = rows[np.lexsort((self._order[rows], self._created[rows]))[::-1]]
        return newest

    def rank_by_terms(self, terms: Sequence[str], mask: Flags, pool: int) -> list[tuple[int, float]]:
        """Ranks rows by the words of a query, in weights of a term that one memory alone has."""
        scores = TermScores(self._terms, dict.fromkeys(terms, 1.0))
        unit = self._terms.weight(1)
        matches = [(row, score / unit) for row, score in scores.sums.items() if mask[row]]
        return nlargest(pool, matches, key=itemgetter(1))

    def rank_by_vector(self, vector: bytes, mask: Flags, pool: int) -> list[tuple[int, float]]:
        """Ranks rows by the cosine of their vectors, the nearest first."""
        rows = [int(row) for row in mask.nonzero()[0]] if vector else []
        return [(rows[at], cosine) for at, cosine in find_nearest(vector, [self._vectors[row] for row in rows], pool)]


def _index_digests(parts: Sequence[bytes], shares: NDArray[np.float64] | None = None) -> TermIndex:
    """Returns the index of rows by their digests; `shares` are those of each digest in each row, or None: 1."""
    import numpy as np  # noqa: PLC0415

    digests = np.frombuffer(b"".join(parts), "<i8")
    rows = np.repeat(np.arange(len(parts), dtype=np.uint32), [len(part) // _DIGEST_BYTES for part in parts])
    order = np.argsort(digests, kind="stable")
    in_order = digests[order]
    starts = np.flatnonzero(np.diff(in_order, prepend=in_order[:1] - 1))
    sorted_shares = shares[order].astype(np.float32).tobytes() if shares is not None else b""
    block = TermBlock(
        array("q", in_order[starts].tobytes()),
        array("I", np.append(starts, len(order)).astype(np.uint32).tobytes()),
        array("I", rows[order].tobytes()),
        array("f", sorted_shares),
    )
    return TermIndex([block], [len(parts)], key=lambda term: int.from_bytes(_digest(term), "little", signed=True))


KIND_BYTES = 4
"""Bytes of a vector that name its embedder. Only vectors of the same kind are compared."""


def find_nearest(query: bytes, vectors: Sequence[bytes], limit: int) -> list[tuple[int, float]]:
    """Returns the indexes of the vectors nearest to `query`, the nearest first, each with its cosine.

    Vectors of another kind or length, and those with a negative cosine, are left out.
    """
    kind, length = query[:KIND_BYTES], len(query)
    comparable = [at for at, vector in enumerate(vectors) if len(vector) == length and vector[:KIND_BYTES] == kind]
    if length <= KIND_BYTES or not comparable:
        return []
    import numpy as np  # noqa: PLC0415  # slow to import, and not always needed

    joined = b"".join([vectors[at] for at in comparable])
    matrix = np.frombuffer(joined, np.int8).reshape(-1, length)[:, KIND_BYTES:].astype(np.float32)
    query_vector = np.frombuffer(query, np.int8, offset=KIND_BYTES).astype(np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix)) * np.linalg.norm(query_vector)
    cosines = matrix @ query_vector / np.maximum(norms, 1e-9)
    best = np.argpartition(-cosines, limit)[:limit] if limit < len(cosines) else np.arange(len(cosines))
    best = best[np.argsort(-cosines[best], kind="stable")]
    return [(comparable[at], float(cosines[at])) for at in best if cosines[at] > 0]
