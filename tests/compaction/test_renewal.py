from __future__ import annotations

from accordion.archive.archive import Archive, CompactionWrite
from accordion.archive.archive_entries import scan_entries
from accordion.archive.artifacts import ArchivedMessage, Artifact
from accordion.compaction.renewal import RetentionRenewal
from accordion.compaction.repository import CompactionRepository
from accordion.model.compaction import Compaction, CompactionEntry, with_content_id
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Sealer
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.stores.encryption import AesSealer
from accordion.stores.memory_store import InMemoryStore
from tests.compaction.compactor_setup import CONVERSATION, SCOPE, TENANT, conversation, long_history
from tests.fakes import FakeClock, WaitingTasks

CHAT, DAY = OpenAIChat(), 86_400.0


class Writing(InMemoryStore):
    """Counts writes, and may be away."""

    writes, away = 0, False

    async def write(self, batch):
        self.writes += bool(batch)
        await super().write(batch)

    async def get(self, key):
        if self.away:
            raise StoreUnavailable("away")
        return await super().get(key)


class Worker:
    """One of several with the same store, which keeps what it holds for thirty days."""

    def __init__(self, store: Writing, clock: FakeClock, sealer: Sealer | None = None) -> None:
        self.tasks, self.store, self.clock = WaitingTasks(), store, clock
        self.archive = Archive(store, sealer=sealer, clock=clock)
        self.renewals = RetentionRenewal(store, self.archive, self.tasks, clock)
        self.compactions = CompactionRepository(store, on_use=self.renewals.renew_compaction, sealer=sealer)

    async def ask(self, client: Conversation) -> str | None:
        found = await self.compactions.find(CHAT, CONVERSATION, client, check_store=True)
        return found.compaction.id if found.compaction is not None else None


CLIENT = conversation(long_history(6, words=3, end="done"), "chat")


async def compacted(worker: Worker) -> Compaction:
    """A compaction whose covered messages are in the archive, one of them as an artifact."""
    covered = CLIENT.messages[:5]
    artifact = Artifact("art_1", "result", "chat", (covered[3].key,), 3, 3, scope=SCOPE, session="s-1")
    await worker.archive.write(
        worker.archive.build_puts(TENANT, [ArchivedMessage(m.key, m.wire) for m in covered[:4]], [artifact])
    )
    made = with_content_id(
        Compaction(
            id="",
            anchor=CLIENT.chain[4],
            covered_count=5,
            entries=(CompactionEntry(0, 0), CompactionEntry(1, 4, CHAT.text_message("what was"))),
            kind="conversation",
            cause="automatic",
            utilization=0.5,
            steps=(),
            before=100,
            after=10,
            generation=1,
            at=worker.clock.now(),
            artifacts=("art_1",),
        )
    )
    return await worker.compactions.publish(CONVERSATION, CLIENT.chain[0], made)


async def count_stored(worker: Worker) -> list[int]:
    """How many of the rows, artifacts, listed ones and compacts are there, for a worker that was started just now."""
    found = await CompactionRepository(worker.store).find(CHAT, CONVERSATION, CLIENT, check_store=True)
    return [
        len(await worker.archive.load_rows(TENANT, [message.key for message in CLIENT.messages])),
        sum(each is not None for each in await worker.archive.load_artifacts(TENANT, ["art_1"])),
        len(await worker.archive.list_artifacts(TENANT, "s-1")),
        int(found.compaction is not None),
    ]


def build_store() -> tuple[Writing, FakeClock]:
    clock = FakeClock()
    return Writing(now=clock.now), clock


async def test_a_compaction_in_use_outlives_its_retention_time():
    worker = Worker(*build_store())
    made = await compacted(worker)
    for _ in range(5):
        worker.clock.advance(20 * DAY)
        assert await worker.ask(CLIENT) == made.id
        assert await worker.tasks.run() == 1
    assert await count_stored(worker) == [4, 1, 1, 1]


async def test_an_unused_compaction_expires():
    worker = Worker(*build_store())
    await compacted(worker)
    worker.clock.advance(20 * DAY)
    await worker.ask(CLIENT)
    await worker.tasks.run()
    worker.clock.advance(31 * DAY)
    assert await count_stored(worker) == [0, 0, 0, 0]


async def test_it_is_written_once_a_day_whoever_asks_and_however_often():
    store, clock = build_store()
    one, other = Worker(store, clock), Worker(store, clock)
    await compacted(one)
    store.writes = 0
    for worker in (one, other, one):
        await worker.ask(CLIENT)
    assert await one.tasks.run() + await other.tasks.run() == 0
    clock.advance(DAY)
    for worker in (one, other, one, other):
        await worker.ask(CLIENT)
    assert (await one.tasks.run(), await other.tasks.run()) == (1, 1)
    written = store.writes
    assert written > 0
    clock.advance(DAY / 2)
    await one.ask(CLIENT)
    assert await one.tasks.run() == 0
    clock.advance(DAY / 2)
    await one.ask(CLIENT)
    assert await one.tasks.run() == 1
    assert store.writes == 2 * written


async def test_a_store_that_is_away_is_left_alone_until_the_next_day():
    worker = Worker(*build_store())
    await compacted(worker)
    worker.clock.advance(20 * DAY)
    worker.store.away = True
    await worker.ask(CLIENT)
    await worker.tasks.run()
    worker.store.away = False
    worker.clock.advance(DAY)
    await worker.ask(CLIENT)
    assert await worker.tasks.run() == 1
    worker.clock.advance(15 * DAY)
    assert await count_stored(worker) == [4, 1, 1, 1]


async def listed(worker: Worker) -> dict[str, float]:
    """When what is listed was last used, by id."""
    found = {}
    async for page in scan_entries(worker.store, TENANT.archive_namespace):
        found |= {entry.id: entry.used for entry in page}
    return found


async def left(worker: Worker, name: str, base: str = "") -> None:
    """An entry of a compaction."""
    leaving = CompactionWrite(name, "s-1", worker.clock.now(), base)
    await worker.archive.write(worker.archive.build_puts(TENANT, [], [], leaving))


async def test_a_compaction_in_use_and_those_that_it_goes_on_from_count_as_used():
    worker = Worker(*build_store())
    made = await compacted(worker)
    for name, base in (("f-older", ""), ("f-old", "f-older"), (made.id, "f-old"), ("f-idle", "")):
        await left(worker, name, base)
    worker.clock.advance(20 * DAY)
    await worker.ask(CLIENT)
    await worker.tasks.run()
    now = worker.clock.now()
    assert await listed(worker) == {"f-older": now, "f-old": now, made.id: now, "f-idle": now - 20 * DAY}
    worker.clock.advance(20 * DAY)
    assert set(await listed(worker)) == {"f-older", "f-old", made.id}


async def test_an_artifact_that_a_person_read_is_kept_for_longer():
    worker = Worker(*build_store())
    await compacted(worker)
    [artifact] = await worker.archive.load_records(TENANT, "art_1")
    for _ in range(3):
        worker.clock.advance(20 * DAY)
        await worker.archive.note_read(TENANT, artifact)
    assert (await count_stored(worker))[:3] == [1, 1, 1]


async def test_a_compaction_in_use_is_sealed_again_with_the_first_key():
    store, clock = build_store()
    old, new = AesSealer([b"o" * 32]), AesSealer([b"n" * 32])
    await compacted(Worker(store, clock, old))
    worker = Worker(store, clock, AesSealer([b"n" * 32, b"o" * 32]))
    clock.advance(DAY)
    await worker.ask(CLIENT)
    await worker.tasks.run()
    later = Worker(store, clock, new)
    assert await later.ask(CLIENT) is not None
    await later.tasks.run()
    assert len(await later.archive.load_rows(TENANT, [message.key for message in CLIENT.messages])) == 4
    assert all(await later.archive.load_artifacts(TENANT, ["art_1"]))
