"""Editing messages of Chat Completions: each of its fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.protocols.openai_chat.protocol import OpenAIChat
from tests.protocols.edit_samples import message, reread_parts

CHAT = OpenAIChat()
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}
OTHER = {"id": "c2", "type": "function", "function": {"name": "read", "arguments": "{}"}}


def edit(entry: Any, changes: dict[int, str | None]) -> Any:
    written = CHAT.edit_message(message(CHAT, entry), changes)
    return None if written is None else json.loads(written)


def test_a_tools_answer_keeps_its_call_id_and_gets_the_text() -> None:
    answer = {"role": "tool", "tool_call_id": "c1", "name": "read", "content": [{"type": "text", "text": "long"}]}
    assert edit(answer, {0: "short"}) == answer | {"content": "short"}
    assert edit(answer, {0: ""}) == answer | {"content": ""}
    assert edit(answer, {0: None}) is None


def test_a_legacy_answer_and_its_call_are_edited_too() -> None:
    assert edit({"role": "function", "name": "read", "content": "long"}, {0: "b"}) == {
        "role": "function",
        "name": "read",
        "content": "b",
    }
    called = {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": "{}"}}
    assert edit(called, {0: '{"a": 1}'})["function_call"] == {"name": "read", "arguments": '{"a": 1}'}
    assert edit(called, {0: None}) is None


def test_calls_are_taken_out_one_by_one_and_the_field_with_the_last() -> None:
    said = {"role": "assistant", "content": "I look", "tool_calls": [CALL, OTHER]}
    assert edit(said, {1: None}) == said | {"tool_calls": [OTHER]}
    assert edit(said, {1: None, 2: None}) == {"role": "assistant", "content": "I look"}
    assert edit(said, {0: None}) == said | {"content": None}


@pytest.mark.parametrize("content", [None, "", []])
def test_an_assistants_message_with_neither_content_nor_calls_is_nothing(content: Any) -> None:
    said = {"role": "assistant", "content": content, "reasoning_content": "hm", "tool_calls": [CALL]}
    assert edit(said, {1: None}) is None
    assert edit(said, {0: None}) == {"role": "assistant", "content": content, "tool_calls": [CALL]}


def test_reasoning_leaves_in_all_its_words_and_is_never_rewritten() -> None:
    said = {"role": "assistant", "content": "a", "reasoning": "hm", "reasoning_details": [{"data": "sealed"}]}
    assert edit(said, {0: None}) == {"role": "assistant", "content": "a"}
    with pytest.raises(ValueError, match="reasoning"):
        edit(said, {0: "other"})
    assert edit({**said, "reasoning": None}, {0: None}) == {"role": "assistant", "content": "a"}
    part = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]}
    assert edit(part, {0: None})["content"] == [{"type": "text", "text": "a"}]
    assert edit(part, {1: None}) is None
    with pytest.raises(ValueError, match="reasoning"):
        edit(part, {0: "other"})


def test_a_custom_call_takes_any_text_and_a_function_an_object() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    said = {"role": "assistant", "content": None, "tool_calls": [custom, CALL]}
    assert edit(said, {0: "pwd"})["tool_calls"] == [custom | {"custom": {"name": "sh", "input": "pwd"}}, CALL]
    assert edit(said, {1: '{"b": 2}'})["tool_calls"][1]["function"]["arguments"] == '{"b": 2}'
    for bad in ("pwd", "[1]", ""):
        with pytest.raises(ValueError, match=r"."):
            edit(said, {1: bad})


def test_arguments_that_were_an_object_stay_one() -> None:
    said = {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "read", "arguments": {"path": "a"}}}]}
    assert edit(said, {0: '{"b":2}'})["tool_calls"][0]["function"]["arguments"] == {"b": 2}


def test_media_become_text_and_keep_the_breakpoint() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    said = {"role": "user", "content": [image | mark, image]}
    assert edit(said, {0: "a picture"})["content"] == [{"type": "text", "text": "a picture"} | mark, image]
    assert edit(said, {0: None})["content"] == [image]


def test_a_refusal_is_edited_where_it_stands() -> None:
    assert edit({"role": "assistant", "content": None, "refusal": "no"}, {0: "b"})["refusal"] == "b"
    part = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert edit(part, {0: "b"})["content"] == [{"type": "refusal", "refusal": "b"}]


@pytest.mark.parametrize("content", [None, "", "said", [{"type": "text", "text": "said"}]])
def test_an_earlier_sound_becomes_a_text_behind_what_was_said(content: Any) -> None:
    said = {"role": "assistant", "content": content, "audio": {"id": "a1"}}
    was = message(CHAT, said)
    written = CHAT.edit_message(was, {len(was.parts) - 1: "a sound"})
    texts = [part.text for part in reread_parts(CHAT, written)]  # type: ignore[union-attr]
    assert texts == (["said", "a sound"] if content else ["a sound"])
    assert "audio" not in json.loads(written or b"")


def test_a_message_that_is_read_by_its_content_alone_is_edited_so() -> None:
    odd = {"content": "a", "tool_calls": [CALL]}
    assert edit(odd, {0: "b"}) == {"content": "b", "tool_calls": [CALL]}


def test_a_result_that_holds_what_is_not_understood_is_not_told_in_other_words() -> None:
    answer = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "hologram"}]}
    with pytest.raises(ValueError, match="not understood"):
        edit(answer, {0: "b"})
    assert edit(answer, {0: None}) is None


def test_a_block_of_ours_becomes_a_part_of_the_users_messages_beside_it() -> None:
    task, block, call = (
        {"role": role, "content": text} for role, text in (("user", "do"), ("user", "x"), ("assistant", "a"))
    )
    wires = [json.dumps(entry).encode() for entry in (task, block, call)]
    assert [json.loads(wire) for wire in CHAT.join_messages(wires, [1])] == [
        {"role": "user", "content": "do\n\nx"},
        call,
    ]
    assert CHAT.join_messages(wires, []) == wires
    again = [
        json.dumps(entry).encode()
        for entry in (task, block, {"role": "user", "content": [{"type": "text", "text": "go"}]})
    ]
    [only] = CHAT.join_messages(again, [1])
    texts = [part["text"] for part in json.loads(only)["content"]]
    assert texts == ["do", "x", "go"]


def test_a_message_with_more_than_a_text_stays_alone_beside_a_block_of_ours() -> None:
    named = json.dumps({"role": "user", "name": "ann", "content": "do"}).encode()
    block = json.dumps({"role": "user", "content": "x"}).encode()
    first, second = CHAT.join_messages([named, block], [1])
    assert first == named
    assert json.loads(second) == {"role": "user", "content": "x"}


def test_messages_of_the_user_that_a_block_of_ours_brought_together_are_one() -> None:
    user, named = {"role": "user", "content": "do"}, {"role": "user", "name": "ann", "content": "do"}
    result = {"role": "tool", "tool_call_id": "c", "content": "r"}

    def roles(*entries: dict[str, str]) -> list[tuple[str, str]]:
        joined = CHAT.join_messages([json.dumps(entry).encode() for entry in entries], [0])
        return [(entry["role"], entry["content"]) for entry in map(json.loads, joined)]

    assert roles(user, user, user) == [("user", "do\n\ndo\n\ndo")]
    assert roles(user, user, named) == [("user", "do\n\ndo"), ("user", "do")]
    assert [role for role, _ in roles(user, result, result)] == ["tool", "tool"]
