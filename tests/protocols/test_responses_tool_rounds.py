"""Responses: our tool offered and taken back, and what was read put beside a client's copy of a reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.model.conversation import Message
from accordion.model.insertions import ToolRound, ToolRoundInsertion
from accordion.protocols.openai_responses.protocol import OpenAIResponses, ResponsesArtifactTool
from accordion.protocols.tool_loop import ArtifactToolResult, ToolDefinition, normalize_space
from tests.protocols.responses_streams import OURS, Json, custom, function, message, own_call, reasoning, search

RESPONSES, TOOL_PROTOCOL = OpenAIResponses(), ResponsesArtifactTool()
TOOL = ToolDefinition(OURS, "Reads.", b'{"type":"object"}')
DEFINED = (
    '{"type":"function","name":"read_artifact","description":"Reads.","parameters":{"type":"object"},"strict":false}'
)
USER = {"role": "user", "content": "Go on."}


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def read(*entries: Any) -> list[Message]:
    known = [(RESPONSES.read_message(raw(entry)), raw(entry)) for entry in entries]
    return [Message(b"", each.role, each.parts, wire) for each, wire in known]


def answer(item: Json) -> Json:
    return {"type": "function_call_output", "call_id": item["call_id"], "output": f"what {item['call_id']} asked for"}


def output(item: Json) -> Json:
    kind = "function_call_output" if item["type"] == "function_call" else "custom_tool_call_output"
    return {"type": kind, "call_id": item["call_id"], "output": "done"}


def build_insertion(*rounds: Sequence[Json]) -> ToolRoundInsertion:
    """A reply of these rounds; all calls of ours in them are answered."""
    told = tuple(
        ToolRound(tuple(map(raw, said)), tuple(raw(answer(item)) for item in said if item.get("name") == OURS))
        for said in rounds
    )
    calls = [item["call_id"] for item in rounds[-1] if "call_id" in item and item.get("name") != OURS]
    texts = [item["content"][0]["text"] for said in rounds for item in said if item["type"] == "message"]
    return ToolRoundInsertion(b"", told, tuple(calls), normalize_space(texts), 0.0)


def insert(
    entries: Sequence[Any], of: ToolRoundInsertion, fields: Mapping[str, bytes] | None = None
) -> list[Json] | None:
    """The client's list as it is sent on."""
    found = TOOL_PROTOCOL.insert_rounds(read(*entries), of, fields or {})
    if found is None:
        return None
    replaced, wires = found
    return [*map(json.loads, wires), *entries[replaced:]]


# -- requests ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (None, f"[{DEFINED}]"),
        ("null", f"[{DEFINED}]"),
        ("[ ]", f"[{DEFINED}]"),
        ('[ {"type": "web_search"} ,{"a":1e0} ]', f'[ {{"type": "web_search"}} ,{{"a":1e0}},{DEFINED}]'),
    ],
)
def test_our_tool_stands_behind_the_clients_as_they_came(tools: str | None, expected: str) -> None:
    fields = {"tool_choice": b'"none"', "parallel_tool_calls": b"false"} | ({"tools": tools.encode()} if tools else {})
    assert TOOL_PROTOCOL.offer(fields, TOOL) == {"tools": expected.encode()}


@pytest.mark.parametrize(
    ("fields", "alone", "beside"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}, False, True),
        ({"text": {"format": {"type": "json_object"}}}, False, True),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, True, True),
        ({"prompt": {"id": "pmpt_1"}}, False, True),
        ({"background": True}, False, False),
        ({"background": False}, True, True),
        ({"max_tool_calls": 3}, False, False),
        ({"max_tool_calls": None}, True, True),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, True, True),
    ],
)
def test_our_tool_is_offered_where_it_can_be(fields: Json, alone: bool, beside: bool) -> None:
    told = {name: raw(value) for name, value in fields.items()}
    assert (TOOL_PROTOCOL.offer(told, TOOL) is not None) is alone
    assert (TOOL_PROTOCOL.offer({**told, "tools": b'[{"type":"web_search"}]'}, TOOL) is not None) is beside


@pytest.mark.parametrize(("count", "offered"), [(127, True), (128, False), (129, True)])
def test_our_tool_is_not_offered_beside_as_many_as_openai_takes(count: int, offered: bool) -> None:
    tools = raw([{"type": "function", "name": f"f{at}"} for at in range(count)])
    assert (TOOL_PROTOCOL.offer({"tools": tools}, TOOL) is not None) is offered


def test_the_clients_tool_names_include_functions_custom_tools_and_namespaces() -> None:
    tools = [
        {"type": "function", "name": "a"}, {"type": "custom", "name": "b"}, {"type": "web_search"}, 1,
        {"type": "namespace", "name": "c", "tools": [{"type": "function", "name": "d"}]},
    ]  # fmt: skip
    assert TOOL_PROTOCOL.tool_names({"tools": raw(tools)}) == {"a", "b", "c", "d"}
    assert TOOL_PROTOCOL.tool_names({}) == TOOL_PROTOCOL.tool_names({"tools": b"3"}) == frozenset()


@pytest.mark.parametrize("tools", [None, b'[ {"type": "web_search"} ]'])
def test_in_the_last_round_the_client_has_its_own_tools(tools: bytes | None) -> None:
    fields = {"tools": tools} if tools else {}
    offered = {**fields, **(TOOL_PROTOCOL.offer(fields, TOOL) or {})}
    assert TOOL_PROTOCOL.final_fields(offered) == (
        {"tools": b'[{"type": "web_search"}]'} if tools else {"tool_choice": b'"none"'}
    )


def test_each_call_is_answered_by_an_item() -> None:
    entries = TOOL_PROTOCOL.render_results(
        [ArtifactToolResult("a", 'x "y"'), ArtifactToolResult("b", "no", error=True)], "read_artifact"
    )
    assert [json.loads(entry) for entry in entries] == [
        {"type": "function_call_output", "call_id": "a", "output": 'x "y"'},
        {"type": "function_call_output", "call_id": "b", "output": "no"},
    ]


def test_where_nothing_is_stored_only_what_tells_itself_is_sent_back() -> None:
    said = [
        raw(each)
        for each in (reasoning("a"), reasoning("b", sealed="s"), message("c", "x"), search("d"), own_call("o"))
    ]
    open_model = raw({**reasoning("e"), "content": [{"type": "reasoning_text", "text": "x"}]})
    assert TOOL_PROTOCOL.render_round(said, {}) == TOOL_PROTOCOL.render_round(said, {"store": b"true"}) == tuple(said)
    kept = [json.loads(wire) for wire in TOOL_PROTOCOL.render_round([*said, open_model], {"store": b"false"})]
    assert [each["type"] for each in kept] == [
        "reasoning", "message", "web_search_call", "function_call", "reasoning",
    ]  # fmt: skip
    assert [each.get("id") for each in kept] == [None, None, None, None, "rs_e"]


# -- a client's copy -----------------------------------------------------------------

R0, R1 = reasoning("a", sealed="sa"), reasoning("b", sealed="sb")
M0, M1 = message("a", "Let me look."), message("b", "It says  nine.")
Q, P, A, B = own_call("o"), own_call("p"), function("a"), custom("b", "x")


def bare(item: Json) -> Json:
    return {name: value for name, value in item.items() if name not in ("id", "status")}


def short(item: Json) -> Json:
    return {"role": "assistant", "content": item["content"][0]["text"]}


COPIES: list[tuple[list[Json], list[Json]]] = [
    ([R0, M0, R1, M1], [R1, M1]),
    ([M0, M1], [M1]),
    ([short(M0), short(M1)], [short(M1)]),
    ([bare(R0), bare(M0), bare(R1), bare(M1)], [bare(R1), bare(M1)]),
    ([{"role": "assistant", "content": "Let me look. It says nine."}], [R1, M1]),
    ([{"type": "item_reference", "id": "msg_b"}], [{"type": "item_reference", "id": "msg_b"}]),
]  # fmt: skip


@pytest.mark.parametrize("follows", [[], [USER], [USER, A, output(A)]])
@pytest.mark.parametrize(("copy", "expected"), COPIES)
def test_what_came_before_the_last_round_stands_as_it_was_sent(
    copy: list[Json], expected: list[Json], follows: list[Json]
) -> None:
    sent = [R0, M0, Q, answer(Q)]
    assert insert([*copy, *follows], build_insertion([R0, M0, Q], [R1, M1])) == [*sent, *expected, *follows]


def test_reasoning_comes_with_our_call_where_the_client_has_it_no_more() -> None:
    of = build_insertion([R0, Q], [P], [R1, M1])
    read_back = [Q, answer(Q), P, answer(P)]
    assert insert([R1, M1], of) == [R0, *read_back, R1, M1]
    assert insert([M1], of) == [R0, *read_back, M1]
    assert insert([bare(R0), bare(R1), M1], of) == [R0, *read_back, bare(R1), M1]
    assert insert([A, output(A)], build_insertion([R0, Q, A])) == [R0, Q, A, answer(Q), output(A)]


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [USER, M1],
        [M0, USER],
        [short(message("c", "Another answer.")), USER, short(M1)],
        [function("z"), output(function("z")), M1],
    ],
)
def test_another_reply_stays_as_it_is(entries: list[Json]) -> None:
    assert insert(entries, build_insertion([M0, Q], [R1, M1])) is None


def test_what_is_said_again_in_a_later_reply_is_not_taken_for_this_one() -> None:
    of = build_insertion([M0, Q], [M1, A])
    assert insert([function("z"), output(function("z")), M1], of) is None
    assert (
        insert(
            [short(message("c", "Hm.")), {"type": "function_call_output", "call_id": "z", "output": ""}, short(M0), M1],
            of,
        )
        is None
    )
    assert insert([function("z"), output(function("z")), A, output(A)], of) is None


MIXED: list[tuple[list[Json], list[Json], list[Json]]] = [
    ([R0, Q, A, B], [R0, A, B, output(A), output(B)], [R0, Q, A, B, answer(Q), output(A), output(B)]),
    ([R0, Q, A, B], [A, output(A), B, output(B)], [R0, Q, A, answer(Q), output(A), B, output(B)]),
    ([R0, A, Q, B], [R0, A, output(A), B, output(B)], [R0, A, output(A), Q, B, answer(Q), output(B)]),
    ([R0, A, B, Q], [A, B, output(B), output(A)], [A, B, Q, answer(Q), output(B), output(A)]),
    ([M0, A, Q, P], [bare(M0), bare(A), output(A)], [bare(M0), bare(A), Q, P, answer(Q), answer(P), output(A)]),
    ([Q, R0, A], [R0, A, output(A)], [Q, R0, A, answer(Q), output(A)]),
]


@pytest.mark.parametrize("follows", [[], [R1, M1, USER], [function("z"), output(function("z"))]])
@pytest.mark.parametrize(("said", "copy", "expected"), MIXED)
def test_our_call_stands_beside_the_clients(
    said: list[Json], copy: list[Json], expected: list[Json], follows: list[Json]
) -> None:
    assert insert([*copy, *follows], build_insertion(said)) == [*expected, *follows]


def test_our_call_stands_in_a_reply_that_broke_off_behind_it() -> None:
    assert insert([M0, USER], build_insertion([M0, Q])) == [M0, Q, answer(Q), USER]


def test_a_call_of_ours_that_was_not_answered_is_not_told() -> None:
    of = ToolRoundInsertion(
        b"", (ToolRound((raw(M0), raw(Q)), (raw(answer(Q)),)), ToolRound((raw(M1), raw(P)))), (), "", 0.0
    )
    assert insert([M0, M1, USER], of) == [M0, Q, answer(Q), M1, USER]


def test_nothing_leads_to_the_provider_where_it_stores_nothing() -> None:
    of = build_insertion([reasoning("x"), R0, Q], [M1])
    sealed = {name: value for name, value in R0.items() if name != "id"}
    call = {name: value for name, value in Q.items() if name != "id"}
    assert insert([M1], of, {"store": b"false"}) == [sealed, call, answer(Q), M1]


def test_where_nothing_that_was_read_is_put_in_nothing_is_told_that_led_to_it() -> None:
    """Reasoning without the call that it led to is refused, and the client has it."""
    of = TOOL_PROTOCOL.without_own_calls(
        build_insertion([R0, M0, reasoning("x", sealed="sx"), Q], [reasoning("y", sealed="sy"), P], [R1, M1])
    )
    assert of is not None
    assert insert([R0, M0, reasoning("x", sealed="sx"), reasoning("y", sealed="sy"), R1, M1, USER], of) == [
        R0, M0, R1, M1, USER
    ]  # fmt: skip
    of = TOOL_PROTOCOL.without_own_calls(build_insertion([R0, Q, Q | {"call_id": "q"}], [R1, P, A, B]))
    assert of is not None
    assert TOOL_PROTOCOL.without_own_calls(of) == of
    unnamed = [{name: value for name, value in item.items() if name != "id"} for item in (A, B)]
    assert insert([R0, R1, A, B, output(A), output(B)], of) == [*unnamed, output(A), output(B)], "led by what is gone"
    named = [{"type": "item_reference", "id": item["id"]} for item in (R0, R1, A, B)]
    assert insert([*named, output(A), output(B)], of) == [*unnamed, output(A), output(B)]
    of = TOOL_PROTOCOL.without_own_calls(build_insertion([R0, Q], [M1, A]))
    assert of is not None
    assert insert([R0, M1, A, output(A)], of) == [M1, A, output(A)]
    of = TOOL_PROTOCOL.without_own_calls(build_insertion([R0, A, Q]))
    assert of is None, "the client's own copy is legal"
    of = TOOL_PROTOCOL.without_own_calls(build_insertion([R0, search("w"), R1, Q, A]))
    assert of is not None
    assert insert([R0, search("w"), R1, A, output(A)], of) == [unnamed[0], output(A)], "a search has to have its id"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], False), ([USER, M0, A, output(A)], False), ([USER, R0, M0], True),
        ([USER, {"type": "item_reference", "id": "x"}], True), ([USER, {"id": "x"}], True),
        ([{"type": "compaction", "encrypted_content": "x"}, {"type": "message", "role": "user", "content": []}], False),
    ],
)  # fmt: skip
def test_reasoning_that_produced_only_our_calls_may_be_dropped(items: list[Json], expected: bool) -> None:
    assert TOOL_PROTOCOL.may_have_stranded_reasoning(read(*items)) is expected


def test_our_answer_never_parts_reasoning_from_the_message_behind_it() -> None:
    call, called, thought, said = (
        make(kind, f"z{at}") for at, kind in enumerate(["call", "ours", "reasoning", "message"])
    )
    copy = [call, output(call), thought, bare(said), USER]
    sent = insert(copy, build_insertion([call, called, thought, said]))
    assert sent == [call, output(call), called, thought, bare(said), answer(called), USER]


kinds = st.sampled_from(["reasoning", "message", "ours"])
rounds = st.lists(st.lists(kinds, max_size=3), max_size=3)


def make(kind: str, name: str) -> Json:
    return {
        "reasoning": lambda: reasoning(name, sealed=f"s{name}"), "message": lambda: message(name, f"Say {name}."),
        "ours": lambda: own_call(f"o{name}"), "call": lambda: function(name), "custom": lambda: custom(name, "x"),
    }[kind]()  # fmt: skip


@settings(deadline=None)
@given(rounds, st.lists(st.sampled_from(["ours", "call", "custom", "reasoning"]), max_size=4), st.data())
def test_however_a_client_writes_its_copy_the_list_is_legal_and_stays_the_same(
    earlier: list[list[str]], last: list[str], data: st.DataObject
) -> None:
    told = [
        [make(kind, f"{number}{at}") for at, kind in enumerate([*said, "ours"])] for number, said in enumerate(earlier)
    ]
    told.append(
        [make(kind, f"z{at}") for at, kind in enumerate([*last, data.draw(st.sampled_from(["call", "message"]))])]
    )
    keep = data.draw(st.booleans())
    visible = [item for said in told for item in said if item.get("name") != OURS]
    copy = [bare(item) if data.draw(st.booleans()) else item for item in visible if keep or item["type"] != "reasoning"]
    calls = [item for item in copy if "call_id" in item]
    if data.draw(st.booleans()):
        copy = [each for item in copy for each in ([item, output(item)] if "call_id" in item else [item])]
    else:
        copy += [output(item) for item in calls]
    of = build_insertion(*told)
    entries = [*copy, USER]
    sent = insert(entries, of)
    assert sent is not None
    assert RESPONSES.find_problems(read(USER, *sent)) == RESPONSES.find_problems(read(USER, *entries))
    before = [
        each for said in told[:-1] for each in (*said, *(answer(item) for item in said if item.get("name") == OURS))
    ]
    assert sent[: len(before)] == before
    gone = [bare(item) for said in told[:-1] for item in said]
    behind = [each for each in entries[:-1] if bare(each) not in gone]
    assert [each for each in sent[len(before) :] if each in entries and each != USER] == behind
    hidden = [item["call_id"] for said in told for item in said if item.get("name") == OURS]
    assert [each["call_id"] for each in sent if each.get("name") == OURS] == hidden
    assert sent[: len(sent) - 1] == (insert(copy, of) or [])


@settings(deadline=None)
@given(rounds, st.lists(st.sampled_from(["ours", "call", "message", "reasoning"]), max_size=4))
def test_without_what_was_read_nothing_stays_that_needs_what_is_gone(earlier: list[list[str]], last: list[str]) -> None:
    """No reasoning without what it led to, and no item that is known by reasoning that is gone."""
    told = [
        [make(kind, f"{number}{at}") for at, kind in enumerate([*said, "ours"])] for number, said in enumerate(earlier)
    ]
    told.append([make(kind, f"z{at}") for at, kind in enumerate([*last, "call"])])
    visible = [item for said in told for item in said if item.get("name") != OURS]
    copy = [*visible, *(output(item) for item in visible if "call_id" in item), USER]
    of = TOOL_PROTOCOL.without_own_calls(build_insertion(*told))
    sent = insert(copy, of) if of is not None else copy
    assert sent is not None
    names = [item.get("id") for item in sent]
    for said in told:
        for item, behind in pairwise(said):
            if item["type"] != "reasoning":
                continue
            if item["id"] in names:
                assert names[names.index(item["id"]) + 1] == behind["id"]
            else:
                assert behind["type"] == "reasoning" or behind["id"] not in names
    spoken = [[bare(item) for item in each if item.get("type") != "reasoning"] for each in (sent, copy)]
    assert spoken[0] == spoken[1]


def test_texts_that_were_joined_under_the_id_of_the_last_are_told_once() -> None:
    first, last = message("m", "What was found. "), message("n", "It is so.")
    of = build_insertion([R0, first, Q], [R1, last])
    joined = {**last, "content": [{**last["content"][0], "text": "What was found. It is so."}]}
    now = insert([R0, R1, joined, USER], of)
    assert now == [R0, first, Q, answer(Q), R1, last, USER]
