"""A compaction takes away what was read back as well, and plans know it. In one process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.compaction.request import CompactionRequest, CompactionResult
from accordion.model.insertions import RecallInsertion, ToolRound, ToolRoundInsertion
from accordion.protocols.tool_loop import ArtifactToolResult
from tests.insertions.test_composer import (
    CHAT,
    MESSAGES,
    WEAVERS,
    InsertionSetup,
    build_setup,
    later,
    read_back,
    request,
    sent,
    words,
)
from tests.pipeline_setup import header

Json = dict[str, Any]
PAGES = {CHAT: 220, MESSAGES: 200}


async def talked(setup: InsertionSetup, path: str, turns: int = 4) -> Json:
    """A conversation that was compacted, and then so many short turns in each of which so many words were read back.
    The newest of them is still to be asked."""
    asked = request(20, path)
    await setup.ask(path, asked)
    for turn in range(turns):
        await setup.add(path, asked, read_back(path, PAGES[path], f"Answer {turn}."))
        asked = later(asked, path, f"Answer {turn}.", f"And question {turn}?")
        if turn < turns - 1:
            await setup.ask(path, asked)
    return asked


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_history_that_is_full_of_what_was_read_back_is_compacted(path: str):
    """There is hardly anything else that could be taken away."""
    setup = build_setup()
    asked = await talked(setup, path)
    measured = await setup.measure(path, asked)
    assert measured.decision.action == "compact", measured.decision
    assert measured.utilization.insertions > 780
    out, _ = await setup.ask(path, asked)
    told = json.loads(header(out, "x-accordion-compaction"))
    assert told["state"] == "compacted", told
    now = json.dumps(sent(setup)["messages"])
    assert "page199" not in now
    assert "question 3" in now
    after = await setup.measure(path, asked)
    assert after.utilization.tokens <= after.limits.conversation_target + 300


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_what_a_compaction_is_said_to_come_to_is_what_is_sent(path: str):
    setup = build_setup()
    asked = await talked(setup, path)
    before = await setup.measure(path, asked)
    await setup.ask(path, asked)
    after = await setup.measure(path, asked)
    made = after.history.compaction
    assert abs(made.before - before.utilization.tokens) <= 2
    assert abs(made.after - after.utilization.tokens) <= 0.02 * after.utilization.tokens + 5


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_read_back_content_is_no_saving(path: str):
    """The client never sent it."""
    setup = build_setup()
    asked = await talked(setup, path)
    before = (await setup.measure(path, asked)).history.compaction.tokens_saved
    plain = await setup.measure(path, asked)
    await setup.ask(path, asked)
    made = (await setup.measure(path, asked)).history.compaction
    own = plain.utilization.tokens - plain.utilization.insertions - made.after
    assert abs(made.tokens_saved - before - own) <= 10


async def test_what_was_recalled_goes_with_the_compaction_too():
    setup = build_setup()
    asked = request(20)
    await setup.ask(CHAT, asked)
    for turn in range(3):
        wire = json.dumps({"role": "user", "content": " ".join(f"found{at}" for at in range(350))}).encode()
        asked = later(asked, CHAT, f"Answer {turn}.", f"And question {turn}?")
        measured = await setup.measure(CHAT, asked)
        anchor = measured.session_match.conversation.chain[-2]
        await setup.insertions.add(measured.ref, RecallInsertion(anchor, wire, 1.0), 0.0)
    measured = await setup.measure(CHAT, asked)
    assert measured.utilization.insertions > 1000
    out, _ = await setup.ask(CHAT, asked)
    assert json.loads(header(out, "x-accordion-compaction"))["state"] == "compacted"
    after = await setup.measure(CHAT, asked)
    assert after.utilization.insertions < 400


# -- thinking that is bound to what stood before it --------------------------------------------------------------------


def thought(text: str) -> Json:
    return {"type": "thinking", "thinking": f"thought of {text}", "signature": f"sealed of {text}"}


def used(name: str, call_id: str) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


class Idle:
    """A compactor that finds nothing to compact."""

    async def compact(self, case: CompactionRequest) -> CompactionResult:
        return CompactionResult(case.history)


@pytest.mark.parametrize(("model", "left"), [("claude-opus-5-5", []), ("claude-sonnet-4-5", ["reading", "work"])])
async def test_where_what_was_read_back_goes_so_does_the_thinking_that_is_bound_to_it(model: str, left: list[str]):
    """Nothing more can be compacted, and with what was read it does not fit."""
    setup = build_setup()
    asked = {**request(20, MESSAGES), "model": model}
    await setup.ask(MESSAGES, asked)
    first = {"role": "assistant", "content": [thought("reading"), used("read_artifact", "o1")]}
    last = {"role": "assistant", "content": [thought("work"), used("read", "late")]}
    answers = WEAVERS["messages"].render_results([ArtifactToolResult("o1", words(5_000, "page"))], "read_artifact")
    rounds = (ToolRound((json.dumps(first).encode(),), answers), ToolRound((json.dumps(last).encode(),)))
    await setup.add(MESSAGES, asked, lambda anchor: ToolRoundInsertion(anchor, rounds, ("late",), "", 1.0))
    copy = {"role": "assistant", "content": [thought("reading"), *last["content"]]}
    result = {"type": "tool_result", "tool_use_id": "late", "content": "Found it."}
    asked = {**asked, "messages": [*asked["messages"], copy, {"role": "user", "content": [result]}]}
    setup.replace_in("compaction_step", compactors=lambda _model, _delegated: Idle())
    out, _ = await setup.ask(MESSAGES, asked)
    assert out.status == 200
    *_, call, given = sent(setup)["messages"]
    assert "page299" not in json.dumps(sent(setup))
    assert [text for text in ("reading", "work") if f"sealed of {text}" in json.dumps(call)] == left
    assert call["content"][-1]["id"] == "late"
    assert given["content"] == [result]
    exchange = setup.recorder.exchanges[-1]
    assert exchange.utilization.insertions == 0
    assert exchange.utilization.tokens < 1_000
