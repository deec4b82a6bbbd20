"""What is found again of weaves and recalls, and a list with them in place."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.accounting.token_meter import TokenMeter
from accordion.archive.archive import Archive
from accordion.archive.archive_entries import scan_entries
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.sealing import SEALED
from accordion.compaction.rendering import RequestRenderer
from accordion.insertions.composer import InsertionCache
from accordion.insertions.store import InsertionStore, StoredInsertions, decode, encode, is_insertion_key
from accordion.model.compaction import (
    CompactedConversation,
    Compaction,
    CompactionEntry,
    apply_compaction,
    without_compaction,
)
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.insertions import Insertion, RecallInsertion, ToolRound, ToolRoundInsertion
from accordion.model.plan import INSERTED
from accordion.model.ports import Key, KeyValueStore, Sealer
from accordion.model.tenant import ConversationRef, TenantScope
from accordion.protocols.anthropic_messages.protocol import MessagesArtifactTool
from accordion.protocols.openai_chat.protocol import ChatArtifactTool
from accordion.protocols.openai_responses.protocol import ResponsesArtifactTool
from accordion.protocols.registry import PROTOCOLS
from accordion.protocols.tool_loop import ArtifactToolProtocol, ArtifactToolResult, ToolDefinition
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.stores.encryption import AesSealer
from accordion.stores.memory_store import InMemoryStore
from tests.compaction.compactor_setup import CONVERSATION, SCOPE, TENANT, WINDOW, long_history, read
from tests.fakes import DirectOutbox, FakeClock, WordCounter
from tests.histories import ProtocolName, body
from tests.spools import with_spool
from tests.tiers import examples

Json = dict[str, Any]
WEAVERS: dict[ProtocolName, ArtifactToolProtocol] = {
    "chat": ChatArtifactTool(),
    "responses": ResponsesArtifactTool(),
    "messages": MessagesArtifactTool(),
}
NAMES: tuple[ProtocolName, ...] = tuple(WEAVERS)
TOOL = ToolDefinition("read_artifact", "Reads what was archived.", b'{"type":"object","properties":{}}')


# -- what a provider says, and what a client keeps of it ---------------------------------------------------------------


def reply(protocol_name: ProtocolName, text: str, calls: dict[str, str]) -> list[Json]:
    """A reply's entries in the request's form; `calls` are names by id."""
    if protocol_name == "chat":
        function = [
            {"id": call, "type": "function", "function": {"name": name, "arguments": "{}"}}
            for call, name in calls.items()
        ]  # fmt: skip
        return [{"role": "assistant", "content": text or None, **({"tool_calls": function} if calls else {})}]
    if protocol_name == "responses":
        said = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
        made = [
            {"type": "function_call", "call_id": call, "name": name, "arguments": "{}"} for call, name in calls.items()
        ]
        return [*(said if text else []), *made]
    blocks = [{"type": "text", "text": text}] if text else []
    used = [{"type": "tool_use", "id": call, "name": name, "input": {}} for call, name in calls.items()]
    return [{"role": "assistant", "content": [*blocks, *used]}]


def results(protocol_name: ProtocolName, calls: list[str]) -> list[Json]:
    if protocol_name == "chat":
        return [{"role": "tool", "tool_call_id": call, "content": f"result of {call}"} for call in calls]
    if protocol_name == "responses":
        return [{"type": "function_call_output", "call_id": call, "output": f"result of {call}"} for call in calls]
    blocks = [{"type": "tool_result", "tool_use_id": call, "content": f"result of {call}"} for call in calls]
    return [{"role": "user", "content": blocks}] if blocks else []


def wires(entries: list[Json]) -> tuple[bytes, ...]:
    return tuple(json.dumps(entry).encode() for entry in entries)


@dataclass
class ComposedConversation:
    """A client whose first messages are compacted, and a provider that reads back."""

    protocol_name: ProtocolName
    entries: list[Json] = field(default_factory=list)
    insertions: list[Insertion] = field(default_factory=list)
    tools: bool = True
    number: int = 0

    def __post_init__(self) -> None:
        self.spoken, self.tool_protocol = PROTOCOLS[self.protocol_name], WEAVERS[self.protocol_name]
        self.listing = self.spoken.messages_field
        self.request = body(long_history(3, words=4), self.protocol_name)
        if not self.tools:
            del self.request["tools"]
        self.entries = self.request[self.listing]
        self.reader, self.rendering = WrittenMessageReader(), RequestRenderer()
        compacted = self.client
        self.covered = next(
            at for at, m in enumerate(compacted.messages) if m.has_user_text and not m.has_tool_result and at > 3
        )
        self.anchor = compacted.chain[self.covered - 1]

    @property
    def client(self) -> Conversation:
        return read({**self.request, self.listing: self.entries}, self.protocol_name)

    def compacted(self, covered: int = 0) -> CompactedConversation:
        client, covered = self.client, covered or self.covered
        written = CompactionEntry(1, covered - 1, self.spoken.text_message("What was."))
        record = Compaction(
            "f-1",
            client.chain[covered - 1],
            covered,
            (CompactionEntry(0, 0), written),
            "conversation",
            "automatic",
            0.5,
            (),
            9,
            1,
            1,
            0.0,
            artifacts=("art_1",),
        )
        return apply_compaction(client, record, self.reader.reader_for(self.spoken, TENANT))

    def compose(self, offer: ToolDefinition | None = TOOL, covered: int = 0) -> CompactedConversation:
        read_one = self.reader.reader_for(self.spoken, TENANT)
        return InsertionCache().compose(
            self.spoken, self.tool_protocol, self.compacted(covered), self.stored_insertions(), offer, read_one
        )

    def stored_insertions(self) -> list[Insertion]:
        order = {key: at for at, key in enumerate(self.client.chain)}
        return sorted(
            (each for each in self.insertions if each.anchor in order),
            key=lambda each: (order[each.anchor], isinstance(each, ToolRoundInsertion), -each.at),
        )

    def sent(self, offer: ToolDefinition | None = TOOL, covered: int = 0) -> list[bytes]:
        return list(self.rendering.render_entries(self.spoken, self.compose(offer, covered)))

    def build_recall(self, text: str = "Recalled: 42.") -> None:
        self.number += 1
        self.insertions.append(
            RecallInsertion(self.client.chain[-1], self.spoken.text_message(text), float(self.number), ("art_1",))
        )

    def says(self, text: str) -> None:
        said = {"role": "user", "content": text}
        self.entries.append({"type": "message", **said} if self.protocol_name == "responses" else said)

    def reply(self, ours: int, theirs: int, *, mixed: bool = False, text: str = "") -> list[bytes]:
        """A reply in which our tool is called `ours` times, a round each, and then the client's `theirs` times; with
        `mixed` our last call stands beside the client's. Gives the entries that the provider said and was told."""
        self.number += 1
        rounds, shown = list[ToolRound](), list[str]()
        for at in range(ours - mixed):
            said = f"Let me look {self.number}.{at}."
            made = {f"our_{self.number}_{at}": TOOL.name}
            rounds.append(self._build_round(said, made))
            shown.append(said)
        calls = {f"call_{self.number}_{at}": "read" for at in range(theirs)}
        end = text or f"Reply {self.number}."
        last = {**({f"our_{self.number}_m": TOOL.name} if mixed else {}), **calls}
        rounds.append(self._build_round(end, last))
        visible = "".join([*shown, end])
        if len(rounds) > 1 or mixed:
            self.insertions.append(
                ToolRoundInsertion(self.client.chain[-1], tuple(rounds), tuple(calls), visible, float(self.number))
            )
        if self.protocol_name == "responses":
            # Items are kept one by one.
            self.entries += [entry for text in [*shown, end] for entry in reply(self.protocol_name, text, {})]
            self.entries += reply(self.protocol_name, "", calls)
        else:
            self.entries += reply(self.protocol_name, visible, calls)
        self.entries += results(self.protocol_name, list(calls))
        return [wire for each in rounds for wire in (*each.response, *each.results)]

    def _build_round(self, said: str, calls: dict[str, str]) -> ToolRound:
        ours = [ArtifactToolResult(call, f"page of {call}") for call, name in calls.items() if name == TOOL.name]
        return ToolRound(
            wires(reply(self.protocol_name, said, calls)), self.tool_protocol.render_results(ours, "read_artifact")
        )


def problems(of: CompactedConversation) -> list[str]:
    return PROTOCOLS[of.conversation.protocol_name].find_problems(of.conversation.messages)


def same(one: list[bytes], other: list[bytes]) -> bool:
    """Whether two lists say the same; the client's own words are told from the provider's by their spelling only."""
    return [json.loads(wire) for wire in one] == [json.loads(wire) for wire in other]


# -- a list with insertions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", NAMES)
def test_without_a_compaction_nothing_but_our_tool_is_added(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name)
    plain, read_one = without_compaction(talk.client), talk.reader.reader_for(talk.spoken, TENANT)
    assert InsertionCache().compose(talk.spoken, talk.tool_protocol, plain, (), None, read_one) is plain
    shown = InsertionCache().compose(talk.spoken, talk.tool_protocol, plain, (), TOOL, read_one)
    assert shown.conversation.messages is plain.conversation.messages
    assert shown.conversation.tools == (*plain.conversation.tools, *shown.conversation.tools[-1:])


@pytest.mark.parametrize("protocol_name", NAMES)
def test_without_a_compaction_what_was_read_stands_where_it_was_read(protocol_name: ProtocolName):
    """A sub-agent reads what others' texts name before anything of its own was compacted."""
    talk, cache = ComposedConversation(protocol_name), InsertionCache()

    def sent() -> list[bytes]:
        read_one = talk.reader.reader_for(talk.spoken, TENANT)
        shown = cache.compose(
            talk.spoken, talk.tool_protocol, without_compaction(talk.client), talk.stored_insertions(), TOOL, read_one
        )
        assert problems(shown) == []
        anew = InsertionCache().compose(
            talk.spoken, talk.tool_protocol, without_compaction(talk.client), talk.stored_insertions(), TOOL, read_one
        )
        assert anew.conversation.messages == shown.conversation.messages
        return list(talk.rendering.render_entries(talk.spoken, shown))

    before = sent()
    assert before == [message.wire for message in talk.client.messages]
    for ours, theirs in ((1, 1), (2, 0), (1, 2), (0, 1)):
        said = talk.reply(ours, theirs)
        talk.says("Go on.") if not theirs else None
        now = sent()
        assert same(now[: len(before)], before)
        assert same(now[len(before) : len(before) + len(said)], said)
        before = now


@pytest.mark.parametrize("protocol_name", NAMES)
def test_without_insertions_only_our_tool_is_added_behind_the_clients(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name)
    compacted, shown = talk.compacted(), talk.compose()
    assert shown.conversation.messages == compacted.conversation.messages
    assert shown.origins == compacted.origins
    assert shown.conversation.tools == talk.spoken.read_tools(shown.conversation.envelope)
    before, now = (json.loads(talk.rendering.render_body(talk.spoken, each)) for each in (compacted, shown))
    assert now["tools"][:-1] == before["tools"]
    assert {**now, "tools": 0} == {**before, "tools": 0}


@pytest.mark.parametrize("protocol_name", NAMES)
def test_the_tool_is_counted_and_the_clients_own_tool_list_is_not_taken_for_it(protocol_name: ProtocolName):
    talk, meter = ComposedConversation(protocol_name), TokenMeter(WordCounter())
    compacted = talk.compacted().conversation
    before = meter.measure(compacted, WINDOW)
    now = meter.measure(talk.compose().conversation, WINDOW)
    assert now.tools > before.tools
    assert meter.measure(compacted, WINDOW) == before
    assert (
        talk.compose().conversation.overhead_key == talk.compose().conversation.overhead_key != compacted.overhead_key
    )
    other = ToolDefinition("accordion_read_artifact", TOOL.description, TOOL.schema)
    assert talk.compose(other).conversation.overhead_key != talk.compose().conversation.overhead_key


@pytest.mark.parametrize("protocol_name", NAMES)
def test_a_request_that_cannot_have_our_tool_keeps_its_own(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name, tools=False)
    ruled_out = {"chat": {"n": 2}, "responses": {"max_tool_calls": 3}, "messages": {"output_format": {"type": "x"}}}
    talk.request |= ruled_out[protocol_name]
    assert talk.compose() == talk.compacted()


@pytest.mark.parametrize("protocol_name", NAMES)
def test_a_call_of_ours_beside_the_clients_is_answered_with_them(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name)
    before = talk.sent()
    told = talk.reply(2, 2, mixed=True)
    now = talk.sent()
    assert not problems(talk.compose())
    assert now[: len(before) + len(told) - 1] == [*before, *told[:-1]]
    answer = b"".join(now[len(before) + len(told) - 1 :])
    places = [answer.index(each) for each in (b"page of our_1_m", b"result of call_1_0", b"result of call_1_1")]
    # The items of Responses may stand in any order behind their calls.
    assert places == sorted(places) or protocol_name == "responses"


@pytest.mark.parametrize("protocol_name", NAMES)
def test_tool_rounds_that_end_at_the_next_anchor_do_not_hide_its_insertion(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name)
    for _ in range(3):
        talk.reply(1, 1, mixed=True)
    talk.build_recall()
    said = b"".join(talk.sent())
    assert [b"page of our_%d_m" % number in said for number in (1, 2, 3)] == [True] * 3
    assert b"Recalled" in said
    assert not problems(talk.compose())


@pytest.mark.parametrize("protocol_name", NAMES)
def test_a_recall_is_the_last_that_is_said_and_speakers_alternate(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name)
    talk.build_recall()
    sent = [json.loads(wire) for wire in talk.sent()]
    assert "Recalled" in json.dumps(sent[-1])
    assert ("What is next?" in json.dumps(sent[-1])) is (protocol_name != "responses")
    talk.reply(0, 1)
    talk.build_recall("Recalled: 43.")
    sent = [json.loads(wire) for wire in talk.sent()]
    assert "Recalled: 43." in json.dumps(sent[-1])
    if protocol_name == "messages":
        roles = [entry["role"] for entry in sent]
        assert all(one != other for one, other in pairwise(roles))
        assert [block["type"] for block in sent[-1]["content"]] == ["tool_result", "text"]


@pytest.mark.parametrize("protocol_name", NAMES)
def test_another_reply_than_the_recorded_one_is_left_as_the_client_has_it(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name)
    talk.reply(1, 0, text="The answer.")
    talk.entries[-1:] = reply(protocol_name, "Another answer.", {})
    talk.says("Go on.")
    assert talk.compose().conversation.messages == talk.compacted().conversation.messages


@pytest.mark.parametrize("protocol_name", NAMES)
def test_of_several_responses_to_a_request_the_continued_one_is_inserted(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name)
    start = len(talk.entries)
    talk.reply(1, 0, text="One answer.")
    first = talk.entries[start:]
    del talk.entries[start:]
    talk.reply(1, 0, text="Another answer.")
    second = talk.entries[start:]
    for chosen, said, other in ((first, b"our_1_0", b"our_2_0"), (second, b"our_2_0", b"our_1_0")):
        talk.entries[start:] = chosen
        talk.says("Go on.")
        sent = b"".join(talk.sent())
        assert said in sent
        assert other not in sent


@pytest.mark.parametrize("protocol_name", NAMES)
def test_a_compaction_drops_what_stood_behind_what_it_covers(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name)
    talk.build_recall()
    talk.reply(1, 0)
    talk.says("The second.")
    talk.build_recall("Recalled: 43.")
    talk.reply(1, 0)
    talk.says("The third.")
    # In Responses the reply is two items.
    end = len(talk.client.messages)
    anchor = end - (3 if protocol_name == "responses" else 2)
    said = b"".join(talk.sent(covered=anchor))
    assert b"our_2_0" not in said
    assert b"Recalled: 42." not in said
    # At the compaction's own anchor.
    assert b"our_4_0" in said
    assert b"Recalled: 43." in said
    assert not problems(talk.compose(covered=anchor))
    covered = talk.sent(covered=end - 1)
    assert covered == talk.rendering.render_entries(talk.spoken, talk.compacted(end - 1))


@pytest.mark.parametrize("protocol_name", NAMES)
def test_an_insertion_that_makes_the_list_illegal_is_left_out_alone(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name)
    talk.reply(1, 0)
    talk.says("The second.")
    talk.reply(1, 0)
    broken = talk.insertions[-1]
    assert isinstance(broken, ToolRoundInsertion)
    talk.insertions[-1] = ToolRoundInsertion(
        broken.anchor, (ToolRound(broken.rounds[0].response), broken.rounds[1]), (), broken.text, 9.0
    )
    talk.says("The third.")
    talk.reply(1, 0)
    talk.says("The fourth.")
    said = b"".join(talk.sent())
    assert [b"our_%d_0" % number in said for number in (1, 2, 3)] == [True, False, True]
    talk.insertions[-1] = RecallInsertion(talk.insertions[-1].anchor, b"{no json", 1.0)
    said = b"".join(talk.sent())
    assert [b"our_%d_0" % number in said for number in (1, 2, 3)] == [True, False, False]


def test_an_insertion_between_a_call_and_its_result_is_left_out():
    """Calls that nothing but the model's own items follows need none. An item of a kind that says nothing of who spoke
    stands between."""
    talk = ComposedConversation("responses")
    talk.entries += reply("responses", "", {"call_x": "read"})
    talk.entries += [{"type": "item_reference", "id": "msg_1"}, *reply("responses", "I looked.", {})]
    talk.build_recall()
    assert problems(talk.compacted()) == problems(talk.compose()) == []
    assert talk.sent() == talk.rendering.render_entries(talk.spoken, talk.compacted())


@pytest.mark.parametrize("protocol_name", NAMES)
def test_a_request_without_tools_gets_no_calls_inserted(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name, tools=False)
    talk.build_recall()
    talk.reply(1, 0)
    talk.says("Go on.")
    assert b"our_2_0" in b"".join(talk.sent())
    said = b"".join(talk.sent(offer=None))
    assert b"our_2_0" not in said
    assert b"Recalled" in said
    talk.request["tools"] = body(long_history(1), protocol_name)["tools"]
    assert b"our_2_0" in b"".join(talk.sent(offer=None))


@pytest.mark.parametrize("protocol_name", NAMES)
def test_the_count_of_a_dressed_list_is_never_taken_for_that_of_another(protocol_name: ProtocolName):
    talk, meter = ComposedConversation(protocol_name), TokenMeter(WordCounter())
    talk.build_recall()
    talk.reply(2, 1)
    talk.build_recall("Recalled: 43 and more.")
    bare, whole = talk.compacted(), talk.compose()
    talk.insertions.pop()
    less = talk.compose()
    for order in ((bare, whole, less), (less, whole, bare)):
        shared = TokenMeter(WordCounter())
        for each in order:
            assert shared.measure(each.conversation, WINDOW) == TokenMeter(WordCounter()).measure(
                each.conversation, WINDOW
            )
    counts = [meter.measure(each.conversation, WINDOW).messages for each in (bare, less, whole)]
    assert counts == sorted(set(counts))
    assert len(whole.conversation.messages) == len(whole.conversation.chain) == len(whole.origins) == len(whole.spans)
    assert len(set(whole.conversation.chain)) == len(whole.conversation.chain)


@pytest.mark.parametrize("protocol_name", NAMES)
def test_origins_tell_the_clients_own_from_what_was_put_in(protocol_name: ProtocolName):
    talk = ComposedConversation(protocol_name)
    talk.reply(1, 0)
    talk.says("Go on.")
    shown, client = talk.compose(), talk.client
    for message, origin in zip(shown.conversation.messages, shown.origins, strict=True):
        if origin >= 0:
            assert client.messages[origin] == message
    assert shown.origins.count(INSERTED) == (4 if protocol_name == "responses" else 3)
    assert shown.origins[-1] == len(client.messages) - 1


def test_an_insertion_does_not_move_the_cache_breakpoint_of_a_compaction():
    talk = ComposedConversation("messages")
    before = talk.sent()
    assert sum(b"cache_control" in wire for wire in before) == 1
    talk.build_recall()
    assert talk.sent()[:-1] == before[:-1]
    talk.reply(1, 0)
    talk.says("Go on.")
    sent = talk.sent()
    assert sum(b"cache_control" in wire for wire in sent) == 1
    assert sent[: len(before) - 1] == before[:-1]


moves = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans(), st.booleans()), min_size=1, max_size=6)


@pytest.mark.parametrize("protocol_name", NAMES)
@given(moves=moves, early=st.integers(0, 2))
@settings(max_examples=examples(60), deadline=None)
def test_each_list_begins_with_the_one_that_was_sent_before_it(
    protocol_name: ProtocolName, moves: list[tuple[int, int, bool, bool]], early: int
):
    talk = ComposedConversation(protocol_name)
    before: list[bytes] = []
    for ours, theirs, mixed, recalls in moves:
        if recalls:
            talk.build_recall()
        sent = talk.sent()
        assert sent[: len(before)] == before
        assert not problems(talk.compose())
        assert RequestRenderer().render_entries(talk.spoken, talk.compose()) == sent
        beside = mixed and bool(ours and theirs)
        told = talk.reply(ours, theirs, mixed=beside)
        inserted = ours > 0
        # What the client keeps of a reply is in its own spelling; the answer to a mixed reply may be one with the
        # client's results.
        before = [*sent, *(told[: len(told) - beside] if inserted else [])]
        if not theirs:
            talk.says(f"Go on with {talk.number}.")
    assert talk.sent()[: len(before)] == before


class Counting(ChatArtifactTool):
    """Counts how often it is asked whether a reply is one that was inserted."""

    def __init__(self) -> None:
        self.asked = 0

    def insert_rounds(self, messages, build_tool_rounds, fields):
        self.asked += 1
        return super().insert_rounds(messages, build_tool_rounds, fields)


def test_a_longer_list_extends_the_cached_one():
    talk, cache, tool_protocol = ComposedConversation("chat"), InsertionCache(), Counting()
    read_one = talk.reader.reader_for(talk.spoken, TENANT)
    asked = []
    for number in range(8):
        talk.reply(2 * (not number), 1)
        before = tool_protocol.asked
        shown = cache.compose(talk.spoken, tool_protocol, talk.compacted(), talk.insertions, TOOL, read_one)
        asked.append(tool_protocol.asked - before)
        assert shown == talk.compose()
    assert asked[0] == 1
    assert not any(asked[4:])


def test_a_rewound_list_takes_the_space_of_its_present_messages_only():
    talk, cache, fresh = ComposedConversation("chat"), InsertionCache(), InsertionCache()
    read_one = talk.reader.reader_for(talk.spoken, TENANT)
    talk.reply(2, 1)
    start = len(talk.entries)
    for _ in range(4):
        del talk.entries[start:]
        for _ in range(6):
            talk.reply(0, 1)
            cache.compose(talk.spoken, talk.tool_protocol, talk.compacted(), talk.stored_insertions(), TOOL, read_one)
    fresh.compose(talk.spoken, talk.tool_protocol, talk.compacted(), talk.stored_insertions(), TOOL, read_one)
    assert cache.size == fresh.size > 0


def test_later_insertions_extend_the_cached_list():
    talk, cache, tool_protocol = ComposedConversation("chat"), InsertionCache(), Counting()
    read_one = talk.reader.reader_for(talk.spoken, TENANT)
    for number in range(6):
        talk.reply(2 * (not number), 1)
        cache.compose(talk.spoken, tool_protocol, talk.compacted(), talk.insertions, TOOL, read_one)
    talk.build_recall()
    talk.says("Go on.")
    before = tool_protocol.asked
    shown = cache.compose(talk.spoken, tool_protocol, talk.compacted(), talk.insertions, TOOL, read_one)
    assert shown == talk.compose()
    assert tool_protocol.asked == before


@pytest.mark.parametrize("protocol_name", NAMES)
def test_an_insertion_that_breaks_the_cached_list_behind_it_is_left_out(protocol_name: ProtocolName):
    talk, cache = ComposedConversation(protocol_name), InsertionCache()
    read_one = talk.reader.reader_for(talk.spoken, TENANT)
    for number in range(6):
        talk.reply(2 * (not number), 1)
        cache.compose(talk.spoken, talk.tool_protocol, talk.compacted(), talk.insertions, TOOL, read_one)
    talk.says("Go on.")
    talk.reply(1, 0)
    whole = talk.insertions[-1]
    assert isinstance(whole, ToolRoundInsertion)
    talk.says("Thank you.")
    for rounds, comes in (((ToolRound(whole.rounds[0].response), whole.rounds[1]), False), (whole.rounds, True)):
        talk.insertions[-1] = ToolRoundInsertion(whole.anchor, rounds, (), whole.text, 9.0)
        shown = cache.compose(talk.spoken, talk.tool_protocol, talk.compacted(), talk.insertions, TOOL, read_one)
        assert shown == talk.compose()
        assert any(b"our_7_0" in message.wire for message in shown.conversation.messages) == comes


@pytest.mark.parametrize("protocol_name", NAMES)
@given(
    moves=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 9)), max_size=14
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_incremental_composition_equals_a_fresh_one_after_growth_rewind_or_change(
    protocol_name: ProtocolName, moves: list[tuple[int, int, bool, bool, int]]
):
    talk, cache = ComposedConversation(protocol_name), InsertionCache()
    for ours, theirs, mixed, recalls, other in moves:
        if recalls:
            talk.build_recall()
        talk.reply(ours, theirs, mixed=mixed and bool(ours and theirs))
        if not theirs:
            talk.says(f"Go on with {talk.number}.")
        if other == 0 and len(talk.entries) > talk.covered + 6:
            del talk.entries[-4:]
        elif other == 1:
            talk.entries[-1]["cache_control"] = {"type": "ephemeral"}
        elif other == 2:
            talk.request["store"] = False
        stored_insertions = talk.stored_insertions()
        read_one = talk.reader.reader_for(talk.spoken, TENANT)
        assert (
            cache.compose(talk.spoken, talk.tool_protocol, talk.compacted(), stored_insertions, TOOL, read_one)
            == talk.compose()
        )
        kept = [message for worn, _ in cache._compositions._entries.values() for message in worn.prefix.messages]
        assert cache.size == sum(message.size for message in kept)


# -- found again -------------------------------------------------------------------------------------------------------


class Fickle(InMemoryStore):
    """A store that may be away, and counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.asked: list[int] = []

    async def get(self, key: Key) -> bytes | None:
        if self.away:
            raise StoreUnavailable("away")
        return await super().get(key)

    async def get_many(self, keys):
        if self.away:
            raise StoreUnavailable("away")
        self.asked.append(len(keys))
        return await super().get_many(keys)

    async def write(self, batch):
        if self.away:
            raise StoreUnavailable("away")
        return await super().write(batch)


class Cut(InMemoryStore):
    """One machine's way to a store, which is cut at first."""

    def __init__(self, store: Fickle) -> None:
        super().__init__()
        self.store, self.is_cut = store, True

    @property
    def is_available(self) -> bool:
        return not self.is_cut

    async def get_many(self, keys):
        if self.is_cut:
            raise StoreUnavailable("cut off")
        return await self.store.get_many(keys)

    async def write(self, batch):
        if self.is_cut:
            raise StoreUnavailable("cut off")
        return await self.store.write(batch)


CHAIN = [b"%032d" % number for number in range(200)]


def build_tool_rounds(at: int, text: str = "said", when: float = 1.0, size: int = 10) -> ToolRoundInsertion:
    rounds = (ToolRound((b"{" + b"x" * size + b"}",), (b"{}", b"[]")), ToolRound((b"{}",)))
    return ToolRoundInsertion(CHAIN[at], rounds, ("call_1", "call_2"), text, when)


def build_recall(at: int, when: float = 1.0, wire: bytes = b"{}") -> RecallInsertion:
    return RecallInsertion(CHAIN[at], wire, when, ("art_1", "art_2"))


class Worker:
    def __init__(
        self, store: KeyValueStore, clock: FakeClock | None = None, sealer: Sealer | None = None, **bounds: Any
    ) -> None:
        self.clock, self.outbox = clock or FakeClock(), DirectOutbox(store)
        archive = Archive(store, 1_000_000.0, sealer=sealer, clock=self.clock)
        self.insertions = InsertionStore(
            archive, self.outbox, self.clock, ErasureNotices(store, self.clock, 100.0), **bounds
        )

    async def add(self, *insertions: Insertion) -> None:
        for each in insertions:
            await self.insertions.add(CONVERSATION, each, 0.0)

    async def find(self, since: int = 1, *, fresh: bool = False, end: int = 200, **where: Any) -> list[Insertion]:
        tenant, scope = where.get("tenant", TENANT), where.get("scope", SCOPE)
        return list(
            await self.insertions.find(ConversationRef(tenant, scope, "s-1"), CHAIN[:end], since, check_store=fresh)
        )


def test_stored_insertions_are_read_unchanged():
    kept = StoredInsertions(
        "s-1", (replace(build_recall(3), before=2), build_tool_rounds(3), build_tool_rounds(3, "", 2.5))
    )
    assert decode(encode(kept), CHAIN[3]) == kept


async def test_a_turn_has_one_excerpt_before_it_and_one_recall_behind_it():
    excerpts = [replace(build_recall(3, when), before=1) for when in (2.0, 1.0)]
    memories = [build_recall(3, when, b"[]") for when in (4.0, 3.0)]
    for fresh in (False, True):
        worker = Worker(InMemoryStore())
        await worker.add(excerpts[0], memories[0], memories[1], excerpts[1])
        assert await worker.find(fresh=fresh) == [excerpts[1], memories[1]]


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(max_examples=examples(80))
def test_a_value_that_was_damaged_is_ignored(place: int, change: int):
    whole = StoredInsertions("s-1", (build_recall(3), build_tool_rounds(3, "text " * 40)))
    kept = bytearray(encode(whole))
    kept[place % len(kept)] ^= change
    assert decode(bytes(kept), CHAIN[3]) in (StoredInsertions(), whole)


def test_a_value_of_a_later_version_or_cut_short_is_ignored():
    kept = encode(StoredInsertions("", (build_tool_rounds(3),)))
    assert decode(None, CHAIN[3]) == decode(b"", CHAIN[3]) == decode(b"\x02" + kept[1:], CHAIN[3]) == StoredInsertions()
    assert decode(kept[:-3], CHAIN[3]) == StoredInsertions()


async def test_insertions_from_an_anchor_on_are_found_in_order():
    worker = Worker(Fickle())
    await worker.add(build_tool_rounds(9), build_recall(9), build_tool_rounds(4), build_recall(150))
    assert await worker.find() == [build_tool_rounds(4), build_recall(9), build_tool_rounds(9), build_recall(150)]
    assert await worker.find(since=5) == [
        build_tool_rounds(4),
        build_recall(9),
        build_tool_rounds(9),
        build_recall(150),
    ]
    assert await worker.find(since=6) == [build_recall(9), build_tool_rounds(9), build_recall(150)]
    assert await worker.find(end=9) == [build_tool_rounds(4)]
    assert await worker.find(since=6, end=9) == []


async def test_another_scope_and_another_tenant_find_nothing():
    store = Fickle()
    worker = Worker(store)
    await worker.add(build_tool_rounds(4))
    assert await worker.find(fresh=True) == [build_tool_rounds(4)]
    assert await worker.find(fresh=True, scope=b"other") == []
    assert await worker.find(fresh=True, tenant=TenantScope("other", b"other")) == []


async def test_the_store_is_asked_only_where_others_may_know_more():
    store = Fickle()
    one, other = Worker(store), Worker(store)
    await one.add(build_tool_rounds(4), build_tool_rounds(7))
    assert await other.find() == []
    assert store.asked == []
    assert await other.find(since=5, fresh=True) == [build_tool_rounds(4), build_tool_rounds(7)]
    assert store.asked == [196]
    assert await other.find() == [build_tool_rounds(4), build_tool_rounds(7)]
    assert store.asked == [196]


async def test_a_list_that_goes_on_is_asked_for_what_is_new():
    store = Fickle()
    one, other = Worker(store), Worker(store)
    await one.add(build_tool_rounds(4), build_tool_rounds(60))
    assert await other.find(end=50, fresh=True) == [build_tool_rounds(4)]
    store.asked.clear()
    await one.add(build_tool_rounds(49), build_recall(45))
    expected = [build_tool_rounds(4), build_recall(45), build_tool_rounds(49), build_tool_rounds(60)]
    assert await other.find(end=70, fresh=True) == expected
    # The new ones, the last one before them, which may have got a reply since, and those before its newest turn.
    assert store.asked[-1] == 20 + 1 + 8
    assert await other.find(since=30, end=72, fresh=True) == expected[1:]
    assert store.asked[-1] == 2 + 1 + 8
    # A list that is loaded from a later anchor on is not loaded from an earlier one on.
    third = Worker(store)
    await third.find(since=30, end=70, fresh=True)
    assert await third.find(end=70, fresh=True) == expected
    assert store.asked[-1] == 70


async def test_a_digest_is_unknown_while_insertions_are_not_in_memory():
    store = Fickle()
    one, other = Worker(store), Worker(store)
    none = one.insertions.hash_insertions(CONVERSATION, CHAIN[:50], 0)
    await one.add(build_tool_rounds(4), build_tool_rounds(20))
    both = one.insertions.hash_insertions(CONVERSATION, CHAIN[:50], 0)
    assert len({none, both, one.insertions.hash_insertions(CONVERSATION, CHAIN[:50], 9)}) == 3
    assert (
        one.insertions.hash_insertions(CONVERSATION, CHAIN[:50], 30)
        == none
        == other.insertions.hash_insertions(CONVERSATION, CHAIN, 0)
    )
    store.away = True
    await other.find(fresh=True)
    assert other.insertions.hash_insertions(CONVERSATION, CHAIN[:50], 0) == b""
    store.away = False
    await other.find(fresh=True)
    assert other.insertions.hash_insertions(CONVERSATION, CHAIN[:50], 0) == both


async def test_the_places_of_a_list_are_learnt_once_and_of_one_that_goes_on_what_is_new():
    store = Fickle()
    one, other = Worker(store), Worker(store)
    await one.add(build_tool_rounds(4))
    for end, asked in ((10, 10), (10, 1), (13, 4), (5, 5), (13, 1), (0, None)):
        store.asked.clear()
        await other.insertions.load(CONVERSATION, CHAIN[:end])
        assert store.asked == ([asked] if asked else [])
    assert await other.find() == [build_tool_rounds(4)]
    await one.add(build_tool_rounds(12))
    await other.insertions.load(CONVERSATION, CHAIN[:14])
    assert await other.find() == [build_tool_rounds(4), build_tool_rounds(12)]
    store.asked.clear()
    await other.insertions.load(ConversationRef(TENANT, b"other", "s-1"), CHAIN[:14])
    assert store.asked == [14]


async def test_cached_insertions_are_read_again_after_an_erasure():
    store = Fickle()
    worker = Worker(store)

    class Erasing(Fickle):
        async def get_many(self, keys):
            worker.insertions.forget()
            return await store.get_many(keys)

    await worker.insertions.load(CONVERSATION, CHAIN[:10])
    worker.insertions.forget()
    await worker.insertions.load(CONVERSATION, CHAIN[:10])
    assert store.asked == [10, 10]
    worker.insertions._archive = Archive(Erasing(), 1_000_000.0, clock=worker.clock)
    await worker.insertions.load(CONVERSATION, CHAIN[:12])
    await worker.insertions.load(CONVERSATION, CHAIN[:12])
    assert store.asked == [10, 10, 3, 12]


async def test_a_failed_read_is_not_cached():
    store = Fickle()
    worker = Worker(store)
    store.away = True
    await worker.insertions.load(CONVERSATION, CHAIN[:10])
    store.away = False
    await worker.insertions.load(CONVERSATION, CHAIN[:10])
    assert store.asked == [10]


async def test_insertions_that_could_not_be_looked_up_are_looked_up_again():
    store = Fickle()
    await Worker(store).add(build_tool_rounds(4), build_tool_rounds(8))
    worker = Worker(store)
    store.away = True
    assert await worker.find(fresh=True) == []
    assert await worker.find() == []
    store.away = False
    assert await worker.find() == [build_tool_rounds(4), build_tool_rounds(8)]
    asked = len(store.asked)
    assert await worker.find() == [build_tool_rounds(4), build_tool_rounds(8)]
    assert len(store.asked) == asked


async def test_a_history_of_which_one_batch_could_not_be_read_is_not_loaded():
    chain = [b"%032d" % number for number in range(1_500)]
    store = Fickle()
    worker = Worker(store)

    class FirstFails(Fickle):
        async def get_many(self, keys):
            if len(keys) == 1_024:
                raise StoreUnavailable("too slow")
            return await store.get_many(keys)

    archive = worker.insertions._archive
    worker.insertions._archive = Archive(FirstFails(), 1_000_000.0, clock=worker.clock)
    await worker.insertions.load(CONVERSATION, chain)
    worker.insertions._archive = archive
    await worker.insertions.load(CONVERSATION, chain)
    assert store.asked == [476, 1_024, 476]


async def test_the_newest_four_replies_and_the_first_recall_stay_at_a_place():
    store = Fickle()
    one, other = Worker(store), Worker(store)
    await one.add(
        *(build_tool_rounds(4, f"text {number}", float(number)) for number in range(3)), build_recall(4, 2.0, b'"b"')
    )
    await other.add(
        *(build_tool_rounds(4, f"text {number}", float(number)) for number in range(3, 6)), build_recall(4, 1.0, b'"a"')
    )
    await other.add(build_tool_rounds(4, "text 5", 5.0))
    newest = [build_tool_rounds(4, f"text {number}", float(number)) for number in (5, 4, 3, 2)]
    for worker in (other, one, Worker(store)):
        assert await worker.find(fresh=True) == [build_recall(4, 1.0, b'"a"'), *newest]


async def test_while_the_store_is_away_insertions_are_used_here_and_written_later():
    store = Fickle()
    worker = Worker(store)
    store.away = True
    await worker.add(build_tool_rounds(4))
    assert await worker.find(fresh=True) == [build_tool_rounds(4)]
    store.away = False
    assert await Worker(store).find(fresh=True) == []
    await worker.outbox.flush()
    assert await Worker(store).find(fresh=True) == [build_tool_rounds(4)]


@pytest.mark.parametrize("sealer", [None, AesSealer([b"k" * 32])])
@pytest.mark.parametrize("has_room", [True, False])
async def test_insertions_of_two_machines_at_one_place_both_stay_after_an_outage(sealer: Sealer | None, has_room: bool):
    """The store is away for one machine only. What waits there, in the spool or in the outbox, replaces nothing."""
    main = Fickle()
    here = with_spool(Cut(main), capacity=2**20 if has_room else 0, is_merged=is_insertion_key)
    one, other = Worker(here, sealer=sealer), Worker(main, sealer=sealer)
    here.settle = lambda put, stored: one.insertions.merge_values(put.key, put.value, stored)
    await one.add(build_tool_rounds(4, "of this machine", 1.0))
    await other.add(build_tool_rounds(4, "of the other machine", 2.0))
    here._main.is_cut = False
    await here.publish()
    await one.outbox.flush()
    both = [build_tool_rounds(4, "of the other machine", 2.0), build_tool_rounds(4, "of this machine", 1.0)]
    for worker in (one, other, Worker(main, sealer=sealer)):
        assert await worker.find(fresh=True) == both


async def test_rewriting_an_entry_keeps_what_another_worker_added():
    clock = FakeClock()
    store = Fickle()
    store._now = clock.now
    one, other = Worker(store, clock, retention=1_000.0), Worker(store, clock, retention=1_000.0)
    await one.add(build_tool_rounds(4, "first", clock.now()))
    clock.advance(100)
    await other.add(build_tool_rounds(4, "second", clock.now()))
    clock.advance(300)
    assert len(await one.find()) == 1
    await one.outbox.flush()
    assert len(await Worker(store, clock).find(fresh=True)) == 2


async def test_tool_rounds_are_sealed_like_the_archive():
    store, sealer = Fickle(), AesSealer([b"k" * 32])
    plain = Worker(store)
    await plain.add(build_tool_rounds(4, "in the clear"))
    await Worker(store, sealer=sealer).add(build_tool_rounds(7, "a secret " * 9))
    [kept] = [held for key, held in store._values.items() if key.name.endswith(CHAIN[7].hex()) and not key.collection]
    assert kept.value[:1] == SEALED
    assert await Worker(store, sealer=sealer).find(fresh=True) == [
        build_tool_rounds(4, "in the clear"),
        build_tool_rounds(7, "a secret " * 9),
    ]
    assert await Worker(store, sealer=AesSealer([b"l" * 32])).find(fresh=True) == [build_tool_rounds(4, "in the clear")]
    assert await plain.find(fresh=True) == [build_tool_rounds(4, "in the clear")]


async def test_tool_rounds_are_exported_and_erased_with_their_session():
    store = Fickle()
    await Worker(store).add(build_tool_rounds(4), build_tool_rounds(7))
    [listed] = [page async for page in scan_entries(store, TENANT.archive_namespace, "s-1")]
    assert [entry.kind for entry in listed] == ["insertion"] * 2
    places = [Key(*entry.value_key) for entry in listed if entry.value_key]
    assert await store.delete(places) == 2
    worker = Worker(store)
    assert await worker.find(fresh=True) == []


async def test_erased_insertions_are_forgotten():
    store = Fickle()
    worker = Worker(store)
    await worker.add(build_tool_rounds(4))
    store._values.clear()
    worker.insertions.forget()
    assert worker.insertions.size == 0
    assert await worker.find(fresh=True) == []


async def test_memory_is_bounded_and_what_was_let_go_of_is_had_from_the_store():
    store = Fickle()
    worker = Worker(store, capacity=60_000)
    await worker.add(*(build_tool_rounds(at, size=3_000) for at in range(30)))
    assert worker.insertions.size <= 60_000
    assert await worker.find(since=1, end=3) == [build_tool_rounds(at, size=3_000) for at in range(3)]
    assert store.asked == [3]
    assert worker.insertions.size <= 60_000


async def test_the_names_of_what_left_memory_are_bounded_with_it():
    worker = Worker(Fickle(), capacity=20_000)
    chains = [[b"%032d" % (1_000 * number)] for number in range(200)]
    for [key] in chains:
        await worker.add(ToolRoundInsertion(key, (ToolRound((b"{}",)),), ("call_1",), "said", 1.0))
        await worker.insertions.load(CONVERSATION, [key])
        assert worker.insertions.size <= 20_000


async def test_insertions_are_found_though_the_names_of_evicted_ones_have_no_space():
    store = Fickle()
    worker = Worker(store, capacity=20_000)
    chains = [[b"%032d" % (1_000 * number)] for number in range(200)]
    for [key] in chains:
        await worker.add(ToolRoundInsertion(key, (ToolRound((b"{}",)),), ("call_1",), "said", 1.0))
    assert worker.insertions.hash_insertions(CONVERSATION, chains[0], 0) == b""
    for chain in chains[:5]:
        assert len(await worker.insertions.find(CONVERSATION, chain, 0, check_store=False)) == 1
    store.asked.clear()
    newest = [*chains[4], b"%032d" % 7]
    assert len(await worker.insertions.find(CONVERSATION, newest, 0, check_store=False)) == 1
    assert store.asked == []


async def test_insertions_are_kept_as_long_as_they_are_used():
    clock = FakeClock()
    store = Fickle()
    store._now = clock.now
    worker = Worker(store, clock, retention=1_000.0)
    await worker.add(build_tool_rounds(4, when=clock.now()))
    for _ in range(10):
        clock.advance(400)
        assert await worker.find() != []
        await worker.outbox.flush()
    assert await Worker(store, clock).find(fresh=True) != []
    assert worker.outbox.taken == []
    clock.advance(1_001)
    assert await Worker(store, clock).find(fresh=True) == []
