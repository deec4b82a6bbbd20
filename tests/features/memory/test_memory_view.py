"""The page's view of memories, which the feature adds."""

from __future__ import annotations

import httpx
import pytest

from accordion.composition.application import Application
from accordion.config.load import build
from tests.features.memory.memory_stores import memory, put
from tests.features.memory.running import running_memory

VIEW = "/accordion/pages/memories"


async def view(application: Application, path: str = VIEW) -> str:
    transport = httpx.ASGITransport(app=application.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as http:
        answer = await http.get(path)
    assert answer.status_code == 200
    return answer.text


async def test_without_memories_the_view_says_that_they_are_off() -> None:
    application = Application(build(b"{store: {url: 'memory://'}, memory: {enabled: false}}", {}, {}), {})
    try:
        html = await view(application)
    finally:
        await application.stop()
    assert "<code>memory.enabled</code> is false" in html
    assert 'aria-current="page">Memories</a>' in html


async def test_the_view_lists_memories_and_finds_one() -> None:
    pytest.importorskip("numpy")
    application = Application(build(b"store: {url: 'memory://'}", {}, {}), {})
    try:
        tenant = application.tenants.identify({}).tenant
        await put(running_memory(application).load().memories(), memory("The gate is red."), tenant=tenant)
        listed, found = await view(application), await view(application, f"{VIEW}?q=gate")
    finally:
        await application.stop()
    assert "The gate is red." in listed
    assert "The gate is red." in found
    assert "1 memory, newest first" in listed
