"""Whatever becomes of the store, all workers tell tenants apart alike, and each notices that it was emptied."""

from pathlib import Path

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.ports import Key
from proxy.storage.redis import RedisStore
from proxy.wiring.mark import TENANT_SECRET, Mark
from tests.valkey import Valkey, running_valkey


class Worker:
    """One worker's mark, and how often it was told of something."""

    def __init__(self, url: str, configured: bytes = b"") -> None:
        self.store = RedisStore(url, timeout=20.0)
        self.changes = self.losses = 0
        self.mark = Mark(self.store, configured, changed=self._change, emptied=self._lose)

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
        await worker.mark.look()


async def test_workers_share_the_key_of_whoever_came_first_and_lose_nothing_while_it_stays(server: Valkey):
    first, second = Worker(server.url), Worker(server.url)
    own = first.mark.secret
    for _ in range(3):
        await looked(first, second)
    assert first.mark.secret == second.mark.secret == own
    assert [(worker.changes, worker.losses) for worker in (first, second)] == [(0, 0), (1, 0)]


async def test_after_the_store_was_emptied_the_same_key_is_there_again_and_each_worker_has_noticed_once(server: Valkey):
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
