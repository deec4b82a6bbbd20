"""Created proxy keys on several workers and two proxies: each soon accepts a new key, and refuses a revoked one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.proxy_process import Proxy

ADMIN = "acc-admin-7Hk2Qp4RtZ"
CONFIG = """
server: {shutdown_seconds: 1, workers: 2}
admin_key: "${ADMIN}"
upstreams: {openai: {api_key: sk-of-the-operator}}
"""
SOON = 2.0
"""Seconds within which a revocation holds everywhere, as documented; a busy machine may need longer for the test's own
requests, so those that began before it are not counted."""


async def call(proxy: Proxy, method: str, path: str, key: str, **options: Any) -> httpx.Response:
    # A new connection each time, so that any worker may take it.
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        return await client.request(method, f"{proxy.url}{path}", headers=headers, **options)


async def statuses(proxies: list[Proxy], key: str, count: int = 6) -> set[int]:
    """The statuses of requests to all proxies, with connections of their own."""
    answers = [await call(proxy, "GET", "/accordion/sessions", key) for proxy in proxies for _ in range(count)]
    return {answer.status_code for answer in answers}


async def until_all(proxies: list[Proxy], key: str, status: int) -> None:
    async with asyncio.timeout(60):
        while await statuses(proxies, key) != {status}:
            await asyncio.sleep(0.1)


async def test_all_workers_of_all_proxies_know_a_key_and_its_revocation(start: Start, tmp_path: Path) -> None:
    pair = [start(CONFIG, ADMIN=ADMIN, ACCORDION_STORE=f"sqlite:///{tmp_path}/one.db") for _ in range(2)]
    one, two = pair
    made = (await call(one, "POST", "/accordion/keys", ADMIN, content=b'{"tenant": "research"}')).json()
    await until_all(pair, made["key"], 200)
    async with two.provider(CHAT.answers()) as provider, asyncio.timeout(60):
        # A worker that no request above reached may read the key a moment later.
        while (await call(two, "POST", CHAT.path, made["key"], content=CHAT.body("Hello."))).status_code != 200:
            await asyncio.sleep(0.1)
    assert provider.requests[0].header("authorization") == "Bearer sk-of-the-operator"
    assert made["key"].encode() not in provider.requests[0].raw
    assert (await call(two, "DELETE", f"/accordion/keys/{made['id']}", ADMIN)).status_code == 200
    revoked_at = time.monotonic()
    await asyncio.sleep(SOON)
    assert await statuses(pair, made["key"]) == {401}, time.monotonic() - revoked_at
    for proxy in pair:
        assert made["key"].split("-", 2)[2] not in proxy.log
        assert ADMIN not in proxy.log
