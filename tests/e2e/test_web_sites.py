"""Requests that reach a proxy on a loopback address from elsewhere get nothing that is stored.

Web sites send them through a browser on this machine, and anybody through another proxy.
"""

import httpx
import pytest

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


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_nothing_stored_goes_to_a_web_site_or_through_another_proxy(proxy: Proxy, method: str, path: str):
    """A name may be made to lead to this machine, which is then of the same origin to the browser. Nor does the token
    of the proxy's owner help behind another proxy: the answer would go through that one."""
    own, rebound = f"127.0.0.1:{proxy.port}", f"evil.example:{proxy.port}"
    refused = [
        ({"origin": "http://evil.example"}, "foreign_origin"),
        ({"host": rebound}, "foreign_origin"),
        ({"host": rebound, "origin": f"http://{rebound}"}, "foreign_origin"),
        ({"x-forwarded-for": "203.0.113.7"}, "proxy_keys_required"),
        ({"forwarded": "for=203.0.113.7", "host": "ai.example"}, "proxy_keys_required"),
        ({"host": own, "via": "1.1 x", "x-accordion-token": proxy.token}, "proxy_keys_required"),
    ]
    async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=proxy.url) as client:
        for headers, code in refused:
            reply = await client.request(method, path, headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, code), headers
        reply = await client.request(method, path, headers={"host": f"localhost:{proxy.port}"})
    assert reply.status_code != 403
