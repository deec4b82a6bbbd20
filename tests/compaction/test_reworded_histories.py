"""Compactions of a client that sends earlier messages in another form."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.compaction.repository import CompactionRepository, decode, encode
from accordion.model.compaction import (
    Compaction,
    CompactionEntry,
    StrategyRecord,
    adapt_compaction,
    with_content_id,
    with_forms,
)
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key
from accordion.protocols.registry import PROTOCOLS
from accordion.stores.memory_store import InMemoryStore
from tests.compaction.compactor_setup import CONVERSATION, read
from tests.equivalent_entries import reform
from tests.fakes import FakeWindows
from tests.histories import PROTOCOL_NAMES, Call, History, HistoryRound, Json, ProtocolName, Turn, entries
from tests.pipeline_setup import PATHS, PipelineSetup, header
from tests.protocols.edit_samples import write_message
from tests.sessions.test_message_forms import without_reasoning
from tests.tiers import examples
from tests.writers import LISTS


def work(turns: int, words: int = 3) -> list[Turn]:
    return [
        Turn(
            (f"Do thing {at}.",),
            (
                HistoryRound(
                    (Call(f"call_{at}", "read", {"path": f"f{at}"}, " ".join(f"w{at}_{n}" for n in range(words))),),
                    "",
                    f"hm {at}",
                ),
            ),
            f"Turn {at} is done.",
        )
        for at in range(turns)
    ]


def request(listed: list[Json], protocol_name: ProtocolName) -> Json:
    extra = {"max_tokens": 9} if protocol_name == "messages" else {}
    return {"model": "m", LISTS[protocol_name]: listed, **extra}


def conversation(listed: list[Json], protocol_name: ProtocolName) -> Conversation:
    return read(request(listed, protocol_name), protocol_name)


def block(client: Conversation, covered: int, *entries: Any, protocol_name: ProtocolName = "chat") -> Compaction:
    """A record that puts a text in place of all but the first of the covered messages; `entries` follow it."""
    end = entries[0].first if entries else covered
    text = CompactionEntry(1, end - 1, PROTOCOLS[protocol_name].text_message("what was"))
    made = Compaction(
        id="", anchor=client.chain[covered - 1], covered_count=covered, entries=(CompactionEntry(0, 0), text, *entries),
        kind="conversation", cause="automatic", utilization=0.5, steps=(StrategyRecord("summarize", 100, 10),),
        before=100, after=10, generation=1, at=12.5, narrative_end=end, narrative_start=1,
    )  # fmt: skip
    return with_content_id(with_forms(made, client))


async def find(compactions: CompactionRepository, protocol_name: ProtocolName, of: Conversation, **form: bool) -> Any:
    return await compactions.find(PROTOCOLS[protocol_name], CONVERSATION, of, check_store=False, **form)


# -- adapting ----------------------------------------------------------------------------------------------------------


def test_a_block_stands_for_the_same_messages_where_reasoning_items_are_gone() -> None:
    listed = entries(History(tuple(work(3))), "responses")
    client, bare = conversation(listed, "responses"), conversation(without_reasoning(listed), "responses")
    assert [message.wire for message in bare.messages[:5]] == [client.messages[at].wire for at in (0, 2, 3, 4, 5)]
    made = block(client, 8, CompactionEntry(7, 7), protocol_name="responses")
    adapted = adapt_compaction(bare, made)
    assert adapted is not None
    assert (adapted.covered_count, adapted.anchor) == (6, bare.chain[5])
    assert adapted.entries == (CompactionEntry(0, 0), replace(made.entries[1], first=1, last=4), CompactionEntry(5, 5))
    assert (adapted.narrative_end, adapted.narrative_start) == (5, 1)
    assert adapted.reasoning == ()


def test_reasoning_that_a_compaction_left_is_left_and_what_it_removed_stays_removed() -> None:
    listed = entries(History(tuple(work(2))), "responses")
    other = [entry | {"encrypted_content": "new"} if entry.get("type") == "reasoning" else entry for entry in listed]
    client, changed = conversation(listed, "responses"), conversation(other, "responses")
    assert [at for at, entry in enumerate(listed) if entry.get("type") == "reasoning"] == [1, 6]
    adapted = adapt_compaction(changed, block(client, 8, CompactionEntry(5, 7), protocol_name="responses"))
    assert adapted is not None
    assert adapted.entries[-1] == CompactionEntry(5, 7)
    # The item 6 was removed.
    adapted = adapt_compaction(
        changed, block(client, 8, CompactionEntry(5, 5), CompactionEntry(7, 7), protocol_name="responses")
    )
    assert adapted is not None
    assert adapted.entries[2:] == (CompactionEntry(5, 5), CompactionEntry(7, 7))


def test_an_edit_is_used_again_only_for_the_message_that_it_was_made_from() -> None:
    listed = entries(History(tuple(work(2))), "chat")
    client, bare = conversation(listed, "chat"), conversation(without_reasoning(listed), "chat")
    edits = [
        CompactionEntry(at, at, json.dumps(listed[at] | {"content": "shorter"}).encode(), is_edited=True)
        for at in (5, 6)
    ]
    made = block(client, 7, *edits)
    adapted = adapt_compaction(bare, made)
    assert adapted is not None
    # The message with the call had reasoning, which the client has left out; the result is as it was.
    assert adapted.entries[2:] == (CompactionEntry(5, 5), edits[1])


def test_a_list_that_says_something_else_gets_nothing() -> None:
    listed = entries(History(tuple(work(3))), "chat")
    made = block(conversation(listed, "chat"), 6)
    other = [listed[0], listed[1], listed[2] | {"content": "another result"}, *listed[3:]]
    assert adapt_compaction(conversation(other, "chat"), made) is None
    assert adapt_compaction(conversation(without_reasoning(listed), "chat"), made) is not None


def test_the_forms_are_stored_and_damage_to_them_is_detected() -> None:
    client = conversation(entries(History(tuple(work(3))), "responses"), "responses")
    made = block(client, 7, protocol_name="responses")
    assert made.reasoning == (1, 6)
    assert decode(encode(made)) == made
    assert decode(encode(made).replace(encode(made)[-4:], b"\0\0\0\0")) is None


# -- finding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_a_compaction_is_found_in_another_form_by_this_worker_and_by_others(protocol_name: ProtocolName) -> None:
    store, listed = InMemoryStore(), entries(History((*work(3), Turn(("And now?",)))), protocol_name)
    client, bare = conversation(listed, protocol_name), conversation(without_reasoning(listed), protocol_name)
    covered = 1 + next(at for at, message in enumerate(client.messages) if b"Turn 1" in message.wire)
    used: list[Compaction] = []
    compactions = CompactionRepository(store, on_use=lambda _ref, _conversation, compaction: used.append(compaction))
    made = block(client, covered, protocol_name=protocol_name)
    await compactions.publish(CONVERSATION, client.chain[0], made)
    assert (await find(compactions, protocol_name, bare)).compaction is None
    for each in (compactions, CompactionRepository(store)):
        found = await find(each, protocol_name, bare, has_same_form=False)
        assert found.compaction.anchor in bare.chain
        assert [m.wire for m in found.conversation.messages[2:]] == [
            m.wire for m in bare.messages[found.compaction.covered_count :]
        ]
        # From then on it is found as any other, and again where it has left memory.
        assert (await find(each, protocol_name, bare, had_other_form=True)).compaction == found.compaction
        each.forget()
        again = await each.find(PROTOCOLS[protocol_name], CONVERSATION, bare, check_store=True, had_other_form=True)
        assert again.compaction == found.compaction
    # What is renewed is what was published.
    assert set(used) == {made}


async def test_another_form_that_could_not_be_looked_up_is_looked_up_again() -> None:
    class Slow(InMemoryStore):
        is_slow = True

        async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
            if self.is_slow and any(key.name.startswith("form/") for key in keys):
                raise StoreUnavailable("too slow")
            return await super().get_many(keys)

    store, listed = Slow(), entries(History((*work(3), Turn(("And now?",)))), "chat")
    client, bare = conversation(listed, "chat"), conversation(without_reasoning(listed), "chat")
    await CompactionRepository(store).publish(CONVERSATION, client.chain[0], block(client, 8))
    compactions = CompactionRepository(store)
    assert (await find(compactions, "chat", bare, has_same_form=False)).compaction is None
    assert not compactions.knows_position(CONVERSATION, bare.chain[-1])
    store.is_slow = False
    assert (await find(compactions, "chat", bare, has_same_form=False)).compaction is not None
    assert compactions.knows_position(CONVERSATION, bare.chain[-1])


async def test_a_compaction_from_before_names_were_added_is_found() -> None:
    store, listed = InMemoryStore(), entries(History((*work(3), Turn(("And now?",)))), "chat")
    listed = without_reasoning(listed)
    client = conversation(listed, "chat")
    named = conversation([entry | {"name": "agent"} for entry in listed], "chat")
    compactions, made = CompactionRepository(store), block(client, 4)
    assert made.identity_key == b""
    await compactions.publish(CONVERSATION, client.chain[0], made)
    assert (await find(compactions, "chat", named, has_same_form=False)).compaction.covered_count == 4


async def test_a_compaction_that_would_make_the_list_illegal_is_not_used() -> None:
    store, listed = InMemoryStore(), entries(History((*work(3), Turn(("And now?",)))), "chat")
    client = conversation(listed, "chat")
    # The call was taken out of the message, and the result with it.
    edited = json.dumps({"role": "assistant", "content": "read it"}).encode()
    made = block(client, 8, CompactionEntry(5, 5, edited, is_edited=True), CompactionEntry(7, 7))
    compactions = CompactionRepository(store)
    await compactions.publish(CONVERSATION, client.chain[0], made)
    assert (await find(compactions, "chat", client)).compaction == made
    assert (
        await find(compactions, "chat", conversation(without_reasoning(listed), "chat"), has_same_form=False)
    ).compaction is None


# -- through the pipeline ----------------------------------------------------------------------------------------------


def state(out: Any) -> str:
    return str(json.loads(header(out, "x-accordion-compaction") or "{}").get("state"))


def sent(setup: PipelineSetup, protocol_name: ProtocolName) -> list[Json]:
    body = setup.upstream.requests[-1].body
    assert isinstance(body, bytes)
    return list(json.loads(body)[LISTS[protocol_name]])


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from(PROTOCOL_NAMES), st.randoms(use_true_random=False), st.booleans())
def test_a_reworded_history_stays_compacted_in_the_clients_present_form(
    protocol_name: ProtocolName, random: Random, is_another_worker: bool
) -> None:
    async def run() -> None:
        setup = PipelineSetup(windows=FakeWindows(3_000))
        listed = entries(History((*work(9, words=200), Turn(("And now?",)))), protocol_name)
        out, _ = await setup.ask(PATHS[protocol_name], request(listed, protocol_name))
        assert state(out) == "compacted"
        session = header(out, "x-accordion-session")
        if is_another_worker:
            await setup.outbox.flush()
            setup = PipelineSetup(windows=FakeWindows(3_000), store=setup.store)
        said = {"role": "assistant", "content": "Nothing."}
        other = [*reform(listed, protocol_name, random), said, {"role": "user", "content": "Good."}]
        out, _ = await setup.ask(PATHS[protocol_name], request(other, protocol_name))
        forwarded, client = sent(setup, protocol_name), conversation(other, protocol_name)
        assert header(out, "x-accordion-session") == session
        assert state(out) in ("replayed", "compacted")
        assert len(forwarded) < len(other) // 2
        made = conversation(forwarded, protocol_name)
        problems = PROTOCOLS[protocol_name].find_problems
        assert not Counter(problems(made.messages)) - Counter(problems(client.messages))
        # What has reasoning, a name or another note is the client's own of this request.
        own = {json.dumps(entry, sort_keys=True) for entry in other}
        for entry in forwarded:
            text = json.dumps(entry, sort_keys=True)
            assert text in own or not any(word in text for word in ("hm ", "thought", "somebody", "signed", "sealed"))

    asyncio.run(run())


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_dropping_the_reasoning_of_a_compacted_history_keeps_the_compaction(
    protocol_name: ProtocolName,
) -> None:
    setup = PipelineSetup(windows=FakeWindows(3_000))
    listed = entries(History((*work(9, words=200), Turn(("And now?",)))), protocol_name)
    out, _ = await setup.ask(PATHS[protocol_name], request(listed, protocol_name))
    assert state(out) == "compacted"
    own = [entry for entry in sent(setup, protocol_name) if entry not in listed]
    more = [write_message(protocol_name, "assistant", "Nothing."), write_message(protocol_name, "user", "Good.")]
    for asked in ([*listed, *more], [*without_reasoning(listed), *more]):
        out, _ = await setup.ask(PATHS[protocol_name], request(asked, protocol_name))
        assert state(out) == "replayed"
        assert [entry for entry in sent(setup, protocol_name) if entry not in asked] == own
