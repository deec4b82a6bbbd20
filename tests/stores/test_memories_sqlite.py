from __future__ import annotations

import asyncio
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing

import pytest

from accordion.model.errors import StoreUnavailable
from accordion.model.memories import Entity, Memory, MemoryChange, MemoryFilter, Relation
from accordion.model.tenant import TenantScope
from accordion.stores.memories import RecordQuery, Snapshot, StoredMemories
from accordion.stores.memories_sqlite import (
    VERSION,
    OpenFiles,
    SqliteMemories,
    SqliteRecords,
    mark_for_rewrite,
    rewrite_file,
)
from accordion.stores.sqlite_file import transact
from tests.memories import OTHER, TENANT, WORK, Embedder, everything, find_candidates, memory, put


@pytest.fixture
async def store(tmp_path):
    made = SqliteMemories(tmp_path / "memories", Embedder(), timeout=20.0)
    yield made
    await made.close()


async def test_reading_makes_no_file(store, tmp_path):
    assert await store.count(TENANT, MemoryFilter()) == 0
    assert await store.erase(TENANT) == 0
    assert not (tmp_path / "memories").exists()


async def test_files_are_their_owners_alone(store, tmp_path):
    await put(store, memory("one"))
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "memories").iterdir()} == {0o600}


async def test_more_tenants_than_files_that_are_kept_open_are_served(store):
    tenants = [TenantScope(str(at), str(at).encode()) for at in range(40)]
    for tenant in tenants:
        await put(store, memory(f"of {tenant.name}"), tenant=tenant)
    for tenant in tenants:
        assert await store.count(tenant, MemoryFilter()) == 1


async def contents(store: SqliteMemories) -> list[str]:
    return sorted(each.content for each in (await store.list_memories(TENANT, MemoryFilter())).memories)


@pytest.mark.parametrize("backed_up", [False, True])
async def test_a_file_that_was_deleted_or_replaced_is_what_is_read_and_written(store, tmp_path, backed_up):
    folder = tmp_path / "memories"
    await put(store, memory("old"))
    [path] = folder.iterdir()
    shutil.copy(path, tmp_path / "backup")
    await put(store, memory("later"))
    assert await contents(store) == ["later", "old"]
    if backed_up:
        (tmp_path / "backup").replace(path)
    else:
        path.unlink()
    kept = ["old"] * backed_up
    assert await contents(store) == kept
    await put(store, memory("new"))
    assert await contents(store) == sorted(["new", *kept])
    again = SqliteMemories(folder, Embedder(), timeout=20.0)
    assert await contents(again) == sorted(["new", *kept])
    await again.close()


async def test_a_folder_that_is_away_is_not_made_anew_and_has_all_when_it_is_back(tmp_path):
    volume, elsewhere = tmp_path / "volume", tmp_path / "elsewhere"
    volume.mkdir()
    store = SqliteMemories(volume / "memories", Embedder(), timeout=20.0)
    await put(store, memory("kept"))
    volume.rename(elsewhere)
    with pytest.raises(StoreUnavailable):
        await contents(store)
    with pytest.raises(StoreUnavailable):
        await put(store, memory("while away"))
    assert not volume.exists()
    elsewhere.rename(volume)
    assert await contents(store) == ["kept"]
    await store.close()


class RecordsWithWriter(SqliteRecords):
    """Records of which another worker writes before each read of changed records of the index."""

    writes: list[tuple[SqliteMemories, Memory]]

    async def read(self, tenant: TenantScope, queries: Sequence[RecordQuery]) -> Snapshot | None:
        if any(kind == "index" and names is not None for kind, names in queries) and self.writes:
            other, change = self.writes.pop()
            await put(other, change, tenant=tenant)
        return await super().read(tenant, queries)


async def test_a_memory_that_is_reworded_while_the_index_is_brought_up_to_date_is_found(store, tmp_path):
    """Its entry goes to another record of the index than those that are being read."""
    many = [memory(f"number{at}") for at in range(30)]
    await put(store, *many)
    records = RecordsWithWriter(tmp_path / "memories", timeout=20.0)
    records.writes = []
    other = StoredMemories(records, Embedder(), timeout=20.0)
    assert await other.count(TENANT, MemoryFilter()) == 30
    await put(store, memory("once", id=many[0].id))
    records.writes = [(store, memory("twice", id=many[1].id))]
    assert [each.memory.content for each in await find_candidates(other, "number1", "twice")] == ["twice"]
    assert records.writes == []
    assert await other.count(TENANT, MemoryFilter()) == 30
    await other.close()


KILLED = """
import asyncio, functools, os, signal, sqlite3, sys
from pathlib import Path
from accordion.model.memories import Entity, MemoryChange as Change, Memory
from accordion.stores.memories_sqlite import SqliteMemories
from tests.memories import Embedder, memory, TENANT

class Dying(sqlite3.Connection):
    puts = 0

    def execute(self, statement, *values):
        done = super().execute(statement, *values)
        self.puts += statement.startswith("INSERT OR REPLACE")
        if self.puts == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

sqlite3.connect = functools.partial(sqlite3.connect, factory=Dying)

async def main():
    store = SqliteMemories(Path(sys.argv[1]), Embedder(), timeout=20.0)
    await store.write(TENANT, Change(put=(memory("kept"),)))
    many = tuple(memory(f"half written {at} " + "x" * 2000) for at in range(200))
    entities = Entity("first", "x"), Entity("last", "x")
    await store.write(TENANT, Change(put=many, markers=(("m", b"1"),), entities=entities))

asyncio.run(main())
"""


async def test_a_process_that_is_killed_in_the_middle_leaves_nothing_half_written(store, tmp_path):
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", KILLED, str(tmp_path / "memories")], check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [each.content for each in (await store.list_memories(TENANT, MemoryFilter())).memories] == ["kept"]
    assert await store.count_entities(TENANT) == 0
    assert await store.get_marker(TENANT, "m") is None
    assert await find_candidates(store, "half") == []
    await put(store, memory("afterwards"))
    assert await store.count(TENANT, MemoryFilter()) == 2


async def test_a_damaged_file_is_told_as_a_store_that_is_away(store, tmp_path):
    await put(store, memory("one"))
    await store.close()
    (path,) = (each for each in (tmp_path / "memories").iterdir() if each.suffix == ".db")
    path.write_bytes(b"not a database" * 1_000)
    broken = SqliteMemories(tmp_path / "memories", Embedder(), timeout=20.0)
    with pytest.raises(StoreUnavailable):
        await broken.count(TENANT, MemoryFilter())
    await broken.close()


async def test_a_memory_of_more_words_than_anybody_says_is_kept(store):
    words = [chr(at) for at in (*range(0x4E00, 0x9FA6), *range(0xAC00, 0xD7A4), *range(0x20000, 0x2A6D6))]
    many = memory(" ".join(words), type="session")
    await put(store, many)
    wanted = MemoryFilter(types=("session",))
    assert [each.memory for each in await find_candidates(store, words[7], wanted=wanted)] == [many]
    await store.write(TENANT, MemoryChange(delete=(many.id,)))
    assert await store.count(TENANT, wanted) == 0


async def test_after_erasing_nothing_stands_in_the_files(store, tmp_path):
    hidden = "zanzibarium"
    one = memory(f"the {hidden}", topics=(hidden,), entities=(hidden,), context=hidden)
    kept = memory("of the other tenant", id="mem-kept")
    await store.write(TENANT, MemoryChange(put=(one,), entities=(Entity(hidden, "x"),), markers=((hidden, b"1"),)))
    await put(store, kept, tenant=OTHER)
    assert hidden.encode() in everything(tmp_path)
    assert await store.erase(TENANT) == 1
    assert hidden.encode() not in everything(tmp_path)
    assert await store.count(TENANT, MemoryFilter()) == 0
    assert await find_candidates(store, hidden, vector=WORK) == []
    assert await store.erase(TENANT) == 0
    assert await store.get(OTHER, [kept.id]) == [kept]
    await put(store, memory("anew"))
    assert await store.count(TENANT, MemoryFilter()) == 1


async def test_when_a_deletion_returns_nothing_of_it_stands_in_the_files(store, tmp_path):
    """Many, so that pages are divided, joined and moved: what stood there before must not stay behind."""
    chance, living, dead = random.Random(5), {}, []
    for step in range(60):
        if living and chance.random() < 0.5:
            gone = chance.sample(sorted(living), min(len(living), chance.choice((1, 1, 5, 30))))
            await store.write(TENANT, MemoryChange(delete=tuple(living.pop(name) for name in gone)))
            dead += gone
        else:
            names = [f"canary{chance.random()}y{step}" for _ in range(chance.choice((1, 3, 40)))]
            times = chance.choice((3, 40, 400))
            made = [memory(f"{name} " * chance.randint(1, times), entities=(name,)) for name in names]
            entities = tuple(Entity(name, "x") for name in names)
            ties = tuple(Relation(name, "b", name, each.id) for name, each in zip(names, made, strict=True))
            await store.write(TENANT, MemoryChange(put=tuple(made), entities=entities, relations=ties))
            living |= {name: each.id for name, each in zip(names, made, strict=True)}
        held = everything(tmp_path)
        assert [name for name in dead if name.encode() in held] == []
    assert dead


async def test_when_a_memory_is_rewritten_nothing_of_the_old_stands_in_the_files(store, tmp_path):
    one = memory("the zanzibarium")
    await put(store, one, *(memory(f"another {at}") for at in range(50)))
    await put(store, memory("something else", id=one.id))
    assert b"zanzibar" not in everything(tmp_path)


def test_what_another_process_took_out_while_a_file_was_made_tidy_is_not_forgotten(tmp_path):
    with closing(OpenFiles(1.0)) as mine, closing(OpenFiles(1.0)) as theirs:
        one, other = (each.file(tmp_path / "one.db", create=True) for each in (mine, theirs))
        late = ["BEGIN IMMEDIATE", "PRAGMA user_version ="]

        def traced(statement):
            if statement.startswith(tuple(late)):
                late.clear()
                transact(other, lambda: mark_for_rewrite(other))

        transact(one, lambda: mark_for_rewrite(one))
        one.set_trace_callback(traced)
        rewrite_file(one)
        one.set_trace_callback(None)
        assert not late
        assert one.execute("PRAGMA user_version").fetchone() > (VERSION,)
        rewrite_file(other)
        assert one.execute("PRAGMA user_version").fetchone() == (VERSION,)


CUT_SHORT = """
import asyncio, os, signal, sys
from pathlib import Path
from accordion.model.memories import MemoryChange as Change
from accordion.stores import memories_sqlite
from accordion.stores.memories_sqlite import SqliteMemories
from tests.memories import Embedder, memory, TENANT

memories_sqlite.rewrite_file = lambda connection: os.kill(os.getpid(), signal.SIGKILL)

async def main():
    store = SqliteMemories(Path(sys.argv[1]), Embedder(), timeout=20.0)
    await store.write(TENANT, Change(put=(memory("kept"), memory("gone", id="mem-gone"))))
    await store.write(TENANT, Change(delete=("mem-gone",)))

asyncio.run(main())
"""


async def test_opening_the_file_completes_a_deletion_that_was_killed(store, tmp_path):
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", CUT_SHORT, str(tmp_path / "memories")], check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (path,) = (tmp_path / "memories").glob("*.db")
    # What SQLite leaves behind cannot be had at will: here it is put there.
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("INSERT INTO marker (name, value) VALUES ('zanzibarium', x'00')")
        connection.commit()
        connection.execute("DELETE FROM marker")
        connection.commit()
    assert b"zanzibarium" in everything(tmp_path)
    assert [each.content for each in (await store.list_memories(TENANT, MemoryFilter())).memories] == ["kept"]
    assert b"zanzibarium" not in everything(tmp_path)
