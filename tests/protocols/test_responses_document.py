"""Responses: artifacts named in the client's calls, and replies that are one document."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.records import Usage
from accordion.protocols.openai_responses.tool_rounds import ResponsesToolDocument, ResponsesToolStream
from accordion.protocols.tool_loop import ArtifactPlaceholder, ArtifactToolCall
from tests.protocols.responses_streams import (
    OURS,
    THEIR_TOOL,
    Json,
    blocks,
    custom,
    events_of,
    function,
    message,
    own_call,
    read_events,
    reasoning,
    response,
    stream,
)

TEXT = 'a "quoted"\ntext {é'
NAMED = '{"body": {"$artifact": "art_1", "path": "$.x"}, "n": [{"$a": 1}, { "$artifact" : "art_2" }]}'
PUT = f'{{"body": {json.dumps(TEXT, ensure_ascii=False)}, "n": [{{"$a": 1}}, {{ "$artifact" : "art_2" }}]}}'


def give(wanted: ArtifactPlaceholder) -> str | None:
    return TEXT if wanted.artifact == "art_1" else None


def document(*replies: Json | bytes, give_all: bool = False) -> tuple[Json, ResponsesToolDocument]:
    tool_loop = ResponsesToolDocument(OURS)
    for number, reply in enumerate(replies):
        if number:
            tool_loop.continue_response()
        body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        assert tool_loop.feed(body[:9]) + tool_loop.feed(body[9:]) == b""
        if tool_loop.pending_placeholders and give_all:
            assert tool_loop.resolve([give(wanted) for wanted in tool_loop.pending_placeholders]) == b""
    return json.loads(tool_loop.close()), tool_loop


# -- artifacts as arguments ------------------------------------------------------------


def resolved(body: bytes, cuts: Sequence[int]) -> tuple[bytes, ResponsesToolStream, list[ArtifactPlaceholder]]:
    tool_loop, out, asked = ResponsesToolStream(OURS), b"", list[ArtifactPlaceholder]()
    for block in blocks(body, cuts):
        out += tool_loop.feed(block)
        while tool_loop.pending_placeholders:
            asked += tool_loop.pending_placeholders
            out += tool_loop.resolve([give(wanted) for wanted in tool_loop.pending_placeholders])
    return out + tool_loop.close(), tool_loop, asked


@given(st.integers(1, 60), st.lists(st.integers(0, 2**16), max_size=8))
def test_every_event_of_a_call_has_the_text_of_a_named_artifact(size: int, cuts: list[int]) -> None:
    items = [message("m", "x"), function("a", NAMED), custom("c", NAMED), function("b", '{"x": [{"$art": {}}, {}]}')]
    shown, tool_loop, asked = resolved(stream(events_of(response("a", items), size)), cuts)
    assert asked == [ArtifactPlaceholder("art_1", "$.x"), ArtifactPlaceholder("art_2")]
    events = read_events(shown)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = {1: "", 3: ""}
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            deltas[event["output_index"]] += event["delta"]
        elif event["type"] == "response.function_call_arguments.done" and event["output_index"] == 1:
            assert event["arguments"] == PUT
    assert deltas == {1: PUT, 3: items[3]["arguments"]}
    expected = [items[0], {**items[1], "arguments": PUT}, *items[2:]]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == expected
    assert events[-1]["response"]["output"] == expected
    seen = tool_loop.read_round()
    assert seen.resolved
    assert [json.loads(wire) for wire in seen.entries] == items


def test_text_behind_a_placeholder_waits_for_it() -> None:
    events = events_of(response("a", [function("a", '{"x": {"$artifact": "art_1"}}'), message("m", "y")]), 99)
    tool_loop = ResponsesToolStream(OURS)
    out = tool_loop.feed(stream(events))
    assert read_events(out)[-1]["type"] == "response.output_item.added"
    assert (tool_loop.pending_placeholders, tool_loop.is_round_over) == ((ArtifactPlaceholder("art_1"),), False)
    rest = tool_loop.resolve([TEXT])
    assert (tool_loop.pending_placeholders, tool_loop.is_round_over) == ((), True)
    assert b"msg_m" not in out
    assert b"msg_m" in rest


def test_an_artifact_that_is_not_there_leaves_the_call_as_it_was_written() -> None:
    body = stream(events_of(response("a", [function("a", '{"x": {"$artifact": "art_9"}}')], tools=[]), 99))
    shown, tool_loop, asked = resolved(body, ())
    assert shown == body
    assert (asked, tool_loop.read_round().resolved) == ([ArtifactPlaceholder("art_9")], False)


def test_what_only_begins_like_a_name_is_told_before_the_call_is_done() -> None:
    events = events_of(response("a", [function("a", '["x", {"$artif')], tools=[]), 3)
    for kept in (events, [e for e in events if e["type"] != "response.function_call_arguments.done"]):
        shown, _, asked = resolved(stream(kept), ())
        before = [e for e in read_events(shown) if "function_call_arguments" in e["type"]]
        if before[-1]["type"].endswith(".done"):
            before.pop()
        deltas = [e["delta"] for e in before]
        assert "".join(deltas) == '["x", {"$artif'
        assert asked == []


def test_arguments_that_come_without_deltas_are_resolved_too() -> None:
    events = [e for e in events_of(response("a", [function("a", NAMED)])) if "arguments.delta" not in e["type"]]
    shown, _, _ = resolved(stream(events), ())
    assert read_events(shown)[-1]["response"]["output"][0]["arguments"] == PUT
    whole = [event for event in events if event["type"] == "response.completed"]
    shown, tool_loop, _ = resolved(stream(whole), ())
    assert read_events(shown)[-1]["response"]["output"][0]["arguments"] == PUT
    assert tool_loop.read_round().resolved


# -- documents -----------------------------------------------------------------------


def test_a_document_without_our_tool_goes_on_byte_by_byte() -> None:
    body = json.dumps(response("a", [message("a", OURS)], tools=[THEIR_TOOL]), indent=1).encode()
    tool_loop = ResponsesToolDocument(OURS)
    tool_loop.feed(body)
    assert tool_loop.is_round_over
    assert tool_loop.close() == body


def test_only_the_echoed_tools_of_a_document_change_where_ours_was_not_called() -> None:
    whole = response("a", [message("a", "x")])
    shown, tool_loop = document(whole)
    assert shown == {**whole, "tools": [THEIR_TOOL]}
    assert b'"temperature":1.0' in tool_loop.close()


def test_the_documents_of_all_rounds_are_one() -> None:
    first, second = [reasoning("a"), own_call("o")], [message("b", "y"), function("c"), own_call("p")]
    shown, tool_loop = document(response("a", first), response("b", second, created_at=9, tool_choice="none"))
    assert shown["output"] == [first[0], *second[:2]]
    assert (shown["id"], shown["created_at"], shown["tool_choice"], shown["tools"]) == (
        "resp_a",
        1,
        "auto",
        [THEIR_TOOL],
    )
    assert (shown["usage"]["input_tokens"], shown["usage"]["output_tokens"], shown["usage"]["total_tokens"]) == (
        100, 50, 150,
    )  # fmt: skip
    assert tool_loop.response_ids == ("resp_a", "resp_b")
    seen = tool_loop.read_round()
    assert (seen.own_calls, seen.client_call_ids, seen.text) == (
        (ArtifactToolCall("p", OURS, '{"id": "art_secret"}'),),
        ("c",),
        "y",
    )
    assert (seen.finished, seen.usage) == (True, Usage(100, 30, 64, 0, 3))
    assert [json.loads(wire) for wire in seen.entries] == second


@pytest.mark.parametrize("status", ["incomplete", "failed", "in_progress"])
def test_a_document_that_did_not_come_to_its_end_is_not_finished(status: str) -> None:
    shown, tool_loop = document(response("a", [message("a", "x"), own_call("o")], status))
    assert not tool_loop.read_round().finished
    assert [item["id"] for item in shown["output"]] == ["msg_a"]


def test_an_error_in_the_place_of_a_later_document_is_the_answer() -> None:
    error = {"error": {"message": "no", "type": "server_error"}}
    shown, tool_loop = document(response("a", [own_call("o")]), error)
    assert shown == error
    assert not tool_loop.read_round().finished


def test_artifacts_named_in_a_document_are_put_in_their_place() -> None:
    items = [function("a", NAMED), custom("c", NAMED), {**own_call("o"), "arguments": '{"id": {"$artifact": "art_1"}}'}]
    shown, tool_loop = document(response("a", items), give_all=True)
    assert shown["output"] == [{**items[0], "arguments": PUT}, items[1]]
    assert tool_loop.read_round().resolved
    assert [json.loads(wire) for wire in tool_loop.read_round().entries] == items
