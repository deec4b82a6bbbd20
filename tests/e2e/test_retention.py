"""What is kept stays within its bounds in the running proxy, and that it does is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from accordion.composition.application import Application
from tests.e2e.store_workers import api, ask, request_with_name, workers

pytestmark = pytest.mark.rest  # each test starts processes, or waits for real time


ADMIN = "acc-admin-7Hk2Qp4RtZ"
KEYED = """
admin_key: "${C:-acc-admin-7Hk2Qp4RtZ}"
proxy_keys: [{id: one, key: "${A:-acc-one-5fKq72LmZ}"}, {id: two, key: "${B:-acc-two-9pWx31RtB}"}]
"""


async def compacted(application: Application, name: str, key: str = "") -> str:
    """Compactions a conversation about something; gives an artifact of it, and the session."""
    headers = await ask(application, request_with_name(12, name), key)
    await application.forward.responder.response_history.transcripts.flush()
    await application.outbox.flush()
    return headers["x-accordion-session"]


async def listed(application: Application, session: str, key: str = "") -> int:
    """How many artifacts there are of a session."""
    reply = await api(application, "GET", f"/accordion/artifacts?session={session}&limit=1000", key)
    return len(reply.json()["artifacts"]) if reply.status_code == 200 else 0


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await true():
            await asyncio.sleep(0.05)


async def metric(application: Application, name: str, key: str = "") -> float:
    text = (await api(application, "GET", "/metrics", key)).text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " "))


async def test_the_longest_unused_goes_first_of_its_own_tenant_only_and_is_counted(tmp_path: Path):
    one, two = "acc-one-5fKq72LmZ", "acc-two-9pWx31RtB"
    async with workers(tmp_path, KEYED + "archive: {max_bytes: 60000}\n") as [application]:
        theirs = await compacted(application, "theirs", two)
        sessions = [await compacted(application, f"name-{at}-of-it", one) for at in range(6)]

        async def gone() -> bool:
            return await listed(application, sessions[0], one) == 0

        await until(gone)
        assert await listed(application, sessions[-1], one)
        assert await listed(application, theirs, two)
        left = [bool(await listed(application, each, one)) for each in sessions]
        assert left == sorted(left)
        assert await metric(application, "accordion_archive_evicted_total", ADMIN) >= 1
        assert await metric(application, "accordion_archive_evicted_bytes_total", ADMIN) > 1_000
