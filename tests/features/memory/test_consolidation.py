from __future__ import annotations

import asyncio

import pytest

from accordion.features.memory.entries import ConcurrentWrite, revision
from accordion.features.memory.memories import Memory, MemoryChange, MemoryFilter
from accordion.features.memory.search.memory_search import MemorySearch, SearchQuery, SearchResults
from accordion.features.memory.store.consolidation import ConsolidationResult, Consolidator
from accordion.model.errors import BadRequest
from tests.archive.archive_setup import TENANT
from tests.fakes import FakeClock
from tests.features.memory.fake_memories import FakeMemories

KINDS = ("fact", "decision", "preference", "solution", "question")
SUBJECTS = (
    "The auth gateway validates tokens with the RS256 key pair stored under /etc/gateway/keys.",
    "Sessions live in Redis and expire after ninety minutes without any activity of their owner.",
    "Refresh tokens rotate on every use; a stolen one is noticed because its successor is already known.",
    "Administrators log in through the corporate identity provider by OpenID Connect, never by password.",
    "Rate limits apply per account and per address, at thirty attempts within a quarter of an hour.",
    "The login page moved from the monolith into the portal repository during the spring migration.",
    "Clock drift between nodes broke validation once; a leeway of sixty seconds solves the problem.",
    "Password hashes use Argon2id with sixty-four megabytes of memory and three passes each.",
    "Audit entries are written to an append-only table which the compliance department reviews monthly.",
    "Whether hardware keys become mandatory for contractors is an open question until the board decides.",
    "Service accounts authenticate by mutual TLS, with certificates that the platform renews every week.",
    "Logging out revokes the whole family of tokens, also on devices which are offline at that moment.",
)
TEXT = " ".join(SUBJECTS)


class Nothing:
    """An embedder that knows nothing."""

    least_relevance = 0.0

    async def embed_query(self, text):
        return b""

    async def score_relevance(self, text, candidates):
        return [0.0] * len(candidates)


class TopicSetup:
    """A tenant with memories on a topic, and somebody who reads them."""

    def __init__(self, number: int = 25, topic: str = "auth", *, alike: bool = False) -> None:
        self.memories, self.clock = FakeMemories(), FakeClock(1_792_540_800.0)
        self.consolidation = Consolidator(self.memories, self.clock)
        for at in range(number):
            text = SUBJECTS[at % 12] if alike else f"{SUBJECTS[at % 12]} Note {at}."
            self.add(f"mem-{at:04d}", text, topics=(topic,), type=KINDS[at % 12 % 5])

    def add(self, name: str, content: str, **more) -> Memory:
        more.setdefault("type", "fact")
        memory = Memory(name, content=content, revision=revision(content), created=self.clock.now(), **more)
        self.clock.advance(1.0)
        self.memories.of(TENANT).memories[name] = memory
        return memory

    def stored(self) -> dict[str, Memory]:
        return self.memories.of(TENANT).memories

    async def consolidate(self, content: str = "", **more) -> ConsolidationResult:
        """Writes a summary; without a content, one that names all single memories."""
        return await self.consolidation.consolidate(TENANT, more.pop("topic", "auth"), content or self.text(), **more)

    def text(self, more: str = "") -> str:
        """Returns a summary that names all single memories."""
        ids = [each.id for each in self.stored().values() if each.type in KINDS]
        return f"{TEXT}{more} [{', '.join(ids)}]"

    async def search(self, query: SearchQuery) -> SearchResults:
        return await MemorySearch(self.memories, Nothing()).search(TENANT, query)

    async def active(self, topic: str = "auth") -> list[Memory]:
        return [
            *(await self.memories.list_memories(TENANT, MemoryFilter(types=("summary",), topics=(topic,)))).memories
        ]

    async def archived(self) -> list[Memory]:
        return [*(await self.memories.list_memories(TENANT, MemoryFilter(types=("summary_archived",)))).memories]


async def test_a_summary_is_written_with_its_count_its_date_and_links_to_its_sources():
    setup = TopicSetup()
    made = (await setup.consolidate(author="anna")).summary
    assert [made] == await setup.active()
    assert made.content == f'{setup.text()}\n\n---\nWritten 2026-10-21 from 25 memories on "auth".'
    assert (made.type, made.topics, made.counted, made.author) == ("summary", ("auth",), 25, "anna")
    assert dict(made.sources) == {f"mem-{at:04d}": setup.stored()[f"mem-{at:04d}"].revision for at in range(25)}


async def test_a_topic_is_met_whatever_its_case_and_in_macro_topics_too():
    setup = TopicSetup(0)
    for at in range(10):
        setup.add(f"mem-{at:04}", f"About it {at}", macro_topics=("Auth",))
    made = await setup.consolidate(topic=" AUTH ")
    assert made.summary.counted == 10


@pytest.mark.parametrize("number", [0, 7, 9])
async def test_too_few_memories_are_refused_with_their_count(number):
    setup = TopicSetup(number)
    setup.add("mem-summary", "x", topics=("auth",), type="summary")
    setup.add("mem-archived", "x", topics=("auth",), type="summary_archived")
    setup.add("mem-session", "x", topics=("auth",), type="session")
    with pytest.raises(BadRequest, match=f"has {number} memories") as error:
        await setup.consolidate()
    assert error.value.code == "too_few_memories"
    assert setup.memories.writes == 0


async def test_ten_memories_are_enough():
    assert (await TopicSetup(10).consolidate()).summary.counted == 10


async def test_too_long_a_text_is_refused():
    with pytest.raises(BadRequest, match="at most 19,600"):
        await TopicSetup().consolidate(TEXT * 40)


# -- sources -----------------------------------------------------------------------


async def test_a_summary_that_names_no_memory_is_refused():
    setup = TopicSetup()
    for content in (TEXT, f"{TEXT} [mem-]", ""):
        with pytest.raises(BadRequest, match="names 0 memories") as error:
            await setup.consolidation.consolidate(TENANT, "auth", content)
        assert error.value.code == "no_sources"
    assert setup.memories.writes == 0


async def test_a_summary_that_names_an_unknown_memory_is_refused_with_its_id():
    setup = TopicSetup()
    with pytest.raises(BadRequest, match=r"do not exist: mem-nowhere\. ") as error:
        await setup.consolidate(f"{TEXT} [mem-0001, mem-nowhere]")
    assert error.value.code == "unknown_sources"
    assert setup.memories.writes == 0


async def test_the_memories_that_a_summary_names_are_its_sources_with_their_revisions():
    setup = TopicSetup(30)
    made = (await setup.consolidate(f"{TEXT} [mem-0029, mem-0003] See mem-0003.")).summary
    assert dict(made.sources) == {name: setup.stored()[name].revision for name in ("mem-0029", "mem-0003")}


# -- one active summary ------------------------------------------------------------


async def test_the_summary_before_is_archived_and_leaves_the_topic():
    setup = TopicSetup()
    first = (await setup.consolidate()).summary
    setup.clock.advance(86_400)
    second = await setup.consolidate(setup.text(" And there is more now."))
    assert await setup.active() == [second.summary]
    (former,) = await setup.archived()
    assert (former.id, former.content, former.revision) == (second.archived, first.content, first.revision)
    assert (former.topics, former.macro_topics, former.former_topic) == ((), (), "auth")
    assert former.sources == first.sources


async def test_restoring_is_consolidating_the_old_text_again():
    setup = TopicSetup()
    await setup.consolidate()
    setup.clock.advance(86_400)
    await setup.consolidate(setup.text(" This version is wrong."))
    (former,) = await setup.archived()
    warned = f"{former.content}\nThis summary may be out of date: it was written from 2 memories. Write it anew."
    restored = (await setup.consolidate(warned)).summary
    assert restored.content.startswith(f"{setup.text()}\n\n---\nWritten 2026-10-22")
    assert restored.content.count("Written 2026") == 1
    assert "out of date" not in restored.content
    assert sorted(each.content[len(TEXT) :][:8] for each in await setup.archived()) == [" This ve", " [mem-00"]


async def test_one_of_two_concurrent_writers_wins_and_the_other_gets_an_error():
    for there in (False, True):
        setup = TopicSetup()
        if there:
            await setup.consolidate()
            setup.clock.advance(60)
        texts = [setup.text(f" Version {at}.") for at in range(4)]
        done = await asyncio.gather(*(setup.consolidate(text) for text in texts), return_exceptions=True)
        won = [each for each in done if isinstance(each, ConsolidationResult)]
        assert len(won) == 1
        assert await setup.active() == [won[0].summary]
        lost = [each for each in done if isinstance(each, ConcurrentWrite)]
        assert len(lost) == 3
        assert "Nothing was written" in lost[0].message
        assert lost[0].status == 409
        assert len(await setup.archived()) == there


async def test_summaries_that_came_by_an_import_are_archived_too():
    setup = TopicSetup()
    setup.add("mem-imported", "An old summary.", topics=("auth",), type="summary")
    made = await setup.consolidate()
    assert await setup.active() == [made.summary]
    assert [each.id for each in await setup.archived()] == ["mem-imported"]


async def test_topics_and_projects_have_summaries_of_their_own():
    setup = TopicSetup()
    for at in range(10):
        setup.add(f"mem-b{at}", f"{SUBJECTS[at]} b", topics=("auth",), project="b")
    whole = (await setup.consolidate()).summary
    part = (await setup.consolidate(project="b")).summary
    assert (whole.counted, part.counted) == (35, 10)
    assert {each.id for each in await setup.active()} == {whole.id, part.id}
    assert await setup.archived() == []


# -- links and staleness -----------------------------------------------------------


async def test_a_summary_is_told_to_be_stale_when_its_topic_grew_by_a_fifth():
    setup = TopicSetup(20)
    made = (await setup.consolidate()).summary
    told = MemorySearch(setup.memories, Nothing()).find_warnings
    for at in range(3):
        setup.add(f"mem-new{at}", f"New {at}", topics=("auth",))
    assert await told(TENANT, [made]) == [""]
    setup.add("mem-new3", "New 3", topics=("auth",))
    assert "from 20 memories, and the topic now has 24" in (await told(TENANT, [made]))[0]


async def test_a_summary_is_told_to_be_stale_when_a_source_was_edited_or_deleted():
    setup = TopicSetup(20)
    made = (await setup.consolidate()).summary
    setup.add("mem-0001", "Edited.", topics=("auth",))
    await setup.memories.write(TENANT, MemoryChange(delete=("mem-0002",)))
    (warning,) = await MemorySearch(setup.memories, Nothing()).find_warnings(TENANT, [made])
    assert "edited since (mem-0001)" in warning
    assert "deleted since (mem-0002)" in warning


async def test_a_search_tells_that_a_summary_is_stale():
    setup = TopicSetup(20)
    await setup.consolidate()
    setup.add("mem-0001", "Edited.", topics=("auth",))
    (told,) = [each for each in (await setup.search(SearchQuery("auth"))).results if each.memory.type == "summary"]
    assert "edited since (mem-0001)" in told.warning


@pytest.mark.parametrize("topic", ["", "  ", "x" * 201])
async def test_an_unknown_topic_is_refused(topic):
    with pytest.raises(BadRequest, match=r"A topic needs|at most 200"):
        await TopicSetup().consolidate(topic=topic)
