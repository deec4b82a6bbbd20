"""Conversations with a compaction made by hand, and the excerpts for their newest turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from accordion.archive.recall import ArtifactSearch, Excerpt
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
from accordion.summaries.facts import WordClassifier

TENANT = TenantScope("tenant", b"a tenant's key")
Json = dict[str, Any]


def find_claims(text: str) -> Sequence[str]:
    """The claims that the product finds in a text."""
    return WordClassifier().find_all_words(text)


def count(text: str) -> int:
    """Four characters are a token."""
    return -(-len(text) // 4)


def user(text: str) -> Json:
    """What a user says."""
    return {"role": "user", "content": text}


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


def find_excerpt(turn: Sequence[Json], artifacts: Sequence[str] = (), **options: Any) -> Excerpt | None:
    """The excerpt for a turn behind the compaction."""
    client, shown, newest = summarized(turn, artifacts)
    return ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, newest, count, **options)


def find_excerpt_of_results(texts: Sequence[str], ask: str, **options: Any) -> Excerpt | None:
    """The excerpt for a question about results that all left."""
    rounds = [
        entry
        for number, text in enumerate(texts)
        for entry in (call("read", {"at": number}, f"c{number}"), result(f"c{number}", text))
    ]
    client = read([user("Begin."), *rounds, {"role": "assistant", "content": "Read."}, user(ask)])
    covered = len(client.messages) - 1
    shown = compact_by_hand(
        client, [CompactionEntry(0, 0), CompactionEntry(1, covered - 1, json.dumps(user("Read.")).encode())], covered
    )
    return ArtifactSearch(find_claims).find_excerpt(
        TENANT, shown, client, range(covered, covered + 1), count, **options
    )
