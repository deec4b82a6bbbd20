"""Another store at the same address does not get the writes that wait for the one before."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from accordion.composition.application import Application
from accordion.composition.configured_store import MARK, TENANT_SECRET, new_mark
from accordion.config.load import build
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, Put
from accordion.stores.redis import RedisStore
from tests.valkey import Valkey, running_valkey

ROW = Key("", "row/waits")


async def prepared(server: Valkey) -> None:
    """Gives a server the identity of a store, and stops it."""
    server.start()
    store = RedisStore(server.url, timeout=20.0)
    await store.write([Put(MARK, new_mark()), Put(TENANT_SECRET, b"another secret".ljust(32))])
    await store.close()
    server.stop()


async def test_pending_writes_are_not_published_to_another_store(tmp_path: Path):
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    other = Valkey(folders[1], {"appendonly": "yes"})
    await prepared(other)
    with running_valkey(folders[0]) as server:
        settings = build(f"store: {{url: '{server.url}', spool: '{tmp_path}/spool.db'}}".encode(), {}, {})
        application = Application(settings, {})
        await application.start()
        await application.tasks.cancel()  # Nothing looks at the store but what is done here.
        server.kill()
        await application.spooled.put(ROW, b"for the first store")
        assert not application.store.is_available
        other.port = server.port
        other.start()
        try:
            # A request is the first that the store answers.
            while not application.store.is_available:
                with suppress(StoreUnavailable):
                    await application.store.get(ROW)
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            await application.poll()
            assert await application.store.get(ROW) is None
            [elsewhere] = application.spooled.describe()["kept_for_other_stores"]
            assert elsewhere == {"file": f"{tmp_path}/spool.db", "writes": 1}
        finally:
            await application.stop()
            other.kill()
