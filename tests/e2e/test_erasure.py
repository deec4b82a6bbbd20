"""What was erased is nowhere any more: not in the files, not in other workers' memory."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.e2e.protocol_samples import KEY as BEARER_KEY
from tests.e2e.proxy_api import wait_until
from tests.e2e.raw_client import post
from tests.e2e.store_workers import (
    KEY,
    api,
    ask,
    config_with_keys,
    files_with_name,
    request_with_name,
    workers,
)

pytestmark = pytest.mark.rest  # each test starts processes, or waits for real time


BEARER = ("Authorization", f"Bearer {BEARER_KEY}")


@pytest.mark.parametrize("config", ["", config_with_keys(KEY)], ids=["plain", "sealed"])
@pytest.mark.parametrize("whole", [False, True], ids=["session", "tenant"])
async def test_of_what_was_erased_nothing_stands_in_the_files(tmp_path: Path, config: str, whole: bool):
    async with workers(tmp_path, config, config) as [one, other]:
        session = (await ask(one, request_with_name(12)))["x-accordion-session"]
        await one.outbox.flush()
        assert (await ask(other, request_with_name(13)))["x-accordion-session"] == session
        await one.forward.responder.response_history.transcripts.flush()
        await other.forward.responder.response_history.transcripts.flush()
        await other.outbox.flush()
        assert bool(files_with_name(tmp_path)) is not bool(config)
        assert files_with_name(tmp_path, session)
        path = "/accordion/archive" if whole else f"/accordion/sessions/{session}"
        reply = await api(one, "DELETE", path)
        assert (reply.status_code, reply.json()["verified"]) == (200, True)
        # What was deleted is written over soon after, in the write-ahead log too.
        async with asyncio.timeout(30):
            while files_with_name(tmp_path):
                await asyncio.sleep(0.05)
    assert files_with_name(tmp_path) == []
    assert session_rows(tmp_path / "kept.db", session) == ([] if whole else ["erased"])


def session_rows(path: Path, session: str) -> list[str]:
    """The collections of all rows of the store that name a session."""
    with sqlite3.connect(path) as file:
        rows = file.execute("SELECT collection, name, value FROM entry UNION ALL SELECT '', '', value FROM log_entry")
        named = session.encode()
        return [
            bytes(collection or b"").decode() or bytes(name or b"").decode()
            for collection, name, value in rows
            if named in bytes(name or b"") + bytes(collection or b"") + bytes(value)
        ]


async def test_of_what_was_erased_a_second_proxy_on_the_same_file_stores_nothing(start: Start, tmp_path: Path):
    """A proxy with one worker cannot know of another one that uses its SQLite file."""
    text, store = "archive: {record: all}\n", f"sqlite:///{tmp_path}/both.db"
    one, other = start(text, ACCORDION_STORE=store), start(text, ACCORDION_STORE=store)

    async def asked(*texts: str) -> str:
        body = json.loads(CHAT.body("Hello."))
        roles = ("user", "assistant", "user")
        body["messages"] = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        reply = await post(other, CHAT.path, json.dumps(body).encode(), BEARER)
        return reply.header("x-accordion-session") or ""

    async with other.provider(CHAT.answers()), httpx.AsyncClient(trust_env=False, timeout=60) as client:
        client.headers = httpx.Headers([BEARER, ("x-accordion-token", one.token)])
        sessions = []
        for number in range(3):
            session = await asked(f"This is number {number}.")
            url = f"{one.url}/accordion/sessions/{session}"
            await wait_until(partial(is_there, client, url))
            # What this adds has still to be written when the session is erased by way of the other proxy.
            assert await asked(f"This is number {number}.", "Well.", "And now?") == session
            assert (await client.delete(url)).status_code == 200
            sessions.append(url)
        other.stop()
        assert [(await client.get(f"{url}/original")).status_code for url in sessions] == [404] * 3


async def is_there(client: httpx.AsyncClient, url: str) -> bool:
    return (await client.get(url)).status_code == 200
