"""Reads archived artifacts and lists them, for people (REST, MCP, command line).

Parts of a text are read as for the model (reader.py), but without its window's limit. Every call is for one tenant, by
its key; nothing of other tenants is looked up, so their artifacts look like ones that never existed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.archive import archive_entries
from accordion.archive.archive import Archive
from accordion.archive.artifacts import Artifact, MessageParser, load_artifact, resolve_path
from accordion.archive.erasure import ExportAndErasure
from accordion.archive.reader import ReadRequest, TextPart, read
from accordion.archive.transcripts import TranscriptStore
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Tasks
from accordion.model.tenant import TenantScope

MAX_CHARACTERS: Final = 8_000_000
"""Characters of a text that are returned at once; `offset` reads the rest."""
_MAX_INLINE: Final = 200_000
"""Bytes that are read without a thread."""
_MAX_RECORDS: Final = 32
_PAGE: Final = 1_000
"""Records that are read from the store at once."""


class ArtifactPart(msgspec.Struct, frozen=True):
    """A requested part of an artifact.

    `what` describes the artifact in a few words, `input` has the arguments of its call in full, `sessions` are those
    that it left. If there is more to it than text (an image, sealed reasoning), `wires` are its messages as the
    client sent them.
    """

    artifact: Artifact
    what: str
    part: TextPart
    input: str = ""
    sessions: tuple[str, ...] = ()
    wires: tuple[bytes, ...] = ()


class ArtifactPage(msgspec.Struct, frozen=True):
    """A page of a session's artifacts, each once; `next` is the cursor of the next page, empty on the last."""

    artifacts: tuple[Artifact, ...]
    next: str = ""


class ArchiveReader:
    """Reads artifacts for people. Also has the `transcripts`, and `export_and_erasure`."""

    def __init__(
        self,
        archive: Archive,
        transcripts: TranscriptStore,
        export_and_erasure: ExportAndErasure,
        parsers: Mapping[str, MessageParser],
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self.transcripts = transcripts
        self.export_and_erasure = export_and_erasure
        self._archive = archive
        self._parsers = parsers
        self._tasks = tasks
        self._clock = clock

    async def read(self, tenant: TenantScope, request: ReadRequest) -> ArtifactPart | None:
        """Returns the requested part of an artifact; None if the tenant has no whole artifact of that id.

        Raises UnanswerableRequest and InvalidPath (both ValueErrors), and StoreUnavailable.
        """
        records = await self._archive.load_records(tenant, request.id, limit=_MAX_RECORDS)
        for artifact in records:
            rows = await self._archive.load_rows(tenant, artifact.keys)
            part = await self._part(artifact, rows, request)
            if part is None:
                continue
            if self._clock.now() - artifact.at > self._archive.renewal_seconds:
                with suppress(StoreUnavailable):
                    await self._archive.note_read(tenant, artifact)
            return replace(part, sessions=tuple(sorted({each.session for each in records})))
        await self._archive.check()
        return None

    async def list_artifacts(
        self, tenant: TenantScope, session: str, after: str = "", limit: int = 100
    ) -> ArtifactPage:
        """Returns a page of a session's artifacts in the order of its conversation, each once, after a cursor.

        The cursor holds the position of the last one, so a page does not depend on artifacts added or erased meanwhile.
        Raises ValueError for an `after` that is no cursor, and StoreUnavailable.

        The store lists by id, so every page reads the whole list; a session has some thousands of records at most.
        """
        artifacts = await self._sorted_artifacts(tenant, session)
        position = _parse_cursor(after) if after else None
        remaining = [each for each in artifacts if position is None or _artifact_position(each) > position]
        cursor = _cursor(remaining[limit - 1]) if len(remaining) > limit else ""
        return ArtifactPage(tuple(remaining[:limit]), cursor)

    async def load_records(self, tenant: TenantScope, ids: Sequence[str]) -> list[Artifact]:
        """Returns the records of artifacts, without those that are no longer stored. Raises StoreUnavailable."""
        return [each for each in await self._archive.load_artifacts(tenant, ids) if each is not None]

    async def has_session(self, tenant: TenantScope, session: str) -> bool:
        """Whether anything of a session is stored. Raises StoreUnavailable."""
        async for page in archive_entries.scan_entries(self._archive.store, tenant.archive_namespace, session):
            if page:
                return True
        return bool(await self._archive.list_artifacts(tenant, session, limit=1))

    async def _sorted_artifacts(self, tenant: TenantScope, session: str) -> list[Artifact]:
        """Returns all artifacts of a session, in order. One that left several scopes has the first of its positions."""
        artifacts: dict[str, Artifact] = {}
        after: Artifact | None = None
        while page := await self._archive.list_artifacts(tenant, session, after=after, limit=_PAGE):
            after = page[-1]
            for each in page:
                listed = artifacts.get(each.id)
                artifacts[each.id] = each if listed is None else min(listed, each, key=_artifact_position)
        return sorted(artifacts.values(), key=_artifact_position)

    async def _part(self, artifact: Artifact, rows: Mapping[bytes, bytes], request: ReadRequest) -> ArtifactPart | None:
        if sum(map(len, rows.values())) <= _MAX_INLINE and not (request.pattern or request.path):
            return self._read_loaded_part(artifact, rows, request)
        return await self._tasks.offload(self._read_loaded_part, artifact, rows, request)

    def _read_loaded_part(
        self, artifact: Artifact, rows: Mapping[bytes, bytes], request: ReadRequest
    ) -> ArtifactPart | None:
        """Reads the part from the rows; None if one is missing. Slow for large artifacts and for searches."""
        loaded = load_artifact(artifact, rows, self._parsers)
        if loaded is None:
            return None
        text, path = resolve_path(loaded, request.path)
        part = read(text, replace(request, path=path), MAX_CHARACTERS)
        wires = tuple(rows[key] for key in artifact.keys if key in rows) if loaded.has_more else ()
        return ArtifactPart(artifact, loaded.what, part, loaded.input, (), wires)


Position = tuple[int, int, int, int, str]


def _artifact_position(artifact: Artifact) -> Position:
    """Returns the position of an artifact in the order of its conversation."""
    return artifact.first, artifact.last, artifact.part, artifact.slice, artifact.id


def _cursor(artifact: Artifact) -> str:
    """Returns the cursor of the page after this artifact."""
    return ".".join(map(str, _artifact_position(artifact)))


def _parse_cursor(cursor: str) -> Position:
    """Returns the position that a cursor names. Raises ValueError."""
    first, last, part, slice_, name = cursor.split(".")
    return int(first), int(last), int(part), int(slice_), name
