"""Our keys in `metadata` leave where an upstream would refuse the request for them, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.protocols.json_spans import fields_of, with_fields
from accordion.sessions.client_metadata import AGENT, DELEGATION, OWN_KEYS, PARENT, metadata_to_send, remove_own_keys

MINE = '"x-accordion-delegation": "refunds", "x-accordion-agent" :"R"'


def sent(protocol_name: str, body: str) -> str:
    raw = body.encode()
    return remove_own_keys(protocol_name, raw, fields_of(raw)).decode()


def test_anthropic_gets_its_user_id_and_none_of_ours() -> None:
    body = f' {{"model": "m" ,"metadata" : {{ {MINE} , "user_id": "u\\u00e9" }}, "messages":[ ] }}\n'
    assert sent("messages", body) == ' {"model": "m" ,"metadata" : { "user_id": "u\\u00e9" }, "messages":[ ] }\n'
    body = f'{{"metadata":{{"user_id":"u",{MINE}}},"messages":[]}}'
    assert sent("messages", body) == '{"metadata":{"user_id":"u"},"messages":[]}'


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ('{"metadata":{%s},"messages":[]}', '{"messages":[]}'),
        ('{ "a" : 1 , "metadata" : {%s} , "messages": [] }', '{ "a" : 1 , "messages": [] }'),
        ('{"messages":[], "metadata":{%s} }', '{"messages":[] }'),
        ('{ "metadata":{%s} }', "{  }"),
    ],
)
def test_metadata_that_held_nothing_else_goes_away(body: str, left: str) -> None:
    assert sent("messages", body % MINE) == left
    assert sent("chat", body % MINE) == left


def test_chat_keeps_them_where_the_reply_is_stored_and_where_there_is_more() -> None:
    for body in (
        f'{{"metadata":{{{MINE}}},"store":true,"messages":[]}}',
        f'{{"metadata":{{{MINE},"team":"a"}},"messages":[]}}',
    ):
        assert sent("chat", body) == body
    assert sent("chat", f'{{"metadata":{{{MINE}}},"store":false}}') == '{"store":false}'


def test_responses_keeps_them_but_where_they_are_too_many() -> None:
    def body(pairs: int, ours: str = MINE) -> str:
        return json.dumps({"metadata": {f"k{at}": "v" for at in range(pairs)}})[:-2] + f", {ours}}}}}"

    assert sent("responses", body(14)) == body(14)
    assert sent("responses", body(15)) == json.dumps({"metadata": {f"k{at}": "v" for at in range(15)}})
    assert sent("responses", f'{{"metadata":{{{MINE}}}}}') == f'{{"metadata":{{{MINE}}}}}'


@pytest.mark.parametrize(
    "value", ["null", "5", '"x-accordion-agent"', '["x-accordion-agent"]', "{}", '{"user_id":"u"}']
)
def test_metadata_without_our_keys_is_untouched(value: str) -> None:
    body = f'{{"metadata":{value},"messages":[{{"x-accordion-agent":1}}]}}'
    raw = body.encode()
    assert remove_own_keys("messages", raw, fields_of(raw)) is raw


def test_of_metadata_that_comes_twice_the_last_counts_and_none_of_ours_is_left() -> None:
    body = f'{{"metadata":{{{MINE}}},"a":1,"metadata":{{"user_id":"u",{MINE},"x-accordion-agent":"S"}}}}'
    assert sent("messages", body) == '{"metadata":{"user_id":"u"},"a":1}'


def test_a_key_is_known_however_it_is_spelt() -> None:
    assert sent("messages", '{"meta\\u0064ata":{"x\\u002daccordion-agent":"R","user_id":"u"}}') == (
        '{"meta\\u0064ata":{"user_id":"u"}}'
    )


def test_a_body_without_metadata_gets_none() -> None:
    assert metadata_to_send("messages", {"messages": b"[]"}) is None


names = st.sampled_from(["a", "b", "metadata", 'é"\\', "x-accordion-agent", ""])
spaces = st.text(" \t\r\n", max_size=3)
values = st.recursive(
    st.none() | st.text(max_size=4) | st.integers(), lambda i: st.lists(i) | st.dictionaries(names, i)
)


@st.composite
def objects(draw: st.DrawFn) -> tuple[list[tuple[str, Any]], str]:
    """An object's fields (a name may come twice), and its JSON with odd white space."""
    fields = draw(st.lists(st.tuples(names, values), max_size=6))
    gap = lambda: draw(spaces)  # noqa: E731
    told = ",".join(
        f"{gap()}{json.dumps(name, ensure_ascii=draw(st.booleans()))}{gap()}:{gap()}{json.dumps(value)}{gap()}"
        for name, value in fields
    )
    return fields, f"{gap()}{{{told or gap()}}}{gap()}"


@given(objects(), st.frozensets(names), st.dictionaries(names, st.sampled_from(["0", '"new"', "[ ]"]), max_size=2))
def test_fields_are_taken_out_and_replaced_and_the_rest_keeps_its_bytes(
    held: tuple[list[tuple[str, Any]], str], gone: frozenset[str], new: dict[str, str]
) -> None:
    fields, text = held
    changed = {**{name: value.encode() for name, value in new.items()}, **dict.fromkeys(gone)}
    made = with_fields(text.encode(), changed)
    wanted = {name: value for name, value in dict(fields).items() if name not in gone}
    wanted |= {name: json.loads(value) for name, value in new.items() if name in wanted}
    assert json.loads(made) == wanted
    assert list(json.loads(made)) == list(wanted)
    if not changed.keys() & dict(fields).keys():
        assert made == text.encode()


@given(st.lists(st.tuples(names, spaces, values, spaces), unique_by=lambda each: each[0], max_size=5), st.data())
def test_remaining_metadata_keeps_its_white_space(told: list[tuple[str, str, Any, str]], data: st.DataObject) -> None:
    parts = [f"{a}{json.dumps(name)}{a}:{b}{json.dumps(value)}" for name, a, value, b in told]
    gone = data.draw(st.frozensets(st.sampled_from([each[0] for each in told]))) if told else frozenset()
    made = with_fields(f"{{{','.join(parts)} }}".encode(), dict.fromkeys(gone)).decode()
    kept = [part for part, each in zip(parts, told, strict=True) if each[0] not in gone]
    # The space after the brace stays where it was, whatever comes next.
    lead = told[0][1] if kept and gone and told[0][0] in gone else ""
    first = kept[0].lstrip(" \t\r\n") if lead or (kept and told[0][0] in gone) else "".join(kept[:1])
    if kept:
        assert made == f"{{{lead}{','.join([first, *kept[1:]])} }}"
    else:
        assert made == f"{{{told[0][1] if told else ''} }}"


def test_our_keys_are_those_that_a_delegation_is_declared_by() -> None:
    assert {DELEGATION, PARENT, AGENT} == OWN_KEYS
