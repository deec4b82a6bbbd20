"""A proxy that is killed at any moment, while two write memories in every way, leaves nothing half-written; the same
calls complete what was cut short."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx

from accordion.memory.entries import revision
from accordion.memory.session_text import render_sections
from tests.conftest import Start
from tests.e2e.memory_samples import RECORDED, SUMMARY, memory_arguments, record_conversation
from tests.proxy_process import Proxy
from tests.valkey import Valkey, valkey_server  # noqa: F401

MOMENTS = ("bring", "compact", "save", "consolidate", "bring", "reword")
"""What has just begun when the proxy is killed."""
LINES_OF_ONE = 150
SESSIONS, LAST = 4, 60
TOPICS = ("ledger", "harbour")
EVERY = ["fact", "decision", "preference", "solution", "question", "summary", "summary_archived", "session"]
FEW = 24
"""Memories of each topic."""
OVERTAKEN = {"conflict", "search_required", "summary_unread", "reads_required"}
"""Another may have written the same meanwhile, which is said so."""
LINES = {"content-type": "application/x-ndjson"}


def talk(number: int) -> list[dict[str, Any]]:
    """Sixty messages, each of which is worth a memory."""
    said = [{"role": "system", "content": f"You keep the harbour of region {number}."}]
    for at in range(LAST // 2):
        place = f"services/region{number}/gate{at}.py"
        said.append({"role": "user", "content": f"We decided to keep gate-{number}-{at} of the harbour in {place}."})
        said.append({"role": "assistant", "content": f"The gate-{number}-{at} service listens on port {4000 + at}."})
    return said


def elsewhere(number: int) -> bytes:
    """An export of another proxy: so many memories that they are written in parts."""
    found: list[dict[str, Any]] = []
    for at in range(LINES_OF_ONE):
        text = f"The crane {number}-{at} stands at pier {at} of the old dock."
        found.append({"memory": {"id": f"mem-{number}-{at}", "type": "fact", "content": text, "topics": ["cranes"]}})
        value = base64.b64encode(b"1").decode()
        found.append({"marker": {"name": f"searched/{at}/elsewhere-{number}", "value": value}})
    return b"\n".join(json.dumps(each).encode() for each in found)


@dataclass
class Writer:
    """Writes memories in every way that there is, until nobody answers any more."""

    proxy: Proxy
    sessions: Sequence[str]
    random: Random
    began: asyncio.Queue[str]
    brought: list[int] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    async def post(self, http: httpx.AsyncClient, name: str, **arguments: Any) -> dict[str, Any]:
        reply = await http.post(name, json=arguments)
        found: dict[str, Any] = reply.json()
        if reply.status_code != 200:
            assert found["error"]["code"] in OVERTAKEN, reply.text
        self.done[name] += reply.status_code == 200
        return found

    async def compact(self, http: httpx.AsyncClient) -> None:
        session = self.random.choice(self.sessions)
        first = self.random.randrange(LAST)
        last = min(LAST, first + self.random.randrange(20))
        await self.post(http, "search", conversation_id=session)
        asked = {"conversation_id": session, "start_index": first, "end_index": last}
        await self.post(http, "compact_conversation", **asked)

    async def consolidate(self, http: httpx.AsyncClient) -> None:
        topic = self.random.choice(TOPICS)
        found = await self.post(http, "deep_search", query=topic, topics=[topic])
        ids = [each["id"] for each in found["results"]]
        text = f"{SUMMARY} Region {self.random.random()} has the newest of them. [{', '.join(ids)}]"
        await self.post(http, "consolidate", topic=topic, content=text)

    async def bring(self, http: httpx.AsyncClient) -> None:
        self.brought.append(self.random.randrange(10**6))
        reply = await http.post("import", content=elsewhere(self.brought[-1]), headers=LINES)
        assert reply.status_code in (200, 409), reply.text
        self.done["import"] += reply.status_code == 200

    async def save(self, http: httpx.AsyncClient) -> None:
        text = render_sections({"Objective": f"Mend gate {self.random.random()}.", "Notes": "- It rusts.\n" * 200})
        await self.post(http, "core_memory", operation="import", text=text)

    async def reword(self, http: httpx.AsyncClient) -> None:
        (memory,) = (await self.post(http, "list", topics=["cranes"], limit=1))["memories"][:1] or [None]
        if memory is not None:
            words = f"The crane at {self.random.random()} was repainted."
            await self.post(http, "add", content=words, replace_id=memory["id"])

    async def write(self) -> None:
        base = f"{self.proxy.url}/accordion/memory/"
        ways = [self.compact, self.compact, self.consolidate, self.bring, self.save, self.reword]
        async with httpx.AsyncClient(trust_env=False, timeout=60, base_url=base) as http:
            with suppress(httpx.TransportError):
                while True:
                    way = self.random.choice(ways)
                    self.began.put_nowait(way.__name__)
                    await way(http)


async def asked(proxy: Proxy, method: str, path: str, **more: Any) -> httpx.Response:
    headers = {"x-accordion-token": proxy.token}
    async with httpx.AsyncClient(trust_env=False, timeout=60, base_url=proxy.url, headers=headers) as http:
        reply = await http.request(method, f"/accordion/memory{path}", **more)
    assert reply.status_code == 200, reply.text
    return reply


@dataclass
class TenantRecords:
    """All that a tenant has, by kinds."""

    memories: dict[str, dict[str, Any]]
    markers: dict[str, bytes]


async def export_records(proxy: Proxy) -> TenantRecords:
    lines = [json.loads(line) for line in (await asked(proxy, "GET", "/export")).text.splitlines()]
    assert all(len(line) == 1 for line in lines)
    memories = [line["memory"] for line in lines if "memory" in line]
    markers = [line["marker"] for line in lines if "marker" in line]
    found = {each["id"]: each for each in memories}
    assert len(found) == len(memories)
    return TenantRecords(
        found,
        {each["name"]: base64.b64decode(each["value"]) for each in markers},
    )


async def check(proxy: Proxy, sessions: Sequence[str]) -> TenantRecords:
    """That nothing is half-written."""
    held = await export_records(proxy)
    for memory in held.memories.values():
        assert memory["revision"] == revision(memory["content"])
        assert memory["type"] != "session" or memory["content"].count("It rusts.") == 200
    compacted = set[str]()
    for session in sessions:
        count = sum(name.startswith("compacted/") and name.endswith(f"/{session}") for name in held.markers)
        for number in range(count):
            entry = json.loads(held.markers[f"compacted/{number}/{session}"])
            assert set(entry["memories"]) <= set(held.memories)
            assert not compacted & set(entry["memories"])
            compacted |= set(entry["memories"])
    assert compacted == {each["id"] for each in held.memories.values() if each["source"] == "compaction"}
    summaries = [each["topics"] for each in held.memories.values() if each["type"] == "summary"]
    assert len({tuple(topics) for topics in summaries}) == len(summaries)
    former = [each for each in held.memories.values() if each["type"] == "summary_archived"]
    assert all(each["former_topic"] in TOPICS and not each.get("topics") for each in former)
    await found_as_kept(proxy, held)
    return held


async def found_as_kept(proxy: Proxy, held: TenantRecords) -> None:
    """That lists, counts and words know just what is there."""
    page = (await asked(proxy, "POST", "/list", json={"type_filter": EVERY, "limit": 500})).json()
    assert page["total"] == len(held.memories)
    assert {each["id"] for each in page["memories"]} <= set(held.memories)
    for words in ("crane pier dock", "harbour gate service port"):
        found = (await asked(proxy, "POST", "/deep_search", json={"query": words, "project": "*"})).json()
        assert {each["id"] for each in found["results"]} <= set(held.memories)
    rare = next((each for each in held.memories.values() if each["source"] == "compaction"), None)
    if rare is not None:
        found = (await asked(proxy, "POST", "/search", json={"query": rare["content"]})).json()
        assert rare["id"] in {each["id"] for each in found["results"]}


async def completed(proxy: Proxy, sessions: Sequence[str], brought: Sequence[int]) -> None:
    """That the same calls again complete what was cut short."""
    for number in brought:
        first, second = [
            (await asked(proxy, "POST", "/import", content=elsewhere(number), headers=LINES)).json() for _ in range(2)
        ]
        assert first["memories"] + first["kept"] == second["kept"] == LINES_OF_ONE
        assert (second["memories"], second["markers"]) == (0, 0)
    for session in sessions:
        done = (await asked(proxy, "POST", "/search", json={"conversation_id": session})).json()["compactions"]
        for each in done:
            asking = {"conversation_id": session, "start_index": each["start_index"], "end_index": each["end_index"]}
            again = (await asked(proxy, "POST", "/compact_conversation", json=asking)).json()
            assert [memory["id"] for memory in again["memories_created"]] == each["memories"]
        whole = {"conversation_id": session, "start_index": 0, "end_index": LAST}
        await asked(proxy, "POST", "/search", json={"conversation_id": session})
        made = (await asked(proxy, "POST", "/compact_conversation", json=whole)).json()
        assert (await asked(proxy, "POST", "/compact_conversation", json=whole)).json() == made


async def killed_again_and_again(proxy: Proxy, seed: int) -> None:
    sessions = [await record_conversation(proxy, talk(number)) for number in range(SESSIONS)]
    for topic in TOPICS:
        for note in memory_arguments(FEW, topic):
            await asked(proxy, "POST", "/add", json=note)
    random, done, brought = Random(seed), Counter[str](), list[int]()
    for number, moment in enumerate(MOMENTS, 1):
        began = asyncio.Queue[str]()
        writers = [Writer(proxy, sessions, Random(random.random()), began, brought) for _ in range(2)]
        writing = [asyncio.create_task(writer.write()) for writer in writers]
        while await began.get() != moment:
            assert not any(task.done() for task in writing), [await task for task in writing if task.done()]
        await asyncio.sleep(random.uniform(0.0, 0.2))
        proxy.kill()
        await asyncio.gather(*writing)
        done += sum((writer.done for writer in writers), Counter[str]())
        proxy.start()
        await check(proxy, sessions)
        if number % 3 == 0:
            await completed(proxy, sessions, brought)
            brought.clear()
            await check(proxy, sessions)
    # All of them were at it.
    assert {"compact_conversation", "consolidate", "core_memory"} <= set(+done)


async def test_in_a_file_nothing_is_half_written(start: Start, tmp_path: Path):
    proxy = start(RECORDED, ACCORDION_STORE=f"sqlite:///{tmp_path}/kept.db")
    await killed_again_and_again(proxy, 1)


async def test_on_a_server_nothing_is_half_written(start: Start, valkey_server: Valkey):  # noqa: F811
    await killed_again_and_again(start(RECORDED, ACCORDION_STORE=valkey_server.url), 3)
