"""What is stored of a conversation cannot be read by who has the files, and is made anew where the key is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import zstandard

from accordion.archive.transcripts import TranscriptStore
from accordion.compaction.background import summary_key
from accordion.compaction.request import CompactionResult
from accordion.insertions.store import InsertionStore
from accordion.model.errors import StoreUnavailable
from accordion.model.insertions import RecallInsertion
from accordion.model.tenant import ConversationRef
from accordion.protocols.registry import PROTOCOLS
from accordion.stores.encryption import AesSealer
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.sqlite import SqliteStore
from tests.compaction.compactor_setup import (
    CONVERSATION,
    SCOPE,
    TENANT,
    CompactorSetup,
    ScriptedAuthor,
    archive_results,
    conversation,
    long_history,
    summary_caller,
)
from tests.fakes import DirectOutbox

KEY, OTHER = AesSealer([bytes(32)]), AesSealer([b"z" * 32])
CLIENT = conversation(long_history(8), "chat")
# Words that stand in the history, in what a model tells of it, and in what is recalled.
SAID = (b"word3_0_14", b"thing number", b"You are an agent", b"model told", b"call_003", b"src/file_", b"was recalled")


def words_in_files(folder: Path) -> set[bytes]:
    """Which of these words stand in any file of a folder, or in what its pieces decompress to."""
    data = b"".join(path.read_bytes() for path in folder.iterdir())
    for at in range(len(data)):
        if data[at : at + 4] == b"\x28\xb5\x2f\xfd":
            try:
                data += zstandard.ZstdDecompressor().decompressobj().decompress(data[at : at + 200_000])
            except zstandard.ZstdError:
                continue
    return {word for word in SAID if word in data}


async def everything(setup: CompactorSetup) -> None:
    """A compaction that a model told of, one of results, a recall, a transcript."""
    protocol = PROTOCOLS["chat"]
    case = setup.case(CLIENT, summary_caller=summary_caller(), decision={"must_succeed": True})
    outcome = await setup.compactor.compact(case)
    assert outcome.history.compaction is not None
    assert outcome.history.compaction.writer == "model-x"
    insertions = InsertionStore(setup.archive, DirectOutbox(setup.store), setup.clock, setup.erasures)
    recall = RecallInsertion(CLIENT.chain[-1], protocol.text_message("this was recalled"), 1.0)
    await insertions.add(CONVERSATION, recall, 0.0)
    transcripts = TranscriptStore(setup.archive, setup.tasks, setup.clock, "all")
    transcripts.record(TENANT, "s-1", CLIENT, compacted=True)
    await setup.tasks.done()


class Back(InMemoryStore):
    """A store that is away until it is told to be back."""

    away = True

    def _check(self):
        if self.away:
            raise StoreUnavailable("away")

    @property
    def is_available(self):
        return not self.away


async def test_no_word_of_a_conversation_stands_in_the_files_of_a_store_with_a_key(tmp_path: Path):
    for name, sealer, expected in (("sealed", KEY, set()), ("plain", None, set(SAID))):
        folder = tmp_path / name
        folder.mkdir()
        setup = CompactorSetup(store=SqliteStore(folder / "store.db", timeout=5.0), teller=True, sealer=sealer)
        await everything(setup)
        assert (folder / "store.db-wal").stat().st_size > 10_000
        assert words_in_files(folder) == expected
        await setup.store.close()
        assert words_in_files(folder) == expected


class Away(InMemoryStore):
    is_available = False

    async def write(self, batch):
        raise StoreUnavailable("away")


async def test_no_word_of_a_conversation_stands_in_the_spool(tmp_path: Path):
    store = Away()
    for name, sealer in (("sealed", KEY), ("plain", None)):
        folder = tmp_path / name
        folder.mkdir()
        setup = CompactorSetup(archive_results, store=store, spool_path=folder / "spool", has_spool=True, sealer=sealer)
        outcome = await setup.compactor.compact(setup.case(CLIENT, decision={"must_succeed": True}))
        assert outcome.is_stored_locally_only
        assert bool(words_in_files(folder)) == (sealer is None)
        await setup.spooled.close()


async def test_spooled_writes_are_published_sealed_and_read_by_others():
    store = Back()
    setup = CompactorSetup(archive_results, store=store, has_spool=True, sealer=KEY)
    outcome = await setup.compactor.compact(setup.case(CLIENT, decision={"must_succeed": True}))
    store.away = False
    await setup.spooled.publish()
    found = await CompactorSetup(store=store, sealer=KEY).compactions.find(
        PROTOCOLS["chat"], CONVERSATION, CLIENT, check_store=True
    )
    assert found.compaction == outcome.history.compaction
    assert all(await setup.archive.load_artifacts(TENANT, found.compaction.artifacts))


async def test_a_worker_takes_what_another_published_first_in_place_of_what_it_spooled():
    store = Back()
    setup, other = (
        CompactorSetup(store=store, has_spool=True, sealer=KEY),
        CompactorSetup(store=store, sealer=KEY),
    )
    await setup.compactor.compact(setup.case(CLIENT))
    store.away = False
    other.clock.advance(60)
    first = (await other.compactor.compact(other.case(CLIENT))).history.compaction
    await setup.spooled.publish()
    assert setup.compactions.find_local(PROTOCOLS["chat"], CONVERSATION, CLIENT).compaction == first


async def test_a_history_whose_compaction_cannot_be_opened_is_compacted_anew():
    store = InMemoryStore()
    setup = CompactorSetup(store=store, sealer=KEY)
    first = (await setup.compactor.compact(setup.case(CLIENT))).history.compaction
    for sealer in (OTHER, None):
        worker = CompactorSetup(store=store, sealer=sealer)
        found = await worker.compactions.find(PROTOCOLS["chat"], CONVERSATION, CLIENT, check_store=True)
        assert found.compaction is None
        worker.clock.advance(60)
        again = (await worker.compactor.compact(worker.case(CLIENT))).history.compaction
        assert again is not None
        assert again.id != first.id
        fresh = CompactorSetup(store=store, sealer=sealer)
        found = await fresh.compactions.find(PROTOCOLS["chat"], CONVERSATION, CLIENT, check_store=True)
        assert found.compaction == again
        assert all(await fresh.archive.load_artifacts(TENANT, again.artifacts))


async def test_with_a_new_key_first_what_the_old_one_sealed_is_in_force():
    store = InMemoryStore()
    setup = CompactorSetup(store=store, sealer=KEY)
    first = (await setup.compactor.compact(setup.case(CLIENT))).history.compaction
    rotated = CompactorSetup(store=store, sealer=AesSealer([b"z" * 32, bytes(32)]))
    found = await rotated.compactions.find(PROTOCOLS["chat"], CONVERSATION, CLIENT, check_store=True)
    assert found.compaction == first
    assert all(await rotated.archive.load_artifacts(TENANT, first.artifacts))


async def test_a_summary_that_was_prepared_is_read_by_who_has_the_key_only():
    store = InMemoryStore()
    setup = CompactorSetup(store=store, teller=True, sealer=KEY)
    thread = ConversationRef(TENANT, SCOPE, "s-1")
    case = setup.case(CLIENT, summary_caller=summary_caller(), decision={"action": "prepare"})
    await setup.compactor.compact(case)
    await setup.tasks.done()
    for sealer, expected in ((KEY, True), (OTHER, False), (None, False)):
        worker = CompactorSetup(store=store, teller=True, sealer=sealer)
        assert (await worker.preparations.find(thread, CLIENT, 0) is not None) == expected


async def erased_while(setup: CompactorSetup, decision: dict[str, str]) -> CompactionResult:
    """What becomes of a compaction whose session is erased while it is made."""
    case = setup.case(CLIENT, summary_caller=summary_caller(), decision=decision)
    compacting = asyncio.create_task(setup.compactor.compact(case))
    await asyncio.sleep(0)
    setup.clock.advance(1.0)
    await setup.erasures.publish(TENANT, "s-1")
    outcome = await compacting
    await setup.tasks.done()
    return outcome


async def test_a_compaction_during_an_erasure_is_forwarded_and_not_stored():
    setup = CompactorSetup(sealer=KEY)
    made = (await erased_while(setup, {})).history.compaction
    assert made is not None
    assert made.artifacts
    assert not any(await setup.archive.load_artifacts(TENANT, made.artifacts))
    assert (await setup.compactions.find(PROTOCOLS["chat"], CONVERSATION, CLIENT, check_store=True)).compaction is None
    again = (await setup.compactor.compact(setup.case(CLIENT))).history.compaction
    assert all(await setup.archive.load_artifacts(TENANT, again.artifacts))


async def test_a_summary_that_is_prepared_while_its_session_is_erased_is_not_kept():
    store = InMemoryStore()
    setup = CompactorSetup(store=store, teller=True, sealer=KEY)
    await erased_while(setup, {"action": "prepare"})
    worker = CompactorSetup(store=store, teller=True, sealer=KEY)
    assert await worker.preparations.find(ConversationRef(TENANT, SCOPE, "s-1"), CLIENT, 0) is None


@pytest.mark.parametrize("when", ["before it is ready", "when it is ready"])
async def test_what_a_model_told_of_a_session_that_was_erased_is_not_used_under_its_name(when: str):
    setup = CompactorSetup(teller=True, sealer=KEY)
    thread, prepare = ConversationRef(TENANT, SCOPE, "s-1"), {"action": "prepare"}
    if when == "before it is ready":
        await erased_while(setup, prepare)
    else:
        await setup.compactor.compact(setup.case(CLIENT, summary_caller=summary_caller(), decision=prepare))
        await setup.tasks.done()
        assert await setup.preparations.find(thread, CLIENT, 0) is not None
        setup.clock.advance(1.0)
        await setup.erasures.publish(TENANT, "s-1")
        await setup.store.delete([summary_key(thread)])
    assert await setup.preparations.find(thread, CLIENT, 0) is None
    assert not setup.preparations.is_retry_too_early(thread, 1)
    # It is told anew for who says the same again.
    await setup.compactor.compact(setup.case(CLIENT, summary_caller=summary_caller(), decision=prepare))
    await setup.tasks.done()
    assert isinstance(setup.author, ScriptedAuthor)
    assert len(setup.author.asked) == 2
    assert await setup.preparations.find(thread, CLIENT, 0) is not None
