"""A parser returns every event of a response in its own bytes, with the same meaning for all protocols."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.protocols.base import WireProtocol
from accordion.protocols.registry import PROTOCOLS
from accordion.protocols.response_parser import (
    END,
    KEEPALIVE,
    RESPONSE_START,
    UNDECODABLE,
    CallPiece,
    Content,
    ErrorReport,
    Finish,
    ResponseEvent,
    ResponseObserver,
    output_text,
)
from tests.protocols.test_observed_arguments import replies
from tests.protocols.test_response_observer import wild
from tests.reply_parts import ReplyText, ReplyThought, ScriptedReply, reply_document, reply_events
from tests.sample_responses import CHAT, GEMINI, MESSAGES, RESPONSES, SSE_PROTOCOLS, chunk, sse

CHAT_API, RESPONSES_API, MESSAGES_API = (PROTOCOLS[name] for name in ("chat", "responses", "messages"))
ENDS = (b"\n", b"\r\n", b"\r")


def parse(protocol: WireProtocol, *pieces: bytes, stream: bool = True) -> list[ResponseEvent]:
    """All events of a response, also the last one without an empty line."""
    parser = protocol.parser(stream, reads_content=True)
    return [event for piece in pieces for event in parser.feed(piece)] + list(parser.close())


def written(protocol: WireProtocol, said: ScriptedReply, stream: bool) -> list[bytes]:
    """A response as it comes: events, or a document."""
    return (
        reply_events(protocol.name, said, {})
        if stream
        else [json.dumps(reply_document(protocol.name, said, {})).encode()]
    )


@given(replies(), st.sampled_from(SSE_PROTOCOLS), st.integers(1, 400), st.sampled_from(ENDS), st.integers(0, 30))
def test_the_events_of_a_stream_have_all_of_its_bytes(
    said: ScriptedReply, protocol: WireProtocol, size: int, end: bytes, missing: int
) -> None:
    stream = b"".join(reply_events(protocol.name, said, {})).replace(b"\n", end)
    stream = stream[: len(stream) - missing]
    events = parse(protocol, *(stream[at : at + size] for at in range(0, len(stream), size)))
    assert b"".join([event.raw for event in events]) == stream


@given(replies(), st.sampled_from(SSE_PROTOCOLS), st.booleans())
def test_the_text_of_a_response_is_what_the_model_said(
    said: ScriptedReply, protocol: WireProtocol, stream: bool
) -> None:
    pieces = (
        reply_events(protocol.name, said, {})
        if stream
        else [json.dumps(reply_document(protocol.name, said, {})).encode()]
    )
    expected = "".join([piece.text for piece in said.pieces if isinstance(piece, ReplyText)])
    assert "".join(map(output_text, parse(protocol, *pieces, stream=stream))) == expected


@given(replies(), st.sampled_from(SSE_PROTOCOLS), st.booleans())
def test_a_parser_that_reads_the_content_tells_an_observer_the_same(
    said: ScriptedReply, protocol: WireProtocol, stream: bool
) -> None:
    pieces = (
        reply_events(protocol.name, said, {})
        if stream
        else [json.dumps(reply_document(protocol.name, said, {})).encode()]
    )
    observer, reader = protocol.observer(stream), ResponseObserver(protocol.parser(stream, reads_content=True))
    for piece in pieces:
        observer.feed(piece)
        reader.feed(piece)
    # Only a parser that reads the content can count its characters.
    assert replace(reader.observation(), characters=0) == replace(observer.observation(), characters=0)
    assert reader.has_ended == observer.has_ended


@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
def test_thoughts_are_content_but_not_text(protocol: WireProtocol) -> None:
    said = ScriptedReply(1, (ReplyThought("a thought", "sealed"),), 10, 5)
    events = parse(protocol, *reply_events(protocol.name, said, {}))
    assert "".join(map(output_text, events)) == ""
    assert any(type(part) is Content for event in events for part in event.parts)


@pytest.mark.parametrize(
    ("protocol", "stream", "openings"),
    [
        (CHAT_API, sse(*CHAT), 0),
        (RESPONSES_API, sse(*RESPONSES, named=True), 1),
        (MESSAGES_API, sse(*MESSAGES), 1),
        (PROTOCOLS["gemini"], sse(*GEMINI), 0),
    ],
)
def test_an_opening_comes_before_any_content_and_an_end_last(
    protocol: WireProtocol, stream: bytes, openings: int
) -> None:
    events = parse(protocol, stream)
    kinds = [{type(part) for part in event.parts} for event in events]
    assert sum(RESPONSE_START in event.parts for event in events) == openings
    assert not any(Content in kind or CallPiece in kind for kind in kinds[:openings])
    assert any(Finish in kind for kind in kinds)
    assert [END in event.parts for event in events] == [False] * (len(events) - 1) + [True]


KEEPALIVES = [
    b": ping\n\n",
    b":\r\n\r\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
    b'data: {"type":"keepalive"}\n\n',
]


@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
@pytest.mark.parametrize("raw", KEEPALIVES)
def test_comments_and_pings_are_keepalives(protocol: WireProtocol, raw: bytes) -> None:
    assert [(event.raw, event.parts) for event in parse(protocol, raw)] == [(raw, (KEEPALIVE,))]


@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'event: error\ndata: {"type":"error","error":{"message":"m"}}\n\n', "m"),
        (b'data: {"error": "m"}\n\n', "m"),
        (b'data: {"object":"error","message":"m","code":400}\n\n', "m"),
        (b'data: [{"error":{"message":"m"}}]\n\n', "m"),
        (b"event: error\ndata: no json\n\n", "no json"),
    ],
)
def test_an_error_of_any_form_is_reported(protocol: WireProtocol, raw: bytes, text: str) -> None:
    assert [event.parts for event in parse(protocol, raw)] == [(ErrorReport(text),)]


@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
@pytest.mark.parametrize("stream", [True, False])
def test_data_that_cannot_be_decoded_is_unreadable(protocol: WireProtocol, stream: bool) -> None:
    (event,) = parse(protocol, b'data: {"a": \n\n' if stream else b'{"a": ', stream=stream)
    assert event.parts == (UNDECODABLE,)


def test_only_the_first_choice_is_the_text_of_a_completion() -> None:
    choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in ("first", "second")]
    (event,) = parse(CHAT_API, json.dumps({"id": "c", "choices": choices}).encode(), stream=False)
    assert output_text(event) == "first"
    assert Content("other") in event.parts


@pytest.mark.parametrize(
    "delta", [{"refusal": "no"}, {"audio": {"id": "a"}}, {"content": [{"type": "image_url"}]}, {"reasoning": "hm"}]
)
def test_output_that_is_no_text_is_content_too(delta: dict[str, Any]) -> None:
    (event,) = parse(CHAT_API, sse(chunk(delta)))
    assert output_text(event) == ""
    assert any(type(part) is Content for part in event.parts)


@given(
    wild, st.sampled_from(SSE_PROTOCOLS), st.booleans(), st.sampled_from(["", "content", "output", "choices", "delta"])
)
def test_no_json_of_any_shape_makes_a_parser_raise(value: Any, protocol: WireProtocol, stream: bool, name: str) -> None:
    data = {name: [value], "type": "content_block_delta"} if name else value
    parse(protocol, sse(json.dumps(data)) if stream else json.dumps(data).encode(), stream=stream)


@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
@pytest.mark.parametrize("odd", [[], {}, 1, None])
def test_content_of_a_type_that_is_no_word_is_other_content(protocol: WireProtocol, odd: Any) -> None:
    part = {"type": odd, "text": "x"}
    output = [{"type": "message", "content": [part]}, {"type": odd}]
    candidate = {"content": {"parts": [{"odd": odd, "thoughtSignature": "x"}]}}
    body = {"content": [part], "output": output, "choices": [{"message": {"content": [part]}}]}
    body |= {"candidates": [candidate]}
    (event,) = parse(protocol, json.dumps(body).encode(), stream=False)
    assert Content("other") in event.parts
    assert output_text(event) == ""
