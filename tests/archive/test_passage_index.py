"""The index of a conversation's passages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.passage_index import PassageIndexes, build_block, readable_text
from accordion.model.conversation import Conversation, ToolCall
from tests.insertions.excerpt_samples import call, read, result, user


def conversation(words: list[str]) -> Conversation:
    """A message for each word."""
    return read([user(f"{word} and more") for word in words])


def messages_with(indexes: PassageIndexes, client: Conversation, term: str, count: int) -> list[int]:
    """The messages that have a term, among the first `count`."""
    index = indexes.index(client.messages, client.chain, count)
    return [index[at].position[0] for at in index.find(term)]


@given(st.lists(st.sampled_from(["apple", "bread", "cider"]), min_size=1, max_size=100), st.data())
def test_the_index_finds_each_message_with_a_word(words: list[str], data: st.DataObject) -> None:
    client, indexes = conversation(words), PassageIndexes()
    for count in data.draw(st.lists(st.integers(1, len(words)), min_size=1, max_size=4)):
        for word, term in (("apple", "appl"), ("bread", "bread")):
            assert messages_with(indexes, client, term, count) == [at for at in range(count) if words[at] == word]


def test_a_later_compaction_indexes_only_the_last_block_and_new_messages() -> None:
    client, indexes = conversation(["apple"] * 100), PassageIndexes()
    wires = [len(message.wire) for message in client.messages]
    assert indexes.pending_bytes(client.messages, client.chain, 70) == sum(wires[:70])
    indexes.index(client.messages, client.chain, 70)
    assert indexes.pending_bytes(client.messages, client.chain, 70) == 0
    assert indexes.pending_bytes(client.messages, client.chain, 100) == sum(wires[64:])


def test_each_branch_of_a_history_has_its_own_words() -> None:
    indexes, common = PassageIndexes(), ["apple"] * 40
    for word in ("bread", "cider"):
        client = conversation([*common, word])
        assert messages_with(indexes, client, word, 41) == [40]
        assert len(messages_with(indexes, client, "appl", 41)) == 40
    assert messages_with(indexes, conversation([*common, "bread"]), "cider", 41) == []


@given(st.text(alphabet="ab .\n", max_size=5_000))
def test_the_passages_of_a_text_are_the_text(text: str) -> None:
    client = read([user(text)])
    fields = build_block(client.messages, range(1)).fields
    pieces = [text[start:end] for start, end in zip(fields[2::4], fields[3::4], strict=True)]
    assert "".join(pieces).strip() == text.strip()
    assert all(len(piece) <= 400 for piece in pieces)


def test_a_result_is_found_by_the_words_of_its_call() -> None:
    client = read([user("Begin."), call("read_file", {"path": "src/billing.py"}, "c"), result("c", "def main(): ...")])
    assert messages_with(PassageIndexes(), client, "bill", 3) == [2]


@pytest.mark.parametrize(("lines", "labelled"), [(30, "all"), (300, "first")])
def test_each_passage_of_a_short_result_is_found_by_the_words_of_its_call(lines: int, labelled: str) -> None:
    text = "\n".join(f"field number {number} of the customer's own record" for number in range(lines))
    client = read([user("Look."), call("get_customer", {"name": "zebra"}, "c"), result("c", text)])
    index = PassageIndexes().index(client.messages, client.chain, 3)
    passages = len([at for at in range(len(index)) if index[at].position[0] == 2])
    assert passages > 10
    assert len(index.find("zebra")) == (passages if labelled == "all" else 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"path": "a.py", "why": "b"}', "path: a.py\nwhy: b"),
        ('{"at": 3, "all": true, "none": null, "name": "b"}', "at: 3\nname: b"),
        ('{"all": [{"old": "a"}, "b", ["c"]], "by": 1.5}', "old: a\nall: b\nall: c\nby: 1.5"),
        ('["a", {"b": "c"}]', "a\nb: c"),
        ("[" * 5_000 + "]" * 5_000, "[" * 5_000 + "]" * 5_000),
        ("{}", ""),
        ("ls -l", "ls -l"),
        ("", ""),
    ],
)  # fmt: skip
def test_arguments_are_read_in_order_with_their_keys(arguments: str, text: str) -> None:
    assert readable_text(ToolCall("c", "a_tool", arguments)) == text


def test_reasoning_has_no_readable_text() -> None:
    body = read([user("x"), {"role": "assistant", "content": "y", "reasoning_content": "secret"}])
    assert "secret" not in "".join(readable_text(part) for part in body.messages[1].parts)
