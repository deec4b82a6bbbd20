"""Replies of odd providers where our tool was offered: see e2e/test_tool_loop_agents.py for what is read back."""

from __future__ import annotations

import json
import re

import pytest

from accordion.protocols.response_parser import BOUND
from tests.fakes import FakeReply, FakeWindows
from tests.pipeline_setup import CHAT, PipelineSetup, header
from tests.protocols.responses_streams import OURS, Json, function, message
from tests.sample_responses import chunk, sse
from tests.writers import reading_request


def answer(**message: object) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return json.dumps({"id": "c-1", "choices": [choice]}, ensure_ascii=False).encode()


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


async def test_a_document_that_is_too_large_to_be_read_goes_on_as_it_came() -> None:
    setup, messages, _ = await compacted_talk()
    body = answer(content="read_artifact " + "x" * BOUND)
    setup.upstream.answers = [FakeReply(pieces=(body[:100], body[100:]))]
    assert (await setup.ask(CHAT, {"model": "m", "messages": messages}))[1] == body


@pytest.mark.parametrize("streams", [False, True])
async def test_a_response_that_is_no_utf_8_shows_nothing_of_our_tool(streams: bool) -> None:
    """Servers that cut a token in the middle of a character send such responses."""
    setup, messages, call = await compacted_talk()
    if streams:
        first = sse(chunk({"content": "Caf?."}), chunk(call), chunk({}, "tool_calls"))
        last = sse(chunk({"content": "It is so."}), chunk({}, "stop"), "[DONE]")
    else:
        first, last = answer(content="Caf?.", **call), answer(content="It is so.")
    headers = ((b"content-type", b"text/event-stream" if streams else b"application/json"),)
    pieces = first.replace(b"?", b"\xc3"), last
    setup.upstream.answers = [FakeReply(headers=headers, pieces=(each,)) for each in pieces]
    _, body = await setup.ask(CHAT, {"model": "m", "messages": messages, "stream": streams})
    assert (b"Caf" in body, b"It is so." in body, b"read_artifact" in body) == (True, True, False)


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


def reads(count: int) -> Json:
    """A request of so many rounds, each of which reads something of 150 words."""
    return reading_request("chat", count, model="m", length=150)


def read_back(**arguments: str) -> FakeReply:
    """A response that calls our tool."""
    called = {"name": "read_artifact", "arguments": json.dumps(arguments)}
    return FakeReply(pieces=(answer(tool_calls=[{"id": "ours-1", "type": "function", "function": called}]),))


async def test_what_was_read_back_makes_no_artifact() -> None:
    setup = PipelineSetup(windows=FakeWindows(2_700))
    await setup.ask(CHAT, reads(14))
    name = re.findall(r"art_[0-9a-f]{12}", bytes(setup.upstream.requests[-1].body).decode())[0]
    setup.upstream.answers = [read_back(id=name)]
    await setup.ask(CHAT, reads(14))
    assert b"ours-1" in bytes(setup.upstream.requests[-1].body)
    for more in range(15, 40):
        out, _ = await setup.ask(CHAT, reads(more))
    tenant, session = setup.forward.tenants.identify({}).tenant, header(out, "x-accordion-session") or ""
    page = await setup.builder.archive_reader.list_artifacts(tenant, session, limit=1_000)
    tools = [each.tool for each in page.artifacts if each.kind == "result"]
    assert (len(tools) > 20, set(tools)) == (True, {"read"})


async def test_the_model_finds_words_in_what_a_compaction_removed() -> None:
    setup = PipelineSetup(windows=FakeWindows(2_700))
    setup.upstream.answers = [read_back(search="r3_77")]
    await setup.ask(CHAT, reads(14))
    first, second = (json.loads(bytes(each.body))["messages"] for each in setup.upstream.requests)
    assert "r3_77" not in json.dumps(first)
    assert second[-1]["content"].splitlines()[1].startswith('[8] Result of read({"path": "3.py"}), in art_')
    assert "r3_77" in second[-1]["content"]


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


@pytest.mark.parametrize("is_named", [True, False])
async def test_artifacts_can_be_read_after_the_clients_own_compaction(is_named: bool) -> None:
    """The client's summary repeats the ids that the model has seen."""
    setup = PipelineSetup(windows=FakeWindows(2_700))
    first, _ = await setup.ask(CHAT, reads(14))
    name = re.findall(r"art_[0-9a-f]{12}", bytes(setup.upstream.requests[-1].body).decode())[0]
    summary = f"The files r0 to r13 were read one after the other{f'; the first is {name}' if is_named else ''}.\n"
    summary += "Nothing was written, and what the words in them have in common has not been looked at."
    prompt = {"role": "user", "content": "Your task is to create a detailed summary of the conversation so far."}
    setup.upstream.answers = [FakeReply(pieces=(answer(content=summary),))]
    await setup.ask(CHAT, {"model": "m", "messages": [*reads(14)["messages"], prompt]})
    setup.upstream.answers = [read_back(id=name)] if is_named else []
    continued = [{"role": "user", "content": f"This session is being continued.\n{summary}\nGo on."}]
    last, _ = await setup.ask(CHAT, {"model": "m", "messages": continued})
    assert header(last, "x-accordion-session") == header(first, "x-accordion-session")
    sent = bytes(setup.upstream.requests[-1].body).decode()
    assert ("r0_0 r0_1" in sent) is ("read_artifact" in sent) is is_named
