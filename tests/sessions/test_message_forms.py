"""A client that sends its earlier messages in another form stays in its session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.model.conversation import Conversation
from accordion.protocols.body_reader import BodyReader
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.sessions import SessionMatch
from accordion.stores.worker_sync import SharedBoard, shared_slots
from tests.equivalent_entries import reform
from tests.fakes import FickleStore
from tests.histories import PROTOCOL_NAMES, Call, History, HistoryRound, Json, ProtocolName, Turn, entries
from tests.protocols.edit_samples import write_message
from tests.protocols.test_message_keys import READERS
from tests.sessions.test_sessions import ALICE, Setup
from tests.tiers import examples


def read(listed: Sequence[Json], protocol_name: ProtocolName) -> Conversation:
    field = READERS[protocol_name].messages_field
    raw = json.dumps({"model": "m", field: listed}).encode()
    return BodyReader(0).read(READERS[protocol_name], raw, ALICE.tenant)


async def ask(setup: Setup, listed: Sequence[Json], protocol_name: ProtocolName) -> SessionMatch:
    setup.requests += 1
    return await setup.sessions.resolve(
        ALICE, ClientMetadata(), read(listed, protocol_name), f"{setup.sessions.worker}-r{setup.requests}"
    )


def work(turns: int, thought: str = "hm", answer: str = "Turn {} is done.", ids: str = "call") -> History:
    """A history in which every call is preceded by reasoning."""
    return History(
        tuple(
            Turn(
                (f"Do thing {at}.",),
                (
                    HistoryRound(
                        (Call(f"{ids}_{at}", "read", {"path": f"f{at}"}, f"text {at}"),), "", f"{thought} {at}"
                    ),
                ),
                answer.format(at),
            )
            for at in range(turns)
        )
    )


def requests(listed: Sequence[Json]) -> list[list[Json]]:
    """The lists that a client sends one after the other: each ends where the model is to answer."""

    def is_client(entry: Json) -> bool:
        return entry.get("role") in ("user", "tool") or entry.get("type") == "function_call_output"

    ends = [
        at + 1
        for at, entry in enumerate(listed)
        if is_client(entry) and (at + 1 == len(listed) or not is_client(listed[at + 1]))
    ]
    return [list(listed[:end]) for end in ends]


def without_reasoning(listed: Sequence[Json]) -> list[Json]:
    """What a client sends that drops all reasoning."""
    bare = []
    for entry in listed:
        if entry.get("type") == "reasoning":
            continue
        other = {name: value for name, value in entry.items() if name != "reasoning_content"}
        if isinstance(other.get("content"), list):
            other["content"] = [
                part for part in other["content"] if part.get("type") != "thinking" and "reasoningContent" not in part
            ]
        if "parts" in other:
            other["parts"] = [part for part in other["parts"] if not part.get("thought")]
        bare.append(other)
    return bare


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_a_client_that_drops_the_reasoning_of_earlier_turns_stays_in_its_session(
    protocol_name: ProtocolName,
) -> None:
    setup, sessions = Setup(), set()
    listed = entries(work(4), protocol_name)
    turns = [at for at, entry in enumerate(listed) if entry.get("role") == "user" and "Do thing" in json.dumps(entry)]
    for sent in requests(listed):
        start = max(at for at in turns if at < len(sent))
        sessions.add((await ask(setup, [*without_reasoning(sent[:start]), *sent[start:]], protocol_name)).session.id)
    assert len(sessions) == 1


async def test_a_client_that_names_messages_once_they_are_earlier_stays_in_its_session() -> None:
    setup, sessions = Setup(), set()
    for sent in requests(entries(work(4), "chat")):
        named = [entry | {"name": "agent"} for entry in sent[:-1]]
        sessions.add((await ask(setup, [*named, sent[-1]], "chat")).session.id)
    assert len(sessions) == 1


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(PROTOCOL_NAMES), st.randoms(use_true_random=False), st.booleans())
def test_a_history_in_another_form_at_each_request_is_one_session(
    protocol_name: ProtocolName, random: Random, has_two_workers: bool
) -> None:
    async def run() -> None:
        store, slots, sessions = FickleStore(), shared_slots(), set()
        workers = [Setup(store, f"w{number}", SharedBoard(slots, number)) for number in (1, 2)]
        for sent in requests(entries(work(3), protocol_name)):
            setup = random.choice(workers) if has_two_workers else workers[0]
            sessions.add((await ask(setup, reform(sent, protocol_name, random), protocol_name)).session.id)
            await setup.outbox.flush()
        assert len(sessions) == 1

    asyncio.run(run())


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_two_conversations_whose_messages_differ_part_in_whatever_form_they_come(
    protocol_name: ProtocolName,
) -> None:
    setup, random = Setup(), Random(7)
    one, other = (
        requests(entries(work(3, answer=answer), protocol_name)) for answer in ("{} is done.", "{} has failed.")
    )
    found: list[set[str]] = [set(), set()]
    for at in range(2, len(one)):
        for number, sent in enumerate((one[at], other[at])):
            found[number].add((await ask(setup, reform(sent, protocol_name, random), protocol_name)).session.id)
    assert [len(each) for each in found] == [1, 1]
    assert found[0] != found[1]


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_calls_with_other_ids_are_another_conversation(protocol_name: ProtocolName) -> None:
    setup = Setup()
    one, other = (requests(entries(work(2, ids=ids), protocol_name)) for ids in ("call", "tooluse"))
    first = await ask(setup, one[0], protocol_name)
    assert (await ask(setup, one[1], protocol_name)).session.id == first.session.id
    assert (await ask(setup, other[1], protocol_name)).session.id != first.session.id


async def test_lists_of_reasoning_only_are_no_one_session() -> None:
    setup = Setup()
    one, other = ({"type": "reasoning", "id": f"rs_{at}", "summary": [], "encrypted_content": f"e{at}"} for at in "ab")
    assert (await ask(setup, [one], "responses")).session.id != (await ask(setup, [other], "responses")).session.id


# -- what the match says of the form -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_a_report_about_another_form_of_the_list_is_left_out(protocol_name: ProtocolName) -> None:
    setup, sent = Setup(), requests(entries(work(2), protocol_name))
    first = await ask(setup, sent[1], protocol_name)
    setup.sessions.record_response(first, first.session, 700, 600)
    same = await ask(setup, sent[2], protocol_name)
    assert same.base_node is not None
    assert (same.has_same_form, same.had_other_form, same.base_node.reported) == (True, False, 700)
    setup.sessions.record_response(same, same.session, 900, 800)
    other = await ask(setup, without_reasoning(sent[3]), protocol_name)
    assert other.base_node is not None
    assert (other.has_same_form, other.had_other_form, other.base_node.reported) == (False, True, 0)
    setup.sessions.record_response(other, other.session, 950, 850)
    # It goes on in that form.
    after = await ask(
        setup, [*without_reasoning(sent[3]), write_message(protocol_name, "user", "Go on.")], protocol_name
    )
    assert after.base_node is not None
    assert (after.has_same_form, after.had_other_form, after.base_node.reported) == (True, True, 950)
    assert after.base_index == len(without_reasoning(sent[3])) - 1


async def test_the_base_index_is_the_previous_requests_if_reasoning_follows() -> None:
    setup, sent = Setup(), requests(entries(work(2), "responses"))
    await ask(setup, sent[0], "responses")
    assert sent[1][1]["type"] == "reasoning"
    assert (await ask(setup, sent[1], "responses")).base_index == 0


async def test_a_retry_in_another_form_is_the_same_session_and_takes_the_report_with_it() -> None:
    setup, sent = Setup(), requests(entries(work(2), "chat"))
    first = await ask(setup, sent[2], "chat")
    again = await ask(setup, without_reasoning(sent[2]), "chat")
    assert again.session.id == first.session.id
    setup.sessions.record_response(again, again.session, 700, 600)
    assert (await ask(setup, without_reasoning(sent[3]), "chat")).has_same_form
