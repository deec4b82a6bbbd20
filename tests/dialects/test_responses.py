"""Responses: what its items say, who rewrote them, how its clients hear of errors."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseFunctionWebSearch,
    ResponseOutputMessage,
    ResponseReasoningItem,
)

from proxy.core.conversation import Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from proxy.core.errors import NotFound, UpstreamCut
from proxy.dialects.keys import message_key
from proxy.dialects.responses import Responses
from tests.histories import History, Image, entries, histories, png

RESPONSES = Responses()
SECRET = b"s" * 32


def read(entry: Any) -> Any:
    return RESPONSES.message(json.dumps(entry).encode())


def key(entry: Any) -> bytes:
    return message_key(read(entry).canonical, SECRET)


@given(histories())
def test_a_history_is_read_as_what_was_said(history: History) -> None:
    expected: list[tuple[str, Any]] = [("system", Text(history.system))] if history.system else []
    for turn in history.turns:
        for said in turn.said:
            expected.append(("user", Media("image", "image/png", len(png(said.width, said.height)), said.width,
                            said.height, detail="auto") if isinstance(said, Image) else Text(said)))  # fmt: skip
        for r in turn.rounds:
            if r.thought:
                expected.append(("assistant", Reasoning(r.thought, len(f"sealed {r.thought}"))))
            if r.text:
                expected.append(("assistant", Text(r.text)))
            expected += [("assistant", ToolCall(c.id, c.name, json.dumps(c.arguments))) for c in r.calls]
            expected += [("tool", ToolResult(c.id, (Text(c.result),) if c.result else ())) for c in r.calls]
        if turn.answer:
            expected.append(("assistant", Text(turn.answer)))
    messages = [read(entry) for entry in entries(history, "responses")]
    assert [(m.role, part) for m in messages for part in m.parts] == expected


def test_a_plain_string_is_a_user_message() -> None:
    message = RESPONSES.message(b'"text"')
    assert (message.role, message.parts) == ("user", (Text("text"),))
    assert key("text") == key({"role": "user", "content": [{"type": "input_text", "text": "text"}]})


PIXEL = "data:image/gif;base64,R0lGODlhAgADAA=="
GIF = Media("image", "image/gif", 10, 2, 3)

CALLS = [
    ({"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"}, ToolCall("c", "f", "{}")),
    ({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "free"}, ToolCall("c", "f", "free")),
    (
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
        ToolCall("c", "shell", '{"commands":["ls"]}'),
    ),
    (
        {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"command": ["ls"]}, "status": "completed"},
        ToolCall("c", "local_shell", '{"command":["ls"]}'),
    ),
    (
        {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
        ToolCall("c", "apply_patch", '{"type":"delete_file","path":"a"}'),
    ),
    (
        {"type": "computer_call", "call_id": "c", "action": {"type": "wait"}},
        ToolCall("c", "computer", '{"type":"wait"}'),
    ),
    (
        {"type": "computer_call", "call_id": "c", "actions": [{"type": "wait"}]},
        ToolCall("c", "computer", '[{"type":"wait"}]'),
    ),
    ({"type": "tool_search_call", "call_id": "c", "arguments": {"q": 1}}, ToolCall("c", "tool_search", '{"q":1}')),
    (
        {"type": "program", "id": "p", "call_id": "c", "code": "1+1", "fingerprint": "f"},
        ToolCall("c", "program", "1+1"),
    ),
    (
        {"type": "mcp_approval_request", "id": "m", "server_label": "s", "name": "f", "arguments": "{}"},
        ToolCall("m", "f", "{}"),
    ),
]

OUTPUTS = [
    ({"type": "function_call_output", "call_id": "c", "output": "r"}, ToolResult("c", (Text("r"),))),
    (
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "r"}, {"type": "input_image", "image_url": PIXEL}],
        },
        ToolResult("c", (Text("r"), GIF)),
    ),
    ({"type": "custom_tool_call_output", "call_id": "c", "output": "r"}, ToolResult("c", (Text("r"),))),
    (
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [
                {"stdout": "out", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "err", "outcome": {"type": "timeout"}},
            ],
        },
        ToolResult("c", (Text("out"), Text("err"))),
    ),
    ({"type": "local_shell_call_output", "id": "c", "output": "r"}, ToolResult("c", (Text("r"),))),
    (
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "r"},
        ToolResult("c", (Text("r"),), True),
    ),
    ({"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}, ToolResult("c", ())),
    (
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": PIXEL}},
        ToolResult("c", (GIF,)),
    ),
    (
        {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "function"}]},
        ToolResult("c", (Opaque("tool", 19),)),
    ),
    (
        {"type": "program_output", "id": "p", "call_id": "c", "result": "2", "status": "completed"},
        ToolResult("c", (Text("2"),)),
    ),
    (
        {"type": "mcp_approval_response", "approval_request_id": "m", "approve": True},
        ToolResult("m", (Opaque("mcp_approval_response", 73),)),
    ),
]

HOSTED = [
    (
        {"type": "web_search_call", "id": "w", "action": {"type": "search"}, "status": "completed"},
        (ToolCall("w", "web_search", '{"type":"search"}'), ToolResult("w", ())),
    ),
    (
        {
            "type": "file_search_call",
            "id": "w",
            "queries": ["q"],
            "status": "completed",
            "results": [{"filename": "a.md", "text": "found"}],
        },
        (ToolCall("w", "file_search", '["q"]'), ToolResult("w", (Text("a.md"), Text("found")))),
    ),
    (
        {
            "type": "code_interpreter_call",
            "id": "w",
            "code": "1+1",
            "container_id": "x",
            "status": "failed",
            "outputs": [{"type": "logs", "logs": "2"}, {"type": "image", "url": PIXEL}],
        },
        (ToolCall("w", "code_interpreter", "1+1"), ToolResult("w", (Text("2"), GIF), True)),
    ),
    (
        {"type": "image_generation_call", "id": "w", "status": "completed", "result": PIXEL.partition(",")[2]},
        (ToolCall("w", "image_generation", ""), ToolResult("w", (GIF,))),
    ),
    (
        {"type": "mcp_call", "id": "w", "server_label": "s", "name": "f", "arguments": "{}", "output": "r"},
        (ToolCall("w", "f", "{}"), ToolResult("w", (Text("r"),))),
    ),
    (
        {"type": "mcp_call", "id": "w", "server_label": "s", "name": "f", "arguments": "{}", "error": "broke"},
        (ToolCall("w", "f", "{}"), ToolResult("w", (Text("broke"),), True)),
    ),
]

SEALED = [
    {"type": "configuration_update", "model": "gpt-5"},
    {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []},
    {"type": "compaction_trigger"},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "tool_search_call", "execution": "server", "arguments": {}},
    {"type": "tool_search_output", "execution": "server", "tools": []},
    {"type": "hologram", "n": 1},
]


@pytest.mark.parametrize(("entry", "part"), CALLS)
def test_every_kind_of_call_is_read(entry: Any, part: Any) -> None:
    message = read(entry)
    assert (message.role, message.parts) == ("assistant", (part,))


@pytest.mark.parametrize(("entry", "part"), OUTPUTS)
def test_every_kind_of_output_is_read(entry: Any, part: Any) -> None:
    message = read(entry)
    assert (message.role, message.parts) == ("tool", (part,))


@pytest.mark.parametrize(("entry", "expected"), HOSTED)
def test_a_call_that_the_provider_ran_is_a_call_with_its_result(entry: Any, expected: Any) -> None:
    message = read(entry)
    assert (message.role, message.parts) == ("assistant", expected)


@pytest.mark.parametrize("entry", SEALED)
def test_what_only_the_provider_understands_is_opaque_and_sized(entry: Any) -> None:
    message = read(entry)
    assert (message.role, message.parts) == ("other", (Opaque(entry["type"], len(json.dumps(entry))),))


@pytest.mark.parametrize(
    ("entry", "role", "expected"),
    [
        (
            {
                "type": "reasoning",
                "id": "r",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "encrypted_content": "abc",
            },
            "assistant",
            Reasoning("hm", 3),
        ),
        (
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "raw"}]},
            "assistant",
            Reasoning("raw"),
        ),
        ({"type": "compaction", "encrypted_content": "abc"}, "other", Opaque("compaction", 3)),
        ({"type": "additional_tools", "role": "developer", "tools": []}, "developer", Opaque("additional_tools", 62)),
        ({"id": "msg_1"}, "other", Opaque("item_reference", 15)),
        ({"role": "developer", "content": "a"}, "developer", Text("a")),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "assistant", Text("no")),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "user", Media("file")),
        (
            {
                "role": "user",
                "content": [
                    {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
                ],
            },
            "user",
            Media("file", "application/pdf", 3),
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}]},
            "user",
            Media("audio", "audio/mp3", 3),
        ),
        ({"role": "user", "content": [{"type": "input_hologram"}]}, "user", Opaque("input_hologram", 25)),
        (["odd"], "other", Opaque("", 7)),
    ],
)
def test_other_items_are_read(entry: Any, role: str, expected: Any) -> None:
    message = read(entry)
    assert (message.role, message.parts) == (role, (expected,))


def test_top_level_fields_are_read() -> None:
    fields = {
        "instructions": b'"Be brief."',
        "tools": b'[{"type": "function", "name": "f"}, {"type": "web_search"}]',
        "text": b'{"format": {"type": "json_schema", "name": "answer", "schema": {}}}',
        "max_output_tokens": b"9",
    }
    assert RESPONSES.preamble(fields) == (Text("Be brief."),)
    assert RESPONSES.tools(fields) == (
        '{"type":"function","name":"f"}',
        '{"type":"web_search"}',
        '{"type":"json_schema","name":"answer","schema":{}}',
    )
    assert RESPONSES.max_output(fields) == 9
    empty = {"instructions": b"null", "text": b'{"format": {"type": "text"}}'}
    assert (RESPONSES.preamble(empty), RESPONSES.tools(empty), RESPONSES.max_output(empty)) == ((), (), None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"previous_response_id": b'"resp_1"'}, "resp_1"),
        ({"previous_response_id": b"null", "conversation": b'"conv_1"'}, "conv_1"),
        ({"conversation": b'{"id": "conv_1"}'}, "conv_1"),
        ({"previous_response_id": b"null"}, None),
        ({"conversation": b"[1]"}, None),
        ({}, None),
    ],
)
def test_state_kept_by_the_provider_is_named(fields: dict[str, bytes], expected: str | None) -> None:
    assert RESPONSES.previous(fields) == expected


# -- what clients send back -------------------------------------------------------

REPLIES: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (
        ResponseOutputMessage,
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hello.", "annotations": []}],
        },
        {"role": "assistant", "content": "Hello."},
    ),
    (
        ResponseFunctionToolCall,
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c",
            "name": "f",
            "arguments": '{"a": 1}',
            "status": "completed",
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'},
    ),
    (
        ResponseCustomToolCall,
        {
            "type": "custom_tool_call",
            "id": "ctc_1",
            "call_id": "c",
            "name": "f",
            "input": "x",
            "caller": {"type": "direct"},
        },
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
    ),
    (
        ResponseReasoningItem,
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
        {"type": "reasoning", "summary": [], "encrypted_content": "abc"},
    ),
    (
        ResponseFunctionWebSearch,
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}},
    ),
]


@pytest.mark.parametrize(("model", "reply", "bare"), REPLIES)
def test_an_item_dumped_by_the_openai_sdk_has_the_same_key(model: Any, reply: Any, bare: Any) -> None:
    made = model.model_validate(reply)
    for dump in (made.model_dump(), made.model_dump(exclude_none=True), made.model_dump(exclude_unset=True), bare):
        assert key(dump) == key(reply)


def test_an_id_that_stands_for_content_is_content() -> None:
    for kind in ("item_reference", "web_search_call", "mcp_list_tools", "local_shell_call_output"):
        assert key({"type": kind, "id": "a"}) != key({"type": kind, "id": "b"})
    assert key({"type": "reasoning", "id": "a", "summary": []}) != key({"type": "reasoning", "id": "b", "summary": []})
    assert key({"id": "a"}) == key({"id": "a", "type": "item_reference"}) == key({"id": "a", "type": None})


# -- errors -----------------------------------------------------------------------


def client(status: int, content: bytes, kind: str) -> openai.OpenAI:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=content, headers={"content-type": kind})

    transport = httpx.MockTransport(answer)
    return openai.OpenAI(
        api_key="k", base_url="http://proxy/v1", max_retries=0, http_client=httpx.Client(transport=transport)
    )


CUT = UpstreamCut("The provider ended the connection before its reply. Send the request again.")


def test_an_error_is_what_the_openai_sdk_calls_by_its_status() -> None:
    sdk = client(404, RESPONSES.error(NotFound("No such model. List those there are."), "req_1"), "application/json")
    with pytest.raises(openai.NotFoundError) as raised:
        sdk.responses.create(model="m", input="a")
    assert raised.value.code == "not_found"
    assert "List those there are. (request id: req_1)" in raised.value.message


def test_a_stream_cut_short_raises_in_the_openai_sdk_and_never_ends_normally() -> None:
    begun = (
        b"event: response.output_text.delta\n"
        b'data: {"type":"response.output_text.delta","delta":"Hel","item_id":"m","output_index":0}\n\n'
    )
    sdk = client(200, begun + RESPONSES.stream_error(CUT, "req_1"), "text/event-stream")
    stream = sdk.responses.create(model="m", input="a", stream=True)
    assert next(stream).type == "response.output_text.delta"
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    assert raised.value.message == f"{CUT.message} (request id: req_1)"
    assert raised.value.code == "upstream_disconnected"


def test_a_stream_error_has_the_documented_fields_too() -> None:
    event, _, data = RESPONSES.stream_error(CUT, "req_1").decode().partition("\n")
    assert event == "event: error"
    said = json.loads(data.removeprefix("data: "))
    assert (said["type"], said["code"], said["param"]) == ("error", "upstream_disconnected", None)
    assert said["message"] == said["error"]["message"] == f"{CUT.message} (request id: req_1)"
    assert isinstance(said["sequence_number"], int)
