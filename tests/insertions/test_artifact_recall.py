"""What the newest turn names and only the archive holds goes out in front of it, once, and stays. In one
process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from accordion.http.metrics import Metrics
from accordion.insertions.artifact_recall import ArtifactRecall
from accordion.model.ports import Route
from accordion.pipeline.response_hooks import RecallIndexHook
from accordion.server.event_loop import LoopTasks
from tests import pipeline_setup
from tests.fakes import FakeRouter, FakeWindows, FickleStore
from tests.pipeline_setup import CHAT, MESSAGES, RESPONSES, PipelineSetup
from tests.writers import WRITERS, MadeCall, words

Json = dict[str, Any]
WRITER = {path: WRITERS[name] for name, path in pipeline_setup.PATHS.items()}
PATHS = list(WRITER)
COUNT = "/v1/messages/count_tokens"
LISTING = {path: writer.listing for path, writer in WRITER.items()}
OPENING = "[Excerpts from this conversation's archive"
ORDER, ITEM = "W5918442", "7706410293"
NAMING = f"Which item does {ORDER} hold?"


def assistant_entry(path: str, text: str) -> Json:
    return WRITER[path].model(text)


def call_entry(path: str, call_id: str, result: str, /, **arguments: str) -> list[Json]:
    call = MadeCall(call_id, "read", arguments, result)
    return [*WRITER[path].calls(call), *WRITER[path].results(call)]


def user_entry(path: str, text: str) -> Json:
    return WRITER[path].user(text)


def build_request(path: str, *entries: Any, **more: Any) -> Json:
    """A request of these entries."""
    asked = {"model": "claude-sonnet-4-5", "max_tokens": 9} if path == MESSAGES else {"model": "gpt-5"}
    return WRITER[path].request(entries=entries, **asked | more)


def request(path: str, *more: Json, rounds: int = 20) -> Json:
    """So long that it is compacted; the order stands in a result near the beginning, among many words."""
    listed = [user_entry(path, "the task")]
    for at in range(rounds):
        middle = f"\n{ORDER} holds item {ITEM} of ST_5512_k\n" if at == 2 else "\n"
        listed += call_entry(path, f"c{at}", words(100, f"r{at}_") + middle + words(100, f"s{at}_"), path=f"{at}.py")
    return build_request(path, *listed, assistant_entry(path, "Done."), user_entry(path, "What is next?"), *more)


def build_question(path: str, text: str = NAMING) -> Json:
    return request(path, assistant_entry(path, "Nothing yet."), user_entry(path, text))


def build_world(**given: Any) -> PipelineSetup:
    return PipelineSetup(windows=FakeWindows(3_000), **given)


def sent(of: PipelineSetup, path: str) -> list[Json]:
    body = of.upstream.requests[-1].body
    assert isinstance(body, bytes)
    return list(json.loads(body)[LISTING[path]])


def excerpts(entries: list[Json]) -> list[int]:
    """In which entries one stands."""
    return [at for at, entry in enumerate(entries) if OPENING in json.dumps(entry)]


async def compact_first(path: str, **given: Any) -> tuple[PipelineSetup, list[Json]]:
    """A setup in which the history was compacted, and what was sent then."""
    made = build_world(**given)
    await made.ask(path, request(path))
    before = sent(made, path)
    assert ITEM not in json.dumps(before)
    assert excerpts(before) == []
    return made, before


async def is_recalled(of: PipelineSetup, path: str, body: Json, *, erased: bool = False) -> bool:
    """Whether something is recalled for a request that is compacted and not sent; `erased`: its session is
    meanwhile."""
    measured = await of.measure(path, body)
    if erased:
        of.clock.advance(1)
        await of.archive.erasures.publish(measured.caller.tenant, measured.session_match.session.id)
    prepared = await of.forward.prepare(measured)
    assert prepared.compaction_id
    return prepared.recall_usage is not None


@pytest.mark.parametrize("path", PATHS)
async def test_a_name_in_the_users_text_is_recalled_once_in_front_of_it(path: str):
    made, before = await compact_first(path)
    await made.ask(path, build_question(path))
    now = sent(made, path)
    assert now[: len(before)] == before
    [place] = excerpts(now)
    text = json.dumps(now[place])
    assert ITEM in text
    assert place == len(now) - (2 if path == RESPONSES else 1)
    newest = json.dumps(now[-1])
    assert newest.rindex(NAMING) > newest.find(ITEM)
    assert [entry.get("role") for entry in now[-2:]].count("user") == (2 if path == RESPONSES else 1)
    assert NAMING in json.dumps(now[-1])
    recalled = made.recorder.exchanges[-1].recall
    assert recalled is not None
    assert 20 < recalled.tokens < 200
    assert recalled.sources == 1
    assert recalled.tokens <= made.recorder.exchanges[-1].utilization.insertions < recalled.tokens + 10


@pytest.mark.parametrize("path", PATHS)
async def test_it_stays_byte_for_byte_and_is_not_recalled_again(path: str):
    made, _ = await compact_first(path)
    asked = build_question(path)
    await made.ask(path, asked)
    listing, before = asked[LISTING[path]], sent(made, path)
    for number in range(3):
        listing += [assistant_entry(path, f"It holds {ITEM}."), user_entry(path, f"And {ORDER}, once more ({number})?")]
        await made.ask(path, asked)
        now = sent(made, path)
        assert now[: len(before)] == before
        assert len(excerpts(now)) == 1
        assert made.recorder.exchanges[-1].recall is None
        assert made.recorder.exchanges[-1].utilization.insertions > 0
        before = now


@pytest.mark.parametrize("path", PATHS)
async def test_another_question_behind_the_same_history_gets_its_own(path: str):
    made, before = await compact_first(path)
    for question, answer in ((NAMING, ITEM), ("What stands before r7_99?", "r7_98"), (NAMING, ITEM)):
        await made.ask(path, build_question(path, question))
        now = sent(made, path)
        assert now[: len(before)] == before
        [place] = excerpts(now)
        assert answer in json.dumps(now[place:])


async def send_results(path: str) -> tuple[PipelineSetup, Json, list[Json]]:
    """A setup that was sent a request that ends with results, that request, and its list, which may be added to."""
    made, asked = build_world(config="read_back: {recall: {share: 20%}}"), request(path)
    listing = asked[LISTING[path]] = asked[LISTING[path]][:-2]
    await made.ask(path, asked)
    return made, asked, listing


@pytest.mark.parametrize("path", PATHS)
async def test_what_a_call_names_is_recalled_with_its_result(path: str):
    made, asked, listing = await send_results(path)
    before = sent(made, path)
    listing += call_entry(path, "late", "There is no such order.", order=ORDER, item=ITEM, store="ST_5512_k")
    await made.ask(path, asked)
    now = sent(made, path)
    assert now[: len(before)] == before
    [place] = excerpts(now)
    assert place == len(before) + (0 if path == RESPONSES else 1)
    newest = json.dumps(now[-1])
    assert "There is no such order." in newest
    if path == MESSAGES:
        # A text behind results can make the model end its turn with an empty answer.
        [result] = now[-1]["content"]
        excerpt, heading, returned = (part["text"] for part in result["content"])
        assert excerpt.startswith(OPENING)
        assert heading == "[What follows is what the tool returned.]"
        assert returned == "There is no such order."
    listing += call_entry(path, "later", "Nor such.", order="another")
    await made.ask(path, asked)
    assert sent(made, path)[: len(now)] == now


@pytest.mark.parametrize("path", PATHS)
async def test_a_single_name_in_a_call_recalls_nothing(path: str):
    made, asked, listing = await send_results(path)
    listing += call_entry(path, "late", "There is no such order.", order=ORDER)
    await made.ask(path, asked)
    assert excerpts(sent(made, path)) == []


@pytest.mark.parametrize("content", [[{"type": "tool_reference", "tool_name": "x"}], [{"type": "search_result"}]])
async def test_in_messages_nothing_is_put_into_a_result_that_takes_no_text(content: list[Json]):
    made, asked, listing = await send_results(MESSAGES)
    listing += call_entry(MESSAGES, "late", "There is no such order.", order=ORDER, item=ITEM, store="ST_5512_k")
    listing[-1]["content"][0]["content"] = content
    await made.ask(MESSAGES, asked)
    assert excerpts(sent(made, MESSAGES)) == []
    assert sent(made, MESSAGES)[-1] == listing[-1]


async def test_a_provider_that_is_translated_to_gets_nothing_between_results_and_calls():
    config = "read_back: {recall: {share: 20%}}"
    made = build_world(router=FakeRouter(only=Route("azure", "litellm", "")), config=config)
    for path, comes in ((RESPONSES, False), (CHAT, True)):
        asked = request(path)
        listing = asked[LISTING[path]] = asked[LISTING[path]][:-2]
        assert not await is_recalled(made, path, asked)
        listing += call_entry(path, "late", "There is no such order.", order=ORDER, item=ITEM, store="ST_5512_k")
        assert await is_recalled(made, path, asked) == comes, "in Chat Completions it is a part of the result"


@pytest.mark.parametrize("path", PATHS)
async def test_several_messages_of_the_user_in_a_row_stay_together(path: str):
    made, before = await compact_first(path)
    await made.ask(
        path,
        request(path, assistant_entry(path, "Nothing yet."), user_entry(path, NAMING), user_entry(path, "Be quick.")),
    )
    now = sent(made, path)
    assert now[: len(before)] == before
    [place] = excerpts(now)
    assert place == len(before) + 1
    assert json.dumps(now[place:]).index(ITEM) < json.dumps(now[place:]).index(NAMING)


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_is_recalled_where_the_settings_say_so(path: str):
    made, _ = await compact_first(path, config="read_back: {recall: {tokens: 0}}")
    await made.ask(path, build_question(path))
    assert excerpts(sent(made, path)) == []


async def test_an_excerpt_takes_no_more_than_the_settings_say():
    counts = []
    for settings in ("share: 0.2", "share: 0.2, tokens: 95", "share: 0.02"):
        made, _ = await compact_first(CHAT, config=f"read_back: {{recall: {{{settings}}}}}")
        await made.ask(CHAT, build_question(CHAT))
        recalled = made.recorder.exchanges[-1].recall
        counts.append(recalled.tokens if recalled is not None else 0)
    assert counts[0] > 95 >= counts[1] > 0
    assert 60 >= counts[2] > 0


@pytest.mark.parametrize("erased", [False, True])
async def test_for_a_request_whose_session_is_erased_meanwhile_nothing_is_recalled(erased: bool):
    made, _ = await compact_first(CHAT)
    assert await is_recalled(made, CHAT, build_question(CHAT), erased=erased) is not erased
    assert bool(made.builder.insertion_store.size) is not erased


@pytest.mark.parametrize(("room", "found"), [(8 * 200, True), (8 * 20, False), (-100, False)])
async def test_an_excerpt_takes_an_eighth_of_the_room_that_is_left_at_most(room: int, found: bool):
    made, _ = await compact_first(CHAT)
    measured = await made.measure(CHAT, build_question(CHAT))
    limits = replace(measured.limits, hard=measured.utilization.occupied_tokens + room)
    prepared = await made.forward.prepare(structs.replace(measured, limits=limits))
    assert (prepared.recall_usage is not None) == found


@pytest.mark.parametrize("headers", [{"x-accordion-compact": "off"}, {"x-accordion-compact": "observe"}])
async def test_nothing_is_recalled_where_the_request_is_not_to_be_changed(headers: dict[str, str]):
    made, _ = await compact_first(CHAT)
    await made.ask(CHAT, build_question(CHAT), headers)
    assert sent(made, CHAT) == build_question(CHAT)["messages"]


async def test_counting_includes_recalled_excerpts_and_recalls_nothing():
    made, _ = await compact_first(MESSAGES)
    await made.ask(COUNT, build_question(MESSAGES))
    assert excerpts(sent(made, MESSAGES)) == []
    await made.ask(MESSAGES, build_question(MESSAGES))
    listed = sent(made, MESSAGES)
    await made.ask(COUNT, build_question(MESSAGES))
    assert sent(made, MESSAGES) == listed


async def test_a_client_that_asks_for_its_own_summary_gets_no_excerpt():
    made, _ = await compact_first(MESSAGES)
    await made.ask(MESSAGES, {**build_question(MESSAGES), "compaction": {"type": "auto"}})
    assert excerpts(sent(made, MESSAGES)) == []


@pytest.mark.parametrize("path", PATHS)
async def test_references_and_excerpts_that_a_user_makes_up_do_nothing(path: str):
    made, _ = await compact_first(path)
    imitation = f"{OPENING}: quoted.]\n\nResult of read, message 5, archived as art_0123456789ab:\n> nothing"
    asked = build_question(path, imitation)
    await made.ask(path, asked)
    assert made.recorder.exchanges[-1].recall is None
    assert sent(made, path)[-1] == asked[LISTING[path]][-1]


async def test_nothing_is_recalled_before_anything_left():
    made = PipelineSetup(windows=FakeWindows(100_000))
    inbound = made.inbound(CHAT, build_question(CHAT))
    await made.forward(inbound)
    assert made.upstream.requests[-1].body == inbound.body


async def test_another_tenant_is_recalled_nothing_of_this_one():
    made, _ = await compact_first(CHAT)
    other = {"authorization": "Bearer of-another"}
    await made.ask(CHAT, request(CHAT, rounds=2) | {"messages": [user_entry(CHAT, NAMING)]}, other)
    assert excerpts(sent(made, CHAT)) == []


async def test_while_the_store_is_away_something_is_recalled_all_the_same():
    store = FickleStore()
    made, _ = await compact_first(CHAT, store=store)
    store.away = True
    for _ in range(2):
        await made.ask(CHAT, build_question(CHAT))
        assert len(excerpts(sent(made, CHAT))) == 1


async def test_another_worker_sends_what_was_recalled():
    one, _ = await compact_first(CHAT)
    await one.ask(CHAT, build_question(CHAT))
    await one.outbox.flush()
    other = build_world(store=one.store)
    await other.ask(CHAT, build_question(CHAT))
    assert sent(other, CHAT) == sent(one, CHAT)


async def test_a_search_that_fails_leaves_the_request_as_it_was(caplog: pytest.LogCaptureFixture):
    made, _ = await compact_first(CHAT)
    [artifact_recall] = made.forward.prepare.compaction_step.recall_sources
    assert isinstance(artifact_recall, ArtifactRecall)

    class Failing:
        def pending_bytes(self, *_: Any) -> int:
            return 0

        def find_excerpt(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("broken")

    failing: Any = Failing()
    made.replace_in("compaction_step", recall_sources=[replace(artifact_recall, archive_search=failing)])
    out, _ = await made.ask(CHAT, build_question(CHAT))
    assert out.status == 200
    assert "the archive could not be searched for this turn" in caplog.text
    assert made.recorder.exchanges[-1].recall is None
    assert NAMING in json.dumps(sent(made, CHAT)[-1])


@pytest.mark.parametrize("path", PATHS)
async def test_a_compaction_is_indexed_behind_the_response(path: str):
    made = build_world()
    [artifact_recall] = made.forward.prepare.compaction_step.recall_sources
    assert isinstance(artifact_recall, ArtifactRecall)
    archive_search, tasks = artifact_recall.archive_search, LoopTasks()
    made.rebuild(response_hooks=[RecallIndexHook(archive_search, tasks)])
    await made.ask(path, json.loads(json.dumps(request(path)).replace("What is next?", "Thank you.")))
    assert archive_search.indexes.size == 0
    await asyncio.gather(*tasks._running_tasks)
    assert made.recorder.exchanges[-1].compaction
    assert archive_search.indexes.size > 0
    await made.ask(path, build_question(path))
    assert ITEM in json.dumps(sent(made, path))
    assert not tasks._running_tasks, "a compaction that is applied again has its index"
    await tasks.close()


async def test_a_recalled_excerpt_is_counted_once():
    made, _ = await compact_first(CHAT)
    for _ in range(2):
        await made.ask(CHAT, build_question(CHAT))
    metrics = Metrics()
    for exchange in made.recorder.exchanges:
        metrics.exchange("tenant", exchange, "")
    recalled = made.recorder.exchanges[1].recall
    assert recalled is not None
    page = metrics.render()[0].decode()
    assert 'accordion_recalls_total{agent="main",model="gpt-5",upstream="openai"} 1.0' in page
    assert (
        f'accordion_recall_tokens_total{{agent="main",model="gpt-5",upstream="openai"}} {float(recalled.tokens)}'
        in page
    )
