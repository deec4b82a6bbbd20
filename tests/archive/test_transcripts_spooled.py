"""Transcripts while the store is away and a spool takes what is written."""

import json
from pathlib import Path

import pytest

from accordion.archive.archive import Archive
from accordion.archive.transcripts import TranscriptStore
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.openai_chat.protocol import OpenAIChat
from tests.fakes import FakeClock, FakeTasks, FickleStore
from tests.spools import with_spool

TENANT, DAY = TenantScope("tenant", b"tenant key " * 3), 86_400.0


class Worker:
    """One worker's transcripts, on a store that all share and a spool file of this machine."""

    def __init__(self, main: KeyValueStore, path: Path, capacity: int = 2**26) -> None:
        self.store = with_spool(main, path, capacity=capacity)
        archive = Archive(self.store, DAY, clock=FakeClock(), write_minor=self.store.write_minor)
        self.transcripts = TranscriptStore(archive, FakeTasks(), FakeClock(), "all")

    async def say(self, *texts: str) -> None:
        listed = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
        body = json.dumps({"model": "m", "messages": listed}).encode()
        self.transcripts.record(TENANT, "s-1", BodyReader().read(OpenAIChat(), body, TENANT), compacted=True)
        await self.transcripts.flush()

    async def load_texts(self) -> list[str]:
        found = await self.transcripts.read(TENANT, "s-1", 0, 999)
        return [json.loads(wire)["content"] for wire in found if wire is not None]


async def test_the_messages_of_a_killed_worker_are_recorded_when_the_store_is_back(tmp_path: Path):
    main = FickleStore()
    killed, other = (Worker(main, tmp_path / "spool.db") for _ in range(2))
    main.away = True
    await killed.say(*"abc")
    await killed.say(*"abcde")
    main.away = False
    await other.store.publish()
    assert await other.load_texts() == [*"abcde"]


async def test_what_is_written_before_the_spool_is_published_follows_what_waits_there(tmp_path: Path):
    main = FickleStore()
    worker = Worker(main, tmp_path / "spool.db")
    await worker.say(*"abc")
    main.away = True
    await worker.say(*"abcde")
    main.away = False
    await worker.say(*"abcdefg")
    await worker.store.publish()
    assert await worker.load_texts() == [*"abcdefg"]


async def test_transcripts_leave_half_of_the_spool_to_compactions(tmp_path: Path):
    main, capacity = FickleStore(), 100_000
    worker = Worker(main, tmp_path / "spool.db", capacity)
    main.away = True
    texts = [f"{at}" for at in range(400)]
    with pytest.raises(StoreUnavailable):
        await worker.say(*texts)
    await worker.store.put(Key("", "compaction"), b"x" * (capacity * 2 // 5))
    main.away = False
    await worker.store.publish()
    await worker.say(*texts, "more")
    assert await worker.load_texts() == [*texts, "more"]
