"""Responses: streams as odd as providers write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.protocols.openai_responses.tool_rounds import ResponsesToolDocument, ResponsesToolStream
from accordion.protocols.tool_loop import ArtifactToolCall
from tests.protocols.responses_streams import (
    OURS,
    Json,
    events_of,
    function,
    joined,
    message,
    own_call,
    read_events,
    response,
    run_loop,
    stream,
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("named", [True, False])
def test_every_way_to_write_a_stream_is_spliced(end: str, named: bool) -> None:
    bodies = [
        stream(events_of(response(name, items)), named=named, end=end) + f"data: [DONE]{end}{end}".encode()
        for name, items in (("a", [message("a", "x"), own_call("o")]), ("b", [message("b", "y")]))
    ]
    shown, _ = run_loop(bodies, range(0, 5000, 77))
    events = read_events(shown)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert joined(events, "output_text") == {0: "x", 1: "y"}
    assert shown.count(b"[DONE]") == 1
    assert shown.endswith(f"data: [DONE]{end}{end}".encode())
    assert (b"event:" in shown) is named


def test_events_without_numbers_or_places_are_hidden_too() -> None:
    def bare(name: str, items: list[Json]) -> bytes:
        events = events_of(response(name, items))
        for event in events:
            del event["sequence_number"]
            event.pop("output_index", None)
        return stream(events)

    first = [message("a", "x"), {**own_call("o"), "id": ""}, {**function("c", '{"a": 1}'), "id": ""}]
    shown, _ = run_loop([bare("a", first), bare("b", [message("b", "y")])])
    assert b"art_secret" not in shown
    events = read_events(shown)
    assert [event["type"] for event in events].count("response.function_call_arguments.done") == 1
    assert [item["id"] for item in events[-1]["response"]["output"]] == ["msg_a", "", "msg_b"]


def test_the_place_of_an_item_that_was_not_announced_is_taken_too() -> None:
    events = events_of(response("a", [message("a", "x"), own_call("o"), message("b", "y")]))
    events = [event for event in events if event.get("output_index") != 0 or "item" not in event]
    shown, _ = run_loop([stream(events)])
    assert joined(read_events(shown), "output_text") == {0: "x", 1: "y"}


def test_whatever_tells_of_a_later_round_has_the_id_that_the_client_knows() -> None:
    events = events_of(response("b", [message("b", "y")]))
    events.insert(2, {"type": "response.renewed", "response": {"id": "resp_b", "tools": []}, "sequence_number": 2})
    shown, _ = run_loop([stream(events_of(response("a", [own_call("o")]))), stream(events)])
    assert [event["response"]["id"] for event in read_events(shown) if "response" in event] == ["resp_a"] * 4


@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from(stream(events_of(response("a", [own_call("o")]))).split(b"\n\n")),
        max_size=9,
    )
)
def test_whatever_a_provider_sends_is_no_reason_to_fail(pieces: list[bytes]) -> None:
    tool_loop, document = ResponsesToolStream(OURS), ResponsesToolDocument(OURS)
    for piece in pieces:
        tool_loop.feed(piece + b"\n\n")
        document.feed(piece)
    for each in (tool_loop, document):
        each.read_round()
        each.close()


ODD: list[Any] = [None, 1, "x", [1], {"type": 1}, {"type": "function_call", "name": OURS}, {"item": {}}]


@pytest.mark.parametrize("odd", ODD)
def test_odd_values_are_no_reason_to_fail(odd: Any) -> None:
    whole = response("a", [])
    for name in ("output", "usage", "tools", "id", "status", "error"):
        for value in (odd, [odd]):
            for events in ([{"type": "response.completed", "response": {**whole, name: value}}],
                           [{"type": "response.output_item.done", "item": odd, "output_index": odd}]):  # fmt: skip
                tool_loop = ResponsesToolStream(OURS)
                tool_loop.feed(stream(events))
                tool_loop.read_round()
                tool_loop.close()
            document = ResponsesToolDocument(OURS)
            document.feed(json.dumps({**whole, name: value}).encode())
            document.read_round()
            document.continue_response()
            document.feed(json.dumps(whole).encode())
            document.close()


def test_half_a_character_hides_nothing_and_shows_nothing_of_ours() -> None:
    call = function("o", '{"id": "\ud83d"}', OURS)
    shown, (seen,) = run_loop([stream(events_of(response("a", [message("a", "x\ud83d"), call])))])
    assert b"fc_o" not in shown
    assert seen.own_calls == (ArtifactToolCall("o", OURS, '{"id": "\ud83d"}'),)
    assert all(json.loads(wire) for wire in seen.entries)
    assert b"\\ud83d" not in b"".join(seen.entries)
