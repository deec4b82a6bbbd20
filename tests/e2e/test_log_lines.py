"""No line of the log, at its most talkative, holds what was said or a credential."""

import os

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, PROTOCOLS
from tests.e2e.proxy_api import get_page
from tests.e2e.raw_client import ask, connected, post
from tests.loopback import Answer, Recorded, replies_bytes, replies_json
from tests.proxy_process import Proxy

SECRETS = {
    "BEARER": "plain-bearer-7Gk2Qx",
    "API_KEY": "plain-api-key-3Hm8Wz",
    "PROXY_KEY": "plain-proxy-key-6Jn4Vy",
    "MODEL_KEY": "plain-model-key-2Lp9Uc",
    "COOKIE": "plain-cookie-5Rt1Sd",
    "QUERY": "plain-query-8Fb3Ea",
}
SAID = "purple-giraffe-said-so"
CONFIG = """
server: {shutdown_seconds: 1}
proxy_keys: [{id: one, key: "${PROXY_KEY}"}]
model_list:
  - model_name: smart
    litellm_params: {model: openai/gpt-4o, api_base: "{upstream}/v1", api_key: "${MODEL_KEY}"}
"""
HEADERS = [
    ("Authorization", f"Bearer {SECRETS['BEARER']}"),
    ("x-api-key", SECRETS["API_KEY"]),
    ("x-accordion-key", SECRETS["PROXY_KEY"]),
    ("Cookie", f"session={SECRETS['COOKIE']}"),
]


@pytest.fixture(scope="module", params=["debug,text", "debug,json"])
def talkative(request: pytest.FixtureRequest, start: Start) -> Proxy:
    return start(CONFIG, ACCORDION_LOG=request.param, PROXY_KEY=SECRETS["PROXY_KEY"], MODEL_KEY=SECRETS["MODEL_KEY"])


def assert_clean(proxy: Proxy) -> None:
    for line in proxy.log.splitlines():
        assert SAID not in line
        for secret in SECRETS.values():
            assert secret not in line
    assert "Traceback" not in proxy.log


async def cut(request: Recorded, answer: Answer) -> None:
    await answer.head(
        200, [("Content-Type", "text/event-stream"), ("Set-Cookie", f"a={SECRETS['COOKIE']}")], chunked=True
    )
    await answer.chunk(CHAT.events(SAID)[0])
    await answer.cut()


async def test_requests_of_every_kind_and_fate(talkative: Proxy):
    bodies = [protocol.body(SAID, stream=stream) for protocol in PROTOCOLS for stream in (False, True)]
    paths = [protocol.target(stream=stream) for protocol in PROTOCOLS for stream in (False, True)]
    scripts = [
        CHAT.answers(SAID),
        cut,
        replies_json({"error": {"message": SAID}}, 400),
        replies_bytes(b"nonsense " + SAID.encode() + b"\r\n\r\n", close=True),
    ]
    for script in scripts:
        async with talkative.provider(script):
            for path, body in zip(paths, bodies, strict=True):
                await post(talkative, f"{path}{'&' if '?' in path else '?'}key={SECRETS['QUERY']}", body, *HEADERS)
    for path, body in zip(paths, bodies, strict=True):
        reply = await post(talkative, f"{path}{'&' if '?' in path else '?'}key={SECRETS['QUERY']}", body, *HEADERS)
        named = reply.header("x-request-id") or reply.header("request-id")
        assert reply.status == 502
        assert named is not None
        assert any(named in line and "upstream_unreachable" in line for line in talkative.log.splitlines())
    smart = CHAT.body(SAID).replace(CHAT.model.encode(), b"smart")
    async with talkative.provider(CHAT.answers(SAID)):
        for headers in (HEADERS, HEADERS[:1], [("Authorization", f"Bearer {SECRETS['PROXY_KEY']}")]):
            await post(talkative, CHAT.path, smart, *headers)
        for body in (b"\xff" + SAID.encode(), b"[" * 3000, b'{"model": "smart", "messages": "' + SAID.encode()):
            await post(talkative, CHAT.path, body, *HEADERS)
        await ask(
            talkative, "POST", "/v1/files", [*HEADERS, ("Content-Type", "text/plain")], SAID.encode() + os.urandom(99)
        )
        async with connected(talkative) as client:
            await client.send(
                b"GET /v1/" + SECRETS["QUERY"].encode() + b" HTTP/9.9\r\nbad header " + SAID.encode() + b"\r\n\r\n"
            )
            await client.closed()
    await get_page(
        talkative, f"/accordion/sessions?key={SECRETS['QUERY']}", authorization=f"Bearer {SECRETS['PROXY_KEY']}"
    )
    assert_clean(talkative)


async def test_sockets(talkative: Proxy):
    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    url = f"ws://127.0.0.1:{talkative.port}/v1/realtime?key={SECRETS['QUERY']}"
    async with (
        serve(echo, "127.0.0.1", talkative.upstream_port),
        connect(url, proxy=None, additional_headers=HEADERS) as socket,
    ):
        await socket.send(SAID)
        assert await socket.recv() == SAID
        await socket.send(SAID.encode())
        assert await socket.recv() == SAID.encode()
    assert_clean(talkative)
