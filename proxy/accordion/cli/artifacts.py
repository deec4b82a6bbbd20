"""`accordion tenants`, `artifacts`, `export` and `erase`: read and erase the configured store without a proxy.

A proxy may run at the same time. It drops erased data from its caches within a second.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accordion.accounting.calibration import LearnedLimits
from accordion.archive.archive import Archive
from accordion.archive.archive_reader import ArchiveReader
from accordion.archive.artifacts import Artifact
from accordion.archive.erasure import ExportAndErasure
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.reader import ReadRequest, UnanswerableRequest
from accordion.archive.tool_calls import define_tool
from accordion.archive.transcripts import TranscriptStore
from accordion.cli.listing import count_with_noun, print_table
from accordion.cli.offline_pipeline import DiscardingOutbox
from accordion.cli.tenants import caller_of, resolve_tenant, tenant_rows
from accordion.compaction.export_format import describe_value
from accordion.compaction.rendering import RequestRenderer
from accordion.compaction.repository import CompactionRepository
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.composition.configured_store import MARK, TENANT_SECRET, build_spool, identity_from_mark
from accordion.composition.memory_builder import memories_folder
from accordion.composition.tables import (
    build_prices,
    build_windows,
    thresholds_by_model,
)
from accordion.config import Settings
from accordion.http.json_views import artifact_json, artifact_part_json
from accordion.insertions.composer import InsertionComposer
from accordion.insertions.store import InsertionStore
from accordion.model.errors import AccordionError, ConfigError, InvalidPath
from accordion.model.memories import MemoryStore
from accordion.model.ports import KeyValueStore
from accordion.pipeline.queries import Queries, forget_memories
from accordion.pipeline.queries import erase as erase_archive
from accordion.pipeline.sent_history import SentHistory
from accordion.protocols.registry import ARTIFACT_TOOLS, PROTOCOLS
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.providers.models.static_embedder import StaticEmbedder
from accordion.server.event_loop import LoopClock, LoopTasks
from accordion.sessions.tenants import Caller
from accordion.stores.encryption import open_sealer
from accordion.stores.open import open_memories, open_store
from accordion.stores.spool import SpooledStore
from accordion.stores.write_queue import WriteQueue

TIMEOUT = 60.0
_ALL = 10**9


@dataclass(frozen=True, slots=True)
class ArtifactSelection:
    """The artifact to show, and which part of it; without an id, the list of a session's artifacts or of all."""

    id: str = ""
    session: str = ""
    offset: int = 0
    limit: int = 0
    pattern: str = ""
    path: str = ""
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class TenantStore:
    """The configured store for one tenant."""

    archive: ArchiveReader
    queries: Queries
    overrides: SessionOverrideStore
    caller: Caller
    sent: SentHistory


def read(settings: Settings, tenant: str | None, selection: ArtifactSelection) -> int:
    """Shows an artifact, or lists artifacts. Returns the exit code: 1 for an unknown artifact."""
    return run_for_tenant(
        settings,
        tenant,
        lambda store: _read(store, selection) if selection.id else _list(store, selection),
    )


def export(settings: Settings, tenant: str | None, session: str | None) -> int:
    """Prints the export of a session, or of a whole tenant. Returns the exit code: 1 for an unknown session."""
    return run_for_tenant(settings, tenant, lambda store: _export(store, session))


def erase(settings: Settings, tenant: str | None, session: str | None, confirm: Callable[[str], bool]) -> int:
    """Erases a session, or all of a tenant with its memories, if `confirm` agrees.

    Returns the exit code: 1 without agreement, for an unknown session, or if data is left.
    """

    async def work(store: TenantStore) -> int:
        async with open_stored_memories(settings) as memories:
            return await _erase(store, memories, session, confirm)

    return run_for_tenant(settings, tenant, work)


def tenants(settings: Settings, as_json: bool) -> int:
    """Lists the tenants. Returns the exit code."""

    async def run() -> int:
        store = open_store(settings.store.url.reveal(), timeout=TIMEOUT)
        try:
            async with open_stored_memories(settings) as memories:
                rows = await tenant_rows(settings, store, memories)
        finally:
            await store.close()
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("tenant", no_wrap=True)
        for name in ("sessions", "bytes", "memories"):
            table.add_column(name, no_wrap=True, justify="right")
        for row in rows:
            memory_count = "sealed" if row.memories is None else f"{row.memories:,}"
            table.add_row(row.tenant, f"{row.sessions:,}", f"{row.held:,}", memory_count)
            if as_json:
                print_json(row)
        if not as_json:
            if rows:
                print_table(table)
            else:
                sys.stdout.write("the store has no tenants\n")
        return 0

    return run_command(settings, run)


def run_for_tenant(settings: Settings, tenant: str | None, operation: Callable[[TenantStore], Awaitable[int]]) -> int:
    """Opens the store for a tenant and runs an operation. Returns its exit code."""

    async def run() -> int:
        async with open_tenant(settings, tenant) as store:
            return await operation(store)

    return run_command(settings, run)


def run_command(settings: Settings, command: Callable[[], Coroutine[None, None, int]], *, creates: bool = False) -> int:
    """Runs a command and prints its error. Returns the exit code. `creates` allows a store that does not exist yet."""
    try:
        _check_store(settings, creates)
        return asyncio.run(command())
    except (AccordionError, UnanswerableRequest, InvalidPath) as error:
        print_error(str(error))
        return 2


def print_error(text: str, style: str = "red") -> None:
    """Prints a line to standard error."""
    Console(stderr=True, highlight=False).print(Text(text, style=style))


def _check_store(settings: Settings, creates: bool) -> None:
    """Raises ConfigError if there is no store to read."""
    if settings.store.url.reveal() == "memory://":
        raise ConfigError("a store in memory can only be read through the API of its running proxy", path="$.store.url")
    if not creates and (file := settings.store.file()) and not Path(file).exists():
        raise ConfigError(f"there is no file {file}; the proxy creates it when it first starts", path="$.store.url")


@asynccontextmanager
async def open_tenant(settings: Settings, tenant: str | None) -> AsyncIterator[TenantStore]:
    """Opens the store for a tenant. Raises ConfigError, BadRequest and StoreUnavailable."""
    store, tasks, clock = open_store(settings.store.url.reveal(), timeout=TIMEOUT), LoopTasks(), LoopClock()
    # A proxy may be running.
    erasures = ErasureNotices(store, clock, settings.archive.retention_days * 86_400, asyncio.sleep)
    spool = await _with_spool(settings, store, erasures)
    erasures.listen(lambda *_: tasks.spawn(spool.spool.clear_recent(), "remove the copies of recent records"))
    try:
        caller = await caller_of(settings, store, await resolve_tenant(settings, store, tenant))
        sealer = open_sealer(settings.archive.key.reveal(), is_persistent=False)
        archive = Archive(spool, settings.archive.retention_days * 86_400, sealer=sealer, clock=clock)
        protocols = PROTOCOLS
        reader = WrittenMessageReader()
        export_and_erasure = ExportAndErasure(
            archive,
            tasks,
            describe_value,
            lambda name, tenant: reader.reader_for(protocols[name], tenant),
            erasures,
            spool.drop_erased,
        )
        transcripts = TranscriptStore(archive, tasks, clock, "off")
        archive_reader = ArchiveReader(archive, transcripts, export_and_erasure, protocols, tasks, clock)
        queries = Queries(
            store,
            WriteQueue(store),
            build_windows(settings, LearnedLimits(clock.now)),
            thresholds_by_model(settings),
            spooled_store=spool,
            prices=build_prices(settings),
        )
        insertions = InsertionStore(archive, DiscardingOutbox(), clock, erasures)
        tool = define_tool if settings.unfold.tool else None
        composer = InsertionComposer(insertions, ARTIFACT_TOOLS, reader, tool)
        compactions = CompactionRepository(spool, message_reader=reader, sealer=sealer)
        sent = SentHistory(
            archive, transcripts, protocols, reader, compactions, lambda: composer, RequestRenderer(), tasks
        )
        yield TenantStore(archive_reader, queries, SessionOverrideStore(store), caller, sent)
    finally:
        await tasks.close()
        await spool.close()
        await store.close()


@asynccontextmanager
async def open_stored_memories(settings: Settings) -> AsyncIterator[MemoryStore]:
    """Opens the memory store beside the configured store. Raises StoreUnavailable."""
    sealer = open_sealer(settings.archive.key.reveal(), is_persistent=False)
    memories = open_memories(
        settings.store.url.reveal(), memories_folder(settings), StaticEmbedder(),
        timeout=TIMEOUT, sealer=sealer, on_write=lambda _: None,
    )  # fmt: skip
    try:
        yield memories
    finally:
        await memories.close()


async def _with_spool(settings: Settings, store: KeyValueStore, erasures: ErasureNotices) -> SpooledStore:
    """Returns the store with the spooled writes of this machine. Raises StoreUnavailable."""
    spool = build_spool(settings)
    mark, secret = await store.get_many([MARK, TENANT_SECRET])
    key = settings.server.tenant_key.reveal().encode() or secret or b""
    await spool.identify(identity_from_mark(mark or b""), key, is_persistent=False)
    return SpooledStore(store, spool, erasures=erasures)


# -- commands --------------------------------------------------------------------------------------------------------


async def _read(store: TenantStore, selection: ArtifactSelection) -> int:
    read_request = ReadRequest(selection.id, selection.offset, selection.limit, selection.pattern, selection.path)
    excerpt = await store.archive.read(store.caller.tenant, read_request)
    if excerpt is None:
        print_error(f"{selection.id}: there is no such artifact; it may have expired or been erased")
        return 1
    if selection.as_json:
        print_json(artifact_part_json(excerpt))
        return 0
    print_error(f"{selection.id}: {excerpt.what}; {excerpt.part.shown}", "dim")
    sys.stdout.write(excerpt.part.text + "\n")
    if excerpt.part.next:
        print_error(f"continue with --offset {excerpt.part.next}", "dim")
    return 0


async def _list(store: TenantStore, selection: ArtifactSelection) -> int:
    artifacts = await _all_artifacts(store, selection.session)
    if selection.as_json:
        for artifact in artifacts:
            print_json(artifact_json(artifact))
    elif not artifacts:
        sys.stdout.write("there are no artifacts\n")
    else:
        for session, group in groupby(artifacts, key=lambda artifact: artifact.session):
            Console(highlight=False, soft_wrap=True).print(Text(session, style="bold"))
            print_table(_table(group))
    return 0


def _table(artifacts: Iterable[Artifact]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("id", no_wrap=True)
    table.add_column("messages", no_wrap=True, justify="right")
    table.add_column("content")
    table.add_column("characters", no_wrap=True, justify="right")
    for artifact in artifacts:
        detail = " ".join((artifact.arguments or artifact.description).split())
        content = f"{artifact.tool}({detail})" if artifact.tool else f"{artifact.kind}: {detail}"
        messages = f"{artifact.first}-{artifact.last}" if artifact.last > artifact.first else str(artifact.last)
        table.add_row(
            artifact.id, messages, Text(content, no_wrap=True, overflow="ellipsis"), f"{artifact.characters:,}"
        )
    return table


async def _all_artifacts(store: TenantStore, session: str) -> list[Artifact]:
    """Lists the artifacts of a session, or of all: the session with the oldest artifact first, each in order."""
    tenant, archive, pages = store.caller.tenant, store.archive, list[tuple[Artifact, ...]]()
    for name in [session] if session else await archive.export_and_erasure.list_sessions(tenant):
        page = await archive.list_artifacts(tenant, name, limit=_ALL)
        if page.artifacts:
            pages.append(page.artifacts)
    pages.sort(key=lambda page: min(artifact.at for artifact in page))
    return [artifact for page in pages for artifact in page]


def report_missing(store: TenantStore, session: str) -> int:
    """Prints that a tenant has no such session; returns the exit code."""
    print_error(f"{session}: tenant {store.caller.tenant.name!r} has no such session")
    return 1


async def _export(store: TenantStore, session: str | None) -> int:
    archive, caller = store.archive, store.caller
    if session is not None and not (
        await archive.has_session(caller.tenant, session) or await store.queries.find_session(caller.tenant, session)
    ):
        return report_missing(store, session)
    async for line in archive.export_and_erasure.export(caller.tenant, session):
        sys.stdout.write(line.decode())
    return 0


async def _erase(store: TenantStore, memories: MemoryStore, session: str | None, confirm: Callable[[str], bool]) -> int:
    caller = store.caller
    subject = f"session {session}" if session is not None else "all sessions and all memories"
    if not confirm(f"Erase {subject} of tenant {caller.tenant.name!r}? This cannot be undone."):
        return 1
    sessions, erased = await erase_archive(
        store.queries, store.archive.export_and_erasure, store.overrides, caller, session
    )
    if session is not None and erased.verified and not (sessions or erased.entries or erased.values):
        return report_missing(store, session)
    repeat_note = "" if erased.verified else "; new data was written in the meantime, run the command again"
    shared_note = f"; {count_with_noun(erased.shared, 'value')} used by other sessions kept" if erased.shared else ""
    parts = (
        count_with_noun(sessions, "session"),
        count_with_noun(erased.entries, "entry", "entries"),
        count_with_noun(erased.values, "value"),
    )
    sys.stdout.write(f"erased: {', '.join(parts)}{shared_note}{repeat_note}\n")
    are_memories_erased = session is not None or await _erase_memories(store, memories)
    return 0 if erased.verified and are_memories_erased else 1


async def _erase_memories(store: TenantStore, memories: MemoryStore) -> bool:
    """Erases all memories and prints the counts. Returns whether none is left."""
    before, after = await forget_memories(memories, store.queries.store, store.caller)
    sys.stdout.write(f"memories: {before:,} before, {after:,} after\n")
    return not after


def print_json(value: object) -> None:
    """Prints a value as one line of JSON."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
