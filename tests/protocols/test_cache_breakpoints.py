"""The reader counts cache breakpoints and the entries of the preamble."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.tenant import TenantScope
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.openai_responses.protocol import OpenAIResponses

TENANT = TenantScope("tenant", b"tenant" * 5)
LONG = "word " * 100
MARK = {"cache_control": {"type": "ephemeral"}}


def read(protocol: Any, listed: list[Any], reader: BodyReader | None = None, **fields: Any) -> Any:
    request = {"model": "m", protocol.messages_field: listed, **fields}
    return (reader or BodyReader()).read(protocol, json.dumps(request).encode(), TENANT)


def test_cache_breakpoints_are_counted_for_each_message() -> None:
    text = {"type": "text", "text": "a"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text | MARK]}
    listed = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [text | MARK]},
        {"role": "user", "content": [result | MARK, text | MARK, text]},
    ]
    assert [message.cache_breakpoints for message in read(AnthropicMessages(), listed).messages] == [0, 1, 3]


def test_breakpoints_are_counted_only_where_a_compaction_may_add_one() -> None:
    marked = {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert [m.cache_breakpoints for m in read(OpenAIChat(), [{"role": "user", "content": [marked]}]).messages] == [0]


def test_a_breakpoint_that_is_only_talked_about_is_none() -> None:
    said = json.dumps({"a": MARK})
    assert [m.cache_breakpoints for m in read(AnthropicMessages(), [{"role": "user", "content": said}]).messages] == [0]


@pytest.mark.parametrize("protocol", [OpenAIChat(), OpenAIResponses()], ids=lambda protocol: protocol.name)
def test_the_entries_of_the_preamble_are_kept_beside_the_messages(protocol: Any) -> None:
    system = [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}]
    rest = [{"role": "user", "content": "a"}, {"role": "developer", "content": "later"}]
    conversation = read(protocol, system + rest)
    assert [json.loads(message.wire) for message in conversation.lead] == system
    assert [json.loads(message.wire) for message in conversation.messages] == rest
    assert len(conversation.preamble) == 2


def test_a_list_without_a_preamble_leads_with_nothing() -> None:
    conversation = read(AnthropicMessages(), [{"role": "user", "content": "a"}], system="s")
    assert (conversation.lead, len(conversation.messages), len(conversation.preamble)) == ((), 1, 1)


def test_a_conversation_that_is_read_on_has_the_same_preamble_and_breakpoints() -> None:
    reader, listed = BodyReader(), [{"role": "system", "content": LONG}]
    for turn in range(4):
        text = {"type": "text", "text": f"{turn} {LONG}"} | MARK
        listed.append({"role": "user", "content": [text]})
        conversation = read(AnthropicMessages(), listed, reader)
        assert conversation == read(AnthropicMessages(), listed)
        assert [json.loads(message.wire) for message in conversation.lead] == listed[:1]
        assert [message.cache_breakpoints for message in conversation.messages] == [1] * (turn + 1)
