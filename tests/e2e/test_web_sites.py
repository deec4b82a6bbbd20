"""Requests that reach a proxy on a loopback address from elsewhere get nothing that is stored.

Web sites send them through a browser on this machine, and anybody through another proxy.
"""

import httpx
import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.e2e.proxy_api import get_page, wait_until
from tests.proxy_process import Proxy

ROUTES = [
    ("GET", "/accordion/models"),
    ("GET", "/accordion/sessions"),
    ("GET", "/accordion/sessions/any"),
    ("GET", "/accordion/sessions/any/tree"),
    ("POST", "/accordion/sessions/any/compact"),
    ("GET", "/accordion/sessions/any/pins"),
    ("PUT", "/accordion/sessions/any/pins"),
    ("DELETE", "/accordion/sessions/any/pins"),
    ("DELETE", "/accordion/sessions/any"),
    ("GET", "/accordion/sessions/any/original"),
    ("GET", "/accordion/sessions/any/export"),
    ("GET", "/accordion/artifacts?session=any"),
    ("GET", "/accordion/artifacts/art_0123456789ab"),
    ("GET", "/accordion/export"),
    ("DELETE", "/accordion/archive"),
    ("POST", "/accordion/memory/search"),
    ("GET", "/accordion/memory/export"),
    ("POST", "/accordion/memory/import"),
    ("DELETE", "/accordion/memory"),
    ("POST", "/mcp"),
    ("GET", "/metrics"),
]
EVIL = "http://evil.example"


async def send_request(proxy: Proxy, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return await client.request(method, f"{proxy.url}{path}", headers=headers)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_nothing_that_is_kept_is_a_web_sites(proxy: Proxy, method: str, path: str):
    """Neither to a page of another site, nor to one whose name was made to lead to this machine, which is then of the
    same origin to the browser."""
    rebound = f"evil.example:{proxy.port}"
    for headers in ({"origin": EVIL}, {"host": rebound}, {"host": rebound, "origin": f"http://{rebound}"}):
        reply = await send_request(proxy, method, path, headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "foreign_origin"), headers
    assert (await send_request(proxy, method, path, {"host": f"localhost:{proxy.port}"})).status_code != 403


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_nothing_stored_goes_out_through_another_proxy(proxy: Proxy, method: str, path: str):
    """Not with the token of the proxy's owner either: whoever put it there, the answer goes through the other proxy."""
    own_host = f"127.0.0.1:{proxy.port}"
    for headers in (
        {"x-forwarded-for": "203.0.113.7"},
        {"forwarded": "for=203.0.113.7", "host": "ai.example"},
        {"host": own_host, "via": "1.1 x", "x-accordion-token": proxy.token, "authorization": "Bearer sk-own"},
    ):
        reply = await send_request(proxy, method, path, headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "proxy_keys_required"), headers
        assert "Configure proxy_keys" in reply.json()["error"]["message"]


async def test_what_a_page_asks_a_model_goes_on_and_is_not_of_the_people_at_this_machine(start: Start):
    proxy = start()
    async with proxy.provider(CHAT.answers()) as upstream, httpx.AsyncClient(trust_env=False, timeout=30) as client:
        for headers in ({"origin": EVIL}, {"origin": "null"}, {"origin": "http://localhost:3000"}, {}):
            url, body = f"{proxy.url}{CHAT.path}", CHAT.body("What do you know of me?")
            assert (await client.post(url, content=body, headers=headers)).status_code == 200
        assert len(upstream.requests) == 4

    async def requests() -> int:
        listed = (await get_page(proxy, "/accordion/sessions")).json()["sessions"]
        return sum(entry["totals"]["requests"] for entry in listed)

    async def counted() -> bool:
        page = (await get_page(proxy, "/metrics")).text
        return "accordion_requests_total" in page and await requests() >= 2

    await wait_until(counted)
    assert await requests() == 2


async def test_a_cloud_is_not_asked_in_this_machines_name_for_a_page(start: Start):
    proxy = start("model_list: [{model_name: cloud, litellm_params: {model: bedrock/x, api_base: '{upstream}'}}]")
    body = {"model": "cloud", "messages": [{"role": "user", "content": "Hello"}]}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        reply = await client.post(f"{proxy.url}{CHAT.path}", json=body, headers={"origin": EVIL})
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
