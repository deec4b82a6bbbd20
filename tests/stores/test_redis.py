import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import from_url
from redis.asyncio.cluster import RedisCluster

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores.guarded import GuardedStore
from accordion.stores.redis import RedisStore, index_key, lock_key, log_key, value_key
from tests.proxy_process import held_port
from tests.valkey import (  # noqa: F401
    Valkey,
    ValkeyCluster,
    running_cluster,
    running_valkey,
    valkey_cluster,
    valkey_server,
)

SOON = 0.3
"""A time-out that a test waits for."""


@pytest.fixture
async def store(valkey_server: Valkey) -> AsyncIterator[RedisStore]:  # noqa: F811
    valkey_server.command("FLUSHALL")
    opened = RedisStore(valkey_server.url, timeout=20.0)
    yield opened
    await opened.close()


def number(reply: bytes) -> int:
    assert reply.startswith(b":")
    return int(reply[1:])


async def test_an_index_entry_is_sent_before_its_content(store: RedisStore, valkey_server: Valkey):  # noqa: F811
    listed, row, logged = Put(Key("held/t", "e"), b"1"), Put(Key("", "row/1"), b"2"), Append(Key("", "log"), b"3")
    await store.write([listed, row, logged])  # the scripts are known from now on
    async with from_url(valkey_server.url) as client, client.monitor() as watched:
        await store.write([row, logged, listed])
        names: list[str] = []
        while "SET" not in names:
            seen = await watched.next_command()
            if seen["client_type"] != "lua":
                names.append(seen["command"].split()[0])
    assert names == ["EVALSHA", "EVALSHA", "SET"]


# -- away and back ---------------------------------------------------------------------------------------------------


async def test_a_killed_server_raises_store_unavailable_and_is_used_again_when_back(tmp_path: Path):
    with running_valkey(tmp_path) as server:
        store = RedisStore(server.url, timeout=SOON)
        await asyncio.gather(*(store.put(Key("c", f"{n}"), b"1") for n in range(20)))
        server.kill()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.get(Key("c", "1"))
        assert not store.is_available
        server.start()
        # Also the scripts are gone from the server now.
        await store.put(Key("c", "n"), b"2")
        assert await store.scan("c") == [("n", b"2")]
        assert store.is_available
        await store.close()


async def test_a_frozen_server_raises_store_unavailable_and_is_used_again_when_it_thaws(tmp_path: Path):
    with running_valkey(tmp_path) as server:
        store = RedisStore(server.url, timeout=SOON)
        await store.put(Key("c", "n"), b"1")
        server.freeze()
        for call in (store.ping(), store.get(Key("c", "n")), store.write([Append(Key("", "log"), b"1")])):
            with pytest.raises(StoreUnavailable):
                await call
        server.thaw()
        assert await RedisStore(server.url, timeout=20.0).get(Key("c", "n")) == b"1"
        assert await store.get(Key("c", "n")) == b"1"
        await store.close()


async def test_a_read_of_a_frozen_server_times_out_even_with_many_in_flight(tmp_path: Path):
    with running_valkey(tmp_path) as server:
        inner = RedisStore(server.url, timeout=60.0)
        store = GuardedStore(inner, timeout=SOON, write_timeout=60.0, monotonic=monotonic)
        for _ in range(4):
            await asyncio.gather(*(inner.get(Key("c", f"{n}")) for n in range(10)))
            server.freeze()
            try:
                async with asyncio.timeout(30.0):
                    reads = (store.get_many([Key("c", f"{n}")]) for n in range(100))
                    answers = await asyncio.gather(*reads, return_exceptions=True)
            finally:
                server.thaw()
            assert {type(answer) for answer in answers} == {StoreUnavailable}
            while not store.is_available:
                with suppress(StoreUnavailable):
                    await store.ping()
                await asyncio.sleep(0.05)
        await store.close()


async def test_a_guarded_store_asks_a_killed_server_once_and_goes_on_when_it_is_back(tmp_path: Path):
    time, changes = 0.0, []
    with running_valkey(tmp_path) as server:
        inner = RedisStore(server.url, timeout=SOON)
        store = GuardedStore(inner, timeout=SOON, write_timeout=SOON, monotonic=lambda: time, on_change=changes.append)
        await store.put(Key("c", "n"), b"1")
        server.kill()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.get(Key("c", "n"))
        server.start()
        with pytest.raises(StoreUnavailable):
            await store.get(Key("c", "n"))
        time += 1.0
        assert await store.get(Key("c", "n")) is None
        assert changes == [False, True]
        await store.close()


async def test_a_server_that_lets_nobody_run_scripts_stays_away_though_it_can_be_read(tmp_path: Path):
    time, changes = 0.0, []
    with running_valkey(tmp_path) as server:
        assert server.command("ACL", "SETUSER", "me", "on", ">hush", "~*", "+@all", "-@scripting") == b"+OK\r\n"
        inner = RedisStore(f"redis://me:hush@127.0.0.1:{server.port}/0", timeout=20.0)
        store = GuardedStore(inner, timeout=20.0, write_timeout=20.0, monotonic=lambda: time, on_change=changes.append)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.put(Key("c", "n"), b"1")
            time += 1.0
            with pytest.raises(StoreUnavailable):
                await store.get(Key("c", "n"))
            time += 1.0
        assert changes == [False]
        assert server.command("ACL", "SETUSER", "me", "+@scripting") == b"+OK\r\n"
        assert await store.get(Key("c", "n")) is None
        assert changes == [False, True]
        await store.close()


async def test_a_server_that_was_never_there_raises_store_unavailable(tmp_path: Path):
    with running_valkey(tmp_path) as server:
        url = server.url
    store = RedisStore(url, timeout=SOON)
    with pytest.raises(StoreUnavailable):
        await store.ping()
    await store.close()


async def test_records_survive_a_killed_server(tmp_path: Path):
    with running_valkey(tmp_path, appendonly="yes", appendfsync="always") as server:
        store = RedisStore(server.url, timeout=20.0)
        await store.put(Key("c", "n"), b"value")
        await store.append(Key("c", "log"), [b"a", b"b"], keep=0)
        await store.append(Key("c", "log"), [b"c"])
        server.kill()
        await asyncio.sleep(0.05)  # so that the broken connection is seen before it is used
        server.start()
        assert await store.scan("c") == [("n", b"value")]
        assert await store.append(Key("c", "log"), [b"d"], keep=1) == 3
        assert await store.read(Key("c", "log")) == [(3, b"d")]
        await store.close()


async def test_more_calls_than_connections_wait_for_their_turn(store: RedisStore):
    await asyncio.gather(*(store.put(Key("c", f"{n:03}"), b"%d" % n) for n in range(200)))
    assert [value for _, value in await store.scan("c")] == [b"%d" % n for n in range(200)]


async def test_a_cancelled_call_never_leaves_its_answer_to_another(store: RedisStore):
    await store.write([Put(Key("c", f"{n}"), b"%d" % n * 50_000) for n in range(40)])
    for pause in range(6):
        calls = [asyncio.create_task(store.get(Key("c", f"{n}"))) for n in range(40)]
        for _ in range(pause * 3):
            await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert answers[1::2] == [b"%d" % n * 50_000 for n in range(1, 40, 2)]


async def test_scripts_that_the_server_forgot_are_sent_again(store: RedisStore, valkey_server: Valkey):  # noqa: F811
    for round_ in range(3):
        valkey_server.command("SCRIPT", "FLUSH")
        key = Key("c", "n")
        yielding = Put(Key("d", "n"), b"%d" % round_, if_absent=True)
        batch = [Put(key, b"%d" % round_), Put(Key("", "n"), b"x"), yielding, Append(key, b"1"), Append(key, b"2", 9)]
        assert await store.write(batch) == ({yielding.key: b"0"} if round_ else {})
        assert await store.scan("c") == [("n", b"%d" % round_)]
    assert await store.read(key) == [(n, b"12"[n % 2 : n % 2 + 1]) for n in range(6)]


# -- a cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(valkey_cluster: ValkeyCluster) -> ValkeyCluster:  # noqa: F811
    valkey_cluster.command("FLUSHALL")
    valkey_cluster.command("CONFIG", "RESETSTAT")
    return valkey_cluster


def open_cluster(cluster: ValkeyCluster) -> RedisStore:
    return RedisStore(cluster.url.replace("+cluster", ""), timeout=20.0, cluster=True)


async def test_a_cluster_that_cannot_be_reached_is_unavailable():
    with held_port() as port:
        store = RedisStore(f"redis://127.0.0.1:{port}", timeout=20.0, cluster=True)
        with pytest.raises(StoreUnavailable):
            await store.put(Key("", "a"), b"1")
        assert not store.is_available
        await store.close()


async def test_the_first_calls_of_a_client_go_to_the_servers_of_their_keys(cluster: ValkeyCluster):
    store = open_cluster(cluster)
    keys = [Key("", f"{n}") for n in range(40)]
    await asyncio.gather(*(store.put_if_absent(key, b"%d" % n) for n, key in enumerate(keys)))
    assert await store.get_many(keys) == [b"%d" % n for n in range(40)]
    assert all(number(reply) for reply in cluster.command("DBSIZE"))
    assert not any(b"MOVED" in reply for reply in cluster.command("INFO", "errorstats"))
    assert await store.delete(keys) == 40
    assert [number(reply) for reply in cluster.command("DBSIZE")] == [0, 0, 0]
    await store.close()


async def test_a_slot_that_moves_to_another_server_is_followed(cluster: ValkeyCluster):
    keys = [Key("", f"{n}") for n in range(24)]
    stores = [open_cluster(cluster) for _ in range(2)]
    await asyncio.gather(*(store.put(key, b"1") for store in stores for key in keys))
    await stores[0].delete(keys)
    owners = [reply.splitlines()[1].decode() for reply in cluster.command("CLUSTER", "MYID")]
    slots = [RedisCluster.keyslot(RedisCluster("127.0.0.1"), value_key(key)) for key in keys]
    try:
        for slot in slots:
            cluster.command("CLUSTER", "SETSLOT", str(slot), "NODE", owners[2])
        await asyncio.gather(*(stores[0].put_if_absent(key, b"2") for key in keys for _ in range(4)))
        await stores[1].write([Put(key, b"3") for key in keys])
        assert await stores[0].get_many(keys) == [b"3"] * 24
    finally:
        cluster.command("FLUSHALL")
        for slot in slots:
            cluster.command("CLUSTER", "SETSLOT", str(slot), "NODE", owners[slot * 3 // 16_384])
        for store in stores:
            await store.close()


async def test_a_killed_server_of_a_cluster_is_used_again_when_back(tmp_path: Path):
    with running_cluster(tmp_path) as cluster:
        store, keys = open_cluster(cluster), [Key("", f"{n}") for n in range(40)]
        await store.write([Put(key, b"1") for key in keys])
        cluster.masters[1].kill()
        for call in (store.get_many(keys), store.write([Put(key, b"2") for key in keys]), store.delete(keys)):
            with pytest.raises(StoreUnavailable):
                await call
        cluster.masters[1].start()
        async with asyncio.timeout(60.0):
            while await store_takes(store, keys) is False:
                await asyncio.sleep(0.05)
        assert await store.get_many(keys) == [b"3"] * 40
        await store.close()


async def store_takes(store: RedisStore, keys: list[Key]) -> bool:
    try:
        await store.write([Put(key, b"3") for key in keys])
    except StoreUnavailable:
        return False
    return True


# -- keys ------------------------------------------------------------------------------------------------------------


def test_keys_are_called_by_their_collection_and_name():
    assert value_key(Key("sessions/t", "s")) == b"accordion:{sessions/t}:s"
    assert log_key(Key("sessions/t", "s")) == b"accordion:{sessions/t}#log:s"
    assert lock_key(Key("sessions/t", "s")) == b"accordion:{sessions/t}#lock:s"
    assert index_key(Key("sessions/t", "s")) == b"accordion:{sessions/t}#index"
    assert value_key(Key("", "alone")) == b"accordion:{=alone}:"


all_names = st.text(st.sampled_from("a}{:%=#") | st.characters(), max_size=6)
all_keys = st.builds(Key, all_names, all_names)


@given(all_keys, all_keys)
def test_two_keys_never_share_a_place(one: Key, other: Key):
    places = [made(key) for key in {one, other} for made in (value_key, log_key, lock_key)]
    assert len(set(places)) == len(places)
    assert not {index_key(one), index_key(other)} & set(places)


@given(all_keys)
def test_all_that_belongs_to_a_key_lies_in_one_slot(key: Key):
    slot = RedisCluster.keyslot(RedisCluster("127.0.0.1"), value_key(key))
    for made in (log_key, lock_key, index_key):
        assert RedisCluster.keyslot(RedisCluster("127.0.0.1"), made(key)) == slot


# -- the index -------------------------------------------------------------------------------------------------------


async def test_an_index_forgets_expired_names_when_it_is_scanned(store: RedisStore, valkey_server: Valkey):  # noqa: F811
    await store.write([Put(Key("c", f"{n}"), b"", ttl=0.01 if n % 2 else 60.0) for n in range(100)])
    await asyncio.sleep(0.05)
    assert len(await store.scan("c")) == 50
    assert number(valkey_server.command("ZCARD", "accordion:{c}#index")) == 50


async def test_an_index_that_nobody_scans_does_not_grow_for_ever(store: RedisStore, valkey_server: Valkey):  # noqa: F811
    await store.put(Key("c", "ever"), b"")
    for page in range(20):
        await store.write([Put(Key("c", f"{page}.{n}"), b"", ttl=0.001) for n in range(50)])
        await asyncio.sleep(0.005)
    assert number(valkey_server.command("ZCARD", "accordion:{c}#index")) < 500


async def test_an_index_lives_as_long_as_its_longest_living_value(store: RedisStore, valkey_server: Valkey):  # noqa: F811
    def left() -> int:
        return number(valkey_server.command("PTTL", "accordion:{c}#index"))

    await store.put(Key("c", "a"), b"", ttl=60.0)
    assert 0 < left() <= 60_000
    await store.put(Key("c", "b"), b"", ttl=600.0)
    await store.put(Key("c", "c"), b"", ttl=6.0)
    assert 60_000 < left() <= 600_000
    await store.put(Key("c", "d"), b"")
    await store.put(Key("c", "e"), b"", ttl=6.0)
    assert left() == -1


async def test_a_deleted_value_leaves_nothing_behind(store: RedisStore, valkey_server: Valkey):  # noqa: F811
    await store.write([Put(Key("c", "a"), b""), Put(Key("", "a"), b""), Append(Key("c", "a"), b"")])
    async with store.lock(Key("c", "a"), lease=60.0):
        pass
    await store.delete([Key("c", "a"), Key("", "a")])
    assert number(valkey_server.command("DBSIZE")) == 0
