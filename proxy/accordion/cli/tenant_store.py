"""The configured store, read without a proxy: the tenants in it, and the data of one tenant.

A proxy may run at the same time. `run_command` and `run_for_tenant` open the store for a command, and print its error.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from accordion.accounting.calibration import LearnedLimits
from accordion.accounting.ledger import sessions_collection
from accordion.archive import archive_entries
from accordion.archive.archive import Archive
from accordion.archive.archive_reader import ArchiveReader
from accordion.archive.erasure import ExportAndErasure
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.feature_records import TENANTS_WITH_FEATURE_RECORDS
from accordion.archive.reader import UnanswerableRequest
from accordion.archive.tool_calls import define_tool
from accordion.archive.transcripts import TranscriptStore
from accordion.compaction.export_format import describe_value
from accordion.compaction.rendering import RequestRenderer
from accordion.compaction.repository import CompactionRepository
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.composition.configured_store import MARK, TENANT_SECRET, build_spool, identity_from_mark
from accordion.composition.features import feature_records
from accordion.composition.tables import (
    build_prices,
    build_windows,
    thresholds_by_model,
)
from accordion.config import Settings
from accordion.insertions.composer import InsertionComposer
from accordion.insertions.store import InsertionStore
from accordion.model.errors import AccordionError, BadRequest, ConfigError, InvalidPath
from accordion.model.ports import Key, KeyValueStore
from accordion.pipeline.queries import Queries
from accordion.pipeline.sent_history import SentHistory
from accordion.protocols.odd_json import replace_marks
from accordion.protocols.registry import ARTIFACT_TOOLS, PROTOCOLS
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.server.event_loop import LoopClock, LoopTasks
from accordion.sessions.proxy_keys import ProxyKey
from accordion.sessions.session_names import SessionNames
from accordion.sessions.tenants import DEFAULT_TENANT, TENANTS, Caller, Tenants
from accordion.stores.encryption import open_sealer
from accordion.stores.open import open_store
from accordion.stores.spool import SpooledStore, StoreRecord
from accordion.stores.write_queue import WriteQueue

TIMEOUT = 60.0
"""Seconds that a command waits for the store."""
LOCAL = "local"
"""The command line's name for the only tenant of a proxy on a loopback address."""
_PAGE = 1_000


class DiscardingOutbox:
    """An outbox (model/ports.py) that discards all writes."""

    def put(self, key: Key, value: Callable[[], bytes], ttl: float | None = None) -> None:
        """Drops it."""

    def merge(
        self, key: Key, value: Callable[[bytes | None], bytes], kept: Callable[[], object], ttl: float | None = None
    ) -> None:
        """Drops it."""

    def append(self, key: Key, value: Callable[[], bytes], keep: int | None = None, ttl: float | None = None) -> None:
        """Drops it."""

    async def flush(self) -> None:
        """There is nothing to write."""


@dataclass(frozen=True, slots=True)
class TenantStore:
    """The configured store for one tenant."""

    store: KeyValueStore
    archive: ArchiveReader
    queries: Queries
    overrides: SessionOverrideStore
    caller: Caller
    sent: SentHistory


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
    try:
        caller = await caller_of(settings, store, await _resolve_tenant(settings, store, tenant))
        sealer = open_sealer(settings.archive.key.reveal())
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
            WriteQueue(spool.write),
            build_windows(settings, LearnedLimits(clock.now)),
            SessionNames(sealer),
            thresholds_by_model(settings),
            spooled_store=spool,
            prices=build_prices(settings),
            stops_if_worse=settings.compaction.stop_if_worse,
        )
        insertions = InsertionStore(archive, DiscardingOutbox(), clock, erasures)
        tool = define_tool if settings.read_back.tool else None
        composer = InsertionComposer(insertions, ARTIFACT_TOOLS, reader, tool)
        compactions = CompactionRepository(spool, message_reader=reader, sealer=sealer)
        sent = SentHistory(
            archive, transcripts, protocols, reader, compactions, lambda: composer, RequestRenderer(), tasks
        )
        yield TenantStore(store, archive_reader, queries, SessionOverrideStore(store), caller, sent)
    finally:
        await tasks.close()
        await spool.close()
        await store.close()


async def _with_spool(settings: Settings, store: KeyValueStore, erasures: ErasureNotices) -> SpooledStore:
    """Returns the store with the writes that wait for it on this machine. Raises StoreUnavailable."""
    spooled = build_spool(settings, store)
    mark, secret = await store.get_many([MARK, TENANT_SECRET])
    if mark is not None:
        is_configured = bool(settings.server.tenant_key.reveal())
        spooled.identify(StoreRecord(identity_from_mark(mark), b"" if is_configured else secret or b""))
    spooled.find_erased = erasures.find_erased
    return spooled


def report_missing(store: TenantStore, session: str) -> int:
    """Prints that a tenant has no such session; returns the exit code."""
    print_error(f"{session}: tenant {store.caller.tenant.name!r} has no such session")
    return 1


def print_error(text: str, style: str = "red") -> None:
    """Prints a line to standard error."""
    Console(stderr=True, highlight=False).print(Text(text, style=style))


def print_json(value: object) -> None:
    """Prints a value as one line of JSON."""
    print_text(msgspec.json.encode(value).decode())


def print_text(text: str) -> None:
    """Prints a text of the client; what is no Unicode becomes replacement characters."""
    sys.stdout.write(replace_marks(text.encode()).decode() + "\n")


# -- tenants ----------------------------------------------------------------------------------------------------------


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant with its number of sessions, the bytes of its archive (at most), and the records of features by noun."""

    tenant: str
    sessions: int
    held: int
    feature_records: dict[str, int]


async def list_tenants(settings: Settings, store: KeyValueStore) -> list[str]:
    """Returns all tenants: those of proxy keys, recent ones of the store, and those with records of features.

    Raises StoreUnavailable.
    """
    names = [key.id for key in settings.proxy_keys]
    for collection in (TENANTS, TENANTS_WITH_FEATURE_RECORDS):
        names += await _list_names(store, collection)
    return list(dict.fromkeys(names))


async def _list_names(store: KeyValueStore, collection: str) -> list[str]:
    names, after = list[str](), ""
    while page := await store.scan(collection, after=after, limit=_PAGE):
        names += [name for name, _ in page]
        after = page[-1][0]
    return names


async def _resolve_tenant(settings: Settings, store: KeyValueStore, option: str | None) -> str:
    """Resolves the `--tenant` option: a name, a prefix of one, or `local`; without it, the only tenant.

    Raises BadRequest for an ambiguous or unknown tenant, and StoreUnavailable.
    """
    names = await list_tenants(settings, store)
    if option is None:
        if len(names) > 1:
            raise BadRequest(f"--tenant: choose one of {', '.join(names)}")
        return names[0] if names else DEFAULT_TENANT
    if option in names or option == DEFAULT_TENANT:
        return option
    if option == LOCAL:
        return DEFAULT_TENANT
    matches = [name for name in names if name.startswith(option)]
    if len(matches) == 1:
        return matches[0]
    known_tenants = f"; the tenants are {', '.join(names)}" if names else ""
    raise BadRequest(f"--tenant: there is no tenant {option!r}{known_tenants}")


async def tenant_rows(settings: Settings, store: KeyValueStore) -> list[TenantRow]:
    """Returns every tenant with the amount of its data. Raises StoreUnavailable."""
    rows = []
    for name in await list_tenants(settings, store):
        caller = await caller_of(settings, store, name)
        size = 0
        async for page in archive_entries.scan_entries(store, caller.tenant.archive_namespace):
            size += sum(entry.size for entry in page)
        sessions, after = set[str](), ""
        while session_page := await store.scan(sessions_collection(caller.tenant), after=after, limit=_PAGE):
            sessions.update(row.partition(".")[0] for row, _ in session_page)
            after = session_page[-1][0]
        counts = {records.noun: await records.count(store, caller.tenant) for records in feature_records()}
        rows.append(TenantRow(name, len(sessions), size, counts))
    return rows


async def caller_of(settings: Settings, store: KeyValueStore, tenant: str) -> Caller:
    """Returns the caller of a tenant as proxies identify it. Raises ConfigError if no proxy has used the store yet."""
    secret = settings.server.tenant_key.reveal().encode() or await store.get(TENANT_SECRET)
    if not secret:
        raise ConfigError("the store is empty: no proxy has used it yet", path="$.store.url")
    return Tenants(secret, (ProxyKey(tenant, "own"),)).identify({b"x-accordion-key": b"own"})
