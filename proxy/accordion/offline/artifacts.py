"""`accordion tenants`, `artifacts`, `export`, `erase`: what is kept, from the configured store itself, without a proxy.

A proxy may be running beside it. What is erased here it lets go of within a second.
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

from accordion.accounting.limits import Limits
from accordion.archive.artifacts import Artifact
from accordion.archive.custody import Custody
from accordion.archive.erasures import Erasures
from accordion.archive.paths import BadPath
from accordion.archive.reader import BadRequest, Wish
from accordion.archive.reading_room import ReadingRoom
from accordion.archive.transcripts import Transcripts
from accordion.archive.writing import Archive
from accordion.clockwork import LoopClock, LoopTasks
from accordion.compaction.exporting import described
from accordion.compaction.reading import WrittenReader
from accordion.compaction.wishes import Wishes
from accordion.core.errors import AccordionError, ConfigError
from accordion.core.memories import Memories
from accordion.core.ports import Store
from accordion.faces.shown import shown_artifact, shown_lent
from accordion.identity.tenants import Caller
from accordion.models.embedder import StaticEmbedder
from accordion.observe import Observe, forget_memories
from accordion.observe import erase as erased_of
from accordion.offline.listing import counted, print_table
from accordion.offline.tenants import caller_of, named, rows
from accordion.settings import Settings
from accordion.storage.opening import open_memories, open_store
from accordion.storage.outbox import GatheringOutbox
from accordion.storage.sealed import open_sealer
from accordion.storage.spool import SpooledStore
from accordion.wiring.mark import MARK, TENANT_SECRET, identity_of
from accordion.wiring.memory import folder_of
from accordion.wiring.spooling import spool_of
from accordion.wiring.tables import dialects, thresholds, windows

TIMEOUT = 60.0
_ALL = 10**9


@dataclass(frozen=True, slots=True)
class Reading:
    """What is to be read: an artifact, or the list of a session's or of all."""

    id: str = ""
    session: str = ""
    offset: int = 0
    limit: int = 0
    pattern: str = ""
    path: str = ""
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Shelves:
    """The configured store, as far as one tenant goes."""

    room: ReadingRoom
    observe: Observe
    wishes: Wishes
    caller: Caller


def read(settings: Settings, tenant: str | None, wanted: Reading) -> int:
    """Shows an artifact, or lists artifacts; returns the exit code: 1 where there is no such artifact."""
    return _run(settings, tenant, lambda shelves: _read(shelves, wanted) if wanted.id else _list(shelves, wanted))


def export(settings: Settings, tenant: str | None, session: str | None) -> int:
    """Writes all that is kept, of a session or of all, to the standard output; returns the exit code: 1 where there is
    no such session."""
    return _run(settings, tenant, lambda shelves: _export(shelves, session))


def erase(settings: Settings, tenant: str | None, session: str | None, sure: Callable[[str], bool]) -> int:
    """Removes all that is kept of a session, or of all with the memories, once `sure` says so; returns the exit code: 1
    where it does not, where there is no such session, or where something is left."""

    async def work(shelves: Shelves) -> int:
        async with remembered(settings) as memories:
            return await _erase(shelves, memories, session, sure)

    return _run(settings, tenant, work)


def tenants(settings: Settings, as_json: bool) -> int:
    """Lists whose things there are; returns the exit code."""

    async def run() -> int:
        store = open_store(settings.store.url.reveal(), timeout=TIMEOUT)
        try:
            async with remembered(settings) as memories:
                found = await rows(settings, store, memories)
        finally:
            await store.close()
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("tenant", no_wrap=True)
        for name in ("sessions", "bytes", "memories"):
            table.add_column(name, no_wrap=True, justify="right")
        for row in found:
            memories_of = "sealed" if row.memories is None else f"{row.memories:,}"
            table.add_row(row.tenant, f"{row.sessions:,}", f"{row.held:,}", memories_of)
            if as_json:
                _line(row)
        if not as_json:
            if found:
                print_table(table)
            else:
                sys.stdout.write("the store has no tenants\n")
        return 0

    return told(settings, run)


def _run(settings: Settings, tenant: str | None, work: Callable[[Shelves], Awaitable[int]]) -> int:
    async def run() -> int:
        async with opened(settings, tenant) as shelves:
            return await work(shelves)

    return told(settings, run)


def told(settings: Settings, run: Callable[[], Coroutine[None, None, int]], *, creates: bool = False) -> int:
    """Runs it, and says what went wrong; `creates` where it makes a store that is not there."""
    try:
        _check(settings, creates)
        return asyncio.run(run())
    except (AccordionError, BadRequest, BadPath) as error:
        _say(str(error))
        return 2


def _say(text: str, style: str = "red") -> None:
    Console(stderr=True, highlight=False).print(Text(text, style=style))


def _check(settings: Settings, creates: bool) -> None:
    """Raises ConfigError where there is no store to read."""
    if settings.store.url.reveal() == "memory://":
        raise ConfigError("a store in memory can only be read through the API of its running proxy", path="$.store.url")
    if not creates and (file := settings.store.file()) and not Path(file).exists():
        raise ConfigError(f"there is no file {file}; the proxy creates it when it first starts", path="$.store.url")


@asynccontextmanager
async def opened(settings: Settings, tenant: str | None) -> AsyncIterator[Shelves]:
    """The store's rooms for a tenant, until they are no longer needed. Raises ConfigError, StoreUnavailable."""
    store, tasks, clock = open_store(settings.store.url.reveal(), timeout=TIMEOUT), LoopTasks(), LoopClock()
    # A proxy may be running.
    erasures = Erasures(store, clock, settings.archive.retention_days * 86_400, asyncio.sleep)
    spool = await _spooled(settings, store, erasures)
    erasures.listen(lambda *_: tasks.spawn(spool.spool.clear_recent(), "remove the copies of recent records"))
    try:
        caller = await caller_of(settings, store, await named(settings, store, tenant))
        sealer = open_sealer(settings.archive.key.reveal(), lasting=False)
        archive = Archive(spool, settings.archive.retention_days * 86_400, sealer=sealer, clock=clock)
        spoken, reader = {dialect.name: dialect for dialect in dialects().values()}, WrittenReader()
        custody = Custody(
            archive, tasks, described, lambda name, space: reader.of(spoken[name], space), erasures, spool.drop_erased
        )
        transcripts = Transcripts(archive, tasks, clock, "off")
        room = ReadingRoom(archive, transcripts, custody, spoken, tasks, clock)
        observe = Observe(
            store, GatheringOutbox(store), windows(settings, Limits(clock.now)), thresholds(settings), spooled=spool
        )
        yield Shelves(room, observe, Wishes(store), caller)
    finally:
        await tasks.close()
        await spool.close()
        await store.close()


@asynccontextmanager
async def remembered(settings: Settings) -> AsyncIterator[Memories]:
    """The memories beside the configured store, until they are no longer needed. Raises StoreUnavailable."""
    sealer = open_sealer(settings.archive.key.reveal(), lasting=False)
    memories = open_memories(
        settings.store.url.reveal(), folder_of(settings), StaticEmbedder(),
        timeout=TIMEOUT, sealer=sealer, wrote=lambda _: None,
    )  # fmt: skip
    try:
        yield memories
    finally:
        await memories.close()


async def _spooled(settings: Settings, store: Store, erasures: Erasures) -> SpooledStore:
    """The store with the writes that wait for it on this machine. Raises StoreUnavailable."""
    spool = spool_of(settings)
    mark, secret = await store.get_many([MARK, TENANT_SECRET])
    key = settings.server.tenant_key.reveal().encode() or secret or b""
    await spool.identify(identity_of(mark or b""), key, lasting=False)
    return SpooledStore(store, spool, erasures=erasures)


# -- what is done ----------------------------------------------------------------------------------------------------


async def _read(shelves: Shelves, wanted: Reading) -> int:
    wish = Wish(wanted.id, wanted.offset, wanted.limit, wanted.pattern, wanted.path)
    lent = await shelves.room.read(shelves.caller.space, wish)
    if lent is None:
        _say(f"{wanted.id}: there is no such artifact; it may have expired or been erased")
        return 1
    if wanted.as_json:
        _line(shown_lent(lent))
        return 0
    _say(f"{wanted.id}: {lent.what}; {lent.part.shown}", "dim")
    sys.stdout.write(lent.part.text + "\n")
    if lent.part.next:
        _say(f"continue with --offset {lent.part.next}", "dim")
    return 0


async def _list(shelves: Shelves, wanted: Reading) -> int:
    found = await _all(shelves, wanted.session)
    if wanted.as_json:
        for each in found:
            _line(shown_artifact(each))
    elif not found:
        sys.stdout.write("there are no artifacts\n")
    else:
        for session, artifacts in groupby(found, key=lambda each: each.session):
            Console(highlight=False, soft_wrap=True).print(Text(session, style="bold"))
            print_table(_table(artifacts))
    return 0


def _table(artifacts: Iterable[Artifact]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("id", no_wrap=True)
    table.add_column("messages", no_wrap=True, justify="right")
    table.add_column("content")
    table.add_column("characters", no_wrap=True, justify="right")
    for each in artifacts:
        about = " ".join((each.arguments or each.description).split())
        what = f"{each.tool}({about})" if each.tool else f"{each.kind}: {about}"
        place = f"{each.first}-{each.last}" if each.last > each.first else str(each.last)
        table.add_row(each.id, place, Text(what, no_wrap=True, overflow="ellipsis"), f"{each.characters:,}")
    return table


async def _all(shelves: Shelves, session: str) -> list[Artifact]:
    """The artifacts of a session, or of all (the session with the oldest artifact first), in the order of the
    conversation."""
    space, room, found = shelves.caller.space, shelves.room, list[tuple[Artifact, ...]]()
    for name in [session] if session else await room.custody.sessions(space):
        page = await room.listed(space, name, limit=_ALL)
        if page.artifacts:
            found.append(page.artifacts)
    found.sort(key=lambda each: min(artifact.at for artifact in each))
    return [artifact for each in found for artifact in each]


def _missing(shelves: Shelves, session: str) -> int:
    _say(f"{session}: tenant {shelves.caller.tenant!r} has no such session")
    return 1


async def _export(shelves: Shelves, session: str | None) -> int:
    room, caller = shelves.room, shelves.caller
    if session is not None and not (
        await room.holds(caller.space, session) or await shelves.observe.session(caller.tenant, session)
    ):
        return _missing(shelves, session)
    async for line in room.custody.export(caller.space, session):
        sys.stdout.write(line.decode())
    return 0


async def _erase(shelves: Shelves, memories: Memories, session: str | None, sure: Callable[[str], bool]) -> int:
    caller = shelves.caller
    whose = f"session {session}" if session is not None else "all sessions and all memories"
    if not sure(f"Erase {whose} of tenant {caller.tenant!r}? This cannot be undone."):
        return 1
    sessions, erased = await erased_of(shelves.observe, shelves.room.custody, shelves.wishes, caller, session)
    if session is not None and erased.verified and not (sessions or erased.entries or erased.values):
        return _missing(shelves, session)
    left = "" if erased.verified else "; new data was written in the meantime, run the command again"
    shared = f"; {counted(erased.shared, 'value')} used by other sessions kept" if erased.shared else ""
    parts = counted(sessions, "session"), counted(erased.entries, "entry", "entries"), counted(erased.values, "value")
    said = f"erased: {', '.join(parts)}"
    sys.stdout.write(f"{said}{shared}{left}\n")
    forgotten = session is not None or await _forget(shelves, memories)
    return 0 if erased.verified and forgotten else 1


async def _forget(shelves: Shelves, memories: Memories) -> bool:
    """Removes all memories, and says how many there were and are; whether none is left."""
    before, after = await forget_memories(memories, shelves.observe.store, shelves.caller)
    sys.stdout.write(f"memories: {before:,} before, {after:,} after\n")
    return not after


def _line(value: object) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
