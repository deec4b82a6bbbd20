"""The shared memories: in Redis (7.0 or later) or Valkey, one server or a cluster. Importing this imports redis-py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from accordion.archive.sealing import Unsealed
from accordion.core.memories import (
    Candidate,
    Change,
    Conflict,
    Embedded,
    Embedder,
    Entity,
    Filter,
    Listing,
    Memory,
    Relation,
    embedding_text,
)
from accordion.core.ports import Sealer
from accordion.memory.entries import line
from accordion.storage import memories_columns as columns
from accordion.storage import memories_records as records
from accordion.storage import memories_redis_entries as entries
from accordion.storage import memories_redis_scripts as scripts
from accordion.storage.batches import name_bytes
from accordion.storage.lane import Lane
from accordion.storage.memories_labels import key
from accordion.storage.memories_redis_server import TRIES, Command, Server, moving
from accordion.storage.memories_veil import Veil
from accordion.storage.stems import connect, stemmed

T = TypeVar("T")

_PAGE = 500


class RedisMemories:
    """The Memories port over plain hashes of any Redis or Valkey (see `memories_redis_scripts`); no module is needed.

    A change is one script: whatever becomes of the process, all of it is there or nothing. To search is to read the
    rows, the vectors and the posting lists of the query's words, and to weigh them here, in a thread: the server does
    nothing long. Words are FTS5's stems, weighed as it does (bm25 over this tenant alone); of a word that a mark
    divides ("o'brien") all parts must be there, in any order. Every round trip takes at most `timeout` seconds. `url`
    and `cluster` are RedisStore's. Raises ValueError for a malformed one.

    With a `sealer` that has keys texts, names and vectors are sealed, and the names that things are looked up by are
    digests; what is weighed (times, types, how often a nameless word stands where) is not. A tenant whose memories were
    written without, or under another key than the first, has all of them sealed anew, in one script, at the next write.
    `wrote` hears for whom something was written.
    """

    def __init__(
        self,
        url: str,
        embedder: Embedder,
        *,
        timeout: float,
        cluster: bool = False,
        sealer: Sealer | None = None,
        wrote: Callable[[bytes], object] = lambda space: None,
    ) -> None:
        self._server = Server(url, sealer or Unsealed(), timeout=timeout, cluster=cluster)
        self._embedder = embedder
        self._wrote = wrote
        self._lane = Lane("memories-words", connect, timeout=timeout)

    async def write(self, space: bytes, change: Change) -> tuple[Entity, ...]:
        """See the port."""
        put = list({memory.id: memory for memory in change.put}.values())
        embedded = await self._embedder.embed([embedding_text(memory) for memory in put]) if put else []
        for _ in range(TRIES):
            await self.seal(space)
            veil = self._server.known(space)
            packed = await self._lane.run(entries.packed, veil, change, put, embedded)
            args = (packed.change, veil.held)
            done = await self._server.script(scripts.WRITE, scripts.keys(space).values(), args)
            if isinstance(done, bytes):
                raise Conflict(packed.conflicts[done])
            if done != -1:
                self._wrote(space)
                return tuple(entity for entity, new in zip(change.entities, done, strict=True) if new)
            await self._server.asked(space, lambda _: [])
        raise moving()

    async def get(self, space: bytes, ids: Sequence[str]) -> list[Memory | None]:
        """See the port."""
        if not ids:
            return []
        keys = scripts.keys(space)
        for _ in range(TRIES):
            veil = self._server.known(space)
            args = [name_bytes(veil.name(memory_id)) for memory_id in ids]
            secret, *found = await self._server.script(scripts.GET, (keys["heads"], keys["values"], keys["veil"]), args)
            if self._server.still(space, veil, secret):
                return [records.memory(veil, value) if value else None for value in found]
        raise moving()

    async def listed(self, space: bytes, wanted: Filter, *, after: str = "", limit: int = 100) -> Listing:
        """See the port."""
        behind, shown, more = columns.place(after), list[tuple[int, Memory]](), False
        for _ in range(TRIES):
            veil, held, _ = await self._held(space, wanted)
            found = await self._weighed(columns.newest, held, wanted, behind)
            rows = found[: limit if limit >= 0 else None]
            values = await self._server.fields(scripts.keys(space)["values"], rows)
            got = zip(rows, values, strict=True)
            shown = [(row, records.memory(veil, value)) for row, value in got if value is not None]
            more = len(rows) < len(found)
            if len(shown) == len(rows):
                break
        return columns.listing(shown, more=more)

    async def count(self, space: bytes, wanted: Filter) -> int:
        """See the port."""
        _, held, _ = await self._held(space, wanted)
        return await self._weighed(columns.count, held, wanted)

    async def candidates(
        self, space: bytes, words: Sequence[str], vector: bytes, wanted: Filter, *, pool: int
    ) -> list[Candidate]:
        """See the port."""
        stems = await self._lane.run(stemmed, words) if words else []
        found: list[Candidate] = []
        for _ in range(TRIES):
            picks = await self._picked(space, stems, vector, wanted, pool)
            found = await self._candidates(space, picks)
            if len(found) == len(picks):
                break
        return found

    async def marker(self, space: bytes, name: str) -> bytes | None:
        """See the port."""
        keys = scripts.keys(space)
        veil, ((value,),) = await self._server.asked(
            space, lambda veil: [("HMGET", keys["markers"], name_bytes(veil.name(name)))]
        )
        return None if value is None else records.marker(veil, value)[1]

    async def relations(self, space: bytes, entity: str = "", *, limit: int = 1_000) -> list[Relation]:
        """See the port."""
        keys, name = scripts.keys(space), f"e:{key(entity)}" if entity else ""

        def ends(veil: Veil) -> list[Command]:
            return [("HMGET", keys["ends"], name_bytes(entries.label(veil, name) if name else ""))]

        veil, ((packed,),) = await self._server.asked(space, ends)
        numbers = [int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed or b""), 4)]
        found = await self._server.fields(keys["relations"], numbers[: limit if limit >= 0 else None])
        return [entries.relation(veil, value) for value in found if value is not None]

    async def entities(self, space: bytes, *, limit: int = 1_000) -> list[Entity]:
        """See the port."""
        keys = scripts.keys(space)
        veil, (values,) = await self._server.asked(space, lambda _: [("HVALS", keys["names"])])
        found = [records.entity(veil, value) for value in values]
        found.sort(key=lambda entity: (key(entity.name), entity.type))
        return found[: limit if limit >= 0 else None]

    async def export(self, space: bytes) -> AsyncIterator[bytes]:
        """See the port. What is written meanwhile may be missing."""
        keys = scripts.keys(space)
        veil, (values,) = await self._server.asked(space, lambda _: [("HVALS", keys["values"])])
        ids = [records.memory(veil, value).id for value in values]
        for at in range(0, len(ids), _PAGE):
            for memory in await self.get(space, ids[at : at + _PAGE]):
                if memory is not None:
                    yield line(memory)
        for entity in await self.entities(space, limit=-1):
            yield line(entity)
        for relation in await self.relations(space, limit=-1):
            yield line(relation)
        veil, (values,) = await self._server.asked(space, lambda _: [("HVALS", keys["markers"])])
        for value in values:
            yield line(records.marker(veil, value))

    async def seal(self, space: bytes) -> bool:
        """See the port."""
        veil = self._server.known(space)
        if veil.renewed() is veil:
            return False
        for _ in range(TRIES):
            veil, (held,) = await self._server.asked(space, lambda _: [("EXISTS", scripts.keys(space)["counters"])])
            now = veil.renewed()
            if now is veil:
                return False
            if await self._rewritten(space, veil, now):
                self._server.still(space, veil, now.held)
                return bool(held)
        raise moving()

    async def erase(self, space: bytes) -> int:
        """See the port. What the server itself wrote down, it forgets when it rewrites its files."""
        return int(await self._server.script(scripts.ERASE, scripts.keys(space).values(), ()))

    async def close(self) -> None:
        """See the port."""
        await self._lane.close()
        await self._server.close()

    # -- under another veil ------------------------------------------------------------------------------------------

    async def _rewritten(self, space: bytes, old: Veil, new: Veil) -> bool:
        """Puts all of a tenant under another veil; False where something was written meanwhile."""
        keys = scripts.keys(space)
        names = ("values", "tokens", "vectors", "relations", "names", "markers")
        ((changes,),) = await self._server.together(("HMGET", keys["counters"], "change"))
        values, tokens, vectors, relations, entities, markers = await self._server.together(
            *(("HGETALL", keys[name]) for name in names)
        )
        by_row = {int.from_bytes(row, "little"): each for _, row, each in entries.vectors(old, vectors)}
        rows = sorted(values, key=int)
        change = Change(
            entities=tuple(records.entity(old, value) for value in entities.values()),
            relations=tuple(entries.relation(old, relations[number]) for number in sorted(relations, key=int)),
            markers=tuple(records.marker(old, value) for value in markers.values()),
        )
        put = [records.memory(old, values[row]) for row in rows]
        kept = [Embedded(by_row.get(int(row), b""), records.tokens(old, tokens.get(row) or b"")) for row in rows]
        packed = await self._lane.run(entries.packed, new, change, put, kept)
        args = (packed.change, old.held, new.held, changes or b"0")
        return bool(await self._server.script(scripts.REWRITE, keys.values(), args) != -1)

    # -- searching ---------------------------------------------------------------------------------------------------

    async def _held(
        self, space: bytes, wanted: Filter, more: Callable[[Veil], Sequence[Command]] = lambda _: ()
    ) -> tuple[Veil, columns.Held, list[Any]]:
        """The rows and what the filter needs, and the answers to what else is asked."""
        keys = scripts.keys(space)
        names = [name for group in columns.groups(wanted) for name in group]

        def asked(veil: Veil) -> list[Command]:
            rows: list[Command] = [("HVALS", keys["rows"])]
            if names:
                rows.append(("HMGET", keys["labels"], *(name_bytes(entries.label(veil, name)) for name in names)))
            return [*rows, *more(veil)]

        veil, answers = await self._server.asked(space, asked)
        found = dict(zip(names, answers[1], strict=True)) if names else {}
        labels = {name: packed for name, packed in found.items() if packed is not None}
        return veil, columns.Held(answers[0], labels), answers[2 if names else 1 :]

    async def _picked(
        self, space: bytes, stems: Sequence[Sequence[str]], vector: bytes, wanted: Filter, pool: int
    ) -> list[columns.Pick]:
        keys = scripts.keys(space)
        names = list(dict.fromkeys(stem for each in stems for stem in each))

        def more(veil: Veil) -> list[Command]:
            asked: list[Command] = []
            if names:
                asked.append(("HMGET", keys["words"], *(name_bytes(veil.name(stem)) for stem in names)))
            if vector:
                asked.append(("HGETALL", keys["vectors"]))
            return asked

        veil, held, answers = await self._held(space, wanted, more)
        postings = dict(zip(names, answers[0], strict=True)) if names else {}
        words = [[postings[stem] for stem in each] for each in stems]
        words = [each for each in words if None not in each]

        def weighed() -> list[columns.Pick]:
            vectors = entries.near(veil, answers[-1], vector) if vector else []
            return columns.picked(columns.Held(held.rows, held.labels, words, vectors), vector, wanted, pool)

        return await self._weighed(weighed)

    async def _candidates(self, space: bytes, picks: Sequence[columns.Pick]) -> list[Candidate]:
        if not picks:
            return []
        keys, rows, veil = scripts.keys(space), [pick.row for pick in picks], self._server.known(space)
        values, tokens = await self._server.together(("HMGET", keys["values"], *rows), ("HMGET", keys["tokens"], *rows))
        return [
            Candidate(
                records.memory(veil, value),
                each.lexical,
                each.dense,
                each.lexical_rank,
                each.dense_rank,
                records.tokens(veil, kept or b""),
            )
            for each, value, kept in zip(picks, values, tokens, strict=True)
            if value is not None
        ]

    async def _weighed(self, call: Callable[..., T], *args: Any) -> T:
        return await self._lane.run(lambda _: call(*args))
