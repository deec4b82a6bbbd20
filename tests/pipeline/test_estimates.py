"""A long request that is new is forwarded by an estimate of its tokens, and counted meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from accordion.accounting.calibration import LearnedLimits
from accordion.accounting.holdout import Holdout
from accordion.config.load import build
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.model.http import Inbound
from accordion.model.insertions import RecallInsertion
from accordion.pipeline.request import PassthroughRequest
from accordion.providers.models.windows import ModelWindows
from accordion.stores.memory_store import InMemoryStore
from tests.compaction.compactor_setup import LoopTasks
from tests.fakes import FakeReply, FakeWindows
from tests.pipeline_setup import CHAT, MESSAGES, RESPONSES, PipelineSetup, header
from tests.recordings import read_recording, transcripts
from tests.reply_parts import fake_reply
from tests.tiers import first_quick

T = TypeVar("T")
SOURCE = "x-accordion-tokens-source"
LONG = 15_000  # words, so that the bound is below the soft threshold of 40,000 tokens
NEAR = 35_000  # words: below it, but the bound is above
STRUCTURE = 4 + 3  # tokens of a message and of the reply


class HeldTasks(LoopTasks):
    """Counts of estimated requests wait until `let` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()
        self.names: list[str] = []

    async def offload(self, call: Callable[..., T], *args: Any) -> T:
        self.names.append(getattr(call, "__name__", "?"))
        if self.names[-1] == "recount":
            await self.let.wait()
        return await super().offload(call, *args)


def build_setup() -> tuple[PipelineSetup, HeldTasks]:
    tasks = HeldTasks()
    setup = PipelineSetup(tasks=tasks, windows=FakeWindows())  # type: ignore[arg-type]  # LoopTasks does what it needs
    setup.replace_in("measurer", can_estimate=True)
    return setup, tasks


def body(words: int, *more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "word " * words}, *more], **fields}


async def test_a_long_first_request_is_forwarded_before_it_is_counted():
    setup, tasks = build_setup()
    setup.upstream.answers = [fake_reply("chat", input=20_000)]
    out, answer = await setup.ask(CHAT, body(LONG))
    setup.clock.advance(5)
    assert json.loads(answer)["usage"]["prompt_tokens"] == 20_000
    assert header(out, SOURCE) == "estimate"
    assert int(header(out, "x-accordion-tokens") or 0) == pytest.approx(LONG, rel=0.1)
    assert (tasks.names.count("measure"), len(setup.recorder.exchanges)) == (0, 0)
    tasks.let.set()
    await tasks.done()
    [exchange] = setup.recorder.exchanges
    assert exchange.utilization.tokens == LONG + STRUCTURE
    assert exchange.decision.startswith("about 1")
    assert exchange.duration < 5


async def test_the_next_turn_has_exact_counts_and_the_report():
    setup, tasks = build_setup()
    tasks.let.set()
    setup.upstream.answers = [fake_reply("chat", input=20_000)]
    await setup.ask(CHAT, body(LONG))
    await tasks.done()
    out, _ = await setup.ask(CHAT, body(LONG, {"role": "assistant", "content": "one two"}))
    assert header(out, SOURCE) is None
    # What was reported, and the new words and their message, corrected in the same ratio.
    added = round((2 + 4) * 20_000 / (LONG + STRUCTURE))
    assert header(out, "x-accordion-tokens") == str(20_000 + added)


async def test_a_request_near_a_threshold_is_counted_first():
    setup, tasks = build_setup()
    out, _ = await setup.ask(CHAT, body(NEAR))
    assert header(out, SOURCE) is None
    assert header(out, "x-accordion-tokens") == str(NEAR + STRUCTURE)
    assert "measure" in tasks.names
    assert "recount" not in tasks.names


@pytest.mark.parametrize("words", [1_000, 13_000])
async def test_a_short_request_is_counted_first(words: int):
    setup, _ = build_setup()
    out, _ = await setup.ask(CHAT, body(words))
    assert (header(out, SOURCE), header(out, "x-accordion-tokens")) == (None, str(words + STRUCTURE))


async def test_a_long_request_into_which_another_worker_put_something_is_counted_first():
    """As in a sub-agent that read artifacts of other agents, before anything was compacted."""
    store = InMemoryStore()
    first, second = (PipelineSetup(store=store, windows=FakeWindows()) for _ in range(2))
    sent = body(LONG, {"role": "assistant", "content": "one two"}, {"role": "user", "content": "three"})
    measured = await first.measure(CHAT, sent)
    recalled = json.dumps({"role": "user", "content": "what was recalled"}).encode()
    recall = RecallInsertion(measured.conversation.chain[-2], recalled, 0.0, ())
    assert await first.builder.insertion_store.add(measured.ref, recall, first.clock.monotonic())
    of_agent, list_meter = replace(measured, foreign_ids="unreadable"), second.forward.reader.measurer.list_meter
    assert await list_meter.is_estimable(measured, measured.history, check_store=True)
    assert not await list_meter.is_estimable(of_agent, of_agent.history, check_store=True)


async def test_a_request_that_is_to_be_compacted_now_is_counted_first():
    setup, _ = build_setup()
    out, _ = await setup.ask(CHAT, body(LONG), {"x-accordion-compact": "now"})
    assert header(out, SOURCE) is None


async def test_a_request_in_the_holdout_is_counted_first_near_its_trigger():
    setup, _ = build_setup()
    setup.replace_in("measurer", holdout=Holdout(1.0))
    near, _ = await setup.ask(CHAT, body(45_000))
    far, _ = await setup.ask(CHAT, body(LONG))
    assert (header(near, SOURCE), header(far, SOURCE)) == (None, "estimate")


async def test_a_request_to_a_model_with_an_unknown_window_is_estimated():
    setup, _ = build_setup()
    setup.replace_in("measurer", window_table=ModelWindows(LearnedLimits(lambda: 0.0)))
    out, _ = await setup.ask(CHAT, body(LONG))
    assert (header(out, SOURCE), header(out, "x-accordion-window-source")) == ("estimate", "default")


async def test_texts_that_the_provider_does_not_read_are_not_estimated():
    setup, _ = build_setup()
    block = {"type": "compaction", "content": "All of it."}
    then = [{"role": "assistant", "content": [block]}, {"role": "user", "content": "Go on."}]
    out, _ = await setup.ask(MESSAGES, {**body(LONG, *then), "max_tokens": 9})
    assert int(header(out, "x-accordion-tokens") or 0) < 100


async def test_a_request_with_many_messages_is_estimated_in_a_thread():
    setup, tasks = build_setup()
    turns = [{"role": role, "content": "word " * 20} for _ in range(600) for role in ("assistant", "user")]
    out, _ = await setup.ask(CHAT, body(0, *turns))
    assert header(out, SOURCE) == "estimate"
    assert "next" in tasks.names


async def test_space_for_the_answer_counts_towards_the_thresholds():
    setup, _ = build_setup()
    out, _ = await setup.ask(CHAT, body(LONG, max_tokens=30_000))
    assert header(out, SOURCE) is None


async def test_a_request_for_a_count_is_answered_with_a_count():
    setup, _ = build_setup()
    asked = {"model": "claude", "messages": [{"role": "user", "content": "word " * LONG}]}
    out, _ = await setup.ask(f"{MESSAGES}/count_tokens", asked)
    assert (header(out, SOURCE), header(out, "x-accordion-tokens")) == (None, str(LONG + STRUCTURE))


async def test_the_model_learns_from_the_count_and_not_from_the_estimate():
    """The reported tokens are the counted ones, so that nothing has to be corrected."""
    setup, tasks = build_setup()
    setup.upstream.answers = [fake_reply("chat", input=LONG + STRUCTURE)]
    await setup.ask(CHAT, body(LONG))
    tasks.let.set()
    await tasks.done()
    out, _ = await setup.ask(CHAT, {"model": "m", "messages": [{"role": "user", "content": "other " * 10_000}]})
    assert header(out, "x-accordion-tokens") == str(10_000 + STRUCTURE)


async def test_costs_without_a_report_are_those_of_the_count():
    setup, tasks = build_setup()
    setup.upstream.answers = [FakeReply(pieces=(b'{"choices": []}',))]
    await setup.ask(CHAT, {**body(LONG), "model": "gpt-4o"})
    tasks.let.set()
    await tasks.done()
    counted = PipelineSetup(windows=FakeWindows())
    counted.upstream.answers = [FakeReply(pieces=(b'{"choices": []}',))]
    await counted.ask(CHAT, {**body(LONG), "model": "gpt-4o"})
    assert setup.recorder.exchanges[0].costs == counted.recorder.exchanges[0].costs


async def test_a_request_that_failed_is_recorded_with_the_count():
    setup, tasks = build_setup()
    setup.upstream.answers = [fake_reply("chat", input=50_000, status=500)]
    await setup.ask(CHAT, body(LONG))
    tasks.let.set()
    await tasks.done()
    [exchange] = setup.recorder.exchanges
    assert (exchange.status, exchange.utilization.tokens) == (500, LONG + STRUCTURE)


async def test_a_request_is_recorded_if_its_count_is_cancelled():
    setup, tasks = build_setup()
    await setup.ask(CHAT, body(LONG))
    await asyncio.sleep(0)
    for task in tasks.running:
        task.cancel()
    await tasks.done()
    assert setup.recorder.exchanges[0].utilization.tokens == LONG + STRUCTURE


async def test_a_request_is_recorded_at_once_if_its_count_is_complete():
    setup, tasks = build_setup()
    tasks.let.set()
    setup.upstream.answers = [fake_reply("chat")]
    out = await setup.forward(setup.inbound(CHAT, body(LONG)))
    await tasks.done()
    async for _ in out.body:  # type: ignore[union-attr]  # it is streamed
        assert not setup.recorder.exchanges
    assert setup.recorder.exchanges[0].utilization.tokens == LONG + STRUCTURE
    assert tasks.names.count("recount") == 1


async def test_a_response_that_breaks_off_is_recorded_with_the_count():
    setup, tasks = build_setup()
    out = await setup.forward(setup.inbound(CHAT, body(LONG)))
    assert not isinstance(out.body, bytes)
    await out.body.aclose()  # type: ignore[attr-defined]  # it is a generator
    tasks.let.set()
    await tasks.done()
    [exchange] = setup.recorder.exchanges
    assert (exchange.error, exchange.utilization.tokens) == ("client_disconnected", LONG + STRUCTURE)


async def test_a_response_that_a_later_request_continues_is_stored_with_the_count():
    setup, tasks = build_setup()
    tasks.let.set()
    done = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": []}
    setup.upstream.answers = [FakeReply(pieces=(json.dumps(done).encode(),))]
    first, _ = await setup.ask(RESPONSES, {"model": "m", "input": "word " * LONG})
    await tasks.done()
    then, _ = await setup.ask(RESPONSES, {"model": "m", "input": "go on", "previous_response_id": "resp_1"})
    assert header(first, SOURCE) == "estimate"
    assert header(then, "x-accordion-tokens") == str(LONG + STRUCTURE + 2 + 4 + 3)


async def test_a_request_that_continues_a_response_is_counted_first():
    setup, tasks = build_setup()
    tasks.let.set()
    done = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": []}
    setup.upstream.answers = [FakeReply(pieces=(json.dumps(done).encode(),))]
    await setup.ask(RESPONSES, {"model": "m", "input": "Hello."})
    then, _ = await setup.ask(RESPONSES, {"model": "m", "input": "word " * LONG, "previous_response_id": "resp_1"})
    assert header(then, SOURCE) is None


async def test_a_request_that_overflows_is_counted_before_it_is_compacted():
    setup, tasks = build_setup()
    tasks.let.set()
    error = {
        "error": {"message": "maximum context length is 9000 tokens, you sent 15000", "code": "context_length_exceeded"}
    }
    turns = [{"role": role, "content": f"{role} " * 100} for _ in range(60) for role in ("assistant", "user")]
    setup.upstream.answers = [FakeReply(status=400, pieces=(json.dumps(error).encode(),)), fake_reply("chat")]
    out, _ = await setup.ask(CHAT, body(9_000, *turns))
    assert len(setup.upstream.requests) == 2
    assert header(out, SOURCE) is None


# -- recordings ------------------------------------------------------------------------------------------------------

MODELS = {"gpt-4o": (64_000, 200_000, 1_000_000), "gpt-4": (200_000,)}
"""The windows for which each is decided. The models count by o200k_base and cl100k_base."""


class MadeDecision(NamedTuple):
    """What was decided about a request, and whether by an estimate, of so many tokens."""

    decision: tuple[Any, ...]
    is_estimated: bool
    tokens: int


async def decisions(bodies: list[bytes], window: int, *, can_estimate: bool) -> list[MadeDecision]:
    """What is decided about each conversation as a first request."""
    pipeline = OfflinePipeline(build(b"", {}, {}), window)
    for model in MODELS:
        pipeline.token_meter.count_text("", model)
    reader, made = pipeline.forward.reader, list[MadeDecision]()
    reader = msgspec.structs.replace(
        reader, measurer=msgspec.structs.replace(reader.measurer, can_estimate=can_estimate)
    )
    for number, raw in enumerate(bodies):
        inbound = Inbound("POST", CHAT, "", (), raw, f"req-{number}")
        request = await reader.read(inbound, pipeline.caller)
        assert not isinstance(request, PassthroughRequest)
        decision, used = request.decision, request.utilization
        decided = (decision.action, decision.kind, decision.trigger, decision.target, request.is_near_window)
        made.append(MadeDecision(decided, request.is_estimated, used.tokens))
    await pipeline.close()
    return made


@pytest.mark.parametrize(
    ("model", "window"), first_quick((model, window) for model in MODELS for window in MODELS[model])
)
async def test_decisions_about_recorded_conversations_are_those_of_exact_counts(model: str, window: int):
    files = transcripts()
    if not files:
        pytest.skip("the recorded conversations are not at hand")
    lists = [each for file in files for each in read_recording(file, 4)]
    bodies = [json.dumps({"model": model, "messages": each}).encode() for each in lists]
    by_count = await decisions(bodies, window, can_estimate=False)
    by_estimate = await decisions(bodies, window, can_estimate=True)
    assert [made.decision for made in by_estimate] == [made.decision for made in by_count]
    pairs = [pair for pair in zip(by_estimate, by_count, strict=True) if pair[0].is_estimated]
    assert pairs
    assert all(0.85 < estimate.tokens / count.tokens < 1.15 for estimate, count in pairs)
