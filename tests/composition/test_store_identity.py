"""Whatever becomes of the store, all workers tell tenants apart alike, and each notices that it was emptied."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from accordion.composition.configured_store import MARK, TENANT_SECRET, StoreIdentity
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.redis import RedisStore
from accordion.stores.sqlite import SqliteStore
from tests.valkey import Valkey, running_valkey


class Worker:
    """One worker's mark, and how often it was told of something."""

    def __init__(self, where: str | Path, configured: bytes = b"") -> None:
        self.changes = self.losses = 0
        callbacks = {"on_secret_change": self._change, "on_emptied": self._lose}
        self.store: RedisStore | SqliteStore
        if isinstance(where, Path):
            self.store = file = SqliteStore(where, timeout=20.0)
            self.mark = StoreIdentity(file, configured, **callbacks, replacements=lambda: file.replacements)
        else:
            self.store = RedisStore(where, timeout=20.0)
            self.mark = StoreIdentity(self.store, configured, **callbacks)

    def _change(self) -> None:
        self.changes += 1

    def _lose(self) -> None:
        self.losses += 1


@pytest.fixture
def server(valkey_server: Valkey) -> Valkey:
    valkey_server.command("FLUSHALL")
    return valkey_server


async def looked(*workers: Worker) -> None:
    for worker in workers:
        await worker.mark.poll()


async def test_workers_share_the_first_workers_key_and_lose_nothing(server: Valkey):
    first, second = Worker(server.url), Worker(server.url)
    own = first.mark.secret
    for _ in range(3):
        await looked(first, second)
    assert first.mark.secret == second.mark.secret == own
    assert [(worker.changes, worker.losses) for worker in (first, second)] == [(0, 0), (1, 0)]


async def test_an_emptied_store_gets_the_same_key_and_each_worker_notices_once(server: Valkey):
    first, second = Worker(server.url), Worker(server.url)
    await looked(first, second)
    own = first.mark.secret
    server.command("FLUSHALL")
    await looked(first, second, first, second)
    assert [worker.losses for worker in (first, second)] == [1, 1]
    replacement = Worker(server.url)
    await looked(replacement)
    assert {worker.mark.secret for worker in (first, second, replacement)} == {own}
    assert replacement.losses == 0


async def test_a_worker_takes_the_key_that_another_machine_put_into_the_emptied_store(server: Valkey):
    old, new = Worker(server.url), Worker(server.url)
    await looked(old)
    server.command("FLUSHALL")
    await looked(new, old)
    assert old.mark.secret == new.mark.secret
    assert (old.changes, old.losses) == (1, 1)


async def test_a_key_that_was_evicted_alone_is_put_back(server: Valkey):
    worker = Worker(server.url)
    await looked(worker)
    await worker.store.delete([TENANT_SECRET])
    await looked(worker)
    assert await worker.store.get(TENANT_SECRET) == worker.mark.secret
    assert (worker.changes, worker.losses) == (0, 0)


async def test_a_configured_key_is_never_written_and_an_emptied_store_is_noticed(server: Valkey):
    worker = Worker(server.url, b"configured")
    await looked(worker)
    server.command("FLUSHALL")
    await looked(worker, worker)
    assert (worker.mark.secret, worker.changes, worker.losses) == (b"configured", 0, 1)
    assert await worker.store.get(TENANT_SECRET) is None
    assert server.command("DBSIZE") == b":1\r\n"


async def test_a_store_that_is_away_has_lost_nothing(tmp_path: Path):
    with running_valkey(tmp_path, appendonly="yes", appendfsync="always") as server:
        worker = Worker(server.url)
        await looked(worker)
        own = worker.mark.secret
        server.kill()
        await looked(worker)
        with pytest.raises(StoreUnavailable):
            await worker.store.get(Key("", "any"))
        server.start()
        await looked(worker)
    assert (worker.mark.secret, worker.changes, worker.losses) == (own, 0, 0)


def back_up(path: Path, to: Path) -> None:
    with closing(sqlite3.connect(path)) as file, closing(sqlite3.connect(to)) as backup:
        file.backup(backup)


async def lost(*workers: Worker) -> None:
    async with asyncio.timeout(60.0):
        while not all(worker.losses for worker in workers):
            await looked(*workers)
            await asyncio.sleep(0.05)
    for _ in range(3):
        await looked(*workers)
    assert [(worker.changes, worker.losses) for worker in workers] == [(0, 1)] * len(workers)


@pytest.mark.parametrize("restored", [True, False], ids=["replaced by its backup", "deleted"])
async def test_each_worker_notices_a_replaced_file_once_even_with_the_same_identity(tmp_path: Path, restored: bool):
    path, backup = tmp_path / "store.db", tmp_path / "backup.db"
    workers = [Worker(path, b"configured"), Worker(path, b"configured")]
    await looked(*workers, *workers)
    back_up(path, backup)
    for worker in workers:
        await worker.store.put(Key("c", "later"), b"1")
    if restored:
        backup.replace(path)
    else:
        path.unlink()
    await lost(*workers)
    for worker in workers:
        assert await worker.store.get(Key("c", "later")) is None
        await worker.store.close()


async def test_a_store_that_is_replaced_while_its_mark_is_read_is_noticed_once():
    store, replacements, losses = InMemoryStore(), 0, list[int]()

    class ReplacedStore(InMemoryStore):
        """It is replaced by an empty one just after its mark was read."""

        async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
            nonlocal replacements
            values = await store.get_many(keys)
            if replacements < is_due:
                replacements += 1
                await store.delete(list(keys))
            return values

        async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
            return await store.put_if_absent(key, value, ttl=ttl)

    is_due = 0
    identity = StoreIdentity(
        ReplacedStore(),
        b"configured",
        on_secret_change=lambda: None,
        on_emptied=lambda: losses.append(1),
        replacements=lambda: replacements,
    )
    await identity.poll()
    is_due = 1
    for _ in range(3):
        await identity.poll()
    assert losses == [1]


async def test_a_file_whose_folder_was_away_has_lost_nothing(tmp_path: Path):
    folder, elsewhere = tmp_path / "volume", tmp_path / "elsewhere"
    worker = Worker(folder / "store.db")
    await looked(worker)
    own = worker.mark.secret
    folder.rename(elsewhere)
    await asyncio.sleep(1.1)
    await looked(worker, worker)
    with pytest.raises(StoreUnavailable):
        await worker.store.get(Key("", "any"))
    elsewhere.rename(folder)
    await looked(worker, worker)
    assert (worker.mark.secret, worker.changes, worker.losses) == (own, 0, 0)
    await worker.store.close()


@pytest.mark.parametrize("size", [0, 16, 31])
async def test_a_store_with_a_spoiled_secret_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    first = Worker(tmp_path / "store.db")
    await looked(first)
    await first.store.put(TENANT_SECRET, first.mark.secret[:size])
    second = Worker(tmp_path / "store.db")
    own = second.mark.secret
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="is spoiled"):
            await second.mark.check()
    assert second.mark.secret == own
    assert caplog.text.count("restore it from a backup") == 1


@pytest.mark.parametrize("mark", [bytes(32), b"\x01" + bytes(32), b"\x03" + bytes(32), b""])
async def test_a_store_of_another_format_is_not_used(caplog: pytest.LogCaptureFixture, mark: bytes) -> None:
    store = InMemoryStore()
    await store.put(MARK, mark)
    identity = StoreIdentity(store, b"configured", on_secret_change=lambda: None, on_emptied=lambda: None)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="written by another version"):
            await identity.check()
    assert caplog.text.count("use another store") == 1
    assert await store.get(MARK) == mark
