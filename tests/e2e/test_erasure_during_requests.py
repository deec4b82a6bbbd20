"""A session that is erased while a reply of its own is under way stays erased."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from accordion.composition.application import Application
from tests.e2e.store_workers import REPLY, api, ask, request_with_name, workers
from tests.e2e.test_erasure import session_rows
from tests.loopback import Answer, Recorded

pytestmark = pytest.mark.rest  # each test starts processes, or waits for real time


SEVERAL = "server: {workers: 2}\n"
ALL = "archive: {record: all}\n"


class Provider:
    """Answers; while it `holds`, only once it is let go. Where it `reads`, it reads an artifact first."""

    def __init__(self, *, reads: bool = False) -> None:
        self.reads, self.holds = reads, False
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Recorded, answer: Answer) -> None:
        found = re.search(rb"art_[0-9a-f]{12}", request.body)
        reply: dict[str, Any] = json.loads(json.dumps(REPLY))
        if self.holds and self.reads and found and b"our-call" not in request.body:
            function = {"name": "read_artifact", "arguments": json.dumps({"id": found.group().decode()})}
            call = {"id": "our-call", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            reply["choices"] = [{"index": 0, "finish_reason": "tool_calls", "message": message}]
        elif self.holds:
            self.asked.set()
            await self.free.wait()
        body = json.dumps(reply).encode()
        await answer.head(200, [("Content-Type", "application/json")], length=len(body))
        await answer.send(body)


async def settled(*applications: Application) -> None:
    """All that is written behind replies is written."""
    for application in applications:
        await application.forward.responder.response_history.transcripts.flush()
        await application.outbox.flush()


async def exported(application: Application) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await api(application, "GET", "/accordion/export")).text.splitlines()]


@pytest.mark.parametrize("meanwhile", [True, False], ids=["before the erasure ends", "after it"])
@pytest.mark.parametrize("reads", [False, True], ids=["plain", "reading"])
async def test_a_reply_that_ends_at_another_worker_brings_nothing_back_either(
    tmp_path: Path, meanwhile: bool, reads: bool
):
    provider = Provider(reads=reads)
    async with workers(tmp_path, SEVERAL, SEVERAL, script=provider) as [one, other]:
        session = (await ask(other, request_with_name(12)))["x-accordion-session"]
        await settled(other)
        provider.holds = True
        turn = asyncio.create_task(ask(other, request_with_name(13)))
        await provider.asked.wait()
        erasing = asyncio.create_task(api(one, "DELETE", f"/accordion/sessions/{session}"))
        if meanwhile:
            await asyncio.sleep(0.05)
            provider.free.set()
            assert (await turn)["x-accordion-session"] == session
            assert not erasing.done()
        assert (await erasing).json()["verified"]
        provider.free.set()
        await turn
        await settled(other, one)
        assert await exported(one) == [{"type": "end", "counts": {}}]
        assert session_rows(tmp_path / "kept.db", session) == ["erased"]
        assert (await ask(other, request_with_name(14)))["x-accordion-session"] != session


@pytest.mark.parametrize("whole", [False, True], ids=["session", "tenant"])
@pytest.mark.parametrize("at", [0, 1], ids=["the worker that erased", "another"])
async def test_what_is_said_as_soon_as_an_erasure_was_answered_is_kept(tmp_path: Path, whole: bool, at: int):
    provider = Provider()
    async with workers(tmp_path, SEVERAL + ALL, SEVERAL + ALL, script=provider) as applications:
        session = (await ask(applications[0], request_with_name(0)))["x-accordion-session"]
        await settled(applications[0])
        path = "/accordion/archive" if whole else f"/accordion/sessions/{session}"
        assert (await api(applications[0], "DELETE", path)).json()["verified"]
        provider.holds = True
        turn = asyncio.create_task(ask(applications[at], request_with_name(0)))
        await provider.asked.wait()
        # All have looked, and heard of it, before the reply ends.
        await asyncio.sleep(1.3)
        provider.free.set()
        anew = (await turn)["x-accordion-session"]
        await settled(*applications)
        kept = await exported(applications[at])
        assert [line["type"] for line in kept] == ["name", "exchange", "transcript", "row", "end"]
        assert {line["session"] for line in kept[:-1]} == {anew}
