"""Editing Anthropic's messages: each kind of block; blocks of ours beside the user's; breakpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.conversation import ToolResult
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from tests.protocols.edit_samples import message

MESSAGES = AnthropicMessages()
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
USE = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "long"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sealed"}
SEALED = {"type": "redacted_thinking", "data": "sealed"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
HI = {"type": "text", "text": "hi"}
OWN = {"type": "text", "text": "ours"}


def edit(role: str, blocks: Any, changes: dict[int, str | None]) -> Any:
    written = MESSAGES.edit_message(message(MESSAGES, {"role": role, "content": blocks}), changes)
    return None if written is None else json.loads(written)["content"]


def test_a_result_keeps_its_id_its_error_and_its_own_breakpoint() -> None:
    inner = [{"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}]
    result = RESULT | {"is_error": True, "content": inner} | MARK
    assert edit("user", [result, HI], {0: "short"}) == [result | {"content": "short"}, HI]
    assert edit("user", [result | {"content": None}], {0: "short"}) == [result | {"content": "short"}]
    assert edit("user", [result, HI], {0: None}) == [HI]


def test_the_input_of_a_call_is_an_object() -> None:
    assert edit("assistant", [HI, USE], {1: '{"b": [1]}'}) == [HI, USE | {"input": {"b": [1]}}]
    for bad in ("b", "[1]", '"b"', ""):
        with pytest.raises(ValueError, match=r"."):
            edit("assistant", [USE], {0: bad})


@pytest.mark.parametrize("thought", [THOUGHT, SEALED])
def test_thinking_is_byte_equal_or_gone(thought: Any) -> None:
    odd = json.dumps(thought, indent=3)
    wire = b'{"role":"assistant","content":[' + odd.encode() + b"," + json.dumps(USE).encode() + b"]}"
    written = MESSAGES.edit_message(message(MESSAGES, wire), {1: "{}"})
    assert written is not None
    assert odd.encode() in written
    assert edit("assistant", [thought, USE], {0: None}) == [USE]
    assert edit("assistant", [thought, USE], {1: None}) is None
    with pytest.raises(ValueError, match="thinking"):
        edit("assistant", [thought, USE], {0: "other"})


def test_media_become_text_and_keep_the_breakpoint() -> None:
    assert edit("user", [IMAGE | MARK, HI], {0: "a picture"}) == [{"type": "text", "text": "a picture"} | MARK, HI]
    assert edit("user", [IMAGE], {0: ""}) is None


def test_the_parts_of_a_document_go_together() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "long"}
    document = {"type": "document", "title": "T", "context": "C", "source": source}
    for changes in ({0: "short"}, {2: "short"}, {0: None, 1: "short", 2: None}):
        assert edit("user", [document, HI], changes) == [{"type": "text", "text": "short"}, HI]
    assert edit("user", [document, HI], {0: "one", 2: "two"})[0]["text"] == "one\ntwo"
    assert edit("user", [document, HI], {1: None}) == [HI]
    assert edit("user", [document, HI], {3: "b"}) == [document, HI | {"text": "b"}]


def test_citations_leave_with_the_text_that_they_count() -> None:
    cited = HI | MARK | {"citations": [{"type": "char_location", "start_char_index": 0}]}
    assert edit("assistant", [cited], {0: "b"}) == [{"type": "text", "text": "b"} | MARK]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "n", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "content": "r", "is_error": False},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "compaction", "content": "s", "encrypted_content": "e"},
    ],
)
@pytest.mark.parametrize("text", ["b", "{}", None])
def test_signed_blocks_and_hosted_tool_blocks_are_not_edited(block: Any, text: str | None) -> None:
    with pytest.raises(ValueError, match=r"."):
        edit("assistant", [block, HI], {0: text})
    assert edit("assistant", [block, HI], {1: None}) == [block]


# -- our own blocks among the user's -------------------------------------------------


def wires(*entries: Any) -> list[bytes]:
    return [json.dumps(entry).encode() for entry in entries]


def joined(entries: list[Any], *ours: int) -> list[Any]:
    return [json.loads(wire) for wire in MESSAGES.join_messages(wires(*entries), ours)]


TASK = {"role": "user", "content": "task"}
REPLY = {"role": "assistant", "content": [HI, USE]}
ANSWER = {"role": "user", "content": [RESULT]}
OURS = {"role": "user", "content": [OWN]}
TASK_BLOCK = {"type": "text", "text": "task"}


def test_a_block_of_ours_becomes_a_part_of_the_users_message_before_it() -> None:
    assert joined([TASK, OURS, REPLY, ANSWER], 1) == [
        {"role": "user", "content": [TASK_BLOCK, OWN]}, REPLY, ANSWER
    ]  # fmt: skip
    assert joined([TASK, REPLY, ANSWER, OURS, REPLY, ANSWER], 3)[2] == {"role": "user", "content": [RESULT, OWN]}


def test_several_blocks_in_a_row_become_parts_of_the_same_message() -> None:
    assert joined([TASK, OURS, OURS, REPLY], 1, 2) == [{"role": "user", "content": [TASK_BLOCK, OWN, OWN]}, REPLY]


def test_a_block_of_ours_at_the_start_stands_before_what_the_user_says_next() -> None:
    assert joined([OURS, TASK, REPLY], 0) == [{"role": "user", "content": [OWN, TASK_BLOCK]}, REPLY]


def test_speakers_alternate_where_the_user_speaks_before_and_after_a_block_of_ours() -> None:
    assert joined([TASK, OURS, TASK, REPLY], 1) == [{"role": "user", "content": [TASK_BLOCK, OWN, TASK_BLOCK]}, REPLY]


def test_a_block_of_ours_before_results_becomes_a_part_of_the_first_result() -> None:
    call = {"role": "assistant", "content": [USE]}
    [before, results] = joined([call, OURS, ANSWER], 1)
    assert before == call
    heading = {"type": "text", "text": "[What follows is what the tool returned.]"}
    returned = {"type": "text", "text": RESULT["content"]}
    assert results == {"role": "user", "content": [{**RESULT, "content": [OWN, heading, returned]}]}


@pytest.mark.parametrize("beside", [REPLY, {"role": "user", "content": {"odd": 1}}, "odd"])
def test_a_block_of_ours_stands_alone_where_nothing_of_the_users_may_hold_it(beside: Any) -> None:
    alone = [MESSAGES.text_message("ours"), *wires(beside)]
    assert MESSAGES.join_messages(alone, [0]) == alone


def test_entries_that_are_not_beside_a_block_of_ours_keep_their_bytes() -> None:
    odd = b'{ "content" :"a", "role":"user" }'
    reply = json.dumps(REPLY).encode()
    out = MESSAGES.join_messages([odd, reply, odd, reply, odd, MESSAGES.text_message("b"), reply], [5])
    assert out[:4] == [odd, reply, odd, reply]
    assert out[5:] == [reply]
    assert MESSAGES.join_messages([odd, odd, reply], []) == [odd, odd, reply]


def test_the_blocks_of_a_message_that_ours_is_joined_to_keep_their_bytes() -> None:
    block = b'{ "type":"text",  "text":"\\u00e9" , "cache_control":{"type" : "ephemeral"}}'
    (out,) = MESSAGES.join_messages([b'{"role":"user","content":[' + block + b"]}", MESSAGES.text_message("b")], [1])
    assert block in out


# -- breakpoints --------------------------------------------------------------------


def marked(role: str, content: Any) -> Any:
    return json.loads(MESSAGES.with_breakpoint(json.dumps({"role": role, "content": content}).encode()))["content"]


@pytest.mark.parametrize("block", [HI, IMAGE, USE, RESULT])
def test_a_breakpoint_is_put_on_the_last_block(block: Any) -> None:
    assert marked("user", [HI, block]) == [HI, block | {"cache_control": {"type": "ephemeral"}}]


def test_a_plain_text_is_marked_as_a_block() -> None:
    assert marked("user", "hi") == [HI | {"cache_control": {"type": "ephemeral"}}]


@pytest.mark.parametrize("last", [THOUGHT, SEALED, {"type": "text", "text": ""}, {"type": "hologram"}])
def test_a_block_that_may_carry_no_breakpoint_leaves_it_to_the_one_before(last: Any) -> None:
    assert marked("assistant", [HI, last]) == [HI | {"cache_control": {"type": "ephemeral"}}, last]


@pytest.mark.parametrize("content", ["", [], [THOUGHT], [HI, HI | MARK]])
def test_a_message_with_no_place_for_a_breakpoint_or_one_there_keeps_its_bytes(content: Any) -> None:
    wire = json.dumps({"role": "assistant", "content": content}, indent=1).encode()
    assert MESSAGES.with_breakpoint(wire) == wire


def test_a_null_breakpoint_is_none() -> None:
    assert marked("user", [HI | {"cache_control": None}]) == [HI | {"cache_control": {"type": "ephemeral"}}]


def test_an_edited_result_is_still_the_same_result() -> None:
    was = message(MESSAGES, {"role": "user", "content": [RESULT | {"is_error": True}]})
    again = message(MESSAGES, MESSAGES.edit_message(was, {0: "short"}))
    (part,) = again.parts
    assert isinstance(part, ToolResult)
    assert (part.call_id, part.error) == ("t1", True)


# -- what the system says within the list -----------------------------------------------------------------------------


def text_message(role: str, *texts: str) -> bytes:
    return json.dumps({"role": role, "content": [{"type": "text", "text": text} for text in texts]}).encode()


def read_texts(wires: list[bytes]) -> list[tuple[str, list[str]]]:
    found = [json.loads(wire) for wire in wires]
    return [(each["role"], [block["text"] for block in each["content"]]) for each in found]


def test_what_the_system_says_stays_where_the_api_has_it() -> None:
    wires = [
        text_message("user", "a"),
        text_message("system", "rule"),
        text_message("assistant", "b"),
        text_message("user", "c"),
        text_message("system", "d"),
    ]
    assert MESSAGES.join_messages(wires, []) == wires
    assert MESSAGES.join_messages([text_message("system", "first"), *wires], []) == [
        text_message("system", "first"),
        *wires,
    ]


def test_a_system_message_stands_behind_a_summary_and_before_the_next_reply() -> None:
    change = json.dumps(
        {"role": "system", "content": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "bash"}}]}
    ).encode()
    block, rule = text_message("user", "[Record]"), text_message("system", "Never touch the ledger.")
    wires = [text_message("user", "task"), rule, change, block, text_message("user", "go on"), rule]
    joined = MESSAGES.join_messages([*wires, text_message("assistant", "Yes.")], [3])
    assert read_texts(joined[:1]) == [("user", ["task", "[Record]", "go on"])]
    texts = [block.get("text", block["type"]) for block in json.loads(joined[1])["content"]]
    assert texts == ["Never touch the ledger.", "tool_removal", "Never touch the ledger."]
    assert joined[2:] == [text_message("assistant", "Yes.")]
    assert MESSAGES.join_messages(wires, [3]) == joined[:2]


def test_what_the_system_said_behind_a_result_of_the_providers_own_tool_stays() -> None:
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    reply = json.dumps({"role": "assistant", "content": [result]}).encode()
    wires = [text_message("user", "a"), reply, text_message("system", "rule"), text_message("assistant", "b")]
    assert MESSAGES.join_messages(wires, []) == wires
    plain = [
        text_message("user", "a"),
        text_message("assistant", "x"),
        text_message("system", "rule"),
        text_message("assistant", "b"),
    ]
    assert [role for role, _ in read_texts(MESSAGES.join_messages(plain, []))] == [
        *("user", "system", "assistant", "assistant")
    ]


def test_what_the_system_sets_without_a_word_stays_as_it_is() -> None:
    setting = json.dumps({"role": "system", "content": [], "output_config": {"effort": "low"}}).encode()
    wires = [
        text_message("user", "a"),
        setting,
        text_message("user", "[Record]"),
        text_message("system", "rule"),
        setting,
        text_message("assistant", "b"),
    ]
    assert MESSAGES.join_messages(wires, []) == wires
