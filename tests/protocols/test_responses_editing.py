"""Editing the items of Responses: each kind in its own shape, or as a whole; the list as it is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.protocols.openai_responses.protocol import OpenAIResponses
from tests.protocols.edit_samples import message

RESPONSES = OpenAIResponses()


def edit(entry: Any, changes: dict[int, str | None]) -> Any:
    written = RESPONSES.edit_message(message(RESPONSES, entry), changes)
    return None if written is None else json.loads(written)


OUTPUTS = ["function_call_output", "custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output"]


@pytest.mark.parametrize("kind", OUTPUTS)
def test_an_output_keeps_its_call_id_and_gets_the_text(kind: str) -> None:
    output = {"type": kind, "id": "o1", "call_id": "c1", "status": "completed", "output": "long"}
    assert edit(output, {0: "short"}) == output | {"output": "short"}
    assert edit(output, {0: ""}) == output | {"output": ""}
    assert edit(output, {0: None}) is None


def test_an_output_of_parts_becomes_a_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "https://a/b.png"}]
    output = {"type": "function_call_output", "call_id": "c1", "output": parts}
    assert edit(output, {0: "short"}) == output | {"output": "short"}


def test_a_shells_output_becomes_one_chunk_that_ended_as_the_last_did() -> None:
    chunks = [
        {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
        {"stdout": "b", "stderr": "c", "outcome": {"type": "timeout"}},
    ]
    output = {"type": "shell_call_output", "call_id": "c1", "max_output_length": 9, "output": chunks}
    assert edit(output, {0: "short"}) == output | {
        "output": [{"stdout": "short", "stderr": "", "outcome": {"type": "timeout"}}]
    }
    with pytest.raises(ValueError, match="chunks"):
        edit(output | {"output": []}, {0: "short"})


def test_the_result_of_a_program_is_a_text() -> None:
    output = {"type": "program_output", "id": "p", "call_id": "c1", "result": "long", "status": "completed"}
    assert edit(output, {0: "short"}) == output | {"result": "short"}


def test_function_arguments_are_a_json_string_and_custom_input_is_any_text() -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}"}
    assert edit(call, {0: '{"a":1}'}) == call | {"arguments": '{"a":1}'}
    assert edit(call | {"arguments": {"b": 2}}, {0: '{"a":1}'}) == call | {"arguments": {"a": 1}}
    with pytest.raises(ValueError, match=r"."):
        edit(call, {0: "ls"})
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": "ls"}
    assert edit(custom, {0: "pwd"}) == custom | {"input": "pwd"}


SCREEN = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}
WHOLE = [
    {"type": "computer_call_output", "call_id": "c1", "output": SCREEN},
    {"type": "computer_call", "id": "cu", "call_id": "c1", "action": {"type": "wait"}, "pending_safety_checks": []},
    {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
    {"type": "local_shell_call", "id": "l", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "apply_patch_call", "call_id": "c1", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "mcp_approval_request", "id": "m", "name": "n", "server_label": "s", "arguments": "{}"},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "item_reference", "id": "rs_1"},
]
HOSTED = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "code_interpreter_call", "id": "ci", "code": "1", "outputs": [{"type": "logs", "logs": "1"}]},
    {"type": "mcp_call", "id": "m", "name": "n", "server_label": "s", "arguments": "{}", "output": "long"},
]


@pytest.mark.parametrize("item", [*WHOLE, *HOSTED], ids=lambda item: item["type"])
def test_an_item_in_which_a_text_has_no_place_leaves_as_a_whole_or_stays(item: Any) -> None:
    count = len(message(RESPONSES, item).parts)
    for index in range(count):
        with pytest.raises(ValueError, match="as it is or taken out"):
            edit(item, {index: "{}"})
        assert edit(item, {index: None}) is None


@pytest.mark.parametrize(
    "item",
    [
        {"type": "compaction", "encrypted_content": "sealed"},
        {"type": "item_reference", "id": "fc_1"},
        {"type": "tool_search_output", "call_id": "c1", "tools": [{"type": "function", "name": "n"}]},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "hologram"}]},
    ],
    ids=lambda item: item["type"],
)
def test_an_item_that_is_not_understood_is_not_changed(item: Any) -> None:
    with pytest.raises(ValueError, match="not understood"):
        edit(item, {0: "b"})


def test_a_text_in_place_of_an_approvals_reason_leaves_the_decision() -> None:
    denied = {"type": "mcp_approval_response", "approval_request_id": "m", "approve": False, "reason": "Too risky."}
    assert edit(denied, {0: "[archived]"}) == denied | {"reason": "[archived]"}


def test_assistant_text_keeps_its_type_and_loses_annotations_with_offsets() -> None:
    said = {"type": "output_text", "text": "a", "annotations": [{"type": "file_path"}], "logprobs": [{"token": "a"}]}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [said], "status": "completed"}
    changed = edit(item, {0: "b"})
    assert changed == item | {"content": [{"type": "output_text", "text": "b", "annotations": []}]}
    refused = item | {"content": [{"type": "refusal", "refusal": "no"}]}
    assert edit(refused, {0: "b"})["content"] == [{"type": "refusal", "refusal": "b"}]


def test_media_become_text_of_the_kind_of_their_speaker_and_keep_the_breakpoint() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    image = {"type": "input_image", "image_url": "https://a/b.png"}
    assert edit({"role": "user", "content": [image | mark]}, {0: "b"})["content"] == [
        {"type": "input_text", "text": "b"} | mark
    ]
    assert edit({"role": "assistant", "content": [image]}, {0: "b"})["content"] == [
        {"type": "output_text", "text": "b"}
    ]


def test_a_bare_string_stays_one_until_it_is_sent() -> None:
    assert edit("hi", {0: "b"}) == "b"
    assert edit("hi", {0: None}) is None
    assert RESPONSES.join_messages([b'"h\\u00e9"'], []) == [RESPONSES.text_message("hé")]


# -- the list as it is sent ----------------------------------------------------------

USER = {"role": "user", "content": "id"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "r"}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}


def sent(*entries: Any) -> list[Any]:
    return [json.loads(wire) for wire in RESPONSES.join_messages([json.dumps(e).encode() for e in entries], [])]


def bare(entry: Any) -> Any:
    return {name: value for name, value in entry.items() if name != "id"}


def test_items_with_their_reasoning_keep_their_bytes() -> None:
    listed = [
        json.dumps(e, indent=1).encode() for e in (USER, THOUGHT, SAID, CALL, SEARCH, CALL, OUTPUT, THOUGHT, SAID)
    ]
    assert RESPONSES.join_messages(listed, []) == listed


def test_items_after_removed_reasoning_lose_their_id() -> None:
    assert sent(USER, SAID, CALL, OUTPUT, THOUGHT, CALL) == [USER, bare(SAID), bare(CALL), OUTPUT, THOUGHT, CALL]
    assert sent(USER, THOUGHT, CALL, OUTPUT, CALL) == [USER, THOUGHT, CALL, OUTPUT, bare(CALL)]


def test_an_item_that_only_its_id_names_keeps_it() -> None:
    reference = {"type": "item_reference", "id": "rs_1"}
    assert sent(USER, SEARCH, reference, SAID) == [USER, SEARCH, reference, SAID]


def test_a_users_message_keeps_its_id() -> None:
    assert sent(USER | {"id": "msg_2"}) == [USER | {"id": "msg_2"}]


def test_an_item_is_sent_the_same_way_however_the_list_goes_on() -> None:
    listed = [json.dumps(e).encode() for e in (USER, SAID, CALL, OUTPUT, THOUGHT, SAID, CALL, OUTPUT, CALL, USER)]
    whole = RESPONSES.join_messages(listed, [])
    for end in range(len(listed)):
        assert RESPONSES.join_messages(listed[:end], []) == whole[:end]
