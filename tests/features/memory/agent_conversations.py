"""Conversations of agents at work, in any protocol."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

from accordion.model.conversation import Conversation
from tests.compaction.compactor_setup import conversation, read
from tests.histories import Call, History, HistoryRound, ProtocolName, Turn
from tests.recordings import RECORDINGS

CLAUDE_CODE = ("coding_claude_code.jsonl.gz", "coding_claude_code_joined.jsonl.gz")

ToolStep = tuple[str, dict[str, Any], str]
"""A call: the tool, its arguments, its result."""


def conversation_of_calls(
    *did: ToolStep,
    said: str = "Please do it.",
    system: str = "",
    answer: str = "",
    protocol_name: ProtocolName = "chat",
):
    """A user asks for something, an agent makes calls one after the other."""
    rounds = tuple(HistoryRound((Call(f"call_{at}", *each),)) for at, each in enumerate(did))
    return conversation(History((Turn((said,), rounds, answer),), system), protocol_name)


def conversation_of_texts(*said: str, protocol_name: ProtocolName = "chat") -> Conversation:
    """A user and an agent in turn."""
    turns = [Turn((one,), (), other) for one, other in zip(said[::2], [*said[1::2], ""], strict=False)]
    return conversation(History(tuple(turns)), protocol_name)


def recorded_runs(*files: str) -> Iterator[tuple[str, list[dict[str, Any]], Conversation]]:
    """Recorded runs: id, messages as they were recorded, the conversation as it is read."""
    for file in files:
        with gzip.open(RECORDINGS / file) as lines:
            for line in lines:
                run = json.loads(line)
                yield run["id"], run["messages"], read({"model": "m", "messages": run["messages"]}, "chat")


def recorded_steps(messages: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The calls of a recorded run with their results."""
    results = {m["tool_call_id"]: m["content"] or "" for m in messages if m["role"] == "tool"}
    for message in messages:
        for call in message.get("tool_calls") or ():
            try:
                given = json.loads(call["function"]["arguments"])
            except ValueError:
                given = {}
            yield call["function"]["name"], given, results.get(call["id"], "")
