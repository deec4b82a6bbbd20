"""A viewer sees the list without the results that are not for it; the reference is made from what was said, not from
messages."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.delegation.visibility_filter import FilteredConversation, VisibilityFilter
from accordion.model.boundaries import PartPosition, find_open_calls
from accordion.model.conversation import Conversation, ToolResult
from accordion.protocols import json_writing
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.written_messages import WrittenMessageReader
from tests.compaction.view_samples import READERS, TENANT
from tests.histories import (
    PROTOCOL_NAMES,
    Call,
    History,
    HistoryRound,
    Json,
    ProtocolName,
    Turn,
    body,
    entries,
    histories,
)

names = pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)


@dataclass(frozen=True)
class Shared:
    """A history, and which of its calls (in their order) are not for the viewer."""

    history: History
    hidden: frozenset[int]

    @property
    def calls(self) -> list[Call]:
        return [call for turn in self.history.turns for round_ in turn.rounds for call in round_.calls]


@st.composite
def shared(draw: st.DrawFn, max_turns: int = 4) -> Shared:
    """Histories of which some results are hidden. Each result and its arguments hold a canary; ids are used again."""
    history, at, turns = draw(histories(max_turns=max_turns, is_plain=True)), 0, []
    for turn in history.turns:
        rounds = []
        for round_ in turn.rounds:
            calls = []
            for call in round_.calls:
                name = draw(st.sampled_from(["a", "b", call.id]))
                given_ = {**call.arguments, "canary": f"argument-{at}."}
                calls.append(Call(name, call.name, given_, f"result-{at}. {call.result}", call.error))
                at += 1
            rounds.append(dataclasses.replace(round_, calls=tuple(calls)))
        turns.append(dataclasses.replace(turn, rounds=tuple(rounds)))
    hidden = draw(st.frozensets(st.sampled_from(range(at)))) if at else frozenset()
    return Shared(dataclasses.replace(history, turns=tuple(turns)), hidden)


def expected_request(told: Shared, protocol_name: ProtocolName) -> Json:
    """What a viewer should see, made of what was said."""
    numbers, turns = iter(range(len(told.calls))), []
    for turn in told.history.turns:
        rounds = []
        for round_ in turn.rounds:
            calls = tuple(call for call in round_.calls if next(numbers) not in told.hidden)
            if calls or round_.text:
                rounds.append(HistoryRound(calls, round_.text, round_.thought))
        turns.append(Turn(turn.said, tuple(rounds), turn.answer))
    made = body(dataclasses.replace(told.history, turns=tuple(turns)), protocol_name)
    listing = READERS[protocol_name].messages_field
    made[listing] = [entry for entry in made[listing] if entry.get("content") != [] and entry.get("parts") != []]
    # Somebody has to be asked: what was said behind the last that is seen of others waits until more follows.
    while _last(made[listing]) and not _last(entries(told.history, protocol_name)):
        del made[listing][-1]
    return made


def _last(listed: list[Json]) -> bool:
    return listed[-1].get("role") in ("assistant", "model") or listed[-1].get("type") in ("function_call", "reasoning")


def read(made: Any, protocol_name: ProtocolName) -> Conversation:
    return BodyReader().read(READERS[protocol_name], json.dumps(made).encode(), TENANT)


def results(conversation: Conversation) -> list[PartPosition]:
    return [
        (index, at)
        for index, message in enumerate(conversation.messages)
        for at, part in enumerate(message.parts)
        if isinstance(part, ToolResult)
    ]


def hidden_positions(told: Shared, conversation: Conversation) -> frozenset[PartPosition]:
    found = results(conversation)
    return frozenset(found[number] for number in told.hidden)


def filtered(
    conversation: Conversation, hidden: frozenset[PartPosition], by: VisibilityFilter | None = None
) -> FilteredConversation:
    return (by or VisibilityFilter(WrittenMessageReader())).apply(
        READERS[conversation.protocol_name], TENANT, conversation, hidden
    )  # type: ignore[index]


def written(conversation: Conversation) -> bytes:
    listing = READERS[conversation.protocol_name].messages_field  # type: ignore[index]
    return json_writing.write_body(conversation, listing, [message.wire for message in conversation.messages])


# -- whatever was said -------------------------------------------------------------------------------------------------


@given(shared(), st.sampled_from(PROTOCOL_NAMES))
def test_a_viewer_sees_what_was_said_without_what_is_hidden(told: Shared, protocol_name: ProtocolName) -> None:
    client = read(body(told.history, protocol_name), protocol_name)
    made = filtered(client, hidden_positions(told, client))
    expected = read(expected_request(told, protocol_name), protocol_name)
    assert [message.parts for message in made.conversation.messages] == [m.parts for m in expected.messages]
    assert [message.role for message in made.conversation.messages] == [m.role for m in expected.messages]
    assert made.conversation.chain == expected.chain
    assert [message.key for message in made.conversation.messages] == [m.key for m in expected.messages]
    assert BodyReader().read(READERS[protocol_name], written(made.conversation), TENANT).chain == expected.chain


@given(shared(), st.sampled_from(PROTOCOL_NAMES))
def test_nothing_hidden_is_in_the_bytes_and_nothing_else_is_missing(told: Shared, protocol_name: ProtocolName) -> None:
    client = read(body(told.history, protocol_name), protocol_name)
    hidden = hidden_positions(told, client)
    made = filtered(client, hidden)
    out = written(made.conversation)
    gone = {results(client).index(taken.result) for taken in made.hidden_results}
    assert gone | {results(client).index(place) for place in made.unremovable_results} == told.hidden
    for number, call in enumerate(told.calls):
        assert (b"result-%d." % number in out) == (b"argument-%d." % number in out) == (number not in gone), call
    for index, origin in enumerate(made.origins):
        message, came = made.conversation.messages[index], client.messages[origin]
        if not any(
            place[0] == origin for taken in made.hidden_results for place in (taken.result, taken.call or taken.result)
        ):
            assert message is came
    assert [(taken.call_id, taken.name) for taken in made.hidden_results] == [
        (call.id, call.name) for number, call in enumerate(told.calls) if number in gone
    ]


@given(shared(), st.sampled_from(PROTOCOL_NAMES))
def test_the_list_is_as_legal_as_the_clients(told: Shared, protocol_name: ProtocolName) -> None:
    client = read(body(told.history, protocol_name), protocol_name)
    made = filtered(client, hidden_positions(told, client))
    problems = READERS[protocol_name].find_problems
    assert not Counter(problems(made.conversation.messages)) - Counter(problems(client.messages))
    assert not made.unremovable_results


@given(shared(), st.sampled_from(PROTOCOL_NAMES))
def test_without_hidden_results_the_conversation_is_the_same_object(told: Shared, protocol_name: ProtocolName) -> None:
    client = read(body(told.history, protocol_name), protocol_name)
    same = filtered(client, frozenset())
    assert same.conversation is client
    assert list(same.origins) == list(range(len(client.messages)))
    made = filtered(client, hidden_positions(told, client))
    again = filtered(made.conversation, frozenset())
    assert again.conversation is made.conversation


@given(shared(max_turns=6), st.sampled_from(PROTOCOL_NAMES))
def test_a_list_that_grows_is_extended_as_if_it_were_filtered_anew(told: Shared, protocol_name: ProtocolName) -> None:
    by, reader = VisibilityFilter(WrittenMessageReader()), BodyReader()
    whole = body(told.history, protocol_name)
    listing = READERS[protocol_name].messages_field
    hidden = hidden_positions(told, read(whole, protocol_name))
    before: FilteredConversation | None = None
    for length in range(1, len(whole[listing]) + 1):
        cut = json.dumps(whole | {listing: whole[listing][:length]}).encode()
        client = reader.read(READERS[protocol_name], cut, TENANT)
        here = frozenset(place for place in hidden if place[0] < len(client.messages))
        made = filtered(client, here, by)
        assert made == filtered(client, here)
        if before is not None and not before.unremovable_results:
            held = before.conversation.messages
            assert made.conversation.messages[: len(held)] == held
            assert made.conversation.chain[: len(held)] == before.conversation.chain
        settled = client.messages and client.messages[-1].role in ("user", "tool") and not _waits(client)
        before = made if settled else before


def _waits(client: Conversation) -> bool:
    return bool(find_open_calls(client.messages))


@given(shared(), st.sampled_from(PROTOCOL_NAMES), st.data())
def test_viewers_of_one_list_do_not_get_each_others(
    told: Shared, protocol_name: ProtocolName, data: st.DataObject
) -> None:
    client = read(body(told.history, protocol_name), protocol_name)
    found, by = results(client), VisibilityFilter(WrittenMessageReader())
    views = [frozenset(data.draw(st.frozensets(st.sampled_from(found)))) if found else frozenset() for _ in range(3)]
    for hidden in (*views, *reversed(views)):
        assert filtered(client, hidden, by) == filtered(client, hidden)


@given(shared(), st.sampled_from(PROTOCOL_NAMES))
def test_the_filters_cache_is_bounded_and_changes_nothing(told: Shared, protocol_name: ProtocolName) -> None:
    by = VisibilityFilter(WrittenMessageReader(), capacity=3_000)
    client = read(body(told.history, protocol_name), protocol_name)
    for hidden in (hidden_positions(told, client), frozenset(results(client)), hidden_positions(told, client)):
        for length in range(1, len(client.messages) + 1):
            cut = replace(client, messages=client.messages[:length], chain=client.chain[:length])
            here = frozenset(place for place in hidden if place[0] < length)
            assert filtered(cut, here, by) == filtered(cut, here)
            assert by._size == sum(known.size for known in by._filters_by_use.values()) <= 3_000
            assert sum(map(len, by._filters_by_key.values())) == len(by._filters_by_use)


@given(shared(), st.sampled_from(PROTOCOL_NAMES))
def test_a_client_may_write_the_same_list_in_other_bytes(told: Shared, protocol_name: ProtocolName) -> None:
    by, made = VisibilityFilter(WrittenMessageReader()), body(told.history, protocol_name)
    first = read(made, protocol_name)
    filtered(first, hidden_positions(told, first), by)
    spaced = json.dumps(made, indent=1, sort_keys=True).encode()
    client = BodyReader().read(READERS[protocol_name], spaced, TENANT)
    assert client.chain == first.chain
    now = filtered(client, hidden_positions(told, client), by)
    assert now == filtered(client, hidden_positions(told, client))


@given(
    shared(),
    st.sampled_from(PROTOCOL_NAMES),
    st.frozensets(st.tuples(st.integers(0, 40), st.integers(-2, 9)), max_size=9),
)
def test_places_of_anything_but_results_mean_nothing(
    told: Shared, protocol_name: ProtocolName, odd: frozenset[PartPosition]
) -> None:
    client = read(body(told.history, protocol_name), protocol_name)
    hidden, found = hidden_positions(told, client), set(results(client))
    made = filtered(client, hidden | frozenset(place for place in odd if place not in found))
    assert made.conversation.messages == filtered(client, hidden).conversation.messages
