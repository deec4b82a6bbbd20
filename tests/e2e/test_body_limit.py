"""A body over the limit is refused with 413, in the client's own words."""

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, EACH, MESSAGES, ProtocolSamples
from tests.e2e.raw_client import connected, post
from tests.loopback import compress, replies_json
from tests.proxy_process import Proxy

LIMIT = 200_000


@pytest.fixture(scope="module")
def small(start: Start) -> Proxy:
    """A proxy that takes little."""
    return start(f"server: {{max_body_bytes: {LIMIT}, shutdown_seconds: 1}}\n")


def padded(size: int) -> bytes:
    return CHAT.body("x" * (size - len(CHAT.body(""))))


@EACH
async def test_one_byte_more_is_refused_before_it_is_sent(small: Proxy, protocol: ProtocolSamples):
    """The head alone says it: the client need not send the body to be told."""
    async with small.provider(protocol.answers()) as provider, connected(small) as client:
        await client.send(client.head_of("POST", protocol.path, [], LIMIT + 1))
        reply = await client.reply()
    error = protocol.error_of(reply.body)
    assert reply.status == 413
    assert f"{LIMIT:,}" in error["message"]
    assert "max_body_bytes" in error["message"]
    assert "request_too_large" in reply.body.decode().lower()
    assert (reply.header("request-id" if protocol is MESSAGES else "x-request-id") or "").startswith("req_")
    assert provider.requests == []


async def test_a_body_of_unknown_size_is_refused_once_it_is_too_large(small: Proxy):
    async with small.provider(CHAT.answers()) as provider, connected(small) as client:
        await client.ask("POST", CHAT.path, [("Transfer-Encoding", "chunked")])
        piece = b"x" * 50_000
        for _ in range(5):
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        reply = await client.reply()
    assert reply.status == 413
    assert provider.requests == []


async def test_after_a_refusal_the_connection_is_usable_or_closed(small: Proxy):
    body = padded(LIMIT + 1)
    async with small.provider(CHAT.answers()), connected(small) as client:
        await client.ask("POST", CHAT.path, [], body)
        assert (await client.reply()).status == 413
        try:
            await client.ask("POST", CHAT.path, [], CHAT.body("Smaller."))
            reply = await client.reply()
        except ConnectionError:
            return
        assert reply.status == 200


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
async def test_an_upload_that_is_passed_on_is_limited_too(small: Proxy, chunked: bool):
    piece = b"x" * 50_000
    async with small.provider(replies_json({})) as provider, connected(small) as client:
        framing = [("Transfer-Encoding", "chunked")] if chunked else []
        await client.send(client.head_of("POST", "/v1/files", framing, None if chunked else 5 * len(piece)))
        if chunked:
            for _ in range(5):
                await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        reply = await client.reply()
    assert reply.status == 413
    assert CHAT.error_of(reply.body)["code"] == "request_too_large"
    assert not any(request.complete for request in provider.requests)
    if not chunked:
        assert provider.connections == 0


async def test_what_unpacks_to_more_than_the_limit_is_not_read_but_passes(small: Proxy):
    """The limit is one of what is received; what cannot be read is forwarded as it came."""
    body = compress(padded(10 * LIMIT), "gzip")
    async with small.provider(CHAT.answers()) as provider:
        reply = await post(small, CHAT.path, body, ("Content-Encoding", "gzip"))
    assert (reply.status, provider.requests[0].body) == (200, body)
    assert reply.header("x-accordion-tokens") is None
