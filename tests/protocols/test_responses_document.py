"""Responses: replies that are one document, without our tool's calls."""

from __future__ import annotations

import json

import pytest

from accordion.model.records import Usage
from accordion.protocols.openai_responses.tool_rounds import ResponsesToolDocument
from accordion.protocols.tool_loop import ArtifactToolCall
from tests.protocols.responses_streams import (
    OURS,
    THEIR_TOOL,
    Json,
    function,
    message,
    own_call,
    reasoning,
    response,
)


def document(*replies: Json | bytes) -> tuple[Json, ResponsesToolDocument]:
    tool_loop = ResponsesToolDocument(OURS)
    for number, reply in enumerate(replies):
        if number:
            tool_loop.continue_response()
        body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        assert tool_loop.feed(body[:9]) + tool_loop.feed(body[9:]) == b""
    return json.loads(tool_loop.close()), tool_loop


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
