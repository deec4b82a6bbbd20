"""Replies of odd providers where our tool was offered: see e2e/test_tool_loop_*.py for what is read back."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from accordion.pipeline.relay import ExchangeProgress
from accordion.pipeline.request import PreparedRequest
from accordion.pipeline.tool_loop import ToolLoop
from accordion.protocols.openai_chat.protocol import ChatArtifactTool, OpenAIChat
from accordion.protocols.response_parser import BOUND
from tests.fakes import FakeReply, FakeWindows
from tests.pipeline_setup import CHAT, PipelineSetup
from tests.protocols.responses_streams import OURS, Json, function, message
from tests.sample_responses import chunk, sse


class Reply:
    """A provider's reply that comes in two pieces."""

    status, is_delimited = 200, True
    headers = ((b"content-type", b"application/json"), (b"content-length", b"1"))

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._body[:100]
        yield self._body[100:]

    async def close(self) -> None:
        pass


async def hide_our_call(body: bytes) -> bytes:
    nobody = cast(Any, None)
    tool_loop = ToolLoop({"chat": ChatArtifactTool()}, nobody, nobody, nobody, nobody, nobody)
    request = cast(
        PreparedRequest,
        SimpleNamespace(protocol=OpenAIChat(), tool_name="read_artifact", conversation=SimpleNamespace(chain=())),
    )
    shown = await tool_loop.run(Reply(body), request, nobody, ExchangeProgress(0.0))
    return b"".join([piece async for piece in shown.chunks()])


def answer(**message: object) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return json.dumps({"id": "c-1", "choices": [choice]}, ensure_ascii=False).encode()


@pytest.mark.parametrize("text", ["Done.", "I would read_artifact it.", "é\\ud83d", ""])
async def test_a_document_in_which_nothing_is_ours_goes_on_in_its_own_bytes(text: str):
    body = answer(content=text)
    assert await hide_our_call(body) == body


async def test_a_document_that_is_too_large_to_be_read_goes_on_as_it_came():
    body = answer(content="read_artifact " + "x" * BOUND)
    assert await hide_our_call(body) == body


async def compacted_talk() -> tuple[PipelineSetup, list[Json], Json]:
    """A pipeline that compacted a list, the list, and a message that reads an artifact of it back."""
    setup = PipelineSetup(windows=FakeWindows(4_000))
    messages = [
        {"role": role, "content": f"{at} " + "word " * 200} for at in range(6) for role in ("user", "assistant")
    ] + [{"role": "user", "content": "And now?"}]
    await setup.ask(CHAT, {"model": "m", "messages": messages})
    sent = setup.upstream.requests[0].body
    assert isinstance(sent, bytes)
    artifact = re.search(r"art_\w+", sent.decode())
    assert artifact is not None
    function = {"name": "read_artifact", "arguments": json.dumps({"id": artifact[0]})}
    return setup, messages, {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]}


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_model_answers_without_our_tool_if_the_provider_refuses_its_results(status: int, streams: bool) -> None:
    setup, messages, call = await compacted_talk()
    refusal = FakeReply(status, pieces=(b'{"error": {"message": "condition 17"}}',))
    if streams:
        headers = ((b"content-type", b"text/event-stream"),)
        first, last = (
            FakeReply(headers=headers, pieces=(sse(chunk(delta), chunk({}, reason)),))
            for delta, reason in ((call, "tool_calls"), ({"content": "It is so."}, "stop"))
        )
    else:
        first, last = (FakeReply(pieces=(answer(**each),)) for each in (call, {"content": "It is so."}))
    setup.upstream.answers = [first, *[refusal] * (2 if status == 400 else 1), last]
    out, body = await setup.ask(CHAT, {"model": "m", "messages": messages, "stream": streams})
    assert (out.status, b"It is so." in body, b"read_artifact" in body) == (200, True, False)
    assert setup.recorder.exchanges[-1].error == ""
    await setup.ask(CHAT, {"model": "m", "messages": messages})
    sent = setup.upstream.requests[-1].body
    assert isinstance(sent, bytes)
    assert "tools" not in json.loads(sent)


async def test_a_read_back_ends_well_at_a_server_that_sends_no_done() -> None:
    setup, messages, call = await compacted_talk()
    rounds = [sse(chunk(call), chunk({}, "tool_calls")), sse(chunk({"content": "It is so."}), chunk({}, "stop"))]
    headers = ((b"content-type", b"text/event-stream"),)
    setup.upstream.answers = [FakeReply(headers=headers, pieces=(each,)) for each in rounds]
    _, body = await setup.ask(CHAT, {"model": "m", "messages": messages, "stream": True})
    assert (b"It is so." in body, b"read_artifact" in body, b"error" in body) == (True, False, False)
    assert [exchange.error for exchange in setup.recorder.exchanges] == ["", ""]


async def response_with_a_read_back(path: str) -> tuple[PipelineSetup, Json, FakeReply]:
    """The setup behind a response of two rounds, what its client was shown, and the provider's last round."""
    setup, items = PipelineSetup(windows=FakeWindows(2_000)), [{"role": "user", "content": "Look."}]

    def reply(number: int, *output: Json) -> FakeReply:
        body = {"id": f"resp_{number}", "object": "response", "status": "completed", "output": list(output)}
        return FakeReply(pieces=(json.dumps(body).encode(),))

    for at in range(8):
        items += [function(f"c{at}"), {"type": "function_call_output", "call_id": f"c{at}", "output": "word " * 200}]
    last = reply(2, message("m", "Well."))
    setup.upstream.answers = [reply(1, function("ours", '{"id": "art_1"}', OURS)), last]
    _, shown = await setup.ask(path, {"model": "gpt-5", "input": items})
    return setup, json.loads(shown), last


@pytest.mark.parametrize("path", ["/v1/responses", "/openai/v1/responses", "/openai/responses"])
async def test_a_response_is_retrieved_without_our_calls_at_azure_too(path: str):
    setup, shown, last = await response_with_a_read_back(path)
    assert shown["id"] == "resp_1"
    setup.upstream.answers = [last]
    _, retrieved = await setup.ask(f"{path}/resp_1", b"", method="GET")
    assert setup.upstream.requests[-1].url.endswith("/responses/resp_2")
    assert json.loads(retrieved) == shown


@pytest.mark.parametrize(
    ("method", "below", "asked"), [("POST", "/cancel", ["resp_2/cancel"]), ("DELETE", "", ["resp_2", "resp_1"])]
)
async def test_a_response_is_cancelled_by_its_last_round_and_deleted_with_all(
    method: str, below: str, asked: list[str]
) -> None:
    setup, shown, last = await response_with_a_read_back("/v1/responses")
    before = len(setup.upstream.requests)
    setup.upstream.answers = [last, last]
    _, told = await setup.ask(f"/v1/responses/resp_1{below}", b"", method=method)
    sent = setup.upstream.requests[before:]
    assert [each.url.partition("/responses/")[2] for each in sent] == asked
    assert json.loads(told)["id"] == shown["id"]
