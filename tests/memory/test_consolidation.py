from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from random import Random
from string import ascii_lowercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.memory.consolidation import (
    PARTS,
    ConsolidationResult,
    Consolidator,
    DraftWriter,
    count_meaningful_tokens,
    load_corpus,
    summary_id,
)
from accordion.memory.entries import ConcurrentWrite, revision
from accordion.memory.reader import MemoryReader, empty_proof, issue_token, verify_tokens, with_deep_search, with_reads
from accordion.memory.search import MemorySearch, SearchQuery, SearchResults
from accordion.model.errors import BadRequest
from accordion.model.memories import Memory, MemoryChange, MemoryFilter
from accordion.model.tenant import TenantScope
from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.server.event_loop import LoopTasks
from tests.archive.archive_setup import OTHER, TENANT
from tests.fakes import FakeClock, FakeTasks
from tests.memory.fake_memories import FakeMemories

COUNTER = TiktokenCounter()
KINDS = ("fact", "decision", "preference", "solution", "question")
SIX = ("gateway", "token", "session", "portal", "cluster", "audit")
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


def count(text: str) -> int:
    return COUNTER.count(text, "o200k_base")


class Nothing:
    """An embedder that knows nothing."""

    async def embed_query(self, text):
        return b""

    async def score_relevance(self, text, candidates):
        return [0.0] * len(candidates)


class TopicSetup:
    """A tenant with memories on a topic, and somebody who reads them."""

    def __init__(self, number: int = 25, topic: str = "auth", *, alike: bool = False) -> None:
        self.memories, self.clock = FakeMemories(), FakeClock(1_792_540_800.0)
        self.consolidation = Consolidator(self.memories, self.clock, count)
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

    def proof(self, reads: int = 10**6, topic: str = "auth", search: bool = True) -> str:
        """Returns the proof of a deep search and of full reads of the topic's memories, the summary included."""
        found = [each for each in self.stored().values() if topic in each.topics and each.type != "summary"][:reads]
        found += [each for each in self.stored().values() if each.type == "summary"]
        return self.token([topic] if search else [], found)

    def token(self, topics: list[str], read: Iterable[Memory], tenant: TenantScope = TENANT) -> str:
        """Returns the proof of a deep search on topics and of full reads of memories."""
        proof = with_reads(empty_proof(tenant), read)
        for topic in topics:
            proof = with_deep_search(proof, "what is known", [topic])
        return issue_token(proof, now=self.clock.now())

    async def consolidate(self, content: str = TEXT, proof: str | None = None, **more) -> ConsolidationResult:
        return await self.consolidation.consolidate(
            TENANT, more.pop("topic", "auth"), content, self.proof() if proof is None else proof, **more
        )

    async def search(self, query: SearchQuery) -> SearchResults:
        return await MemorySearch(self.memories, Nothing(), self.clock).search(TENANT, query)

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
    assert made.content == f'{TEXT}\n\n---\nWritten 2026-10-21 from 25 memories on "auth".'
    assert (made.type, made.topics, made.counted, made.author) == ("summary", ("auth",), 25, "anna")
    assert dict(made.sources) == {f"mem-{at:04d}": setup.stored()[f"mem-{at:04d}"].revision for at in range(25)}


async def test_a_topic_is_met_whatever_its_case_and_in_macro_topics_too():
    setup = TopicSetup(0)
    for at in range(10):
        setup.add(f"mem-{at}", f"About it {at}", macro_topics=("Auth",))
    proof = setup.token(["auth"], setup.stored().values())
    made = await setup.consolidate(topic=" AUTH ", proof=proof)
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


@pytest.mark.parametrize(
    "padded",
    [
        "short",
        "word " * 2_000,
        "\u200b" * 4_000 + "Nothing much.",
        "a\u200d" * 2_000,
        f"{SUBJECTS[0]}\n" * 150,
        "\n".join(f"{at}. {SUBJECTS[0]}" for at in range(150)),
        f"{SUBJECTS[0]} " * 40 + f"{SUBJECTS[1]} " * 40,
        ("alpha beta gamma delta epsilon. " * 30) + ("beta alpha delta gamma epsilon zeta. " * 30),
        "." * 5_000 + "=" * 5_000 + " - * # " * 900,
        "\U000e0041" * 3_000 + "x\u0301" + "\u0301" * 3_000,
        "\u3164 \u2800 " * 2_000,
        SUBJECTS[2] + " " * 9_000 + "\t" * 9_000,
        # The same phrase in front of another word each time; the same few words in another order each time.
        " ".join(f"Every token that comes in from outside is checked by the gateway of {n}x." for n in ascii_lowercase),
        " ".join(" ".join(Random(at).sample(SIX, 6)) + "." for at in range(60)),
    ],
)  # fmt: skip
async def test_padding_repetition_and_invisible_characters_do_not_count(padded):
    setup = TopicSetup()
    with pytest.raises(BadRequest, match="tokens that count") as error:
        await setup.consolidate(padded)
    assert error.value.code == "content_too_short"
    assert await setup.active() == []


def test_honest_text_counts_nearly_in_full():
    assert count_meaningful_tokens(TEXT, count) >= 0.9 * count(TEXT)
    chinese = (
        "网关使用非对称密钥验证令牌，会话保存在缓存里，九十分钟后过期。管理员通过企业身份提供商登录，从不使用密码。"
        "审计记录写入只能追加的表，合规部门每月检查一次。节点之间的时钟漂移曾经破坏验证，现在允许六十秒的误差。"
    )
    assert count_meaningful_tokens(chinese, count) >= 0.7 * count(chinese)


@given(st.text(max_size=400), st.integers(2, 30))
def test_saying_a_thing_again_never_adds(text, times):
    once, often = (
        count_meaningful_tokens(held, lambda said: len(said.split())) for held in (text, f"{text}\n" * times)
    )
    assert often <= once + 6


async def test_too_long_a_text_is_refused():
    with pytest.raises(BadRequest, match="at most 19,600"):
        await TopicSetup().consolidate(TEXT * 40)


# -- reading first -----------------------------------------------------------------


async def test_without_a_deep_search_it_is_refused():
    setup = TopicSetup()
    for proof in (setup.proof(search=False), "", setup.proof(topic="other")):
        with pytest.raises(BadRequest, match="memory_deep_search") as error:
            await setup.consolidate(proof=proof)
        assert error.value.code == "deep_search_required"
    assert setup.memories.writes == 0


@pytest.mark.parametrize(("number", "reads", "needed"), [(25, 19, 20), (12, 11, 12), (30, 0, 20)])
async def test_too_few_full_reads_are_refused_and_say_what_to_read(number, reads, needed):
    setup = TopicSetup(number)
    told = rf"{reads} of the {number} .* {needed} must be.*Read {needed - reads} more"
    with pytest.raises(BadRequest, match=told) as error:
        await setup.consolidate(proof=setup.proof(reads))
    assert error.value.code == "reads_required"
    assert "mem-" in error.value.message
    assert (await setup.consolidate(proof=setup.proof(needed))).summary.counted == number


async def test_reads_may_be_proven_by_several_tokens_or_by_one_that_grew():
    setup = TopicSetup(20)
    parts = [list(setup.stored().values())[at : at + 5] for at in (0, 5, 10, 15)]
    tokens = [setup.token(["auth"], []), *(setup.token([], part) for part in parts)]
    with pytest.raises(BadRequest, match="15 of the 20"):
        await setup.consolidate(proof=tokens[:-1])
    await setup.consolidate(proof=" ".join(tokens))
    setup = TopicSetup(20)
    token = (await setup.search(SearchQuery("auth", deep=True))).token
    for part in parts:
        token = (await MemoryReader(setup.memories, setup.clock).read(TENANT, [each.id for each in part], token)).token
    await setup.consolidate(proof=token)


async def test_a_proof_of_another_tenant_a_forged_or_an_old_one_proves_nothing():
    setup = TopicSetup()
    good = setup.proof()
    forged = ("A" if good[0] != "A" else "B") + good[1:]
    other = setup.token(["auth"], setup.stored().values(), OTHER)
    assert verify_tokens(OTHER, other, now=setup.clock.now()).has_searched_deeply("auth")
    for proof in (forged, other, "abc", good[6:]):
        with pytest.raises(BadRequest) as error:
            await setup.consolidate(proof=proof)
        assert error.value.code == "reading_token_invalid"
    setup.clock.advance(3_601)
    with pytest.raises(BadRequest, match="expired"):
        await setup.consolidate(proof=good)
    assert await setup.active() == []


async def test_an_edited_memory_must_be_read_again():
    setup = TopicSetup(12)
    before = setup.proof()
    setup.add("mem-0003", "Sessions live in Valkey now.", topics=("auth",))
    with pytest.raises(BadRequest, match=r"11 of the 12 .* such as mem-0003") as error:
        await setup.consolidate(proof=before)
    assert error.value.code == "reads_required"
    edited = setup.token([], [setup.stored()["mem-0003"]])
    made = (await setup.consolidate(proof=f"{before} {edited}")).summary
    assert dict(made.sources)["mem-0003"] == revision("Sessions live in Valkey now.")


async def test_a_summary_that_is_there_must_have_been_read_as_it_is_now():
    setup = TopicSetup()
    await setup.consolidate()
    before = setup.proof()
    await setup.consolidate(TEXT + " And there is more now.", before)
    with pytest.raises(BadRequest) as error:
        await setup.consolidate(TEXT + " And something else.", before)
    assert error.value.code == "summary_unread"


async def test_a_summary_that_is_there_must_have_been_read():
    setup = TopicSetup()
    before = setup.proof()
    first = (await setup.consolidate()).summary
    with pytest.raises(BadRequest, match=f"Read it first \\({first.id}\\)") as error:
        await setup.consolidate(proof=before)
    assert error.value.code == "summary_unread"


# -- one active summary ------------------------------------------------------------


async def test_the_summary_before_is_archived_and_leaves_the_topic():
    setup = TopicSetup()
    first = (await setup.consolidate()).summary
    setup.clock.advance(86_400)
    second = await setup.consolidate(TEXT + " And there is more now.")
    assert await setup.active() == [second.summary]
    (former,) = await setup.archived()
    assert (former.id, former.content, former.revision) == (second.archived, first.content, first.revision)
    assert (former.topics, former.macro_topics, former.former_topic) == ((), (), "auth")
    assert former.sources == first.sources


async def test_restoring_is_consolidating_the_old_text_again():
    setup = TopicSetup()
    await setup.consolidate()
    setup.clock.advance(86_400)
    await setup.consolidate(TEXT + " This version is wrong.")
    (former,) = await setup.archived()
    warned = f"{former.content}\nThis summary may be out of date: it was written from 2 memories. Write it anew."
    restored = (await setup.consolidate(warned)).summary
    assert restored.content.startswith(f"{TEXT}\n\n---\nWritten 2026-10-22")
    assert restored.content.count("Written 2026") == 1
    assert "out of date" not in restored.content
    assert sorted(each.content[len(TEXT) :][:8] for each in await setup.archived()) == ["\n\n---\nWr", " This ve"]


async def test_one_of_two_concurrent_writers_wins_and_the_other_gets_an_error():
    for there in (False, True):
        setup = TopicSetup()
        if there:
            await setup.consolidate()
            setup.clock.advance(60)
        texts = [f"{TEXT} Version {at}." for at in range(4)]
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
    told = MemorySearch(setup.memories, Nothing(), setup.clock).find_warnings
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
    (warning,) = await MemorySearch(setup.memories, Nothing(), setup.clock).find_warnings(TENANT, [made])
    assert "edited since (mem-0001)" in warning
    assert "deleted since (mem-0002)" in warning
    with pytest.raises(BadRequest, match="0 tokens that count"):
        await setup.consolidate(f"{warning}\n{warning}")


async def test_a_search_tells_that_a_summary_is_stale():
    setup = TopicSetup(20)
    await setup.consolidate()
    setup.add("mem-0001", "Edited.", topics=("auth",))
    (told,) = [each for each in (await setup.search(SearchQuery("auth"))).results if each.memory.type == "summary"]
    assert "edited since (mem-0001)" in told.warning


async def test_memories_that_a_summary_names_are_its_sources_though_not_proven_read():
    setup = TopicSetup(30)
    made = (await setup.consolidate(f"{TEXT} See [mem-0029] and [mem-nowhere].", proof=setup.proof(20))).summary
    assert {name for name, _ in made.sources} == {f"mem-{at:04d}" for at in (*range(20), 29)}


@pytest.mark.parametrize("topic", ["", "  ", "x" * 201, None, 3])
async def test_an_unknown_topic_is_refused(topic):
    with pytest.raises(BadRequest, match="A topic must be"):
        await TopicSetup().consolidate(topic=topic)


# -- drafts ------------------------------------------------------------------------


async def test_a_draft_has_four_parts_and_each_line_names_its_memories():
    setup = TopicSetup(60, alike=True)
    draft = await DraftWriter(setup.memories, count, FakeTasks()).draft(TENANT, "Auth")
    assert 300 <= draft.tokens <= 500
    assert draft.tokens == count(draft.text)
    assert [line[3:] for line in draft.text.splitlines() if line.startswith("## ")] == list(PARTS)
    lines = [line for line in draft.text.splitlines() if line.startswith("- ")]
    assert all(line.endswith("]") and "[mem-" in line for line in lines)
    assert set(draft.sources) <= set(setup.stored())
    assert draft.count == 60


async def test_a_draft_puts_each_kind_in_its_part_once_and_in_present_tense():
    setup = TopicSetup(6)
    for name in ("mem-d1", "mem-d2"):
        text = 'User decision: "We decided to keep PostgreSQL 16 for auth."'
        setup.add(name, text, topics=("auth",), type="decision")
    setup.add("mem-q", 'Open question from the user: "Who rotates the auth keys?"', topics=("auth",), type="question")
    setup.add("mem-s", "Auth failed because of NTP; chrony solves it.", topics=("auth",), type="solution")
    setup.add("mem-f", "The auth gateway was written in Go and used chi.", topics=("auth",))
    text = (await DraftWriter(setup.memories, count, FakeTasks()).draft(TENANT, "auth")).text
    parts = dict(zip(PARTS, text.split("\n## ")[1:], strict=True))
    assert "We decide to keep PostgreSQL 16 for auth. [mem-d2, mem-d1]" in parts["Present state and key decisions"]
    assert "Who rotates the auth keys? [mem-q]" in parts["Open questions"]
    assert "Auth fails because of NTP; chrony solves it. [mem-s]" in parts["Solved problems"]
    assert "The auth gateway is written in Go" in parts["What it is"]


async def test_a_draft_names_the_summary_that_is_to_be_extended_and_can_be_consolidated():
    setup = TopicSetup(60, alike=True)
    drafting = DraftWriter(setup.memories, count, FakeTasks())
    draft = await drafting.draft(TENANT, "auth")
    assert draft.summary == ""
    made = (await setup.consolidate(draft.text)).summary
    assert made.id == summary_id("auth", None)
    assert (await drafting.draft(TENANT, "auth")).summary == made.id


async def test_a_draft_of_too_few_memories_is_refused():
    with pytest.raises(BadRequest, match="has 9 memories"):
        await DraftWriter(TopicSetup(9).memories, count, FakeTasks()).draft(TENANT, "auth")


async def test_what_is_deleted_while_a_topic_is_gone_through_takes_nothing_else_with_it():
    class Shrinking(FakeMemories):
        async def list_memories(self, tenant, wanted, *, after="", limit=100):
            found = await super().list_memories(tenant, wanted, after=after, limit=limit)
            self.of(tenant).memories.pop(found.memories[-1].id)
            return found

    memories = Shrinking()
    memories.tenants = TopicSetup(1200).memories.tenants
    assert len(await load_corpus(memories, TENANT, "auth", None)) == 1200


async def test_others_go_on_while_a_draft_is_written():
    tasks = LoopTasks()
    threads = set[int]()

    def counted(text: str) -> int:
        threads.add(threading.get_ident())
        return count(text)

    await DraftWriter(TopicSetup(60).memories, counted, tasks).draft(TENANT, "auth")
    await tasks.close()
    assert threads
    assert threading.get_ident() not in threads


async def test_a_short_corpus_makes_a_short_draft_that_says_what_is_missing():
    setup = TopicSetup(0)
    for at in range(10):
        setup.add(f"mem-{at}", f"Port {8000 + at} is open.", topics=("ports",))
    text = (await DraftWriter(setup.memories, count, FakeTasks()).draft(TENANT, "ports")).text
    assert "## Open questions\n(no memories)" in text
    assert "Port 8000 is open. [mem-0]" in text
