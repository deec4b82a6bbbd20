"""Models that take no tools, while the client sends none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import FakeReply, FakeWindows
from tests.pipeline_setup import CHAT, PipelineSetup

ANSWER = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}
).encode()
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
REFUSALS = [
    (400, "registry.ollama.ai/library/gemma3:4b does not support tools"),
    (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    (500, "tools param requires --jinja flag"),
    (400, "Unsupported parameter: 'tools' is not supported with this model."),
    (404, "No endpoints found that support tool use."),
    (400, "`tool calling` is not supported with this model"),
    (400, "Function calling is not enabled for this model"),
    (400, "This model doesn't support tool use."),
    (422, "body.tools: Extra inputs are not permitted"),
]


def talk(turns: int) -> list[dict[str, Any]]:
    """A talk of so many turns that asks something at its end."""
    said: list[dict[str, Any]] = []
    for at in range(turns):
        said.append({"role": "user", "content": f"Question {at}: " + "word " * 150})
        said.append({"role": "assistant", "content": f"Answer {at}: " + "word " * 200})
    return [*said, {"role": "user", "content": "And now?"}]


def refusal(status: int, message: str) -> FakeReply:
    return FakeReply(status, pieces=(json.dumps({"error": {"message": message, "code": status}}).encode(),))


def setup(*answers: FakeReply) -> PipelineSetup:
    made = PipelineSetup(windows=FakeWindows(4_000))
    made.upstream.answers = [*answers]
    return made


def offers(made: PipelineSetup) -> list[int]:
    """How many tools each request to the provider had."""
    return [len(json.loads(request.body).get("tools", ())) for request in made.upstream.requests]


@pytest.mark.parametrize(("status", "message"), REFUSALS)
async def test_a_talk_with_a_model_without_tools_goes_on_past_its_first_compaction(status: int, message: str) -> None:
    made = setup(refusal(status, message), FakeReply(pieces=(ANSWER,)), FakeReply(pieces=(ANSWER,)))
    out, body = await made.ask(CHAT, {"model": "gemma3", "messages": talk(6)})
    assert (out.status, body) == (200, ANSWER)
    first, second = (json.loads(request.body) for request in made.upstream.requests)
    assert second == {name: value for name, value in first.items() if name != "tools"}
    more = [*talk(6), {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}]
    out, _ = await made.ask(CHAT, {"model": "gemma3", "messages": more})
    assert out.status == 200
    assert offers(made) == [1, 0, 0]
    assert json.loads(made.upstream.requests[2].body)["messages"][: len(second["messages"])] == second["messages"]


async def test_the_tool_is_offered_to_other_models_and_again_after_a_day() -> None:
    made = setup(refusal(*REFUSALS[0]))
    await made.ask(CHAT, {"model": "gemma3", "messages": talk(6)})
    await made.ask(CHAT, {"model": "qwen3", "messages": talk(6)})
    made.clock.advance(90_000)
    await made.ask(CHAT, {"model": "gemma3", "messages": talk(6)})
    assert offers(made) == [1, 0, 1, 1]


async def test_a_client_with_tools_of_its_own_hears_that_its_model_takes_none() -> None:
    made = setup(refusal(*REFUSALS[0]), refusal(*REFUSALS[0]))
    out, body = await made.ask(CHAT, {"model": "gemma3", "messages": talk(6), "tools": [TOOL]})
    assert (out.status, b"does not support tools" in body) == (400, True)
    # The second time as it came.
    assert offers(made) == [2, 1]


@pytest.mark.parametrize(
    ("status", "message"),
    [(400, "temperature must be below 2"), (400, "This plan does not support it"), (500, "CUDA error"), (404, "no")],
)
async def test_another_error_is_the_clients(status: int, message: str) -> None:
    made = setup(*[refusal(status, message)] * 3)
    out, body = await made.ask(CHAT, {"model": "gemma3", "messages": talk(6)})
    assert (out.status, message in json.loads(body)["error"]["message"]) == (status, True)
    made.upstream.answers.clear()
    await made.ask(CHAT, {"model": "gemma3", "messages": talk(6)})
    assert offers(made)[-1] == 1


async def test_a_compaction_after_an_overflow_goes_without_the_tool_too() -> None:
    overflow = refusal(400, "This model's maximum context length is 1500 tokens. However, you requested 1800 tokens.")
    made = setup(overflow, refusal(*REFUSALS[1]), FakeReply(pieces=(ANSWER,)))
    out, body = await made.ask(CHAT, {"model": "gemma3", "messages": talk(5)})
    assert (out.status, body) == (200, ANSWER)
    assert offers(made) == [0, 1, 0]
