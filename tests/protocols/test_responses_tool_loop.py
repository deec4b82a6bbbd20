"""Responses: one reply to the client out of several of the provider's, streamed and whole."""

from __future__ import annotations

import json

import pytest

from accordion.model.records import Usage
from accordion.protocols.openai_responses.tool_rounds import ResponsesToolStream
from accordion.protocols.tool_loop import ArtifactToolCall
from tests.protocols.responses_streams import (
    OURS,
    THEIR_TOOL,
    blocks,
    custom,
    events_of,
    function,
    joined,
    message,
    own_call,
    read_events,
    reasoning,
    response,
    run_loop,
    search,
    stream,
)
from tests.sdks import openai_sdk

# -- one round ---------------------------------------------------------------------


def test_a_reply_without_our_tool_goes_on_byte_by_byte() -> None:
    items = [reasoning("a", "Hm."), message("a", f"I know {OURS} {{"), custom("c", "{"), function("b", '{"a": [1]}')]
    body = stream(events_of(response("a", items, tools=[THEIR_TOOL]))) + b": ping\n\ndata: [DONE]\n\n"
    tool_loop = ResponsesToolStream(OURS)
    out = b""
    for block in blocks(body, range(0, len(body), 900)):
        out += tool_loop.feed(block)
    assert body.startswith(out)
    assert b"response.completed" not in out
    assert out + tool_loop.close() == body


def test_only_the_echoed_tools_change_where_ours_was_not_called() -> None:
    body = stream(events_of(response("a", [message("a", "Hello there."), search("a")])))
    shown, seen = run_loop([body])
    assert OURS not in shown.decode().replace(f"Call {OURS}.", "")
    after = [{**event} for event in read_events(body)]
    for event in after:
        if "response" in event:
            event["response"] = {**event["response"], "tools": [THEIR_TOOL]}
    assert read_events(shown) == after
    assert shown.split(b"\n\n")[2:-2] == body.split(b"\n\n")[2:-2]
    assert seen[0].finished


def test_a_round_tells_what_was_said() -> None:
    items = [
        reasoning("a", sealed="s"),
        message("a", " One\n two"),
        own_call("o"),
        function("b"),
        custom("c", "x"),
        search("a"),
    ]
    _, (seen,) = run_loop([stream(events_of(response("a", items)))])
    assert [json.loads(wire) for wire in seen.entries] == items
    assert seen.entries[2] == json.dumps(items[2]).encode()
    assert seen.own_calls == (ArtifactToolCall("o", OURS, '{"id": "art_secret"}'),)
    assert (seen.client_call_ids, seen.text, seen.finished) == (("b", "c"), "One two", True)
    assert seen.usage == Usage(100, 60, 64, 0, 6)


def test_items_are_read_from_the_last_event_where_no_others_told_them() -> None:
    events = [event for event in events_of(response("a", [message("a", "x"), own_call("o")])) if "item" not in event]
    _, (seen,) = run_loop([stream(events)])
    assert (len(seen.entries), seen.own_calls[0].call_id, seen.text) == (2, "o", "x")


@pytest.mark.parametrize("status", ["incomplete", "failed"])
def test_a_round_that_did_not_come_to_its_end_is_held_and_not_finished(status: str) -> None:
    body = stream(
        events_of(response("a", [message("a", "x"), own_call("o")], status, incomplete_details={"reason": "x"}))
    )
    shown, (seen,) = run_loop([body])
    assert (seen.finished, len(seen.own_calls)) == (False, 1)
    last = read_events(shown)[-1]
    assert (last["type"], last["response"]["status"]) == (f"response.{status}", status)
    assert [item["id"] for item in last["response"]["output"]] == ["msg_a"]


def test_a_mixed_round_shows_the_clients_calls_alone() -> None:
    items = [reasoning("a", "Hm."), own_call("o"), function("b", '{"a": 1}'), own_call("p"), custom("c", "x")]
    shown, (seen,) = run_loop([stream(events_of(response("a", items)))])
    events = read_events(shown)
    assert [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"] == [
        "rs_a", "fc_b", "ctc_c",
    ]  # fmt: skip
    assert joined(events, "function_call_arguments") == {1: '{"a": 1}'}
    assert joined(events, "custom_tool_call_input") == {2: "x"}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (len(seen.own_calls), seen.client_call_ids) == (2, ("b", "c"))


def test_an_error_goes_on_and_nothing_is_held() -> None:
    tool_loop = ResponsesToolStream(OURS)
    begun = stream(events_of(response("a", []))[:2])
    error = stream([{"type": "error", "sequence_number": 2, "message": "x", "error": {"message": "x"}}])
    assert tool_loop.feed(begun + error).endswith(error)
    assert (tool_loop.is_round_over, tool_loop.read_round().finished, tool_loop.close()) == (False, False, b"")


# -- several rounds ------------------------------------------------------------------


def test_the_official_sdk_follows_a_spliced_stream() -> None:
    first = [reasoning("a", "Let me see."), message("a", "I look."), own_call("o")]
    second = [reasoning("b"), message("b", "It says 9."), function("c", '{"a": 9}')]
    bodies = [stream(events_of(response("a", first))), stream(events_of(response("b", second, tool_choice="none")))]
    shown, _ = run_loop(bodies)
    client = openai_sdk(200, shown, "text/event-stream")
    with client.responses.stream(model="small", input="x") as events:
        deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final = events.get_final_response()
    assert deltas == final.output_text == "I look.It says 9."
    assert [item.type for item in final.output] == ["reasoning", "message", "reasoning", "message", "function_call"]
    assert (final.id, final.tool_choice) == ("resp_a", "auto")
    assert final.usage is not None
    assert final.usage.output_tokens_details.reasoning_tokens == 6
    with openai_sdk(200, shown, "text/event-stream").responses.create(model="s", input="x", stream=True) as raw:
        assert [event.sequence_number for event in raw] == list(range(len(read_events(shown))))


def test_the_ids_of_a_reply_lead_from_what_is_shown_to_the_last_round() -> None:
    tool_loop = ResponsesToolStream(OURS)
    assert tool_loop.response_ids == ()
    tool_loop.feed(stream(events_of(response("a", [own_call("o")]))))
    tool_loop.continue_response()
    tool_loop.feed(stream(events_of(response("b", [message("b", "x")]))[:3]))
    assert tool_loop.response_ids == ("resp_a", "resp_b")
