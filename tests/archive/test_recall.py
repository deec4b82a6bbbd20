"""Recall: what the newest turn names and only the archive holds comes back, bounded, as quoted data."""

from __future__ import annotations

import json

import pytest

from accordion.archive.recall import ArtifactSearch
from accordion.model.compaction import CompactedConversation, CompactionEntry
from accordion.model.conversation import Conversation
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.registry import PROTOCOLS
from tests.archive.recall_samples import (
    OPENING_TURNS,
    ORDERS,
    TENANT,
    call,
    compact_by_hand,
    count,
    find_claims,
    find_excerpt,
    read,
    read_message,
    result,
    summarized,
    user,
)
from tests.writers import WRITERS, MadeCall

# -- what is recalled --------------------------------------------------------------------------------------------------


def test_a_name_in_the_users_text_recalls_its_lines_with_the_source() -> None:
    found = find_excerpt([user("What is in W5918442?")])
    assert found is not None
    assert "> W5918442 holds item 7706410293, line 30 of the order list" in found.text.split("\n")
    assert 'Result of list_orders({"region": "north"}), message 2' in found.text
    assert "line 5 of" not in found.text, "only what is around the name"
    assert "lines left out]" in found.text


def test_a_name_in_a_calls_arguments_is_recalled_too() -> None:
    turn = [call("cancel", {"order": "W5918442"}, "call_9"), result("call_9", "done")]
    found = find_excerpt(turn)
    assert found is not None
    assert "7706410293" in found.text


@pytest.mark.parametrize(("value", "comes"), [("k7x9", True), ("k7x", False)])
def test_a_name_has_four_characters_at_least(value: str, comes: bool) -> None:
    client = read(
        [user("Begin."), {"role": "assistant", "content": f"The key is {value}."}, call("use", {"it": value}, "c")]
    )
    shown = compact_by_hand(client, [CompactionEntry(0, 0), CompactionEntry(1, 1, json.dumps(user("…")).encode())], 2)
    assert (ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, range(2, 3), count) is not None) == comes


def test_a_short_source_whose_call_is_named_is_shown_whole() -> None:
    found = find_excerpt([user("Have another look at src/billing/rules.py please.")])
    assert found is not None
    assert "> def round_half_even(amount):\n>     return amount" in found.text


def test_a_quotation_of_plain_words_is_found() -> None:
    found = find_excerpt([user('Where did it say "line 41 of the order"?')])
    assert found is not None
    assert "> line 41 of the order list" in found.text


def test_a_quoted_message_has_its_role() -> None:
    client = read(
        [user("Begin."), {"role": "assistant", "content": "The key is kx_773_alpha."}, user("Use kx_773_alpha.")]
    )
    shown = compact_by_hand(client, [CompactionEntry(0, 0), CompactionEntry(1, 1, json.dumps(user("…")).encode())], 2)
    found = ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, range(2, 3), count)
    assert found is not None
    assert "Said by the assistant, message 1:\n> The key is kx_773_alpha." in found.text


def test_text_in_a_calls_arguments_is_quoted_from_there() -> None:
    content = "\n".join(f"value_{number} = {number}" for number in range(400))
    entries = [
        user("Begin."),
        call("write_file", {"path": "a.py", "content": content}, "c"),
        result("c", "ok"),
        user("value_321 is wrong"),
    ]
    client = read(entries)
    shown = compact_by_hand(
        client, [CompactionEntry(0, 0), CompactionEntry(1, 2, json.dumps(user("Written.")).encode())], 3
    )
    found = ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, range(3, 4), count)
    assert found is not None
    assert "Arguments of write_file(" in found.text
    assert "> value_321 = 321" in found.text.split("\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (r'{"note": "from \u0074op of hill"}', "top of hill"),
        (r'{"path": "src\/billing\/late_fees.py"}', "src/billing/late_fees.py"),
        (r'{"note": "from \u03b4elta of hill"}', "δelta of hill"),
        (r'{"note": "say \"when\" and stop"}', 'when" and stop'),
        ('{"at": 1e+20, "near": "rain and wind"}', "near: rain"),
    ],
)
def test_arguments_are_found_however_their_json_is_written(arguments: str, named: str) -> None:
    made = call("note", {}, "c")
    made["tool_calls"][0]["function"]["arguments"] = arguments
    client = read([user("Begin."), made, result("c", "ok"), user(f"What of `{named}`?")])
    shown = compact_by_hand(
        client, [CompactionEntry(0, 0), CompactionEntry(1, 2, json.dumps(user("Noted.")).encode())], 3
    )
    assert ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, range(3, 4), count) is not None


def test_a_result_that_was_replaced_by_a_reference_is_recalled_under_its_call() -> None:
    client = read([*OPENING_TURNS, user("What is in W5918442?")])
    reference = CompactionEntry(2, 2, json.dumps(result("call_1", "[Result moved]")).encode(), is_edited=True)
    shown = compact_by_hand(client, [CompactionEntry(0, 1), reference, CompactionEntry(3, 5)], 6)
    found = ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, range(6, 7), count)
    assert found is not None
    assert "Result of list_orders(" in found.text
    assert "7706410293" in found.text


def test_the_newest_turn_is_heard_also_where_the_fold_covers_it() -> None:
    turn = [call("cancel", {"order": "W5918442"}, "call_9"), result("call_9", "done")]
    client = read([*OPENING_TURNS, *turn])
    block = CompactionEntry(1, 5, json.dumps(user("Orders were read.")).encode())
    shown = compact_by_hand(client, [CompactionEntry(0, 0), block, CompactionEntry(6, 7)], 8)
    found = ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, range(6, 8), count)
    assert found is not None
    assert "7706410293" in found.text


@pytest.mark.parametrize("protocol_name", WRITERS)
def test_it_works_in_every_protocol(protocol_name: str) -> None:
    writer, made = WRITERS[protocol_name], MadeCall("c", "list_orders", {"region": "north"}, ORDERS)
    listed = [writer.user("Find out."), *writer.calls(made), *writer.results(made)]
    asked = writer.request("a-model", [*listed, writer.model("Done."), writer.user("What is in W5918442?")])
    body = json.dumps(asked).encode()
    client = BodyReader().read(PROTOCOLS[protocol_name], body, TENANT)
    block = CompactionEntry(1, len(client.messages) - 2, b'{"role":"user","content":"Orders were read."}')
    shown = compact_by_hand(client, [CompactionEntry(0, 0), block], len(client.messages) - 1)
    newest = range(len(client.messages) - 1, len(client.messages))
    found = ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, newest, count)
    assert found is not None
    assert "Result of list_orders(" in found.text
    assert "7706410293" in found.text


# -- what is not -------------------------------------------------------------------------------------------------------


def test_nothing_is_recalled_where_no_fold_is_in_force() -> None:
    client = read([*OPENING_TURNS, user("What is in W5918442?")])
    bare = CompactedConversation(client, tuple(range(len(client.messages))))
    assert ArtifactSearch(find_claims).find_excerpt(TENANT, bare, client, range(6, 7), count) is None


def test_nothing_is_recalled_for_what_nobody_ever_said() -> None:
    assert find_excerpt([user("What is in W0000001, and in src/other.py?")]) is None


def test_plain_words_recall_nothing() -> None:
    assert find_excerpt([user("Please return the amount of the order list.")]) is None


def test_content_still_in_view_is_not_recalled() -> None:
    client, shown, newest = summarized([user("What is in W5918442?")], said="W5918442 was looked at.")
    assert ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, newest, count) is None


def test_a_name_within_another_word_is_not_in_view() -> None:
    found = find_excerpt([call("show", {"order": "W5918442"}, "c"), result("c", "There are W59184421 and xW5918442.")])
    assert found is not None
    assert "7706410293" in found.text


@pytest.mark.parametrize(
    ("told", "comes"),
    [("W5918442 again.", False), ("W59184420 and _W5918442.", True), ("src/billing/rules.py", True)],
)
def test_content_that_came_into_view_later_is_in_view(told: str, comes: bool) -> None:
    artifact_search, told_so_far = (
        ArtifactSearch(find_claims),
        [user("What is in W5918442?"), {"role": "assistant", "content": "A mug."}],
    )
    client, shown, newest = summarized(told_so_far[:1])
    assert artifact_search.find_excerpt(TENANT, shown, client, newest, count) is not None
    turn = [user("Go on."), {"role": "assistant", "content": told}, user("And W5918442?")]
    client, shown, _ = summarized([user("Hello."), told_so_far[1], *turn])
    newest = range(len(client.messages) - 1, len(client.messages))
    found = artifact_search.find_excerpt(TENANT, shown, client, newest, count)
    assert (found is not None) == comes


def test_a_path_whose_words_stand_apart_in_view_comes_back() -> None:
    told = "Of rules in billing, src has some: py."
    found = find_excerpt([user(told), {"role": "assistant", "content": told}, user("What is in src/billing/rules.py?")])
    assert found is not None
    assert "round_half_even" in found.text


def test_the_system_prompt_is_in_view() -> None:
    client = read([{"role": "system", "content": "W5918442 is the test order."}, *OPENING_TURNS, user("W5918442?")])
    block = CompactionEntry(1, 5, json.dumps(user("Read.")).encode())
    shown = compact_by_hand(client, [CompactionEntry(0, 0), block], 6)
    assert ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, range(6, 7), count) is None


def test_the_newest_results_are_in_view() -> None:
    turn = [call("show", {"order": "W5918442"}, "call_9"), result("call_9", "W5918442: item 7706410293")]
    assert find_excerpt(turn) is None


def test_an_excerpt_is_not_recalled_twice() -> None:
    first = find_excerpt([user("What is in W5918442?")])
    assert first is not None
    client, shown, _ = summarized(
        [user("What is in W5918442?"), {"role": "assistant", "content": "A mug."}, user("W5918442!")]
    )
    messages = list(shown.conversation.messages)
    at = len(messages) - 2
    composed = CompactedConversation(
        conversation=Conversation(
            "chat",
            client.model,
            (*messages[:at], read_message(user(first.text)), *messages[at:]),
            shown.conversation.chain,
        ),
        origins=(*shown.origins[:at], -2, *shown.origins[at:]),
        compaction=shown.compaction,
        spans=(*shown.spans[:at], (7, 6, False), *shown.spans[at:]),
    )  # fmt: skip
    newest = range(len(client.messages) - 1, len(client.messages))
    assert ArtifactSearch(find_claims).find_excerpt(TENANT, composed, client, newest, count) is None


def test_a_very_common_word_recalls_nothing() -> None:
    rounds = [
        entry
        for number in range(12)
        for entry in (
            call("read", {"at": number}, f"c{number}"),
            result(f"c{number}", f"part {number} of common_name_x"),
        )
    ]
    client = read([user("Begin."), *rounds, {"role": "assistant", "content": "Read."}, user("What of common_name_x?")])
    covered = len(client.messages) - 1
    shown = compact_by_hand(
        client, [CompactionEntry(0, 0), CompactionEntry(1, covered - 1, json.dumps(user("Read.")).encode())], covered
    )
    assert ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, range(covered, covered + 1), count) is None


def test_the_old_answer_to_the_very_call_that_was_just_answered_is_not_recalled() -> None:
    turn = [call("read_file", {"path": "src/billing/rules.py"}, "call_9"), result("call_9", "def other(): ...")]
    assert find_excerpt(turn) is None


def test_nothing_is_recalled_of_a_result_whose_text_is_in_view() -> None:
    rules = "def round_half_even(amount):\n    return amount"
    turn = [call("open_file", {"name": "src/billing/rules.py"}, "call_9"), result("call_9", rules)]
    assert find_excerpt(turn) is None


def test_only_the_newest_round_is_heard() -> None:
    turn = [user("What is in W5918442?"), {"role": "assistant", "content": "A mug."}, user("Thank you.")]
    assert find_excerpt(turn) is None


def test_reasoning_neither_asks_nor_is_quoted() -> None:
    body = {
        "model": "a-model",
        "max_tokens": 100,
        "messages": [
            user("Begin."),
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "secret_plan_77", "signature": "x"}, {"type": "text", "text": "Done."},
            ]},
            user("What of secret_plan_77?"),
        ],
    }  # fmt: skip
    client = BodyReader().read(PROTOCOLS["messages"], json.dumps(body).encode(), TENANT)
    shown = compact_by_hand(client, [CompactionEntry(0, 0), CompactionEntry(1, 1, b'{"role":"user","content":"x"}')], 2)
    assert ArtifactSearch(find_claims).find_excerpt(TENANT, shown, client, range(2, 3), count) is None
