"""Exports and erases the stored data of a session or a tenant.

Both follow the listing (archive_entries.py): every value is listed before it is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from accordion.archive import archive_entries
from accordion.archive.archive import Archive
from accordion.archive.archive_entries import (
    ENTRIES_PREFIX,
    TENANTS_WITH_ARCHIVE,
    ArchiveEntry,
    EntryContents,
    Kind,
    SharedValues,
)
from accordion.archive.artifacts import Artifact, artifact_keys, artifact_text, session_collection
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.retention import delete
from accordion.archive.transcript_log import Transcript, load_transcript
from accordion.model.conversation import Message
from accordion.model.ports import Append, Key, Put, Tasks
from accordion.model.tenant import ArchiveNamespace, TenantScope

DescribeFunction = Callable[[Kind, Key, bytes], object | None]
"""Converts a stored value of a kind to JSON-like values; None if it cannot be read."""
MakeParserFunction = Callable[[str, TenantScope], Callable[[bytes], Message]]
"""Returns a parser of messages' JSON for a protocol's name and a tenant's key."""

_PAGE = 64
_TRIES = 3


class ErasureResult(msgspec.Struct, frozen=True):
    """The result of an erasure: the number of removed entries and of removed values in the store.

    `shared` values stay because another session of the tenant needs them. `verified` says that a second search found
    nothing more, and that all could be read: what an unreadable value lists stays until it expires.
    """

    entries: int
    values: int
    shared: int
    verified: bool


class ExportAndErasure:
    """Exports and erases sessions and tenants.

    `describe` and `make_parser` make stored values readable for the export. `erasures` notifies all workers that erased
    values must not be used any more. `drop_erased` removes erased values from the writes that wait on this machine for
    the store, and returns those writes.
    """

    def __init__(
        self,
        archive: Archive,
        tasks: Tasks,
        describe: DescribeFunction,
        make_parser: MakeParserFunction,
        erasures: ErasureNotices,
        drop_erased: Callable[[], Awaitable[Sequence[Put | Append]]],
    ) -> None:
        self._archive = archive
        self._tasks = tasks
        self._describe = describe
        self._make_parser = make_parser
        self.erasures = erasures
        self._drop_erased = drop_erased

    async def list_sessions(self, tenant: TenantScope) -> list[str]:
        """Returns the sessions of a tenant with stored data, in no order. Raises StoreUnavailable."""
        names: dict[str, None] = {}
        async for page in archive_entries.scan_entries(self._archive.store, tenant.archive_namespace):
            names.update(dict.fromkeys(entry.session for entry in page))
        return list(names)

    # -- export -------------------------------------------------------------------

    async def export(self, tenant: TenantScope, session: str | None, counts: Counter[str]) -> AsyncIterator[bytes]:
        """Yields all that the archive has of a session, or of a tenant, as lines of JSON.

        These are transcripts, compactions, insertions, summaries, artifacts with their text, and rows (messages as the
        client sent them), each once for a session. The last line has their numbers, added to `counts`, which has those
        of the lines before. Raises StoreUnavailable.
        """
        async for name, entries in self._iterate_sessions(tenant.archive_namespace, session):
            async for record in self._export_session(tenant, name, entries):
                counts[str(record["type"])] += 1
                yield _json_line({**record, "session": name})
        yield _json_line({"type": "end", "counts": dict(sorted(counts.items()))})

    async def _iterate_sessions(
        self, namespace: ArchiveNamespace, session: str | None
    ) -> AsyncIterator[tuple[str, list[ArchiveEntry]]]:
        """Yields sessions with all their entries."""
        name, entries = session, list[ArchiveEntry]()
        async for page in archive_entries.scan_entries(self._archive.store, namespace, session):
            for entry in page:
                if entry.session != name and entries and name is not None:
                    yield name, entries
                    entries = []
                name = entry.session
                entries.append(entry)
        if name is not None:
            yield name, entries

    async def _export_session(
        self, tenant: TenantScope, session: str, entries: Sequence[ArchiveEntry]
    ) -> AsyncIterator[dict[str, Any]]:
        namespace, rows = tenant.archive_namespace, dict[bytes, None]()
        for at in range(0, len(entries), _PAGE):
            page = entries[at : at + _PAGE]
            for entry, contents in zip(
                page, await archive_entries.load_contents(self._archive.store, namespace, page), strict=True
            ):
                rows.update(dict.fromkeys(key for key, _ in contents.rows))
                async for record in self._export_values(tenant, entry, contents):
                    yield record
        after: Artifact | None = None
        while artifacts := await self._archive.list_artifacts(tenant, session, after=after, limit=_PAGE):
            after = artifacts[-1]
            for artifact in artifacts:
                rows.update(dict.fromkeys(artifact.keys))
                yield await self._export_artifact(tenant, artifact)
        keys = list(rows)
        for at in range(0, len(keys), _PAGE):
            wires = await self._archive.load_rows(tenant, keys[at : at + _PAGE])
            for key, wire in wires.items():
                yield {"type": "row", "key": key.hex(), "message": _json(wire)}

    async def _export_values(
        self, tenant: TenantScope, entry: ArchiveEntry, contents: EntryContents
    ) -> AsyncIterator[dict[str, Any]]:
        archive, exported = self._archive, set[str]()
        if entry.kind == "transcript":
            if (transcript := await load_transcript(archive, tenant, entry.session)) is not None:
                yield _transcript_record(transcript)
            return
        keys = [Key(collection, name) for collection, name, _ in contents.keys]
        for key, value in zip(keys, await archive.store.get_many(keys) if keys else [], strict=True):
            plain = archive.open_value(tenant, key, value)
            content = self._describe(entry.kind, key, plain) if plain is not None else None
            # A compaction is stored under two keys for some minutes.
            if content is not None and (line := msgspec.json.encode(content).decode()) not in exported:
                exported.add(line)
                yield {"type": entry.kind, "at": entry.at, "used": entry.used, entry.kind: content}

    async def _export_artifact(self, tenant: TenantScope, artifact: Artifact) -> dict[str, Any]:
        rows = await self._archive.load_rows(tenant, artifact.keys)
        text = await self._tasks.offload(self._artifact_text, tenant, artifact, rows)
        fields = msgspec.to_builtins(artifact)
        fields |= {"keys": [key.hex() for key in artifact.keys], "scope": artifact.scope.hex()}
        return {"type": "artifact", "artifact": fields, "text": text}

    def _artifact_text(self, tenant: TenantScope, artifact: Artifact, rows: Mapping[bytes, bytes]) -> str | None:
        if any(key not in rows for key in artifact.keys):
            return None
        parse = self._make_parser(artifact.protocol_name, tenant)
        return artifact_text(artifact, [parse(rows[key]) for key in artifact.keys])

    # -- erasure ------------------------------------------------------------------

    async def erase(self, tenant: TenantScope, session: str | None = None) -> ErasureResult:
        """Removes the stored data of a session or a tenant, except values that another session of the tenant needs.

        Raises StoreUnavailable; then a part is removed, and the call can be repeated.
        """
        shared, entry_count, value_count, unreadable = 0, 1, 1, set[Key]()
        # The notice before the removal keeps pending writes of other workers from restoring the values. The notice
        # after it clears values that a worker read again in between.
        await self.erasures.publish(tenant, session)
        pending = await self._drop_erased()
        entries, values = sum(write.key.collection.startswith(ENTRIES_PREFIX) for write in pending), len(pending)
        for _ in range(_TRIES):
            entry_count, value_count, shared_count = await (
                self._erase_tenant(tenant, unreadable)
                if session is None
                else self._erase_session(tenant, session, unreadable)
            )
            value_count += await delete(self._archive.store, unreadable)
            entries, values, shared = entries + entry_count, values + value_count, max(shared, shared_count)
            if not entry_count and not value_count:
                break
        await self.erasures.publish(tenant, session, is_complete=True)
        return ErasureResult(entries, values, shared, not (entry_count or value_count or unreadable))

    async def _erase_tenant(self, tenant: TenantScope, unreadable: set[Key]) -> tuple[int, int, int]:
        store, namespace = self._archive.store, tenant.archive_namespace
        entry_count = value_count = 0
        async for entries in archive_entries.scan_entries(store, namespace, None, unreadable):
            for at in range(0, len(entries), _PAGE):
                page = entries[at : at + _PAGE]
                page_values = await self._tasks.offload(
                    SharedValues, await archive_entries.load_contents(store, namespace, page, unreadable)
                )
                keys = await self._tasks.offload(page_values.keys, namespace)
                value_count += await delete(store, [*keys, *_entry_keys(namespace, page)])
            for session in {entry.session for entry in entries}:
                value_count += await self._erase_unlisted(tenant, session)
            entry_count += len(entries)
        await store.delete([Key(TENANTS_WITH_ARCHIVE, namespace), archive_entries.totals_key(namespace)])
        return entry_count, value_count, 0

    async def _erase_session(self, tenant: TenantScope, session: str, unreadable: set[Key]) -> tuple[int, int, int]:
        store, namespace = self._archive.store, tenant.archive_namespace
        session_entries: list[ArchiveEntry] = []
        async for page in archive_entries.scan_entries(store, namespace, session, unreadable):
            session_entries += page
        session_values = SharedValues()
        for at in range(0, len(session_entries), _PAGE):
            page = session_entries[at : at + _PAGE]
            for each in await archive_entries.load_contents(store, namespace, page, unreadable):
                await self._tasks.offload(session_values.add, each)
        value_count = len(session_values)
        if value_count:
            async for page in archive_entries.scan_entries(store, namespace):
                others = [entry for entry in page if entry.session != session]
                for at in range(0, len(others), _PAGE):
                    other_contents = await archive_entries.load_contents(store, namespace, others[at : at + _PAGE])
                    await self._tasks.offload(session_values.exclude_all, other_contents)
        shared = value_count - len(session_values)
        removed_count = await delete(store, await self._tasks.offload(session_values.keys, namespace))
        removed_count += await self._erase_unlisted(tenant, session)
        removed_count += await delete(store, _entry_keys(namespace, session_entries))
        return len(session_entries), removed_count, shared

    async def _erase_unlisted(self, tenant: TenantScope, session: str) -> int:
        """Removes the artifacts in the session's own list that no entry lists."""
        count, store = 0, self._archive.store
        while page := await store.scan(session_collection(tenant, session), limit=_PAGE):
            names = [name.rpartition("/") for name, _ in page]
            keys = [
                key
                for artifact_id, _, scope in names
                for key in artifact_keys(tenant.archive_namespace, artifact_id, bytes.fromhex(scope), session)
            ]
            count += await delete(store, keys)
        return count


def _transcript_record(transcript: Transcript) -> dict[str, Any]:
    """Returns a transcript as a record: the keys of its rows in order, and the request's other fields."""
    return {
        "type": "transcript",
        "protocol": transcript.protocol_name,
        "model": transcript.model,
        "request": {name: _json(value) for name, value in transcript.fields.items()},
        "system": [key.hex() for key in transcript.rows[: len(transcript.lead)]],
        "messages": [key.hex() for key in transcript.rows[len(transcript.lead) :]],
    }


def _entry_keys(namespace: ArchiveNamespace, entries: Iterable[ArchiveEntry]) -> list[Key]:
    """Returns the keys of the entries and of their contents."""
    return [key for each in entries for key in reversed(archive_entries.keys_of(namespace, each))]


def _json(wire: bytes) -> object:
    """Returns JSON for one line, or the bytes as text if they are not valid JSON."""
    try:
        return msgspec.Raw(msgspec.json.format(wire, indent=-1))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return wire.decode(errors="replace")


def _json_line(record: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(record) + b"\n"
