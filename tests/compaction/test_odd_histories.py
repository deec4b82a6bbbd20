"""Histories that are legal and not what most clients send, through the real planner to the record."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.archive.artifacts import Artifact, artifact_text
from proxy.compaction.strategies import SHIPPED, build
from tests.compaction.making import DIALECTS, House, read

PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAABAAAAAMACAIAAAA12IJa" + "A" * 4_000


def house(window: int) -> House:
    return House(pipeline=[build(name) for name in SHIPPED], window=window)


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
    outcome = await house(4_300).step(client)
    assert outcome.seen is not None
    assert outcome.seen.state == "folded"
    newest = [message.wire for message in outcome.folded.conversation.messages[-3:]]
    assert newest == [message.wire for message in client.messages[-3:]]
    assert DIALECTS["chat"].problems(outcome.folded.conversation.messages) == []


async def test_an_artifact_of_a_result_tells_of_its_own_call_where_the_id_is_used_again() -> None:
    client = read(working(12, lambda at, one: f"call_{one}"), "chat")
    rooms = house(20_000)
    case = rooms.case(client, decision={"target": 3_000, "forced": True, "kind": "generation"})
    work = rooms.compactor._craft.work(case, client, at=1.0, plain=False)
    results = [artifact for artifact in work.removal.artifacts if artifact.kind == "result"]
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
async def test_a_history_of_screenshots_is_folded_though_no_text_may_stand_in_their_place(window: int) -> None:
    client = read(using_a_computer(12), "responses")
    outcome = await house(window).step(client)
    assert outcome.seen is not None
    assert (outcome.seen.state, outcome.seen.reason.count("cannot be changed")) == ("folded", 0)
    assert outcome.seen.after < outcome.seen.before / 2
    assert DIALECTS["responses"].problems(outcome.folded.conversation.messages) == []


async def test_a_later_fold_leaves_what_an_earlier_one_said_of_a_result() -> None:
    """What is said of a reference (its size, its digest) is not true of the result."""
    rooms = House(pipeline=[build("compact_tool_results", {"replacement": "reference"})], window=20_000)
    rooms.compactor._craft._digest = lambda text, most: "about: " + "x " * (most // 2 - 4)
    said: dict[str, bytes] = {}
    folds = 0
    for rounds in range(8, 32, 4):
        client = read(working(rounds, lambda at, one: f"c{at}_{one}", words=800), "chat")
        outcome = await rooms.step(client)
        folds += outcome.seen is not None and outcome.seen.state == "folded"
        for message in outcome.folded.conversation.messages:
            if b"[Result of" in message.wire:
                called = json.loads(message.wire)["tool_call_id"]
                assert said.setdefault(called, message.wire) == message.wire
    assert folds > 1
    assert said
