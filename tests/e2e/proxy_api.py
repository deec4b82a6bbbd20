"""Calls of the proxy's own API and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from tests.proxy_process import Proxy


async def get_page(proxy: Proxy, path: str, **headers: str) -> httpx.Response:
    """One of the proxy's own pages, as its owner sees it."""
    headers = {"x-accordion-token": proxy.token, **headers}
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as client:
        return await client.get(f"{proxy.url}{path}", headers=headers)


async def get_session(proxy: Proxy, session_id: str | None, **headers: str) -> dict[str, Any]:
    """The API's view of a session."""
    reply = await get_page(proxy, f"/accordion/sessions/{session_id}", **headers)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def get_exchanges(proxy: Proxy, label: str) -> list[dict[str, Any]]:
    """The exchanges of the one session that a client labelled so; none while there is none."""
    listed = (await get_page(proxy, f"/accordion/sessions?label={label}")).json()["sessions"]
    found: list[dict[str, Any]] = (await get_session(proxy, listed[0]["id"]))["exchanges"] if listed else []
    return found


async def wait_until(true: Callable[[], Awaitable[Any]]) -> Any:
    """Waits until `true()` is; returns what it gave. The test's own time-out ends what never comes."""
    while not (found := await true()):
        await asyncio.sleep(0.02)
    return found


def sum_metric(page: str, name: str, **labels: str) -> float:
    """The sum of a metric's values with these labels; 0 where it is not there."""
    total = 0.0
    for line in page.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name and all(f'{key}="{wanted}"' in head for key, wanted in labels.items()):
            total += float(value)
    return total
