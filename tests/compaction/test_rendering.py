from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from accordion.compaction.rendering import RequestRenderer
from accordion.model.compaction import (
    CompactedConversation,
    Compaction,
    CompactionEntry,
    apply_compaction,
    without_compaction,
)
from accordion.model.conversation import Conversation
from accordion.model.tenant import TenantScope
from accordion.protocols.registry import PROTOCOLS
from accordion.protocols.written_messages import WrittenMessageReader
from tests.compaction.compactor_setup import TENANT, conversation, long_history, read
from tests.histories import PROTOCOL_NAMES, ProtocolName, body

ANOTHERTENANT = TenantScope("another tenant", b"another tenant")


def compacted(client: Conversation, text: str = "What was.", id: str = "f-1") -> CompactedConversation:
    """All but the first of the beginning, replaced by a text."""
    spoken = PROTOCOLS[client.protocol_name]
    covered = next(at for at, m in enumerate(client.messages) if m.has_user_text and not m.has_tool_result and at > 3)
    entries = (CompactionEntry(0, 0), CompactionEntry(1, covered - 1, spoken.text_message(text)))
    record = Compaction(
        id, client.chain[covered - 1], covered, entries, "conversation", "automatic", 0.5, (), 9, 1, 1, 0.0
    )
    return apply_compaction(client, record, WrittenMessageReader().reader_for(spoken, TENANT))


def sent(of: CompactedConversation, rendering: RequestRenderer | None = None) -> dict[str, Any]:
    return json.loads((rendering or RequestRenderer()).render_body(PROTOCOLS[of.conversation.protocol_name], of))


def count_breakpoints(value: Any) -> int:
    return json.dumps(value).count('"cache_control"')


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_a_request_without_a_compaction_is_the_clients_own_in_other_words(protocol_name: ProtocolName):
    request = body(long_history(3), protocol_name)
    assert sent(without_compaction(read(request, protocol_name))) == request


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_the_block_stands_where_the_history_was_and_the_system_prompt_stays(protocol_name: ProtocolName):
    client = conversation(long_history(4), protocol_name)
    request, listing = sent(compacted(client)), PROTOCOLS[protocol_name].messages_field
    said = json.dumps(request[listing])
    assert "What was." in said
    assert "word0_0_1" not in said
    assert "What is next?" in said
    assert "You are an agent." in json.dumps(request)
    assert request.keys() >= {"toolConfig" if protocol_name == "converse" else "tools"}
    assert ("model" in request) == (protocol_name not in ("gemini", "converse"))


def test_speakers_alternate_in_messages():
    request = sent(compacted(conversation(long_history(4), "messages")))
    roles = [message["role"] for message in request["messages"]]
    assert all(one != other for one, other in pairwise(roles))
    assert "What was." in json.dumps(request["messages"][0])


@pytest.mark.parametrize("protocol_name", ["chat", "messages", "gemini", "converse"])
def test_users_messages_become_one_where_the_reply_between_them_left(protocol_name: ProtocolName):
    client, protocol = conversation(long_history(4), protocol_name), PROTOCOLS[protocol_name]
    second, end = [at for at, m in enumerate(client.messages) if m.has_user_text and not m.has_tool_result][1:3]
    entries = (
        *(CompactionEntry(0, 0), CompactionEntry(second, second)),
        CompactionEntry(1, end - 1, protocol.text_message("What was.")),
    )
    record = Compaction("f-1", client.chain[end - 1], end, entries, "conversation", "automatic", 0.5, (), 9, 1, 1, 0.0)
    compacted = apply_compaction(client, record, WrittenMessageReader().reader_for(protocol, TENANT))
    messages = [each for each in sent(compacted)[protocol.messages_field] if each["role"] != "system"]
    assert all(one["role"] != other["role"] for one, other in pairwise(messages))
    texts = [json.dumps(messages[0]).find(text) for text in ("number 0", "number 1", "What was.", "number 2")]
    assert texts == sorted(texts)
    assert texts[0] >= 0


def test_an_instruction_behind_a_summary_stays_there_in_later_requests():
    def reads(*more: dict[str, Any]) -> Conversation:
        said = [("user", "go"), ("system", "rule"), ("assistant", "old"), ("user", "older"), ("assistant", "old")]
        entries = [{"role": role, "content": text} for role, text in said]
        return read({"model": "m", "max_tokens": 9, "messages": [*entries, *more]}, "messages")

    def render(client: Conversation) -> list[dict[str, Any]]:
        entries = (CompactionEntry(0, 1), CompactionEntry(2, 4, protocol.text_message("What was.")))
        record = Compaction("f-1", client.chain[4], 5, entries, "conversation", "automatic", 0.5, (), 9, 1, 1, 0.0)
        return sent(apply_compaction(client, record, WrittenMessageReader().reader_for(protocol, TENANT)))["messages"]

    protocol, more = PROTOCOLS["messages"], [{"role": "user", "content": text} for text in ("new", "newer")]
    more += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]
    lists = [render(reads(*more[:count])) for count in (2, 3, 4)]
    assert [each["role"] for each in lists[-1]] == ["user", "user", "system", "assistant", "user"]
    assert lists[0] == lists[1][:-1] == lists[2][:-2]


def test_a_compaction_ends_in_a_cache_breakpoint_where_there_is_room_for_one():
    client = conversation(long_history(4), "messages")
    request = sent(compacted(client))
    assert count_breakpoints(request) == 1
    assert count_breakpoints(request["messages"][0]) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"system": [{"type": "text", "text": str(n), "cache_control": {"type": "ephemeral"}} for n in range(4)]},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    ids=["four are set", "one of an hour comes later"],
)
def test_none_is_added_where_a_provider_would_refuse_it(fields: dict[str, Any]):
    client = conversation(long_history(4), "messages", **fields)
    request = sent(compacted(client))
    assert count_breakpoints(request) == count_breakpoints(fields)


def test_a_breakpoint_of_an_hour_excludes_ours_only_behind_the_compaction():
    request = body(long_history(4), "messages")
    last = request["messages"][-1]["content"]
    last[-1] = {**last[-1], "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert count_breakpoints(sent(compacted(read(request, "messages")))) == 1
    request = body(long_history(4), "messages")
    request["system"] = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    assert count_breakpoints(sent(compacted(read(request, "messages")))) == 2


def test_protocols_without_breakpoints_get_none():
    for protocol_name in ("chat", "responses"):
        assert count_breakpoints(sent(compacted(conversation(long_history(4), protocol_name)))) == 0


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_the_same_list_gives_the_same_bytes_from_memory_and_afresh(protocol_name: ProtocolName):
    client, rendering = conversation(long_history(4), protocol_name), RequestRenderer()
    spoken = PROTOCOLS[protocol_name]
    first = rendering.render_body(spoken, compacted(client))
    assert rendering.render_body(spoken, compacted(client)) == first
    assert RequestRenderer().render_body(spoken, compacted(client)) == first
    # Other bytes of the client's are not taken for those that were remembered.
    other = body(long_history(4), protocol_name)
    first_message = 1 if protocol_name in ("chat", "responses") else 0
    other[spoken.messages_field][first_message]["metadata"] = None
    assert b'"metadata"' in rendering.render_body(spoken, compacted(read(other, protocol_name)))


def test_the_cache_is_bounded():
    client, rendering = conversation(long_history(4), "messages"), RequestRenderer(capacity=30_000)
    for number in range(50):
        rendering.render_body(PROTOCOLS["messages"], compacted(client, "x" * 1_000, id=f"f-{number}"))
    assert rendering._prefixes.size <= 30_000
    assert 1 < len(rendering._prefixes) < 50


def test_what_was_read_is_remembered_within_its_bound():
    reader = WrittenMessageReader(capacity=10_000)
    spoken = PROTOCOLS["chat"]
    read_one = reader.reader_for(spoken, TENANT)
    wire = spoken.text_message("a text")
    assert read_one(wire) is read_one(wire)
    assert reader.reader_for(spoken, ANOTHERTENANT)(wire).key != read_one(wire).key
    for number in range(200):
        read_one(spoken.text_message(f"text {number}"))
    assert reader._messages.size <= 10_000
    assert read_one(wire).wire == wire
    with pytest.raises(ValueError):
        read_one(b"{")
