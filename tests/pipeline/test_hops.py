"""A conversation that goes to another worker with each turn: what that worker must read, and what it must count."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.insertions import RecallInsertion
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import FakeReply, FakeUpstream, FakeWindows
from tests.growing_conversation import compaction_record, reply_with_usage
from tests.pipeline_setup import CHAT, PipelineSetup

Json = dict[str, Any]
ROUND_WORDS = 200
TURNS = 40


class ReadingStore(InMemoryStore):
    """Counts the keys that it is asked for whose names begin with `compaction/` or `insertion/`."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.compactions = self.insertions = 0

    async def get_many(self, keys):
        self.compactions += sum(key.name.startswith("compaction/") for key in keys)
        self.insertions += sum(key.name.startswith("insertion/") for key in keys)
        return await super().get_many(keys)


class ReportingUpstream(FakeUpstream):
    """Reports the words of a request's body as its tokens."""

    fails = False

    async def send(self, request):
        self.answers = [FakeReply(503) if self.fails else reply_with_usage(len(request.body.split()))]
        return await super().send(request)


class Talk:
    """A task, and a tool call with its result in each further turn; any of the workers may get a turn.

    The workers have one store and do not know of each other's requests, as those on different machines.
    """

    def __init__(self, count: int) -> None:
        self.store = ReadingStore()
        self.workers = [self._start(number) for number in range(count)]
        self.messages: list[Json] = [{"role": "user", "content": "the task"}]
        self.words_counted = 0

    def _start(self, number: int) -> PipelineSetup:
        worker = PipelineSetup(windows=FakeWindows(4_000), store=self.store, upstream=ReportingUpstream())
        worker.forward.reader.identifier.sessions.worker = str(number)
        count = worker.counter.count

        def counting(text: str, encoding: str) -> int:
            self.words_counted += len(text.split())
            return count(text, encoding)

        worker.counter.count = counting
        return worker

    async def turn(self, worker: int, status: int = 200) -> Json:
        """Sends the next turn to a worker; returns the compaction header of its response."""
        at = len(self.messages)
        if at > 1:
            self.store.begin()
        function = {"name": "read", "arguments": json.dumps({"path": f"{at}.py"})}
        call = {"id": f"c{at}", "type": "function", "function": function}
        result = " ".join(f"r{at}_{number}" for number in range(ROUND_WORDS))
        self.messages += [{"role": "assistant", "tool_calls": [call]},
                          {"role": "tool", "tool_call_id": f"c{at}", "content": result}]  # fmt: skip
        self.words_counted = 0
        out, _ = await self.workers[worker].ask(CHAT, {"model": "gpt-5", "messages": self.messages})
        assert out.status == status
        await self.workers[worker].outbox.flush()
        return compaction_record(out)


async def test_a_worker_that_had_the_conversation_before_reads_what_is_new():
    talk, previous, replayed = Talk(3), {}, 0
    for turn in range(TURNS):
        record = await talk.turn(turn % 3)
        if record.get("state") == "replayed":
            assert record["id"] == previous["id"]
            # In the three turns after a compaction the worker does not have it yet.
            assert talk.store.compactions in (0, 6)
            # There are none, which the node of the turn before says.
            assert talk.store.insertions == 0
            replayed += 1
        previous = record
    assert replayed > 9


async def test_an_insertion_that_another_worker_made_is_read_once():
    talk, record, reads = Talk(3), {}, []
    while record.get("state") != "replayed":
        record = await talk.turn(0)
    text = {"role": "user", "content": "what was recalled"}
    first = talk.workers[0]
    measured = await first.measure(CHAT, {"model": "gpt-5", "messages": talk.messages})
    recall = RecallInsertion(measured.conversation.chain[-2], json.dumps(text).encode(), 0.0, ())
    assert await first.builder.insertion_store.add(measured.ref, recall, first.clock.monotonic())
    for turn in range(9):
        assert (await talk.turn(turn % 3))["id"] == record["id"]
        reads.append(talk.store.insertions)
        assert b"what was recalled" in talk.workers[turn % 3].upstream.requests[-1].body
    # The first worker has it, the others do not; after that, nothing is new.
    assert [count > 0 for count in reads] == [False, True, True, *[False] * 6]


async def test_a_worker_that_is_new_asks_for_the_compaction_of_the_turn_before_alone():
    talk, record = Talk(2), {}
    while record.get("state") != "replayed":
        record = await talk.turn(0)
    found = await talk.turn(1)
    assert (found["state"], found["id"]) == ("replayed", record["id"])
    # The levels of one anchor.
    assert talk.store.compactions == 6


async def test_a_worker_that_is_new_to_a_conversation_counts_what_is_new():
    talk, states = Talk(TURNS), []
    for turn in range(TURNS):
        record = await talk.turn(turn)
        states.append(record.get("state", "none"))
        if turn > 3 and states[-1] in ("none", "replayed"):
            assert talk.words_counted < 2 * ROUND_WORDS, (turn, states)
    assert {"none", "compacted", "replayed"} <= set(states)


async def test_a_conversation_that_hops_is_compacted_as_one_that_stays():
    async def bodies(count: int) -> list[bytes]:
        talk = Talk(count)
        for turn in range(TURNS):
            await talk.turn(turn % count)
        return [worker.upstream.requests[turn // count].body for turn in range(TURNS)
                for worker in [talk.workers[turn % count]]]  # fmt: skip

    assert await bodies(1) == await bodies(3)


async def test_a_count_of_another_list_is_not_taken_for_this_one():
    """The client rewinds: the list is shorter than the one that was counted last."""
    talk = Talk(2)
    for _ in range(5):
        await talk.turn(0)
    del talk.messages[-4:]
    await talk.turn(1)
    words = len(json.dumps(talk.messages).split())
    assert abs(talk.workers[1].recorder.exchanges[-1].utilization.tokens - words) < words / 3


@pytest.mark.parametrize("is_changed", [False, True], ids=["again", "changed"])
async def test_a_compaction_whose_request_failed_is_applied_by_another_worker(is_changed: bool):
    """The client sends its request again, or asks something else in its place."""
    talk, record, at = Talk(2), {}, 0
    while record.get("state") != "compacted":
        at = len(talk.messages)
        talk.workers[0].upstream.fails = True
        record = await talk.turn(0, 503)
        if record.get("state") != "compacted":
            del talk.messages[at:]
            talk.workers[0].upstream.fails = False
            await talk.turn(0)
    if is_changed:
        talk.messages[-1]["content"] = "another result"
    out, _ = await talk.workers[1].ask(CHAT, {"model": "gpt-5", "messages": talk.messages})
    assert compaction_record(out)["state"] == "replayed"
    assert compaction_record(out)["id"] == record["id"]
