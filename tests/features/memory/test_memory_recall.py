"""Memories that belong to a turn are put behind it unasked and stay there. In one process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from accordion.features.memory.memories import Embedding, Memory, MemoryFilter, SearchCandidate
from accordion.features.memory.memory_mentions import MemoryMentions
from accordion.features.memory.memory_recall import MemoryRecall, MemoryRecallLimits
from accordion.features.memory.search.memory_search import MemorySearch
from accordion.features.memory.search.relevant_memories import load_recalled_ids
from accordion.features.memory.session_import import SessionImport
from accordion.http.metrics import Metrics
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Waiter
from accordion.model.tenant import TenantScope
from accordion.model.words import search_terms
from accordion.server.event_loop import LoopTasks, LoopWaiter
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FakeWindows
from tests.features.memory.fake_memories import FakeMemories
from tests.features.memory.memory_turns import is_forwarded_unchanged, store_memories
from tests.insertions.test_artifact_recall import (
    LISTING,
    PATHS,
    assistant_entry,
    build_request,
    call_entry,
    request,
    sent,
    user_entry,
)
from tests.pipeline_setup import CHAT, MESSAGES, RESPONSES, PipelineSetup, header

ASK = "Which region does the ledger replicate to?"
TOLD = "Region: the ledger does replicate to eu-west-7."
OPENING = "[Memories from this user's earlier work"
COUNT = "/v1/messages/count_tokens"


class Shared:
    """An embedder whose relevance is the share of a query's words that a memory has."""

    least_relevance = 0.0

    async def embed(self, texts: Sequence[tuple[str, str]]) -> list[Embedding]:
        return [Embedding() for _ in texts]

    async def embed_query(self, text: str) -> bytes:
        return b""

    async def score_relevance(self, query: str, candidates: Sequence[SearchCandidate]) -> list[float]:
        asked = set(search_terms(query))
        return [len(asked & set(search_terms(each.memory.content))) / len(asked) for each in candidates]


class RecordingMemories(FakeMemories):
    """Notes what is searched for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, ...]] = []

    async def find_candidates(
        self, tenant: TenantScope, words: Sequence[str], vector: bytes, wanted: MemoryFilter, *, pool: int
    ) -> list[SearchCandidate]:
        self.asked.append(tuple(words))
        if self.away:
            raise StoreUnavailable("away")
        return await super().find_candidates(tenant, words, vector, wanted, pool=pool)


class TooLate(LoopWaiter):
    """Nothing comes in time."""

    async def wait_for(self, seconds: float, work: Awaitable[Any]) -> Any:
        await super().wait_for(10, work)
        raise TimeoutError


def proxy_setup(memories: FakeMemories, waiting: Waiter | None = None, /, **given: Any) -> PipelineSetup:
    named = {name: given.pop(name) for name in list(given) if name in MemoryRecallLimits.__slots__}
    made = PipelineSetup(windows=FakeWindows(given.pop("window", 4_000)), **given)

    def count(text: str, _model: str) -> int:
        return len(text.split())

    recollecting = MemoryRecall(
        lambda: MemorySearch(memories, Shared()),
        lambda: memories,
        made.builder.insertion_store,
        made.tasks,
        waiting or LoopWaiter(),
        made.clock,
        count,
        MemoryRecallLimits(**{"timeout_seconds": 10, **named}),
    )
    importing = SessionImport(lambda: memories, made.builder.insertion_store, made.clock, count)
    mentions = MemoryMentions(
        recall_everywhere=True, project="*" if named.get("all_projects") else named.get("project", "")
    )
    sources = [importing, *made.forward.prepare.compaction_step.recall_sources, recollecting]
    made.replace_in("measurer", mentions=mentions)
    made.replace_in("identifier", mentions=mentions)
    made.replace_in("compaction_step", recall_sources=sources)
    return made


def ready(**given: Any) -> tuple[PipelineSetup, RecordingMemories]:
    """A setup with one stored memory."""
    memories = RecordingMemories()
    made = proxy_setup(memories, **given)
    store_memories(made, memories, memory())
    return made, memories


def memory(**fields: Any) -> Memory:
    return Memory("mem-a", "fact", TOLD, **fields)


def there(of: PipelineSetup, path: str) -> bool:
    return OPENING in json.dumps(sent(of, path))


@pytest.mark.parametrize("path", PATHS)
async def test_an_excerpt_of_the_archive_stands_before_the_turn_and_the_memory_behind_it(path: str):
    made, _ = ready(window=3_000)
    await made.ask(path, request(path))
    asked = request(path, assistant_entry(path, "Nothing yet."), user_entry(path, f"Is W5918442 gone? {ASK}"))
    for _ in range(2):
        await made.ask(path, asked)
        text = json.dumps(sent(made, path))
        assert text.index("7706410293") < text.index(ASK) < text.index(TOLD)


@pytest.mark.parametrize("path", PATHS)
async def test_it_stands_behind_the_message_that_it_belongs_to_and_stays_byte_for_byte(path: str):
    made, memories = ready()
    history = [user_entry(path, "Hello there."), assistant_entry(path, "Hi."), user_entry(path, ASK)]
    out, _ = await made.ask(path, build_request(path, *history))
    before = sent(made, path)
    text = json.dumps(before)
    assert text.index(ASK) < text.index(OPENING) < text.index(TOLD)
    assert header(out, "x-accordion-memory") == "mem-a recalled"
    for number in range(3):
        history += [
            assistant_entry(path, f"Done {number}."),
            user_entry(path, f"Go on {number}."),
            *call_entry(path, f"c{number}", "x", path="p"),
        ]
        out, _ = await made.ask(path, build_request(path, *history))
        now = sent(made, path)
        assert now[: len(before)] == before
        assert json.dumps(now).count(TOLD) == 1
        assert header(out, "x-accordion-memory") is None
        before = now
    assert len(memories.asked) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_it_is_counted_and_told_in_the_ledger_and_the_metrics(path: str):
    memories, metrics = RecordingMemories(), Metrics()
    made = proxy_setup(memories)
    store_memories(made, memories, memory())
    await made.ask(path, build_request(path, user_entry(path, ASK)))
    await made.ask(
        path, build_request(path, user_entry(path, ASK), assistant_entry(path, "Done."), user_entry(path, "Go on."))
    )
    first, second = made.recorder.exchanges
    assert first.recall is not None
    assert (first.recall.sources, first.recall.memories) == (1, ("mem-a recalled",))
    assert second.recall is None
    for each in (first, second):
        assert first.recall.tokens <= each.utilization.insertions < first.recall.tokens + 10
        metrics.exchange("t", each, "")
    told = [line.rsplit(" ", 1) for line in metrics.render()[0].decode().splitlines() if "recall" in line]
    counted = {name.split("{")[0]: float(value) for name, value in told if name[0] != "#" and "_total" in name}
    assert counted == {"accordion_recalls_total": 1.0, "accordion_recall_tokens_total": float(first.recall.tokens)}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("text", ["Go on, please.", "Which colour has the parser of the billing desk?"])
async def test_a_turn_without_a_relevant_memory_is_sent_unchanged(path: str, text: str):
    made, _ = ready()
    body = build_request(path, user_entry(path, "Hello."), assistant_entry(path, "Hi."), user_entry(path, text))
    out, _ = await made.ask(path, body)
    assert is_forwarded_unchanged(made, body)
    assert header(out, "x-accordion-memory") is None
    assert made.recorder.exchanges[-1].recall is None


# -- whose ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_another_tenants_memories_are_never_recalled(path: str):
    memories = RecordingMemories()
    made = proxy_setup(memories, keys=(ProxyKey("one", "key-1"), ProxyKey("two", "key-2")), all_projects=True)
    store_memories(made, memories, memory(), key="key-1")
    for key, found in (("key-2", False), ("key-1", True), ("key-2", False)):
        await made.ask(
            path, build_request(path, user_entry(path, ASK)), {"x-accordion-key": key, "authorization": "Bearer sk-own"}
        )
        assert there(made, path) is found


@pytest.mark.parametrize(
    ("of", "named", "given", "found"),
    [
        ("", "", None, True),
        ("billing", "", None, False),
        ("billing", "billing", None, True),
        ("", "billing", None, False),
        ("other", "billing", None, False),
        ("other", "billing", "other", True),
        ("billing", "billing", "other", False),
        ("my project", "", " my   project ", True),
        ("", "billing", "", True),
    ],
)
async def test_only_those_of_the_project_that_the_request_or_the_config_names(
    of: str, named: str, given: str | None, found: bool
):
    memories = RecordingMemories()
    made = proxy_setup(memories, project=named)
    store_memories(made, memories, memory(project=of))
    await made.ask(
        CHAT, build_request(CHAT, user_entry(CHAT, ASK)), {"x-accordion-project": given} if given is not None else {}
    )
    assert there(made, CHAT) is found
    assert not [name for name, _ in made.upstream.requests[-1].headers if name.startswith(b"x-accordion")]


async def test_those_of_all_projects_where_that_is_wanted():
    memories = RecordingMemories()
    made = proxy_setup(memories, project="billing", all_projects=True)
    store_memories(made, memories, memory(project="other"))
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    assert "mem-a, fact of project other" in json.dumps(sent(made, CHAT))


@pytest.mark.parametrize("agent", [{}, {"x-accordion-delegation": "a", "x-accordion-parent": "main"}])
@pytest.mark.parametrize("path", PATHS)
async def test_conversations_of_two_projects_that_begin_alike_share_nothing(path: str, agent: dict[str, str]):
    memories = RecordingMemories()
    made = proxy_setup(memories, project="billing")
    store_memories(
        made, memories, *(Memory(f"mem-{name}", "fact", TOLD, project=name) for name in ("billing", "other"))
    )
    for headers, name in (({}, "billing"), ({"x-accordion-project": "other"}, "other"), ({}, "billing")):
        await made.ask(path, build_request(path, user_entry(path, ASK)), {**headers, **agent})
        ids = [each for each in ("mem-billing", "mem-other") if each in json.dumps(sent(made, path))]
        assert ids == [f"mem-{name}"]
    for project in ("other", "third"):
        again = proxy_setup(memories, store=made.store, project=project)
        await again.ask(
            path,
            build_request(path, user_entry(path, ASK), assistant_entry(path, "Done."), user_entry(path, "Go on.")),
            agent,
        )
        assert ("mem-other" in json.dumps(sent(again, path))) is (project == "other")
        assert "mem-billing" not in json.dumps(sent(again, path))


@pytest.mark.parametrize(("of", "found"), [("", True), ("other", False)])
async def test_a_summary_of_another_projects_memories_is_not_recalled(of: str, found: bool):
    memories = RecordingMemories()
    made = proxy_setup(memories)
    source = Memory("mem-s", "fact", "Something else.", project=of)
    store_memories(made, memories, source, Memory("mem-a", "summary", TOLD, sources=(("mem-s", ""),)))
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    assert there(made, CHAT) is found


async def test_a_summary_that_may_be_out_of_date_says_so():
    memories = RecordingMemories()
    made = proxy_setup(memories)
    source = Memory("mem-s", "fact", "Something else.", revision="new")
    store_memories(made, memories, source, Memory("mem-a", "summary", TOLD, sources=(("mem-s", "old"),)))
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    assert "1 of its sources was edited since" in json.dumps(sent(made, CHAT))


# -- no memory twice ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_a_memory_that_is_in_the_list_is_not_inserted_again(path: str):
    made, memories = ready()
    history = [user_entry(path, ASK), assistant_entry(path, "There."), user_entry(path, f"Once more. {ASK}")]
    await made.ask(path, build_request(path, *history[:1]))
    await made.ask(path, build_request(path, *history))
    assert json.dumps(sent(made, path)).count(TOLD) == 1
    assert len(memories.asked) == 2


async def test_a_memory_that_the_client_states_itself_is_not_inserted():
    made, _ = ready()
    await made.ask(
        CHAT, build_request(CHAT, user_entry(CHAT, TOLD), assistant_entry(CHAT, "So it is."), user_entry(CHAT, ASK))
    )
    assert not there(made, CHAT)


async def test_memories_of_this_session_wait_until_their_messages_left_the_window():
    memories = RecordingMemories()
    made = proxy_setup(memories, window=3_000)
    start, rest = (asked := request(CHAT)["messages"])[:3], asked[3:-1]
    await made.ask(CHAT, build_request(CHAT, *start))
    session = made.recorder.exchanges[-1].session
    store_memories(made, memories, memory(conversation=session, first=1, last=1))
    history = [*start, assistant_entry(CHAT, "Done."), user_entry(CHAT, ASK)]
    await made.ask(CHAT, build_request(CHAT, *history))
    assert not there(made, CHAT)
    await made.ask(CHAT, build_request(CHAT, *history, *rest, user_entry(CHAT, f"Well. {ASK}")))
    assert made.recorder.exchanges[-1].session == session
    assert made.recorder.exchanges[-1].compaction is not None
    assert there(made, CHAT)


async def test_beside_a_session_memory_that_was_asked_for_nothing_is_put():
    memories = RecordingMemories()
    made = proxy_setup(memories)
    name = "CMEM-20260101-100510"
    store_memories(made, memories, Memory(name, "session", "All of it."), Memory("mem-a", "fact", TOLD))
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, f"Please import memory {name}. {ASK}")))
    assert f"[Session memory {name}" in json.dumps(sent(made, CHAT))
    assert not there(made, CHAT)


# -- the same again -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_a_retry_is_sent_the_same_whatever_is_remembered_meanwhile(path: str):
    made, memories = ready()
    for _ in range(3):
        await made.ask(path, build_request(path, user_entry(path, ASK)))
        store_memories(made, memories, Memory("mem-b", "fact", f"{TOLD} Since Thursday."))
        made.clock.advance(5)
    one, *others = [each.body for each in made.upstream.requests]
    assert others == [one, one]
    assert [each.recall is not None for each in made.recorder.exchanges] == [True, False, False]


async def test_a_turn_sent_without_a_memory_stays_without_it():
    memories = RecordingMemories()
    made = proxy_setup(memories)
    body = build_request(CHAT, user_entry(CHAT, "Hello."), assistant_entry(CHAT, "Hi."), user_entry(CHAT, ASK))
    await made.ask(CHAT, body)
    store_memories(made, memories, memory())
    await made.ask(CHAT, body)
    one, two = made.upstream.requests
    assert one.body == two.body


@pytest.mark.parametrize("path", PATHS)
async def test_a_compaction_that_covers_it_takes_it_along_and_it_may_be_recalled_anew(path: str):
    made, _ = ready(window=3_000)
    body = request(path)
    listing = body[LISTING[path]]
    await made.ask(path, {**body, LISTING[path]: [user_entry(path, ASK)]})
    listing[0] = user_entry(path, ASK)
    await made.ask(path, body)
    assert made.recorder.exchanges[-1].compaction is not None
    assert not there(made, path)
    before = sent(made, path)
    listing += [assistant_entry(path, "Nothing."), user_entry(path, f"Again. {ASK}")]
    await made.ask(path, body)
    now = sent(made, path)
    assert now[: len(before)] == before
    assert json.dumps(now).count(OPENING) == 1


# -- what is not to be changed, and what is in the way ----------------------------------------------------------------


async def test_a_history_that_the_provider_keeps_is_left_alone():
    made, memories = ready()
    body = build_request(RESPONSES, user_entry(RESPONSES, ASK), previous_response_id="resp_1")
    await made.ask(RESPONSES, body)
    assert is_forwarded_unchanged(made, body)
    assert memories.asked == []


async def test_counting_and_client_compactions_recall_nothing():
    made, memories = ready()
    await made.ask(COUNT, build_request(MESSAGES, user_entry(MESSAGES, ASK)))
    await made.ask(MESSAGES, build_request(MESSAGES, user_entry(MESSAGES, ASK), compaction={"type": "auto"}))
    assert memories.asked == []


@pytest.mark.parametrize("path", PATHS)
async def test_in_the_middle_of_an_agents_work_nothing_is_searched_for(path: str):
    made, memories = ready()
    await made.ask(path, build_request(path, user_entry(path, "Hello."), *call_entry(path, "c1", ASK, path="a.txt")))
    assert memories.asked == []
    assert not there(made, path)


async def test_a_sub_agent_is_given_what_belongs_to_its_task():
    made, _ = ready()
    headers = {"x-accordion-delegation": "a", "x-accordion-parent": "main"}
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)), headers)
    assert made.recorder.exchanges[-1].agent is not None
    assert there(made, CHAT)


async def test_a_slow_search_skips_recall_for_this_turn_and_the_next_ones():
    memories = RecordingMemories()
    made = proxy_setup(memories, TooLate())
    store_memories(made, memories, memory())
    for number in range(3):
        await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, f"{ASK} {number}")))
        assert not there(made, CHAT)
    assert len(memories.asked) == 1
    made.clock.advance(60)
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, f"{ASK} now")))
    assert len(memories.asked) == 2


async def test_a_store_that_never_answers_is_not_waited_for():
    class Stuck(RecordingMemories):
        async def find_candidates(self, *_args: Any, **_named: Any) -> list[SearchCandidate]:
            await asyncio.Event().wait()
            return []

    memories = Stuck()
    made = proxy_setup(memories, timeout_seconds=0.01)
    body = build_request(CHAT, user_entry(CHAT, ASK))
    out, _ = await made.ask(CHAT, body)
    assert out.status == 200
    assert is_forwarded_unchanged(made, body)


async def test_memories_that_are_away_leave_the_turn_alone_and_what_was_recalled_stays(
    caplog: pytest.LogCaptureFixture,
):
    made, memories = ready()
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    before = sent(made, CHAT)
    memories.away = True
    out, _ = await made.ask(
        CHAT,
        build_request(CHAT, user_entry(CHAT, ASK), assistant_entry(CHAT, "Done."), user_entry(CHAT, f"And now? {ASK}")),
    )
    assert out.status == 200
    assert sent(made, CHAT)[: len(before)] == before
    assert "memories could not be searched" in caplog.text


@pytest.mark.parametrize(("tokens", "found"), [(800, True), (5, False)])
async def test_no_more_is_put_in_than_the_settings_say(tokens: int, found: bool):
    made, _ = ready(tokens=tokens)
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    assert there(made, CHAT) is found


async def test_the_best_are_put_in_and_no_more_than_the_settings_say():
    memories = RecordingMemories()
    made = proxy_setup(memories, memories=2)
    store_memories(made, memories, *(Memory(f"mem-{at}", "fact", f"{TOLD} {at}") for at in range(5)))
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    assert made.recorder.exchanges[-1].recall is not None
    assert made.recorder.exchanges[-1].recall.memories == ("mem-0 recalled", "mem-1 recalled")


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_is_put_in_where_there_is_hardly_any_room(path: str):
    made, _ = ready(window=150)
    out, _ = await made.ask(path, build_request(path, user_entry(path, ASK)))
    assert out.status == 200
    assert not there(made, path)


async def test_into_a_request_whose_session_is_erased_meanwhile_nothing_is_put():
    made, memories = ready()
    measured = await made.measure(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    tenant, session = measured.caller.tenant, measured.session_match.session.id
    made.clock.advance(1)
    await made.archive.erasures.publish(tenant, session)
    prepared = await made.forward.prepare(measured)
    assert prepared.recall_usage is None
    assert len(memories.asked) == 1
    assert made.builder.insertion_store.size == 0
    assert await load_recalled_ids(memories, tenant, session) == []


async def test_what_was_put_in_is_noted_for_who_makes_memories_of_the_session():
    memories, tasks = RecordingMemories(), LoopTasks()
    made = proxy_setup(memories, tasks=tasks)
    store_memories(made, memories, memory())
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    tenant = made.forward.tenants.identify({}).tenant
    session = made.recorder.exchanges[-1].session
    await LoopWaiter().wait_for(10, _until_noted(memories, tenant, session))
    await tasks.close()
    assert await load_recalled_ids(memories, tenant, session) == [["mem-a"]]


async def _until_noted(memories: FakeMemories, tenant: TenantScope, session: str) -> None:
    while not await load_recalled_ids(memories, tenant, session):
        await asyncio.sleep(0)
