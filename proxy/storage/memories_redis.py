"""The shared memories: in Redis (7.0 or later) or Valkey, one server or a cluster. Importing this imports redis-py."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from proxy.core.memories import (
    Candidate,
    Change,
    Conflict,
    Embedded,
    Embedder,
    Entity,
    Filter,
    Memory,
    Relation,
    embedding_text,
)
from proxy.memory.entries import line
from proxy.storage import memories_columns as columns
from proxy.storage import memories_redis_scripts as scripts
from proxy.storage.batches import name_bytes, name_text
from proxy.storage.lane import Lane
from proxy.storage.memories_labels import key
from proxy.storage.nearest import SIGN
from proxy.storage.redis import RedisStore
from proxy.storage.redis_scripts import Script
from proxy.storage.stems import Counts, connect, counted, stemmed

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Memory)
_RELATIONS = msgspec.msgpack.Decoder(tuple[str, tuple[str, ...], str, str, str, str])

_PAGE = 500
_TRIES = 3
"""How often something is chosen anew because what was chosen was rewritten before it was read."""

_Command = Sequence[bytes | str | int]


class _Server(RedisStore):
    """The shared store's connections, for scripts and commands of one's own. Raises StoreUnavailable."""

    async def script(self, script: Script, keys: Iterable[bytes], args: Sequence[bytes]) -> Any:
        return await self._bounded(self._run, script, tuple(keys), args)

    async def together(self, *commands: _Command) -> list[Any]:
        """The commands' answers, asked for in one go."""
        return await self._bounded(self._together, commands)

    async def _together(self, commands: Sequence[_Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await pipeline.execute()
        return answers


class RedisMemories:
    """The Memories port over plain hashes of any Redis or Valkey (see `memories_redis_scripts`); no module is needed.

    A change is one script: whatever becomes of the process, all of it is there or nothing. To search is to read the
    rows, the vectors and the posting lists of the query's words, and to weigh them here, in a thread: the server does
    nothing long. Words are FTS5's stems, weighed as it does (bm25 over this tenant alone); of a word that a mark
    divides ("o'brien") all parts must be there, in any order. Every round trip takes at most `timeout` seconds. `url`
    and `cluster` are RedisStore's. Raises ValueError for a malformed one.
    """

    def __init__(self, url: str, embedder: Embedder, *, timeout: float, cluster: bool = False) -> None:
        self._server = _Server(url, timeout=timeout, cluster=cluster)
        self._embedder = embedder
        self._lane = Lane("memories-words", connect, timeout=timeout)

    async def write(self, space: bytes, change: Change) -> tuple[Entity, ...]:
        """See the port."""
        put = list({memory.id: memory for memory in change.put}.values())
        embedded = await self._embedder.embed([embedding_text(memory) for memory in put]) if put else []
        packed = await self._lane.run(_packed, change, put, embedded)
        done = await self._server.script(scripts.WRITE, scripts.keys(space).values(), (packed,))
        if isinstance(done, bytes):
            raise Conflict(name_text(done))
        return tuple(entity for entity, new in zip(change.entities, done, strict=True) if new)

    async def get(self, space: bytes, ids: Sequence[str]) -> list[Memory | None]:
        """See the port."""
        if not ids:
            return []
        keys = scripts.keys(space)
        args = [name_bytes(memory_id) for memory_id in ids]
        found = await self._server.script(scripts.GET, (keys["heads"], keys["values"]), args)
        return [_DECODER.decode(value) if value else None for value in found]

    async def listed(self, space: bytes, wanted: Filter, *, after: str = "", limit: int = 100) -> list[Memory]:
        """See the port. Behind an id that is not there comes nothing."""
        found: list[Memory] = []
        for _ in range(_TRIES):
            rows = (await self._newest(space, wanted, after))[: limit if limit >= 0 else None]
            found = await self._values(space, rows)
            if len(found) == len(rows):
                break
        return found

    async def count(self, space: bytes, wanted: Filter) -> int:
        """See the port."""
        held, _ = await self._held(space, wanted)
        return await self._weighed(columns.count, held, wanted)

    async def candidates(
        self, space: bytes, words: Sequence[str], vector: bytes, wanted: Filter, *, pool: int
    ) -> list[Candidate]:
        """See the port."""
        stems = await self._lane.run(stemmed, words) if words else []
        found: list[Candidate] = []
        for _ in range(_TRIES):
            held = await self._searched(space, stems, vector, wanted)
            picks = await self._weighed(columns.picked, held, vector, wanted, pool)
            found = await self._candidates(space, picks)
            if len(found) == len(picks):
                break
        return found

    async def marker(self, space: bytes, name: str) -> bytes | None:
        """See the port."""
        ((value,),) = await self._server.together(("HMGET", scripts.keys(space)["markers"], name_bytes(name)))
        return None if value is None else bytes(value)

    async def relations(self, space: bytes, entity: str = "", *, limit: int = 1_000) -> list[Relation]:
        """See the port."""
        keys = scripts.keys(space)
        end = name_bytes(f"e:{key(entity)}" if entity else "")
        ((packed,),) = await self._server.together(("HMGET", keys["ends"], end))
        numbers = [int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed or b""), 4)]
        found = await self._fields(keys["relations"], numbers[: limit if limit >= 0 else None])
        return [Relation(*_RELATIONS.decode(value)[2:]) for value in found if value is not None]

    async def entities(self, space: bytes, *, limit: int = 1_000) -> list[Entity]:
        """See the port."""
        if not limit:
            return []
        keys = scripts.keys(space)
        (members,) = await self._server.together(("ZRANGE", keys["entities"], 0, max(limit - 1, -1)))
        names = await self._fields(keys["names"], members)
        pairs = zip(members, names, strict=True)
        return [
            Entity(name_text(name), name_text(each.partition(b"\0")[2])) for each, name in pairs if name is not None
        ]

    async def export(self, space: bytes) -> AsyncIterator[bytes]:
        """See the port. What is written meanwhile may be missing."""
        keys = scripts.keys(space)
        (ids,) = await self._server.together(("HKEYS", keys["heads"]))
        for at in range(0, len(ids), _PAGE):
            for memory in await self.get(space, [name_text(each) for each in ids[at : at + _PAGE]]):
                if memory is not None:
                    yield line(memory)
        for entity in await self.entities(space, limit=-1):
            yield line(entity)
        for relation in await self.relations(space, limit=-1):
            yield line(relation)
        (names,) = await self._server.together(("HKEYS", keys["markers"]))
        for at in range(0, len(names), _PAGE):
            page = names[at : at + _PAGE]
            for name, value in zip(page, await self._fields(keys["markers"], page), strict=True):
                if value is not None:
                    yield line((name_text(name), value))

    async def erase(self, space: bytes) -> int:
        """See the port. What the server itself wrote down, it forgets when it rewrites its files."""
        return int(await self._server.script(scripts.ERASE, scripts.keys(space).values(), ()))

    async def close(self) -> None:
        """See the port."""
        await self._lane.close()
        await self._server.close()

    async def _held(self, space: bytes, wanted: Filter, *more: _Command) -> tuple[columns.Held, list[Any]]:
        """The rows and what the filter needs, and the answers to what else is asked."""
        keys = scripts.keys(space)
        names = [name for group in columns.groups(wanted) for name in group]
        asked: list[_Command] = [("HVALS", keys["rows"])]
        if names:
            asked.append(("HMGET", keys["labels"], *map(name_bytes, names)))
        answers = await self._server.together(*asked, *more)
        found = dict(zip(names, answers[1], strict=True)) if names else {}
        labels = {name: packed for name, packed in found.items() if packed is not None}
        return columns.Held(answers[0], labels), answers[len(asked) :]

    async def _searched(
        self, space: bytes, stems: Sequence[Sequence[str]], vector: bytes, wanted: Filter
    ) -> columns.Held:
        keys = scripts.keys(space)
        names = list(dict.fromkeys(stem for each in stems for stem in each))
        more: list[_Command] = [("HMGET", keys["words"], *map(name_bytes, names))] if names else []
        if vector:
            more.append(("HGETALL", keys["vectors"]))
        held, answers = await self._held(space, wanted, *more)
        postings = dict(zip(names, answers[0], strict=True)) if names else {}
        words = [[postings[stem] for stem in each] for each in stems]
        lead = name_bytes(_kind(vector) + ".")
        vectors = [chunk for name, chunk in answers[-1].items() if name.startswith(lead)] if vector else []
        return columns.Held(held.rows, held.labels, [each for each in words if None not in each], vectors)

    async def _newest(self, space: bytes, wanted: Filter, after: str) -> list[int]:
        if not after:
            held, _ = await self._held(space, wanted)
            return await self._weighed(columns.newest, held, wanted, None)
        head = ("HMGET", scripts.keys(space)["heads"], name_bytes(after))
        held, ((found,),) = await self._held(space, wanted, head)
        if found is None:
            return []
        return await self._weighed(columns.newest, held, wanted, int(found.partition(b" ")[0]))

    async def _values(self, space: bytes, rows: Sequence[int]) -> list[Memory]:
        found = await self._fields(scripts.keys(space)["values"], rows)
        return [_DECODER.decode(value) for value in found if value is not None]

    async def _candidates(self, space: bytes, picks: Sequence[columns.Pick]) -> list[Candidate]:
        if not picks:
            return []
        keys, rows = scripts.keys(space), [pick.row for pick in picks]
        values, tokens = await self._server.together(("HMGET", keys["values"], *rows), ("HMGET", keys["tokens"], *rows))
        return [
            Candidate(_DECODER.decode(value), each.lexical, each.dense, each.lexical_rank, each.dense_rank, kept or b"")
            for each, value, kept in zip(picks, values, tokens, strict=True)
            if value is not None
        ]

    async def _fields(self, name: bytes, fields: Sequence[bytes | int]) -> list[bytes | None]:
        if not fields:
            return []
        (found,) = await self._server.together(("HMGET", name, *fields))
        values: list[bytes | None] = found
        return values

    async def _weighed(self, call: Callable[..., T], *args: Any) -> T:
        return await self._lane.run(lambda _: call(*args))


def _packed(
    connection: sqlite3.Connection, change: Change, put: Sequence[Memory], embedded: Sequence[Embedded]
) -> bytes:
    """A change as the script reads it."""
    found = counted(connection, [(memory.content, memory.context, memory.author) for memory in put])
    return _ENCODER.encode(
        {
            "require": change.require,
            "markers": [(name, _raw(value)) for name, value in change.markers],
            "delete": change.delete,
            "put": [_entry(*each) for each in zip(put, embedded, found, strict=True)],
            "entities": [(key(entity.name), entity.type, entity.name) for entity in change.entities],
            "relations": [_relation(relation) for relation in change.relations],
        }
    )


def _entry(memory: Memory, kept: Embedded, stems: Counts) -> tuple[Any, ...]:
    words = sum(sum(times) for times in stems.values())
    return (
        memory.id,
        memory.revision,
        _raw(_ENCODER.encode(memory)),
        _raw(kept.tokens),
        _raw(columns.row_entry(memory, words)),
        [(stem, _raw(columns.posting(times))) for stem, times in stems.items()],
        columns.labels(memory),
        _kind(kept.vector),
        _raw(kept.vector),
    )


def _relation(relation: Relation) -> tuple[str, list[str], msgspec.Raw]:
    start, end = key(relation.start), key(relation.end)
    unique = "\0".join((start, end, relation.type, relation.memory))
    ends = list(dict.fromkeys(("", f"e:{start}", f"e:{end}", *([f"m:{relation.memory}"] if relation.memory else ()))))
    value = (unique, ends, relation.start, relation.end, relation.type, relation.memory)
    return unique, ends, _raw(_ENCODER.encode(value))


def _raw(value: bytes) -> msgspec.Raw:
    """Bytes as a msgpack string: the servers' Lua reads nothing newer."""
    return msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)


def _kind(vector: bytes) -> str:
    """What vectors that may be compared share: whose they are, and their length."""
    return f"{vector[:SIGN].hex()}.{len(vector)}"
