"""Views as strategies get them, of histories or by hand, and the result of a plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from accordion.compaction.strategies.base import Plan, StrategyView
from accordion.compaction.view import build_view
from accordion.model.boundaries import find_skipped_messages, match_results_to_calls
from accordion.model.compaction import CompactedConversation, without_compaction
from accordion.model.conversation import (
    Conversation,
    Media,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from accordion.model.plan import Drop, Replace, Summarize
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.registry import PROTOCOLS
from tests.histories import History, HistoryRound, ProtocolName, body

TENANT = TenantScope("tenant", b"a tenant's key")
OVERHEAD = 100
READERS = PROTOCOLS


def count(message: Message) -> int:
    """Four characters are a token, and a message costs four."""
    return 4 + sum(map(_part, message.parts))


def _part(part: Part) -> int:
    if isinstance(part, ToolResult):
        return 4 + sum(map(_part, part.parts))
    if isinstance(part, ToolCall):
        return 6 + (len(part.name) + len(part.arguments)) // 4
    if isinstance(part, Text | Reasoning):
        return -(-len(part.text) // 4)
    return 300 if isinstance(part, Media) else part.size // 4


def read(history: History, protocol_name: ProtocolName) -> Conversation:
    """A history as the reader gives it."""
    return BodyReader().read(READERS[protocol_name], json.dumps(body(history, protocol_name)).encode(), TENANT)


def with_longer_results(history: History, repeats: int) -> History:
    """The same with longer results."""

    def lengthen(each: HistoryRound) -> HistoryRound:
        calls = (replace(call, result=(call.result + "word ") * repeats) for call in each.calls)
        return replace(each, calls=tuple(calls))

    turns = tuple(replace(turn, rounds=tuple(map(lengthen, turn.rounds))) for turn in history.turns)
    return replace(history, turns=turns)


def message(role: Role, *parts: Part, wire: bytes = b"{}") -> Message:
    """A message by hand."""
    return Message(hashlib.sha256(repr((role, parts)).encode()).digest(), role, parts, wire)


def user_message(text: str) -> Message:
    return message("user", Text(text))


def assistant_message(text: str) -> Message:
    return message("assistant", Text(text))


def call_message(call_id: str, name: str = "read", arguments: str = "{}", *more: Part) -> Message:
    """An assistant's message with one call."""
    return message("assistant", *more, ToolCall(call_id, name, arguments))


def result_message(call_id: str, text: str) -> Message:
    """A tool's answer."""
    return message("tool", ToolResult(call_id, (Text(text),)))


def call_and_result(call_id: str, text: str, name: str = "read", arguments: str = "{}") -> list[Message]:
    """A call and its answer."""
    return [call_message(call_id, name, arguments), result_message(call_id, text)]


def uncompacted(*messages: Message) -> CompactedConversation:
    """A list made by hand, with no compaction."""
    chain, keys = b"", []
    for each in messages:
        chain = hashlib.sha256(chain + each.key).digest()
        keys.append(chain)
    return without_compaction(Conversation("chat", "m", tuple(messages), tuple(keys)))


def strategy_view(
    compacted: CompactedConversation, kind: Any = "conversation", *, target: int = 0, **fields: Any
) -> StrategyView:
    """The view of a list; its tokens are the sum of its messages and a fixed overhead."""
    messages = compacted.conversation.messages
    passed = find_skipped_messages(messages)
    tokens = OVERHEAD + sum(count(message) for index, message in enumerate(messages) if index not in passed)
    tokens += sum(fields.get("insertion_tokens", {}).values())
    given: dict[str, Any] = {"window": 100_000, "limit": 90_000, "tenant": TENANT, "count_message": count} | fields
    return build_view(compacted, kind, tokens=tokens, overhead=OVERHEAD, target=target, **given)


def outcome(plan: Plan) -> dict[int, Message]:
    """The message of each slot that a plan keeps, with its remaining parts.

    Written apart from the product's own way of doing it, so that the one checks the other.
    """
    view = plan.view
    parts: list[dict[int, Part]] = [dict(enumerate(slot.message.parts)) for slot in view.slots]
    gone: set[int] = set()
    for step in plan.steps:
        if isinstance(step, Replace):
            old = parts[step.slot][step.part]
            new: Part = Text(step.text)
            parts[step.slot][step.part] = ToolResult(old.call_id, (new,)) if isinstance(old, ToolResult) else new
        elif isinstance(step, Drop):
            for at in step.parts or list(parts[step.slot]):
                del parts[step.slot][at]
            if not parts[step.slot]:
                gone.add(step.slot)
        elif isinstance(step, Summarize):
            gone.update(index for index in range(step.first, step.last + 1) if view.removable[index])
    return {
        index: Message(
            slot.message.key, slot.message.role, tuple(part for _, part in sorted(parts[index].items())), b""
        )
        for index, slot in enumerate(view.slots)
        if index not in gone
    }


def find_faults(messages: Iterable[Message]) -> list[str]:
    """The problems of a list in any protocol: calls or results alone, empty messages."""
    real = list(messages)
    matched = match_results_to_calls(real)
    found = []
    answered = set(matched.values())
    for index, each in enumerate(real):
        if not each.parts:
            found.append(f"message {index} is empty")
        for at, part in enumerate(each.parts):
            if isinstance(part, ToolResult) and (index, at) not in matched:
                found.append(f"{part.call_id} has no call")
            if isinstance(part, ToolCall) and (index, at) not in answered:
                found.append(f"{part.call_id} has no result")
    return found
