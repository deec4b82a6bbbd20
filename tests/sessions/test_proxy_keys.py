"""Created proxy keys: made, recognized and revoked by several processes on one store, which never has a key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from accordion.accounting.key_limits import KeyLimits
from accordion.model.errors import BadRequest, KeysUnavailable, NotFound
from accordion.model.ports import Key
from accordion.sessions.proxy_keys import (
    CHANGED_LIMITS,
    GRACE_SECONDS,
    RECORDS,
    VERSION,
    CreatedKeys,
    ProxyKeyRecord,
    hash_key,
    is_created_key,
)
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.open import open_store
from tests.fakes import FakeClock, FickleStore
from tests.valkey import Opener, store_opener, valkey_server  # noqa: F401


class CountingStore(FickleStore):
    """A store that counts scans, and that can be away."""

    scans = 0

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        self.scans += 1
        return await super().scan(collection, prefix=prefix, after=after, limit=limit)


def match(keys: CreatedKeys, key: str) -> ProxyKeyRecord | None:
    return keys.match(key.encode(), hash_key(key.encode()))


async def test_each_process_recognizes_a_key_and_refuses_it_once_it_is_revoked(opener: Opener) -> None:
    clock = FakeClock()
    one, two = CreatedKeys(opener(), clock), CreatedKeys(opener(), clock)
    for keys in (one, two):
        await keys.poll()
    record, key = await one.create("research")
    assert match(one, key) == record
    assert match(two, key) is None
    await two.poll()
    assert match(two, key) == record
    assert (record.tenant, await two.list_records()) == ("research", [record])
    await two.revoke(record.id)
    assert match(two, key) is None
    await one.poll()
    assert match(one, key) is None
    assert await one.list_records() == []
    with pytest.raises(NotFound):
        await one.revoke(record.id)


def test_the_store_has_a_hash_and_no_key(tmp_path: Path) -> None:
    async def create() -> tuple[ProxyKeyRecord, str]:
        store = open_store(f"sqlite:///{tmp_path / 'store.db'}", timeout=20.0)
        made = await CreatedKeys(store, FakeClock()).create("research")
        await store.close()
        return made

    record, key = asyncio.run(create())
    secret = key.split("-", 2)[2]
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert record.id.encode() in written
    assert secret.encode() not in written
    assert secret not in repr(record)
    assert record.digest.hex() not in repr(record)


async def test_a_key_with_another_secret_is_unknown() -> None:
    keys = CreatedKeys(InMemoryStore(), FakeClock())
    await keys.poll()
    record, key = await keys.create("research")
    other = key[:-1] + ("A" if key[-1] != "A" else "B")
    assert is_created_key(other.encode())
    assert match(keys, other) is None
    assert match(keys, f"acc-{record.id}-") is None
    assert match(keys, record.digest.hex()) is None


async def test_two_keys_of_a_tenant_are_valid_at_the_same_time() -> None:
    keys = CreatedKeys(InMemoryStore(), FakeClock())
    await keys.poll()
    (old, old_key), (new, new_key) = await keys.create("research"), await keys.create("research")
    assert match(keys, old_key) == old
    assert match(keys, new_key) == new
    await keys.revoke(old.id)
    assert match(keys, old_key) is None
    assert match(keys, new_key) == new


async def test_records_are_only_read_when_another_process_changed_them() -> None:
    store, clock = CountingStore(), FakeClock()
    keys = CreatedKeys(store, clock)
    await keys.poll()
    store.scans = 0
    for _ in range(50):
        clock.advance(1.0)
        await keys.poll()
    assert store.scans == 0
    clock.advance(10.0)
    await keys.poll()
    # The records, and the limits that were changed.
    assert store.scans == 2


async def test_a_change_without_a_new_version_is_read_within_a_minute() -> None:
    """The process that revoked the key ended before it wrote the version."""
    store, clock = InMemoryStore(), FakeClock()
    keys = CreatedKeys(store, clock)
    await keys.poll()
    record, key = await keys.create("research")
    await keys.poll()
    await store.delete([Key(RECORDS, record.id)])
    clock.advance(61.0)
    await keys.poll()
    assert match(keys, key) is None


async def test_while_the_store_away_known_keys_are_valid_for_an_hour() -> None:
    store, clock = CountingStore(), FakeClock()
    keys = CreatedKeys(store, clock)
    await keys.poll()
    record, key = await keys.create("research")
    store.away = True
    clock.advance(GRACE_SECONDS)
    await keys.poll()
    assert match(keys, key) == record
    clock.advance(1.0)
    with pytest.raises(KeysUnavailable):
        match(keys, key)
    store.away = False
    await keys.poll()
    assert match(keys, key) == record


async def test_where_the_keys_were_never_read_nobody_is_told_that_a_key_is_wrong() -> None:
    store, clock = CountingStore(), FakeClock()
    _, key = await CreatedKeys(store, clock).create("research")
    store.away = True
    keys = CreatedKeys(store, clock)
    await keys.poll()
    with pytest.raises(KeysUnavailable) as caught:
        match(keys, key)
    assert caught.value.status == 503
    assert match(keys, "sk-anything-else") is None


async def test_a_revocation_during_a_read_is_not_undone_by_it() -> None:
    class SlowStore(InMemoryStore):
        """A store in which a key is revoked while the records are read."""

        keys: CreatedKeys | None = None

        async def scan(
            self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
        ) -> list[tuple[str, bytes]]:
            page = await super().scan(collection, prefix=prefix, after=after, limit=limit)
            if self.keys is not None:
                keys, self.keys = self.keys, None
                await keys.revoke(page[0][0])
            return page

    store, clock = SlowStore(), FakeClock()
    keys = CreatedKeys(store, clock)
    await keys.poll()
    _, key = await keys.create("research")
    store.keys = keys
    await keys.poll()
    assert match(keys, key) is None
    await keys.poll()
    assert match(keys, key) is None


async def test_an_unreadable_record_hides_no_other_key() -> None:
    store, clock = InMemoryStore(), FakeClock()
    keys = CreatedKeys(store, clock)
    record, key = await keys.create("research")
    await store.put(Key(RECORDS, "000000000000"), b'{"id": 5')
    await store.put(VERSION, b"new")
    await keys.poll()
    assert match(keys, key) == record


@pytest.mark.parametrize("tenant", ["", "a b", "a/b", "x" * 129, "ключ", "a\n", "*"])
async def test_a_tenant_has_a_plain_name(tenant: str) -> None:
    with pytest.raises(BadRequest, match="letters"):
        await CreatedKeys(InMemoryStore(), FakeClock()).create(tenant)


@pytest.mark.parametrize("key_id", ["", "../" * 9, "research", "0" * 13, "0" * 100_000, "zzzzzzzzzzzz", "\x00"])
async def test_an_impossible_id_is_unknown(key_id: str) -> None:
    keys = CreatedKeys(InMemoryStore(), FakeClock())
    await keys.poll()
    with pytest.raises(NotFound):
        await keys.revoke(key_id)
    assert keys.find(key_id) is None


async def test_changed_limits_reach_other_processes_and_do_not_restore_a_revoked_key(opener: Opener) -> None:
    clock, limits = FakeClock(), KeyLimits(tokens_per_day=1_000)
    one, two = CreatedKeys(opener(), clock), CreatedKeys(opener(), clock)
    for keys in (one, two):
        await keys.poll()
    record, key = await one.create("research", limits)
    await two.poll()
    assert match(two, key) == record
    assert (record.limits, two.has_day_limits) == (limits, True)
    changed = await two.set_limits(record.id, KeyLimits(requests_per_minute=5))
    assert match(two, key) == changed
    await one.poll()
    assert match(one, key) == changed
    assert (changed.limits, one.has_day_limits) == (KeyLimits(requests_per_minute=5), False)
    assert await one.list_records() == [changed]
    await one.revoke(record.id)
    # As by a process that read the record before it was revoked.
    await opener().put(Key(CHANGED_LIMITS, record.id), b"{}")
    clock.advance(61.0)
    for keys in (one, two):
        await keys.poll()
        assert match(keys, key) is None
        assert await keys.list_records() == []
    with pytest.raises(NotFound):
        await two.set_limits(record.id, limits)
