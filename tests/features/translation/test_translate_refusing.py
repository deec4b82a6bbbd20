"""Content that a translation would lose is refused by name before anything is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.features.translation.translator_setup import CHAT_TOOL, SCHEMA, TranslatorSetup, chat, request, say

TEXT = {"type": "text", "text": "see"}
FILE = {"type": "file", "file_id": "file_1"}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}}
TOOL: dict[str, Any] = {"name": "look", "input_schema": SCHEMA}


def build_request(*parts: Any, protocol_name: str = "messages", **fields: Any) -> dict[str, Any]:
    return request(protocol_name, **fields) | {"messages": [{"role": "user", "content": [*parts, TEXT]}]}


def build_result_request(*parts: Any) -> dict[str, Any]:
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [*parts, TEXT]}]}
    return request("messages", tools=[TOOL]) | {"messages": [*say(), call, result]}


def items(*given: Any) -> dict[str, Any]:
    return request("responses") | {"input": [*say(), *given]}


LOST: list[tuple[str, dict[str, Any], str, str]] = [
    ("messages", build_request({"type": "document", "source": FILE}), "messages", "The file id of `document`"),
    ("messages", build_request({"type": "image", "source": FILE}), "messages", "The file id of `image`"),
    ("messages", build_request(PDF), "messages", "A PDF"),
    (
        "messages",
        build_request({"type": "container_upload", "file_id": "f"}),
        "messages",
        "A block of type `container_upload`",
    ),
    ("messages", build_result_request(PDF), "messages", "A PDF"),
    ("messages", build_result_request({"type": "image", "source": FILE}), "messages", "The file id of `image`"),
    ("messages", request("messages", stop_sequences=[*"ABCDE"]), "stop_sequences", "More than 4 `stop_sequences`"),
    (
        "chat",
        build_request({"type": "input_audio", "input_audio": {"data": "TUFS", "format": "wav"}}, protocol_name="chat"),
        "messages",
        "`input_audio`",
    ),
    (
        "chat",
        build_request({"type": "video_url", "video_url": {"url": "https://a.invalid"}}, protocol_name="chat"),
        "messages",
        "`video_url`",
    ),
    ("chat", chat(tools=[{"type": "custom", "custom": {"name": "ping"}}]), "tools", "A tool of type `custom`"),
    ("chat", chat(stop=[*"ABCDE"]), "stop", "More than 4 `stop`"),
    ("responses", items({"type": "item_reference", "id": "msg_1"}), "input", "`item_reference`"),
    ("responses", items({"type": "compaction", "encrypted_content": "gAAA"}), "input", "`compaction`"),
    (
        "responses",
        items({"type": "local_shell_call", "call_id": "c", "action": {"type": "exec"}}),
        "input",
        "`local_shell_call`",
    ),
    (
        "responses",
        items({"type": "local_shell_call_output", "call_id": "c", "output": "x"}),
        "input",
        "`local_shell_call_output`",
    ),
    (
        "responses",
        items({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}),
        "input",
        "`shell_call`",
    ),
    (
        "responses",
        items({"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file"}}),
        "input",
        "`apply_patch_call`",
    ),
    ("responses", items({"type": "mcp_call", "id": "m", "name": "n", "output": "x"}), "input", "`mcp_call`"),
    (
        "responses",
        items({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}),
        "input",
        "`input_audio`",
    ),
    (
        "responses",
        items(
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0xLjQK"}],
            },
        ),
        "input",
        "`input_file` in a tool's output",
    ),
]


@pytest.mark.parametrize(("protocol_name", "body", "field", "what"), LOST)
async def test_content_that_a_translation_would_lose_is_refused_by_name(
    translator: TranslatorSetup, protocol_name: str, body: dict[str, Any], field: str, what: str
) -> None:
    if protocol_name == "messages":
        translator.route = translator.to_openai()
    status, answer = await translator.ask(protocol_name, body)
    error = json.loads(answer)["error"]
    assert (status, error["type"], translator.provider.seen) == (400, "invalid_request_error", [])
    assert what in error["message"]
    assert "drop_params" in error["message"]
    if protocol_name != "messages":
        assert (error["param"], error["code"]) == (field, "unsupported_parameter")


@pytest.mark.parametrize(("protocol_name", "body", "field", "what"), LOST)
async def test_it_is_left_out_where_that_is_asked_for(
    translator: TranslatorSetup, protocol_name: str, body: dict[str, Any], field: str, what: str
) -> None:
    translator.route = (
        translator.to_openai(drop_params=True)
        if protocol_name == "messages"
        else translator.to_anthropic(drop_params=True)
    )
    status, _ = await translator.ask(protocol_name, body)
    assert status == 200
    assert "JVBERi0xLjQK" not in json.dumps(translator.provider.last)


async def test_only_custom_tools_are_left_out(translator: TranslatorSetup) -> None:
    translator.route = translator.to_anthropic(drop_params=True)
    custom = {"type": "custom", "custom": {"name": "ping"}}
    status, _ = await translator.ask("chat", chat(tools=[custom, CHAT_TOOL], tool_choice="required"))
    assert (status, [tool["name"] for tool in translator.provider.last["tools"]]) == (200, ["get_weather"])
    status, _ = await translator.ask("chat", chat(tools=[custom], tool_choice="required", parallel_tool_calls=False))
    assert (status, {"tools", "tool_choice"} & {*translator.provider.last}) == (200, set())


@pytest.mark.parametrize("kind", ["local_shell", "shell", "image_generation", "tool_search"])
async def test_tools_that_a_provider_runs_itself_are_left_out(translator: TranslatorSetup, kind: str) -> None:
    status, _ = await translator.ask("responses", request("responses", tools=[{"type": kind}]))
    assert (status, translator.provider.last.get("tools")) == (200, None)


async def test_what_tools_that_a_provider_runs_said_is_left_out(translator: TranslatorSetup) -> None:
    translator.route = translator.to_openai()
    sealed = {"type": "web_search_result", "url": "https://a.invalid", "title": "t", "encrypted_content": "E"}
    hosted = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [sealed]},
    ]
    history = [*say(), {"role": "assistant", "content": [*hosted, {"type": "text", "text": "Yes."}]}, *say()]
    status, _ = await translator.ask("messages", request("messages") | {"messages": history})
    assert status == 200
    assert translator.provider.last["messages"][1] == {"role": "assistant", "content": "Yes."}


async def test_items_that_are_translated_are_not_refused(translator: TranslatorSetup) -> None:
    given = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "x"},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "x"}},
    ]
    status, answer = await translator.ask("responses", items(*given))
    assert status == 200, answer
