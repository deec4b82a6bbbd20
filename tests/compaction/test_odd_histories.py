"""Histories that are legal and not what most clients send, through the real planner to the record."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from accordion.archive.artifacts import Artifact, artifact_text
from accordion.compaction.rendering import RequestRenderer
from accordion.compaction.strategies import DEFAULT_STRATEGIES, build_strategy
from accordion.model.boundaries import is_provider_compaction
from accordion.protocols.registry import PROTOCOLS
from tests.compaction.compactor_setup import CONVERSATION, WINDOW, CompactorSetup, read
from tests.histories import History, ProtocolName, Turn, body

PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAABAAAAAMACAIAAAA12IJa" + "A" * 4_000


def build_setup(window: int) -> CompactorSetup:
    return CompactorSetup(pipeline=[build_strategy(name) for name in DEFAULT_STRATEGIES], window=window)


def working(rounds: int, name: Callable[[int, int], str], words: int = 150) -> dict[str, Any]:
    """A task in the middle of its work, two calls in each reply; `name` gives the ids."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Begin."}]
    for at in range(rounds):
        calls = [
            {
                "id": name(at, one),
                "type": "function",
                "function": {"name": "read", "arguments": f'{{"p": "{at}_{one}"}}'},
            }
            for one in range(2)
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        for one in range(2):
            text = f"result {at}_{one} " + "word " * words
            messages.append({"role": "tool", "tool_call_id": name(at, one), "content": text})
    return {"model": "m", "messages": messages}


@pytest.mark.parametrize(
    "name", [lambda at, one: "", lambda at, one: "read", lambda at, one: f"call_{at}"], ids=["none", "tool", "reply"]
)
async def test_the_newest_batch_stays_whole_where_its_calls_have_one_id(name: Callable[[int, int], str]) -> None:
    client = read(working(10, name), "chat")
    outcome = await build_setup(4_300).step(client)
    assert outcome.outcome is not None
    assert outcome.outcome.state == "compacted"
    newest = [message.wire for message in outcome.history.conversation.messages[-3:]]
    assert newest == [message.wire for message in client.messages[-3:]]
    assert PROTOCOLS["chat"].find_problems(outcome.history.conversation.messages) == []


async def test_an_artifact_of_a_result_tells_of_its_own_call_where_the_id_is_used_again() -> None:
    client = read(working(12, lambda at, one: f"call_{one}"), "chat")
    setup = build_setup(20_000)
    case = setup.case(client, decision={"target": 3_000, "is_requested": True, "kind": "generation"})
    work = setup.compactor._assembler.plan_compaction(case, at=1.0, without_summary=False)
    results = [artifact for artifact in work.removed_content.artifacts if artifact.kind == "result"]
    assert len(results) > 4
    for artifact in results:
        told = json.loads(artifact.arguments)["p"]
        assert f"result {told} " in client.messages[artifact.last].wire.decode()
        assert artifact.first < artifact.last
        assert told in _called(artifact, client)


def _called(artifact: Artifact, client: Any) -> str:
    by_key = {message.key: message for message in client.messages}
    return artifact_text(artifact, [by_key[key] for key in artifact.keys])


def using_a_computer(steps: int) -> dict[str, Any]:
    items: list[dict[str, Any]] = [{"role": "user", "content": "Book me a flight."}]
    for at in range(steps):
        items += [
            {"type": "computer_call", "call_id": f"c{at}", "id": f"cu_{at}", "status": "completed",
             "pending_safety_checks": [], "action": {"type": "click", "x": at, "y": 2, "button": "left"}},
            {"type": "computer_call_output", "call_id": f"c{at}",
             "output": {"type": "computer_screenshot", "image_url": PNG}},
        ]  # fmt: skip
    return {"model": "gpt-5", "input": [*items, {"role": "user", "content": "And now?"}]}


@pytest.mark.parametrize("window", [8_000, 10_000, 12_000, 14_000])
async def test_a_history_of_screenshots_that_no_text_may_replace_is_compacted(window: int) -> None:
    client = read(using_a_computer(12), "responses")
    outcome = await build_setup(window).step(client)
    assert outcome.outcome is not None
    assert (outcome.outcome.state, outcome.outcome.reason.count("cannot be changed")) == ("compacted", 0)
    assert outcome.outcome.after < outcome.outcome.before / 2
    assert PROTOCOLS["responses"].find_problems(outcome.history.conversation.messages) == []


def searching(turns: int) -> dict[str, Any]:
    """Questions that the provider itself looks up: what was found stands, sealed, in each reply."""
    messages: list[dict[str, Any]] = []
    for at in range(turns):
        found = [
            {"type": "web_search_result", "title": f"Page {at}", "url": f"https://example.org/{at}/{one}",
             "encrypted_content": f"E{at}x" * 400, "page_age": None}
            for one in range(4)
        ]  # fmt: skip
        failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
        reply = [
            {"type": "server_tool_use", "id": f"srvtoolu_{at}", "name": "web_search", "input": {"query": f"q {at}"}},
            {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{at}", "content": found if at % 5 else failed},
            {"type": "text", "text": f"It is {at}."},
        ]
        messages += [{"role": "user", "content": f"What is it, {at}?"}, {"role": "assistant", "content": reply}]
    messages.append({"role": "user", "content": "And now?"})
    return {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": messages}


async def test_replies_with_searches_of_the_providers_own_are_compacted() -> None:
    client = read(searching(14), "messages")
    outcome = await build_setup(10_000).step(client)
    assert outcome.outcome is not None
    assert outcome.outcome.state == "compacted"
    assert outcome.outcome.after < outcome.outcome.before / 2
    assert PROTOCOLS["messages"].find_problems(outcome.history.conversation.messages) == []


def looking_for_tools(turns: int) -> dict[str, Any]:
    """Replies in which the provider searches for tools of the client's before the model calls one."""
    items: list[dict[str, Any]] = []
    for at in range(turns):
        found = {"type": "function", "name": "read", "parameters": {"type": "object"}}
        hosted = {"execution": "server", "call_id": None, "status": "completed"}
        items += [
            {"role": "user", "content": f"Question {at}: " + "word " * 100},
            {"type": "reasoning", "id": f"rs_{at}", "summary": [], "encrypted_content": f"sealed {at}"},
            {"type": "tool_search_call", "id": f"tsc_{at}", "arguments": {"goal": "read"}, **hosted},
            {"type": "tool_search_output", "id": f"tso_{at}", "tools": [found], **hosted},
            {"type": "function_call", "id": f"fc_{at}", "call_id": f"c{at}", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{at}", "output": "word " * 400},
            {"type": "message", "id": f"msg_{at}", "role": "assistant",
             "content": [{"type": "output_text", "text": f"It is {at}.", "annotations": []}]},
        ]  # fmt: skip
    return {"model": "gpt-5", "input": [*items, {"role": "user", "content": "And now?"}]}


async def test_a_search_for_tools_keeps_the_reasoning_that_led_to_it() -> None:
    """OpenAI refuses an item that it knows by its id without the reasoning before it."""
    client = read(looking_for_tools(14), "responses")
    outcome = await build_setup(10_000).step(client)
    assert outcome.outcome is not None
    assert outcome.outcome.state == "compacted"
    sent = [json.loads(wire) for wire in RequestRenderer().render_entries(PROTOCOLS["responses"], outcome.history)]
    ids = [item.get("id", "") for item in sent]
    assert sum(name.startswith("tsc_") for name in ids) == 14
    for at, name in enumerate(ids):
        if name.startswith("tsc_"):
            number = name.removeprefix("tsc_")
            assert ids[at - 1 : at + 3] == [f"rs_{number}", name, f"tso_{number}", f"fc_{number}"]


def resumed(protocol_name: str, before: int, after: int) -> dict[str, Any]:
    """Talk of so many turns before and after the provider has compacted it by itself."""
    name, item = "messages", {"role": "assistant", "content": [{"type": "compaction", "content": "In short."}]}
    if protocol_name == "responses":
        name, item = "input", {"type": "compaction", "id": "cmp_1", "encrypted_content": "b3BhcXVl" * 40}
    said: list[dict[str, Any]] = []
    for at in range(before + after):
        said.append({"role": "user", "content": f"Question {at}: " + "word " * 200})
        said += [item] if at == before else [{"role": "assistant", "content": f"Answer {at}."}]
    said.append({"role": "user", "content": "And now?"})
    return {"model": "m", "max_tokens": 100, name: said}


@pytest.mark.parametrize("protocol_name", ["messages", "responses"])
async def test_the_providers_own_compaction_precedes_the_record_of_later_messages(protocol_name: str) -> None:
    """A provider drops what is before its own compaction; there nobody would read the record."""
    setup = build_setup(8_000)
    for after in (20, 28, 36, 44):
        client = read(resumed(protocol_name, 10, after), protocol_name)
        outcome = await setup.step(client)
        wires = [message.wire.decode() for message in outcome.history.conversation.messages]
        own = next(at for at, wire in enumerate(wires) if '"compaction"' in wire)
        records = [at for at, wire in enumerate(wires) if "[Record of messages" in wire]
        assert records
        assert min(records) > own
        assert PROTOCOLS[protocol_name].find_problems(outcome.history.conversation.messages) == []


async def test_a_compaction_behind_a_providers_own_compaction_saves_what_it_says_it_saves() -> None:
    """What costs nothing is neither counted nor touched, though an earlier compaction had left its own there."""
    setup, before = build_setup(8_000), read(resumed("messages", 40, 1), "messages")
    early = replace(before, messages=before.messages[:79], chain=before.chain[:79])
    first = await setup.step(early)
    assert first.outcome is not None
    assert first.outcome.state == "compacted"
    later = await setup.compactions.find(PROTOCOLS["messages"], CONVERSATION, before, check_store=False)
    assert later.compaction is not None
    case = setup.case(before)
    assert setup.compactor._assembler.count_with(case, later) == case.utilization.tokens < 400, (
        "it saves nothing any more"
    )
    client = read(resumed("messages", 40, 30), "messages")
    replayed = setup.compactions.find_local(PROTOCOLS["messages"], CONVERSATION, client)
    outcome = await setup.step(client)
    assert outcome.outcome is not None
    assert outcome.outcome.state == "compacted"
    assert outcome.outcome.before == setup.meter.measure(replayed.conversation, WINDOW).tokens
    assert outcome.outcome.after == setup.meter.measure(outcome.history.conversation, WINDOW).tokens
    own = next(at for at, message in enumerate(replayed.conversation.messages) if is_provider_compaction(message))
    assert [message.wire for message in outcome.history.conversation.messages[: own + 1]] == [
        message.wire for message in replayed.conversation.messages[: own + 1]
    ]


async def test_a_later_compaction_leaves_what_an_earlier_one_said_of_a_result() -> None:
    """What is said of a reference (its size, its digest) is not true of the result."""
    setup = CompactorSetup(
        pipeline=[build_strategy("compact_tool_results", {"replacement": "reference"})], window=20_000
    )
    setup.compactor._assembler._make_digest = lambda text, most: "about: " + "x " * (most // 2 - 4)
    said: dict[str, bytes] = {}
    compactions = 0
    for rounds in range(8, 32, 4):
        client = read(working(rounds, lambda at, one: f"c{at}_{one}", words=800), "chat")
        outcome = await setup.step(client)
        compactions += outcome.outcome is not None and outcome.outcome.state == "compacted"
        for message in outcome.history.conversation.messages:
            if b"[Result of" in message.wire:
                called = json.loads(message.wire)["tool_call_id"]
                assert said.setdefault(called, message.wire) == message.wire
    assert compactions > 1
    assert said


def talking(turns: int) -> History:
    """A talk without tools, which ends with a question."""
    said = [Turn((f"Question {at}: " + "why " * 60,), (), f"Answer {at}: " + "so " * 100) for at in range(turns)]
    return History((*said, Turn(("And now?",))))


@pytest.mark.parametrize("protocol_name", ["chat", "gemini", "converse"])
@pytest.mark.parametrize("window", [700, 1_000, 1_400])
async def test_speakers_alternate_if_only_what_the_user_said_stays_of_a_talk(
    protocol_name: ProtocolName, window: int
) -> None:
    """The chat templates of many self-hosted models refuse two user messages in a row."""
    client = read(body(talking(4), protocol_name), protocol_name)
    outcome = await build_setup(window).step(client)
    assert outcome.outcome is not None
    assert outcome.outcome.state == "compacted"
    written = RequestRenderer().render_entries(PROTOCOLS[protocol_name], outcome.history)
    roles = [json.loads(wire)["role"] for wire in written]
    assert all(one != other for one, other in pairwise(roles))
    assert b"And now?" in written[-1]
