"""Bodies with values that JSON lacks are read, and their values are sent as they came."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.protocols.odd_json import make_readable, replace_marks, restore_values

ODD = [
    rb'{"a":"\ud83d"}',
    rb'{"a":"\ude00\ud83d\ude00\ud83d x"}',
    rb'{"\ud83d":1}',
    rb'{"a":"\\ud83d \ud83d"}',
    b'{"a":"\xff\xfe"}',
    b'{"a":"\xed\xa0\xbd","b":"\xc3\xa9"}',
    b'{"a":NaN,"b":[-Infinity, Infinity],"c":"NaN"}',
    b'{"a":1e999,"b":-12345678901234567890123,"c":1.5E+400}',
]


@pytest.mark.parametrize("body", ODD)
def test_an_odd_body_is_readable_and_keeps_its_bytes(body: bytes) -> None:
    readable = make_readable(body)
    assert readable is not None
    msgspec.json.decode(readable)
    msgspec.json.encode(msgspec.json.decode(readable))
    assert restore_values(readable) == body
    msgspec.json.decode(replace_marks(readable))


def test_values_that_json_has_are_not_marked() -> None:
    body = rb'{"a":"\ud83d\ude00 NaN Infinity 12345678901234567890 \\ud83d","b":[1.5e10,-7,1e-9],"c":"\n"}'
    assert make_readable(body) is None


def test_a_byte_order_mark_is_left_out() -> None:
    assert make_readable(b'\xef\xbb\xbf{"a":1}') == b'{"a":1}'


def test_a_body_that_has_marks_already_is_not_read() -> None:
    assert make_readable('{"a":"\U0010f712","b":NaN}'.encode()) is None


PIECES = st.sampled_from(
    [
        rb"\ud83d",
        rb"\uDE00",
        rb"\\",
        rb"\"",
        b"\xff",
        b"\xed\xa0",
        b"NaN",
        b" ",
        "\u00e9".encode(),
        "\U0001f600".encode(),
    ]
)


@given(st.lists(PIECES), st.sampled_from([b"1", b"NaN", b"-Infinity", b"1e400", b"99999999999999999999"]))
def test_any_odd_body_comes_back_but_for_the_case_of_escapes(pieces: list[bytes], number: bytes) -> None:
    body = b'{"text":"%b","number":%b}' % (b"".join(pieces), number)
    readable = make_readable(body)
    if readable is None:
        assert json.loads(body)["text"] is not None
        return
    msgspec.json.decode(readable)
    assert restore_values(readable).lower() == body.lower()
