"""Event streams are taken apart rightly wherever the network cuts them."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.protocols.sse import MAX_PENDING, SseBuffer, SseEvent, read_events

ENDS = (b"\n", b"\r\n", b"\r")


def by_the_standard(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The event stream interpretation of the HTML standard, word by word."""
    out, name, data = [], b"", []
    lines = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    for line in lines[:-1]:
        if not line:
            if data:
                out.append((name, b"\n".join(data)))
            name, data = b"", []
            continue
        field, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return out


lines = st.one_of(
    st.sampled_from([b"data", b"data:", b"data: a", b"data:b", b"data:  c", b"event: x", b"event:y", b": hi", b":"]),
    st.sampled_from([b"id: 1", b"retry: 5", b'data: {"a": "\\n\\n"}', b"nonsense", "data: é\u2028\u0085".encode()]),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Whole events, their lines ended in any of the three ways and in any mixture."""
    out = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    only = draw(st.none() | st.sampled_from(ENDS))
    ends = st.just(only) if only else st.sampled_from(ENDS)
    for event in draw(st.lists(st.lists(lines, min_size=1, max_size=3), max_size=4)):
        for line in event:
            out += line + draw(ends)
        out += draw(ends)
    # A lone CR and the LF of the next line make one end: what is open then is ended here.
    return out + b"\n\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


def through(chunks: list[bytes], hold: int = MAX_PENDING) -> tuple[SseBuffer, list[bytes]]:
    splitter = SseBuffer(hold)
    return splitter, [splitter.feed(chunk) for chunk in chunks]


@given(streams(), st.lists(st.integers(0, 500), max_size=8))
def test_a_stream_cut_anywhere_gives_the_events_of_the_standard(stream: bytes, places: list[int]) -> None:
    splitter, blocks = through(cut(stream, places))
    blocks.append(splitter.flush())
    assert b"".join(blocks) == stream
    assert [event for block in blocks for event in read_events(block)] == by_the_standard(stream)


@given(streams())
def test_a_stream_that_comes_byte_by_byte_gives_the_events_of_the_standard(stream: bytes) -> None:
    splitter, blocks = through([stream[at : at + 1] for at in range(len(stream))])
    blocks.append(splitter.flush())
    assert [event for block in blocks for event in read_events(block)] == by_the_standard(stream)


@given(streams(), st.lists(st.integers(0, 500), max_size=8))
def test_only_whole_events_are_forwarded(stream: bytes, places: list[int]) -> None:
    _, blocks = through(cut(stream, places))
    assert all(re.search(rb"(?:\r\n|\n|\r)(?:\r\n|\n|\r)$", block) for block in blocks if block)


@given(st.sampled_from([b"\n", b"\r\n"]), st.lists(st.integers(0, 60), max_size=6))
def test_an_event_goes_on_with_its_last_byte(end: bytes, places: list[int]) -> None:
    event = b"event: x" + end + b'data: {"a":1}' + end + end
    _, blocks = through(cut(event, places))
    assert b"".join(blocks) == event
    assert all(not block for block in blocks[:-1]) or blocks[-1] == b""


def test_lines_that_end_in_cr_alone_do_not_wait_for_more() -> None:
    _, blocks = through([b"data: a\r\r"])
    assert blocks == [b"data: a\r\r"]


@pytest.mark.parametrize("at", range(1, 30))
def test_the_beginning_of_an_event_waits_for_its_end(at: int) -> None:
    splitter = SseBuffer()
    first = splitter.feed(b"data: one\n\n" + b"data: two, which is longer"[:at])
    assert first == b"data: one\n\n"
    assert splitter.pending == b"data: two, which is longer"[:at]
    assert not splitter.is_mid_event


def test_a_stream_that_ends_between_events_is_finished() -> None:
    splitter, _ = through([b"data: one\r\r", b"\n"])
    assert not splitter.pending.strip()


def test_no_more_than_the_bound_is_held_back() -> None:
    splitter = SseBuffer()
    assert splitter.feed(b"data: " + b"x" * (MAX_PENDING - 6)) == b""
    piece = splitter.feed(b"x")
    assert len(piece) == MAX_PENDING + 1
    assert splitter.is_mid_event
    assert splitter.feed(b"more") == b"more"
    assert splitter.feed(b"\n") == b"\n"
    assert splitter.is_mid_event
    assert splitter.feed(b"\ndata: next") == b"\n"
    assert not splitter.is_mid_event
    assert splitter.pending == b"data: next"


@given(streams(), st.lists(st.integers(0, 500), max_size=8), st.integers(1, 12))
def test_no_byte_is_lost_or_moved_however_little_is_held(stream: bytes, places: list[int], hold: int) -> None:
    splitter, blocks = through(cut(stream, places), hold)
    assert len(splitter.pending) <= hold
    assert b"".join(blocks) + splitter.flush() == stream
    assert splitter.pending == b""


@given(st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 90), max_size=6))
def test_the_end_of_a_large_event_is_found_wherever_it_is_cut(end: bytes, places: list[int]) -> None:
    stream = b"data: " + b"x" * 60 + end + end
    splitter, _ = through([*cut(stream, places), b"data: y"], hold=16)
    assert not splitter.is_mid_event
    assert splitter.pending.strip(b"\r\n") == b"data: y"


def test_data_lines_are_joined_and_comments_left_out() -> None:
    block = b": ping\n\nevent:x\ndata:one\ndata: two\nid: 3\n\nevent: nothing\n\ndata\n\n"
    assert list(read_events(block)) == [SseEvent(b"x", b"one\ntwo"), SseEvent(b"", b"")]
