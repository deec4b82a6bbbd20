"""Conversations with a compaction made by hand, and the excerpts for their newest turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from accordion.insertions.excerpts import ArchiveSearch, Excerpt
from accordion.model.compaction import (
    CompactedConversation,
    Compaction,
    CompactionEntry,
    apply_compaction,
)
from accordion.model.conversation import Conversation, Message
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.registry import PROTOCOLS

TENANT = TenantScope("tenant", b"a tenant's key")
Json = dict[str, Any]


def count(text: str) -> int:
    """Four characters are a token."""
    return -(-len(text) // 4)


def user(text: str) -> Json:
    """What a user says."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    """What the model says."""
    return {"role": "assistant", "content": text}


def call(name: str, arguments: Json, call_id: str) -> Json:
    """A reply that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str, text: str) -> Json:
    """What the tool answered."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


LISTING = "\n".join(f"line {number} of the order list" for number in range(200))
ORDERS = LISTING.replace("line 30 of", "W5918442 holds item 7706410293, line 30 of")
OPENING_TURNS = (
    user("Find out what the customers ordered."),
    call("list_orders", {"region": "north"}, "call_1"),
    result("call_1", ORDERS),
    call("read_file", {"path": "src/billing/rules.py"}, "call_2"),
    result("call_2", "def round_half_even(amount):\n    return amount"),
    {"role": "assistant", "content": "Both were read."},
)


def read(entries: Sequence[Json]) -> Conversation:
    """A request of Chat Completions as the reader gives it."""
    request = {"model": "gpt-4o", "messages": list(entries)}
    return BodyReader().read(PROTOCOLS["chat"], json.dumps(request).encode(), TENANT)


def read_message(entry: Json) -> Message:
    """A message that Accordion wrote."""
    return read([entry]).messages[0]


def compact_by_hand(
    client: Conversation, entries: Sequence[CompactionEntry], covered: int, artifacts: Sequence[str] = ()
) -> CompactedConversation:
    """The list with a compaction made by hand."""
    compaction = Compaction(
        f"f-{covered}-{len(entries)}", client.chain[covered - 1], covered, tuple(entries), "conversation", "automatic",
        0.5, (), 1_000, 100, 1, 0.0, artifacts=tuple(artifacts),
    )  # fmt: skip
    return apply_compaction(client, compaction, lambda wire: read_message(json.loads(wire)))


def summarized(turn: Sequence[Json], artifacts: Sequence[str] = (), said: str = "Orders and rules were read.") -> tuple[
    Conversation, CompactedConversation, range
]:  # fmt: skip
    """A conversation with a summary in place of all but its first message, and then this turn."""
    client = read([*OPENING_TURNS, *turn])
    covered = len(OPENING_TURNS)
    block = CompactionEntry(1, covered - 1, json.dumps(user(said)).encode())
    compacted = compact_by_hand(client, [CompactionEntry(0, 0), block], covered, artifacts)
    return client, compacted, range(covered, len(client.messages))


def find_excerpt(turn: Sequence[Json], artifacts: Sequence[str] = (), tokens: int = 1_500) -> Excerpt | None:
    """The excerpt for a turn behind the compaction."""
    client, shown, newest = summarized(turn, artifacts)
    return ArchiveSearch().find_excerpt(TENANT, shown, client, newest, count, tokens=tokens)


def ask_about(archived: Sequence[Json], turn: Sequence[Json] | str, tokens: int = 1_500, said: str = "Read.") -> (
    Excerpt | None
):  # fmt: skip
    """The excerpt for a turn after messages that a summary replaced."""
    asked = [user(turn)] if isinstance(turn, str) else [*turn]
    client = read([user("Begin."), *archived, assistant("Done."), *asked])
    covered = len(archived) + 2
    block = CompactionEntry(1, covered - 1, json.dumps(user(said)).encode())
    shown = compact_by_hand(client, [CompactionEntry(0, 0), block], covered)
    newest = range(len(client.messages) - 1, len(client.messages))
    return ArchiveSearch().find_excerpt(TENANT, shown, client, newest, count, tokens=tokens)


def ask_about_results(texts: Sequence[str], turn: str, tokens: int = 1_500) -> Excerpt | None:
    """The excerpt for a question about results that all left."""
    pairs = [(call("read", {"at": at}, f"c{at}"), result(f"c{at}", text)) for at, text in enumerate(texts)]
    return ask_about([entry for pair in pairs for entry in pair], turn, tokens)


TALK = [
    *(user(f"Remark {number} about the weather, which is fine today.") for number in range(20)),
    user("My sister Clara works at the bakery in Lindau. She likes it."),
    *(user(f"Remark {number} about the garden and its trees.") for number in range(20)),
]
"""A talk in which one message has what is asked for."""
