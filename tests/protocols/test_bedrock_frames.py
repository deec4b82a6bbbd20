"""Frames of AWS's event stream: read at any cut, written so that botocore reads them, and passed on as they came."""

from __future__ import annotations

import json
import struct
import zlib
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.protocols.bedrock_frames import Frame, FrameBuffer, InvokeFrames, read_frame, write_frame
from tests import frames
from tests.loopback import split

DELTA = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\u00fc"}}'
STREAM = [frames.chunk(b'{"type":"message_start"}'), *[frames.chunk(DELTA, at) for at in range(3)]]


def fed(pieces: list[bytes]) -> tuple[list[Frame], FrameBuffer]:
    buffer = FrameBuffer()
    return [frame for piece in pieces for frame in buffer.feed(piece)], buffer


@given(st.lists(st.integers(0, sum(map(len, STREAM)))))
def test_frames_are_read_at_any_cut(cuts: list[int]) -> None:
    found, buffer = fed(split(b"".join(STREAM), cuts))
    assert [frame.raw for frame in found] == STREAM
    assert found[0].headers == {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    assert (buffer.is_broken, buffer.flush()) == (False, b"")


@given(st.dictionaries(st.text(min_size=1, max_size=60), st.text(max_size=300), max_size=5), st.binary(max_size=500))
def test_a_frame_that_is_written_is_read_by_botocore_too(headers: dict[str, str], payload: bytes) -> None:
    raw = write_frame(headers, payload)
    buffer = frames.EventStreamBuffer()
    buffer.add_data(raw)
    [message] = list(buffer)
    assert (message.headers, message.payload) == (headers, payload)
    assert read_frame(raw) == Frame(raw, headers, payload)


def test_headers_of_all_kinds_are_passed_over() -> None:
    values = {
        0: b"", 1: b"", 2: b"\x01", 3: b"\0\1", 4: b"\0\0\0\1", 5: b"\0" * 8, 6: b"\0\2ab", 8: b"\0" * 8,
        9: uuid4().bytes, 7: b"\0\5chunk",
    }  # fmt: skip
    block = b"".join(bytes([2]) + b"h%d" % kind + bytes([kind]) + value for kind, value in values.items())
    prelude = struct.pack(">II", 16 + len(block), len(block))
    head = prelude + struct.pack(">I", zlib.crc32(prelude)) + block
    assert read_frame(head + struct.pack(">I", zlib.crc32(head))).headers == {"h7": "chunk"}


@pytest.mark.parametrize("at", range(len(STREAM[0])))
def test_a_frame_with_a_wrong_bit_is_none(at: int) -> None:
    raw = bytearray(b"".join(STREAM))
    raw[at] ^= 0x40
    found, buffer = fed([bytes(raw)])
    assert found == []
    assert buffer.is_broken
    assert buffer.flush() == bytes(raw)


@pytest.mark.parametrize(
    "block",
    [
        b"\x04name",
        b"\x01a\x07\0\xff",
        b"\x01a\x0b",
        b"\x01\xff\x07\0\0",
        b"\x01a\x07\0\1\xff",
        b"\x01a\x09ab",
        b"\x05a",
    ],
)
def test_headers_that_cannot_be_read_make_no_frame(block: bytes) -> None:
    prelude = struct.pack(">II", 16 + len(block), len(block))
    head = prelude + struct.pack(">I", zlib.crc32(prelude)) + block
    with pytest.raises(ValueError, match=r"header|decode"):
        read_frame(head + struct.pack(">I", zlib.crc32(head)))


# -- the events in them ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, sum(map(len, STREAM)))), st.booleans())
def test_events_that_come_back_leave_in_their_own_frames(cuts: list[int], is_cut_again: bool) -> None:
    bedrock = InvokeFrames()
    reader = bedrock.reader()
    events = b"".join(map(reader.feed, split(b"".join(STREAM), cuts))) + reader.flush()
    assert events.count(b"event: content_block_delta\ndata: " + DELTA + b"\n\n") == 3
    blocks = split(events, cuts) if is_cut_again else [events]
    assert b"".join(map(bedrock.write, blocks)) + bedrock.flush() == b"".join(STREAM)


def test_equal_events_keep_the_order_of_their_frames() -> None:
    bedrock = InvokeFrames()
    events = bedrock.reader().feed(b"".join(STREAM[1:]))
    assert [bedrock.write(each + b"\n\n") for each in events.decode().encode().split(b"\n\n")[:-1]] == STREAM[1:]


def test_frames_of_events_that_do_not_come_back_are_forgotten() -> None:
    """A long answer whose events are all changed on their way."""
    bedrock, size = InvokeFrames(), 0
    reader = bedrock.reader()
    for number in range(300):
        frame = frames.chunk(b'{"type":"content_block_delta","index":%d,"text":"%s"}' % (number, b"x" * 30_000))
        event, size = reader.feed(frame), size + len(frame)
    assert sum(len(raw) for kept in bedrock._frames.values() for raw in kept) < size // 2
    assert bedrock.write(event) == frame, "the newest is kept"
    [(_, payload)] = frames.read(bedrock.write(event))
    assert payload.keys() == {"bytes"}, "it came back once"


@pytest.mark.parametrize(
    "odd",
    [
        frames.event("chunk", b'{"bytes":"!"}'), frames.event("chunk", b"no JSON"), frames.event("chunk", b"{}"),
        frames.chunk(b'{"completion": "of an older model"}'), frames.chunk(b"[]"), frames.chunk(b'{"type":"a b"}'),
        frames.frame(b"", message_type="event", event_type="initial-response"), b"no frame at all", b"\0\0",
        STREAM[0][:-1],
    ],
)  # fmt: skip
def test_what_is_no_event_passes_as_it_came(odd: bytes) -> None:
    bedrock = InvokeFrames()
    reader = bedrock.reader()
    events = reader.feed(STREAM[0] + odd) + reader.feed(STREAM[1]) + reader.flush()
    assert bedrock.write(events) == STREAM[0] + odd + STREAM[1]


def test_an_event_that_was_changed_is_written_in_a_frame() -> None:
    bedrock = InvokeFrames()
    events = bedrock.reader().feed(frames.chunk(b'{"type":"message_stop",\n "x": 1}'))
    assert events == b'event: message_stop\ndata: {"type":"message_stop",  "x": 1}\n\n'
    [(headers, payload)] = frames.read(bedrock.write(events.replace(b"1", b"2")))
    assert headers == {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    assert payload == {"bytes": "eyJ0eXBlIjoibWVzc2FnZV9zdG9wIiwgICJ4IjogMn0="}


@pytest.mark.parametrize(
    ("frame", "kind", "message"),
    [
        (frames.failure("throttlingException", "Too many."), "throttlingException", "Too many."),
        (frames.frame(b"", message_type="error", error_code="ErrorX", error_message="Oh."), "ErrorX", "Oh."),
        (frames.frame(b"no JSON", message_type="exception", exception_type="e"), "e", "e"),
    ],
)  # fmt: skip
def test_an_exception_is_an_error_event_and_leaves_as_it_came(frame: bytes, kind: str, message: str) -> None:
    bedrock = InvokeFrames()
    event = bedrock.reader().feed(frame)
    name, _, data = event.partition(b"\ndata: ")
    assert (name, json.loads(data)) == (b"event: error", {"type": "error", "error": {"type": kind, "message": message}})
    assert bedrock.write(event) == frame


@pytest.mark.parametrize(
    ("kind", "exception"),
    [
        ("invalid_request_error", "validationException"), ("throttlingException", "throttlingException"),
        ("something_new", "modelStreamErrorException"), ("overloaded_error", "serviceUnavailableException"),
        ("modelTimeoutException", "modelStreamErrorException"), ("timeout_error", "modelStreamErrorException"),
    ],
)  # fmt: skip
def test_an_error_event_of_our_own_is_written_as_an_exception(kind: str, exception: str) -> None:
    data = json.dumps({"type": "error", "error": {"type": kind, "message": "Lost."}}).encode()
    [(headers, payload)] = frames.read(InvokeFrames().write(b"event: error\ndata: " + data + b"\n\n"))
    assert (headers[":message-type"], headers[":exception-type"]) == ("exception", exception)
    assert payload == {"message": "Lost."}
