"""Requests with values that JSON lacks are compacted like all others, and keep these values."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.protocols.registry import PROTOCOLS
from tests.compaction.compactor_setup import long_history, with_long_results
from tests.fakes import FakeWindows
from tests.histories import PROTOCOL_NAMES, ProtocolName, body
from tests.pipeline_setup import CHAT, MESSAGES, PATHS, RESPONSES, PipelineSetup, header
from tests.tiers import examples
from tests.writers import LISTS as LIST_FIELDS

GEMINI = "/v1beta/models/m:generateContent"
LISTS = {CHAT: "messages", MESSAGES: "messages", RESPONSES: "input", GEMINI: "contents"}
NEWEST = "the newest question"


def text_message(path: str, role: str, text: str) -> dict[str, Any]:
    if path == GEMINI:
        return {"role": "model" if role == "assistant" else role, "parts": [{"text": text}]}
    return {"role": role, "content": text}


def conversation(path: str, turns: int) -> dict[str, Any]:
    messages = []
    for turn in range(turns):
        messages.append(text_message(path, "user", f"Question {turn}: " + "word " * 150))
        messages.append(text_message(path, "assistant", f"Answer {turn} ODD: " + "word " * 200))
    return {"model": "m", "max_tokens": 10, LISTS[path]: [*messages, text_message(path, "user", f"ODD {NEWEST}")]}


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("odd", [rb"\ud83d", b"\xff\xfe", rb"\ude00\ud83d", b"\xed\xa0\xbd"])
async def test_a_request_with_half_a_character_is_compacted_and_keeps_it(path: str, odd: bytes) -> None:
    setup = PipelineSetup(windows=FakeWindows(4_000))
    for turns in (6, 7):
        body = json.dumps(conversation(path, turns)).encode().replace(b"ODD", odd)
        out, _ = await setup.ask(path, body)
        sent = setup.upstream.requests[-1].body
        assert out.status == 200
        assert len(sent) < len(body)
        assert b"%b %b" % (odd, NEWEST.encode()) in sent
        assert header(out, "x-accordion-unread") is None


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999", b"9" * 400])
async def test_a_request_with_an_odd_number_is_compacted_and_keeps_it(path: str, number: bytes) -> None:
    setup = PipelineSetup(windows=FakeWindows(4_000))
    request = conversation(path, 6)
    request["metadata"] = {"score": 0}
    body = json.dumps(request).encode().replace(b'"score": 0', b'"score": ' + number)
    await setup.ask(path, body)
    sent = setup.upstream.requests[-1].body
    assert len(sent) < len(body)
    assert b'"score": ' + number in sent


@pytest.mark.parametrize(("fragment", "odd"), [('{"a": "ODD"}', rb"\\ud83d"), ('{"a": ODD}', b"NaN"), ("ODD", b"{")])
async def test_odd_arguments_of_a_call_are_compacted(fragment: str, odd: bytes) -> None:
    setup = PipelineSetup(windows=FakeWindows(4_000))
    request = conversation(CHAT, 6)
    for turn in (2, 12):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "run", "arguments": fragment}}
        result = {"role": "tool", "tool_call_id": f"c{turn}", "content": "done"}
        request["messages"][turn:turn] = [{"role": "assistant", "tool_calls": [call]}, result]
    body = json.dumps(request).encode().replace(b"ODD", odd)
    out, _ = await setup.ask(CHAT, body)
    assert out.status == 200
    assert len(setup.upstream.requests[-1].body) < len(body)


async def test_a_nested_body_goes_on_unread_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    setup = PipelineSetup()
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":%b}' % (b"[" * 20_000 + b"]" * 20_000)
    for _ in range(2):
        out, _ = await setup.ask(CHAT, body)
        assert setup.upstream.requests[-1].body == body
        assert header(out, "x-accordion-unread") == "no readable JSON object"
    assert caplog.text.count("no readable JSON object") == 1


ODD_VALUES = (
    None,
    [],
    {},
    "",
    0,
    -1,
    10**30,
    True,
    "x" * 2_000,
    [[[]]],
    {"type": None},
    {"type": "hologram"},
    {"text": {}},
)


def positions_in(value: Any) -> list[tuple[Any, Any]]:
    """All positions in a list or an object: what holds a value, and its name or index."""
    if not isinstance(value, list | dict):
        return []
    names = list(value) if isinstance(value, dict) else range(len(value))
    return [each for name in names for each in ((value, name), *positions_in(value[name]))]


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@settings(max_examples=examples(100))
@given(data=st.data())
async def test_no_value_in_a_list_makes_its_compaction_fail(protocol_name: ProtocolName, data: st.DataObject) -> None:
    request = body(with_long_results(long_history(8)), protocol_name)
    for _ in range(data.draw(st.integers(1, 4))):
        holder, name = data.draw(st.sampled_from(positions_in(request[LIST_FIELDS[protocol_name]])))
        holder[name] = deepcopy(data.draw(st.sampled_from(ODD_VALUES)))
    setup = PipelineSetup(windows=FakeWindows(3_000))
    out, _ = await setup.ask(PATHS[protocol_name], request)
    for sent in setup.upstream.requests:
        assert isinstance(sent.body, bytes)
        assert json.loads(sent.body)
    assert '"failure":"internal"' not in (header(out, "x-accordion-compaction") or "").replace(" ", "")


async def test_a_summary_quotes_a_number_that_json_lacks_as_it_came() -> None:
    request = body(with_long_results(long_history(8)), "messages")
    for entry in request["messages"]:
        for block in entry["content"] if isinstance(entry["content"], list) else []:
            if block["type"] == "tool_use":
                block["input"] = {"path": 10**30}
    request["system"] = "\ud83d"
    setup = PipelineSetup(windows=FakeWindows(3_000))
    await setup.ask(MESSAGES, request)
    sent = setup.upstream.requests[-1].body
    assert isinstance(sent, bytes)
    assert f"read: {10**30}".encode() in sent
    assert json.loads(sent)


@pytest.mark.parametrize("odd", ["5", "true", '{"a":1}'])
@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_a_message_with_content_of_no_known_form_is_joined_with_nothing(protocol_name: ProtocolName, odd: str) -> None:
    protocol = PROTOCOLS[protocol_name]
    field = "parts" if protocol_name == "gemini" else "content"
    wires = [f'{{"role":"user","{field}":{odd}}}'.encode(), protocol.text_message("ours")]
    assert list(protocol.join_messages(wires, {0, 1})) == wires
