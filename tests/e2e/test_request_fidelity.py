"""A request that needs nothing leaves byte for byte as it came, whatever it holds."""

import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.protocol_samples import CHAT, EACH, ProtocolSamples
from tests.e2e.raw_client import Client, ask, connected
from tests.e2e.request_bodies import REQUESTS, VALUES
from tests.loopback import Answer, Loopback, Recorded, replies_bytes, replies_json
from tests.proxy_process import Proxy
from tests.tiers import examples

MANY = settings(
    max_examples=examples(40),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
REFUSED = {"error": {"message": "No.", "type": "invalid_request_error", "param": None, "code": None}}
OURS = (b"host", b"content-length")


@pytest.fixture
async def provider(proxy: Proxy) -> AsyncIterator[Loopback]:
    """Refuses everything, as a provider would."""
    refuses, refuses_head = replies_json(REFUSED, 400), replies_bytes(b"HTTP/1.1 400 No\r\nContent-Length: 9\r\n\r\n")

    async def script(request: Recorded, answer: Answer) -> None:
        await (refuses_head if request.method == "HEAD" else refuses)(request, answer)

    async with proxy.provider(script) as server:
        yield server


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    async with connected(proxy) as connection:
        yield connection


@EACH
@MANY
@given(body=REQUESTS | VALUES | st.binary(max_size=200))
async def test_any_body_arrives_byte_for_byte(
    client: Client, provider: Loopback, protocol: ProtocolSamples, body: bytes
):
    await client.ask("POST", protocol.path, [("Content-Type", "application/json")], body)
    reply = await client.reply()
    assert (reply.status, reply.body) == (400, json.dumps(REFUSED).encode())
    assert provider.requests[-1].body == body


# -- the head --------------------------------------------------------------------------------------------------------

TOKENS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_!#$%&'*+.^`|~", min_size=1, max_size=12)
VISIBLE = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0xFF, blacklist_characters="\x7f"), max_size=12
).filter(lambda text: not any(0x7F <= ord(char) < 0xA1 for char in text))
HEADERS = st.lists(st.tuples(TOKENS.map(lambda name: "z" + name), VISIBLE), max_size=12)


@MANY
@given(headers=HEADERS)
async def test_headers_arrive_in_their_order_and_as_often_as_they_were_sent(
    client: Client, provider: Loopback, headers: list[tuple[str, str]]
):
    credentials = [("authorization", "Bearer k"), ("anthropic-beta", "a,b"), ("openai-organization", "o")]
    await client.ask("POST", CHAT.path, [*credentials, *headers], b"{}")
    await client.reply()
    arrived = [(name, value) for name, value in provider.requests[-1].headers if name.lower() not in OURS]
    assert arrived == [(name.encode(), value.encode("latin-1")) for name, value in (*credentials, *headers)]


async def test_nothing_is_added_to_a_bare_request(proxy: Proxy, provider: Loopback):
    await ask(proxy, "GET", "/v1/models")
    assert [name.lower() for name in provider.requests[0].names] == ["host"]


PATH = st.lists(
    st.one_of(
        st.text("abcXYZ019-_.~!$&'()*+,;=:@", max_size=4),
        st.sampled_from(["%20", "%2F", "%2f", "%C3%A9", "%25", "%00"]),
    ),
    max_size=4,
).map("".join)
TARGETS = st.tuples(PATH.filter(lambda path: ".." not in path), st.none() | PATH.filter(bool)).map(
    lambda parts: f"/v1/files/x{parts[0]}" + (f"?{parts[1]}" if parts[1] is not None else "")
)


@MANY
@given(target=TARGETS, method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]))
async def test_method_path_and_query_arrive_as_they_were_written(
    client: Client, provider: Loopback, target: str, method: str
):
    await client.ask(method, target)
    reply = await client.reply()
    assert reply.status == 400, reply
    assert (provider.requests[-1].method, provider.requests[-1].target) == (method, target)


async def test_a_chunked_body_arrives_whole(proxy: Proxy, provider: Loopback):
    body = CHAT.body("In pieces.")
    async with connected(proxy) as client:
        await client.ask("POST", CHAT.path, [("Transfer-Encoding", "chunked")])
        for at in range(0, len(body), 7):
            await client.send(b"%x\r\n%b\r\n" % (len(body[at : at + 7]), body[at : at + 7]))
        await client.send(b"0\r\n\r\n")
        reply = await client.reply()
    assert reply.status == 400
    assert provider.requests[0].body == body


async def test_a_client_that_waits_to_be_told_to_go_on_is_told_so(proxy: Proxy, provider: Loopback):
    body = CHAT.body("Expect.")
    async with connected(proxy) as client:
        await client.send(client.head_of("POST", CHAT.path, [("Expect", "100-continue")], len(body)))
        assert (await client.head()).status == 100
        await client.send(body)
        assert (await client.reply()).status == 400
    assert provider.requests[0].body == body
