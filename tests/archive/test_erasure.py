from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from accordion.archive.artifacts import ArchivedMessage, Artifact, row_key
from accordion.archive.erasure import ErasureResult
from accordion.insertions.store import InsertionStore
from accordion.model.insertions import RecallInsertion, ToolRound, ToolRoundInsertion
from accordion.model.ports import Key
from accordion.model.tenant import ConversationRef, TenantScope
from accordion.stores.memory_store import InMemoryStore
from tests.archive.archive_setup import OTHER, TENANT, ArchiveSetup, chat
from tests.compaction.compactor_setup import SCOPE, CompactorSetup, conversation, long_history
from tests.fakes import DirectOutbox


async def lines(setup: ArchiveSetup, session: str | None = None, tenant: TenantScope = TENANT) -> list[dict[str, Any]]:
    found = [line async for line in setup.export_and_erasure.export(tenant, session, Counter())]
    assert all(line.count(b"\n") == 1 for line in found)
    return [json.loads(line) for line in found]


async def compact_session(setup: ArchiveSetup, session: str = "s-1", turns: int = 8) -> Any:
    """A real compaction, with all that goes with it."""
    compacting = CompactorSetup(store=setup.store, sealer=setup.sealer)
    client = conversation(long_history(turns), "chat")
    outcome = await compacting.compactor.compact(compacting.case(client, ref=ConversationRef(TENANT, SCOPE, session)))
    assert outcome.history.compaction is not None
    insertions = InsertionStore(setup.archive, DirectOutbox(setup.store), setup.clock, setup.erasures)
    anchor = client.chain[-1]
    said = ToolRound((b'{"role":"assistant","content":"let me see"}',), (b'{"role":"tool","content":"secret answer"}',))
    await insertions.add(
        ConversationRef(TENANT, SCOPE, session), ToolRoundInsertion(anchor, (said,), (), "let me see", 1.0), 0.0
    )
    recall = RecallInsertion(anchor, b'{"role":"user","content":"recalled"}', 1.0, ("art_1",))
    await insertions.add(ConversationRef(TENANT, SCOPE, session), recall, 0.0)
    await setup.say(session, client)
    return client, outcome.history.compaction


async def test_an_export_of_a_session_holds_all_that_is_kept_of_it(store):
    setup = ArchiveSetup(store)
    client, compaction = await compact_session(setup)
    found = await lines(setup, "s-1")
    assert {line["session"] for line in found[:-1]} == {"s-1"}
    by_kind = {kind: [line for line in found if line["type"] == kind] for kind in {line["type"] for line in found}}
    rows = {line["key"]: line["message"] for line in by_kind["row"]}
    assert [rows[key] for key in by_kind["transcript"][0]["messages"]] == [json.loads(m.wire) for m in client.messages]
    assert [rows[key]["role"] for key in by_kind["transcript"][0]["system"]] == ["system"]
    assert {line["artifact"]["id"] for line in by_kind["artifact"]} == set(compaction.artifacts)
    assert "word3_0_149" in "".join(line["text"] for line in by_kind["artifact"])
    assert all(key in rows for line in by_kind["artifact"] for key in line["artifact"]["keys"])
    [exported] = [line["compaction"] for line in by_kind["compaction"]]
    assert (exported["id"], exported["covered"], exported["removed"]) == (
        compaction.id,
        compaction.covered_count,
        compaction.tokens_saved,
    )
    assert (exported["narrated"], exported["narrated_from"]) == (
        compaction.narrative_end,
        compaction.narrative_start,
    )
    assert exported["steps"][0]["compactor"] == compaction.steps[0].strategy
    assert "secret answer" in json.dumps(by_kind["insertion"])
    assert "recalled" in json.dumps(by_kind["insertion"])
    assert found[-1]["counts"] == {kind: len(each) for kind, each in sorted(by_kind.items()) if kind != "end"}


async def test_an_export_of_a_tenant_holds_its_sessions_and_no_other_tenants():
    setup = ArchiveSetup()
    await setup.say("s-1", chat("one"))
    await setup.say("s-2", chat("two"))
    await setup.say("s-3", chat("theirs"), tenant=OTHER)
    found = await lines(setup)
    assert {line.get("session") for line in found} == {"s-1", "s-2", None}
    assert {line["message"]["content"] for line in found if line["type"] == "row"} == {
        "one", "two", "You are an agent.",
    }  # fmt: skip
    assert [line["type"] for line in await lines(setup, "s-9")] == ["end"]


async def test_json_with_line_breaks_stays_on_its_line():
    setup = ArchiveSetup()
    await setup.leave("a", wires=[b'{\n "role": "user",\n "content": "one\\ntwo"\n}'])
    [row] = [line for line in await lines(setup) if line["type"] == "row"]
    assert row["message"] == {"role": "user", "content": "one\ntwo"}


def names(store: InMemoryStore) -> set[str]:
    """All that there is but the notes of what was erased."""
    paths = {key.path for key in (*store._values, *store._logs)}
    return {path for path in paths if not path.strip().startswith("erased")}


async def test_erasing_a_session_leaves_no_trace_of_it():
    setup = ArchiveSetup()
    await compact_session(setup)
    erased = await setup.export_and_erasure.erase(TENANT, "s-1")
    assert erased.verified
    assert erased.entries >= 3
    assert erased.values > 20
    assert erased.shared == 0
    assert [line["type"] for line in await lines(setup, "s-1")] == ["end"]
    assert all(name.startswith("holders") for name in names(setup.store)), names(setup.store)


async def test_erasing_a_tenant_leaves_other_tenants_alone(store):
    setup = ArchiveSetup(store)
    await compact_session(setup)
    await setup.say("s-2", chat("two"))
    await setup.say("s-3", chat("theirs"), tenant=OTHER)
    assert (await setup.export_and_erasure.erase(TENANT)).verified
    assert [line["type"] for line in await lines(setup)] == ["end"]
    assert len(await setup.transcripts.read(OTHER, "s-3", 0, 9)) == 2
    assert await setup.export_and_erasure.erase(TENANT) == ErasureResult(0, 0, 0, True)


@pytest.mark.parametrize(
    ("prefix", "is_needed"), [("held/", True), ("contents/", True), ("transcript/", True), ("artifacts/", False)]
)
async def test_an_erasure_that_cannot_read_what_it_needs_says_so(prefix, is_needed):
    setup = ArchiveSetup()
    await compact_session(setup)
    spoiled = [key for key in setup.store._values if (key.collection or key.name).startswith(prefix)]
    for key in spoiled:
        await setup.store.put(key, b"\xc1")
    for key, log in setup.store._logs.items():
        if (key.collection or key.name).startswith(prefix):
            spoiled.append(key)
            log.entries = type(log.entries)([b"\xc1"])
    assert spoiled
    assert (await setup.export_and_erasure.erase(TENANT, "s-1")).verified is not is_needed
    assert [key for key in (*setup.store._values, *setup.store._logs) if key in spoiled] == []
    assert (await setup.export_and_erasure.erase(TENANT, "s-1")).verified


async def test_content_shared_with_another_session_outlives_an_erasure(store):
    setup = ArchiveSetup(store)
    first, second = chat("shared", "own"), chat("shared", "fork")
    await setup.say("s-1", first)
    await setup.say("s-2", second)
    [theirs] = await setup.leave("a", "s-2", [b'{"role":"user","content":"left"}'])
    erased = await setup.export_and_erasure.erase(TENANT, "s-1")
    assert (erased.verified, erased.shared) == (True, 4), "two messages, the tools, the options"
    assert await setup.transcripts.find(TENANT, "s-1") is None
    assert len([wire for wire in await setup.transcripts.read(TENANT, "s-2", 0, 9) if wire]) == 3
    assert await setup.store.get(row_key(first.messages[1].key)) is None
    assert await setup.there(theirs)


async def test_a_session_that_goes_on_after_it_was_erased_is_recorded_whole_again():
    setup = ArchiveSetup()
    await setup.say("s-1", chat("a", "b", "c"))
    await setup.export_and_erasure.erase(TENANT, "s-1")
    await setup.say("s-1", chat("a", "b", "c", "d", "e"))
    assert len(await setup.transcripts.read(TENANT, "s-1", 0, 9)) == 6
    assert None not in await setup.transcripts.read(TENANT, "s-1", 0, 9)


async def test_an_artifact_that_no_entry_lists_is_exported_and_erased_with_its_session():
    setup = ArchiveSetup()
    artifact = Artifact("art_1", "part", "chat", (b"k",), 0, 0, 0, session="s-1")
    row = ArchivedMessage(b"k", b'{"role":"user","content":"said"}')
    await setup.archive.write(setup.archive.build_puts(TENANT, [row], [artifact]))
    assert [line["type"] for line in await lines(setup, "s-1")] == ["artifact", "row", "end"]
    assert (await setup.export_and_erasure.erase(TENANT, "s-1")).verified
    assert await setup.archive.load_artifacts(TENANT, ["art_1"]) == [None]


async def test_several_hundred_sessions_are_erased_and_given_out():
    setup = ArchiveSetup(InMemoryStore(max_bytes=2**30))
    for at in range(300):
        await setup.leave(f"{at}", f"s-{at}", [b'{"role":"user","content":"%d"}' % at])
    assert (await lines(setup))[-1]["counts"] == {"artifact": 300, "row": 300}
    erased = await setup.export_and_erasure.erase(TENANT, "s-7")
    assert (erased.entries, erased.verified) == (1, True)
    erased = await setup.export_and_erasure.erase(TENANT)
    assert (erased.entries, erased.verified) == (299, True)
    assert {name for name in names(setup.store) if "compaction/" not in name} == set()
    assert await setup.store.get(Key("", "compaction/7")) is None
