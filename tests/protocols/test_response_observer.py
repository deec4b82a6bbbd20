"""An observer understands a response wherever it is cut, and never gets in its way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.model.records import ObservedCall, ObservedResponse, Usage
from accordion.protocols.base import WireProtocol
from tests.sample_responses import (
    ITEMS,
    MESSAGES,
    OVERFLOW,
    RESPONSE,
    RESPONSES,
    RESPONSES_SEEN,
    SSE_PROTOCOLS,
    STREAMS,
    calls,
    chunk,
    gemini,
    observe,
    sse,
)

CASES = [pytest.param(protocol, *STREAMS[protocol.name], id=protocol.name) for protocol in SSE_PROTOCOLS]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize(("protocol", "data", "named", "seen"), CASES)
def test_a_stream_is_understood_whatever_its_white_space(
    protocol: WireProtocol, data: Any, named: bool, seen: ObservedResponse, space: str, end: str
) -> None:
    observer = protocol.observer(stream=True)
    observer.feed(sse(*data, named=named, space=space, end=end))
    assert observer.observation() == seen
    assert observer.has_ended


@pytest.mark.parametrize(("protocol", "data", "named", "seen"), CASES)
def test_a_stream_is_understood_wherever_it_is_cut(
    protocol: WireProtocol, data: Any, named: bool, seen: ObservedResponse
) -> None:
    stream = sse(*data, named=named)
    for at in range(len(stream)):
        assert observe(protocol, stream[:at], stream[at:]) == seen
    assert observe(protocol, *(stream[at : at + 1] for at in range(len(stream)))) == seen


@pytest.mark.parametrize(("protocol", "data", "named", "seen"), CASES)
def test_events_that_come_one_by_one_say_the_same(
    protocol: WireProtocol, data: Any, named: bool, seen: ObservedResponse
) -> None:
    assert observe(protocol, *(sse(value, named=named) for value in data)) == seen


@pytest.mark.parametrize(("protocol", "data", "named", "seen"), CASES)
def test_a_stream_has_not_ended_before_its_last_event(
    protocol: WireProtocol, data: Any, named: bool, seen: ObservedResponse
) -> None:
    observer = protocol.observer(stream=True)
    for value in data[:-1]:
        observer.feed(sse(value, named=named))
        assert not observer.has_ended
    observer.feed(sse(data[-1], named=named))
    assert observer.has_ended


def test_a_large_last_event_is_understood() -> None:
    large = RESPONSE | {"output": [*ITEMS, {"type": "message", "content": "x" * 300_000}]}
    stream = sse(*RESPONSES[:-1], {"type": "response.completed", "response": large}, named=True)
    seen = observe(SSE_PROTOCOLS[1], *(stream[at : at + 16_384] for at in range(0, len(stream), 16_384)))
    assert seen.output is not None
    assert replace(seen, output=seen.output[:-1]) == RESPONSES_SEEN
    assert len(seen.output[-1]) > 300_000


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"store": True}, True),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, True),
        ({"store": False}, False),
        ({"status": "in_progress"}, False),
        ({"status": "failed"}, False),
        ({"output": None}, False),
        ({"output": [{"type": "image_generation_call", "id": "ig_1", "result": "x" * 5_000_000}]}, False),
    ],
)
def test_the_items_of_a_reply_are_noted_where_the_provider_keeps_them_all(told: dict[str, Any], kept: bool) -> None:
    response = RESPONSE | told
    kind = "response.incomplete" if told.get("status") == "incomplete" else "response.completed"
    streamed = observe(SSE_PROTOCOLS[1], sse({"type": kind, "response": response}, named=True))
    whole = SSE_PROTOCOLS[1].observer(stream=False)
    whole.feed(json.dumps(response).encode())
    assert streamed.output == whole.observation().output == (RESPONSES_SEEN.output if kept else None)


def test_what_is_said_beside_an_image_that_is_too_large_to_note_is_noted_by_its_id() -> None:
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "well"}]}
    response = RESPONSE | {"output": [{"type": "image_generation_call", "id": "i", "result": "x" * 5_000_000}, said]}
    seen = observe(SSE_PROTOCOLS[1], sse({"type": "response.completed", "response": response}, named=True))
    assert (seen.output, [name for name, _ in seen.items]) == (None, ["msg_1"])


def test_items_that_the_end_of_a_stream_leaves_out_are_those_that_went_by() -> None:
    for left in ([], None):
        end = {"type": "response.completed", "response": RESPONSE | {"output": left}}
        assert observe(SSE_PROTOCOLS[1], sse(*RESPONSES[:-1], end, named=True)) == RESPONSES_SEEN


def test_a_cut_responses_stream_has_shown_its_calls() -> None:
    seen = observe(SSE_PROTOCOLS[1], sse(*RESPONSES[:-1], named=True))
    assert (seen.response_id, seen.model, seen.calls) == ("resp_1", "gpt-5", RESPONSES_SEEN.calls)
    assert seen.usage is None


def test_an_incomplete_response_says_why() -> None:
    response = RESPONSE | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    seen = observe(SSE_PROTOCOLS[1], sse({"type": "response.incomplete", "response": response}, named=True))
    assert seen.finish == "max_output_tokens"
    assert seen.usage == RESPONSES_SEEN.usage


def test_a_failed_response_is_an_error_with_its_usage() -> None:
    response = RESPONSE | {"status": "failed", "error": {"code": "server_error", "message": "It broke."}}
    observer = SSE_PROTOCOLS[1].observer(stream=True)
    observer.feed(sse({"type": "response.failed", "response": response}, named=True))
    assert observer.has_ended
    assert observer.observation().error == "It broke."
    assert observer.observation().usage == RESPONSES_SEEN.usage


ERRORS = [
    (0, b'data: {"error": {"message": "%s", "code": "context_length_exceeded"}}\n\n'),
    (0, b'data:{"error":"%s"}\n\n'),
    (1, b'event: error\ndata: {"type":"error","sequence_number":2,"error":{"message":"%s"}}\n\n'),
    (1, b'event: error\ndata: {"type":"error","code":null,"message":"%s","param":null}\n\n'),
    (1, b'data: {"type": "error", "message": "%s"}\n\n'),
    (1, b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"message":"%s"}}}\n\n'),
    (2, b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"%s"}}\n\n'),
    (2, b"event: error\ndata: %s\n\n"),
    (3, b'data: {"error":{"code":400,"message":"%s","status":"INVALID_ARGUMENT"}}\n\n'),
]


@pytest.mark.parametrize(("which", "event"), ERRORS)
def test_an_error_in_a_stream_ends_it_and_is_told(which: int, event: bytes) -> None:
    observer = SSE_PROTOCOLS[which].observer(stream=True)
    observer.feed(event % OVERFLOW.encode())
    assert observer.has_ended
    assert observer.observation().error == OVERFLOW


HANDED_ON = {"message": "Provider returned error", "code": 400, "metadata": {"raw": '{"error":{"message":"x"}}'}}
FIELDS = {"message": "No.", "type": "exceed_context_size_error", "n_prompt_tokens": 351, "n_ctx": 256}


@pytest.mark.parametrize("error", [HANDED_ON, FIELDS])
@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
def test_an_error_that_says_more_than_its_message_is_told_whole(protocol: WireProtocol, error: dict[str, Any]) -> None:
    observer = protocol.observer(stream=True)
    observer.feed(sse({"type": "error", "error": error}, named=True))
    assert json.loads(observer.observation().error) == error
    assert json.loads(observe(protocol, json.dumps({"error": error}).encode(), stream=False).error) == error


def test_errors_that_the_proxy_writes_are_read_as_errors() -> None:
    from accordion.model.errors import UpstreamDisconnected

    for protocol in SSE_PROTOCOLS:
        observer = protocol.observer(stream=True)
        observer.feed(protocol.render_stream_error(UpstreamDisconnected("The reply was cut. Send it again."), "req_1"))
        assert observer.has_ended
        assert "The reply was cut. Send it again." in observer.observation().error


@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{\n "error": {"message": "Slow down.", "type": "rate_limit_error"}\n}', "Slow down."),
        (b'[{"error": {"message": "Slow down.", "code": 429}}]', "Slow down."),
        (b'{"error": "Slow down."}', "Slow down."),
        (b'{"object": "error", "message": "Slow down.", "type": "RateLimitError", "code": 429}', "Slow down."),
        (b'{"message": "Slow down."}', "Slow down."),
        (b'{"detail": "Slow down."}', "Slow down."),
        (b'{"error": null}', ""),
        (b'{"detail": [{"loc": ["body"]}]}', ""),
        (b"<h1>Bad Gateway</h1>", ""),
        (b"\xff", ""),
        (b"", ""),
    ],
)
def test_a_providers_error_is_one_event_in_its_own_words(protocol: WireProtocol, body: bytes, said: str) -> None:
    event = protocol.stream_provider_error(body)
    assert bool(event) is bool(said)
    if said:
        observer = protocol.observer(stream=True)
        observer.feed(event)
        assert observer.has_ended
        assert said in observer.observation().error
        assert event.count(b"data:") == 1
        read = json.loads(event.partition(b"data: ")[2])
        assert read["error"]["message"] == said
        if protocol.name in ("responses", "messages"):
            assert read["type"] == "error"
        if protocol.name == "messages":
            assert read["error"]["type"]


def test_usage_in_every_chunk_counts_as_last_told() -> None:
    usages = [{"prompt_tokens": 10, "completion_tokens": at} for at in (1, 2, 3)]
    assert observe(SSE_PROTOCOLS[0], sse(*(chunk({"content": "x"}, usage=u) for u in usages))).usage == Usage(10, 3)


@pytest.mark.parametrize(
    "last",
    [
        {"id": "x", "choices": [], "x_groq": {"id": "r", "usage": {"prompt_tokens": 10, "completion_tokens": 3}}},
        {"id": "x", "choices": [{"delta": {}, "usage": {"prompt_tokens": 10, "completion_tokens": 3}}]},
    ],
)
def test_usage_is_found_where_other_servers_put_it(last: Any) -> None:
    assert observe(SSE_PROTOCOLS[0], sse(chunk({"content": "x"}), last)).usage == Usage(10, 3)


def test_parallel_calls_that_share_an_index_are_told_apart_by_id() -> None:
    pieces = [calls({"index": 0, "id": i, "function": {"name": "read", "arguments": "{}"}}) for i in ("a", "b")]
    assert observe(SSE_PROTOCOLS[0], sse(*pieces)).calls == (
        ObservedCall("a", "read", "{}"),
        ObservedCall("b", "read", "{}"),
    )


def test_calls_that_repeat_id_and_name_in_each_piece_are_one() -> None:
    piece = calls({"index": 0, "id": "a", "function": {"name": "read", "arguments": "{"}})
    assert observe(SSE_PROTOCOLS[0], sse(piece, piece, piece)).calls == (ObservedCall("a", "read", "{{{"),)


def test_a_late_call_is_seen_after_a_long_text() -> None:
    stream = [chunk({"content": "x"})] * 100 + [calls({"index": 0, "id": "a", "function": {"name": "read"}})]
    assert observe(SSE_PROTOCOLS[0], sse(*stream)).calls == (ObservedCall("a", "read"),)


def test_a_legacy_function_call_goes_by_its_name() -> None:
    stream = [chunk({"function_call": {"name": "read", "arguments": ""}}), chunk({}, "function_call")]
    assert observe(SSE_PROTOCOLS[0], sse(*stream)).calls == (ObservedCall("read", "read"),)


def test_an_opening_chunk_without_id_is_made_good_by_the_next() -> None:
    stream = [{"id": "", "model": "", "choices": [], "prompt_filter_results": []}, chunk({"content": "x"})]
    seen = observe(SSE_PROTOCOLS[0], sse(*stream))
    assert (seen.response_id, seen.model) == ("chatcmpl-1", "gpt-5")


def test_the_context_of_several_rounds_is_that_of_the_last_one() -> None:
    usage = {
        "input_tokens": 500,
        "output_tokens": 70,
        "iterations": [
            {"type": "message", "input_tokens": 450, "output_tokens": 40},
            {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3500},
            {"type": "message", "input_tokens": 50, "cache_read_input_tokens": 9, "cache_creation_input_tokens": 1},
            {"type": "compaction", "input_tokens": 1, "output_tokens": 1},
        ],
    }
    seen = observe(SSE_PROTOCOLS[2], json.dumps({"id": "m", "usage": usage, "content": []}).encode(), stream=False)
    assert seen.usage == Usage(input=60, output=70, cached=9, cache_write=1)
    stream = sse(MESSAGES[0], {"type": "message_delta", "delta": {}, "usage": usage}, named=True)
    assert observe(SSE_PROTOCOLS[2], stream).usage == Usage(input=60, output=70, cached=9, cache_write=1)


@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
@pytest.mark.parametrize(
    "junk",
    [
        b"data: {\n\n",
        b"data: \xff\xfe\n\n",
        b"event: error\n\n",
        b"data: [1, 2\n\ndata: [DONE\n\n",
        b"\0\0\0\n\n",
        b'data: {"error": "\xff"}\n\n',
        b"<html>502 Bad Gateway</html>",
        b'data: {"type": "message_start", "message": 5, "usage": {"input_tokens": -1.5}}\n\n',
    ],
)
def test_malformed_streams_are_no_errors_of_ours_and_do_not_hide_what_follows(
    protocol: WireProtocol, junk: bytes
) -> None:
    observer = protocol.observer(stream=True)
    observer.feed(junk)
    before = observer.observation()
    data, is_named, seen = STREAMS[protocol.name]
    observer.feed(b"\n\n" + sse(*data, named=is_named))
    after = observer.observation()
    assert (after.response_id, after.model, after.usage, after.calls) == (
        seen.response_id,
        seen.model,
        seen.usage,
        seen.calls,
    )  # fmt: skip
    assert before.usage is None or before.usage == Usage()


names = st.sampled_from(
    ["id", "model", "type", "choices", "delta", "usage", "error", "tool_calls", "function", "name", "index", "item",
     "response", "output", "message", "content_block", "content", "input_tokens", "prompt_tokens", "iterations",
     "finish_reason", "status", "incomplete_details", "x_groq", "function_call", "call_id"]
)  # fmt: skip
words = st.sampled_from(
    ["", "error", "response.created", "response.completed", "response.output_item.done", "message_start",
     "message_delta", "content_block_start", "tool_use", "function_call", "message", "incomplete", "a"]
)  # fmt: skip
wild = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.just(0.5) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=5),
    max_leaves=20,
)


@given(st.lists(wild, min_size=1, max_size=4), st.sampled_from(SSE_PROTOCOLS), st.booleans())
def test_no_json_of_any_shape_makes_an_observer_raise(values: list[Any], protocol: WireProtocol, stream: bool) -> None:
    observer = protocol.observer(stream)
    for value in values:
        observer.feed(sse(json.dumps(value)) if stream else json.dumps(value).encode())
        assert isinstance(observer.observation(), ObservedResponse)


@given(st.lists(st.binary(max_size=60), max_size=5), st.sampled_from(SSE_PROTOCOLS), st.booleans())
def test_no_bytes_make_an_observer_raise(pieces: list[bytes], protocol: WireProtocol, stream: bool) -> None:
    assert isinstance(observe(protocol, *pieces, stream=stream), ObservedResponse)


TEXTS = {
    "chat": chunk({"content": "word"}),
    "responses": {"type": "response.output_text.delta", "delta": "word"},
    "messages": {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "word"}},
    "gemini": gemini({"text": "word"}),
}


@given(
    st.sampled_from(CASES),
    st.lists(st.tuples(st.integers(0, 30), wild | st.none()), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_a_long_burst_says_what_its_events_say_one_by_one(
    stream: Any, between: list[tuple[int, Any]], end: str
) -> None:
    protocol, data, named, _ = stream.values
    told: list[Any] = []
    for at in range(max(len(data), len(between))):
        texts, other = between[at] if at < len(between) else (0, None)
        told += [*data[at : at + 1], *[TEXTS[protocol.name]] * texts, *([] if other is None else [json.dumps(other)])]
    events = [sse(value, named=named and not isinstance(value, str), end=end) for value in told]
    assert observe(protocol, b"".join(events)) == observe(protocol, *events)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", [["x"], {"x": 1}, None, 7])
@pytest.mark.parametrize(("protocol", "listing"), [(SSE_PROTOCOLS[1], "output"), (SSE_PROTOCOLS[2], "content")])
def test_an_entry_of_a_kind_that_is_no_text_is_passed_over(
    protocol: WireProtocol, listing: str, kind: Any, stream: bool
) -> None:
    usage = {"input_tokens": 5, "output_tokens": 2}
    whole = {"type": "message", "id": "r_1", "status": "completed", listing: [{"type": kind}], "usage": usage}
    if stream:
        item = {"type": "response.output_item.done", "item": {"type": kind}}
        begun = {"type": "content_block_start", "content_block": {"type": kind}}
        ended = {"type": "response.completed", "response": whole}, {"type": "message_start", "message": whole}
        seen = observe(protocol, sse(item, begun, *ended, named=True))
    else:
        observer = protocol.observer(stream=False)
        observer.feed(json.dumps(whole).encode())
        seen = observer.observation()
    assert seen.usage == Usage(5, 2)
    assert seen.input_tokens == 5
