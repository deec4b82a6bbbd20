"""Writing a request again around another list."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.json_writing import write_body
from accordion.protocols.openai_chat.protocol import OpenAIChat
from tests.histories import PROTOCOL_NAMES, ProtocolName, bodies
from tests.protocols.edit_samples import SPOKEN

TENANT = TenantScope("tenant", b"tenant" * 5)
RAW = (
    b'{"model": "m" , "messages":[ {"role":"system","content":"s\\u00e9"}, {"role":"user", "content":"a"} ],\n'
    b'"temperature":1.50,"tools": [ {"type":"function"} ],"a\\"b":null}'
)


def read(raw: bytes = RAW) -> Any:
    return BodyReader().read(OpenAIChat(), raw, TENANT)


@pytest.mark.parametrize("name", PROTOCOL_NAMES)
@given(data=st.data())
def test_a_request_that_is_written_with_its_own_list_says_the_same(name: ProtocolName, data: st.DataObject) -> None:
    protocol = SPOKEN[name]
    request = data.draw(bodies(name))
    conversation = BodyReader().read(protocol, json.dumps(request).encode(), TENANT)
    written = write_body(conversation, protocol.messages_field, [message.wire for message in conversation.messages])
    assert json.loads(written) == request
    again = BodyReader().read(protocol, written, TENANT)
    assert (again.messages, again.lead, again.chain) == (conversation.messages, conversation.lead, conversation.chain)
    assert again.overhead_key == conversation.overhead_key


def test_every_value_keeps_its_bytes_and_the_preamble_its_place() -> None:
    entry = b'{"role":"user",  "content":"b"}'
    assert write_body(read(), "messages", [entry]) == (
        b'{"model":"m","temperature":1.50,"tools":[ {"type":"function"} ],"a\\"b":null,'
        b'"messages":[{"role":"system","content":"s\\u00e9"},' + entry + b"]}"
    )


def test_fields_are_replaced_where_they_stand_added_before_the_list_or_removed() -> None:
    changed = {"temperature": b"0", "tools": None, "unknown": None, "added": b"[1 ]"}
    written = write_body(read(), "messages", [], changed)
    assert list(json.loads(written)) == ["model", "temperature", 'a"b', "added", "messages"]
    assert b'"temperature":0,' in written
    assert b'"added":[1 ],' in written


def test_a_list_that_grows_begins_with_the_same_bytes() -> None:
    entries = [b'{"role":"user","content":"%d"}' % number for number in range(4)]
    shorter, longer = write_body(read(), "messages", entries[:2]), write_body(read(), "messages", entries)
    assert longer.startswith(shorter.removesuffix(b"]}"))


def test_a_plain_string_as_input_is_written_as_a_list() -> None:
    protocol = SPOKEN["responses"]
    conversation = BodyReader().read(protocol, b'{"model":"m","input":"hi"}', TENANT)
    wires = protocol.join_messages([message.wire for message in conversation.messages], [])
    again = BodyReader().read(protocol, write_body(conversation, "input", wires), TENANT)
    assert again.chain == conversation.chain
