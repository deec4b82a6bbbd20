"""Memories that an earlier version wrote are found, sealed ones too: its files and hashes are in `former_memories/`.

Its tenant had 40 memories in turn of pets and of work, without the fourth, and one of Ann who plays the violin.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from accordion.model.errors import StoreUnavailable
from accordion.model.memories import Entity, MemoryFilter, Relation
from accordion.stores import memories, stems
from accordion.stores.encryption import AesSealer
from accordion.stores.memories_former import file_token
from accordion.stores.memories_redis import RedisMemories
from accordion.stores.memories_sqlite import OpenFiles, SqliteMemories, _read_former
from tests.memories import (
    PET,
    TENANT,
    Embedder,
    connect_redis,
    everything,
    everything_on,
    exported,
    find_candidates,
    memory,
    put,
)
from tests.valkey import Valkey, valkey_server  # noqa: F401

FORMER = Path(__file__).parent / "former_memories"
SEALER, OTHER_SEALER = AesSealer([b"k" * 32]), AesSealer([b"o" * 32])


def restore(server: Valkey, name: str) -> None:
    """Puts the hashes and the sorted set of an earlier version on a server."""
    with connect_redis(server.url) as client:
        for key, value in json.loads((FORMER / f"{name}.json").read_text()).items():
            for field, content in value.get("hash", {}).items():
                client.hset(key, field.encode("latin-1"), base64.b64decode(content))
            for member in value.get("zset", ()):
                client.zadd(key, {member.encode("latin-1"): 0})


class Former:
    """A store of an earlier version, without a key or with one."""

    def __init__(self, kind: str, name: str, folder: Path, server: Valkey) -> None:
        self.is_sealed, self._folder, self._server = name == "sealed", folder, server
        self._is_sqlite = kind == "sqlite"
        self._opened: list[SqliteMemories | RedisMemories] = []
        if self._is_sqlite:
            folder.mkdir()
            shutil.copy(FORMER / f"{name}.sqlite", folder / f"{TENANT.archive_namespace}.db")
        else:
            restore(server, name)

    def open(self, sealer: AesSealer | None = None) -> SqliteMemories | RedisMemories:
        sealer = sealer or (SEALER if self.is_sealed else None)
        if self._is_sqlite:
            self._opened.append(SqliteMemories(self._folder, Embedder(), timeout=20.0, sealer=sealer))
        else:
            self._opened.append(RedisMemories(self._server.url, Embedder(), timeout=20.0, sealer=sealer))
        return self._opened[-1]

    def everything(self) -> bytes:
        return everything(self._folder) if self._is_sqlite else everything_on(self._server.url)

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture(params=["sqlite plain", "sqlite sealed", "valkey plain", "valkey sealed"])
async def former(request, tmp_path, valkey_server):  # noqa: F811
    valkey_server.command("FLUSHALL")
    made = Former(*request.param.split(), tmp_path / "memories", valkey_server)
    yield made
    await made.close()


async def test_all_that_an_earlier_version_wrote_is_found(former):
    store = former.open()
    page = await store.list_memories(TENANT, MemoryFilter())
    assert [each.content.split(":")[0] for each in page.memories] == [
        "Ann plays the violin.",
        *(f"number {at}" for at in range(39, -1, -1) if at != 3),
    ]
    assert [each.memory.id for each in await find_candidates(store, "violins")] == ["mem-ann"]
    pets = await find_candidates(store, vector=PET, wanted=MemoryFilter(topics=("pets",)))
    assert len(pets) == 19
    assert {(round(each.dense, 6), each.tokens) for each in pets} == {(1.0, each.tokens) for each in pets}
    assert all(each.memory.content.startswith(each.tokens.decode()) for each in pets)
    assert await exported(store, Entity) == [Entity("Ann", "person"), Entity("violin", "thing")]
    assert await exported(store, Relation) == [
        Relation("Ann", "violin", "plays", "mem-ann"),
        Relation("violin", "Ann", "belongs"),
    ]
    assert await store.get_marker(TENANT, "done") == b"1"


async def test_two_that_open_it_at_once_find_all_and_a_write_is_not_lost(former):
    stores = [former.open() for _ in range(3)]
    await asyncio.gather(put(stores[0], memory("new one")), *(each.count(TENANT, MemoryFilter()) for each in stores))
    assert [await each.count(TENANT, MemoryFilter()) for each in stores] == [41, 41, 41]
    assert await former.open().count(TENANT, MemoryFilter()) == 41


def test_a_file_is_read_in_one_snapshot_while_an_earlier_version_still_writes(tmp_path):
    path = tmp_path / "tenant.db"
    shutil.copy(FORMER / "plain.sqlite", path)
    files = OpenFiles(1.0)
    file = files.file(path, create=False)
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as earlier:

        def write_meanwhile(statement: str) -> None:
            if "max(row)" in statement:
                with suppress(sqlite3.OperationalError):  # The file is locked.
                    earlier.execute("INSERT INTO memory (id, revision, tokens, value) VALUES ('new', '', '', '')")

        file.set_trace_callback(write_meanwhile)
        former = _read_former(files, path)
        [count] = earlier.execute("SELECT count(*) FROM memory").fetchone()
        assert len(former.memories) == count or former.token != file_token(earlier)
    files.close()


@pytest.mark.parametrize("table", ["memory", "relation"])
def test_the_files_token_changes_if_an_earlier_version_rewrites_its_newest_record(tmp_path, table):
    """It deletes the record and inserts another, which gets the same row."""
    shutil.copy(FORMER / "plain.sqlite", tmp_path / "tenant.db")
    with closing(sqlite3.connect(tmp_path / "tenant.db", isolation_level=None)) as earlier:
        token = file_token(earlier)
        earlier.execute(f"UPDATE {table} SET value = x'00' WHERE row = (SELECT max(row) FROM {table})")
        assert file_token(earlier) != token


async def test_the_stems_of_many_memories_are_counted_in_parts(former, monkeypatch):
    """One call with all of them could take longer than the time-out, and would be begun anew by each later request."""
    sizes: list[int] = []

    def count_stems(connection, texts):
        sizes.append(len(texts))
        return stems.count_stems(connection, texts)

    monkeypatch.setattr(memories, "_PAGE", 16)
    monkeypatch.setattr(memories, "count_stems", count_stems)
    assert await former.open().count(TENANT, MemoryFilter()) == 40
    assert sizes == [16, 16, 8]


async def test_without_its_key_it_is_not_read_but_can_be_erased(former):
    store = former.open(OTHER_SEALER)
    if former.is_sealed:
        with pytest.raises(StoreUnavailable):
            await store.count(TENANT, MemoryFilter())
    assert await store.erase(TENANT) == 40
    assert await store.count(TENANT, MemoryFilter()) == 0
    assert b"ledger" not in former.everything()


async def test_nothing_of_the_earlier_version_stays_and_a_key_seals_what_was_plain(former):
    store = former.open(None if former.is_sealed else SEALER)
    await put(store, memory("something else"))
    held = former.everything()
    assert [word for word in (b"ledger", b"violin", b"mem-ann", b"#memory:") if word in held] == []
    assert await store.count(TENANT, MemoryFilter()) == 41


async def test_an_earlier_version_that_still_writes_loses_nothing(valkey_server):  # noqa: F811
    """While workers are replaced, one of the earlier version finds its keys gone, and writes them anew."""
    valkey_server.command("FLUSHALL")
    restore(valkey_server, "sealed")
    store = RedisMemories(valkey_server.url, Embedder(), timeout=20.0, sealer=SEALER)
    await put(store, memory("by the new one"))
    restore(valkey_server, "plain")
    assert await store.count(TENANT, MemoryFilter()) == 41
    await put(store, memory("later"))
    assert await store.count(TENANT, MemoryFilter()) == 42
    await store.close()
