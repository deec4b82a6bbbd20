"""Anthropic Messages: what its blocks say, who rewrote them, how its clients hear of errors."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from accordion.model.conversation import Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from accordion.model.errors import BadRequest, UpstreamDisconnected, UpstreamTimeout
from accordion.model.tenant import TenantScope
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from accordion.protocols.message_keys import message_key
from tests.sdks import anthropic_sdk

MESSAGES = AnthropicMessages()
TENANT = TenantScope("tenant", b"s" * 32)


def read(entry: Any) -> Any:
    return MESSAGES.read_message(json.dumps(entry).encode())


def key(entry: Any) -> bytes:
    return message_key(read(entry).canonical, TENANT, "chat")


PIXEL = "R0lGODlhAgADAA=="
GIF = Media("image", "image/gif", 10, 2, 3)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": PIXEL}}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}

INNER = [
    ({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, (Text("a"),)),
    (IMAGE, (GIF,)),
    ({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}, (Media("image"),)),
    ({"type": "image", "source": {"type": "file", "file_id": "f"}}, (Media("image"),)),
    (
        {"type": "document", "source": PDF, "title": "T", "context": "C"},
        (Text("T"), Text("C"), Media("file", "application/pdf", 9)),
    ),
    ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "body"}}, (Text("body"),)),
    (
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}, IMAGE]}},
        (Text("a"), GIF),
    ),
    ({"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}, (Media("file"),)),
    (
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "a"}]},
        (Text("t"), Text("s"), Text("a")),
    ),
    (
        {
            "type": "browser_state",
            "tabs": [{"tab_id": "1", "title": "T", "url": "https://x/", "active": True}],
            "state_changes": [{"type": "download_started", "download_id": "d", "url": "https://x/y"}],
        },
        (Text("T"), Text("https://x/"), Text("https://x/y")),
    ),
    ({"type": "advisor_redacted_result", "encrypted_content": "abcd"}, (Media("file", "text/plain", 3),)),
    ({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}, ()),
    ({"type": "tool_reference", "tool_name": "f"}, (Opaque("tool_reference", 41),)),
    ({"type": "hologram"}, (Opaque("hologram", 19),)),
    (5, (Opaque("", 1),)),
]

BLOCKS = [
    ({"type": "thinking", "thinking": "hm", "signature": "abc"}, (Reasoning("hm", 3),)),
    ({"type": "redacted_thinking", "data": "abcd"}, (Reasoning("", 4),)),
    (
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": 1}},
        (ToolCall("s", "web_search", '{"q":1}'),),
    ),
    ({"type": "mcp_tool_use", "id": "s", "name": "f", "server_name": "x", "input": {}}, (ToolCall("s", "f", "{}"),)),
    (
        {"type": "mcp_tool_result", "tool_use_id": "s", "content": "r", "is_error": False},
        (ToolResult("s", (Text("r"),)),),
    ),
    (
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": [
                {"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "eHh4eHh4"},
                {"type": "web_search_result", "title": "T", "url": "v"},
            ],
        },
        (ToolResult("s", (Text("T"), Text("u"), Media("file", "text/plain", 6), Text("T"), Text("v"))),),
    ),
    (
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
        },
        (ToolResult("s", (Text("max_uses_exceeded"),), True),),
    ),
    (
        {
            "type": "web_fetch_tool_result",
            "tool_use_id": "s",
            "content": {
                "type": "web_fetch_result",
                "url": "u",
                "content": {"type": "document", "source": {"type": "text", "data": "page"}},
            },
        },
        (ToolResult("s", (Text("u"), Text("page"))),),
    ),
    (
        {
            "type": "bash_code_execution_tool_result",
            "tool_use_id": "s",
            "content": {
                "type": "bash_code_execution_result",
                "stdout": "out",
                "stderr": "err",
                "return_code": 1,
                "content": [{"type": "bash_code_execution_output", "file_id": "file_1"}],
            },
        },
        (ToolResult("s", (Text("out"), Text("err"), Text("file_1"))),),
    ),
    (
        {
            "type": "code_execution_tool_result",
            "tool_use_id": "s",
            "content": {
                "type": "encrypted_code_execution_result",
                "encrypted_stdout": "eHh4eHh4" * 2_000,
                "stderr": "err",
                "return_code": 0,
                "content": [{"type": "code_execution_output", "file_id": "file_1"}],
            },
        },
        (ToolResult("s", (Text("err"), Media("file", "text/plain", 12_000), Text("file_1"))),),
    ),
    (
        {
            "type": "text_editor_code_execution_tool_result",
            "tool_use_id": "s",
            "content": {"type": "text_editor_code_execution_view_result", "content": "a line", "file_type": "text"},
        },
        (ToolResult("s", (Text("a line"),)),),
    ),
    (
        {
            "type": "text_editor_code_execution_tool_result",
            "tool_use_id": "s",
            "content": {"type": "text_editor_code_execution_str_replace_result", "lines": ["-a", "+b"]},
        },
        (ToolResult("s", (Text("-a\n+b"),)),),
    ),
    (
        {
            "type": "text_editor_code_execution_tool_result",
            "tool_use_id": "s",
            "content": {"type": "text_editor_code_execution_create_result", "is_file_update": False},
        },
        (ToolResult("s", ()),),
    ),
    ({"type": "container_upload", "file_id": "f"}, (Opaque("container_upload", 41),)),
    ({"type": "compaction", "content": "summed up", "signature": "x"}, (Opaque("compaction", 9),)),
    ({"type": "compaction", "content": None, "encrypted_content": "abc"}, (Opaque("compaction", 3),)),
]


@pytest.mark.parametrize(("block", "expected"), INNER)
def test_every_kind_of_content_is_read_also_inside_a_result(block: Any, expected: Any) -> None:
    assert read({"role": "user", "content": [block]}).parts == expected
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    assert read({"role": "user", "content": [result]}).parts == (ToolResult("t", expected),)


@pytest.mark.parametrize(("block", "expected"), BLOCKS)
def test_every_kind_of_block_is_read(block: Any, expected: Any) -> None:
    message = read({"role": "assistant", "content": [block]})
    assert (message.role, message.parts) == ("assistant", expected)


@pytest.mark.parametrize(
    ("entry", "role", "expected"),
    [
        ({"role": "user", "content": "a"}, "user", (Text("a"),)),
        ({"role": "user", "content": ""}, "user", ()),
        ({"role": "user"}, "user", ()),
        ({"role": "system", "content": "a", "clear_at": "never"}, "system", (Text("a"),)),
        ({"role": "narrator", "content": "a"}, "other", (Text("a"),)),
        ({"role": "user", "content": {"a": 1}}, "user", (Opaque("", 7),)),
        ("odd", "other", (Opaque("", 5),)),
    ],
)
def test_every_kind_of_message_is_read(entry: Any, role: str, expected: Any) -> None:
    message = read(entry)
    assert (message.role, message.parts) == (role, expected)


def test_a_failed_tool_is_told_from_a_good_one() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "r"}
    assert read({"role": "user", "content": [result | {"is_error": True}]}).parts[0].error
    assert not read({"role": "user", "content": [result]}).parts[0].error


def test_top_level_fields_are_read() -> None:
    fields = {
        "system": b'[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]',
        "tools": b'[{"name": "f", "input_schema": {}, "cache_control": {"type": "ephemeral"}}]',
        "output_config": b'{"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}',
        "max_tokens": b"9",
        "thread": b'{"type": "continue", "previous_message_id": "msg_1"}',
    }
    assert MESSAGES.read_preamble(fields) == (Text("Be brief."),)
    assert MESSAGES.read_preamble({"system": b'"Be brief."'}) == (Text("Be brief."),)
    assert MESSAGES.read_tools(fields) == ('{"name":"f","input_schema":{}}', '{"type":"object"}')
    assert MESSAGES.read_max_output(fields) == 9
    assert MESSAGES.read_continued_id(fields) == "msg_1"
    assert MESSAGES.provider_state(fields) == "thread"
    begun = {"thread": b'{"type": "create"}'}
    assert (MESSAGES.read_continued_id(begun), MESSAGES.provider_state(begun)) == ("", "thread")
    assert all(MESSAGES.provider_state({"thread": raw}) == "" for raw in (b"null", b"[1]", b'"x"', b"{}"))
    assert (MESSAGES.read_preamble({}), MESSAGES.read_tools({}), MESSAGES.read_max_output({})) == ((), (), None)


# -- what clients send back -------------------------------------------------------

REPLY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "abc"},
        {"type": "text", "text": "Hello.", "citations": None},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "f",
            "input": {"a": 1.0, "b": None},
            "caller": {"type": "direct"},
        },
    ],
}


def test_a_reply_dumped_by_the_anthropic_sdk_has_the_same_key() -> None:
    made = Message.model_validate(REPLY)
    bare = [
        {"type": "thinking", "thinking": "hm", "signature": "abc"},
        {"type": "text", "text": "Hello."},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": None, "a": 1}},
    ]
    expected = key({"role": "assistant", "content": REPLY["content"]})
    for content in (
        bare,
        [block.model_dump() for block in made.content],
        [block.model_dump(exclude_unset=True) for block in made.content],
        [block.to_dict() for block in made.content],
    ):
        assert key({"role": "assistant", "content": content}) == expected


def test_results_as_text_and_as_one_block_are_the_same_and_no_result_is_no_content() -> None:
    def result(**fields: Any) -> bytes:
        return key({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", **fields}]})

    assert result(content="r") == result(content=[{"type": "text", "text": "r"}]) == result(content="r", is_error=False)
    assert result() == result(content="") == result(content=[]) == result(content=None)
    assert len({result(), result(content="r"), result(content="r", is_error=True)}) == 3


def test_a_changed_signature_is_another_message() -> None:
    block = {"type": "thinking", "thinking": "hm", "signature": "abc"}
    one, two = ({"role": "assistant", "content": [block | {"signature": s}]} for s in ("abc", "abd"))
    assert key(one) != key(two)


# -- errors -----------------------------------------------------------------------


CUT = UpstreamDisconnected("The provider ended the connection before its reply. Send the request again.")
ASK: Any = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("error", "kind", "raised_as"),
    [
        (BadRequest("No such option. Leave it out."), "invalid_request_error", anthropic.BadRequestError),
        (UpstreamTimeout("Too slow. Try again."), "timeout_error", anthropic.InternalServerError),
    ],
)
def test_an_error_is_what_the_anthropic_sdk_calls_by_its_status(error: Any, kind: str, raised_as: Any) -> None:
    sdk = anthropic_sdk(error.status, MESSAGES.render_error(error, "req_1"), "application/json")
    with pytest.raises(raised_as) as raised:
        sdk.messages.create(**ASK)
    assert raised.value.body == {
        "type": "error",
        "error": {"type": kind, "message": error.message},
        "request_id": "req_1",
    }


def test_a_stream_cut_short_raises_in_the_anthropic_sdk_and_never_ends_normally() -> None:
    start = {"type": "message_start", "message": REPLY | {"content": []}}
    begun = f"event: message_start\ndata: {json.dumps(start)}\n\n".encode()
    for read_all in (
        lambda sdk: list(sdk.messages.create(**ASK, stream=True)),
        lambda sdk: _through_the_helper(sdk),
    ):
        sdk = anthropic_sdk(200, begun + MESSAGES.render_stream_error(CUT, "req_1"), "text/event-stream")
        with pytest.raises(anthropic.APIStatusError) as raised:
            read_all(sdk)
        assert CUT.message in str(raised.value)
        assert "req_1" in str(raised.value)


def _through_the_helper(sdk: anthropic.Anthropic) -> Any:
    with sdk.messages.stream(**ASK) as stream:
        return stream.get_final_message()
