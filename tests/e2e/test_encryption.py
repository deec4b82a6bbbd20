"""With a key set, what is kept is read through the proxy alone; without the right one requests go on all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion.composition.application import Application
from tests.e2e.store_workers import (
    CANARY,
    KEY,
    api,
    ask,
    compaction_id,
    config_with_keys,
    files_with_name,
    request_with_name,
    workers,
)

pytestmark = pytest.mark.rest  # each test starts processes, or waits for real time


async def artifacts(application: Application, session: str) -> list[dict[str, Any]]:
    reply = await api(application, "GET", f"/accordion/artifacts?session={session}&limit=1000")
    assert reply.status_code == 200
    listed: list[dict[str, Any]] = reply.json()["artifacts"]
    return listed


async def readable(application: Application, session: str) -> bool:
    """Whether all that left a session can be read, and there is something."""
    texts = [
        await api(application, "GET", f"/accordion/artifacts/{each['id']}")
        for each in await artifacts(application, session)
    ]
    assert all(reply.status_code == 200 and CANARY in reply.text for reply in texts)
    return bool(texts)


async def compacted(application: Application) -> tuple[str, str]:
    """Compactions a conversation; gives its session and the compaction."""
    headers = await ask(application, request_with_name(12))
    await application.forward.responder.response_history.transcripts.flush()
    await application.outbox.flush()
    return headers["x-accordion-session"], compaction_id(headers)


async def test_no_file_holds_what_was_said_and_the_api_gives_it(tmp_path: Path):
    async with workers(tmp_path, config_with_keys(KEY)) as [application]:
        session, _ = await compacted(application)
        assert await readable(application, session)
        original = await api(application, "GET", f"/accordion/sessions/{session}/original")
        assert CANARY in original.text
        assert CANARY in (await api(application, "GET", f"/accordion/sessions/{session}/export")).text
        assert files_with_name(tmp_path) == []
