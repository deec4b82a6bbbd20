"""Context edits as the protocols read them, open their blocks, and write them into responses."""

from __future__ import annotations

import json
import time
from typing import Any

import anthropic
import pytest

from accordion.features.client_compaction.context_edits import (
    SEAL_PREFIX,
    ClearedContent,
    CompactionBlock,
    ContextEdits,
    ContextReport,
    OpenedBlock,
    RequestedSummary,
    ThinkingClearing,
    ToolUseClearing,
)
from accordion.features.client_compaction.messages_edits import MessagesContextEdits
from accordion.features.client_compaction.responses_edits import ResponsesContextEdits
from accordion.model.errors import BadRequest
from accordion.protocols.json_spans import fields_of
from tests.sdks import anthropic_sdk, openai_sdk

Json = dict[str, Any]
MESSAGES, RESPONSES = MessagesContextEdits(), ResponsesContextEdits()
TOKEN = f"{SEAL_PREFIX}abc"
TOOL_USES, THINKING, COMPACT = "clear_tool_uses_20250919", "clear_thinking_20251015", "compact_20260112"


def edits(*values: Json, **more: Any) -> ContextEdits | None:
    return MESSAGES.read_edits(fields_of(json.dumps({"context_management": {"edits": values}, **more}).encode()))


def responses_edits(**fields: Any) -> ContextEdits | None:
    return RESPONSES.read_edits(fields_of(json.dumps(fields).encode()))


# -- requests ----------------------------------------------------------------------------------------------------------


def test_edits_without_settings_have_the_apis_defaults() -> None:
    read = edits({"type": THINKING}, {"type": TOOL_USES}, {"type": COMPACT})
    assert read == ContextEdits(
        "context_management",
        tool_uses=ToolUseClearing(100_000, None, 3),
        thinking=ThinkingClearing(1),
        summary=RequestedSummary(150_000),
    )


def test_settings_of_edits_are_read() -> None:
    tool_uses = {
        "type": TOOL_USES,
        "trigger": {"type": "tool_uses", "value": 7},
        "keep": {"type": "tool_uses", "value": 0},
        "clear_at_least": {"type": "input_tokens", "value": 500},
        "exclude_tools": ["web"],
        "clear_tool_inputs": ["read"],
    }
    compact = {
        "type": COMPACT,
        "trigger": {"type": "input_tokens", "value": 60_000},
        "pause_after_compaction": True,
        "instructions": "Be brief.",
    }
    read = edits(tool_uses, {"type": THINKING, "keep": {"type": "thinking_turns", "value": 4}}, compact)
    assert read is not None
    assert read.tool_uses == ToolUseClearing(100_000, 7, 0, 500, frozenset({"web"}), True, frozenset({"read"}))
    assert read.thinking == ThinkingClearing(4)
    assert read.summary == RequestedSummary(60_000, True, "Be brief.")


@pytest.mark.parametrize("keep", ["all", {"type": "all"}])
def test_all_thinking_can_stay(keep: Any) -> None:
    read = edits({"type": THINKING, "keep": keep})
    assert read is not None
    assert read.thinking is not None
    assert read.thinking.keep > 10_000


@pytest.mark.parametrize("fields", [{}, {"context_management": None}, {"context_management": {"edits": []}}])
def test_a_request_without_edits_asks_for_none(fields: Json) -> None:
    assert MESSAGES.read_edits(fields_of(json.dumps(fields).encode())) is None


def test_a_compaction_on_demand_is_known() -> None:
    fields = fields_of(json.dumps({"compaction": {"type": "summarize", "instructions": "x"}, "model": "m"}).encode())
    assert MESSAGES.read_edits(fields) == ContextEdits("compaction", summary=RequestedSummary(0, True, "x"))
    assert MESSAGES.remove_edits(fields) == {"model": b'"m"'}


def test_the_ways_of_responses_are_known() -> None:
    managed = responses_edits(context_management=[{"type": "compaction", "compact_threshold": 9}], input="x")
    assert managed == ContextEdits("context_management", summary=RequestedSummary(9))
    managed = responses_edits(context_management=[{"type": "compaction"}], input=[])
    assert managed == ContextEdits("context_management", summary=RequestedSummary(None))
    triggered = responses_edits(input=[{"role": "user", "content": "x"}, {"type": "compaction_trigger"}])
    assert triggered == ContextEdits("compaction_trigger", summary=RequestedSummary(0, True))
    for fields in ({"input": [{"type": "compaction_trigger"}, {"role": "user", "content": "x"}]}, {"input": "x"}):
        assert responses_edits(**fields) is None


def test_requests_for_context_edits_are_removed() -> None:
    items = [{"type": "compaction_trigger"}, {"role": "user", "content": '"compaction_trigger"'}]
    fields = fields_of(json.dumps({"context_management": [], "input": items}).encode())
    assert json.loads(RESPONSES.remove_edits(fields)["input"]) == items[1:]
    assert "context_management" not in RESPONSES.remove_edits(fields)


# -- blocks ------------------------------------------------------------------------------------------------------------


SUMMARY, REPLY, NEWEST = (
    {"role": role, "content": text}
    for role, text in (
        ("user", "summary"),
        ("assistant", "reply"),
        ("user", "newest"),
    )
)


def open_block(token: str) -> OpenedBlock | None:
    entries = tuple(json.dumps(each).encode() for each in (SUMMARY, REPLY, NEWEST))
    return OpenedBlock(entries, ("art_1",)) if token == TOKEN else None


def opened(protocol: Any, *entries: Json, reads_foreign: bool = False) -> list[Json] | None:
    found = protocol.open_blocks(
        [json.dumps(each).encode() for each in entries], open_block, reads_foreign=reads_foreign
    )
    return None if found is None else [json.loads(each) for each in found[0]]


def block(token: str = TOKEN, content: str | None = "text") -> Json:
    return {"type": "compaction", "content": content, "encrypted_content": token}


def write_message(role: str, *blocks: Any) -> Json:
    return {"role": role, "content": list(blocks)}


def test_the_last_of_our_blocks_stands_for_all_before_it() -> None:
    answer = {"type": "text", "text": "Yes."}
    found = opened(
        MESSAGES,
        write_message("user", answer),
        write_message("assistant", block(), answer),
        write_message("user", answer),
    )
    assert found == [SUMMARY, REPLY, NEWEST, write_message("assistant", answer), write_message("user", answer)]


def test_two_messages_of_the_user_at_the_seam_become_one() -> None:
    found = opened(MESSAGES, write_message("assistant", block()), {"role": "user", "content": "more"})
    assert found is not None
    assert found[:2] == [SUMMARY, REPLY]
    assert [part["text"] for part in found[2]["content"]] == ["newest", "more"]


def test_messages_that_are_sent_again_behind_a_block_come_once() -> None:
    assert opened(MESSAGES, write_message("assistant", block()), NEWEST) == [SUMMARY, REPLY, NEWEST]
    assert opened(MESSAGES, write_message("assistant", block()), REPLY, NEWEST) == [SUMMARY, REPLY, NEWEST]


def test_a_block_of_another_is_left_to_a_provider_that_may_know_it() -> None:
    assert opened(MESSAGES, write_message("assistant", block("other"))) is None
    assert opened(MESSAGES, write_message("assistant", block(f"{SEAL_PREFIX}broken"))) is None
    assert opened(RESPONSES, {"type": "compaction", "encrypted_content": "gAAA"}) is None


@pytest.mark.parametrize("messages", [1, 20_000])
def test_time_grows_with_the_blocks_that_do_not_open_and_not_with_their_square(messages: int) -> None:
    message = json.dumps(write_message("assistant", *[block("forged")] * (20_000 // messages))).encode()
    started_at = time.process_time()
    assert MESSAGES.open_blocks([message] * messages, open_block, reads_foreign=False) is None
    assert time.process_time() - started_at < 3


def test_a_block_of_another_is_read_where_no_provider_knows_it() -> None:
    answer = {"type": "text", "text": "Yes."}
    assert opened(
        MESSAGES, write_message("user", answer), write_message("assistant", block("other"), answer), reads_foreign=True
    ) == [
        write_message("user", {"type": "text", "text": "text"}),
        write_message("assistant", answer),
    ]
    failed = [write_message("user", answer), write_message("assistant", block("", None)), write_message("user", answer)]
    assert opened(MESSAGES, *failed, reads_foreign=True) == [failed[0], failed[2]]
    with pytest.raises(BadRequest, match="sealed by another provider"):
        opened(RESPONSES, {"type": "compaction", "encrypted_content": "gAAA"}, reads_foreign=True)


def test_what_the_api_still_reads_before_an_item_stays() -> None:
    item = {"type": "compaction", "encrypted_content": TOKEN}
    rest = {"type": "message", "role": "assistant", "content": []}
    before = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": "old"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"role": "user", "content": [{"type": "input_text", "text": "newest"}], "status": "completed"},
    ]
    assert opened(RESPONSES, *before, item, rest) == [
        *before[:2],
        *(SUMMARY, REPLY, NEWEST),
        rest,
    ]


# -- responses ---------------------------------------------------------------------------------------------------------

ALL_EDITS = ContextEdits("context_management", ToolUseClearing(), ThinkingClearing(), RequestedSummary())
REPORT = ContextReport(ALL_EDITS, ClearedContent(3, 300, 2, 50), CompactionBlock("so far", TOKEN, 90, 9))


def test_applied_edits_come_in_the_apis_order_and_only_if_they_were_made() -> None:
    document = {"type": "message", "content": [], "usage": {"input_tokens": 7, "output_tokens": 1}}
    written = json.loads(MESSAGES.report_writer(REPORT, stream=False).feed(json.dumps(document).encode()))
    assert written["context_management"]["applied_edits"] == [
        {"type": THINKING, "cleared_thinking_turns": 2, "cleared_input_tokens": 50},
        {"type": TOOL_USES, "cleared_tool_uses": 3, "cleared_input_tokens": 300},
    ]
    nothing = ContextReport(ALL_EDITS)
    written = json.loads(MESSAGES.report_writer(nothing, stream=False).feed(json.dumps(document).encode()))
    assert written == document | {"context_management": {"applied_edits": []}}


@pytest.mark.parametrize("document", [{"type": "error", "error": {"type": "x", "message": "y"}}, {"error": {}}])
def test_other_documents_stay_as_they_are(document: Json) -> None:
    raw = json.dumps(document, indent=1).encode()
    for protocol in (MESSAGES, RESPONSES):
        assert protocol.report_writer(REPORT, stream=False).feed(raw) == raw


def test_an_error_in_a_stream_stays_and_gets_no_item_before_it() -> None:
    raw = b'event: error\ndata: {"type":"error","sequence_number":1,"message":"x"}\n\n'
    assert RESPONSES.report_writer(REPORT, stream=True).feed(raw) == raw
    ping = b'event: ping\ndata: {"type": "ping"}\n\n: comment\n\n'
    assert MESSAGES.report_writer(REPORT, stream=True).feed(ping) == ping


def test_anthropics_sdk_reads_a_block_alone() -> None:
    body = MESSAGES.write_block_response(REPORT, "m", 1, stream=False)
    arguments: Any = {"model": "m", "max_tokens": 5, "messages": []}
    read = anthropic_sdk(200, body, "application/json").beta.messages.create(**arguments)
    assert read.stop_reason == "compaction"
    assert read.usage.iterations is not None
    assert [(each.type, each.input_tokens, each.output_tokens) for each in read.usage.iterations] == [
        ("compaction", 90, 9)
    ]
    body = MESSAGES.write_block_response(REPORT, "m", 1, stream=True)
    with anthropic_sdk(200, body, "text/event-stream").beta.messages.stream(**arguments) as stream:
        streamed = stream.get_final_message()
    for each in (read, streamed):
        [found] = each.content
        assert isinstance(found, anthropic.types.beta.BetaCompactionBlock)
        assert (found.content, found.encrypted_content) == ("so far", TOKEN)
        assert (each.id, each.stop_reason) == (read.id, "compaction")


def test_openais_sdk_reads_a_block_alone() -> None:
    body = RESPONSES.write_block_response(REPORT, "m", 1, stream=False)
    read = openai_sdk(200, body, "application/json").responses.create(model="m", input="x")
    assert read.usage is not None
    assert (read.usage.input_tokens, read.usage.output_tokens, read.usage.total_tokens) == (90, 9, 99)
    body = RESPONSES.write_block_response(REPORT, "m", 1, stream=True)
    with openai_sdk(200, body, "text/event-stream").responses.stream(model="m", input="x") as stream:
        streamed = stream.get_final_response()
    for each in (read, streamed):
        [item] = each.output
        assert item.type == "compaction"
        assert item.encrypted_content == TOKEN
        assert item.id.startswith("cmp_")


def test_openais_sdk_reads_a_compacted_list() -> None:
    entries = [
        b'"just a text"',
        b'{"role": "user", "content": [{"type": "input_text", "text": "more"}]}',
        b'{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}',
        b'{"role": "assistant", "content": "gone"}',
    ]
    body = RESPONSES.write_compact_response(REPORT, entries, 7)
    read = openai_sdk(200, body, "application/json").responses.compact(model="m")
    assert (read.object, read.created_at, read.usage.total_tokens) == ("response.compaction", 7, 99)
    assert [each.type for each in read.output] == ["message", "message", "compaction"]
    assert [each["content"][0]["text"] for each in json.loads(body)["output"][:2]] == ["just a text", "more"]
