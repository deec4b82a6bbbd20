"""Legal requests that SDKs seldom make: they too leave as they came, and their answers come back as they were sent."""

import gzip
import json
import socket

import pytest
import replies
from client_link import ClientLink

CHAT = b'{"model": "gpt-test",\r\n\t"messages":[ {"role":"user","content":"\\u00fc \\ud83d half"} ], "n": 1.0e0}\n'
JSON = b"Content-Type: application/json\r\nAuthorization: Bearer sk-test-not-a-key\r\n"
ZIPPED = gzip.compress(CHAT, mtime=0)


def exchange(link: ClientLink, request: bytes) -> bytes:
    """Send bytes as they are on a connection of their own, read until the end."""
    with socket.create_connection(("127.0.0.1", link.recorder.port), timeout=30) as connection:
        head, _, body = request.partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\nHost: provider.test\r\nConnection: close\r\n\r\n" + body)
        answer = bytearray()
        while data := connection.recv(65536):
            answer += data
            if link.exchanges() and (got := link.exchanges()[0].response) and got.complete and got.status >= 200:
                break
    return bytes(answer)


def post(path: bytes, body: bytes, headers: bytes = JSON) -> bytes:
    """A POST with its length."""
    return b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (path, headers, len(body), body)


REQUESTS = {
    "odd-json": post(b"/v1/chat/completions", CHAT),
    "not-json": post(b"/v1/chat/completions", b"{not json"),
    "no-object": post(b"/v1/chat/completions", b"[1, 2]"),
    "not-a-number": post(b"/v1/chat/completions", b'{"model":"m","messages":[],"temperature":NaN}'),
    "not-utf-8": post(b"/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}'),
    "byte-order-mark": post(b"/v1/chat/completions", b"\xef\xbb\xbf" + CHAT),
    "repeated-keys": post(
        b"/v1/messages", b'{"model":"a","model":"claude-test","max_tokens":1,"messages":[],"messages":[]}'
    ),
    "empty-body": post(b"/v1/responses", b""),
    "no-content-type": post(b"/v1/chat/completions", CHAT, b""),
    "compressed": post(b"/v1/chat/completions", ZIPPED, JSON + b"Content-Encoding: gzip\r\n"),
    "chunked": b"POST /v1/chat/completions HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n" % JSON
    + b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (10, CHAT[:10], len(CHAT) - 10, CHAT[10:]),
    "repeated-headers": post(b"/v1/messages", CHAT, JSON + b"anthropic-beta: one\r\nanthropic-beta: two\r\nX-A: \r\n"),
    "latin-1-header": post(b"/v1/chat/completions", CHAT, JSON + b"X-Name: J\xfcrgen\r\n"),
    "odd-path": b"GET /v1/models/a%2Fb%20c//d;e=f/g?x=%7e&x=&&y HTTP/1.1\r\n\r\n",
    "patch": b"PATCH /v1/assistants/1 HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "put": b"PUT /v1/skills/1/content HTTP/1.1\r\nContent-Length: 3\r\n\r\n\x00\x01\x02",
    "delete-with-a-body": b"DELETE /v1/files/1 HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "options": b"OPTIONS /v1/chat/completions HTTP/1.1\r\nOrigin: http://app.test\r\n\r\n",
    "get-with-a-body": b"GET /v1/models HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("name", REQUESTS)
def test_an_unusual_request_is_passed_on_as_it_is(link: ClientLink, name: str) -> None:
    """The provider decides what it thinks of it."""
    answer = exchange(link, REQUESTS[name])
    assert answer.startswith(b"HTTP/1.1 ")
    assert len(link.upstream.received) == 1


def test_an_empty_answer_and_an_odd_status_are_passed_on(link: ClientLink) -> None:
    """A status without a name, no body, no content type."""
    link.upstream.rule = lambda request: replies.Reply(299)
    exchange(link, REQUESTS["odd-json"])
    assert link.exchanges()[0].response is not None


def test_a_stream_of_another_kind_is_passed_on(link: ClientLink) -> None:
    """JSON lines, chunk by chunk, in answer to a chat."""
    lines = tuple(json.dumps({"n": n}).encode() + b"\n" for n in range(3))
    kind = (("Content-Type", "application/x-ndjson"),)
    link.upstream.rule = lambda request: replies.Reply(200, kind, lines, chunked=True)
    exchange(link, REQUESTS["odd-json"])
