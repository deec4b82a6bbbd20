"""`core_memory`: saving, getting back, listing and searching session memories."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from accordion.archive.transcript_log import Transcript
from accordion.features.memory.conversation.message_ranges import RecordedConversations, RecordedTranscripts
from accordion.features.memory.memories import Embedding, Memory, MemoryFilter, MemoryStore, SearchCandidate
from accordion.features.memory.search.memory_search import MemorySearch
from accordion.features.memory.session.session_memory import SaveOptions, SessionMemories, render_box
from accordion.features.memory.session.session_text import (
    PLAN,
    TITLES,
    extract_plan,
    find_latest_plan,
    parse_sections,
    render_sections,
)
from accordion.features.memory.store.stored_memories import StoredMemories
from accordion.model.errors import BadRequest, NotFound, StoreUnavailable
from accordion.model.tenant import TenantScope
from accordion.protocols.registry import PROTOCOLS
from accordion.stores.sqlite import SqliteStore
from tests.archive.archive_setup import OTHER, TENANT, ArchiveSetup
from tests.fakes import FakeClock, FakeTasks
from tests.features.memory.agent_conversations import conversation_of_calls
from tests.features.memory.fake_memories import FakeMemories

AT = 1_767_261_910.0
FIRST = "CMEM-20260101-100510"
TEXT = render_sections({"Objective": "Mend gate B7.", "Notes": "- It rusts."})
STEPS = "TodoWrite", {"todos": [{"content": "Open it", "status": "in_progress"}]}, "ok"


class SearchableMemories(FakeMemories):
    """Memories of which tags are looked at, and words."""

    def _matching(self, tenant: TenantScope, wanted: MemoryFilter) -> list[Memory]:
        return [each for each in super()._matching(tenant, wanted) if set(wanted.tags) <= set(each.tags)]

    async def find_candidates(
        self, tenant: TenantScope, words: Sequence[str], vector: bytes, wanted: MemoryFilter, *, pool: int
    ) -> list[SearchCandidate]:
        found = [each for each in self._matching(tenant, wanted) if any(word in each.content.lower() for word in words)]
        return [SearchCandidate(each) for each in found[:pool]]


class NoVectors:
    """An embedder that has nothing to say."""

    least_relevance = 0.0

    async def embed(self, texts: Sequence[tuple[str, str]]) -> list[Embedding]:
        return [Embedding() for _ in texts]

    async def embed_query(self, text: str) -> bytes:
        return b""

    async def score_relevance(self, query: str, candidates: Sequence[SearchCandidate]) -> list[float]:
        return [0.0 for _ in candidates]


class SessionSetup:
    """Everything around `core_memory`, with one recorded conversation `s-1`."""

    def __init__(self) -> None:
        self.archive, self.memories, self.clock = ArchiveSetup(), SearchableMemories(), FakeClock(AT)
        self.core = self.core_of(self.memories)

    def core_of(self, memories: MemoryStore, recordings: RecordedTranscripts | None = None) -> SessionMemories:
        search = MemorySearch(memories, NoVectors())
        recordings = recordings or self.archive.transcripts
        return SessionMemories(
            memories, RecordedConversations(recordings, PROTOCOLS, FakeTasks()), search, FakeTasks(), self.clock
        )

    async def record(self, session: str = "s-1", tenant: TenantScope = TENANT) -> None:
        await self.archive.say(
            session,
            replace(conversation_of_calls(STEPS, said="Mend gate B7 of the house."), chain=(b"c",)),
            tenant=tenant,
        )

    def stored_memories(self) -> list[Memory]:
        return list(self.memories.of(TENANT).memories.values())


@pytest.fixture
def setup() -> SessionSetup:
    return SessionSetup()


# -- import ---------------------------------------------------------------------------


async def test_an_import_answers_as_documented(setup: SessionSetup) -> None:
    answered = await setup.core.import_session(TENANT, text=TEXT)
    assert msgspec.to_builtins(answered) == {
        "operation": "import", "id": FIRST, "message": f"Created memory: {FIRST}"
    }  # fmt: skip


async def test_a_recorded_conversation_is_saved_with_its_fourteen_sections_and_its_plan(setup: SessionSetup) -> None:
    await setup.record()
    answered = await setup.core.import_session(TENANT, conversation="s-1")
    (memory,) = setup.stored_memories()
    assert (memory.id, memory.type, memory.source, memory.conversation) == (answered.id, "session", "session", "s-1")
    assert (memory.first, memory.last) == (0, 2)
    found = parse_sections(memory.content)
    assert tuple(found) == TITLES
    assert extract_plan(found[PLAN]) == "- [>] Open it"
    assert found["Objective"] == "Mend gate B7 of the house."


async def test_a_text_with_the_line_ends_of_windows_is_taken(setup: SessionSetup) -> None:
    await setup.core.import_session(TENANT, text=TEXT.replace("\n", "\r\n"))
    assert [memory.content for memory in setup.stored_memories()] == [TEXT]


class Forgetful:
    """A record of which the first message is gone."""

    def __init__(self, whole: RecordedTranscripts) -> None:
        self.whole = whole

    async def find(self, tenant: TenantScope, session: str) -> Transcript | None:
        return await self.whole.find(tenant, session)

    async def read(self, tenant: TenantScope, session: str, first: int, last: int) -> list[bytes | None]:
        return [None, *(await self.whole.read(tenant, session, first, last))[1:]]


async def test_missing_parts_of_a_conversation_are_reported(setup: SessionSetup) -> None:
    await setup.record()
    kept = Forgetful(setup.archive.transcripts)
    await setup.core_of(setup.memories, kept).import_session(TENANT, conversation="s-1")
    assert "- 1 of the recorded messages are not kept any more." in setup.stored_memories()[0].content


async def test_two_saved_in_one_second_both_stay(setup: SessionSetup) -> None:
    ids = [(await setup.core.import_session(TENANT, text=TEXT)).id for _ in range(3)]
    assert ids == [FIRST, f"{FIRST}-2", f"{FIRST}-3"]
    assert len(setup.stored_memories()) == 3


async def test_many_that_save_at_once_get_ids_of_their_own(setup: SessionSetup) -> None:
    answers = await asyncio.gather(*(setup.core.import_session(TENANT, text=f"{TEXT} {at}") for at in range(40)))
    ids = {each.id for each in answers}
    assert len(ids) == len(setup.stored_memories()) == 40
    assert {memory.id: memory.content for memory in setup.stored_memories()} == {
        each.id: f"{TEXT} {at}" for at, each in enumerate(answers)
    }
    assert all(re.fullmatch(rf"{FIRST}(-\d+)?", name) for name in ids)


async def test_two_workers_that_save_at_once_into_one_file_get_ids_of_their_own(
    setup: SessionSetup, tmp_path: Path
) -> None:
    files = [SqliteStore(tmp_path / "store.db", timeout=30.0) for _ in range(2)]
    stores = [StoredMemories(each, NoVectors()) for each in files]
    workers = [setup.core_of(each) for each in stores]
    answers = await asyncio.gather(
        *(workers[at % 2].import_session(TENANT, text=f"{TEXT} gate{at}") for at in range(12))
    )
    assert len({each.id for each in answers}) == 12
    for at, each in enumerate(answers):
        assert (await workers[0].export(TENANT, each.id)).text == f"{TEXT} gate{at}"
    assert (await workers[1].search(TENANT, "gate7")).memories[0].id == answers[7].id
    assert len((await workers[1].list_sessions(TENANT)).memories) == 12
    for each in files:
        await each.close()


async def test_another_tenant_has_ids_of_its_own(setup: SessionSetup) -> None:
    assert (await setup.core.import_session(TENANT, text=TEXT)).id == (
        await setup.core.import_session(OTHER, text=TEXT)
    ).id


async def test_description_and_tags_are_kept(setup: SessionSetup) -> None:
    options = SaveOptions(description="the gate\n  is done", tags=("Gates, B7", "b7"))
    name = (await setup.core.import_session(TENANT, text=TEXT, options=options)).id
    found = await setup.core.export(TENANT, name)
    assert (found.description, found.tags) == ("the gate is done", ["gates", "b7"])


async def test_somebody_is_asked_first_unless_it_is_forced(setup: SessionSetup) -> None:
    asked: list[str] = []

    async def no(text: str) -> bool:
        asked.append(text)
        return False

    answered = await setup.core.import_session(TENANT, text=TEXT, confirm=no)
    assert (answered.id, asked, setup.stored_memories()) == ("", [TEXT], [])
    assert (await setup.core.import_session(TENANT, text=TEXT, options=SaveOptions(force=True), confirm=no)).id == FIRST
    assert asked == [TEXT]


async def test_a_text_of_ones_own_must_hold_the_plan_word_for_word(setup: SessionSetup) -> None:
    await setup.record()
    with pytest.raises(BadRequest, match="word for word") as raised:
        await setup.core.import_session(TENANT, text=TEXT, conversation="s-1")
    assert (raised.value.code, setup.stored_memories()) == ("plan_not_verbatim", [])
    frame = (
        "### Source: todo\n\n<details>\n<summary>Full Execution Plan (Click to expand)</summary>\n\n{}\n\n</details>"
    )
    own = render_sections({"Objective": "Mine.", PLAN: frame.format("- [>] Open it")})
    await setup.core.import_session(TENANT, text=own, conversation="s-1")
    assert [memory.content for memory in setup.stored_memories()] == [own]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "nothing_to_save"),
        ({"text": " \n"}, "nothing_to_save"),
        ({"text": render_sections({})}, "nothing_to_save"),
        ({"text": "Remember gate B7."}, "not_a_session_memory"),
        ({"text": render_sections({"Notes": "x" * 200_000})}, "memory_too_long"),
        ({"text": TEXT, "options": SaveOptions(tags=("x" * 201,))}, "memory_bad_name"),
        ({"text": TEXT, "options": SaveOptions(tags=tuple(map(str, range(51))))}, "memory_bad_name"),
        ({"conversation": "nobody"}, "conversation_not_recorded"),
    ],
)
async def test_bad_input_says_what_is_wrong_and_writes_nothing(setup: SessionSetup, given, code: str) -> None:
    with pytest.raises((BadRequest, NotFound)) as raised:
        await setup.core.import_session(TENANT, **given)
    assert raised.value.code == code
    assert setup.memories.writes == 0


async def test_another_tenants_conversation_is_as_if_it_were_not_recorded(setup: SessionSetup) -> None:
    await setup.record(tenant=OTHER)
    with pytest.raises(NotFound) as raised:
        await setup.core.import_session(TENANT, conversation="s-1")
    assert (raised.value.code, setup.memories.writes) == ("conversation_not_recorded", 0)


async def test_while_the_store_is_away_it_says_so(setup: SessionSetup) -> None:
    setup.memories.away = True
    with pytest.raises(StoreUnavailable):
        await setup.core.import_session(TENANT, text=TEXT)


# -- export, list, search ---------------------------------------------------------------


async def test_a_session_memory_is_found_by_its_id_in_any_case_of_letters(setup: SessionSetup) -> None:
    await setup.core.import_session(TENANT, text=TEXT)
    for name in (FIRST, FIRST.lower(), f' "{FIRST}" '):
        found = await setup.core.export(TENANT, name)
        assert (found.operation, found.id, found.text) == ("export", FIRST, TEXT)
    assert found.created_at == "2026-01-01T10:05:10Z"


@pytest.mark.parametrize("name", ["", "mem-1", "CMEM-2026", "CMEM-20260101-100510; drop"])
async def test_an_invalid_id_is_refused(setup: SessionSetup, name: str) -> None:
    with pytest.raises(BadRequest, match="CMEM-") as raised:
        await setup.core.export(TENANT, name)
    assert raised.value.code == "invalid_memory_id"


async def test_another_tenants_memory_and_one_that_never_was_are_answered_alike(setup: SessionSetup) -> None:
    await setup.core.import_session(OTHER, text=TEXT)
    for name in (FIRST, "CMEM-19990101-000000"):
        with pytest.raises(NotFound) as raised:
            await setup.core.export(TENANT, name)
        assert raised.value.message == f"There is no session memory {name}. `list` shows the saved ones."


async def test_a_memory_of_another_kind_is_no_session_memory(setup: SessionSetup) -> None:
    setup.memories.of(TENANT).memories[FIRST] = Memory(FIRST, "fact", "x")
    with pytest.raises(NotFound):
        await setup.core.export(TENANT, FIRST)


async def test_a_list_has_the_newest_first_with_previews_and_pages(setup: SessionSetup) -> None:
    for at in range(3):
        text = render_sections({"Objective": f"Aim {at} " + "x" * 200})
        await setup.core.import_session(TENANT, text=text, options=SaveOptions(tags=("odd",) if at % 2 else ()))
        setup.clock.advance(1)
    page = await setup.core.list_sessions(TENANT, limit=2)
    assert [each.preview[:5] for each in page.memories] == ["Aim 2", "Aim 1"]
    assert all(len(each.preview) <= 100 for each in page.memories)
    rest = await setup.core.list_sessions(TENANT, limit=2, after=page.next)
    assert ([each.preview[:5] for each in rest.memories], rest.next) == (["Aim 0"], "")
    tagged = await setup.core.list_sessions(TENANT, tags=["ODD"])
    assert [each.preview[:5] for each in tagged.memories] == ["Aim 1"]
    assert (page.message, rest.message) == ("2 of the memories saved", "1 memory saved")
    assert (await setup.core.list_sessions(OTHER)).memories == []
    setup.memories.of(TENANT).memories.pop(page.memories[-1].id)
    assert await setup.core.list_sessions(TENANT, limit=2, after=page.next) == rest


async def test_a_search_finds_by_words_and_needs_some(setup: SessionSetup) -> None:
    await setup.core.import_session(TENANT, text=TEXT)
    await setup.core.import_session(TENANT, text=render_sections({"Objective": "Paint the door."}))
    found = await setup.core.search(TENANT, "Where does it RUST?")
    assert json.loads(msgspec.json.encode(found))["operation"] == "search"
    assert [each.preview for each in found.memories] == ["Mend gate B7."]
    assert (await setup.core.search(OTHER, "rust")).memories == []
    for query in ("", " ?! "):
        with pytest.raises(BadRequest) as raised:
            await setup.core.search(TENANT, query)
        assert raised.value.code == "search_without_words"


async def test_a_search_is_of_session_memories_with_all_of_the_tags(setup: SessionSetup) -> None:
    for at, tags in enumerate((("b7",), (), ("b7", "odd"))):
        await setup.core.import_session(TENANT, text=TEXT.replace("B7", f"B{at}"), options=SaveOptions(tags=tags))
    setup.memories.of(TENANT).memories["mem-1"] = Memory(id="mem-1", type="fact", content="A gate.", tags=("b7",))
    found = await setup.core.search(TENANT, "gate", tags=("B7",))
    assert {each.preview for each in found.memories} == {"Mend gate B0.", "Mend gate B2."}
    assert len((await setup.core.search(TENANT, "gate", tags=("b7",), limit=1)).memories) == 1


def test_the_box_shows_the_id_and_its_sides_are_straight() -> None:
    for name in (FIRST, f"{FIRST}-12"):
        lines = render_box(name).split("\n")
        assert f"║  Recovery ID: {name} " in render_box(name)
        assert {len(line) for line in lines} == {78}
        assert (lines[0][0], lines[-1][-1]) == ("╔", "╝")


def test_the_plan_of_the_recorded_conversation_is_the_one_that_is_compared() -> None:
    assert find_latest_plan(conversation_of_calls(STEPS)).text == "- [>] Open it"
