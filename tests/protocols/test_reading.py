"""Histories are read as what was said, in the form of each protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from accordion.model.conversation import Media, Part, Reasoning, Text, ToolCall, ToolResult
from accordion.protocols.registry import PROTOCOLS
from tests.histories import PROTOCOL_NAMES, History, Image, ProtocolName, entries, histories


def words(part: Part) -> Any:
    """What a part says, whatever the protocol adds to it."""
    if isinstance(part, Text | Reasoning):
        return type(part).__name__, part.text
    if isinstance(part, ToolCall):
        return part.call_id, part.name, json.loads(part.arguments)
    if isinstance(part, ToolResult):
        return part.call_id, [words(inner) for inner in part.parts]
    assert isinstance(part, Media)
    return part.kind, part.media_type, part.width, part.height


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@given(history=histories(is_plain=True))
def test_a_history_is_read_as_what_was_said(protocol_name: ProtocolName, history: History) -> None:
    expected: list[tuple[str, Any]] = []
    for turn in history.turns:
        for said in turn.said:
            image = isinstance(said, Image) and ("image", "image/png", said.width, said.height)
            expected.append(("user", image or ("Text", said)))
        for made in turn.rounds:
            expected += [("assistant", ("Reasoning", made.thought))] if made.thought else []
            expected += [("assistant", ("Text", made.text))] if made.text else []
            expected += [("assistant", (call.id, call.name, call.arguments)) for call in made.calls]
            expected += [("user", (c.id, [("Text", c.result)] if c.result else [])) for c in made.calls]
        expected += [("assistant", ("Text", turn.answer))] if turn.answer else []
    wires = [json.dumps(entry).encode() for entry in entries(history, protocol_name)]
    messages = [message for message in map(PROTOCOLS[protocol_name].read_message, wires) if message.role != "system"]
    roles = {"tool": "user"}
    assert [(roles.get(each.role, each.role), words(part)) for each in messages for part in each.parts] == expected
