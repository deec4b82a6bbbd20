"""What was erased is told to everybody, and what waited elsewhere does not come back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.archive import Archive, CompactionWrite
from accordion.archive.artifacts import ArchivedMessage, Artifact, row_key
from accordion.archive.erasure_notices import CHECK_INTERVAL, ErasureNotices
from accordion.archive.transcripts import TranscriptStore
from accordion.model.errors import StoreFull, StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.spool import SpooledStore
from tests.archive.archive_setup import OTHER, TENANT, ArchiveSetup, chat, wire
from tests.fakes import FakeClock, FickleStore
from tests.spools import add_waiting

BOTH, MINE = wire("both"), wire("mine")


def entry_puts(setup: ArchiveSetup, name: str, session: str, *wires: bytes, tenant: TenantScope = TENANT) -> list[Put]:
    """The writes of a compaction that must wait for the store, and its claim."""
    rows = [ArchivedMessage(hashlib.sha256(each).digest(), each) for each in wires]
    made = [
        Artifact(f"art_{name}{at}", "part", "chat", (row.key,), at, at, 0, session=session, scope=b"x")
        for at, row in enumerate(rows)
    ]
    claim = Key("", f"compaction/{name}")
    puts = setup.archive.build_puts(
        tenant, rows, made, CompactionWrite(f"f-{name}", session, setup.clock.now(), "", (claim,), 10)
    )
    sealed = setup.archive.sealed_put(tenant, claim, b"the compaction")
    return [*puts, Put(sealed.key, sealed.value, sealed.ttl, if_absent=True)]


def record_erasures(erasures: ErasureNotices) -> list[tuple[str, str | None]]:
    """What it tells from now on."""
    told: list[tuple[str, str | None]] = []
    erasures.listen(lambda tenant, session: told.append((tenant, session)))
    return told


async def test_an_erasure_is_told_here_at_once_and_to_others_when_they_look() -> None:
    store, clock = InMemoryStore(), FakeClock()
    here, there = ErasureNotices(store, clock, 100.0), ErasureNotices(store, clock, 100.0)
    mine, theirs = record_erasures(here), record_erasures(there)
    await there.poll()
    await here.publish(TENANT, "s-1")
    await here.poll()
    assert mine == [(TENANT.archive_namespace, "s-1")]
    await there.poll()
    await there.poll()
    assert theirs == mine
    await here.publish(OTHER, None)
    await there.poll()
    assert theirs[1:] == [(OTHER.archive_namespace, None)]
    clock.advance(1.0)
    await here.publish(OTHER, None)
    await there.poll()
    assert theirs[2:] == [(OTHER.archive_namespace, None)]


async def test_a_new_worker_gets_no_notices_of_earlier_erasures() -> None:
    store, clock = InMemoryStore(), FakeClock()
    await ErasureNotices(store, clock, 100.0).publish(TENANT, "s-1")
    late = ErasureNotices(store, clock, 100.0)
    told = record_erasures(late)
    await late.poll()
    assert told == []


async def test_while_the_store_is_away_nothing_is_told_and_later_it_is() -> None:
    store, clock = FickleStore(), FakeClock()
    here, there = ErasureNotices(store, clock, 100.0), ErasureNotices(store, clock, 100.0)
    told = record_erasures(there)
    await there.poll()
    await here.publish(TENANT, "s-1")
    store.away = True
    await there.poll()
    assert told == []
    store.away = False
    await there.poll()
    assert told == [(TENANT.archive_namespace, "s-1")]


async def test_who_begins_while_the_store_is_away_is_told_of_what_was_erased_since() -> None:
    store, clock = FickleStore(), FakeClock()
    here, late = ErasureNotices(store, clock, 100.0), ErasureNotices(store, clock, 100.0)
    told = record_erasures(late)
    store.away = True
    await late.poll()
    store.away = False
    clock.advance(1.0)
    await here.publish(TENANT, "s-1")
    await late.poll()
    assert told == [(TENANT.archive_namespace, "s-1")]


async def test_pending_writes_of_this_machine_are_erased_too() -> None:
    setup = ArchiveSetup()
    await add_waiting(setup.spool, entry_puts(setup, "one", "s-1", MINE))
    setup.clock.advance(1.0)
    erased = await setup.export_and_erasure.erase(TENANT, "s-1")
    assert (erased.verified, erased.entries) == (True, 1)
    await setup.spool.publish()
    assert setup.spool.is_empty
    assert await setup.store.get_many([row_key(hashlib.sha256(MINE).digest()), Key("", "compaction/one")]) == [
        None,
        None,
    ]


async def test_what_waited_on_another_machine_is_let_go_of_and_what_others_need_is_kept() -> None:
    setup = ArchiveSetup()
    elsewhere = setup.waiting()
    for name, session, tenant, wires in (
        ("one", "s-1", TENANT, (MINE, BOTH)),
        ("two", "s-2", TENANT, (BOTH,)),
        ("six", "s-1", OTHER, (wire("theirs"),)),
    ):
        await add_waiting(elsewhere, entry_puts(setup, name, session, *wires, tenant=tenant))
    setup.clock.advance(1.0)
    await setup.export_and_erasure.erase(TENANT, "s-1")
    setup.clock.advance(1.0)
    await add_waiting(elsewhere, entry_puts(setup, "new", "s-1", wire("said again")))
    await elsewhere.publish()
    assert elsewhere.is_empty
    rows = [row_key(hashlib.sha256(each).digest()) for each in (MINE, BOTH, wire("theirs"), wire("said again"))]
    compactions = [Key("", f"compaction/{name}") for name in ("one", "two", "six", "new")]
    assert [value is not None for value in await setup.store.get_many(rows)] == [False, True, True, True]
    assert [value is not None for value in await setup.store.get_many(compactions)] == [False, True, True, True]
    assert [each.id for each in await setup.archive.list_artifacts(TENANT, "s-1")] == ["art_new0"]


async def test_what_another_worker_holds_in_the_same_file_is_let_go_of_too(tmp_path: Path) -> None:
    setup = ArchiveSetup()
    one, other = (setup.waiting(tmp_path / "spool") for _ in range(2))
    await one.publish()
    await add_waiting(other, entry_puts(setup, "one", "s-1", MINE))
    setup.clock.advance(1.0)
    await setup.erasures.publish(TENANT, "s-1")
    await one.publish()
    assert await setup.store.get_many([row_key(hashlib.sha256(MINE).digest()), Key("", "compaction/one")]) == [
        None,
        None,
    ]


async def record_elsewhere(setup: ArchiveSetup, elsewhere: SpooledStore, session: str, *texts: str) -> None:
    """A request whose transcript waits in the spool of another machine."""
    archive = Archive(elsewhere, setup.retention, sealer=setup.sealer, clock=setup.clock)
    transcripts = TranscriptStore(archive, setup.tasks, setup.clock, "all")
    transcripts.record(TENANT, session, chat(*texts, system=None), compacted=True)
    await transcripts.flush()


async def transcript_texts(setup: ArchiveSetup, session: str) -> list[str]:
    found = await setup.transcripts.read(TENANT, session, 0, 99)
    return [json.loads(each)["content"] for each in found if each is not None]


async def test_an_erased_transcript_that_waited_elsewhere_does_not_come_back() -> None:
    setup = ArchiveSetup(store=(store := FickleStore()))
    elsewhere = setup.waiting()
    store.away = True
    await record_elsewhere(setup, elsewhere, "s-1", "mine", "both")
    await record_elsewhere(setup, elsewhere, "s-2", "said", "both")
    store.away = False
    setup.clock.advance(1.0)
    await setup.export_and_erasure.erase(TENANT, "s-1")
    setup.clock.advance(1.0)
    store.away = True
    await record_elsewhere(setup, elsewhere, "s-1", "said again")
    store.away = False
    await elsewhere.publish()
    assert elsewhere.is_empty
    assert (await transcript_texts(setup, "s-1"), await transcript_texts(setup, "s-2")) == (
        ["said again"],
        ["said", "both"],
    )
    rows = [value for key, value in setup.store._values.items() if key.name.startswith("row/")]
    assert len(rows) == 3


async def test_erased_links_that_waited_elsewhere_do_not_come_back() -> None:
    setup = ArchiveSetup()
    elsewhere, key = setup.waiting(), Key("", "link/1")
    await add_waiting(elsewhere, setup.archive.single_value_puts(TENANT, "s-1", "link", key, b"said"))
    setup.clock.advance(1.0)
    await setup.export_and_erasure.erase(TENANT, "s-1")
    await elsewhere.publish()
    assert elsewhere.is_empty
    assert await setup.store.get(key) is None


async def test_without_an_erasure_all_pending_writes_are_published() -> None:
    setup = ArchiveSetup()
    await add_waiting(setup.spool, entry_puts(setup, "one", "s-1", MINE))
    await setup.spool.publish()
    assert await setup.store.get(Key("", "compaction/one")) is not None


async def test_what_began_before_an_erasure_was_heard_of_is_told_from_what_begins_later() -> None:
    store, clock = InMemoryStore(), FakeClock()
    here, there = ErasureNotices(store, clock, 100.0), ErasureNotices(store, clock, 100.0)
    await there.poll()
    before = clock.monotonic()
    assert not here.was_erased_since(TENANT, "s-1", before)
    clock.advance(1.0)
    await here.publish(TENANT, "s-1")
    assert (here.was_erased_since(TENANT, "s-1", before), there.was_erased_since(TENANT, "s-1", before)) == (
        True,
        False,
    )
    clock.advance(1.0)
    await there.poll()
    assert there.was_erased_since(TENANT, "s-1", before + 1.5)
    assert not here.was_erased_since(TENANT, "s-1", before + 1.5)
    assert not there.was_erased_since(TENANT, "s-1", clock.monotonic())
    assert not here.was_erased_since(TENANT, "s-2", before)
    assert not here.was_erased_since(OTHER, "s-1", before)


async def test_an_erasure_of_a_tenant_covers_each_session_and_is_known_for_a_day() -> None:
    clock = FakeClock()
    erasures = ErasureNotices(InMemoryStore(), clock, 100.0)
    clock.advance(1.0)
    await erasures.publish(TENANT, None)
    clock.advance(86_400.0)
    await erasures.publish(OTHER, "s-1")
    assert erasures.was_erased_since(TENANT, "s-1", 0.5)
    clock.advance(1.0)
    await erasures.publish(OTHER, "s-2")
    assert not erasures.was_erased_since(TENANT, "s-1", 0.5)
    assert erasures.was_erased_since(OTHER, "s-1", 0.5)


async def test_only_where_others_use_the_store_it_is_waited_for_until_they_have_heard() -> None:
    store, clock, waits = InMemoryStore(), FakeClock(), list[float]()

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    alone, beside = ErasureNotices(store, clock, 100.0), ErasureNotices(store, clock, 100.0, wait)
    assert (alone.is_only_user, beside.is_only_user) == (True, False)
    await alone.announce(TENANT, "s-1")
    assert waits == []
    await beside.announce(TENANT, "s-1")
    assert len(waits) == 1
    assert waits[0] > CHECK_INTERVAL


async def begin_and_end(here: ErasureNotices, there: ErasureNotices, clock: FakeClock, *, heard: bool = True) -> float:
    """An erasure of which another worker heard the beginning, and not the end yet; gives when that was."""
    await there.poll()
    await here.publish(TENANT, "s-1")
    if heard:
        await there.poll()
    clock.advance(1.5)
    await here.publish(TENANT, "s-1", is_complete=True)
    return clock.monotonic()


async def test_writes_after_an_erasure_are_kept_by_workers_that_learn_of_it_late() -> None:
    store, clock = InMemoryStore(), FakeClock()
    here, there = ErasureNotices(store, clock, 100.0), ErasureNotices(store, clock, 100.0)
    told = record_erasures(there)
    ended = await begin_and_end(here, there, clock)
    clock.advance(0.7)
    await there.poll()
    for each in (here, there):
        assert each.was_erased_since(TENANT, "s-1", ended - 0.01)
        assert not each.was_erased_since(TENANT, "s-1", ended + 0.01)
    # What was read again meanwhile is forgotten all the same.
    assert told == [(TENANT.archive_namespace, "s-1")] * 2


async def test_who_heard_of_no_beginning_takes_all_for_erased_that_began_before_it_heard() -> None:
    store, clock = InMemoryStore(), FakeClock()
    here, there = ErasureNotices(store, clock, 100.0), ErasureNotices(store, clock, 100.0)
    for _ in range(2):
        ended = await begin_and_end(here, there, clock, heard=False)
        clock.advance(0.7)
        await there.poll()
        assert there.was_erased_since(TENANT, "s-1", ended + 0.5)
        clock.advance(10.0)


class Apart(FakeClock):
    """The clock of another machine, so many seconds ahead."""

    def __init__(self, of: FakeClock, ahead: float) -> None:
        self._of, self._ahead = of, ahead

    def now(self) -> float:
        return self._of.now() + self._ahead

    def monotonic(self) -> float:
        return self._of.monotonic() - 900_000.0


@given(
    phase=st.floats(0.0, 0.99),
    began=st.floats(-1.0, 4.0),
    lasts=st.floats(0.0, 3.0),
    removing=st.floats(0.0, 2.0),
    ahead=st.floats(-0.2, 0.2),
)
async def test_an_erasure_drops_pending_writes_and_loses_no_later_write(
    phase: float, began: float, lasts: float, removing: float, ahead: float
) -> None:
    store, clock = InMemoryStore(), FakeClock()
    apart = Apart(clock, ahead)
    here, there = ErasureNotices(store, clock, 100.0), ErasureNotices(store, apart, 100.0)
    over, ends = 1.5 + removing, began + lasts
    happens = [(0.0, "note"), (over, "over"), (ends, "reply"), *((phase + at, "look") for at in range(-2, 9))]
    zero, heard, lost = apart.monotonic() + 2.0, -1.0, False
    for at, what in sorted(happens):
        clock.advance(zero + at - apart.monotonic())
        if what == "look":
            await there.poll()
            heard = at if at > 0.0 > heard else heard
        elif what == "reply":
            lost = there.was_erased_since(TENANT, "s-1", zero + began)
        else:
            await here.publish(TENANT, "s-1", is_complete=what == "over")
    if began < heard - 0.01 and ends > over:
        assert lost, "it may go on from what was erased"
    if began > over + max(0.0, -ahead) + 0.01:
        assert not lost, "it began behind the answer"


class Slow(InMemoryStore):
    """A store in which something may happen after notes were read, and before the answer arrives."""

    then: Callable[[], Awaitable[None]] | None = None

    async def scan(self, collection: str, **given: Any) -> list[tuple[str, bytes]]:
        found, then = await super().scan(collection, **given), self.then
        if then is not None:
            self.then = None
            await then()
        return found


async def test_what_a_worker_notes_while_it_looks_it_does_not_hear_of_as_anothers() -> None:
    store, clock = Slow(), FakeClock()
    here, there = ErasureNotices(store, clock, 100.0), ErasureNotices(store, clock, 100.0)
    await here.poll()
    await there.publish(TENANT, "s-1")
    await there.publish(OTHER, None)
    told = record_erasures(here)
    clock.advance(1.0)
    store.then = lambda: here.publish(TENANT, "s-1")
    await here.poll()
    assert store.then is None
    clock.advance(1.0)
    began = clock.monotonic()
    clock.advance(1.0)
    await here.poll()
    assert told == [(TENANT.archive_namespace, "s-1"), (OTHER.archive_namespace, None)]
    assert not here.was_erased_since(TENANT, "s-1", began)


class Scripted(FickleStore):
    """A store that does something before it takes a batch with this key, or takes no batch with it."""

    before: tuple[Key, Callable[[], Awaitable[object]]] | None = None
    refuses: Key | None = None

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        keys = {each.key for each in batch}
        if self.refuses in keys:
            self.away = True
            raise StoreUnavailable("away")
        if self.before is not None and self.before[0] in keys:
            then, self.before = self.before[1], None
            await then()
        return await super().write(batch)


COMPACTION, LISTED = Key("", "compaction/one"), [Key("", "compaction/one"), row_key(hashlib.sha256(MINE).digest())]


async def load_remaining(setup: ArchiveSetup) -> list[bytes | None]:
    """What the store has of the erased compaction `one`."""
    listed = [each.id for each in await setup.archive.list_artifacts(TENANT, "s-1")]
    return [each for each in [*await setup.store.get_many(LISTED), *listed] if each is not None]


async def test_an_erased_compaction_whose_archive_was_published_before_does_not_come_back() -> None:
    setup = ArchiveSetup(store=(store := Scripted()))
    elsewhere = setup.waiting()
    await add_waiting(elsewhere, entry_puts(setup, "one", "s-1", MINE))
    store.refuses = COMPACTION
    with pytest.raises(StoreUnavailable):
        await elsewhere.publish()
    store.away, store.refuses = False, None
    setup.clock.advance(1.0)
    await setup.export_and_erasure.erase(TENANT, "s-1")
    await elsewhere.publish()
    assert elsewhere.is_empty
    assert await load_remaining(setup) == []


@pytest.mark.parametrize("at", [COMPACTION, LISTED[1]], ids=["claims", "values"])
@pytest.mark.parametrize("session", ["s-1", None], ids=["session", "tenant"])
async def test_an_erasure_while_another_machine_publishes_leaves_nothing(at: Key, session: str | None) -> None:
    setup = ArchiveSetup(store=(store := Scripted()))
    elsewhere = setup.waiting()
    await add_waiting(elsewhere, entry_puts(setup, "one", "s-1", MINE))
    setup.clock.advance(1.0)
    store.before = at, lambda: setup.export_and_erasure.erase(TENANT, session)
    await elsewhere.publish()
    assert store.before is None
    assert elsewhere.is_empty
    assert await load_remaining(setup) == []


async def test_what_is_written_again_behind_an_erasure_stays_while_that_is_published() -> None:
    """The same bytes wait once more: they are the new compaction's."""
    setup = ArchiveSetup(store=(store := Scripted()))
    elsewhere = setup.waiting()
    await add_waiting(elsewhere, [*entry_puts(setup, "one", "s-1", MINE), Put(Key("", "other"), b"x")])
    setup.clock.advance(1.0)
    await setup.export_and_erasure.erase(TENANT, "s-1")
    setup.clock.advance(1.0)
    store.before = Key("", "other"), lambda: elsewhere.write(entry_puts(setup, "new", "s-1", MINE))
    await elsewhere.publish()
    await elsewhere.publish()
    assert elsewhere.is_empty
    assert [each.id for each in await setup.archive.list_artifacts(TENANT, "s-1")] == ["art_new0"]
    assert None not in await setup.store.get_many([Key("", "compaction/new"), LISTED[1]])


class Full(FickleStore):
    """A store whose disk may be full: it is read, and takes only what erases."""

    full = False

    @property
    def is_available(self) -> bool:
        return not self.full

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        if self.full and not all(isinstance(each, Put) and each.for_erasing for each in batch):
            raise StoreFull("the disk of the store is full")
        return await super().write(batch)


@pytest.mark.parametrize("session", ["s-1", None], ids=["session", "tenant"])
async def test_on_a_full_disk_an_erasure_is_complete_with_what_waits_for_room(session: str | None) -> None:
    setup = ArchiveSetup(store=(store := Full()))
    setup.archive.store = setup.spool
    await setup.archive.write(entry_puts(setup, "two", "s-1", BOTH))
    store.full = True
    await setup.archive.write(entry_puts(setup, "one", "s-1", MINE))
    await record_elsewhere(setup, setup.spool, "s-1", "mine", "both")
    setup.clock.advance(1.0)
    erased = await setup.export_and_erasure.erase(TENANT, session)
    assert (erased.verified, erased.entries) == (True, 3)
    store.full = False
    await setup.spool.publish()
    assert setup.spool.is_empty
    kept = {key.name.partition("/")[0] for key in (*store._values, *store._logs)}
    assert kept <= {"erased", TENANT.archive_namespace}


async def test_a_worker_that_hears_of_an_erasure_on_a_full_disk_lets_go_of_what_waits() -> None:
    setup = ArchiveSetup(store=(store := Full()))
    other = setup.waiting()
    store.full = True
    await other.write(entry_puts(setup, "one", "s-1", MINE))
    setup.clock.advance(1.0)
    await setup.export_and_erasure.erase(TENANT, "s-1")
    await other.drop_erased()
    assert await other.get(COMPACTION) is None
