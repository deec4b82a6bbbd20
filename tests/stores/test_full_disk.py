"""The store on a disk that is really full: it is read, content is deleted, and then it takes writes again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion.model.errors import StoreFull, StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores.guarded import GuardedStore
from accordion.stores.open import open_store
from tests.disks import fill, read_only, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def open_guarded_store(folder: Path) -> GuardedStore:
    """The store on the disk; it is tried again at once after it failed."""
    inner = open_store(f"sqlite:///{folder}/store.db", timeout=20.0)
    return GuardedStore(inner, timeout=20.0, write_timeout=20.0, monotonic=time.monotonic, retry_after=0.0)


async def fill_store(folder: Path, size: int) -> tuple[GuardedStore, list[Key]]:
    """A store that took values of this size until its disk was full, then another program took the rest."""
    store = open_guarded_store(folder)
    keys: list[Key] = []
    with pytest.raises(StoreFull):
        while True:
            key = Key("c", f"{len(keys):05}")
            await store.put(key, b"canary-77" * (size // 9))
            keys.append(key)
    fill(folder)
    return store, keys


@pytest.mark.parametrize("size", [20_000, 3_000_000], ids=["small", "large"])
async def test_content_is_read_and_deleted_on_a_full_disk_and_its_space_used_again(disk: Path, size: int):
    store, keys = await fill_store(disk, size)
    assert await store.get(keys[0]) is not None
    with pytest.raises(StoreFull):
        await store.put(Key("c", "more"), b"1")
    assert await store.write([Put(Key("", "note"), b"1", for_erasing=True)]) == {}
    assert await store.delete(keys) == len(keys)
    assert await store.get_many(keys) == [None] * len(keys)
    async with asyncio.timeout(20):
        while b"canary-77" in (disk / "store.db").read_bytes() + (disk / "store.db-wal").read_bytes():
            await asyncio.sleep(0.1)
    # Nobody made room on the disk, but the file has free pages now.
    for at in range(10):
        await store.put(Key("c", f"again-{at}"), bytes(20_000))
    assert store.is_available
    await store.close()


async def test_a_long_log_is_deleted_on_a_full_disk(disk: Path):
    store = open_guarded_store(disk)
    with pytest.raises(StoreFull):
        while True:
            await store.write([Append(Key("", "log"), bytes(30_000))])
    fill(disk)
    assert await store.delete([Key("", "log")]) == 1
    assert await store.read(Key("", "log")) == []
    await store.close()


async def test_erasing_works_again_each_time_the_disk_is_full(disk: Path):
    store, keys = await fill_store(disk, 50_000)
    for _ in range(5):
        assert await store.delete(keys) == len(keys)
        keys = []
        with pytest.raises(StoreFull):
            while True:
                await store.put(Key("c", f"{len(keys):05}"), bytes(50_000))
                keys.append(Key("c", f"{len(keys):05}"))
        assert keys
    await store.close()


async def test_a_store_that_is_opened_on_a_full_disk_can_be_erased(disk: Path):
    store, keys = await fill_store(disk, 20_000)
    await store.close()
    fill(disk)
    store = open_guarded_store(disk)
    assert await store.delete(keys) == len(keys)
    await store.close()


async def test_a_disk_that_is_read_only_says_that_nothing_can_be_erased(disk: Path):
    store, keys = await fill_store(disk, 20_000)
    await store.close()
    read_only(disk)
    store = open_guarded_store(disk)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="read-only, so that nothing can be stored or erased"):
            await store.delete(keys)
    await store.close()
