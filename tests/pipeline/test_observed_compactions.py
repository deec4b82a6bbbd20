"""The mode `observe` reports what `auto` does with the same request, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.model.ports import Key
from accordion.model.records import CompactionOutcome, Exchange
from tests.compaction.compactor_setup import with_long_results
from tests.fakes import FakeReply, FakeWindows, WaitingTasks
from tests.histories import PROTOCOL_NAMES, History, ProtocolName, body, histories
from tests.pipeline_setup import CHAT, MESSAGES, PATHS, RESPONSES, PipelineSetup
from tests.summary_samples import FakeSummarizer

ANSWER = json.dumps(
    {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "m",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}],
    }
).encode()
CONTROL = "x-accordion-compact"


async def send(setup: PipelineSetup, path: str, request: Any, mode: str = "auto") -> Exchange:
    """Sends a request in one mode; returns its record."""
    await setup.ask(path, request, {} if mode == "auto" else {CONTROL: mode})
    return setup.recorder.exchanges[-1]


def as_report(outcome: CompactionOutcome | None) -> CompactionOutcome | None:
    """The report that `observe` gives for the compaction that `auto` made."""
    return None if outcome is None else replace(outcome, state="observed", id="", saved=0, artifacts=0)


def stored_names(setup: PipelineSetup) -> set[Key]:
    """The names of what compactions stored: records and artifacts."""
    return {key for key in setup.store._values if key.collection.partition("/")[0] in ("compaction", "artifact", "row")}


def long_talk(turns: int) -> list[dict[str, Any]]:
    """A talk without tools."""
    said: list[dict[str, Any]] = []
    for at in range(turns):
        said.append({"role": "user", "content": f"Question {at}: " + "word " * 150})
        said.append({"role": "assistant", "content": f"Answer {at}: " + "word " * 200})
    return [*said, {"role": "user", "content": "And now?"}]


def huge_first_message() -> dict[str, Any]:
    """A huge opening request, and two short results that nothing can be saved by."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "text " * 19_000}]
    for at in range(2):
        call = {"type": "tool_use", "id": f"toolu_{at}", "name": "read", "input": {"path": f"file {at}"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": "a short result " * 30}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return {"model": "claude-sonnet-4-5", "max_tokens": 12_000, "messages": messages}


async def test_a_compaction_that_auto_does_not_make_is_not_reported_as_one() -> None:
    made, observed = [
        await send(PipelineSetup(windows=FakeWindows(40_000)), MESSAGES, huge_first_message(), mode)
        for mode in ("auto", "observe")
    ]
    assert made.compaction is not None
    assert (made.compaction.state, made.compaction.failure) == ("failed", "nothing_to_compact")
    assert observed.compaction == as_report(made.compaction)


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@given(data=st.data())
@settings(max_examples=12)
async def test_observe_reports_exactly_what_auto_does(protocol_name: ProtocolName, data: st.DataObject) -> None:
    history = with_long_results(data.draw(histories(min_turns=2, max_turns=5)))
    window = data.draw(st.integers(150, 3_000))
    fields = {"max_tokens": data.draw(st.integers(1, 200))} if protocol_name in ("chat", "messages") else {}
    path, request = PATHS[protocol_name], body(history, protocol_name, **fields)
    is_configured = data.draw(st.booleans())
    asked = data.draw(st.sampled_from(["auto", "now"])) if is_configured else "auto"
    made = PipelineSetup(windows=FakeWindows(window))
    observed = PipelineSetup(windows=FakeWindows(window), config="compaction: {mode: observe}" if is_configured else "")
    known_turns = 0 if is_configured else data.draw(st.integers(0, len(history.turns) - 1))
    if known_turns:
        # Both stores have what `auto` made of the beginning.
        beginning = body(History(history.turns[:known_turns], history.system), protocol_name, **fields)
        for setup in (made, observed):
            await send(setup, path, beginning)
    stored = stored_names(observed)
    by_auto = await send(made, path, request, asked)
    by_observe = await send(observed, path, request, asked if is_configured else "observe")
    event(f"{by_auto.compaction.state} {by_auto.compaction.failure}" if by_auto.compaction else "nothing")
    event(f"status {by_auto.status}")
    assert by_observe.compaction == as_report(by_auto.compaction)
    assert by_observe.decision.startswith(by_auto.decision)
    assert json.loads(observed.upstream.requests[-1].body) == request
    assert stored_names(observed) == stored


async def test_a_model_is_not_asked_for_a_summary_that_is_only_reported() -> None:
    request = {"model": "m", "max_tokens": 10, "messages": long_talk(8)}
    made, observed = [
        PipelineSetup(windows=FakeWindows(4_000), summarizer=FakeSummarizer(), tasks=WaitingTasks()) for _ in range(2)
    ]
    assert (await send(made, CHAT, request)).compaction is None, "the request passes while the model writes"
    await made.tasks.run()
    by_auto = (await send(made, CHAT, request)).compaction
    by_observe = (await send(observed, CHAT, request, "observe")).compaction
    assert by_auto is not None
    assert by_observe is not None
    assert (by_auto.state, by_observe.state, by_observe.failure) == ("compacted", "observed", "")
    assert (by_observe.writer, by_observe.input, by_observe.output) == ("estimated", 0, 0)
    assert by_observe.before == by_auto.before
    assert not observed.tasks.waiting
    assert not observed.summarizer.requests


async def test_a_request_that_auto_refuses_is_reported_and_passes() -> None:
    messages = [{"role": "system", "content": "word " * 9_000}, {"role": "user", "content": "And now?"}]
    request = {"model": "m", "messages": messages}
    by_auto, by_observe = [
        await send(PipelineSetup(windows=FakeWindows(4_000)), CHAT, request, mode) for mode in ("auto", "observe")
    ]
    assert (by_auto.status, by_observe.status) == (400, 200)
    assert by_observe.compaction == as_report(by_auto.compaction)
    assert by_observe.decision == f"{by_auto.decision}; this is only reported, and the request passes"


async def test_a_history_that_the_provider_keeps_is_tried_like_any_other() -> None:
    made, observed = [PipelineSetup(windows=FakeWindows(4_000)) for _ in range(2)]
    for setup in (made, observed):
        setup.upstream.answers = [FakeReply(pieces=(ANSWER,)), FakeReply(pieces=(ANSWER,))]
        await send(setup, RESPONSES, {"model": "m", "input": long_talk(4)})
    request = {"model": "m", "previous_response_id": "resp_1", "input": "word " * 1_200}
    by_auto = await send(made, RESPONSES, request)
    by_observe = await send(observed, RESPONSES, request, "observe")
    assert by_auto.compaction is not None
    assert by_auto.compaction.state == "compacted"
    assert by_observe.compaction == as_report(by_auto.compaction)
    assert json.loads(observed.upstream.requests[-1].body) == request
