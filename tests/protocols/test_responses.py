"""Responses: what its items say, who rewrote them, how its clients hear of errors."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseFunctionWebSearch,
    ResponseOutputMessage,
    ResponseReasoningItem,
)

from accordion.model.conversation import Text
from accordion.model.errors import NotFound, UpstreamDisconnected
from accordion.model.tenant import TenantScope
from accordion.protocols.message_keys import message_key
from accordion.protocols.openai_responses.protocol import OpenAIResponses
from tests.sdks import openai_sdk

RESPONSES = OpenAIResponses()
TENANT = TenantScope("tenant", b"s" * 32)


def read(entry: Any) -> Any:
    return RESPONSES.read_message(json.dumps(entry).encode())


def key(entry: Any) -> bytes:
    return message_key(read(entry).canonical, TENANT, "chat")


def test_a_plain_string_is_a_user_message() -> None:
    message = RESPONSES.read_message(b'"text"')
    assert (message.role, message.parts) == ("user", (Text("text"),))
    assert key("text") == key({"role": "user", "content": [{"type": "input_text", "text": "text"}]})


def test_top_level_fields_are_read() -> None:
    fields = {
        "instructions": b'"Be brief."',
        "tools": b'[{"type": "function", "name": "f"}, {"type": "web_search"}]',
        "text": b'{"format": {"type": "json_schema", "name": "answer", "schema": {}}}',
        "max_output_tokens": b"9",
    }
    assert RESPONSES.read_preamble(fields) == (Text("Be brief."),)
    assert RESPONSES.read_tools(fields) == (
        '{"type":"function","name":"f"}',
        '{"type":"web_search"}',
        '{"type":"json_schema","name":"answer","schema":{}}',
    )
    assert RESPONSES.read_max_output(fields) == 9
    empty = {"instructions": b"null", "text": b'{"format": {"type": "text"}}'}
    assert (RESPONSES.read_preamble(empty), RESPONSES.read_tools(empty), RESPONSES.read_max_output(empty)) == (
        (),
        (),
        None,
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"previous_response_id": b'"resp_1"'}, "resp_1"),
        ({"previous_response_id": b"null", "conversation": b'"conv_1"'}, "conv_1"),
        ({"conversation": b'{"id": "conv_1"}'}, "conv_1"),
        ({"previous_response_id": b"null"}, ""),
        ({"conversation": b"[1]"}, ""),
        ({}, ""),
    ],
)
def test_state_kept_by_the_provider_is_named(fields: dict[str, bytes], expected: str) -> None:
    assert RESPONSES.read_continued_id(fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"conversation": b'{"id": "conv_1"}'}, "object"),
        ({"previous_response_id": b"null", "conversation": b'"conv_1"'}, "object"),
        ({"previous_response_id": b'"resp_1"', "conversation": b"null"}, "response"),
        ({"previous_response_id": b'"resp_1"'}, "response"),
        ({"conversation": b"null"}, "response"),
        ({}, "response"),
    ],
)
def test_a_conversation_stands_for_more_with_each_reply_and_a_reply_does_not(
    fields: dict[str, bytes], expected: str
) -> None:
    assert RESPONSES.provider_state(fields) == expected


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


CUT = UpstreamDisconnected("The provider ended the connection before its reply. Send the request again.")


def test_an_error_is_what_the_openai_sdk_calls_by_its_status() -> None:
    sdk = openai_sdk(
        404, RESPONSES.render_error(NotFound("No such model. List those there are."), "req_1"), "application/json"
    )
    with pytest.raises(openai.NotFoundError) as raised:
        sdk.responses.create(model="m", input="a")
    assert raised.value.code == "not_found"
    assert "List those there are. (request id: req_1)" in raised.value.message


def test_a_stream_cut_short_raises_in_the_openai_sdk_and_never_ends_normally() -> None:
    begun = (
        b"event: response.output_text.delta\n"
        b'data: {"type":"response.output_text.delta","delta":"Hel","item_id":"m","output_index":0}\n\n'
    )
    sdk = openai_sdk(200, begun + RESPONSES.render_stream_error(CUT, "req_1"), "text/event-stream")
    stream = sdk.responses.create(model="m", input="a", stream=True)
    assert next(stream).type == "response.output_text.delta"
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    assert raised.value.message == f"{CUT.message} (request id: req_1)"
    assert raised.value.code == "upstream_disconnected"


def test_a_stream_error_has_the_documented_fields_too() -> None:
    event, _, data = RESPONSES.render_stream_error(CUT, "req_1").decode().partition("\n")
    assert event == "event: error"
    said = json.loads(data.removeprefix("data: "))
    assert (said["type"], said["code"], said["param"]) == ("error", "upstream_disconnected", None)
    assert said["message"] == said["error"]["message"] == f"{CUT.message} (request id: req_1)"
    assert said["sequence_number"] == 0


def test_a_stream_error_is_numbered_behind_the_events_before_it() -> None:
    quoted = json.dumps({"type": "x.delta", "sequence_number": 8, "delta": '"sequence_number":99'})
    before = f'data: {{"type":"x.delta","sequence_number": 7}}\n\ndata: {quoted}\n\n'.encode()
    assert b'"sequence_number":9,' in RESPONSES.render_stream_error(CUT, "req_1", before)
    assert b'"sequence_number":0,' in RESPONSES.render_stream_error(CUT, "req_1", b"data: {}\n\n")


# -- what replies say, by id ------------------------------------------------------------------------------------------

SAID = {
    "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "words", "annotations": [], "logprobs": []}],
}  # fmt: skip


def reply_with(*output: Any, **more: Any) -> bytes:
    return json.dumps({"id": "resp_1", "status": "completed", "output": output, **more}).encode()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_a_reply_says_is_noted_by_the_ids_that_a_client_may_name(stream: bool) -> None:
    observer, body = (
        OpenAIResponses().observer(stream),
        reply_with({"type": "reasoning", "id": "rs_1", "summary": []}, SAID),
    )
    observer.feed(b'data: {"type":"response.completed","response":%b}\n\n' % body if stream else body)
    ((name, wire),) = observer.observation().items
    assert (name, json.loads(wire)) == ("msg_1", SAID)
    # It is what a client may send in the place of the name.
    assert OpenAIResponses().read_message(wire).parts == (Text("words"),)


def test_the_probabilities_of_words_are_not_noted() -> None:
    token = {"token": "w", "logprob": -0.1, "bytes": [1], "top_logprobs": []}
    observer = OpenAIResponses().observer(False)
    observer.feed(reply_with({**SAID, "content": [{**SAID["content"][0], "logprobs": [token] * 5_000}]}))
    ((_, wire),) = observer.observation().items
    assert json.loads(wire) == SAID


@pytest.mark.parametrize(
    "body",
    [
        reply_with(SAID, store=False),
        reply_with({**SAID, "id": None}),
        reply_with({**SAID, "id": "other_1"}),
        reply_with({**SAID, "content": []}),
        reply_with({**SAID, "content": [{"type": "output_text", "text": "w" * 70_000}]}),
        reply_with({**SAID, "type": "web_search_call"}),
    ],
    ids=["not stored", "no id", "an odd id", "nothing said", "much too long", "a call"],
)
def test_what_nobody_can_name_or_is_too_long_is_not_noted(body: bytes) -> None:
    observer = OpenAIResponses().observer(False)
    observer.feed(body)
    assert observer.observation().items == ()
    assert observer.observation().response_id == "resp_1"
