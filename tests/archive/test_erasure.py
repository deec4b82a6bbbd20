from __future__ import annotations

import json
from typing import Any

from accordion.archive.artifacts import ArchivedMessage, Artifact, row_key
from accordion.archive.erasure import ErasureResult
from accordion.insertions.store import InsertionStore
from accordion.model.insertions import RecallInsertion, ToolRound, ToolRoundInsertion
from accordion.model.ports import Key
from accordion.model.tenant import ConversationRef, TenantScope
from accordion.stores.memory_store import InMemoryStore
from tests.archive.archive_setup import OTHER, TENANT, Vault, chat
from tests.compaction.compactor_setup import SCOPE, House, conversation, long_history
from tests.fakes import DirectOutbox


async def lines(vault: Vault, session: str | None = None, tenant: TenantScope = TENANT) -> list[dict[str, Any]]:
    found = [line async for line in vault.custody.export(tenant, session)]
    assert all(line.count(b"\n") == 1 for line in found)
    return [json.loads(line) for line in found]


async def compact_session(vault: Vault, session: str = "s-1", turns: int = 8) -> Any:
    """A real fold, with all that goes with it."""
    house = House(store=vault.store, sealer=vault.sealer)
    client = conversation(long_history(turns), "chat")
    outcome = await house.compactor.compact(house.case(client, ref=ConversationRef(TENANT, SCOPE, session)), client)
    assert outcome.history.compaction is not None
    overlays = InsertionStore(vault.archive, DirectOutbox(vault.store), vault.clock, vault.erasures)
    anchor = client.chain[-1]
    said = ToolRound((b'{"role":"assistant","content":"let me see"}',), (b'{"role":"tool","content":"secret answer"}',))
    await overlays.add(
        ConversationRef(TENANT, SCOPE, session), ToolRoundInsertion(anchor, (said,), (), "let me see", 1.0), 0.0
    )
    recall = RecallInsertion(anchor, b'{"role":"user","content":"recalled"}', 1.0, ("art_1",))
    await overlays.add(ConversationRef(TENANT, SCOPE, session), recall, 0.0)
    await vault.say(session, client)
    return client, outcome.history.compaction


async def test_an_export_of_a_session_holds_all_that_is_kept_of_it(store):
    vault = Vault(store)
    client, compaction = await compact_session(vault)
    found = await lines(vault, "s-1")
    assert {line["session"] for line in found[:-1]} == {"s-1"}
    by_kind = {kind: [line for line in found if line["type"] == kind] for kind in {line["type"] for line in found}}
    rows = {line["key"]: line["message"] for line in by_kind["row"]}
    assert [rows[key] for key in by_kind["transcript"][0]["messages"]] == [json.loads(m.wire) for m in client.messages]
    assert [rows[key]["role"] for key in by_kind["transcript"][0]["system"]] == ["system"]
    assert {line["artifact"]["id"] for line in by_kind["artifact"]} == set(compaction.artifacts)
    assert "word3_0_149" in "".join(line["text"] for line in by_kind["artifact"])
    assert all(key in rows for line in by_kind["artifact"] for key in line["artifact"]["keys"])
    [fold] = [line["fold"] for line in by_kind["fold"]]
    assert (fold["id"], fold["covered"], fold["removed"]) == (
        compaction.id,
        compaction.message_count,
        compaction.tokens_saved,
    )
    assert (fold["narrated"], fold["narrated_from"]) == (compaction.narrative_end, compaction.narrative_start)
    assert fold["steps"][0]["compactor"] == compaction.steps[0].compactor
    assert "secret answer" in json.dumps(by_kind["overlay"])
    assert "recalled" in json.dumps(by_kind["overlay"])
    assert found[-1]["counts"] == {kind: len(each) for kind, each in sorted(by_kind.items()) if kind != "end"}


async def test_an_export_of_a_tenant_holds_its_sessions_and_no_other_tenants():
    vault = Vault()
    await vault.say("s-1", chat("one"))
    await vault.say("s-2", chat("two"))
    await vault.say("s-3", chat("theirs"), tenant=OTHER)
    found = await lines(vault)
    assert {line.get("session") for line in found} == {"s-1", "s-2", None}
    assert {line["message"]["content"] for line in found if line["type"] == "row"} == {
        "one", "two", "You are an agent.",
    }  # fmt: skip
    assert [line["type"] for line in await lines(vault, "s-9")] == ["end"]


async def test_json_with_line_breaks_stays_on_its_line():
    vault = Vault()
    await vault.leave("a", wires=[b'{\n "role": "user",\n "content": "one\\ntwo"\n}'])
    [row] = [line for line in await lines(vault) if line["type"] == "row"]
    assert row["message"] == {"role": "user", "content": "one\ntwo"}


def names(store: InMemoryStore) -> set[str]:
    """All that there is but the notes of what was erased."""
    paths = {key.path for key in (*store._values, *store._logs)}
    return {path for path in paths if not path.strip().startswith("erased")}


async def test_what_was_erased_of_a_session_is_gone_without_a_trace():
    vault = Vault()
    await compact_session(vault)
    erased = await vault.custody.erase(TENANT, "s-1")
    assert erased.verified
    assert erased.entries >= 3
    assert erased.values > 20
    assert erased.shared == 0
    assert [line["type"] for line in await lines(vault, "s-1")] == ["end"]
    assert all(name.startswith("holders") for name in names(vault.store)), names(vault.store)


async def test_what_was_erased_of_a_tenant_is_gone_and_another_tenants_is_not(store):
    vault = Vault(store)
    await compact_session(vault)
    await vault.say("s-2", chat("two"))
    await vault.say("s-3", chat("theirs"), tenant=OTHER)
    assert (await vault.custody.erase(TENANT)).verified
    assert [line["type"] for line in await lines(vault)] == ["end"]
    assert len(await vault.transcripts.read(OTHER, "s-3", 0, 9)) == 2
    assert await vault.custody.erase(TENANT) == ErasureResult(0, 0, 0, True)


async def test_what_another_session_names_too_stays_when_one_is_erased(store):
    vault = Vault(store)
    first, second = chat("shared", "own"), chat("shared", "fork")
    await vault.say("s-1", first)
    await vault.say("s-2", second)
    [theirs] = await vault.leave("a", "s-2", [b'{"role":"user","content":"left"}'])
    erased = await vault.custody.erase(TENANT, "s-1")
    assert (erased.verified, erased.shared) == (True, 4), "two messages, the tools, the options"
    assert await vault.transcripts.find(TENANT, "s-1") is None
    assert len([wire for wire in await vault.transcripts.read(TENANT, "s-2", 0, 9) if wire]) == 3
    assert await vault.store.get(row_key(first.messages[1].key)) is None
    assert await vault.there(theirs)


async def test_a_session_that_goes_on_after_it_was_erased_is_recorded_whole_again():
    vault = Vault()
    await vault.say("s-1", chat("a", "b", "c"))
    await vault.custody.erase(TENANT, "s-1")
    await vault.say("s-1", chat("a", "b", "c", "d", "e"))
    assert len(await vault.transcripts.read(TENANT, "s-1", 0, 9)) == 6
    assert None not in await vault.transcripts.read(TENANT, "s-1", 0, 9)


async def test_an_artifact_that_no_entry_lists_is_given_out_and_erased_by_its_sessions_list():
    vault = Vault()
    artifact = Artifact("art_1", "part", "chat", (b"k",), 0, 0, 0, session="s-1")
    row = ArchivedMessage(b"k", b'{"role":"user","content":"said"}')
    await vault.archive.keep(vault.archive.build_puts(TENANT, [row], [artifact]))
    assert [line["type"] for line in await lines(vault, "s-1")] == ["artifact", "row", "end"]
    assert (await vault.custody.erase(TENANT, "s-1")).verified
    assert await vault.archive.load_artifacts(TENANT, ["art_1"]) == [None]


async def test_several_hundred_sessions_are_erased_and_given_out():
    vault = Vault(InMemoryStore(max_bytes=2**30))
    for at in range(300):
        await vault.leave(f"{at}", f"s-{at}", [b'{"role":"user","content":"%d"}' % at])
    assert (await lines(vault))[-1]["counts"] == {"artifact": 300, "row": 300}
    erased = await vault.custody.erase(TENANT, "s-7")
    assert (erased.entries, erased.verified) == (1, True)
    erased = await vault.custody.erase(TENANT)
    assert (erased.entries, erased.verified) == (299, True)
    assert {name for name in names(vault.store) if "fold/" not in name} == set()
    assert await vault.store.get(Key("", "fold/7")) is None
