"""The messages of Responses over a WebSocket, without a socket."""

import json
from typing import Any

import pytest

from accordion.protocols.openai_responses.socket_messages import (
    ConnectionHistory,
    SocketRequest,
    read_fields,
    read_head,
    render_event,
    render_refusal,
)
from accordion.protocols.sse import parse

MAX_BYTES = 1_000_000
USER = {"role": "user", "content": "hi"}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}


def request(history: ConnectionHistory, **fields: Any) -> SocketRequest:
    message = json.dumps({"type": "response.create", "model": "m", "store": False, "input": [USER]} | fields)
    return SocketRequest(message, read_fields(message), history)


def respond(to: SocketRequest, response_id: str, *items: Any, kind: str = "response.completed") -> None:
    """Lets a request take the events of a response."""
    for item in items:
        to.take_event(json.dumps({"type": "response.output_item.done", "item": item}).encode())
    to.take_event(json.dumps({"type": kind, "response": {"id": response_id, "output": []}}).encode())


def input_of(one: SocketRequest) -> Any:
    return json.loads(one.body)["input"]


def test_a_continued_response_is_put_together_with_its_whole_list() -> None:
    history = ConnectionHistory(MAX_BYTES)
    respond(request(history), "resp_1", SAID)
    second = request(history, previous_response_id="resp_1", input="and now?")
    assert input_of(second) == [USER, SAID, {"role": "user", "content": "and now?"}]
    assert "previous_response_id" not in json.loads(second.body)
    respond(second, "resp_2")
    assert len(input_of(request(history, previous_response_id="resp_2"))) == 4


def test_a_trigger_of_a_compaction_is_not_sent_again() -> None:
    history, item = ConnectionHistory(MAX_BYTES), {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}
    respond(request(history, input=[USER, {"type": "compaction_trigger"}]), "resp_1", item)
    assert input_of(request(history, previous_response_id="resp_1")) == [USER, item, USER]


def test_items_may_stand_in_the_end_event_alone() -> None:
    history = ConnectionHistory(MAX_BYTES)
    one = request(history)
    one.take_event(json.dumps({"type": "response.completed", "response": {"id": "resp_1", "output": [SAID]}}).encode())
    assert input_of(request(history, previous_response_id="resp_1")) == [USER, SAID, USER]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"previous_response_id": "resp_2"}),
        ({"store": True}, {"previous_response_id": "resp_1", "store": True}),
        ({"previous_response_id": "resp_0"}, {"previous_response_id": "resp_1"}),
        ({"conversation": "conv_1"}, {"previous_response_id": "resp_1"}),
    ],
    ids=["unknown", "stored", "behind an unknown one", "in an object"],
)
def test_a_request_passes_as_it_came_if_its_list_is_not_known(first: Any, second: Any) -> None:
    history = ConnectionHistory(MAX_BYTES)
    respond(request(history, **first), "resp_1", SAID)
    two = request(history, **second)
    assert two.body == two.message.encode()


def test_a_failed_response_cannot_be_continued() -> None:
    history = ConnectionHistory(MAX_BYTES)
    respond(request(history), "resp_1", SAID, kind="response.failed")
    assert request(history, previous_response_id="resp_1").items is None


def test_what_is_forgotten_while_a_response_runs_is_not_added_by_it() -> None:
    history = ConnectionHistory(MAX_BYTES)
    one = request(history)
    history.forget()
    respond(one, "resp_1", SAID)
    assert request(history, previous_response_id="resp_1").items is None


def test_only_the_last_responses_are_held() -> None:
    history = ConnectionHistory(MAX_BYTES)
    for number in range(10):
        respond(request(history), f"resp_{number}", SAID)
    held = [request(history, previous_response_id=f"resp_{number}").items is not None for number in range(10)]
    assert held == [False] * 2 + [True] * 8


def test_the_lists_together_are_no_larger_than_the_limit() -> None:
    history = ConnectionHistory(10_000)
    for number in range(4):
        respond(request(history, input=[{"role": "user", "content": "x" * 4_000}]), f"resp_{number}", SAID)
    held = [request(history, previous_response_id=f"resp_{number}").items is not None for number in range(4)]
    assert held == [False, False, True, True]


def test_a_list_that_grows_beyond_the_limit_is_too_large() -> None:
    history, big = ConnectionHistory(10_000), {"role": "user", "content": "x" * 6_000}
    first = request(history, input=[big])
    respond(first, "resp_1", SAID)
    assert not first.is_too_large
    assert not request(history, previous_response_id="resp_1").is_too_large
    assert request(history, previous_response_id="resp_1", input=[big]).is_too_large


def test_many_small_items_count_with_the_memory_that_they_take() -> None:
    history = ConnectionHistory(10_000)
    respond(request(history, input=[1] * 200), "resp_1")
    assert request(history, previous_response_id="resp_1", input=[1] * 10).is_too_large


def test_a_list_of_too_many_values_is_not_split() -> None:
    assert request(ConnectionHistory(MAX_BYTES), input=[[1] * 500_001]).items is None


def test_reasoning_that_only_the_provider_has_is_left_out_with_the_ids_behind_it() -> None:
    history = ConnectionHistory(MAX_BYTES)
    sealed = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "sealed"}
    respond(request(history), "resp_1", {"type": "reasoning", "id": "rs_1", "summary": []}, sealed, SAID)
    without_ids = [{name: value for name, value in item.items() if name != "id"} for item in (sealed, SAID)]
    assert input_of(request(history, previous_response_id="resp_1")) == [USER, *without_ids, USER]


def test_a_body_over_http_has_no_field_of_a_message() -> None:
    one = request(ConnectionHistory(MAX_BYTES), stream_id="s", generate=True)
    assert json.loads(one.http_body) == {"model": "m", "store": False, "input": [USER], "stream": True}


def test_events_get_the_stream_that_they_lack() -> None:
    one = request(ConnectionHistory(MAX_BYTES), stream_id="s")
    assert json.loads(one.take_event(b'{"type":"x"}')) == {"type": "x", "stream_id": "s"}
    assert one.take_event(b'{"stream_id": "s", "type":"x"}') == '{"stream_id": "s", "type":"x"}'
    assert request(ConnectionHistory(MAX_BYTES)).take_event(b'{ "type":"x"}') == '{ "type":"x"}'


def test_a_lone_surrogate_hides_no_items_and_no_events() -> None:
    history, cut = ConnectionHistory(MAX_BYTES), {"role": "user", "content": "cut \ud83d"}
    one = request(history, input=[cut, USER], stream_id="s")
    assert json.loads(one.http_body)["input"] == [cut, USER]
    end = {"type": "response.completed", "response": {"id": "resp_1", "output": [SAID, cut]}}
    sent = one.take_event(json.dumps(end).encode())
    assert json.loads(sent) == {**end, "stream_id": "s"}
    assert one.has_ended
    assert input_of(request(history, previous_response_id="resp_1", input=[cut])) == [cut, USER, SAID, cut, cut]
    assert read_head(json.dumps({**end, "stream_id": "s"})).is_end
    assert read_head(json.dumps({**end, "stream_id": "s"})).stream_id == "s"


def test_an_event_that_cannot_be_read_is_passed_on() -> None:
    deep = b'{"type":' + b"[" * 100_000
    one = request(ConnectionHistory(MAX_BYTES), stream_id="s")
    assert one.take_event(deep) == deep.decode()
    assert not one.has_ended


@pytest.mark.parametrize("message", ['{"type":"x"}', '{"type":\n"x"}', '{"type":"\u2028é"}', '{\r\n"type": "x"\r\n}'])
def test_a_message_is_the_data_of_an_event(message: str) -> None:
    event = parse(render_event("x", message))
    assert event is not None
    assert event.data.decode() == message.replace("\r\n", "\n")


def test_a_refusal_keeps_its_error_and_its_headers() -> None:
    headers = ((b"retry-after", b"3"), (b"content-length", b"9"), (b"x-accordion-tokens", b"7"))
    message = render_refusal(429, headers, b'{"error": {"code": "slow"}}', {"stream_id": b'"s"'})
    error = {"type": "error", "status": 429, "error": {"code": "slow"}, "headers": {"retry-after": "3"}}
    assert json.loads(message) == error | {"stream_id": "s"}
    assert render_refusal(429, (), message.encode(), {}) == message
    assert json.loads(render_refusal(200, (), b"<html>", {}))["status"] == 502


@pytest.mark.parametrize("message", ["", "no JSON", "[]", '{"type": 1}', '{"status": "x"}', "[" * 100_000])
def test_a_message_that_cannot_be_read_has_no_type(message: str) -> None:
    assert read_head(message).type == ""
    assert not read_head(message).is_end
