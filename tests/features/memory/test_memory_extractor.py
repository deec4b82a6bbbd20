from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.features.memory.conversation.message_ranges import RecordedConversations
from accordion.features.memory.conversation.self_contained import find_claims
from accordion.features.memory.extraction import memory_extractor as compact
from accordion.features.memory.extraction.memory_extractor import CompactionCaller
from accordion.features.memory.memories import Memory
from accordion.model.errors import BadRequest, NotFound, StoreUnavailable
from accordion.protocols.registry import PROTOCOLS
from accordion.server.event_loop import LoopTasks
from tests.archive.archive_setup import OTHER, TENANT
from tests.fakes import FakeTasks
from tests.features.memory.compaction_setup import ID, SYSTEM, build_setup, entry, talk, tool_call
from tests.tiers import examples

ALL = (0, 16)


def stored_memories(setup) -> list[Memory]:
    return list(setup.memories.of(TENANT).memories.values())


async def test_the_answer_is_the_documented_one():
    setup = await build_setup()
    answer = msgspec.to_builtins(await setup.compact(*ALL))
    assert list(answer) == [
        "memories_created", "entities_extracted", "relations_extracted",
        "messages_processed", "memories_count", "entities_count", "relations_count",
        "writer", "writer_input", "writer_output", "notice",
    ]  # fmt: skip
    assert (answer["writer"], answer["writer_input"], answer["notice"]) == ("rules", 0, "")
    assert answer["messages_processed"] == 17
    for name, key in (("memories", "memories_created"), ("entities", "entities_extracted")):
        assert answer[f"{name}_count"] == len(answer[key]) > 0
    assert answer["relations_count"] == len(answer["relations_extracted"]) > 0
    assert {frozenset(each) for each in answer["memories_created"]} == {
        frozenset({"id", "content", "topics", "source_type"})
    }
    assert {each["source_type"] for each in answer["memories_created"]} == {"compaction"}
    assert all(each["topics"] for each in answer["memories_created"])
    assert {"name": "services/billing/app.py", "entity_type": "file", "is_new": True} in answer["entities_extracted"]
    wanted = {"from_entity": "billing-api", "to_entity": "stripe-python", "relation_type": "depends_on"}
    assert wanted in answer["relations_extracted"]


async def test_the_stored_memories_equal_the_answer():
    setup = await build_setup()
    answer = await setup.compact(*ALL, caller=CompactionCaller(project="billing"))
    stored = {memory.id: memory for memory in stored_memories(setup)}
    assert {each.id: each.content for each in answer.memories_created} == {
        name: memory.content for name, memory in stored.items()
    }
    one = next(iter(stored.values()))
    assert (one.conversation, one.source, one.project) == (ID, "compaction", "billing")
    assert one.created == setup.clock.now()
    assert one.revision


async def test_a_memory_leads_back_to_the_messages_that_it_was_made_of():
    setup = await build_setup()
    await setup.compact(*ALL)
    for memory in stored_memories(setup):
        said = b" ".join(await setup.archive.transcripts.read(TENANT, memory.conversation, memory.first, memory.last))
        assert all(claim.encode() in said for claim in find_claims(memory.content) if claim.isalnum())
    found = {memory.content: memory for memory in stored_memories(setup)}
    decided = next(memory for content, memory in found.items() if "PostgreSQL 16 for the ledger" in content)
    assert (decided.type, decided.first, decided.last) == ("decision", 11, 11)


async def test_decisions_preferences_solutions_facts_and_open_questions_are_told_apart():
    setup = await build_setup()
    await setup.compact(*ALL)
    types = {memory.type: memory.content for memory in stored_memories(setup)}
    assert set(types) == {"decision", "preference", "solution", "fact", "question"}
    solved = [memory.content for memory in stored_memories(setup) if memory.type == "solution"]
    assert any("the tool bash reported" in content and "root cause" in content for content in solved)


async def test_system_text_is_not_remembered_whoever_repeats_it():
    setup = await build_setup()
    await setup.compact(*ALL, "contoso", "release train")
    assert not any("Contoso" in content or "gate B7" in content for content in setup.contents())


async def test_what_cannot_stand_alone_is_left_out_or_told_with_what_it_goes_on_from():
    setup = await build_setup()
    await setup.compact(*ALL, "bookings", "ledger", "it", "this")
    assert not any("Do this too" in content or "It does that" in content for content in setup.contents())
    stored = next(content for content in setup.contents() if "ledger_entries" in content)
    assert "The ledger database uses PostgreSQL 16 on port 5433. It stores" in stored


async def test_the_same_range_again_gives_the_same_answer_and_writes_nothing():
    setup = await build_setup()
    first = await setup.compact(*ALL)
    writes = setup.memories.writes
    again = await setup.compact(*ALL, search=False)
    assert again == first
    assert setup.memories.writes == writes
    assert len(stored_memories(setup)) == first.memories_count


async def test_an_overlapping_range_adds_only_what_is_new():
    setup = await build_setup()
    first = await setup.compact(0, 9)
    second = await setup.compact(5, 16)
    before, after = ({each.id for each in answer.memories_created} for answer in (first, second))
    assert before
    assert after
    assert not before & after
    whole = await setup.compact(*ALL)
    assert whole.memories_created == []
    assert len(stored_memories(setup)) == len(before | after)


async def test_a_memory_known_from_another_conversation_is_not_stored_again():
    setup = await build_setup()
    first = await setup.compact(*ALL)
    await setup.record([entry("user", "Hello there."), *talk()[9:12]], "s-2")
    second = await setup.compact(0, 3, session="s-2")
    assert second.memories_created == []
    other = await setup.compact(0, 3, session="s-2", caller=CompactionCaller(project="elsewhere"))
    assert other == second
    assert len(stored_memories(setup)) == first.memories_count


async def test_entities_are_new_once():
    setup = await build_setup()
    await setup.compact(*ALL)
    await setup.record([entry("user", "The file services/billing/app.py also handles refunds via refund_all.")], "s-2")
    second = await setup.compact(0, 0, session="s-2")
    assert [(each.name, each.is_new) for each in second.entities_extracted] == [("services/billing/app.py", False)]


async def test_focus_topics_change_what_is_taken():
    texts = [f"The module number_{at} uses port {5000 + at} for the metrics_{at} endpoint." for at in range(30)]
    texts.append("Lunch on the roof was rather pleasant for everybody in the team.")
    setup = await build_setup([entry("user", text) for text in texts])
    plain = await setup.compact(0, 30)
    assert not any("Lunch" in each.content for each in plain.memories_created)
    focused = await setup.compact(0, 30, "lunch")
    assert "Lunch" in focused.memories_created[-1].content
    assert "lunch" in focused.memories_created[-1].topics


# -- what is refused ---------------------------------------------------------------


async def test_without_a_search_first_it_is_refused_and_says_what_to_do():
    setup = await build_setup()
    with pytest.raises(BadRequest, match="First search the memories") as error:
        await setup.compact(*ALL, search=False)
    assert error.value.code == "search_required"
    assert stored_memories(setup) == []
    await setup.compact(0, 8)
    with pytest.raises(BadRequest, match="First search"):
        await setup.compact(9, 16, search=False)
    done = await setup.compactions.find_completed(TENANT, ID)
    assert [(each.start_index, each.end_index) for each in done] == [(0, 8)]
    assert set(done[0].memories) == {memory.id for memory in stored_memories(setup)}
    await setup.compact(9, 16, search=False)


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [(-1, 3, "out of range"), (0, 17, "0 to 16"), (5, 4, "is greater than"), (99, 100, "17 recorded")],
)
async def test_a_bad_range_is_refused_and_nothing_is_written(first, last, words):
    setup = await build_setup()
    await setup.compactions.find_completed(TENANT, ID)
    writes = setup.memories.writes
    with pytest.raises(BadRequest, match=words) as error:
        await setup.compact(first, last, search=False)
    assert error.value.code == "invalid_range"
    assert setup.memories.writes == writes


async def test_a_conversation_that_was_not_recorded_is_answered_so():
    setup = await build_setup()
    for session, tenant in (("nobody", TENANT), ("", TENANT), (ID, OTHER)):
        with pytest.raises(NotFound, match="There is no recorded conversation") as error:
            await setup.compactions.compact(tenant, session, 0, 3)
        assert error.value.code == "conversation_not_recorded"
        with pytest.raises(NotFound):
            await setup.compactions.find_completed(tenant, session)
    assert setup.memories.writes == 0


async def test_messages_that_are_not_kept_any_more_are_named():
    setup = await build_setup()
    await setup.compactions.find_completed(TENANT, ID)
    transcript = await setup.archive.transcripts.find(TENANT, ID)

    class Lossy:
        async def find(self, tenant, session):
            return transcript

        async def read(self, tenant, session, first, last):
            wires = await setup.archive.transcripts.read(tenant, session, first, last)
            return [None if at in {3, 7} else wire for at, wire in enumerate(wires)]

    setup.compactions = replace(setup.compactions, conversations=RecordedConversations(Lossy(), PROTOCOLS, FakeTasks()))
    with pytest.raises(NotFound, match="no longer stored: 3, 7") as error:
        await setup.compact(2, 9, search=False)
    assert error.value.code == "range_not_recorded"
    # What is missing before the range does no harm.
    assert (await setup.compact(9, 16, search=False)).memories_count


async def test_a_store_that_is_away_leaves_nothing_half_written():
    setup = await build_setup()
    await setup.compactions.find_completed(TENANT, ID)
    setup.memories.away = True
    with pytest.raises(StoreUnavailable):
        await setup.compact(*ALL, search=False)
    setup.memories.away = False
    assert stored_memories(setup) == []
    assert (await setup.compact(*ALL, search=False)).memories_count == len(stored_memories(setup))


# -- two at once -------------------------------------------------------------------


async def test_two_concurrent_compactions_of_a_range_return_the_same_answer():
    setup = await build_setup()
    await setup.compactions.find_completed(TENANT, ID)
    answers = await asyncio.gather(*(setup.compact(*ALL, search=False) for _ in range(4)))
    assert {tuple(memory.id for memory in each.memories_created) for each in answers} == {
        tuple(memory.id for memory in stored_memories(setup))
    }
    assert len([name for name in setup.memories.of(TENANT).markers if name.startswith("compacted/1")]) == 0


async def test_two_overlapping_ranges_at_once_share_no_memory():
    setup = await build_setup()
    await setup.compactions.find_completed(TENANT, ID)
    one, other = await asyncio.gather(setup.compact(0, 11, search=False), setup.compact(5, 16, search=False))
    ids = [memory.id for each in (one, other) for memory in each.memories_created]
    assert len(ids) == len(set(ids)) == len(stored_memories(setup))


async def test_two_conversations_that_say_the_same_at_once_store_it_once():
    setup = await build_setup()
    await setup.record([entry("user", "Hello there."), *talk()], "s-2")
    await setup.compactions.find_completed(TENANT, "s-2")
    await setup.compactions.find_completed(TENANT, ID)
    one, other = await asyncio.gather(
        setup.compact(0, 16, search=False), setup.compact(1, 17, search=False, session="s-2")
    )
    assert one.memories_count + other.memories_count == len(stored_memories(setup)) > 0
    assert {memory.conversation for memory in stored_memories(setup)} == {ID if one.memories_count else "s-2"}


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)).map(sorted), min_size=1, max_size=5))
async def test_any_ranges_are_stored_once_and_within_their_bounds(ranges):
    setup = await build_setup()
    for first, last in ranges:
        answer = await setup.compact(first, last)
        assert answer.messages_processed == last - first + 1
        stored = setup.memories.of(TENANT).memories
        assert {each.id for each in answer.memories_created} <= set(stored)
        assert await setup.compact(first, last) == answer
    covered = {at for first, last in ranges for at in range(first, last + 1)}
    assert all(set(range(memory.first, memory.last + 1)) & covered for memory in stored_memories(setup))
    assert all(any(a <= m.first and m.last <= b for a, b in ranges) for m in stored_memories(setup))
    assert len(set(setup.contents())) == len(stored_memories(setup))


async def test_a_history_that_was_taken_back_and_went_on_otherwise_is_another_range():
    setup = await build_setup()
    await setup.compact(0, 11)
    await setup.record([*talk()[:11], entry("user", "We decided to move the ledger database to CockroachDB 24.1.")])
    answer = await setup.compact(0, 11)
    assert [memory.content for memory in answer.memories_created] == [
        'User decision: "We decided to move the ledger database to CockroachDB 24.1."'
    ]


async def test_a_deleted_memory_does_not_return_with_the_old_answer():
    setup = await build_setup()
    first = await setup.compact(*ALL)
    gone = first.memories_created[0].id
    del setup.memories.of(TENANT).memories[gone]
    again = await setup.compact(*ALL)
    assert [each.id for each in again.memories_created] == [each.id for each in first.memories_created[1:]]
    assert all(gone not in content for content in setup.contents())
    markers = b"".join(setup.memories.of(TENANT).markers.values())
    assert b"ledger database uses" not in markers


async def test_the_turns_before_stand_beside_a_memory_for_search():
    setup = await build_setup()
    await setup.compact(*ALL)
    decided = next(memory for memory in stored_memories(setup) if memory.type == "decision")
    assert "Idempotency-Key" in decided.context
    assert "httpx over requests" in decided.context


@pytest.mark.parametrize(
    "text",
    [
        f"I prefer {'acgt' * 60} over every other sequence.",
        f"We decided to host the ledger at github.com/contoso/{'ledger-' * 40}core from spring on.",
        f"The ledger of the company {'Contoso' * 40} is kept in Lisbon.",
    ],
)
async def test_names_too_long_to_be_kept_do_not_keep_the_rest_from_being_remembered(text):
    setup = await build_setup([entry("system", SYSTEM), entry("user", text)])
    (made,) = (await setup.compact(0, 1)).memories_created
    assert text in made.content


async def test_only_one_message_can_be_compacted():
    setup = await build_setup(
        [*tool_call("bash", 1, "{}", "ok"), entry("user", "The deploy key lives in infra/keys.yaml.")]
    )
    answer = await setup.compact(2, 2)
    assert [each.content for each in answer.memories_created] == [
        'The user said: "The deploy key lives in infra/keys.yaml."'
    ]


async def test_what_one_compaction_had_no_room_for_is_not_brought_in_by_the_next():
    texts = [f"The module number_{at} uses port {5000 + at} for the metrics_{at} endpoint." for at in range(41)]
    setup = await build_setup([entry("user", text) for text in texts])
    first = await setup.compact(0, 39)
    assert first.memories_count == 13
    second = await setup.compact(0, 40)
    assert [each.content for each in second.memories_created] == [f'The user said: "{texts[40]}"']


async def test_a_question_that_is_answered_behind_the_range_is_not_open():
    talk_on = [*talk(), entry("assistant", "Yes, the webhook_retry job does so 3 times.")]
    setup = await build_setup(talk_on)
    assert not any("failed webhook" in each.content for each in (await setup.compact(0, 16)).memories_created)
    setup = await build_setup()
    assert any("failed webhook" in each.content for each in (await setup.compact(0, 16)).memories_created)


async def test_neither_credentials_nor_system_text_stand_in_a_memory_s_context():
    setup = await build_setup([
        entry("system", SYSTEM),
        entry("user", "The API key is sk-proj-abcdefghijklmnop1234. The vault is in infra/vault.tf."),
        entry("assistant", SYSTEM),
        entry("user", "The deploy key lives in infra/keys.yaml."),
    ])  # fmt: skip
    await setup.compact(0, 3)
    last = next(memory for memory in stored_memories(setup) if "infra/keys.yaml" in memory.content)
    assert last.context == "The vault is in infra/vault.tf."
    assert not any("sk-proj" in f"{memory.content}{memory.context}" for memory in stored_memories(setup))


async def test_what_a_user_had_imported_is_not_stored_again_whoever_repeats_it():
    name, told = "CMEM-20260101-100510", "We decided that the ledger service moves to region eu-west-7 on Thursday."
    setup = await build_setup(
        [
            entry("user", f"Please import memory {name}"),
            entry("assistant", told),
            entry("user", "We decided to keep PostgreSQL 16 for the ledger database instead of MongoDB."),
        ]
    )
    memory = Memory(name, "session", f"## Decisions\n- {told}")
    setup.memories.of(TENANT).memories[name] = memory
    await setup.compact(0, 2)
    said = [each.content for each in stored_memories(setup) if each.id != name]
    assert any("PostgreSQL 16" in each for each in said)
    assert not any("eu-west-7" in each or name in each for each in said)


async def test_only_own_imported_text_is_background():
    name, told = "CMEM-20260101-100510", "We decided that the ledger service moves to region eu-west-7 on Thursday."
    setup = await build_setup([entry("user", f"Please import memory {name}"), entry("user", told)])
    setup.memories.of(OTHER).memories[name] = Memory(name, "session", told)
    await setup.compact(0, 1)
    assert any("eu-west-7" in each.content for each in stored_memories(setup))


async def test_others_go_on_while_a_long_conversation_is_compacted(monkeypatch):
    threads = dict[str, set[int]]()

    def watched(name: str):
        real = getattr(compact, name)

        def call(*given):
            threads.setdefault(name, set()).add(threading.get_ident())
            return real(*given)

        return call

    for name in ("find_relations", "split_conversation", "build_record"):
        monkeypatch.setattr(compact, name, watched(name))
    setup, tasks = await build_setup(), LoopTasks()
    setup.compactions = replace(setup.compactions, tasks=tasks)
    await setup.compact(*ALL)
    await tasks.close()
    assert len(threads) == 3
    assert all(threading.get_ident() not in each for each in threads.values())
