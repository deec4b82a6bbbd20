"""Editing a message, in every protocol: what was asked for changes, everything else stays."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.conversation import Opaque
from tests.equivalent_entries import respell
from tests.histories import PROTOCOL_NAMES, ProtocolName, entries, histories
from tests.protocols.edit_samples import (
    SPOKEN,
    WITH_CONTENT,
    changes_of,
    expected_parts,
    message,
    reread_parts,
    write_message,
)

protocol_names = pytest.mark.parametrize("name", PROTOCOL_NAMES)


@protocol_names
@given(data=st.data())
def test_editing_nothing_gives_the_clients_own_bytes(name: ProtocolName, data: st.DataObject) -> None:
    for entry in entries(data.draw(histories(max_turns=2, is_plain=True)), name):
        wire = respell(entry, name, Random(data.draw(st.integers(0, 99)))).encode()
        assert SPOKEN[name].edit_message(message(SPOKEN[name], wire), {}) == wire


@protocol_names
@given(data=st.data())
def test_an_edited_message_reads_as_what_was_asked_for(name: ProtocolName, data: st.DataObject) -> None:
    protocol = SPOKEN[name]
    for entry in entries(data.draw(histories(max_turns=2, is_plain=True)), name):
        was = message(protocol, respell(entry, name, Random(data.draw(st.integers(0, 99)))).encode())
        changes = data.draw(changes_of(was.parts))
        written = protocol.edit_message(was, changes)
        assert reread_parts(protocol, written) == expected_parts(was.parts, changes)
        assert written is None or protocol.read_message(written).role == was.role
        assert protocol.edit_message(was, changes) == written


@protocol_names
@given(data=st.data())
def test_nothing_is_left_where_all_parts_are_taken_out(name: ProtocolName, data: st.DataObject) -> None:
    for entry in entries(data.draw(histories(max_turns=2, is_plain=True)), name):
        was = message(SPOKEN[name], entry)
        if was.parts:
            assert SPOKEN[name].edit_message(was, dict.fromkeys(range(len(was.parts)))) is None


@protocol_names
@given(data=st.data())
def test_a_text_of_our_own_is_a_users_message_that_reads_as_it(name: ProtocolName, data: st.DataObject) -> None:
    text = data.draw(st.text(min_size=1))
    written = message(SPOKEN[name], SPOKEN[name].text_message(text))
    assert (written.role, [part.text for part in written.parts]) == ("user", [text])  # type: ignore[union-attr]
    assert written.has_user_text


UNKNOWN: dict[ProtocolName, Any] = {
    "chat": {"role": "user", "content": [{"type": "hologram"}, {"type": "text", "text": "a"}]},
    "responses": {"type": "hologram", "id": "h"},
    "messages": {"role": "user", "content": [{"type": "hologram"}, {"type": "text", "text": "a"}]},
    "gemini": {"role": "user", "parts": [{"hologram": {}}, {"text": "a"}]},
    "converse": {"role": "user", "content": [{"hologram": {}}, {"text": "a"}]},
}


@protocol_names
@pytest.mark.parametrize("text", ["b", None])
def test_unknown_content_is_not_changed(name: ProtocolName, text: str | None) -> None:
    was = message(SPOKEN[name], UNKNOWN[name])
    assert isinstance(was.parts[0], Opaque)
    with pytest.raises(ValueError, match="not understood"):
        SPOKEN[name].edit_message(was, {0: text})


@protocol_names
@pytest.mark.parametrize("index", [-1, 1, 7])
def test_a_part_that_does_not_exist_is_not_changed(name: ProtocolName, index: int) -> None:
    was = message(SPOKEN[name], write_message(name, "user", "a"))
    with pytest.raises(ValueError, match="does not exist"):
        SPOKEN[name].edit_message(was, {index: "b"})


@protocol_names
def test_parts_that_were_read_of_other_json_are_noticed(name: ProtocolName) -> None:
    was = message(SPOKEN[name], write_message(name, "user", "a"))
    other = message(SPOKEN[name], write_message(name, "user", "b", "b"))
    stale = type(was)(was.key, was.role, other.parts, was.wire)
    with pytest.raises(ValueError, match="other parts"):
        SPOKEN[name].edit_message(stale, {0: "c"})


@pytest.mark.parametrize("name", WITH_CONTENT)
@pytest.mark.parametrize("kind", ["string", "blocks"])
def test_text_in_either_form_is_replaced_and_taken_out(name: ProtocolName, kind: str) -> None:
    part = {"type": "input_text" if name == "responses" else "text", "text": "a"}
    was = message(SPOKEN[name], {"role": "user", "content": "a" if kind == "string" else [part, part]})
    edited = json.loads(SPOKEN[name].edit_message(was, {0: "b"}) or b"")
    assert edited["content"] == ("b" if kind == "string" else [part | {"text": "b"}, part])
    assert (SPOKEN[name].edit_message(was, {0: ""}) is None) == (kind == "string")


@protocol_names
def test_the_bytes_beside_an_edited_part_are_the_clients(name: ProtocolName) -> None:
    kind = {"responses": b', "type":"input_text"', "gemini": b"", "converse": b""}.get(name, b', "type":"text"')
    odd = b'{ "text" : "\\u00e9\\/"' + kind + b" }"
    listing = b"parts" if name == "gemini" else b"content"
    wire = b'{"role":"user", "x-own" : [1.50, {"a" :1}], "' + listing + b'": [' + odd + b" , " + odd + b"]}"
    edited = SPOKEN[name].edit_message(message(SPOKEN[name], wire), {1: "b"})
    assert edited is not None
    assert odd in edited
    assert b'[1.50, {"a" :1}]' in edited
