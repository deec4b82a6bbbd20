"""Chat Completions: what its messages say, who rewrote them, how its clients hear of errors."""

from __future__ import annotations

import base64
import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from accordion.model.conversation import Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from accordion.model.errors import BadRequest, UpstreamDisconnected
from accordion.model.tenant import TenantScope
from accordion.protocols.message_keys import message_key
from accordion.protocols.openai_chat.protocol import OpenAIChat
from tests.histories import png
from tests.sdks import openai_sdk

CHAT = OpenAIChat()
TENANT = TenantScope("tenant", b"s" * 32)
PICTURE = base64.b64encode(png(30, 20)).decode()


def read(entry: Any) -> Any:
    return CHAT.read_message(json.dumps(entry).encode())


def parts(entry: Any) -> Any:
    return read(entry).parts


def key(entry: Any) -> bytes:
    return message_key(read(entry).canonical, TENANT, "chat")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "text", "text": "a"}, Text("a")),
        ({"type": "refusal", "refusal": "no"}, Text("no")),
        ({"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}}, Media("image", detail="low")),
        (
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{PICTURE}"}},
            Media("image", "image/png", len(png(30, 20)), 30, 20),
        ),
        ({"type": "image_url", "image_url": "https://x/y.png"}, Media("image")),
        ({"type": "image_url", "image_url": {"url": "data:text/plain,abc"}}, Media("image", "text/plain", 3)),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}, Media("image", "image/png")),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, Media("audio", "audio/wav", 3)),
        ({"type": "file", "file": {"file_id": "file-1"}}, Media("file")),
        (
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjQK"}},
            Media("file", "application/pdf", 9),
        ),
        ({"type": "file", "file": {"filename": "a.bin", "file_data": "AAA="}}, Media("file", "", 2)),
        ({"type": "video_url", "video_url": {"url": "https://x/y.mp4"}}, Media("video")),
        ({"type": "thinking", "thinking": "hm", "signature": "abc"}, Reasoning("hm", 3)),
        ({"type": "hologram", "n": 1}, Opaque("hologram", 25)),
        ("bare", Text("bare")),
        (5, Opaque("", 1)),
        ({"type": ["odd"]}, Opaque("", 16)),
    ],
)
def test_every_kind_of_part_is_read(part: Any, expected: Any) -> None:
    assert parts({"role": "user", "content": [part]}) == (expected,)
    assert parts({"role": "tool", "tool_call_id": "c", "content": [part]}) == (ToolResult("c", (expected,)),)


@pytest.mark.parametrize(
    ("entry", "role", "expected"),
    [
        ({"role": "developer", "content": "a"}, "developer", (Text("a"),)),
        ({"role": "assistant", "content": None, "refusal": "no"}, "assistant", (Text("no"),)),
        ({"role": "assistant", "audio": {"id": "audio_1"}}, "assistant", (Media("audio"),)),
        ({"role": "assistant", "content": "a", "reasoning_content": "r"}, "assistant", (Reasoning("r"), Text("a"))),
        (
            {
                "role": "assistant",
                "content": "a",
                "reasoning": "r",
                "reasoning_details": [{"text": "r"}, {"data": "A"}],
            },
            "assistant",
            (Reasoning("r", 1), Text("a")),
        ),
        (
            {"role": "assistant", "content": "a", "reasoning": None, "reasoning_details": [{"data": "sealed"}, 1]},
            "assistant",
            (Reasoning("", 6), Text("a")),
        ),
        (
            {"role": "assistant", "content": "a", "thinking_blocks": [{"thinking": "hm", "signature": "abc"}]},
            "assistant",
            (Reasoning("hm", 3), Text("a")),
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
            "assistant",
            (ToolCall("c", "f", "x"),),
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]},
            "assistant",
            (ToolCall("c", "f", '{"a":1}'),),
        ),
        (
            {"role": "assistant", "tool_calls": [5, {"id": "c"}]},
            "assistant",
            (Opaque("tool_call", 1), Opaque("tool_call", 10)),
        ),
        (
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            "assistant",
            (ToolCall("f", "f", "{}"),),
        ),
        ({"role": "function", "name": "f", "content": "r"}, "tool", (ToolResult("f", (Text("r"),)),)),
        ({"role": "user", "content": ""}, "user", ()),
        ({"role": "user"}, "user", ()),
        ({"role": "narrator", "content": "a"}, "other", (Text("a"),)),
        ({"role": ["user"], "content": {"a": 1}}, "other", (Opaque("", 7),)),
        ("bare", "other", (Opaque("", 6),)),
        ([1], "other", (Opaque("", 3),)),
    ],
)
def test_every_kind_of_message_is_read(entry: Any, role: str, expected: Any) -> None:
    message = read(entry)
    assert (message.role, message.parts) == (role, expected)


def test_base64_never_becomes_text_and_only_its_beginning_is_looked_at() -> None:
    data = base64.b64encode(png(30, 20) + bytes(3_000_000)).decode()
    (part,) = parts({"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:;base64,{data}"}}]})
    assert part == Media("image", "image/png", len(png(30, 20)) + 3_000_000, 30, 20)


def test_base64_broken_into_lines_is_read() -> None:
    data = base64.encodebytes(png(30, 20) + bytes(90_000)).decode()
    (part,) = parts({"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:;base64,{data}"}}]})
    assert (part.media_type, part.width, part.height) == ("image/png", 30, 20)


def test_only_system_and_developer_messages_belong_to_the_system_prompt() -> None:
    roles = ["system", "developer", "user", "assistant", "tool", "narrator"]
    preamble = [role for role in roles if CHAT.is_preamble(read({"role": role, "content": "a"}))]
    assert preamble == ["system", "developer"]


def test_tools_functions_and_the_schema_of_the_answer_are_counted() -> None:
    fields = {
        "tools": b'[ {"type": "function", "cache_control": {"type": "x"}, "function": {"name": "caf\\u00e9"}} ]',
        "functions": b'[{"name": "old"}]',
        "response_format": b'{"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}}',
    }
    assert CHAT.read_tools(fields) == (
        '{"type":"function","function":{"name":"café"}}',
        '{"name":"old"}',
        '{"name":"answer","schema":{}}',
    )
    assert CHAT.read_tools({"tools": b"null", "response_format": b'{"type": "text"}'}) == ()
    assert CHAT.read_tools({"tools": b'"\\ud800"'}) == ()
    assert CHAT.read_preamble({"system": b'"a"'}) == ()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": b"5", "max_completion_tokens": b"7"}, 7),
        ({"max_tokens": b"5"}, 5),
        ({"max_tokens": b"5", "max_completion_tokens": b"null"}, 5),
        ({"max_tokens": b"5.0"}, 5),
        ({"max_tokens": b'"5"'}, None),
        ({"max_tokens": b"-1"}, None),
        ({}, None),
    ],
)
def test_the_room_for_the_answer_is_read(fields: dict[str, bytes], expected: int | None) -> None:
    assert CHAT.read_max_output(fields) == expected
    assert CHAT.read_continued_id(fields) == ""


# -- what clients send back -------------------------------------------------------

REPLIES = [
    {"role": "assistant", "content": "Hello."},
    {"role": "assistant", "content": "Hello.", "refusal": None, "annotations": []},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1.0, "b": "é"}'}},
            {"id": "call_2", "type": "custom", "custom": {"name": "g", "input": "free"}},
        ],
    },
    {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": ""}},
    {"role": "assistant", "content": None, "refusal": "I will not."},
    {
        "role": "assistant",
        "content": None,
        "audio": {"id": "audio_1", "data": "AAAA", "expires_at": 1, "transcript": "Hello."},
    },
]


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_dumped_by_the_openai_sdk_has_the_same_key(reply: dict[str, Any]) -> None:
    message = ChatCompletionMessage.model_validate(reply)
    for dump in (message.model_dump(), message.model_dump(exclude_none=True), message.model_dump(exclude_unset=True)):
        assert key(dump) == key(reply)
    assert key(json.loads(message.to_json())) == key(reply)


def test_a_reply_parsed_by_the_openai_sdk_has_the_same_key() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    reply = {
        "role": "assistant",
        "content": '{"b": 2}',
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    parsed = {**reply, "parsed": {"b": 2}, "tool_calls": [
        {"id": "c", "type": "function", "function": {**function, "parsed_arguments": {"a": 1}}}
    ]}  # fmt: skip
    assert key(parsed) == key(reply)


def test_a_reply_put_together_from_a_stream_has_the_same_key() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert key({"role": "assistant", "tool_calls": [call | {"index": 0}]}) == key(
        {"role": "assistant", "tool_calls": [call]}
    )


@pytest.mark.parametrize("reply", REPLIES[:4:2])
def test_a_reply_that_went_through_langchain_has_the_same_key(reply: dict[str, Any]) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    if reply.get("tool_calls"):
        reply = reply | {"tool_calls": reply["tool_calls"][:1]}
    kept = messages.convert_to_messages([reply])
    for text_format in ("string", "block"):
        (again,) = messages.convert_to_openai_messages(kept, text_format=text_format)
        assert key(again) == key(reply)


def test_an_earlier_reply_that_was_spoken_is_known_by_its_id() -> None:
    spoken = {"role": "assistant", "audio": {"id": "audio_1", "data": "AAAA", "expires_at": 1, "transcript": "Hello."}}
    assert key(spoken) == key({"role": "assistant", "audio": {"id": "audio_1"}})


# -- errors -----------------------------------------------------------------------


CUT = UpstreamDisconnected("The provider ended the connection before its reply. Send the request again.")
ASK: list[Any] = [{"role": "user", "content": "a"}]


def test_an_error_is_what_the_openai_sdk_calls_a_bad_request() -> None:
    error = BadRequest("No such option. Leave it out.", code="unknown_option", param="x")
    sdk = openai_sdk(400, CHAT.render_error(error, "req_1"), "application/json")
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(model="m", messages=ASK)
    assert (raised.value.code, raised.value.param, raised.value.type) == (
        "unknown_option",
        "x",
        "invalid_request_error",
    )
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["message"] == "No such option. Leave it out. (request id: req_1)"
    assert sorted(raised.value.body) == ["code", "message", "param", "type"]


def test_a_stream_cut_short_raises_in_the_openai_sdk_and_never_ends_normally() -> None:
    begun = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}\n\n'
    sdk = openai_sdk(200, begun + CHAT.render_stream_error(CUT, "req_1"), "text/event-stream")
    stream = sdk.chat.completions.create(model="m", messages=ASK, stream=True)
    assert next(stream).choices[0].delta.content == "Hel"
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    assert raised.value.message == f"{CUT.message} (request id: req_1)"
    assert raised.value.code == "upstream_disconnected"
