"""A real nginx in front of a started proxy: what its callers may see, and how streams pass."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.conftest import Start
from tests.deploy.conftest import DEPLOY, program
from tests.e2e.protocol_samples import EACH, KEY, ProtocolSamples
from tests.e2e.proxy_api import get_page, wait_until
from tests.loopback import Answer, Recorded, replies_json
from tests.proxy_process import Proxy, held_port

_PATIENCE = 60.0
_CONFIG = """
daemon off;
master_process off;
pid nginx.pid;
error_log error.log;
events {}
http {
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  %(maps)s
  server { listen 127.0.0.1:%(port)d; %(location)s }
}
"""
_ADDRESS = "127.0.0.1:8787"
DEFAULTS = f"location / {{ proxy_pass http://{_ADDRESS}; }}"
HTTP_1_1 = f"location / {{ proxy_pass http://{_ADDRESS}; proxy_http_version 1.1; proxy_set_header X-Real-IP ::1; }}"
_PAGE = (DEPLOY.parent / "docs" / "deployment.md").read_text("utf-8")
DOCUMENTED = _PAGE.partition("```nginx\n")[2].partition("```")[0]

STORED = (
    "/accordion/", "/accordion/pages/events", "/accordion/sessions", "/accordion/export", "/accordion/memory/export",
    "/metrics",
)  # fmt: skip

Nginx = Callable[..., str]


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    """Starts an nginx in front of a proxy: `nginx(proxy, "location / {…}")` returns its URL."""
    command = program("nginx")
    with ExitStack() as stack:

        def start_nginx(proxy: Proxy, config: str = DEFAULTS) -> str:
            port = stack.enter_context(held_port())
            folder = tmp_path / str(port)
            folder.mkdir()
            maps, _, location = config.rpartition("\n\n")
            location = location.replace(_ADDRESS, f"127.0.0.1:{proxy.port}")
            text = _CONFIG % {"port": port, "maps": maps, "location": location}
            (folder / "nginx.conf").write_text(text, "utf-8")
            running = subprocess.Popen([command, "-p", folder, "-c", "nginx.conf", "-e", "error.log"])
            stack.callback(running.wait, _PATIENCE)
            stack.callback(running.terminate)
            _wait_for(port, running)
            return f"http://127.0.0.1:{port}"

        yield start_nginx


def _wait_for(port: int, running: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), _PATIENCE).close()
        except OSError:
            assert running.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        else:
            return


def browser(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=_PATIENCE)


# -- stored data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [DEFAULTS, HTTP_1_1, DOCUMENTED], ids=["defaults", "HTTP/1.1", "documented"])
async def test_without_proxy_keys_nginx_shows_nobody_what_is_stored(start: Start, nginx: Nginx, config: str) -> None:
    proxy = start("memory: {enabled: true}\n")
    async with proxy.provider(replies_json({"choices": []})), browser(nginx(proxy, config)) as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "A secret of mine."}]}
        asked = await client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"})
        assert asked.status_code == 200
        session = asked.headers["x-accordion-session"]
        again = await client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"})
        assert again.headers["x-accordion-session"] == session
        for path in (*STORED, f"/accordion/sessions/{session}/sent"):
            for more in ({}, {"x-accordion-token": proxy.token}, {"authorization": f"Bearer {KEY}"}):
                answer = await client.get(path, headers=more)
                assert (answer.status_code, path) == (403, path)
                assert "Configure proxy_keys" in answer.text
                assert session not in answer.text
        assert (await client.post("/mcp", json={})).status_code == 403
    # This machine's own tenant has none of it.
    assert (await get_page(proxy, "/accordion/sessions")).json()["sessions"] == []
    assert proxy.log.count("a request came through another proxy") == 1


async def test_with_proxy_keys_each_caller_sees_its_own_through_nginx(start: Start, nginx: Nginx) -> None:
    proxy = start(_KEYED)
    async with proxy.provider(replies_json({"choices": []})), browser(nginx(proxy)) as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
        await client.post("/v1/chat/completions", json=body, headers=_RED)

        async def is_listed() -> bool:
            return bool((await client.get("/accordion/sessions", headers=_RED)).json()["sessions"])

        await wait_until(is_listed)
        assert (await client.get("/accordion/sessions", headers=_BLUE)).json()["sessions"] == []
        assert (await client.get("/accordion/sessions")).status_code == 401


_KEYED = """
proxy_keys: [{id: red, key: key-of-red}, {id: blue, key: key-of-blue}]
upstreams: {openai: {api_key: sk-own}}
"""
_RED, _BLUE = ({"authorization": f"Bearer key-of-{name}"} for name in ("red", "blue"))


# -- streams ---------------------------------------------------------------------------------------------------------


@EACH
async def test_each_event_arrives_before_the_provider_sends_the_next(
    proxy: Proxy, nginx: Nginx, protocol: ProtocolSamples
) -> None:
    events, read = protocol.events("A text of many words."), asyncio.Semaphore(0)

    async def send_in_step(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        for event in events:
            await answer.chunk(event)
            await read.acquire()
        await answer.last_chunk()

    expected, received = b"".join(events), b""
    ends = [len(b"".join(events[: count + 1])) for count in range(len(events))]
    async with asyncio.timeout(_PATIENCE), proxy.provider(send_in_step), browser(nginx(proxy)) as client:
        target, body = protocol.target(stream=True), protocol.body("Hello.", stream=True)
        async with client.stream("POST", target, content=body) as answer:
            async for piece in answer.aiter_raw():
                received += piece
                while ends and len(received) >= ends[0]:
                    ends.pop(0)
                    read.release()
    assert received == expected
    assert ends == []


async def test_an_open_page_hears_of_a_request_at_once(start: Start, nginx: Nginx) -> None:
    proxy = start(_KEYED)
    async with proxy.provider(replies_json({"choices": []})), browser(nginx(proxy, DOCUMENTED)) as client:
        form, own = {"key": "key-of-red"}, {"sec-fetch-site": "same-origin"}
        signed_in = await client.post("/accordion/sign-in", data=form, headers=own)
        assert signed_in.status_code == 303
        async with asyncio.timeout(_PATIENCE), client.stream("GET", "/accordion/pages/events") as feed:
            lines = feed.aiter_lines()
            assert (await anext(lines)).startswith("retry:")
            body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
            asked = await client.post("/v1/chat/completions", json=body, headers=_RED)
            async for line in lines:
                if line.startswith("data:"):
                    break
        assert json.loads(line.removeprefix("data:"))["sessions"] == [asked.headers["x-accordion-session"]]
