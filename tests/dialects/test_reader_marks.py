"""What the reader notes for folding: cache breakpoints, and the entries that belong to the preamble."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.dialects.chat import ChatCompletions
from accordion.dialects.messages import Messages
from accordion.dialects.reader import Reader
from accordion.dialects.responses import Responses

SPACE = b"tenant" * 5
LONG = "word " * 100
MARK = {"cache_control": {"type": "ephemeral"}}


def read(dialect: Any, listed: list[Any], reader: Reader | None = None, **fields: Any) -> Any:
    request = {"model": "m", dialect.listing: listed, **fields}
    return (reader or Reader()).read(dialect, json.dumps(request).encode(), SPACE)


def test_cache_breakpoints_are_counted_for_each_message() -> None:
    text = {"type": "text", "text": "a"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text | MARK]}
    listed = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [text | MARK]},
        {"role": "user", "content": [result | MARK, text | MARK, text]},
    ]
    assert [message.marks for message in read(Messages(), listed).messages] == [0, 1, 3]


def test_openais_breakpoints_count_too() -> None:
    marked = {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert [m.marks for m in read(ChatCompletions(), [{"role": "user", "content": [marked]}]).messages] == [1]


def test_a_breakpoint_that_is_only_talked_about_is_none() -> None:
    said = json.dumps({"a": MARK})
    assert [m.marks for m in read(Messages(), [{"role": "user", "content": said}]).messages] == [0]


@pytest.mark.parametrize("dialect", [ChatCompletions(), Responses()], ids=lambda dialect: dialect.name)
def test_the_entries_of_the_preamble_are_kept_beside_the_messages(dialect: Any) -> None:
    system = [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}]
    rest = [{"role": "user", "content": "a"}, {"role": "developer", "content": "later"}]
    conversation = read(dialect, system + rest)
    assert [json.loads(message.wire) for message in conversation.lead] == system
    assert [json.loads(message.wire) for message in conversation.messages] == rest
    assert len(conversation.preamble) == 2


def test_a_list_without_a_preamble_leads_with_nothing() -> None:
    conversation = read(Messages(), [{"role": "user", "content": "a"}], system="s")
    assert (conversation.lead, len(conversation.messages), len(conversation.preamble)) == ((), 1, 1)


def test_a_conversation_that_is_read_on_has_the_same_preamble_and_breakpoints() -> None:
    reader, listed = Reader(), [{"role": "system", "content": LONG}]
    for turn in range(4):
        text = {"type": "text", "text": f"{turn} {LONG}"} | MARK
        listed.append({"role": "user", "content": [text]})
        conversation = read(ChatCompletions(), listed, reader)
        assert conversation == read(ChatCompletions(), listed)
        assert [json.loads(message.wire) for message in conversation.lead] == listed[:1]
        assert [message.marks for message in conversation.messages] == [1] * (turn + 1)
