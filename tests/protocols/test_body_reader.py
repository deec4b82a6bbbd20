import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.model.conversation import Conversation
from accordion.model.errors import TooManyMessages, Unreadable
from accordion.model.tenant import TenantScope
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from accordion.protocols.base import WireProtocol
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.json_spans import exceeds_count, split_body, with_model
from accordion.protocols.openai_chat.protocol import OpenAIChat
from tests.tiers import examples

TENANT = TenantScope("tenant", b"tenant" * 5)
LONG = "word " * 100


def body(messages: list[Any], listing: str = "messages", **fields: Any) -> bytes:
    return json.dumps({listing: messages, "model": "m", **fields}).encode()


def turns(count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "system", "content": "be brief"}]
    for number in range(count):
        found.append({"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} {LONG}"})
    return found


def same(left: Conversation, right: Conversation) -> bool:
    return left == right


def counting(protocol: WireProtocol, reads: list[bytes]) -> WireProtocol:
    """The same protocol; notes every message that it is asked to read."""

    class Counting(type(protocol)):  # type: ignore[misc]
        def read_message(self, raw: bytes) -> Any:
            reads.append(raw)
            return super().read_message(raw)

    return Counting()  # type: ignore[no-any-return]


def test_a_conversation_has_its_model_messages_and_preamble() -> None:
    read = BodyReader().read(OpenAIChat(), body(turns(3), stream=True, max_tokens=7), TENANT)
    assert read.model == "m"
    assert [m.role for m in read.messages] == ["user", "assistant", "user"]
    assert len(read.preamble) == 1
    assert read.stream
    assert read.max_output == 7
    assert len(read.chain) == len(read.messages)


def test_messages_keep_the_clients_own_bytes() -> None:
    raw = b'{"model":"m","messages":[ {"role" : "user","content":"a\\u00e9"} ,\n {"role":"user","content":"b"}]}'
    read = BodyReader().read(OpenAIChat(), raw, TENANT)
    assert [m.wire for m in read.messages] == [
        b'{"role" : "user","content":"a\\u00e9"}',
        b'{"role":"user","content":"b"}',
    ]


def test_only_what_is_new_is_read_when_a_conversation_grows() -> None:
    reads: list[bytes] = []
    protocol, reader = counting(OpenAIChat(), reads), BodyReader()
    history = turns(9)
    reader.read(protocol, body(history), TENANT)
    reads.clear()
    history += [{"role": "assistant", "content": "new"}, {"role": "user", "content": "newer"}]
    grown = reader.read(protocol, body(history), TENANT)
    assert len(reads) == 2
    assert grown == BodyReader().read(OpenAIChat(), body(history), TENANT)


def test_however_long_a_shared_beginning_is_only_what_follows_is_read() -> None:
    reads: list[bytes] = []
    protocol, history = counting(OpenAIChat(), reads), turns(50)
    other = {"role": "user", "content": "another"}
    for shared in range(8, len(history) + 1):
        reader, forked = BodyReader(), body([*history[:shared], other])
        reader.read(protocol, body(history), TENANT)
        reads.clear()
        assert same(reader.read(protocol, forked, TENANT), BodyReader().read(OpenAIChat(), forked, TENANT))
        assert reads == [json.dumps(other).encode()]


def test_only_the_restless_end_is_read_again_when_a_client_moves_its_breakpoint() -> None:
    reads: list[bytes] = []
    protocol, reader = counting(AnthropicMessages(), reads), BodyReader()

    def marked(history: list[dict[str, Any]]) -> bytes:
        text = {"type": "text", "text": history[-1]["content"], "cache_control": {"type": "ephemeral"}}
        return body([*history[:-1], {"role": history[-1]["role"], "content": [text]}], system="s" * 300)

    history = turns(30)[1:]
    for _ in range(5):
        reader.read(protocol, marked(history), TENANT)
        reads.clear()
        history += [{"role": "assistant", "content": "a"}, {"role": "user", "content": LONG}]
        grown = reader.read(protocol, marked(history), TENANT)
        assert len(reads) == 3
        assert grown.chain == BodyReader().read(AnthropicMessages(), marked(history), TENANT).chain


def test_a_fork_shares_the_beginning_of_its_chain() -> None:
    reader = BodyReader()
    whole = reader.read(OpenAIChat(), body(turns(9)), TENANT)
    fork = reader.read(OpenAIChat(), body([*turns(4), {"role": "user", "content": "else"}]), TENANT)
    assert fork.chain[:4] == whole.chain[:4]
    assert fork.chain[4] != whole.chain[4]


def test_keys_of_a_plain_request_stay_the_same_from_release_to_release() -> None:
    """They are kept in stores: a change of these values is a change of format."""
    listed = [{"role": "user", "content": "hi é"}]
    plain = BodyReader().read(OpenAIChat(), json.dumps({"model": "m", "messages": listed}).encode(), TENANT)
    assert (plain.messages[0].key.hex(), plain.chain[0].hex()) == (
        "0f2411ad916933ea125fecc25ad55854eb388d5a6d0beee24d813a7cd0fc3ae7",
        "4496c2f833a8d96d7408c23bbdf0b30ba49b0e511cfbe32dc2caf0d495be65f6",
    )
    assert (plain.preamble, plain.tools) == ((), ())
    assert plain.overhead_key.hex() == "09503574265453175005a11de49c3db6983239e4f9aee78f2a02d0fce27377aa"
    given = {"model": "m", "messages": listed, "tools": [{"name": "x"}]}
    tooled = BodyReader().read(OpenAIChat(), json.dumps(given).encode(), TENANT)
    assert tooled.chain == plain.chain
    assert tooled.overhead_key.hex() == "68fa782caf9da50a799cd8b957027bfa6cfb69262f356d09f3f373814cb10047"


def test_another_system_prompt_is_another_overhead_but_the_same_chain() -> None:
    reader, history = BodyReader(), turns(3)
    one = reader.read(OpenAIChat(), body(history), TENANT)
    history[0] = {"role": "system", "content": "be long"}
    two = reader.read(OpenAIChat(), body(history), TENANT)
    assert one.chain == two.chain
    assert one.overhead_key != two.overhead_key


def test_changed_tools_are_seen_on_a_conversation_that_goes_on() -> None:
    reader, tool = BodyReader(), {"type": "function", "function": {"name": "f", "parameters": {}}}
    one = reader.read(OpenAIChat(), body(turns(5), tools=[tool]), TENANT)
    two = reader.read(OpenAIChat(), body(turns(7), tools=[tool]), TENANT)
    three = reader.read(OpenAIChat(), body(turns(9), tools=[tool, tool]), TENANT)
    assert one.overhead_key == two.overhead_key != three.overhead_key
    assert len(three.tools) == 2


def test_a_field_that_comes_twice_counts_as_its_last() -> None:
    first = json.dumps(turns(2)).encode()
    last = json.dumps(turns(4)).encode()
    raw = b'{"messages":' + first + b',"model":"a","messages":' + last + b',"model":"b"}'
    reader = BodyReader()
    for _ in range(2):
        read = reader.read(OpenAIChat(), raw, TENANT)
        assert (len(read.messages), read.model) == (4, "b")
    # A beginning that was read before does not hide a second list behind it.
    reader.read(OpenAIChat(), body(turns(4)), TENANT)
    twice = body(turns(4))[:-1] + b',"messages":' + first + b"}"
    assert len(reader.read(OpenAIChat(), twice, TENANT).messages) == 2


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"messages":', b"null", b'{"a":NaN}', b"\xff", b"[" * 3000])
def test_a_body_that_is_no_json_object_is_unreadable(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        BodyReader().read(OpenAIChat(), raw, TENANT)


def test_more_messages_than_the_limit_are_not_read_one_by_one() -> None:
    reads: list[bytes] = []
    reader = BodyReader(max_messages=20)
    assert len(reader.read(OpenAIChat(), body(turns(19)), TENANT).chain) == 19
    with pytest.raises(TooManyMessages, match="more than the 20 messages"):
        BodyReader(max_messages=20).read(counting(OpenAIChat(), reads), body(turns(20)), TENANT)
    with pytest.raises(TooManyMessages):
        reader.read(counting(OpenAIChat(), reads), body(turns(20)), TENANT)
    assert reads == []


ONE_MIB = 1 << 20
PIECE = 1 << 18  # so much is looked through at once
LARGE = {
    "messages": {"messages": [{"role": "user", "content": "a"}] * 40_000},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 50_000}]},
    "tools": {"messages": turns(1), "tools": [{"type": "function", "function": {"name": "f"}}] * 25_000},
    "keys": {"messages": turns(1), **{f"some key {number}": number for number in range(60_000)}},
    "empty objects": {"messages": [{"role": "user", "content": [{}] * 300_000}]},
    "numbers": {"messages": [{"role": "user", "content": [1.5] * 300_000}]},
}


@pytest.mark.parametrize("fields", LARGE.values(), ids=LARGE)
def test_a_body_of_too_many_small_things_is_not_parsed(fields: dict[str, Any]) -> None:
    raw = json.dumps({"model": "m", **fields}).encode()
    assert len(raw) > ONE_MIB
    # What is no JSON behind them is never looked at.
    with pytest.raises(TooManyMessages, match="keys and values"):
        BodyReader(max_messages=2_000).read(OpenAIChat(), raw + b"no JSON", TENANT)


@pytest.mark.parametrize("text", ["a{[" * ONE_MIB, '\\"{}[]' * 8_000 + "a" * ONE_MIB, '"\\' * ONE_MIB])
def test_a_large_body_of_one_string_is_read(text: str) -> None:
    read = BodyReader(max_messages=2_000).read(OpenAIChat(), body([{"role": "user", "content": text}]), TENANT)
    assert len(read.messages) == 1


@given(
    st.recursive(
        st.text('a"\\{}[],:') | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text('a"\\'), inner)
    )
)
def test_keys_and_values_are_counted_without_parsing(value: Any) -> None:
    def count_punctuation(value: Any) -> int:
        """The brackets, colons and commas of its JSON."""
        if isinstance(value, dict):
            return 1 + len(value) + max(0, len(value) - 1) + sum(map(count_punctuation, value.values()))
        if isinstance(value, list):
            return 1 + max(0, len(value) - 1) + sum(map(count_punctuation, value))
        return 0

    raw, count = json.dumps(value).encode(), count_punctuation(value)
    assert exceeds_count(raw, 0, count - 1)
    assert not exceeds_count(raw, 0, count)


@given(st.integers(0, 9), st.integers(0, 9))
def test_an_escape_where_two_pieces_meet_is_counted_right(before: int, backslashes: int) -> None:
    text = "a" * (PIECE - 9 + before) + "\\" * backslashes + '"{[,:' * 3
    raw = json.dumps([text, 1]).encode()
    assert exceeds_count(raw, 0, 1)
    assert not exceeds_count(raw, 0, 2)


@pytest.mark.parametrize("count", [24_000, 26_000])
def test_arguments_of_too_many_keys_are_not_parsed(count: int) -> None:
    arguments = json.dumps(dict.fromkeys(map(str, range(count)), 1))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    raw = body([{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}])
    if count == 24_000:
        assert len(BodyReader().read(OpenAIChat(), raw, TENANT).messages) == 2
    else:
        with pytest.raises(TooManyMessages, match="50,000 keys and values in the arguments"):
            BodyReader().read(OpenAIChat(), raw, TENANT)


values = st.recursive(
    st.sampled_from([1, None, "messages", '"messages":[', "]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "messages"]), inner, max_size=2),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(st.sampled_from(["model", "tools", "messages", "x"]), values), max_size=5),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]),
)
def test_a_body_is_split_at_its_list_in_one_pass(pairs: list[tuple[str, Any]], separators: tuple[str, str]) -> None:
    comma, colon = separators
    texts = [json.dumps(name) + colon + json.dumps(value, separators=separators) for name, value in pairs]
    raw = "".join(("{ ", comma.join(texts), " }")).encode()
    found, names = split_body(raw, "messages"), [name for name, _ in pairs]
    entries = dict(pairs).get("messages")
    if len(set(names)) < len(names) or type(entries) is not list or not entries:
        assert found is None
        return
    assert found is not None
    assert [json.loads(entry) for entry in found.entries] == entries
    assert {name: json.loads(value) for name, value in found.fields.items()} == {
        name: value for name, value in pairs if name != "messages"
    }
    assert list(found.leading_fields) == names[: names.index("messages")]
    assert raw.startswith(found.head + b"".join(found.pieces))
    assert found.head.rstrip().endswith(b"[")
    assert found.end == len(found.head) + sum(map(len, found.pieces))


@pytest.mark.parametrize("raw", [b"[]", b"{", b'{"messages":[1,]}', b'{"messages":[1]} 2', b'{"messages":[1],"a":}'])
def test_a_body_that_is_no_json_object_is_not_split(raw: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        assert split_body(raw, "messages") is None


def test_others_are_let_in_between_the_steps_over_a_large_body() -> None:
    pauses: list[int] = []
    reader = BodyReader(pause=lambda: pauses.append(1))
    reader.read(OpenAIChat(), body(turns(9)), TENANT)
    assert not pauses
    reader.read(OpenAIChat(), body([{"role": "user", "content": "a" * 2 * ONE_MIB}]), TENANT)
    assert len(pauses) == 3


def test_only_what_is_new_counts_as_unknown() -> None:
    reader, first, second = BodyReader(), body(turns(9)), body(turns(10))
    assert reader.count_new_bytes(OpenAIChat(), first, TENANT) == len(first)
    reader.read(OpenAIChat(), first, TENANT)
    assert 0 < reader.count_new_bytes(OpenAIChat(), second, TENANT) < len(second) // 5


def test_nesting_of_two_thousand_levels_is_read_or_unreadable() -> None:
    deep = b"[" * 2000 + b"]" * 2000
    raw = b'{"messages":[{"role":"user","content":' + deep + b'}],"model":"m"}'
    with contextlib.suppress(Unreadable):
        BodyReader().read(OpenAIChat(), raw, TENANT)


def test_the_readers_cache_stays_within_its_budget() -> None:
    reader = BodyReader(budget=200_000)
    for number in range(60):
        reader.read(OpenAIChat(), body([{"role": "user", "content": f"{number} {LONG * 8}"}] * 3), TENANT)
        assert reader.remembered_bytes <= 200_000
    assert reader.remembered_bytes > 0


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_reading_on_gives_what_reading_afresh_gives(data: st.DataObject) -> None:
    """Whatever was read before, forks, rewinds and odd white space included."""
    reader = BodyReader(budget=300_000)
    text = st.text(alphabet=st.sampled_from('ab"\\{}[],: \u00e9\U0001f600'), max_size=40)
    pool = [{"role": r, "content": LONG + data.draw(text)} for r in ("user", "assistant", "user", "system", "user")]
    separators = data.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":\t")]))
    for _ in range(data.draw(st.integers(2, 6))):
        history = data.draw(st.lists(st.sampled_from(pool), max_size=8))
        fields = data.draw(st.sampled_from([{}, {"tools": [{"type": "function"}]}, {"x": {"messages": [1, 2]}}]))
        order = data.draw(st.booleans())
        items = {"messages": history, "model": "m"} if order else {"model": "m", "messages": history}
        raw = json.dumps({**items, **fields}, separators=separators).encode()
        assert same(reader.read(OpenAIChat(), raw, TENANT), BodyReader().read(OpenAIChat(), raw, TENANT))


@given(st.data())
@settings(max_examples=examples(100), deadline=None)
def test_an_alias_changes_the_models_name_and_no_other_byte(data: st.DataObject) -> None:
    value = st.recursive(
        st.none() | st.text(max_size=10) | st.integers(), lambda v: st.lists(v, max_size=3), max_leaves=5
    )
    before = data.draw(st.dictionaries(st.text(max_size=5).filter(lambda k: k != "model"), value, max_size=3))
    after = {f"{k}'": v for k, v in before.items()}
    gap = data.draw(st.sampled_from(["", " ", "\n\t"]))
    parts = [f"{json.dumps(k)}{gap}:{gap}{json.dumps(v)}" for k, v in {**before, "model": "old", **after}.items()]
    raw = ("{" + gap + f"{gap},{gap}".join(parts) + gap + "}").encode()
    index = list({**before, "model": "old", **after}).index("model")
    parts[index] = f'"model"{gap}:{gap}"new"'
    assert with_model(raw, "new") == ("{" + gap + f"{gap},{gap}".join(parts) + gap + "}").encode()


def test_an_alias_is_written_where_a_field_comes_twice_too() -> None:
    raw = b'{"model":"a","messages":[],"model":"b"}'
    assert msgspec.json.decode(with_model(raw, "new")) == {"model": "new", "messages": []}
