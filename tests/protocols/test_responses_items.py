"""Every kind of item of a Responses list is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.boundaries import find_indivisible_groups, find_open_calls
from accordion.model.conversation import Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from accordion.protocols.openai_responses.protocol import OpenAIResponses

RESPONSES = OpenAIResponses()


def read(entry: Any) -> Any:
    return RESPONSES.read_message(json.dumps(entry).encode())


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
        ToolCall("m", "f", "{}", "m"),
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
        ToolResult("m", (Text("approved"),)),
    ),
    (
        {"type": "mcp_approval_response", "approval_request_id": "m", "approve": False, "reason": "Not on Friday."},
        ToolResult("m", (Text("Not on Friday."),), error=True),
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
    {"type": "item_reference", "id": "fc_1"},
    {"type": "item_reference"},
    {"type": "tool_search_call", "execution": "server", "arguments": {}},
    {"type": "tool_search_output", "execution": "server", "tools": []},
    {"type": "hologram", "n": 1},
]


PAIRS = [
    (
        {"type": "computer_call", "id": "x", "call_id": "c", "pending_safety_checks": [{"id": "s"}], "action": {}},
        {"type": "computer_call_output", "call_id": "c", "acknowledged_safety_checks": [{"id": "s"}], "output": {}},
    ),
    ({"type": "local_shell_call", "id": "x", "call_id": "c"}, {"type": "local_shell_call_output", "id": "c"}),
    ({"type": "shell_call", "id": "x", "call_id": "c"}, {"type": "shell_call_output", "id": "y", "call_id": "c"}),
    ({"type": "apply_patch_call", "call_id": "c"}, {"type": "apply_patch_call_output", "call_id": "c"}),
    ({"type": "custom_tool_call", "call_id": "c"}, {"type": "custom_tool_call_output", "call_id": "c"}),
    ({"type": "program", "id": "x", "call_id": "c"}, {"type": "program_output", "id": "y", "call_id": "c"}),
    ({"type": "tool_search_call", "call_id": "c"}, {"type": "tool_search_output", "call_id": "c", "tools": []}),
    ({"type": "mcp_approval_request", "id": "c"}, {"type": "mcp_approval_response", "approval_request_id": "c"}),
]


@pytest.mark.parametrize(("call", "output"), PAIRS, ids=lambda item: item["type"])
def test_a_call_and_its_output_are_one_group(call: Any, output: Any) -> None:
    between = {"type": "message", "role": "assistant", "content": "Wait."}
    messages = [Message(b"", read(item).role, read(item).parts, b"") for item in (call, between, output)]
    assert find_indivisible_groups(messages) == ((0, 2),)
    assert not find_open_calls(messages)


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
def test_items_only_the_provider_understands_are_opaque_with_a_size(entry: Any) -> None:
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
        ({"id": "fc_1"}, "other", Opaque("item_reference", 14)),
        ({"id": "msg_1"}, "assistant", Text("(a message that only the provider has, with the id msg_1)")),
        ({"type": "item_reference", "id": "rs_1"}, "assistant", Reasoning("")),
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
