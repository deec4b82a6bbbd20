"""Limits of proxy keys on several workers: the official SDKs raise their own errors, and counts survive a restart."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.proxy_process import Proxy
from tests.valkey import running_valkey

ASK = [{"role": "user", "content": "Say hello."}]
CONFIG = """
server: {shutdown_seconds: 5, workers: 2}
store: {timeout_seconds: 20, write_timeout_seconds: 20}
proxy_keys:
  - {id: minute, key: "${KEY}-minute", requests_per_minute: 12}
  - {id: tokens, key: "${KEY}-tokens", tokens_per_day: 1000}
  - {id: dollars, key: "${KEY}-dollars", dollars_per_day: 0.001}
upstreams: {openai: {api_key: sk-own}, anthropic: {api_key: sk-ant-own}}
prices: {models: {gpt-5: {input: 3, output: 15}}}
"""
KEY = "acc-limited-5fKq72"


class Attempts:
    """HTTP clients for the SDKs that count their requests, each on a connection of its own."""

    def __init__(self) -> None:
        self.count = 0
        hooks = {"request": [self._count]}
        self.http, self.http2 = (
            library.AsyncClient(
                trust_env=False, limits=library.Limits(max_keepalive_connections=0), event_hooks=hooks, timeout=60
            )
            for library in (httpx, httpx2)
        )

    async def _count(self, _: Any) -> None:
        self.count += 1


def openai_sdk(proxy: Proxy, key: str, attempts: Attempts, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{proxy.url}/v1", api_key=f"{KEY}-{key}", max_retries=retries, http_client=attempts.http
    )


@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
async def test_a_minute_is_counted_exactly_over_two_proxies_with_two_workers_each(
    start: Start, tmp_path: Path, kind: str
) -> None:
    async def check(store: str) -> None:
        proxies = [start(CONFIG, KEY=KEY, ACCORDION_STORE=store) for _ in range(2)]
        attempts = Attempts()
        async with proxies[0].provider(CHAT.answers()), proxies[1].provider(CHAT.answers()):
            sdks = [openai_sdk(proxy, "minute", attempts) for proxy in proxies]
            # All requests belong to one minute of the clock.
            left = 60.0 - time.time() % 60.0
            await asyncio.sleep(left if left < 20.0 else 0.0)
            answers = await asyncio.gather(
                *(sdks[number % 2].chat.completions.create(model="gpt-5", messages=ASK) for number in range(30)),
                return_exceptions=True,
            )
        refused = [answer for answer in answers if isinstance(answer, openai.RateLimitError)]
        assert len(refused) + sum(not isinstance(answer, BaseException) for answer in answers) == 30
        assert {answer.code for answer in refused} == {"rate_limit_exceeded"}
        assert all(1 <= int(answer.response.headers["retry-after"]) <= 60 for answer in refused)
        assert len(refused) == 18

    if kind == "sqlite":
        await check(f"sqlite:///{tmp_path}/one.db")
        return
    with running_valkey(tmp_path) as server:
        await check(server.url)
