"""The comparison itself: what it lets pass and what it finds."""

from dataclasses import replace

import pytest
from wire import Exchange, Recording, Request, Response, alike, comparable, differences

ASKED = Request("POST", "/v1/chat/completions?a=b", (("host", "one"), ("content-type", "application/json")), b"{}")
EVENTS = (("content-type", "text/event-stream"), ("set-cookie", "a"), ("set-cookie", "b"))
SAID = Response(200, EVENTS, b"data: 1\n\n")
PAIR = Exchange(ASKED, SAID)


def test_the_host_the_framing_and_added_accordion_headers_may_differ() -> None:
    """What a proxy may change."""
    request = replace(ASKED, headers=(*ASKED.headers[1:], ("host", "two"), ("connection", "keep-alive")))
    added = replace(SAID, headers=(("x-accordion-decision", "pass"), *SAID.headers, ("transfer-encoding", "chunked")))
    assert differences([replace(PAIR, response=added)], [replace(PAIR, request=request)]) == []


@pytest.mark.parametrize(
    "other",
    [
        replace(PAIR, request=replace(ASKED, method="GET")),
        replace(PAIR, request=replace(ASKED, target="/v1/chat/completions?a=c")),
        replace(PAIR, request=replace(ASKED, body=b"{ }")),
        replace(PAIR, request=replace(ASKED, headers=(*ASKED.headers, ("x-more", "1")))),
        replace(PAIR, response=replace(SAID, status=201)),
        replace(PAIR, response=replace(SAID, body=b"data: 2\n\n")),
        replace(PAIR, response=replace(SAID, headers=(EVENTS[0], EVENTS[2], EVENTS[1]))),
        replace(PAIR, response=replace(SAID, headers=EVENTS[:2])),
        replace(PAIR, response=replace(SAID, complete=False)),
        replace(PAIR, response=None),
    ],
    ids=["method", "query", "body", "header", "status", "reply", "order", "lost", "unended", "unanswered"],
)
def test_any_other_change_is_found(other: Exchange) -> None:
    """Each part of a request and of a response."""
    assert differences([PAIR], [other])


def test_a_request_too_many_or_too_few_is_found() -> None:
    """A retry that the client did not ask for, and a request that never arrived."""
    assert differences([PAIR], [PAIR, PAIR])
    assert differences([PAIR, PAIR], [PAIR])


def test_a_cut_stream_may_end_in_one_error_event_and_nothing_else() -> None:
    """The one addition to a body."""
    cut = replace(PAIR, response=replace(SAID, complete=False))

    def got(more: bytes) -> list[Exchange]:
        return [replace(PAIR, response=replace(SAID, complete=False, body=SAID.body + more))]

    assert differences(got(b'data: {"error":{"message":"cut"}}\n\n'), [cut]) == []
    assert differences(got(b'event: error\ndata: {"type":"error","error":{}}\n\n'), [cut]) == []
    assert differences(got(b'data: {"choices":[]}\n\n'), [cut])
    assert differences(got(b"data: [DONE]\n\n"), [cut])


def test_random_ids_and_boundaries_do_not_count_between_two_runs() -> None:
    """Two runs of the same client."""

    def run(boundary: str, identity: str) -> Exchange:
        headers = (("content-type", f"multipart/form-data; boundary={boundary}"), ("x-id", identity))
        return comparable(Exchange(replace(ASKED, headers=headers, body=f"--{boundary}\r\n".encode()), SAID))

    one = run("aaa", "11111111-1111-1111-1111-111111111111")
    assert alike(one, run("bbb", "22222222-2222-2222-2222-222222222222"))
    assert not alike(one, run("bbb", "another"))


def test_pipelined_chunked_and_bodiless_messages_are_told_apart() -> None:
    """Two exchanges on one connection."""
    record = Recording()
    record.sent(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    record.sent(b"HEAD /b HTTP/1.1\r\nHost: x\r\n\r\n")
    record.down += b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 Gone\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
    one, two = record.exchanges()
    assert (one.request.body, one.response and one.response.status) == (b"abc", 204)
    assert (two.request.target, two.response and two.response.body) == ("/b", b"")
