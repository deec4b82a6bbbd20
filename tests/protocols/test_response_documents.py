"""A response that is one document is understood once it is complete."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.model.records import ObservedCall, ObservedResponse, Usage
from accordion.protocols.base import WireProtocol
from accordion.protocols.json_values import find_error_text
from accordion.protocols.message_keys import decode_json
from accordion.protocols.openai_chat.response import ChatParser, read_any_form, read_published_form
from accordion.protocols.response_parser import BOUND, ResponseEvent, ResponseObserver, ResponsePart
from tests.sample_responses import (
    CHAT,
    CHAT_SEEN,
    MESSAGES_SEEN,
    OVERFLOW,
    RESPONSE,
    RESPONSES_SEEN,
    SSE_PROTOCOLS,
    START,
    observe,
)

BODIES = [
    (
        0,
        {
            "id": "chatcmpl-1",
            "model": "gpt-5",
            "choices": [
                {
                    "finish_reason": "tool_calls",
                    "message": {
                        "tool_calls": [
                            {"id": "call_a", "function": {"name": "read", "arguments": '{"name": "x"}'}},
                            {"id": "call_b", "custom": {"name": "patch", "input": "*** Begin"}},
                        ]
                    },
                }
            ],
            "usage": CHAT[-2]["usage"],  # type: ignore[index]
        },
        CHAT_SEEN,
    ),
    (1, RESPONSE, RESPONSES_SEEN),
    (
        2,
        {
            **START,
            "content": [
                {"type": "tool_use", "id": "toolu_a", "name": "read", "input": {"path": "é"}},
                {"type": "tool_use", "id": "toolu_b", "name": "run"},
            ],
            "stop_reason": "tool_use",
            "usage": START["usage"] | {"output_tokens": 20, "output_tokens_details": {"thinking_tokens": 5}},  # type: ignore[operator]
        },
        replace(MESSAGES_SEEN, calls=(ObservedCall("toolu_a", "read", '{"path":"é"}'), MESSAGES_SEEN.calls[1])),
    ),
]

# What stands in completions, now and then something else than what is published.
_ODD: st.SearchStrategy[Any] = st.sampled_from([None, "", "x", 0, -1, 2.0, 2.5, True, [], [1], {}, {"message": "m"}])
_COUNTS = st.integers(0, 2**54) | _ODD


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_CALL = _some(
    id=st.just("c") | _ODD,
    function=_some(name=st.just("f") | _ODD, arguments=st.just("{}") | _ODD) | _ODD,
    custom=_some(name=st.just("f"), input=_ODD) | _ODD,
)
_MESSAGE = _some(content=st.just("é") | _ODD, tool_calls=st.lists(_CALL, max_size=2) | _ODD, function_call=_CALL)
_USAGE = _some(
    prompt_tokens=_COUNTS,
    completion_tokens=_COUNTS,
    prompt_cache_hit_tokens=_COUNTS,
    prompt_tokens_details=_some(cached_tokens=_COUNTS, cache_write_tokens=_COUNTS) | _ODD,
    completion_tokens_details=_some(reasoning_tokens=_COUNTS) | _ODD,
)
_COMPLETIONS = _some(
    id=st.just("chatcmpl-1") | _ODD,
    object=st.sampled_from(["chat.completion", "error"]) | _ODD,
    model=st.just("m") | _ODD,
    choices=st.lists(_some(finish_reason=st.just("stop") | _ODD, message=_MESSAGE | _ODD, usage=_USAGE)) | _ODD,
    usage=_USAGE | _ODD,
    x_groq=_some(usage=_USAGE),
    error=_ODD,
    type=st.just("error") | _ODD,
)


@given(st.sampled_from([{}, BODIES[0][1]]), _COMPLETIONS, st.integers(0, 3))
def test_what_is_read_at_once_of_a_completion_is_what_is_read_of_it_in_detail(
    body: dict[str, Any], others: dict[str, Any], most: int
) -> None:
    raw = json.dumps({**body, **dict(list(others.items())[:most])}).encode()
    data = decode_json(raw)
    published = read_published_form(raw)
    assert published is None or (published == read_any_form(data) and not find_error_text(data))


def observed(parts: tuple[ResponsePart, ...] | None) -> ObservedResponse | None:
    observer = ResponseObserver(ChatParser(is_stream=False))
    observer.take(ResponseEvent(b"", parts=parts or ()))
    return observer.observation() if parts else None


def test_a_completion_as_it_is_published_is_read_at_once() -> None:
    _, body, seen = BODIES[0]
    said = {**body, "object": "chat.completion", "error": None, "service_tier": "x"}
    assert observed(read_published_form(json.dumps(said).encode())) == seen
    said |= {"usage": {"prompt_tokens": 7, "total_tokens": 9, "prompt_tokens_details": None}}
    said |= {"choices": [{"index": 0, "message": {"role": "assistant", "content": "é"}, "finish_reason": "stop"}]}
    assert observed(read_published_form(json.dumps(said).encode())) == replace(
        seen, usage=Usage(input=7), finish="stop", calls=()
    )


@pytest.mark.parametrize(
    "odd", [{"error": {"message": "m"}}, {"object": "error"}, {"type": "error"}, {"usage": None}, {"id": None}]
)
def test_a_completion_that_is_not_as_published_is_read_in_detail(odd: dict[str, Any]) -> None:
    assert read_published_form(json.dumps({**BODIES[0][1], **odd}).encode()) is None


@pytest.mark.parametrize(("which", "body", "seen"), BODIES)
def test_a_whole_reply_is_understood_however_it_is_cut(which: int, body: Any, seen: ObservedResponse) -> None:
    raw = json.dumps(body).encode()
    assert observe(SSE_PROTOCOLS[which], raw, stream=False) == seen
    assert observe(SSE_PROTOCOLS[which], *(raw[at : at + 1] for at in range(len(raw))), stream=False) == seen


@pytest.mark.parametrize(
    "body",
    [
        '{"error":{"message":"%s","type":"invalid_request_error","param":"input","code":"context_length_exceeded"}}',
        '{"type":"error","error":{"type":"invalid_request_error","message":"%s"},"request_id":"req_1"}',
        '{"object":"error","message":"%s","type":"BadRequestError","code":400}',
        '[{"error":{"code":400,"message":"%s","status":"INVALID_ARGUMENT"}}]',
        '{"error":"%s"}',
    ],
)
@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
def test_an_error_body_is_told_in_every_shape(protocol: WireProtocol, body: str) -> None:
    assert observe(protocol, (body % OVERFLOW).encode(), stream=False) == ObservedResponse(error=OVERFLOW)


@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
def test_a_reply_that_is_not_whole_says_nothing_yet(protocol: WireProtocol) -> None:
    observer = protocol.observer(stream=False)
    identity, model = (b"responseId", b"modelVersion") if protocol.name == "gemini" else (b"id", b"model")
    observer.feed(b'{"%s": "x", ' % identity)
    assert observer.observation() == ObservedResponse()
    observer.feed(b'"%s": "m"}' % model)
    assert (observer.observation().response_id, observer.observation().model) == ("x", "m")


def test_a_reply_beyond_the_bound_is_let_go() -> None:
    observer = SSE_PROTOCOLS[0].observer(stream=False)
    observer.feed(b'{"id": "x", "pad": "')
    for _ in range(BOUND // 2**20 + 1):
        observer.feed(b"x" * 2**20)
    observer.feed(b'"}')
    assert observer.observation() == ObservedResponse()
