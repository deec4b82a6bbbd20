from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from accordion.archive.archive import Archive
from accordion.archive.artifacts import artifact_text
from accordion.archive.erasure import ExportAndErasure
from accordion.archive.erasure_notices import ErasureNotices
from accordion.compaction.compactor import report_compaction
from accordion.compaction.rendering import RequestRenderer
from accordion.compaction.request import CompactionResult
from accordion.model.conversation import Conversation, Message
from accordion.model.errors import StoreUnavailable
from accordion.model.plan import Summarize
from accordion.model.ports import Put
from accordion.protocols.registry import PROTOCOLS
from accordion.stores.memory_store import InMemoryStore
from tests.compaction.compactor_setup import (
    CONVERSATION,
    SCOPE,
    TENANT,
    CompactorSetup,
    Strategy,
    archive_results,
    conversation,
    drop_most,
    long_history,
    summarize_most,
    with_long_results,
)
from tests.fakes import FickleStore
from tests.histories import PROTOCOL_NAMES, History, ProtocolName, Turn, body, histories
from tests.tiers import examples

_PATIENT = [HealthCheck.too_slow, HealthCheck.filter_too_much]
SLOW = settings(max_examples=examples(25), deadline=None, suppress_health_check=_PATIENT)
ANY = st.sampled_from([summarize_most, drop_most, archive_results])
FORCED = {"is_requested": True}


class Fragile(FickleStore):
    """A store that can be away, for writes or for all."""

    def __init__(self) -> None:
        super().__init__()
        self.claims_away = False

    @property
    def is_available(self):
        return not (self.away or self.claims_away)

    async def put_if_absent(self, key, value, *, ttl=None):
        if self.claims_away:
            raise StoreUnavailable("away")
        return await super().put_if_absent(key, value, ttl=ttl)

    async def write(self, batch):
        if self.claims_away and any(isinstance(write, Put) and write.if_absent for write in batch):
            raise StoreUnavailable("away")
        return await super().write(batch)


async def compact(setup: CompactorSetup, client: Conversation, **changes: Any) -> CompactionResult:
    """What one request of this conversation comes to: replay, then a compaction."""
    protocol = PROTOCOLS[client.protocol_name]
    compacted = await setup.compactions.find(protocol, CONVERSATION, client, check_store=False)
    return await setup.compactor.compact(setup.case(client, compacted, **changes))


def wires(outcome: CompactionResult) -> list[bytes]:
    return [message.wire for message in outcome.history.conversation.messages]


def entries(outcome: CompactionResult, protocol_name: str) -> list[bytes]:
    return RequestRenderer().render_entries(PROTOCOLS[protocol_name], outcome.history)


# -- what a compaction comes to ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_a_compaction_is_made_told_and_found_again(protocol_name: ProtocolName):
    client, setup = conversation(long_history(6), protocol_name), CompactorSetup()
    outcome = await compact(setup, client)
    compaction, seen = outcome.history.compaction, outcome.outcome
    assert compaction is not None
    assert seen is not None
    assert seen == report_compaction(compaction, "compacted", setup.case(client).decision)
    assert (seen.state, seen.is_triggered, seen.cause, seen.strategy_runs) == ("compacted", True, "automatic", 1)
    assert [step[0] for step in seen.steps] == ["by_hand"]
    assert seen.steps[0][1:] == (seen.before, seen.after)
    assert seen.utilization == round(setup.case(client).utilization.ratio, 4)
    assert seen.writer == "extractive"
    again = await setup.compactions.find(PROTOCOLS[protocol_name], CONVERSATION, client, check_store=True)
    assert again.compaction == compaction
    assert report_compaction(compaction, "replayed").is_triggered is False


async def test_utilization_is_not_told_where_the_trigger_is_zero():
    outcome = await compact(CompactorSetup(), conversation(long_history(6), "chat"), decision={"trigger": 0})
    assert outcome.outcome is not None
    assert outcome.outcome.utilization is None
    assert outcome.outcome.state == "compacted"


async def test_a_decision_to_pass_changes_nothing():
    client, setup = conversation(long_history(6), "chat"), CompactorSetup()
    outcome = await compact(setup, client, decision={"action": "pass"})
    assert outcome == CompactionResult(outcome.history)
    assert outcome.history.conversation is client
    assert setup.planner.planned == 0


async def test_a_dry_run_stores_nothing():
    store = InMemoryStore()
    client, setup = conversation(long_history(6), "chat"), CompactorSetup(store=store)
    outcome = await compact(setup, client, is_dry_run=True)
    assert outcome.outcome is not None
    assert outcome.outcome.state == "compacted"
    assert store.size == 0


async def test_where_no_summary_can_be_used_the_next_smaller_form_is_made_if_one_must_be():
    def broken(view):
        raise RuntimeError("a strategy broke over the user's words")

    client = conversation(long_history(6), "chat")
    for propose in (broken, lambda view: ()):
        setup = CompactorSetup(propose)
        assert (await compact(setup, client)).history.compaction is None
        made = await compact(setup, client, decision={"must_succeed": True})
        assert made.history.compaction is not None
        assert made.outcome is not None
        assert made.outcome.steps[0][0] == "plain"
        assert made.outcome.strategy_runs == 2


async def test_an_error_is_told_without_what_it_quotes():
    def broken(view):
        raise RuntimeError("the user's words")

    outcome = await compact(CompactorSetup(broken), conversation(long_history(6), "chat"))
    assert outcome.outcome is not None
    assert "user's words" not in outcome.outcome.reason
    assert "RuntimeError in broken" in outcome.outcome.reason


async def test_a_fruitless_plan_is_not_repeated_until_the_history_grew_by_a_tenth():
    setup = CompactorSetup(lambda view: (Summarize(1, 1, 5, "note"),))
    for turns in (20, 20, 21):
        client = conversation(long_history(turns), "chat")
        outcome = await compact(setup, client)
        assert outcome.history.conversation is client
        assert outcome.outcome is not None
        assert outcome.outcome.state == "failed"
        assert "gain only" in outcome.outcome.reason
    assert setup.planner.planned == 1
    assert "not tried again" in outcome.outcome.reason
    # Another history under the same name, a history that has grown, and a compaction that must be are tried.
    await compact(setup, conversation(long_history(20, words=151), "chat"))
    assert setup.planner.planned == 2
    await compact(setup, conversation(long_history(20), "chat"))
    await compact(setup, conversation(long_history(23), "chat"))
    assert setup.planner.planned == 4
    for allowed in ({"must_succeed": True}, {"is_requested": True}, {"trigger": 0}):
        await compact(setup, conversation(long_history(23), "chat"), decision=allowed)
    assert setup.planner.planned == 7


async def test_a_store_that_was_away_does_not_count_as_a_try():
    store, client = Fragile(), conversation(long_history(6), "chat")
    setup = CompactorSetup(store=store)
    store.away = True
    await compact(setup, client)
    store.away = False
    assert (await compact(setup, client)).history.compaction is not None


# -- one at a time ---------------------------------------------------------------------------------------------------


async def test_requests_of_one_conversation_share_one_compact():
    client, setup = conversation(long_history(6), "chat"), CompactorSetup()
    outcomes = await asyncio.gather(*(compact(setup, client) for _ in range(5)))
    assert setup.planner.planned == 1
    assert len({outcome.history.compaction.id for outcome in outcomes if outcome.history.compaction}) == 1
    assert sorted(outcome.outcome.state for outcome in outcomes if outcome.outcome) == ["compacted"] + ["replayed"] * 4


async def test_another_conversation_does_not_wait():
    setup = CompactorSetup()
    slow = asyncio.Event()
    gates: list[str] = []

    async def offload(call, *args):
        gates.append("in")
        if len(gates) == 1:
            await slow.wait()
        return call(*args)

    setup.tasks.offload = offload  # type: ignore[method-assign]
    one = asyncio.create_task(compact(setup, conversation(long_history(6), "chat")))
    await asyncio.sleep(0)
    other = conversation(long_history(7), "chat")
    assert (await compact(setup, other, session="s-2")).history.compaction is not None
    assert not one.done()
    slow.set()
    assert (await one).history.compaction is not None


async def test_a_waiting_request_compacts_itself_if_the_first_one_left():
    client, setup = conversation(long_history(6), "chat"), CompactorSetup()
    first = asyncio.create_task(compact(setup, client))
    second = asyncio.create_task(compact(setup, client))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    outcome = await second
    assert outcome.history.compaction is not None
    assert outcome.outcome is not None
    assert outcome.outcome.state == "compacted"


async def test_two_workers_that_compact_at_once_use_the_same_compact():
    """Also where they would compact at two places."""
    store, client = InMemoryStore(), conversation(long_history(6), "chat")
    one, other = CompactorSetup(store=store), CompactorSetup(archive_results, store=store)
    other.clock.advance(5)
    made = await asyncio.gather(compact(one, client), compact(other, client))
    third = await compact(CompactorSetup(store=store), client, decision={"action": "pass"})
    assert third.history.compaction is None
    found = await CompactorSetup(store=store).compactions.find(
        PROTOCOLS["chat"], CONVERSATION, client, check_store=True
    )
    assert found.compaction is not None
    assert [each.history.compaction for each in made] == [found.compaction] * 2
    assert sorted(each.outcome.state for each in made if each.outcome is not None) == ["compacted", "replayed"]


# -- the store -------------------------------------------------------------------------------------------------------


async def test_without_an_archive_no_message_leaves():
    store, client = Fragile(), conversation(long_history(6), "chat")
    store.away = True
    outcome = await compact(CompactorSetup(store=store), client)
    assert outcome.history.conversation is client
    assert outcome.outcome is not None
    assert (outcome.outcome.state, outcome.is_stored_locally_only) == ("failed", False)


@pytest.mark.parametrize("only_claims", [False, True])
async def test_a_compaction_that_must_be_goes_to_the_spool_and_is_published_later(only_claims: bool):
    store, client = Fragile(), conversation(long_history(6), "chat")
    setup = CompactorSetup(store=store, has_spool=True)
    store.away, store.claims_away = not only_claims, True
    outcome = await compact(setup, client, decision={"must_succeed": True})
    assert outcome.is_stored_locally_only
    assert outcome.history.compaction is not None
    assert (await compact(setup, client, decision={"action": "pass"})).history.compaction == outcome.history.compaction
    store.away = store.claims_away = False
    await setup.spooled.publish()
    other = await CompactorSetup(store=store).compactions.find(
        PROTOCOLS["chat"], CONVERSATION, client, check_store=True
    )
    assert other.compaction == outcome.history.compaction
    assert all(await setup.archive.load_artifacts(TENANT, outcome.history.compaction.artifacts))
    assert setup.spooled.is_empty


async def test_a_compaction_of_the_spool_that_comes_second_gives_way():
    store, client = Fragile(), conversation(long_history(6), "chat")
    setup = CompactorSetup(store=store, has_spool=True)
    store.away = True
    mine = await compact(setup, client, decision={"must_succeed": True})
    store.away = False
    elsewhere = CompactorSetup(store=store)
    elsewhere.clock.advance(7)
    theirs = await compact(elsewhere, client)
    assert theirs.history.compaction != mine.history.compaction
    await setup.spooled.publish()
    again = await compact(setup, client, decision={"action": "pass"})
    assert again.history.compaction == theirs.history.compaction


async def test_a_full_spool_leaves_the_request_as_it_came():
    store, client = Fragile(), conversation(long_history(6), "chat")
    store.away = True
    setup = CompactorSetup(store=store, has_spool=True, spool_bytes=100)
    outcome = await compact(setup, client, decision={"must_succeed": True})
    assert outcome.history.conversation is client
    assert outcome.outcome is not None
    assert outcome.outcome.state == "failed"


async def test_the_archive_is_written_before_the_compaction_is_known():
    order: list[str] = []

    class Watching(InMemoryStore):
        async def write(self, batch):
            order.extend(write.key.name.split("/")[0] for write in batch if isinstance(write, Put))
            await super().write(batch)

        async def put_if_absent(self, key, value, *, ttl=None):
            order.append(key.name.split("/")[0])
            return await super().put_if_absent(key, value, ttl=ttl)

    await compact(CompactorSetup(store=Watching()), conversation(long_history(6), "chat"))
    assert order[-1] == "compaction"
    assert "row" in order


class Erased(InMemoryStore):
    """A store whose session another worker erases after the archive was written, before the first claim."""

    erase: Callable[[], Awaitable[object]] | None = None

    async def put_if_absent(self, key, value, *, ttl=None):
        if self.erase is not None:
            erase, self.erase = self.erase, None
            await erase()
        return await super().put_if_absent(key, value, ttl=ttl)


async def test_a_compaction_whose_session_is_erased_before_its_claim_does_not_return():
    store, client = Erased(), conversation(long_history(6), "chat")
    setup = CompactorSetup(store=store)
    other = ErasureNotices(store, setup.clock, 100.0)

    async def drop_nothing() -> list[Put]:
        return []

    export_and_erasure = ExportAndErasure(
        Archive(store), setup.tasks, lambda *_: None, lambda *_: pytest.fail("nothing is read"), other, drop_nothing
    )
    session = setup.case(client).ref.session

    async def erase() -> None:
        setup.clock.advance(1)
        assert (await export_and_erasure.erase(TENANT, session)).verified

    store.erase = erase
    outcome = await compact(setup, client)
    assert outcome.history.compaction is not None
    anew = await CompactorSetup(store=store).compactions.find(PROTOCOLS["chat"], CONVERSATION, client, check_store=True)
    assert anew.compaction is None
    assert (await compact(setup, client, decision={"action": "pass"})).history.compaction is None
    assert await setup.archive.load_rows(TENANT, [message.key for message in client.messages]) == {}


# -- nothing is lost -------------------------------------------------------------------------------------------------


def grown(history: History, turns: int) -> History:
    """The beginning of a history, ending with a question."""
    return History((*history.turns[:turns], Turn(("And then?",))), history.system)


async def recovered(setup: CompactorSetup, outcome: CompactionResult, client: Conversation) -> dict[bytes, bytes]:
    """What the archive has of this compaction's artifacts, by message key."""
    assert outcome.history.compaction is not None
    found = await setup.archive.load_artifacts(TENANT, outcome.history.compaction.artifacts)
    assert all(found)
    keys = list({key for artifact in found if artifact for key in artifact.keys})
    return await setup.archive.load_rows(TENANT, keys)


@given(histories(min_turns=3, max_turns=5), st.sampled_from(PROTOCOL_NAMES), ANY)
@SLOW
def test_all_that_a_compaction_removes_or_replaces_can_be_had_back_byte_for_byte(
    history: History, protocol_name: ProtocolName, propose: Strategy
):
    async def run() -> None:
        setup = CompactorSetup(propose)
        for turns in range(2, len(history.turns) + 1):
            client = conversation(grown(with_long_results(history), turns), protocol_name)
            outcome = await compact(setup, client, decision=FORCED)
            if outcome.history.compaction is None:
                continue
            rows = {}
            sent = set(wires(outcome))
            for message in client.messages:
                if message.wire in sent:
                    continue
                rows |= await setup.archive.load_rows(TENANT, [message.key])
                assert rows[message.key] == message.wire

    asyncio.run(run())


@given(
    histories(min_turns=3, max_turns=4),
    st.sampled_from(PROTOCOL_NAMES),
    st.sampled_from([summarize_most, archive_results]),
)
@SLOW
def test_every_artifact_can_be_read_and_holds_what_left(
    history: History, protocol_name: ProtocolName, propose: Strategy
):
    async def run() -> None:
        setup = CompactorSetup(propose)
        client = conversation(grown(with_long_results(history), len(history.turns)), protocol_name)
        outcome = await compact(setup, client, decision=FORCED)
        assume(outcome.history.compaction is not None)
        rows = await recovered(setup, outcome, client)
        read = setup.reader.reader_for(PROTOCOLS[protocol_name], TENANT)
        texts = ""
        for artifact in await setup.archive.load_artifacts(TENANT, outcome.history.compaction.artifacts):
            messages: list[Message] = [read(rows[key]) for key in artifact.keys]
            texts += artifact_text(artifact, messages)
        forwarded = b"".join(wires(outcome)).decode()
        for turn in history.turns:
            for round_ in turn.rounds:
                for call in round_.calls:
                    marker = f"{call.id}_119"
                    assert marker in forwarded or marker in texts

    asyncio.run(run())


async def test_an_id_that_a_reference_names_leads_to_the_whole_result():
    client, setup = conversation(long_history(6), "messages"), CompactorSetup(archive_results)
    outcome = await compact(setup, client)
    read = setup.reader.reader_for(PROTOCOLS["messages"], TENANT)
    named = [
        artifact for artifact in outcome.history.compaction.artifacts if artifact in b"".join(wires(outcome)).decode()
    ]
    assert len(named) >= 4
    for artifact in await setup.archive.load_artifacts(TENANT, named):
        assert artifact is not None
        rows = await setup.archive.load_rows(TENANT, artifact.keys)
        text = artifact_text(artifact, [read(rows[key]) for key in artifact.keys])
        assert text.startswith('## Tool: read\n**Input:** {"path":')
        assert f"word{text.split('word')[1].split('_')[0]}_0_149" in text
        assert (artifact.tool, artifact.kind, artifact.scope) == ("read", "result", SCOPE)


async def test_skipped_tools_make_no_artifacts_of_their_own_but_their_messages_are_kept():
    history = long_history(6)
    call = history.turns[0].rounds[0].calls[0]
    handed = replace(call, name="transfer_to_writer")
    turn = replace(history.turns[0], rounds=(replace(history.turns[0].rounds[0], calls=(handed,)),))
    client = conversation(replace(history, turns=(turn, *history.turns[1:])), "chat")
    setup = CompactorSetup(summarize_most)
    outcome = await compact(setup, client)
    found = await setup.archive.load_artifacts(TENANT, outcome.history.compaction.artifacts)
    assert {artifact.tool for artifact in found if artifact.kind == "result"} == {"read"}
    rows = await recovered(setup, outcome, client)
    result = next(message for message in client.messages if message.has_tool_result)
    assert rows[result.key] == result.wire


async def test_an_artifact_is_stored_once_however_often_its_history_is_compacted():
    store = InMemoryStore()
    setup = CompactorSetup(summarize_most, store=store)
    ids: list[tuple[str, ...]] = []
    for turns in (4, 6, 8):
        outcome = await compact(setup, conversation(long_history(turns), "chat"), decision=FORCED)
        assert outcome.history.compaction is not None
        ids.append(outcome.history.compaction.artifacts)
    assert set(ids[0]) < set(ids[1]) < set(ids[2])
    listed = await setup.archive.list_artifacts(TENANT, "s-1")
    assert sorted(artifact.id for artifact in listed) == sorted(ids[2])
    results = [artifact.call_id for artifact in listed if artifact.kind == "result"]
    assert len(results) == len(set(results))


# -- the prefix ------------------------------------------------------------------------------------------------------


@given(histories(min_turns=3, max_turns=6), st.sampled_from(PROTOCOL_NAMES), ANY, st.integers(2, 3))
@SLOW
def test_each_request_begins_with_the_one_before_after_a_restart_too(
    history: History, protocol_name: ProtocolName, propose: Strategy, first: int
):
    async def run() -> None:
        store = InMemoryStore()
        whole = with_long_results(history)
        outcome = await compact(
            CompactorSetup(propose, store=store), conversation(grown(whole, first), protocol_name), decision=FORCED
        )
        assume(outcome.history.compaction is not None)
        before, body_before = entries(outcome, protocol_name), b""
        for turns in range(first, len(whole.turns) + 1):
            # The question that was asked is answered, and another one follows.
            asked = Turn(("And then?",), answer="So.")
            later = History((*whole.turns[:first], asked, *whole.turns[first:turns], Turn(("Go on.",))), whole.system)
            client = conversation(later, protocol_name)
            setup = CompactorSetup(propose, store=store)
            found = await setup.compactions.find(PROTOCOLS[protocol_name], CONVERSATION, client, check_store=True)
            assert found.compaction == outcome.history.compaction
            rendering = RequestRenderer()
            now = rendering.render_entries(PROTOCOLS[protocol_name], found)
            assert now[: len(before)] == before
            body_now = rendering.render_body(PROTOCOLS[protocol_name], found)
            assert json.loads(body_now).get("model") == body(whole, protocol_name).get("model")
            assert body_now.startswith(body_before[: body_before.rfind(b"Go on.") - 200 if body_before else 0])
            before, body_before = now[:-1], body_now

    asyncio.run(run())


async def test_a_compaction_whose_base_the_store_lost_is_forwarded_and_not_stored():
    """The store was emptied, and this worker has not noticed yet."""
    store = InMemoryStore()
    setup = CompactorSetup(store=store)
    client = conversation(long_history(6), "chat")
    first = await compact(setup, client)
    grown = conversation(long_history(9), "chat")
    assert (
        await setup.compactions.find(PROTOCOLS["chat"], CONVERSATION, grown, check_store=False)
    ).compaction is not None
    store._values.clear()
    second = await compact(setup, grown)
    made, base = second.history.compaction, first.history.compaction
    assert made is not None
    assert base is not None
    assert made.generation > base.generation
    setup.compactions.forget()
    assert (await setup.compactions.find(PROTOCOLS["chat"], CONVERSATION, grown, check_store=True)).compaction is None
    third = (await compact(setup, grown)).history.compaction
    assert third is not None
    assert all(await setup.archive.load_artifacts(TENANT, third.artifacts))
