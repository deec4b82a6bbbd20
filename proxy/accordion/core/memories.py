"""What outlives a conversation: memories, the entities and relations in them, and where they are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import field
from typing import Literal, Protocol

from accordion.core.values import dataclass

MemoryType = Literal["fact", "decision", "preference", "solution", "question", "summary", "summary_archived", "session"]
"""`summary` is a topic's one active summary, `summary_archived` a former one, `session` one for recovery."""

Grain = Literal["fact", "decision", "preference", "solution", "question"]
"""The types that people and agents may write."""

Source = Literal["compaction", "consolidation", "manual", "fold", "session", "import"]
"""Who wrote a memory: the compaction of a range, a consolidation, somebody by hand, a fold, `core_memory`, an
import."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One thing that is remembered; it stands alone. Times in seconds since the epoch.

    `first` and `last` (inclusive, from 0; -1: none) are the messages of the session `conversation` that it was made of.
    `context` is what was said before, for search alone. `project` divides a tenant's memories; recall never crosses it
    unless it is told to. `revision` is a digest of the content: what a summary was written of is known by it.
    """

    id: str
    type: MemoryType
    content: str
    topics: tuple[str, ...] = ()
    macro_topics: tuple[str, ...] = ()
    project: str = ""
    source: Source = "manual"
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
    """Of a summary: the memories that it was written of, each with its revision then."""
    counted: int = 0
    """Of a summary: how many memories its topic had when it was written."""
    former_topic: str = ""
    """Of an archived summary: the topic that it was the summary of."""


@dataclass(frozen=True, slots=True)
class Entity:
    """Somebody or something that memories speak of. A tenant has one of each name (compared without case) and type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Relation:
    """How one entity stands to another, and the memory that says so."""

    start: str
    end: str
    type: str
    memory: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What is written in one transaction: all of it or nothing.

    `require` are (id, revision) of memories that must still be as they were (revision empty: must not exist); a marker
    that exists already is a conflict as well. Markers (`name`, `value`) are small records under names of their own,
    such as one for each range that was compacted.
    """

    put: tuple[Memory, ...] = ()
    delete: tuple[str, ...] = ()
    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()
    markers: tuple[tuple[str, bytes], ...] = ()
    require: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Filter:
    """Which memories are meant. Empty fields do not restrict; without `types` all but the archived and the sessions.
    One of `topics` is enough, met in a memory's `topics` or `macro_topics`; all of `tags` are needed; both without
    case. `since` and `until` bound `created`, inclusive. `conversation` is whose messages a memory was made of."""

    types: tuple[MemoryType, ...] = ()
    topics: tuple[str, ...] = ()
    project: str | None = None
    tags: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Memories, newest first, those of the same time by when they were written. `next` is what `after` says to go on
    behind them, whatever is written, edited and deleted meanwhile; empty where nothing comes behind."""

    memories: tuple[Memory, ...] = ()
    next: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory that a search may give, with its rank among the words' finds and among the vectors' (from 0; -1: not
    among them), and the scores that both gave (higher is better; 0 where it gave none). `tokens` are what the embedder
    keeps of the text besides its vector, for `Embedder.relevance`."""

    memory: Memory
    lexical: float = 0.0
    dense: float = 0.0
    lexical_rank: int = -1
    dense_rank: int = -1
    tokens: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Embedded:
    """What is kept of a text. `vector`: four bytes that say whose vector it is, then one int8 a dimension, of any
    length; only vectors whose first four bytes are equal are compared, by cosine. Empty: nothing to be said of it.
    `tokens` are the embedder's own."""

    vector: bytes = b""
    tokens: bytes = b""


class Embedder(Protocol):
    """Texts as vectors, and how well texts answer a query."""

    async def embed(self, texts: Sequence[tuple[str, str]]) -> list[Embedded]:
        """What is kept of texts, each given with its context (what was said before it)."""

    async def query(self, text: str) -> bytes:
        """A query's vector, as those of the texts; empty where nothing can be said of it."""

    async def relevance(self, query: str, candidates: Sequence[Candidate]) -> list[float]:
        """How well each candidate answers the query, from 0 to 1."""


def embedding_text(memory: Memory) -> tuple[str, str]:
    """What a memory is found by, and its context: the pair that `Embedder.embed` takes."""
    text = f"{memory.author}: {memory.content}" if memory.author else memory.content
    return text, memory.context


class Conflict(Exception):
    """Something that a change requires is not so any more; nothing was written."""


class Memories(Protocol):
    """A tenant's memories; `space` is the tenant's key. Every method may raise StoreUnavailable.

    A store embeds what it is given (`embedding_text`) before it writes."""

    async def write(self, space: bytes, change: Change) -> tuple[Entity, ...]:
        """Writes a change; gives those of its entities that are new. Raises Conflict."""

    async def get(self, space: bytes, ids: Sequence[str]) -> list[Memory | None]:
        """Memories by id, in that order."""

    async def listed(self, space: bytes, wanted: Filter, *, after: str = "", limit: int = 100) -> Listing:
        """Memories, newest first, from behind the place `after` on; a `limit` of -1 is none. Raises BadRequest where no
        listing said `after`."""

    async def count(self, space: bytes, wanted: Filter) -> int:
        """How many there are."""

    async def candidates(
        self, space: bytes, words: Sequence[str], vector: bytes, wanted: Filter, *, pool: int
    ) -> list[Candidate]:
        """The best by words and by vector, fused by rank (`accordion.memory.ranking.fuse`), at most `pool`. Words are
        compared by stem; any of them is enough. `vector` is the query's, empty for none."""

    async def marker(self, space: bytes, name: str) -> bytes | None:
        """What a marker holds."""

    async def relations(self, space: bytes, entity: str = "", *, limit: int = 1_000) -> list[Relation]:
        """Relations, of one entity where it is named."""

    async def entities(self, space: bytes, *, limit: int = 1_000) -> list[Entity]:
        """Entities by name."""

    def export(self, space: bytes) -> AsyncIterator[bytes]:
        """All of a tenant, a JSON document a line, each complete."""

    async def seal(self, space: bytes) -> bool:
        """Seals what was written before there was a key, or under another one than now; whether there was anything. A
        tenant's next write does it too."""

    async def erase(self, space: bytes) -> int:
        """Removes all of a tenant, indexes and vectors too; gives how many memories there were."""

    async def close(self) -> None:
        """Let go of everything."""
