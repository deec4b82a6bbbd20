"""A session that is erased while a reply of its own is under way stays erased."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from accordion.composition import Application
from tests.e2e.kept import REPLY, api, ask, fold, said, workers
from tests.e2e.test_erased import session_rows
from tests.loopback import Answer, Recorded

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


class Overflowing(Provider):
    """Says of what it held that it does not fit, and takes what is sent in its place."""

    async def __call__(self, request: Recorded, answer: Answer) -> None:
        reply, status = {name: value for name, value in REPLY.items() if name != "usage"}, 200
        if self.holds and not self.asked.is_set():
            self.asked.set()
            await self.free.wait()
            words = "This model's maximum context length is 3000 tokens. Your messages resulted in 4500 tokens."
            reply = {"error": {"message": words, "type": "invalid_request_error", "code": "context_length_exceeded"}}
            status = 400
        body = json.dumps(reply).encode()
        await answer.head(status, [("Content-Type", "application/json")], length=len(body))
        await answer.send(body)


async def settled(*houses: Application) -> None:
    """All that is written behind replies is written."""
    for house in houses:
        await house.forward.responder.response_history.transcripts.flush()
        await house.outbox.flush()


async def exported(house: Application) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await api(house, "GET", "/accordion/export")).text.splitlines()]


@pytest.mark.parametrize("whole", [False, True], ids=["session", "tenant"])
@pytest.mark.parametrize("reads", [False, True], ids=["plain", "reading"])
async def test_a_reply_that_ends_after_its_session_was_erased_brings_nothing_back(
    tmp_path: Path, whole: bool, reads: bool
):
    provider = Provider(reads=reads)
    async with workers(tmp_path, ALL if whole else "", script=provider) as [house]:
        first = await ask(house, said(12))
        session = first["x-accordion-session"]
        provider.holds = True
        turn = asyncio.create_task(ask(house, said(13)))
        await provider.asked.wait()
        path = "/accordion/archive" if whole else f"/accordion/sessions/{session}"
        assert (await api(house, "DELETE", path)).json()["verified"]
        provider.free.set()
        assert (await turn)["x-accordion-session"] == session
        await settled(house)
        assert await exported(house) == [{"type": "end", "counts": {}}]
        assert session_rows(tmp_path / "kept.db", session) == ([] if whole else ["erased"])
        # What is said from now on is kept, and is another session's.
        anew = await ask(house, said(14))
        assert anew["x-accordion-session"] != session
        assert fold(anew) != fold(first)
        await settled(house)
        assert {line.get("session") for line in await exported(house)} == {None, anew["x-accordion-session"]}


@pytest.mark.parametrize("meanwhile", [True, False], ids=["before the erasure ends", "after it"])
@pytest.mark.parametrize("reads", [False, True], ids=["plain", "reading"])
async def test_a_reply_that_ends_at_another_worker_brings_nothing_back_either(
    tmp_path: Path, meanwhile: bool, reads: bool
):
    provider = Provider(reads=reads)
    async with workers(tmp_path, SEVERAL, SEVERAL, script=provider) as [one, other]:
        session = (await ask(other, said(12)))["x-accordion-session"]
        await settled(other)
        provider.holds = True
        turn = asyncio.create_task(ask(other, said(13)))
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
        assert (await ask(other, said(14)))["x-accordion-session"] != session


@pytest.mark.parametrize("config", ["", SEVERAL], ids=["alone", "several"])
async def test_a_request_that_overflows_after_its_session_was_erased_is_folded_and_nothing_of_it_is_kept(
    tmp_path: Path, config: str
):
    provider = Overflowing()
    async with workers(tmp_path, ALL + config, script=provider) as [house]:
        session = (await ask(house, said(2)))["x-accordion-session"]
        await settled(house)
        provider.holds = True
        turn = asyncio.create_task(ask(house, said(3), x_accordion_pin="c0"))
        await provider.asked.wait()
        assert (await api(house, "DELETE", f"/accordion/sessions/{session}")).json()["verified"]
        provider.free.set()
        told = await turn
        assert (told["x-accordion-session"], json.loads(told["x-accordion-compaction"])["state"]) == (session, "folded")
        await settled(house)
        assert await exported(house) == [{"type": "end", "counts": {}}]
        assert session_rows(tmp_path / "kept.db", session) == ["erased"]


@pytest.mark.parametrize("whole", [False, True], ids=["session", "tenant"])
@pytest.mark.parametrize("at", [0, 1], ids=["the worker that erased", "another"])
async def test_what_is_said_as_soon_as_an_erasure_was_answered_is_kept(tmp_path: Path, whole: bool, at: int):
    provider = Provider()
    async with workers(tmp_path, SEVERAL + ALL, SEVERAL + ALL, script=provider) as houses:
        session = (await ask(houses[0], said(0)))["x-accordion-session"]
        await settled(houses[0])
        path = "/accordion/archive" if whole else f"/accordion/sessions/{session}"
        assert (await api(houses[0], "DELETE", path)).json()["verified"]
        provider.holds = True
        turn = asyncio.create_task(ask(houses[at], said(0)))
        await provider.asked.wait()
        # All have looked, and heard of it, before the reply ends.
        await asyncio.sleep(1.3)
        provider.free.set()
        anew = (await turn)["x-accordion-session"]
        await settled(*houses)
        kept = await exported(houses[at])
        assert [line["type"] for line in kept] == ["transcript", "row", "end"]
        assert {line["session"] for line in kept[:-1]} == {anew}
