"""Providers with rules that the proxy does not know: no session is locked, and no rule is broken more than twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes import FakeWindows
from tests.growing_conversation import compaction_record
from tests.histories import Call, History, HistoryRound, Image, ProtocolName, Turn, body, entries
from tests.pipeline_setup import PATHS, PipelineSetup
from tests.rule_provider import Rule, RuleProvider, add_field, kind_of, rules
from tests.tiers import examples
from tests.writers import LISTS, WRITERS

WINDOW = 2_400
CONFIGS = (
    "",
    "compaction: {pipeline: [compact_tool_results]}",
    "compaction: {pipeline: [{compact_tool_results: {replacement: drop, keep_last_n: 0}}, fixed_limits]}",
    "compaction: {pipeline: [superseded, keep_last_n_turns: {n: 1}]}",
)
LIMITS = ("", "\nbudgets: {max_body_bytes: 12000}", "\nbudgets: {max_images: 2}")
ON_REQUEST = {"x-accordion-compact": "now"}
STATUSES = ((400, False), (422, False), (500, False), (200, False), (200, True))
WORDS = ("Invalid request: condition 17 was not met.", "No.", "参数错误", "Something is not as it should be")
PROTOCOLS: tuple[ProtocolName, ...] = ("chat", "responses", "messages", "gemini", "converse")


@st.composite
def long_histories(draw: st.DrawFn) -> History:
    """Histories of several windows: turns with rounds of calls, and some without."""
    turns, thinks, system = [], draw(st.booleans()), draw(st.sampled_from(["", "You are an agent."]))
    for at in range(draw(st.integers(5, 9))):
        rounds = []
        for number in range(draw(st.integers(0, 4))):
            calls = tuple(
                Call(f"call_{at}_{number}_{n}", "read", {"path": f"src/{at}/{number}/{n}.py"},
                     " ".join(f"word{at}_{number}_{n}_{i}" for i in range(draw(st.integers(60, 260)))))
                for n in range(draw(st.integers(1, 2)))
            )  # fmt: skip
            thought = f"For step {number} of {at} I look. " * 8 if thinks else ""
            rounds.append(HistoryRound(calls, draw(st.sampled_from(["", "I read this file."])), thought))
        said: tuple[str | Image, ...] = (f"Please do {at}. " + "Mind the details. " * draw(st.integers(0, 40)),)
        said += (Image(2, 2),) * draw(st.sampled_from((0, 0, 1)))
        turns.append(Turn(said, tuple(rounds), f"Turn {at} is done. " + "All of it works. " * draw(st.integers(0, 40))))
    return History(tuple(turns), system)


def requests_of(history: History) -> Iterator[History]:
    """The conversation as it is before each of the model's replies."""
    for at, turn in enumerate(history.turns):
        for count in range(len(turn.rounds) + 1):
            end = dataclasses.replace(turn, rounds=turn.rounds[:count], answer="")
            yield dataclasses.replace(history, turns=(*history.turns[:at], end))


def write(history: History, protocol_name: ProtocolName, rule: Rule) -> dict[str, Any]:
    made = body(history, protocol_name, **({"max_tokens": 10} if protocol_name == "messages" else {}))
    return made | {LISTS[protocol_name]: add_field(made[LISTS[protocol_name]], rule)}


@pytest.mark.parametrize("protocol_name", PROTOCOLS)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
async def test_a_rule_that_nobody_knows_locks_no_session(protocol_name: ProtocolName, data: st.DataObject) -> None:
    history = data.draw(long_histories())
    rule = data.draw(rules(entries(history, protocol_name)))
    config = data.draw(st.sampled_from(CONFIGS))
    provider = RuleProvider(protocol_name, rule, WINDOW, *data.draw(st.sampled_from(STATUSES)))
    provider.words, provider.has_bare_error = data.draw(st.sampled_from(WORDS)), data.draw(st.booleans())
    config += data.draw(st.sampled_from(LIMITS))
    setup = PipelineSetup(windows=FakeWindows(WINDOW), upstream=provider, config=config)  # type: ignore[arg-type]
    # A server that fails gets each list twice.
    most_refused = 4 if provider.status == 500 else 2
    last: tuple[str, list[Any]] = ("", [])
    for part in requests_of(history):
        headers = ON_REQUEST if data.draw(st.sampled_from((False, False, True))) else {}
        out, answer = await setup.ask(PATHS[protocol_name], write(part, protocol_name, rule), headers)
        assert out.status == 200, (rule.name, answer)
        assert len(provider.refused) <= most_refused, rule.name
        record = compaction_record(out)
        if record.get("state") == "replayed" and record["id"] == last[0]:
            assert provider.taken[-1][: len(last[1])] == last[1], rule.name
        last = (record.get("id", ""), provider.taken[-1])


def write_unknown_content(protocol_name: ProtocolName, at: int) -> list[dict[str, Any]]:
    """A turn whose reply is of types that the proxy does not know."""
    writer, data = WRITERS[protocol_name], f"data{at} " * 150
    question, answer = writer.user(f"Question {at}"), writer.model(f"Answer {at}")
    if protocol_name == "responses":
        call = {"type": "hologram_call", "id": f"ho_{at}", "call_id": f"call_{at}", "scene": data}
        output = {"type": "hologram_call_output", "call_id": f"call_{at}", "scene": data}
        return [question, {"type": "reasoning", "id": f"rs_{at}", "summary": []}, call, output, answer]
    if protocol_name in ("gemini", "converse"):
        answer["parts" if protocol_name == "gemini" else "content"].insert(0, {"hologram": {"scene": data}})
    else:
        answer["content"] = [{"type": "hologram", "scene": data}, {"type": "text", "text": f"Answer {at}"}]
    if protocol_name == "chat":
        return [question, answer, {"role": "observer", "content": data}]
    return [question, answer]


@pytest.mark.parametrize("protocol_name", PROTOCOLS)
async def test_content_that_nobody_knows_locks_no_session(protocol_name: ProtocolName) -> None:
    pairs = {("reasoning", "hologram_call"), ("hologram_call", "hologram_call_output")}
    rule = Rule(
        "the items of a call stand together",
        lambda sent: all(
            (kind_of(one), kind_of(other)) in pairs
            for one, other in pairwise(sent)
            if kind_of(one) in {"reasoning", "hologram_call"} or kind_of(other).startswith("hologram")
        ),
    )
    provider = RuleProvider(protocol_name, rule, WINDOW)
    setup = PipelineSetup(windows=FakeWindows(WINDOW), upstream=provider)  # type: ignore[arg-type]
    told: list[dict[str, Any]] = []
    for at in range(40):
        told += write_unknown_content(protocol_name, at)
        request = WRITERS[protocol_name].request(
            "m",
            [*told, WRITERS[protocol_name].user("And now?")],
            **({"store": False} if protocol_name == "responses" else {}),
        )
        out, answer = await setup.ask(PATHS[protocol_name], request)
        assert out.status == 200, answer
        told.append(WRITERS[protocol_name].user("And now?"))
        told.append(WRITERS[protocol_name].model("This."))
    assert not provider.refused


@pytest.mark.parametrize("protocol_name", PROTOCOLS)
@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
async def test_what_fits_goes_out_as_it_came_if_all_compactions_are_refused(
    protocol_name: ProtocolName, data: st.DataObject
) -> None:
    history = data.draw(long_histories())
    own = entries(history, protocol_name)
    rule = Rule("the list is as the client wrote it", lambda sent: list(sent) == own[: len(sent)])
    provider = RuleProvider(protocol_name, rule, 2 * WINDOW)
    config = data.draw(st.sampled_from(CONFIGS)) + data.draw(st.sampled_from(LIMITS))
    setup = PipelineSetup(windows=FakeWindows(WINDOW), upstream=provider, config=config)  # type: ignore[arg-type]
    for part in requests_of(history):
        headers = ON_REQUEST if data.draw(st.booleans()) else {}
        out, _ = await setup.ask(PATHS[protocol_name], write(part, protocol_name, rule), headers)
        record = compaction_record(out)
        if record.get("before", 0) > WINDOW:
            break
        assert out.status == 200
        assert len(provider.refused) <= 2
