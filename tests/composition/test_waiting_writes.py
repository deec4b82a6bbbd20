"""Writes that wait, in a whole application: found again when the store answers, and erased with their session."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from accordion.composition.application import Application
from accordion.config.load import build
from accordion.model.ports import Append, Key, Put
from tests.spools import add_waiting

ROW = Key("", "row/waits")


def application_of(folder: Path, spool: str) -> Application:
    store = f"{{url: 'sqlite:///{folder}/a.db', spool: '{folder}/{spool}', write_timeout_seconds: 1}}"
    return Application(build(f"store: {store}".encode(), {}, {}), {})


async def test_what_waits_for_a_file_that_was_locked_at_its_first_start_is_stored(tmp_path: Path):
    """The file has a secret of its own, which no process has noted on this machine."""
    former = application_of(tmp_path, "spool of another machine")
    await former.start()
    await former.stop()
    lock = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    lock.execute("PRAGMA locking_mode = EXCLUSIVE")
    lock.execute("BEGIN EXCLUSIVE")
    application = application_of(tmp_path, "spool")
    await application.start()
    await application.tasks.cancel()
    try:
        assert not application.store.has_answered
        tenant = application.tenants.scope("tenant")
        await application.spooled.put(ROW, b"waits")
        lock.close()
        while not (application.store.is_available and application.spooled.is_empty):
            await application.poll()
            assert application.spooled.describe() == {}
        assert await application.store.get(ROW) == b"waits"
        assert application.tenants.scope("tenant").key == tenant.key == former.tenants.scope("tenant").key
    finally:
        await application.stop()


async def test_an_erasure_by_another_worker_drops_what_waits_of_its_session_alone(tmp_path: Path):
    application = application_of(tmp_path, "spool")
    application._store_identity.recall(application.spooled.recall(b"secret".ljust(32)))
    try:
        erased, log = (
            Put(Key("sessions/one", "s-1.worker.1"), b"row"),
            Append(Key("exchanges/one/s-1", "log"), b"entry"),
        )
        others = [Key("sessions/one", "s-2.worker.1"), Key("sessions/two", "s-1.worker.1"), ROW]
        await add_waiting(application.spooled, [erased, log, *(Put(key, b"row") for key in others)])
        await application._drop_erased(application.tenants.scope("one").archive_namespace, "s-1")
        await application.spooled.publish()
        assert await application.store.get_many([erased.key, *others]) == [None, b"row", b"row", b"row"]
        assert await application.store.read(log.key) == []
    finally:
        await application.store.close()
