"""A reply that is one document is understood once it is whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from proxy.core.records import CallSeen, ReplySeen
from proxy.dialects.base import Dialect
from proxy.dialects.tap import BOUND
from tests.replies import (
    CHAT,
    CHAT_SEEN,
    DIALECTS,
    MESSAGES_SEEN,
    OVERFLOW,
    RESPONSE,
    RESPONSES_SEEN,
    START,
    tapped,
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
        replace(MESSAGES_SEEN, calls=(CallSeen("toolu_a", "read", '{"path":"é"}'), MESSAGES_SEEN.calls[1])),
    ),
]


@pytest.mark.parametrize(("which", "body", "seen"), BODIES)
def test_a_whole_reply_is_understood_however_it_is_cut(which: int, body: Any, seen: ReplySeen) -> None:
    raw = json.dumps(body).encode()
    assert tapped(DIALECTS[which], raw, stream=False) == seen
    assert tapped(DIALECTS[which], *(raw[at : at + 1] for at in range(len(raw))), stream=False) == seen


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
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_body_is_told_in_every_shape(dialect: Dialect, body: str) -> None:
    assert tapped(dialect, (body % OVERFLOW).encode(), stream=False) == ReplySeen(error=OVERFLOW)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_reply_that_is_not_whole_says_nothing_yet(dialect: Dialect) -> None:
    tap = dialect.tap(stream=False)
    tap.feed(b'{"id": "x", ')
    assert tap.seen() == ReplySeen()
    tap.feed(b'"model": "m"}')
    assert (tap.seen().response_id, tap.seen().model) == ("x", "m")


def test_a_reply_beyond_the_bound_is_let_go() -> None:
    tap = DIALECTS[0].tap(stream=False)
    tap.feed(b'{"id": "x", "pad": "')
    for _ in range(BOUND // 2**20 + 1):
        tap.feed(b"x" * 2**20)
    tap.feed(b'"}')
    assert tap.seen() == ReplySeen()
