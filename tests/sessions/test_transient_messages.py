"""Sessions of clients that add a text of the moment to each request and leave it out of the next one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.conversation import Conversation
from accordion.model.records import ObservedCall
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.sessions import SessionMatch
from accordion.sessions.tenants import Caller
from accordion.sessions.transient_messages import copy_digest, has_possible_end, response_digest
from tests.sessions.test_sessions import ALICE, Setup

CHAT = OpenAIChat()


def read(entries: list[Any], tenant: TenantScope = ALICE.tenant) -> Conversation:
    return BodyReader(0).read(CHAT, json.dumps({"messages": entries, "model": "m"}).encode(), tenant)


def entry(at: int, text: str) -> dict[str, str]:
    """An entry of a list: the user's and the model's take turns, and the model's are long."""
    return {"role": "assistant", "content": text * 40} if at % 2 else {"role": "user", "content": text}


class Moments:
    """Requests of one worker, each with another last message; what it was answered is recorded."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    async def ask(
        self, *texts: str, answer: str, caller: Caller = ALICE, label: str = "", again: bool = False
    ) -> SessionMatch:
        """`again`: with the last message of the request before."""
        self.setup.requests += not again
        moment = {"role": "user", "content": f"moment {self.setup.sessions.worker} {self.setup.requests}"}
        conversation = read([*(entry(at, text) for at, text in enumerate(texts)), moment], caller.tenant)
        request_id = f"{self.setup.sessions.worker}-r{self.setup.requests}"
        match = await self.setup.sessions.resolve(caller, ClientMetadata(label), conversation, request_id)
        if match.may_omit_end:
            self.setup.sessions.record_second_names(match, CHAT, caller.tenant, (), answer * 40)
        return match

    async def ids(self, *requests: str) -> list[str]:
        """The session of each request; its texts are divided by blanks, and the last one is the answer to it."""
        found = []
        for request in requests:
            *texts, answer = request.split()
            found.append((await self.ask(*texts, answer=answer)).session.id)
        return found


async def test_the_base_is_before_the_response_and_has_no_report() -> None:
    moments = Moments(Setup())
    first = await moments.ask("u1", answer="a1")
    moments.setup.sessions.record_response(first, first.session, 70, 60)
    second = await moments.ask("u1", "a1", "u2", answer="a2")
    assert second.base_index == 0
    assert second.base_node is not None
    assert (second.base_node.reported, second.has_same_form, second.had_other_form) == (0, True, False)


async def test_a_retry_is_the_same_session() -> None:
    moments = Moments(Setup())
    found = await moments.ids("u1 a1", "u1 a1 u2 a2", "u1 a1 u2 a2", "u1 a1 u2 b2", "u1 a1 u2 b2 u3 b3")
    assert (await moments.ask("u1", "a1", "u2", "b2", "u3", answer="b3", again=True)).session.id == found[0]
    assert len(set(found)) == 1


async def test_an_edited_question_takes_over_the_session_if_the_first_was_not_continued() -> None:
    found = await Moments(Setup()).ids("u1 a1", "u1 a1 typo a2", "u1 a1 u2 a2", "u1 a1 u2 a2 u3 a3")
    assert len(set(found)) == 1


async def test_an_edited_question_is_a_fork_if_the_first_was_continued() -> None:
    moments = Moments(Setup())
    whole = await moments.ids("u1 a1", "u1 a1 u2 a2", "u1 a1 u2 a2 u3 a3")
    edited = await moments.ids("u1 a1 edit b", "u1 a1 edit b u4 b4")
    whole += await moments.ids("u1 a1 u2 a2 u3 a3 u5 a5")
    assert (len(set(whole)), len(set(edited)), len({*whole, *edited})) == (1, 1, 2)
    fork = moments.setup.sessions.find_in_memory(edited[0])
    assert fork is not None
    assert fork.forked_from == whole[0]


async def test_another_response_begins_a_fork() -> None:
    moments = Moments(Setup())
    whole = await moments.ids("u1 a1", "u1 a1 u2 a2", "u1 a1 u2 a2 u3 a3")
    await moments.ids("u1 a1 u2 b2")
    other = await moments.ids("u1 a1 u2 b2 u3 b3", "u1 a1 u2 b2 u3 b3 u4 b4")
    whole += await moments.ids("u1 a1 u2 a2 u3 a3 u4 a4")
    assert (len(set(whole)), len(set(other)), len({*whole, *other})) == (1, 1, 2)


async def test_a_side_request_leaves_the_session_as_it_is() -> None:
    requests = [
        "u1 a1",
        "u1 a1 side s",
        "u1 a1 u2 a2",
        "u1 a1 u2 a2 u3 a3",
        "u1 a1 u2 a2 side s",
        "u1 a1 u2 a2 u3 a3 u4 a4",
    ]
    assert len(set(await Moments(Setup()).ids(*requests))) == 1


async def test_lists_with_a_common_beginning_alone_are_different_conversations() -> None:
    setup = Setup()
    moments = Moments(setup)
    first = await moments.ids("context a1")
    assert not set(first) & set(await moments.ids("context b1", "context c1 u2 c2"))
    whole = read([entry(0, "context"), {"role": "user", "content": "a question"}])
    assert (await setup.sessions.resolve(ALICE, ClientMetadata(), whole, "r")).session.forked_from == ""


async def test_a_short_answer_recognizes_no_response() -> None:
    setup = Setup()
    conversation = read([entry(0, "u1"), entry(0, "moment")])
    match = await setup.sessions.resolve(ALICE, ClientMetadata(), conversation, "r")
    setup.outbox.taken.clear()
    setup.sessions.record_second_names(match, CHAT, ALICE.tenant, (), "Done. " * 7)
    assert not setup.outbox.taken


async def test_a_list_that_has_the_end_of_the_one_before_gets_no_second_name() -> None:
    setup = Setup()
    entries = [entry(0, "u1"), entry(0, "kept")]
    for answer in ("a1", "a2"):
        match = await setup.sessions.resolve(ALICE, ClientMetadata(), read(entries), "r")
        assert match.may_omit_end is (answer == "a1")
        entries += [entry(1, answer), entry(0, "u2"), entry(0, "kept")]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ([{"role": "user", "content": "one"}], False),
        ([{"role": "user", "content": "one"}, {"role": "system", "content": "two"}], True),
        ([{"role": "user", "content": [{"type": "text", "text": each} for each in ("one", "two")]}], True),
        ([{"role": "tool", "tool_call_id": each, "content": each} for each in ("one", "two")], False),
        ([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}], False),
    ],
)
def test_the_end_of_a_list_may_be_a_message_or_a_text_of_the_client(last: list[Any], expected: bool) -> None:
    assert has_possible_end(read(last)) is expected
    assert has_possible_end(read([entry(0, "u1"), entry(1, "a1"), *last])) is expected


def test_calls_are_recognized_by_ids_names_and_arguments() -> None:
    def copy(call_id: str = "call_0", name: str = "read", arguments: str = '{"path": "a", "line": 1}') -> bytes:
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        return copy_digest(read([{"role": "assistant", "content": "Well.", "tool_calls": [call]}]).messages)

    response = response_digest([ObservedCall("call_0", "read", '{"line":1,"path":"a"}')], ["Well."])
    assert response == copy()
    assert response not in (copy("call_1"), copy(name="write"), copy(arguments='{"path": "b", "line": 1}'))
