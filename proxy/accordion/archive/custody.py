"""What is kept of a session or of a tenant, given out whole, and erased.

Both go by what is listed (holdings.py): nothing is kept that is not listed before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from accordion.archive import holdings
from accordion.archive.artifacts import Artifact, artifact_text, listing, record_keys, tenant_of
from accordion.archive.bounds import delete
from accordion.archive.erasures import Erasures
from accordion.archive.holdings import HELD, HOLDERS, Contents, Entry, Kind
from accordion.archive.naming import Named
from accordion.archive.transcript_log import Transcript, transcript_of
from accordion.archive.writing import Archive
from accordion.core.conversation import Message
from accordion.core.ports import Append, Key, Put, Tasks
from accordion.core.values import dataclass

Described = Callable[[Kind, Key, bytes], object | None]
"""What a value of a kind says, in JSON-like values; None where it cannot be read."""
Read = Callable[[str, bytes], Callable[[bytes], Message]]
"""A reader of messages' JSON, by dialect and tenant's key."""

_PAGE = 64
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Erased:
    """What was removed: entries, and values of the store. `shared` values stay, for another session's sake. `verified`
    says that nothing was found any more when it was looked for again."""

    entries: int
    values: int
    shared: int
    verified: bool


class Custody:
    """Gives out and erases. `described` and `read` make texts of what other rooms wrote; `erasures` tells everybody
    what may not be used any more; `drop_erased` removes what was erased of the writes that wait on this machine for the
    store, and gives it."""

    def __init__(
        self,
        archive: Archive,
        tasks: Tasks,
        described: Described,
        read: Read,
        erasures: Erasures,
        drop_erased: Callable[[], Awaitable[Sequence[Put | Append]]],
    ) -> None:
        self._archive = archive
        self._tasks = tasks
        self._described = described
        self._reader = read
        self.erasures = erasures
        self._drop_erased = drop_erased

    async def sessions(self, space: bytes) -> list[str]:
        """The sessions of a tenant of which anything is kept, in no order. Raises StoreUnavailable."""
        names: dict[str, None] = {}
        async for page in holdings.entries(self._archive.store, tenant_of(space)):
            names.update(dict.fromkeys(entry.session for entry in page))
        return list(names)

    # -- giving out ---------------------------------------------------------------

    async def export(self, space: bytes, session: str | None = None) -> AsyncIterator[bytes]:
        """All that is kept of a session, or of the tenant whose key is `space`, as lines of JSON: transcripts, folds,
        weaves, recalls, summaries, artifacts with their text, and rows (messages as the client sent them), each once
        for a session. The last line says how many of each there were. Raises StoreUnavailable."""
        counts: Counter[str] = Counter()
        async for name, found in self._sessions(tenant_of(space), session):
            async for record in self._session(space, name, found):
                counts[str(record["type"])] += 1
                yield _line({**record, "session": name})
        yield _line({"type": "end", "counts": dict(sorted(counts.items()))})

    async def _sessions(self, tenant: str, session: str | None) -> AsyncIterator[tuple[str, list[Entry]]]:
        """Sessions with all their entries."""
        name, held = session, list[Entry]()
        async for page in holdings.entries(self._archive.store, tenant, session):
            for entry in page:
                if entry.session != name and held and name is not None:
                    yield name, held
                    held = []
                name = entry.session
                held.append(entry)
        if name is not None:
            yield name, held

    async def _session(self, space: bytes, session: str, found: Sequence[Entry]) -> AsyncIterator[dict[str, Any]]:
        tenant, rows = tenant_of(space), dict[bytes, None]()
        for at in range(0, len(found), _PAGE):
            page = found[at : at + _PAGE]
            for entry, contents in zip(page, await holdings.contents(self._archive.store, tenant, page), strict=True):
                rows.update(dict.fromkeys(key for key, _ in contents.rows))
                async for record in self._values(space, entry, contents):
                    yield record
        after: Artifact | None = None
        while artifacts := await self._archive.listed(space, session, after=after, limit=_PAGE):
            after = artifacts[-1]
            for artifact in artifacts:
                rows.update(dict.fromkeys(artifact.keys))
                yield await self._artifact(space, artifact)
        keys = list(rows)
        for at in range(0, len(keys), _PAGE):
            wires = await self._archive.rows(space, keys[at : at + _PAGE])
            for key, wire in wires.items():
                yield {"type": "row", "key": key.hex(), "message": _json(wire)}

    async def _values(self, space: bytes, entry: Entry, contents: Contents) -> AsyncIterator[dict[str, Any]]:
        archive, seen = self._archive, set[str]()
        if entry.kind == "transcript":
            if (said := await transcript_of(archive, space, entry.session)) is not None:
                yield _said(said)
            return
        keys = [Key(collection, name) for collection, name, _ in contents.keys]
        for key, value in zip(keys, await archive.store.get_many(keys) if keys else [], strict=True):
            opened = archive.opened(space, key, value)
            told = self._described(entry.kind, key, opened) if opened is not None else None
            # A fold is kept at two places for some minutes.
            if told is not None and (line := msgspec.json.encode(told).decode()) not in seen:
                seen.add(line)
                yield {"type": entry.kind, "at": entry.at, "used": entry.used, entry.kind: told}

    async def _artifact(self, space: bytes, artifact: Artifact) -> dict[str, Any]:
        rows = await self._archive.rows(space, artifact.keys)
        text = await self._tasks.offload(self._text, space, artifact, rows)
        told = msgspec.to_builtins(artifact)
        told |= {"keys": [key.hex() for key in artifact.keys], "scope": artifact.scope.hex()}
        return {"type": "artifact", "artifact": told, "text": text}

    def _text(self, space: bytes, artifact: Artifact, rows: Mapping[bytes, bytes]) -> str | None:
        if any(key not in rows for key in artifact.keys):
            return None
        read = self._reader(artifact.dialect, space)
        return artifact_text(artifact, [read(rows[key]) for key in artifact.keys])

    # -- erasing ------------------------------------------------------------------

    async def erase(self, space: bytes, session: str | None = None) -> Erased:
        """Removes all that is kept of a session, or of a tenant. What another session of the tenant names too stays.
        Raises StoreUnavailable; then some is removed, and it can be asked for again."""
        shared, found, removed = 0, 1, 1
        # Noted before, so that what waits for the store elsewhere does not come back; and behind it, so that nobody has
        # what he read again meanwhile.
        await self.erasures.note(space, session)
        waited = await self._drop_erased()
        entries, values = sum(write.key.collection.startswith(HELD) for write in waited), len(waited)
        for _ in range(_TRIES):
            found, removed, stays = await (self._all(space) if session is None else self._one(space, session))
            entries, values, shared = entries + found, values + removed, max(shared, stays)
            if not found and not removed:
                break
        await self.erasures.note(space, session, over=True)
        return Erased(entries, values, shared, not found and not removed)

    async def _all(self, space: bytes) -> tuple[int, int, int]:
        store, tenant = self._archive.store, tenant_of(space)
        found = removed = 0
        async for session, entries in self._sessions(tenant, None):
            for at in range(0, len(entries), _PAGE):
                page = entries[at : at + _PAGE]
                named = await self._tasks.offload(Named, await holdings.contents(store, tenant, page))
                keys = await self._tasks.offload(named.places, tenant)
                removed += await delete(store, [*keys, *_own(tenant, page)])
            removed += await self._unlisted(space, session)
            found += len(entries)
        await store.delete([Key(HOLDERS, tenant), holdings.sums_key(tenant)])
        return found, removed, 0

    async def _one(self, space: bytes, session: str) -> tuple[int, int, int]:
        store, tenant = self._archive.store, tenant_of(space)
        mine: list[Entry] = []
        async for page in holdings.entries(store, tenant, session):
            mine += page
        named = Named()
        for at in range(0, len(mine), _PAGE):
            for each in await holdings.contents(store, tenant, mine[at : at + _PAGE]):
                await self._tasks.offload(named.add, each)
        whole = len(named)
        if whole:
            async for page in holdings.entries(store, tenant):
                others = [entry for entry in page if entry.session != session]
                for at in range(0, len(others), _PAGE):
                    found = await holdings.contents(store, tenant, others[at : at + _PAGE])
                    await self._tasks.offload(named.spare_all, found)
        shared = whole - len(named)
        removed = await delete(store, await self._tasks.offload(named.places, tenant))
        removed += await self._unlisted(space, session) + await delete(store, _own(tenant, mine))
        return len(mine), removed, shared

    async def _unlisted(self, space: bytes, session: str) -> int:
        """Removes artifacts that only the session's own list has."""
        count, store = 0, self._archive.store
        while found := await store.scan(listing(space, session), limit=_PAGE):
            names = [Key(listing(space, session), name) for name, _ in found]
            known = await self._archive.listed(space, session, limit=_PAGE)
            count += await delete(store, {*names, *(key for each in known for key in record_keys(space, each))})
        return count


def _said(transcript: Transcript) -> dict[str, Any]:
    """The order of what was said, by the keys of rows, with the fields beside its list."""
    return {
        "type": "transcript",
        "dialect": transcript.dialect,
        "model": transcript.model,
        "request": {name: _json(value) for name, value in transcript.fields.items()},
        "system": [key.hex() for key in transcript.rows[: len(transcript.lead)]],
        "messages": [key.hex() for key in transcript.rows[len(transcript.lead) :]],
    }


def _own(tenant: str, entries: Iterable[Entry]) -> list[Key]:
    """Where the entries themselves are."""
    return [key for each in entries for key in reversed(holdings.keys_of(tenant, each))]


def _json(wire: bytes) -> object:
    """JSON on one line; as a text where that cannot be."""
    try:
        return msgspec.Raw(msgspec.json.format(wire, indent=-1))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return wire.decode(errors="replace")


def _line(record: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(record) + b"\n"
