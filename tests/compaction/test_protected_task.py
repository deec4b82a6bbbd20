"""What a sub-agent was given before its first reply is never compacted away while it runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.compaction.strategies import DEFAULT_STRATEGIES, build_strategy
from accordion.model.compaction import CompactedConversation, without_compaction
from accordion.model.conversation import Conversation, Message
from tests.compaction.compactor_setup import CompactorSetup, long_history, read, with_long_results
from tests.compaction.view_samples import assistant_message, call_and_result, strategy_view, uncompacted, user_message
from tests.histories import PROTOCOL_NAMES, History, ProtocolName, body, histories
from tests.tiers import examples
from tests.writers import LISTS, WRITERS


def child(history: History, context: list[str], protocol_name: ProtocolName) -> Conversation:
    """A sub-agent's own list: what it was given stands before its task."""
    request: dict[str, Any] = body(history, protocol_name)
    entries = request[LISTS[protocol_name]]
    first = next(at for at, entry in enumerate(entries) if entry.get("role") == "user")
    entries[first:first] = [WRITERS[protocol_name].user(text) for text in context]
    return read(request, protocol_name)


def messages_before_first_reply(client: Conversation) -> tuple[Message, ...]:
    """All that stands before the first reply."""
    replies = (at for at, each in enumerate(client.messages) if each.role == "assistant")
    return client.messages[: next(replies, len(client.messages))]


async def compacted(client: Conversation, kind: str, **changes: Any) -> CompactedConversation:
    """The list as a compaction with the shipped pipeline leaves it, and a second one upon that."""
    setup = CompactorSetup(pipeline=[build_strategy(name) for name in DEFAULT_STRATEGIES])
    shown = without_compaction(client)
    for _ in range(2):
        decision = {"kind": kind, "target": 1, "is_requested": True}
        shown = (await setup.compactor.compact(setup.case(client, shown, decision=decision, **changes))).history
    return shown


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@pytest.mark.parametrize("kind", ["conversation", "generation"])
@pytest.mark.parametrize("must", [False, True])
@given(data=st.data())
@settings(max_examples=examples(15))
async def test_the_opening_of_a_sub_agents_conversation_stays_byte_for_byte(
    data: st.DataObject, protocol_name: ProtocolName, kind: str, must: bool
):
    context = data.draw(st.lists(st.text("abc d", min_size=1, max_size=400).filter(str.strip), max_size=4))
    client = child(with_long_results(data.draw(histories(min_turns=2, max_turns=5))), context, protocol_name)
    decided = {"kind": kind, "target": 1, "must_succeed": must, "is_requested": True}
    setup = CompactorSetup(pipeline=[build_strategy(name) for name in DEFAULT_STRATEGIES])
    case = setup.case(client, decision=decided, is_subagent=True)
    shown = (await setup.compactor.compact(case)).history
    kept = [message.wire for message in shown.conversation.messages[: len(messages_before_first_reply(client))]]
    assert kept == [message.wire for message in messages_before_first_reply(client)]


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@pytest.mark.parametrize("kind", ["conversation", "generation"])
async def test_it_stays_over_many_compactions_where_a_main_agents_context_leaves(
    protocol_name: ProtocolName, kind: str
):
    context = [f"Context {n}: " + " ".join(f"fact{n}_{at}" for at in range(200)) for n in range(3)]
    end: Any = "ask" if kind == "conversation" else "work"
    client = child(long_history(6, rounds=2, end=end), context, protocol_name)
    shown = await compacted(client, kind, is_subagent=True)
    assert shown.compaction is not None
    wires = [message.wire for message in shown.conversation.messages]
    assert wires[: len(messages_before_first_reply(client))] == [
        message.wire for message in messages_before_first_reply(client)
    ]
    if kind == "conversation":
        others = await compacted(client, kind)
        assert [message.wire for message in others.conversation.messages][
            : len(messages_before_first_reply(client))
        ] != wires[:4]


def test_messages_before_the_first_reply_are_protected_and_later_ones_free() -> None:
    shown = uncompacted(
        user_message("context"),
        user_message("more"),
        user_message("task"),
        *call_and_result("a", "one"),
        assistant_message("ok"),
        user_message("and now?"),
    )
    assert [at for at, free in enumerate(strategy_view(shown, is_subagent=True).free) if free] == [3, 4, 5]
    assert [at for at, free in enumerate(strategy_view(shown).free) if free] == [1, 2, 3, 4, 5]
