"""Lists that are legal, and not what most clients send, as one viewer sees them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from accordion.delegation.visibility_filter import FilteredConversation, VisibilityFilter
from accordion.model.boundaries import PartPosition
from accordion.model.conversation import Conversation, Message, ToolResult
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.written_messages import WrittenMessageReader
from tests.compaction.view_samples import READERS, TENANT
from tests.histories import Json, ProtocolName

ASK: Json = {"role": "user", "content": "Begin."}
ON: Json = {"role": "user", "content": "Go on."}


def conversation(protocol_name: ProtocolName, listed: list[Json], **fields: Any) -> Conversation:
    made = {"model": "m", READERS[protocol_name].messages_field: listed, **fields}
    return BodyReader().read(READERS[protocol_name], json.dumps(made).encode(), TENANT)


def hiding(
    client: Conversation, *ids: str, by: VisibilityFilter | None = None, places: frozenset[PartPosition] | None = None
) -> FilteredConversation:
    """The list without the results of these ids. What is left is as legal as it was."""
    if places is None:
        places = frozenset(
            (index, at)
            for index, message in enumerate(client.messages)
            for at, part in enumerate(message.parts)
            if isinstance(part, ToolResult) and part.call_id in ids
        )
    protocol = READERS[client.protocol_name]  # type: ignore[index]
    made = (by or VisibilityFilter(WrittenMessageReader())).apply(protocol, TENANT, client, places)
    new = Counter(protocol.find_problems(made.conversation.messages)) - Counter(protocol.find_problems(client.messages))
    assert not new
    return made


def left(made: FilteredConversation) -> list[Any]:
    return [json.loads(message.wire) for message in made.conversation.messages]


# -- Messages ----------------------------------------------------------------------------------------------------------


def use(name: str, **given: Any) -> Json:
    return {"type": "tool_use", "id": name, "name": "read", "input": given}


def gave(name: str, content: Any = "found") -> Json:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def thought(text: str) -> Json:
    return {"type": "thinking", "thinking": text, "signature": f"signed {text}"}


def says(text: str) -> Json:
    return {"type": "text", "text": text}


def replied(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def user_entry(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks)}


def test_a_result_within_what_the_user_says_leaves_the_words_and_the_images() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    listed = [ASK, replied(use("a"), use("b")), user_entry(gave("a", [image]), gave("b"), says("And this:"), image)]
    made = hiding(conversation("messages", listed), "a")
    assert left(made) == [ASK, replied(use("b")), user_entry(gave("b"), says("And this:"), image)]
    assert [(taken.call_id, taken.result, taken.call) for taken in made.hidden_results] == [("a", (2, 0), (1, 0))]


def test_thinking_is_byte_equal_or_gone_with_all_that_it_led_to() -> None:
    listed = [
        ASK,
        replied(thought("1"), use("a"), use("b")),
        user_entry(gave("a"), gave("b")),
        replied(thought("2"), use("c")),
        user_entry(gave("c")),
        replied(thought("3"), says("Now."), use("d")),
        user_entry(gave("d")),
        replied(thought("4"), thought("5"), use("e"), thought("6"), use("f")),
        user_entry(gave("e"), gave("f")),
    ]
    client = conversation("messages", listed)
    made = hiding(client, "a", "c", "d", "e")
    assert left(made) == [
        ASK,
        replied(thought("1"), use("b")),
        user_entry(gave("b")),
        replied(thought("3"), says("Now.")),
        replied(thought("6"), use("f")),
        user_entry(gave("f")),
    ]
    raw = json.dumps(thought("1")).encode()
    assert raw in made.conversation.messages[1].wire


def test_thinking_behind_the_last_call_leaves_with_the_message() -> None:
    listed = [ASK, replied(use("a"), thought("1")), user_entry(gave("a")), ON]
    assert left(hiding(conversation("messages", listed), "a")) == [ASK, ON]


def test_results_of_hosted_tools_stay_or_leave_with_their_neighbours() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    hits = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    listed = [ASK, replied(search, hits, says("Found."), use("a")), user_entry(gave("a")), ON]
    made = hiding(conversation("messages", listed), "srvtoolu_1", "a")
    assert left(made) == [ASK, replied(search, hits, says("Found.")), ON]
    assert made.unremovable_results == {(1, 1)}
    assert [taken.call_id for taken in made.hidden_results] == ["a"]
    alone = [ASK, replied(search, hits, use("a")), user_entry(gave("a")), ON]
    made = hiding(conversation("messages", alone), "srvtoolu_1", "a")
    assert (left(made), made.unremovable_results) == ([ASK, ON], frozenset())


def test_a_result_that_answers_nothing_leaves_alone() -> None:
    listed = [ASK, replied(says("Well.")), user_entry(gave("nobody"), says("Here."))]
    made = hiding(conversation("messages", listed), "nobody")
    assert left(made) == [ASK, replied(says("Well.")), user_entry(says("Here."))]
    assert [(taken.name, taken.call) for taken in made.hidden_results] == [("", None)]


def test_what_the_assistant_said_last_waits_until_something_follows_it() -> None:
    """A list does not come to end in its words: that would be a reply to go on with, or refused."""
    listed = [ASK, replied(says("Both."), use("a"), use("b")), user_entry(gave("a"), gave("b"))]
    made = hiding(conversation("messages", listed), "a", "b")
    assert (left(made), made.unremovable_results, list(made.origins)) == ([ASK], frozenset(), [0])
    half = hiding(conversation("messages", listed), "a")
    assert left(half) == [ASK, replied(says("Both."), use("b")), user_entry(gave("b"))]
    behind = hiding(conversation("messages", [*listed, ON]), "a", "b")
    assert (left(behind), behind.unremovable_results) == ([ASK, replied(says("Both.")), ON], frozenset())
    assert behind.conversation.chain[: len(made.conversation.chain)] == made.conversation.chain
    own = hiding(conversation("messages", [*listed, replied(says("So."))]), "a", "b")
    assert left(own) == [ASK, replied(says("Both.")), replied(says("So."))], "where the client's list ends so"


def test_something_is_left_of_a_list_and_the_user_opens_it() -> None:
    only = [user_entry(gave("a"))]
    made = hiding(conversation("messages", only, thread={"previous_message_id": "msg_1"}), "a")
    assert (left(made), made.unremovable_results) == (only, {(0, 0)})
    made = hiding(conversation("messages", only), "a")
    assert (left(made), made.unremovable_results) == (only, {(0, 0)})
    listed = [user_entry(gave("a")), replied(use("b")), user_entry(gave("b")), replied(says("So.")), ON]
    made = hiding(conversation("messages", listed), "a", "b")
    assert left(made) == [user_entry(gave("a")), replied(says("So.")), ON]
    assert made.unremovable_results == {(0, 0)}


def test_a_breakpoint_that_the_client_moves_moves_in_an_edited_message_too() -> None:
    def listed(*at: int) -> list[Json]:
        out = [ASK]
        for number in range(3):
            mark = {"cache_control": {"type": "ephemeral"}} if number in at else {}
            out += [
                replied(use(f"a{number}"), use(f"b{number}")),
                user_entry(gave(f"a{number}"), gave(f"b{number}") | mark),
            ]
        return out

    by = VisibilityFilter(WrittenMessageReader())
    first = hiding(conversation("messages", listed(1)[:5]), "a0", "a1", by=by)
    then = hiding(conversation("messages", listed(2)), "a0", "a1", "a2", by=by)
    assert left(then)[4] == user_entry(gave("b1"))
    assert left(then)[6] == user_entry(gave("b2") | {"cache_control": {"type": "ephemeral"}})
    assert [message.cache_breakpoints for message in then.conversation.messages] == [0, 0, 0, 0, 0, 0, 1]
    assert then.conversation.chain[:5] == first.conversation.chain


class Counting(AnthropicMessages):
    """Counts what it is asked to edit."""

    def __init__(self) -> None:
        self.edits = 0

    def edit_message(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        self.edits += 1
        return super().edit_message(message, changes)


def test_a_list_that_grows_by_a_round_costs_that_round() -> None:
    by, protocol, reader = VisibilityFilter(WrittenMessageReader()), Counting(), BodyReader()
    listed = [ASK]
    for number in range(40):
        listed += [
            replied(use(f"a{number}"), use(f"b{number}")),
            user_entry(gave(f"a{number}", "x" * 100), gave(f"b{number}")),
        ]
        raw = json.dumps({"messages": listed, "max_tokens": 5}).encode()
        client = reader.read(protocol, raw, TENANT)
        made = by.apply(protocol, TENANT, client, frozenset((2 * at + 2, 0) for at in range(number + 1)))
        assert len(made.hidden_results) == number + 1
        assert protocol.edits == 2 * (number + 1)


# -- Chat Completions --------------------------------------------------------------------------------------------------


def calls(*ids: str, **fields: Any) -> Json:
    made = [{"id": name, "type": "function", "function": {"name": "read", "arguments": "{}"}} for name in ids]
    return {"role": "assistant", "content": None, "tool_calls": made, **fields}


def answer(name: str, content: Any = "found") -> Json:
    return {"role": "tool", "tool_call_id": name, "content": content}


def test_reasoning_of_chat_stays_as_long_as_one_of_its_calls_does() -> None:
    listed = [ASK, calls("a", "b", reasoning_content="why"), answer("a"), answer("b"), ON]
    client = conversation("chat", listed)
    assert left(hiding(client, "a")) == [ASK, calls("b", reasoning_content="why"), answer("b"), ON]
    assert left(hiding(client, "a", "b")) == [ASK, ON]


def test_of_ids_that_are_used_again_only_the_hidden_pair_leaves() -> None:
    listed = [ASK, calls("x", "x"), answer("x", "1"), answer("x", "2"), calls("x"), answer("x", "3"), ON]
    client = conversation("chat", listed)
    made = hiding(client, places=frozenset({(3, 0)}))
    assert left(made) == [ASK, calls("x"), answer("x", "1"), calls("x"), answer("x", "3"), ON]
    assert [(taken.result, taken.call) for taken in made.hidden_results] == [((3, 0), (1, 1))]


def test_a_legacy_call_leaves_with_its_result() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": "{}"}}
    listed = [ASK, call, {"role": "function", "name": "read", "content": "found"}, ON]
    assert left(hiding(conversation("chat", listed), "read")) == [ASK, ON]


def test_a_call_that_is_not_understood_keeps_its_place() -> None:
    strange = {"id": "s", "type": "strange", "strange": {}}
    mixed = calls("a")
    mixed["tool_calls"].append(strange)
    made = hiding(conversation("chat", [ASK, mixed, answer("a"), answer("s"), ON]), "a")
    assert left(made)[1]["tool_calls"] == [strange]


# -- Responses ---------------------------------------------------------------------------------------------------------


def reasoned(name: str) -> Json:
    return {"type": "reasoning", "id": name, "summary": [], "encrypted_content": f"sealed {name}"}


def call(name: str) -> Json:
    return {"type": "function_call", "id": f"fc_{name}", "call_id": name, "name": "read", "arguments": "{}"}


def output(name: str, content: Any = "found") -> Json:
    return {"type": "function_call_output", "call_id": name, "output": content}


def message(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def test_reasoning_items_leave_with_all_that_they_led_to() -> None:
    listed = [
        *(ASK, reasoned("1"), reasoned("2"), call("a"), output("a")),
        *(reasoned("3"), call("b"), call("c"), output("b"), output("c")),
        *(reasoned("4"), message("So."), reasoned("5"), call("d"), output("d")),
        *(
            reasoned("6"),
            call("e"),
            reasoned("7"),
            call("f"),
            output("e"),
            output("f"),
            ON,
            reasoned("8"),
            message("!"),
        ),
    ]
    made = hiding(conversation("responses", listed), "a", "b", "d", "e")
    assert left(made) == [
        *(ASK, reasoned("3"), call("c"), output("c"), reasoned("4"), message("So.")),
        *(reasoned("7"), call("f"), output("f"), ON, reasoned("8"), message("!")),
    ]


def test_a_hosted_call_leaves_in_one_item_with_what_it_gave() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }
    listed = [ASK, reasoned("1"), search, message("Found."), reasoned("2"), search | {"id": "ws_2"}, ON]
    made = hiding(conversation("responses", listed), "ws_1", "ws_2")
    assert left(made) == [ASK, reasoned("1"), message("Found."), ON]


@pytest.mark.parametrize("reference", [{"type": "item_reference", "id": "x"}, {"id": "x"}])
def test_what_a_reference_may_stand_for_or_be_the_reasoning_of_stays(reference: Json) -> None:
    listed = [ASK, reference, call("a"), output("a"), output("b"), call("c"), output("c"), ON]
    made = hiding(conversation("responses", listed), "a", "b", "c")
    assert left(made) == [ASK, reference, call("a"), output("a"), output("b"), ON]
    assert made.unremovable_results == {(3, 0), (4, 0)}


def test_the_output_of_a_call_that_the_provider_keeps_stays() -> None:
    client = conversation("responses", [output("a"), call("b"), output("b"), ON], previous_response_id="resp_1")
    made = hiding(client, "a", "b")
    assert (left(made), made.unremovable_results) == ([output("a"), ON], {(0, 0)})
    by = VisibilityFilter(WrittenMessageReader())
    hiding(conversation("responses", [output("a"), call("b"), output("b"), ON]), "a", "b", by=by)
    assert hiding(client, "a", "b", by=by).unremovable_results == {(0, 0)}


def test_a_call_that_is_answered_after_the_user_spoke_leaves_with_its_output() -> None:
    listed = [ASK, call("a"), ON, output("a", [{"type": "input_image", "image_url": "https://example.org/a.png"}]), ON]
    by = VisibilityFilter(WrittenMessageReader())
    hiding(conversation("responses", listed[:3]), by=by)
    assert left(hiding(conversation("responses", listed), "a", by=by)) == [ASK, ON, ON]


def test_an_output_that_comes_late_takes_its_call_out_of_what_was_filtered_before() -> None:
    listed = [ASK, call("a"), call("b"), output("a"), output("b"), ON]
    by = VisibilityFilter(WrittenMessageReader())
    early = hiding(conversation("responses", listed[:4]), "a", by=by)
    assert left(early) == [ASK]
    assert left(hiding(conversation("responses", listed), "a", "b", by=by)) == [ASK, ON]
