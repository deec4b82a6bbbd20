from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.memories import Change, Conflict, Embedded, Entity, Filter, Memory, Relation
from proxy.memory.entries import finished, parsed
from proxy.storage.memories_sqlite import SqliteMemories

SPACE, OTHER = b"tenant", b"other"
PET, WORK = b"test\x64\x00", b"test\x00\x64"
ALL = Filter()


class Embedder:
    """Two dimensions: pets, and everything else."""

    async def embed(self, texts):
        return [Embedded(PET if "pet" in text else WORK, text.encode()[:8]) for text, _ in texts]

    async def query(self, text):
        return PET if "pet" in text else WORK

    async def relevance(self, query, candidates):
        return [0.0] * len(candidates)


@pytest.fixture
async def store(tmp_path):
    made = SqliteMemories(tmp_path / "memories", Embedder(), timeout=20.0)
    yield made
    await made.close()


def memory(content: str, **fields) -> Memory:
    return finished(Memory(**{"id": "", "type": "fact", "content": content, **fields}), now=1.0)


async def put(store: SqliteMemories, *memories: Memory, space: bytes = SPACE) -> None:
    await store.write(space, Change(put=memories))


async def found(store: SqliteMemories, *words: str, wanted: Filter = ALL, vector: bytes = b"", space=SPACE):
    return await store.candidates(space, words, vector, wanted, pool=64)


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


# -- writing and reading ---------------------------------------------------------------------------------------------


async def test_what_was_written_is_read_back_in_the_order_asked(store):
    one, two = memory("one", topics=("a",), sources=(("mem-x", "r"),)), memory("two")
    await put(store, one, two)
    assert await store.get(SPACE, [two.id, "mem-none", one.id, two.id]) == [two, None, one, two]


async def test_it_is_there_for_another_process_and_after_a_restart(store, tmp_path):
    one = memory("one")
    await put(store, one)
    again = SqliteMemories(tmp_path / "memories", Embedder(), timeout=20.0)
    assert await again.get(SPACE, [one.id]) == [one]
    await again.close()


async def test_a_tenant_finds_nothing_of_another(store):
    one = memory("the secret word", topics=("a",), entities=("Ann",))
    await store.write(SPACE, Change(put=(one,), entities=(Entity("Ann", "person"),), markers=(("m", b"1"),)))
    assert await store.get(OTHER, [one.id]) == [None]
    assert await found(store, "secret", vector=WORK, space=OTHER) == []
    assert await store.listed(OTHER, Filter()) == []
    assert await store.entities(OTHER) == []
    assert await store.marker(OTHER, "m") is None


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


# -- changes ---------------------------------------------------------------------------------------------------------


async def test_a_memory_that_is_written_again_takes_the_place_of_the_old(store):
    old = memory("the old words", topics=("before",))
    new = memory("the new text", id=old.id, topics=("after",))
    await put(store, old)
    await put(store, new)
    assert await store.count(SPACE, Filter()) == 1
    assert await found(store, "words") == []
    assert [each.memory for each in await found(store, "text")] == [new]
    assert await store.listed(SPACE, Filter(topics=("before",))) == []


async def test_a_change_that_conflicts_writes_nothing(store):
    one, two = memory("one"), memory("two")
    await put(store, one)
    await store.write(SPACE, Change(markers=(("done", b"1"),)))
    for change in (
        Change(put=(two,), delete=(one.id,), require=((one.id, "older"),)),
        Change(put=(two,), delete=(one.id,), require=((one.id, ""),)),
        Change(put=(two,), delete=(one.id,), require=((two.id, "r"),)),
        Change(put=(two,), delete=(one.id,), markers=(("new", b"1"), ("done", b"2"))),
    ):
        with pytest.raises(Conflict):
            await store.write(SPACE, change)
    assert await store.get(SPACE, [one.id, two.id]) == [one, None]
    assert await store.marker(SPACE, "done") == b"1"
    assert await store.marker(SPACE, "new") is None


async def test_a_change_whose_requirements_hold_is_written(store):
    one, two = memory("one"), memory("two")
    await put(store, one)
    await store.write(SPACE, Change(put=(two,), delete=(one.id,), require=((one.id, one.revision), (two.id, ""))))
    assert await store.get(SPACE, [one.id, two.id]) == [None, two]


async def test_of_two_that_write_at_once_one_wins(store, tmp_path):
    other = SqliteMemories(tmp_path / "memories", Embedder(), timeout=20.0)
    changes = [Change(put=(memory(f"by {at}"),), markers=(("once", b"%d" % at),)) for at in range(8)]
    done = await asyncio.gather(
        *((store, other)[at % 2].write(SPACE, change) for at, change in enumerate(changes)), return_exceptions=True
    )
    await other.close()
    winners = [at for at, each in enumerate(done) if not isinstance(each, Conflict)]
    assert len(winners) == 1
    assert await store.marker(SPACE, "once") == b"%d" % winners[0]
    assert [each.content for each in await store.listed(SPACE, Filter())] == [f"by {winners[0]}"]


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from proxy.core.memories import Change, Entity, Memory
from proxy.storage import memories_rows
from proxy.storage.memories_sqlite import SqliteMemories
from tests.storage.test_memories_sqlite import Embedder, memory, SPACE

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


# -- finding ---------------------------------------------------------------------------------------------------------


async def test_words_are_compared_by_stem_and_any_is_enough(store):
    await put(store, memory("She was running home."), memory("Nobody walks."))
    assert [each.memory.content for each in await found(store, "runs", "violin")] == ["She was running home."]


async def test_what_was_said_before_and_the_author_are_searched_but_the_text_counts_most(store):
    await put(
        store,
        memory("Every day, and in the evening.", context="Do you play the violin?"),
        memory("I play the violin, and in the evening."),
        memory("Neither of it, only in the evening.", author="Violin"),
    )
    contents = [each.memory.content for each in await found(store, "violin")]
    assert contents[0] == "I play the violin, and in the evening."
    assert len(contents) == 3


async def test_words_are_weighed_by_this_tenants_memories_alone(store):
    await put(store, *(memory(f"common {at}") for at in range(20)), memory("rare"), memory("nothing"))
    alone = [each.lexical for each in await found(store, "rare", "common")]
    await put(store, *(memory(f"rare {at}") for at in range(500)), space=OTHER)
    assert [each.lexical for each in await found(store, "rare", "common")] == alone
    assert alone[0] > 2 * alone[1]


@pytest.mark.parametrize("word", ['"', "a OR b", "NEAR", "col:x", "*", "x'y", "('"])
async def test_no_word_is_taken_as_an_operator(store, word):
    await put(store, memory("something"))
    assert await found(store, word) == []


async def test_vectors_find_what_shares_no_word_and_both_ranks_are_told(store):
    pet, work = memory("a pet of hers"), memory("her work")
    await put(store, pet, work)
    (first,) = await found(store, vector=PET)
    assert (first.memory, first.lexical_rank, first.dense_rank) == (pet, -1, 0)
    assert first.dense == pytest.approx(1.0)
    assert first.tokens == b"a pet of"
    both = await found(store, "work", vector=PET)
    assert {(each.memory.id, each.lexical_rank, each.dense_rank) for each in both} == {
        (pet.id, -1, 0),
        (work.id, 0, -1),
    }


async def test_vectors_of_another_embedder_are_not_compared(store):
    await put(store, memory("a pet"))
    assert await found(store, vector=b"else" + PET[4:]) == []
    assert await found(store, vector=PET + b"\x00") == []


async def test_at_most_a_pool_is_given(store):
    await put(store, *(memory(f"pet {at}") for at in range(30)))
    assert len(await store.candidates(SPACE, ("pet",), PET, Filter(), pool=10)) == 10


FILTERS = [
    (Filter(), {"fact", "choice", "summary"}),
    (Filter(types=("decision",)), {"choice"}),
    (Filter(types=("summary_archived", "session")), {"old", "session"}),
    (Filter(topics=("AUTH",)), {"fact", "choice"}),
    (Filter(topics=("auth", "billing")), {"fact", "choice", "summary"}),
    (Filter(tags=("x", "Y")), {"choice"}),
    (Filter(project="p"), {"choice"}),
    (Filter(project=""), {"fact", "summary"}),
    (Filter(since=2.0), {"choice", "summary"}),
    (Filter(since=2.0, until=2.0), {"choice"}),
    (Filter(conversation="talk"), {"fact"}),
]


@pytest.mark.parametrize(("wanted", "names"), FILTERS)
async def test_a_filter_holds_for_lists_counts_words_and_vectors(store, wanted, names):
    await put(
        store,
        memory("fact word", topics=("auth",), created=1.0, conversation="talk", first=0, last=0),
        memory("choice word", type="decision", macro_topics=("Auth",), tags=("x", "y"), project="p", created=2.0),
        memory("summary word", type="summary", topics=("billing",), tags=("x",), created=3.0),
        memory("old word", type="summary_archived", created=4.0),
        memory("session word", type="session", created=5.0),
    )
    assert {each.content.split()[0] for each in await store.listed(SPACE, wanted)} == names
    assert await store.count(SPACE, wanted) == len(names)
    assert {each.memory.content.split()[0] for each in await found(store, "word", wanted=wanted)} == names
    assert {each.memory.content.split()[0] for each in await found(store, wanted=wanted, vector=WORK)} == names


async def test_lists_are_newest_first_page_by_page(store):
    await put(store, *(memory(f"{at}", created=float(at // 2)) for at in range(9)))
    seen, after = [], ""
    while page := await store.listed(SPACE, Filter(), after=after, limit=4):
        seen += [each.content for each in page]
        after = page[-1].id
    assert seen == [str(at) for at in reversed(range(9))]


# -- entities and relations ------------------------------------------------------------------------------------------


async def test_an_entity_is_new_once(store):
    first = await store.write(SPACE, Change(entities=(Entity("Ann", "person"), Entity("ANN", "person"))))
    second = await store.write(SPACE, Change(entities=(Entity("ann", "person"), Entity("Ann", "project"))))
    assert first == (Entity("Ann", "person"),)
    assert second == (Entity("Ann", "project"),)
    assert len(await store.entities(SPACE)) == 2


async def test_relations_are_found_by_either_end_and_kept_once(store):
    knows, owns = Relation("Ann", "Bob", "knows", "mem-1"), Relation("Bob", "Dog", "owns", "mem-1")
    for _ in range(2):
        await store.write(SPACE, Change(relations=(knows, owns)))
    assert await store.relations(SPACE) == [knows, owns]
    assert await store.relations(SPACE, "bob") == [knows, owns]
    assert await store.relations(SPACE, "dog") == [owns]
    assert await store.relations(SPACE, limit=1) == [knows]


async def test_with_a_memory_go_its_relations_and_the_entities_that_nothing_else_speaks_of(store):
    one, two = memory("one", entities=("Ann", "Bob")), memory("two", entities=("bob",))
    await store.write(
        SPACE,
        Change(
            put=(one, two),
            entities=(Entity("Ann", "person"), Entity("Bob", "person")),
            relations=(Relation("Ann", "Bob", "knows", one.id), Relation("Bob", "Bob", "is", two.id)),
        ),
    )
    await store.write(SPACE, Change(delete=(one.id, "mem-none")))
    assert await store.entities(SPACE) == [Entity("Bob", "person")]
    assert await store.relations(SPACE) == [Relation("Bob", "Bob", "is", two.id)]


# -- export and erasing ----------------------------------------------------------------------------------------------


async def test_an_export_has_all_of_a_tenant_each_line_complete(store):
    memories = [memory(f"content {at}\nwith lines") for at in range(3)] + [memory("old", type="summary_archived")]
    entity, relation = Entity("Ann", "person"), Relation("Ann", "Bob", "knows")
    await store.write(
        SPACE, Change(put=tuple(memories), entities=(entity,), relations=(relation,), markers=(("done", b"\x00"),))
    )
    lines = [line async for line in store.export(SPACE)]
    assert all(b"\n" not in line and json.loads(line) for line in lines)
    read = [parsed(line) for line in lines]
    assert len(read) == 7
    assert all(each in read for each in (*memories, entity, relation, ("done", b"\x00")))
    assert [line async for line in store.export(OTHER)] == []


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
