from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.memories import Change, Entity, Filter
from proxy.storage.memories_sqlite import SqliteMemories
from tests.memories import OTHER, SPACE, WORK, Embedder, everything, found, memory, put


@pytest.fixture
async def store(tmp_path):
    made = SqliteMemories(tmp_path / "memories", Embedder(), timeout=20.0)
    yield made
    await made.close()


async def test_reading_makes_no_file(store, tmp_path):
    assert await store.count(SPACE, Filter()) == 0
    assert await store.erase(SPACE) == 0
    assert not (tmp_path / "memories").exists()


async def test_files_are_their_owners_alone(store, tmp_path):
    await put(store, memory("one"))
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "memories").iterdir()} == {0o600}


async def test_more_tenants_than_files_that_are_kept_open_are_served(store):
    spaces = [str(at).encode() for at in range(40)]
    for space in spaces:
        await put(store, memory(f"of {space}"), space=space)
    for space in spaces:
        assert await store.count(space, Filter()) == 1


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from proxy.core.memories import Change, Entity, Memory
from proxy.storage import memories_rows
from proxy.storage.memories_sqlite import SqliteMemories
from tests.memories import Embedder, memory, SPACE

real = memories_rows._add_entity

def die(connection, entity):
    done = real(connection, entity)
    if entity.name == "last":
        connection.execute("PRAGMA cache_spill = 1")
        os.kill(os.getpid(), signal.SIGKILL)
    return done

memories_rows._add_entity = die

async def main():
    store = SqliteMemories(Path(sys.argv[1]), Embedder(), timeout=20.0)
    await store.write(SPACE, Change(put=(memory("kept"),)))
    many = tuple(memory(f"half written {at} " + "x" * 2000) for at in range(200))
    entities = Entity("first", "x"), Entity("last", "x")
    await store.write(SPACE, Change(put=many, markers=(("m", b"1"),), entities=entities))

asyncio.run(main())
"""


async def test_a_process_that_is_killed_in_the_middle_leaves_nothing_half_written(store, tmp_path):
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", KILLED, str(tmp_path / "memories")], check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [each.content for each in await store.listed(SPACE, Filter())] == ["kept"]
    assert await store.entities(SPACE) == []
    assert await store.marker(SPACE, "m") is None
    assert await found(store, "half") == []
    await put(store, memory("afterwards"))
    assert await store.count(SPACE, Filter()) == 2


async def test_a_damaged_file_is_told_as_a_store_that_is_away(store, tmp_path):
    await put(store, memory("one"))
    await store.close()
    (path,) = (each for each in (tmp_path / "memories").iterdir() if each.suffix == ".db")
    path.write_bytes(b"not a database" * 1_000)
    broken = SqliteMemories(tmp_path / "memories", Embedder(), timeout=20.0)
    with pytest.raises(StoreUnavailable):
        await broken.count(SPACE, Filter())
    await broken.close()


async def test_after_erasing_nothing_stands_in_the_files(store, tmp_path):
    hidden = "zanzibarium"
    one = memory(f"the {hidden}", topics=(hidden,), entities=(hidden,), context=hidden)
    kept = memory("of the other tenant", id="mem-kept")
    await store.write(SPACE, Change(put=(one,), entities=(Entity(hidden, "x"),), markers=((hidden, b"1"),)))
    await put(store, kept, space=OTHER)
    assert hidden.encode() in everything(tmp_path)
    assert await store.erase(SPACE) == 1
    assert hidden.encode() not in everything(tmp_path)
    assert await store.count(SPACE, Filter()) == 0
    assert await found(store, hidden, vector=WORK) == []
    assert await store.erase(SPACE) == 0
    assert await store.get(OTHER, [kept.id]) == [kept]
    await put(store, memory("anew"))
    assert await store.count(SPACE, Filter()) == 1


async def test_soon_after_a_memory_is_deleted_no_word_of_it_stands_in_the_files(store, tmp_path):
    one, two = memory("the zanzibarium", entities=("zanzibarium",)), memory("another")
    await put(store, one, two)
    await store.write(SPACE, Change(delete=(one.id,)))
    await store.close()
    assert b"zanzibarium" not in everything(tmp_path)


async def test_soon_after_a_memory_is_rewritten_no_word_of_the_old_stands_in_the_files(store, tmp_path):
    one = memory("the zanzibarium")
    await put(store, one, *(memory(f"another {at}") for at in range(50)))
    await put(store, memory("something else", id=one.id))
    await store.close()
    assert b"zanzibar" not in everything(tmp_path)
