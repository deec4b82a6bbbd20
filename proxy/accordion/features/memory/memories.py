"""Long-term memories as values, and the ports of the memory store and the embedder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal, Protocol

import msgspec

from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.tenant import TenantScope

MemoryType = Literal["fact", "decision", "preference", "solution", "question", "summary", "summary_archived", "session"]
"""`summary` is the active summary of a topic, `summary_archived` an earlier one, `session` a memory for recovery."""

FactType = Literal["fact", "decision", "preference", "solution", "question"]
"""The types that people and agents may write."""

SINGLE_TYPES: Final[tuple[MemoryType, ...]] = ("fact", "decision", "preference", "solution", "question")
"""The types of single memories. Summaries are written from these."""
ALL_TYPES: Final[tuple[MemoryType, ...]] = (*SINGLE_TYPES, "summary", "summary_archived", "session")

MemorySource = Literal["compaction", "consolidation", "manual", "session", "import"]
"""The writer of a memory: the memory compaction of a range (`compaction`), a consolidation, a person or agent
(`manual`), `core_memory` (`session`), or an import."""


MemoryStatus = Literal["active", "superseded", "resolved"]
"""`superseded`: something newer holds. `resolved`: it was open, and is no longer."""


class Memory(msgspec.Struct, frozen=True):
    """One memory, which is understandable on its own. Times in seconds since the epoch.

    `first` and `last` (inclusive, from 0; -1: none) are its source messages in the session `conversation`. `context` is
    the text before them, used for search only. `project` divides a tenant's memories; recall stays within a project
    unless the request says otherwise. `revision` is a digest of the content; summaries record it for their sources.
    """

    id: str
    type: MemoryType
    content: str
    topics: tuple[str, ...] = ()
    macro_topics: tuple[str, ...] = ()
    project: str = ""
    source: MemorySource = "manual"
    conversation: str = ""
    first: int = -1
    last: int = -1
    author: str = ""
    context: str = ""
    entities: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    description: str = ""
    created: float = 0.0
    updated: float = 0.0
    revision: str = ""
    sources: tuple[tuple[str, str], ...] = ()
    """Of a summary: the ids of its source memories, each with the revision at that time."""
    counted: int = 0
    """Of a summary: the number of memories of its topic when it was written."""
    former_topic: str = ""
    """Of an archived summary: its topic."""
    status: MemoryStatus = "active"
    """One that is not active is stored, and found by a search only on request."""


class MemoryChange(msgspec.Struct, frozen=True):
    """The content of one transaction: all of it is written, or nothing.

    `require` has pairs (id, memory) of memories that must be unchanged (None: must not exist). Markers (name, value)
    are small records, such as one for each compacted range; a marker that exists already is a conflict.
    """

    put: tuple[Memory, ...] = ()
    delete: tuple[str, ...] = ()
    markers: tuple[tuple[str, bytes], ...] = ()
    require: tuple[tuple[str, Memory | None], ...] = ()


class MemoryFilter(msgspec.Struct, frozen=True):
    """A filter of memories. Empty fields do not restrict; empty `types` mean all but `summary_archived` and `session`.

    One of `topics` must be in a memory's `topics` or `macro_topics`; all of `tags` are required; both ignore case.
    `since` and `until` bound `created`, inclusive. `conversation` is the session of the source messages. `active_only`
    leaves out what is superseded or resolved.
    """

    types: tuple[MemoryType, ...] = ()
    topics: tuple[str, ...] = ()
    project: str | None = None
    tags: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    conversation: str = ""
    active_only: bool = False


class MemoryPage(msgspec.Struct, frozen=True):
    """A page of memories, the newest first; memories of the same time are in the order of their writing.

    `next` is the value of `after` for the next page, which stays valid whatever is written, edited or deleted
    meanwhile; empty on the last page.
    """

    memories: tuple[Memory, ...] = ()
    next: str = ""


class SearchCandidate(StructWithHiddenFields, frozen=True):
    """A memory that matches a search, with its ranks (from 0; -1: no match) and scores in the lexical and the vector
    search (higher is better; 0 if there is none). `lexical` is in weights of a word that one memory alone has.

    `tokens` is the embedder's data about the text besides its vector, for `Embedder.score_relevance`.
    """

    hidden_fields = frozenset({"tokens"})

    memory: Memory
    lexical: float = 0.0
    dense: float = 0.0
    lexical_rank: int = -1
    dense_rank: int = -1
    tokens: bytes = b""


class Embedding(msgspec.Struct, frozen=True):
    """The embedding of a text.

    `vector` has four bytes that identify the embedder, then one int8 for each dimension. Only vectors with the same
    first four bytes are compared, by cosine. It is empty if the text has no embedding. `tokens` is data in the
    embedder's own format.
    """

    vector: bytes = b""
    tokens: bytes = b""


class Embedder(Protocol):
    """Turns texts into vectors, and scores how relevant texts are to a query."""

    async def embed(self, texts: Sequence[tuple[str, str]]) -> list[Embedding]:
        """Returns the embeddings of texts, each given with its context (the text before it)."""

    async def embed_query(self, text: str) -> bytes:
        """Returns a query's vector, in the format of the texts' vectors; empty if it has none."""

    async def score_relevance(self, query: str, candidates: Sequence[SearchCandidate]) -> list[float]:
        """Returns the relevance of each candidate to the query, from 0 to 1."""

    @property
    def least_relevance(self) -> float:
        """The relevance, by words and by this embedder, that the best candidate has if any fits the query.

        0 if that is not known.
        """


def embedding_text(memory: Memory) -> tuple[str, str]:
    """Returns the searchable text of a memory and its context, the pair that `Embedder.embed` takes."""
    text = searchable_content(memory)
    return f"{memory.author}: {text}" if memory.author else text, memory.context


def searchable_content(memory: Memory) -> str:
    """Returns the content, and the names of the entities that it does not have itself."""
    content = memory.content.casefold()
    return "\n".join([memory.content, *(name for name in memory.entities if name.casefold() not in content)])


class Conflict(Exception):
    """A requirement of a change is not met any more; nothing was written."""


class MemoryStore(Protocol):
    """A store of memories, divided by tenant. Every method may raise StoreUnavailable.

    A store embeds each memory (`embedding_text`) before it writes it.
    """

    async def write(self, tenant: TenantScope, change: MemoryChange) -> None:
        """Writes a change. Raises Conflict."""

    async def get(self, tenant: TenantScope, ids: Sequence[str]) -> list[Memory | None]:
        """Returns memories by id, in the order of `ids`."""

    async def list_memories(
        self, tenant: TenantScope, memory_filter: MemoryFilter, *, after: str = "", limit: int = 100
    ) -> MemoryPage:
        """Returns a page of memories, the newest first, that come after the position `after`.

        A `limit` of -1 means no limit. Raises BadRequest if `after` is not a page's `next`.
        """

    async def count(self, tenant: TenantScope, memory_filter: MemoryFilter) -> int:
        """Counts the memories that match."""

    async def find_candidates(
        self, tenant: TenantScope, terms: Sequence[str], vector: bytes, memory_filter: MemoryFilter, *, pool: int
    ) -> list[SearchCandidate]:
        """Returns the best matches by terms and by vector, fused by rank (search/ranking.py).

        There are at most `pool`. One of the terms (`search_terms`) is enough. `vector` is the query's vector, empty for
        none.
        """

    async def find_other_names(self, tenant: TenantScope, terms: frozenset[str]) -> list[tuple[str, str]]:
        """Returns the names in a query with these terms, each with another name that a memory gives the same."""

    async def get_marker(self, tenant: TenantScope, name: str) -> bytes | None:
        """Returns the value of a marker; None if it does not exist."""

    async def find_unknown_entities(self, tenant: TenantScope, names: Sequence[str]) -> set[str]:
        """Returns those of the names that no memory has among its entities, compared without case."""

    def export(self, tenant: TenantScope) -> AsyncIterator[bytes]:
        """Yields all data of a tenant, one complete JSON document per line."""

    async def seal(self, tenant: TenantScope) -> bool:
        """Encrypts data that was written without a key, or with another key; returns whether there was any."""

    async def erase(self, tenant: TenantScope) -> int:
        """Removes all data of a tenant, indexes and vectors too; returns the number of memories."""
