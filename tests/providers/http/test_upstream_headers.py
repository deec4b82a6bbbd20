"""Which headers go on, and what is put in the place of the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from accordion.providers.http.client import HOP_BY_HOP, end_to_end, outgoing_headers

TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789-_", min_size=1, max_size=12).map(str.encode)
VALUE = st.binary(max_size=20).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"").strip())
ANY = st.lists(st.tuples(st.one_of(TOKEN, st.sampled_from(sorted(HOP_BY_HOP)).map(bytes.title)), VALUE)).map(tuple)
FRAMING = {b"host", b"content-length", b"transfer-encoding"}


@given(ANY)
def test_hop_by_hop_headers_are_removed_and_all_others_stay_exactly(headers):
    named = {o.strip().lower() for n, v in headers if n.lower() == b"connection" for o in v.split(b",")}
    expected = tuple(h for h in headers if h[0].lower() not in HOP_BY_HOP and h[0].lower() not in named)
    assert end_to_end(headers) == expected


def test_headers_named_by_connection_are_removed_anywhere():
    headers = ((b"X-Secret", b"1"), (b"Connection", b"close, x-secret ,X-Other"), (b"x-other", b"2"), (b"Keep", b"3"))
    assert end_to_end(headers) == ((b"Keep", b"3"),)


def test_repeated_headers_all_stay():
    headers = ((b"Set-Cookie", b"a=1"), (b"X", b"y"), (b"set-cookie", b"b=2"), (b"Set-Cookie", b"a=1"))
    assert end_to_end(headers) == headers


@given(ANY, st.integers(0, 10**9))
def test_a_body_of_known_size_has_its_size_as_its_only_length(headers, size):
    result, declared = outgoing_headers(headers, "example.com", "POST", size)
    assert [v for n, v in result if n.lower() == b"content-length"] == [b"%d" % size]
    assert declared == size
    assert not [n for n, _ in result if n.lower() == b"transfer-encoding"]
    assert [h for h in result if h[0].lower() not in FRAMING] == [
        h for h in end_to_end(headers) if h[0].lower() not in FRAMING
    ]


def test_host_and_length_are_replaced_in_their_place():
    headers = ((b"A", b"1"), (b"HOST", b"proxy:8787"), (b"B", b"2"), (b"content-length", b"3"), (b"C", b"4"))
    assert outgoing_headers(headers, "api.example.com", "POST", 12)[0] == (
        (b"A", b"1"),
        (b"HOST", b"api.example.com"),
        (b"B", b"2"),
        (b"content-length", b"12"),
        (b"C", b"4"),
    )


def test_a_request_without_host_gets_one_in_front():
    assert outgoing_headers(((b"A", b"1"),), "h", "GET", 0)[0] == ((b"Host", b"h"), (b"A", b"1"))


def test_a_get_without_a_body_gets_no_length_and_a_post_without_one_says_zero():
    assert outgoing_headers(((b"Host", b"h"),), "h", "GET", 0)[0] == ((b"Host", b"h"),)
    assert outgoing_headers(((b"Host", b"h"),), "h", "POST", 0)[0] == ((b"Host", b"h"), (b"Content-Length", b"0"))


def test_a_body_in_pieces_keeps_the_clients_length_and_is_chunked_without_one():
    named = ((b"Host", b"h"), (b"Content-Length", b"7"))
    assert outgoing_headers(named, "h", "POST", None) == (named, 7)
    chunked = ((b"Host", b"h"), (b"transfer-encoding", b"chunked"))
    assert outgoing_headers(chunked, "h", "POST", None) == (((b"Host", b"h"), (b"Transfer-Encoding", b"chunked")), None)


def test_a_length_that_is_no_number_is_not_passed_on():
    headers = ((b"Host", b"h"), (b"Content-Length", b"+7"))
    assert outgoing_headers(headers, "h", "POST", None)[0] == ((b"Host", b"h"), (b"Transfer-Encoding", b"chunked"))


FRAMED = st.sampled_from(
    [(b"Host", b"proxy"), (b"host", b"other"), (b"Content-Length", b"5"), (b"content-length", b"x")]
)
CONNECTIONS = st.sampled_from([b"keep-alive", b"Close", b"", b"x-secret", b"close, host", b"content-length"])
SAID = st.one_of(FRAMED, CONNECTIONS.map(lambda value: (b"connection", value)), st.tuples(TOKEN, VALUE))


@given(st.lists(st.one_of(SAID, st.just((b"X-Secret", b"1"))), max_size=9).map(tuple), st.integers(0, 99))
def test_a_replaced_header_does_not_depend_on_its_neighbours(headers, size):
    own = {b"host": b"example.com", b"content-length": b"%d" % size}
    expected, replaced = list[tuple[bytes, bytes]](), set[bytes]()
    for name, value in end_to_end(headers):
        if name.lower() not in replaced:
            expected.append((name, own.get(name.lower(), value)))
        replaced.update({name.lower()} & own.keys())
    if b"host" not in replaced:
        expected.insert(0, (b"Host", own[b"host"]))
    if b"content-length" not in replaced:
        expected.append((b"Content-Length", own[b"content-length"]))
    assert outgoing_headers(headers, "example.com", "POST", size) == (tuple(expected), size)
