"""Remembering one thing: the same words are one memory, and a new wording is not lost to the old one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from accordion.features.memory.entries import ConcurrentWrite
from accordion.features.memory.memories import Memory, MemoryType
from accordion.features.memory.store.memory_writer import MemoryWriter
from accordion.model.errors import BadRequest, NotFound
from accordion.model.tenant import TenantScope
from tests.archive.archive_setup import OTHER, TENANT
from tests.fakes import FakeClock
from tests.features.memory.fake_memories import FakeMemories

GREEN, RED = "The gate is green.", "The gate is red."


class AddSetup:
    def __init__(self) -> None:
        self.memories, self.clock = FakeMemories(), FakeClock(1_000.0)
        self.adding = MemoryWriter(self.memories, self.clock)

    async def add(self, content: str, tenant: TenantScope = TENANT, **more: Any) -> tuple[Memory, bool]:
        self.clock.advance(1.0)
        return await self.adding.add(tenant, Memory(**{"id": "", "type": "fact", "content": content, **more}))

    async def reword(self, name: str, content: str, kind: MemoryType | None = None, **more: Any) -> Memory:
        self.clock.advance(1.0)
        memory = Memory(**{"id": "", "type": "fact", "content": content, **more})
        return await self.adding.reword(TENANT, name, memory, kind)

    def stored(self) -> list[Memory]:
        return list(self.memories.of(TENANT).memories.values())


async def test_the_same_words_twice_are_one_memory_about_all_that_both_name():
    setup = AddSetup()
    first, new = await setup.add(GREEN, topics=("Gate",), tags=("a",), entities=("B7",))
    assert new
    again, new = await setup.add(f" {GREEN} ", topics=("colour", "gate"), macro_topics=("harbour",), tags=("b",))
    assert (again.id, new) == (first.id, False)
    (kept,) = setup.stored()
    assert (kept.topics, kept.macro_topics) == (("gate", "colour"), ("harbour",))
    assert (kept.tags, kept.entities) == (("a", "b"), ("B7",))
    assert kept.created == first.created < kept.updated


async def test_a_memory_that_is_fully_known_is_not_written_again():
    setup = AddSetup()
    await setup.add(GREEN, topics=("gate",))
    before = setup.memories.writes
    assert (await setup.add(GREEN, topics=("GATE",)))[1] is False
    assert setup.memories.writes == before


@pytest.mark.parametrize("other", [{"type": "decision"}, {"project": "barn"}, {"author": "anna"}])
async def test_another_kind_project_or_author_makes_it_another_memory(other: dict[str, str]):
    setup = AddSetup()
    await setup.add(GREEN)
    assert (await setup.add(GREEN, **other))[1] is True
    assert (await setup.add(GREEN, OTHER))[1] is True
    assert len(setup.stored()) == 2


async def test_adding_the_old_text_does_not_undo_a_rewording():
    setup = AddSetup()
    first, _ = await setup.add(GREEN)
    await setup.reword(first.id, RED)
    second, new = await setup.add(GREEN)
    assert new
    assert {memory.id: memory.content for memory in setup.stored()} == {first.id: RED, second.id: GREEN}
    assert await setup.add(GREEN) == (second, False)


async def test_a_new_wording_keeps_what_is_not_said_anew():
    setup = AddSetup()
    place = {"conversation": "s-1", "first": 1, "last": 2}
    first, _ = await setup.add(GREEN, type="decision", topics=("gate",), tags=("a",), **place)
    made = await setup.reword(first.id, f"{RED} ", topics=("Paint",))
    assert (made.id, made.type, made.content, made.created) == (first.id, "decision", RED, first.created)
    assert (made.topics, made.tags, made.conversation) == (("paint",), ("a",), "s-1")
    assert made.revision != first.revision
    assert setup.stored() == [made]
    assert (await setup.reword(first.id, GREEN, kind="question")).type == "question"


async def test_what_is_not_there_or_no_single_memory_is_not_worded_anew():
    setup = AddSetup()
    with pytest.raises(NotFound, match="memory_search finds the ids"):
        await setup.reword("mem-none", RED)
    setup.memories.of(TENANT).memories["mem-s"] = Memory("mem-s", "summary", GREEN)
    with pytest.raises(BadRequest, match="memory_consolidate"):
        await setup.reword("mem-s", RED)
    assert [memory.content for memory in setup.stored()] == [GREEN]


async def test_concurrent_additions_and_rewordings_are_not_lost_silently():
    setup = AddSetup()
    made = await asyncio.gather(*(setup.add(GREEN, topics=(f"t{at}",)) for at in range(4)), return_exceptions=True)
    won = [each[0].topics[0] for each in made if not isinstance(each, BaseException)]
    assert all(isinstance(each, ConcurrentWrite) for each in made if isinstance(each, BaseException))
    (kept,) = setup.stored()
    assert won
    assert set(won) <= set(kept.topics)


async def test_concurrent_writers_of_topics_lose_none_without_an_error():
    """The text stays, and with it the revision."""
    setup = AddSetup()
    first, _ = await setup.add(GREEN, topics=("gate",))
    made = await asyncio.gather(
        *(setup.add(GREEN, topics=(f"t{at}",)) for at in range(3)),
        setup.reword(first.id, GREEN, topics=("paint",)),
        return_exceptions=True,
    )
    won = [each for each in made if not isinstance(each, BaseException)]
    assert len(won) == 1
    assert all(isinstance(each, ConcurrentWrite) for each in made if isinstance(each, BaseException))
    assert setup.stored() == [won[0][0] if isinstance(won[0], tuple) else won[0]]
