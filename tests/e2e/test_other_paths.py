"""Every path below /v1 that is not read passes through as it is, in both directions and without waiting."""

import asyncio
import os

import pytest

from tests.e2e.protocol_samples import CHAT, KEY
from tests.e2e.raw_client import Client, ask, connected, post
from tests.loopback import Answer, Recorded, replies_bytes, replies_json
from tests.proxy_process import Proxy

PASSED = [
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/gpt-4o", None),
    ("POST", "/v1/embeddings", b'{"model": "e", "input": "x"}'),
    ("GET", "/v1/responses/resp_1?include[]=a", None),
    ("DELETE", "/v1/responses/resp_1", None),
    ("POST", "/v1/responses/resp_1/cancel", b""),
    ("POST", "/v1/responses/compact", b'{"model": "gpt-5.2", "input": []}'),
    ("POST", "/v1/responses/input_tokens", b'{"model": "gpt-5.2", "input": "x"}'),
    ("POST", "/v1/messages/count_tokens", b'{"model": "claude-haiku-4-5", "messages": []}'),
    ("POST", "/v1/messages/batches", b'{"requests": []}'),
    ("GET", "/v1/messages/batches/b_1/results", None),
    ("PUT", "/v1/files/f_1", b"\x00\xff"),
    ("PATCH", "/v1/assistants/a", b"{}"),
    ("HEAD", "/v1/files/f_1", None),
    ("OPTIONS", "/v1/chat/completions", None),
    ("GET", "/v1/chat/completions?limit=2", None),
    ("DELETE", "/v1/messages", None),
    ("GET", "/v1", None),
]


@pytest.mark.parametrize(("method", "target", "body"), PASSED, ids=[f"{m} {t}" for m, t, _ in PASSED])
async def test_it_passes_untouched(proxy: Proxy, method: str, target: str, body: bytes | None):
    answer = b'{"ok" : true}'
    head = b"HTTP/1.1 207 Odd\r\nContent-Type: application/json\r\nContent-Length: %d\r\nX-Own: 1\r\n\r\n" % len(answer)
    async with proxy.provider(replies_bytes(head + (b"" if method == "HEAD" else answer))) as provider:
        reply = await ask(proxy, method, target, [("Authorization", f"Bearer {KEY}")], body)
    request = provider.requests[0]
    assert (request.method, request.target, request.body) == (method, target, body or b"")
    assert request.header("authorization") == f"Bearer {KEY}"
    assert (reply.status, reply.header("x-own")) == (207, "1")
    assert reply.header("content-length") == str(len(answer))
    assert reply.body == (b"" if method == "HEAD" else answer)
    is_counted = target in ("/v1/responses/input_tokens", "/v1/messages/count_tokens")
    assert any(name.startswith(b"x-accordion-") for name, _ in reply.headers) is is_counted


@pytest.mark.parametrize("target", ["/alpha/notes?limit=2", "/alpha/history/a%2Fb", "/models?client_version=1"])
async def test_what_is_below_codex_s_own_path_passes_to_the_upstream(proxy: Proxy, target: str):
    async with proxy.provider(replies_json({"ok": True})) as provider:
        reply = await ask(proxy, "GET", f"/backend-api/codex{target}", [("Authorization", f"Bearer {KEY}")])
    assert (provider.requests[0].target, reply.status) == (f"/v1{target}", 200)


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
async def test_a_large_upload_goes_on_as_it_comes(proxy: Proxy, chunked: bool):
    """The provider has the first piece before the client has sent the second."""
    piece, count = os.urandom(1 << 20), 20
    first = asyncio.Event()

    async def script(request: Recorded, answer: Answer) -> None:
        seen = b""
        while piece[:1000] not in seen:
            seen += await answer.receive(65536)
        first.set()
        left = (b"0\r\n\r\n" if chunked else piece[-1000:]) * 1
        total = len(seen)
        while total < count << 20 or not seen.endswith(left):
            seen = seen[-2000:] + (more := await answer.receive(1 << 20))
            total += len(more)
        await answer.head(200, length=2)
        await answer.send(b"ok")
        await answer.close()

    async def send(client: Client, data: bytes) -> None:
        await client.send(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)

    async with proxy.provider(script, eager=True) as provider, connected(proxy) as client:
        framing = [("Transfer-Encoding", "chunked")] if chunked else []
        await client.send(client.head_of("POST", "/v1/files", framing, None if chunked else count << 20))
        await send(client, piece)
        await first.wait()
        for _ in range(count - 1):
            await send(client, piece)
        if chunked:
            await client.send(b"0\r\n\r\n")
        reply = await client.reply()
    assert reply.body == b"ok"
    request = provider.requests[0]
    assert request.header("transfer-encoding" if chunked else "content-length") == (
        "chunked" if chunked else str(count << 20)
    )


async def test_what_is_not_below_v1_is_not_forwarded(proxy: Proxy):
    async with proxy.provider(replies_json({})) as provider:
        reply = await post(proxy, "/chat/completions", b"{}")
    assert reply.status == 404
    assert CHAT.error_of(reply.body)["code"] == "not_found"
    assert provider.requests == []


async def test_a_repeated_version_is_answered_with_the_right_base_url(proxy: Proxy):
    """Anthropic's SDK appends /v1/messages to a base URL that ends in /v1 by mistake."""
    async with proxy.provider(replies_json({})) as provider:
        reply = await ask(proxy, "POST", "/v1/v1/messages", [("Content-Type", "application/json")], b"{}")
    assert provider.requests == []
    assert reply.status == 404
    assert "The base URL is this address with /v1 for OpenAI clients and without a path for Anthropic's" in (
        reply.body.decode()
    )
