"""One key for one content, whoever wrote it down; two keys for two contents."""

from __future__ import annotations

import hashlib
import json
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from accordion.model.tenant import TenantScope
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from accordion.protocols.base import WireProtocol
from accordion.protocols.bedrock_converse.protocol import BedrockConverse
from accordion.protocols.gemini.protocol import Gemini
from accordion.protocols.message_keys import (
    NO_CONTENT,
    canonical_object,
    chain_key,
    chain_start,
    content_key,
    count_breakpoints,
    decode_json,
    message_key,
)
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.openai_responses.protocol import OpenAIResponses
from tests.equivalent_entries import reform, respell
from tests.histories import PROTOCOL_NAMES, ProtocolName, arguments, entries, histories
from tests.protocols.edit_samples import WITH_CONTENT

ONE = TenantScope("one", b"one")

TENANT = TenantScope("tenant", b"s" * 32)
READERS: dict[ProtocolName, WireProtocol] = {
    "chat": OpenAIChat(),
    "responses": OpenAIResponses(),
    "messages": AnthropicMessages(),
    "gemini": Gemini(),
    "converse": BedrockConverse(),
}

protocol_names = st.sampled_from(PROTOCOL_NAMES)
randoms = st.randoms(use_true_random=False)


def key(protocol_name: ProtocolName, entry: Any) -> bytes:
    raw = entry if isinstance(entry, str) else json.dumps(entry)
    return message_key(READERS[protocol_name].read_message(raw.encode()).canonical, TENANT, "chat")


def of(entry: Any) -> bytes:
    return message_key(canonical_object(decode_json(json.dumps(entry))), TENANT, "chat")


@given(histories(max_turns=2, is_plain=True), protocol_names, randoms)
def test_a_history_respelled_has_the_same_keys(history: Any, protocol_name: ProtocolName, random: Random) -> None:
    for entry in entries(history, protocol_name):
        assert key(protocol_name, respell(entry, protocol_name, random)) == key(protocol_name, entry)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        return [leaf for name, held in value.items() for leaf in leaves(held, (*path, name))]
    if isinstance(value, list) and value:
        return [leaf for at, held in enumerate(value) for leaf in leaves(held, (*path, at))]
    return [path]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    out = dict(value) if isinstance(value, dict) else list(value)
    out[path[0]] = changed(value[path[0]], path[1:], new)
    return out


@given(st.data(), histories(max_turns=2, is_plain=True), protocol_names)
def test_any_change_of_what_is_said_changes_the_key(
    data: st.DataObject, history: Any, protocol_name: ProtocolName
) -> None:
    entry = data.draw(st.sampled_from(entries(history, protocol_name)))
    path = data.draw(st.sampled_from(leaves(entry)))
    new = data.draw(st.sampled_from(["other words", 7, 0.5, True, ["x"], {"x": None}]))
    other = changed(entry, path, new)
    assume(json.dumps(other) != json.dumps(entry))
    assert key(protocol_name, other) != key(protocol_name, entry)


@given(st.data(), histories(max_turns=2, is_plain=True), protocol_names)
def test_an_added_or_lost_part_changes_the_key(data: st.DataObject, history: Any, protocol_name: ProtocolName) -> None:
    entry = data.draw(st.sampled_from(entries(history, protocol_name)))
    lists = [name for name, held in entry.items() if isinstance(held, list) and held]
    assume(lists)
    name = data.draw(st.sampled_from(lists))
    held = entry[name]
    assert key(protocol_name, entry | {name: [*held, held[0]]}) != key(protocol_name, entry)
    assert key(protocol_name, entry | {name: held[:-1]}) != key(protocol_name, entry)
    if held != held[::-1]:
        assert key(protocol_name, entry | {name: held[::-1]}) != key(protocol_name, entry)


small = st.sampled_from(["", "a", "b", "ab", "{}", "null", '{"a":1}', '["a"]'])
small_json = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | small,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(small, inner, max_size=2),
    max_leaves=4,
)


@given(small_json, small_json)
def test_two_arguments_share_a_key_only_if_they_are_the_same_json(one: Any, two: Any) -> None:
    def call(given_: Any) -> dict[str, Any]:
        function = {"name": "f", "arguments": json.dumps(given_)}
        return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}

    same = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert (key("chat", call(one)) == key("chat", call(two))) == same
    used = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": v}]} for v in (one, two)
    ]
    if one is not None and two is not None:
        assert (key("messages", used[0]) == key("messages", used[1])) == same


@given(small, small)
def test_two_argument_texts_share_a_key_only_if_they_are_the_same_json_or_text(one: str, two: str) -> None:
    def parsed(text: str) -> str:
        try:
            return json.dumps(["json", json.loads(text or "{}")])
        except ValueError:
            return json.dumps(["text", text])

    calls = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": text} for text in (one, two)]
    assert (key("responses", calls[0]) == key("responses", calls[1])) == (parsed(one) == parsed(two))


@given(small, small)
def test_a_free_text_input_is_never_taken_for_json(one: str, two: str) -> None:
    calls = [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": text} for text in (one, two)]
    assert (key("responses", calls[0]) == key("responses", calls[1])) == (one == two)


contents = st.none() | small | st.lists(
    small.map(lambda text: {"type": "text", "text": text}) | st.just({"type": "thing", "text": "a"}), max_size=3
)  # fmt: skip


@given(contents, contents, st.sampled_from(WITH_CONTENT))
def test_two_contents_share_a_key_only_if_they_have_the_same_parts(
    one: Any, two: Any, protocol_name: ProtocolName
) -> None:
    def parts(content: Any) -> list[Any]:
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        return [] if content in (None, [{"type": "text", "text": ""}]) else content

    keys = [key(protocol_name, {"role": "user", "content": content}) for content in (one, two)]
    assert (keys[0] == keys[1]) == (parts(one) == parts(two))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ('{"role":"user","content":"\\u00e9\\n"}', '{ "content" : "é\\u000a" , "role" : "user" }'),
        ('{"role":"user","n":1}', '{"role":"user","n":1.0}'),
        ('{"role":"user","n":100}', '{"role":"user","n":1e2}'),
        ('{"role":"user","n":0}', '{"role":"user","n":-0.0}'),
        ('{"role":"user","n":1000000000000000000000}', '{"role":"user","n":1E21}'),
        ('{"role":"user","role":"tool"}', '{"role":"tool"}'),
    ],
)
def test_equal_json_has_equal_keys(one: str, two: str) -> None:
    assert key("chat", one) == key("chat", two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"n": 1}, {"n": "1"}),
        ({"n": 1}, {"n": True}),
        ({"n": 0}, {"n": False}),
        ({"n": 2**53}, {"n": 2**53 + 1}),
        ({"n": 0.1}, {"n": 0.2}),
        ({"n": []}, {"n": {}}),
        ({"n": ["a", "b"]}, {"n": ["ab"]}),
        ({"content": ["a", "b"]}, {"content": "ab"}),
        ({"content": {"a": 1}}, {"content": [{"a": 1}]}),
        ({"content": [[1]]}, {"content": [1]}),
        ({"tool_calls": {"a": 1}}, {"tool_calls": [{"a": 1}]}),
        ({"refusal": "no"}, {"content": "no"}),
        ({"status": "incomplete"}, {}),
        ({"caller": {"type": "program", "caller_id": "c"}}, {"caller": {"type": "program", "caller_id": "d"}}),
        ({"annotations": [{"type": "url_citation"}]}, {}),
        ({"audio": {"id": "a"}}, {"audio": {"id": "b"}}),
        ({"detail": "low"}, {"detail": "high"}),
    ],
)
def test_different_content_has_different_keys(one: Any, two: Any) -> None:
    assert of(one) != of(two)


@given(arguments)
def test_breakpoints_and_nulls_inside_a_users_data_are_data(given_: Any) -> None:
    for extra in ({"cache_control": {"type": "ephemeral"}}, {"x": None}, {"parsed": 1}, {"annotations": []}):
        other = {**extra, **given_}
        assume(other != given_)
        for entry in (
            lambda data: {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps(data)},
            lambda data: {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "f", "input": data}],
            },
            lambda data: {"type": "additional_tools", "tools": [{"name": "f", "parameters": data}]},
            lambda data: {"role": "tool", "tool_call_id": "c", "content": json.dumps(data)},
        ):
            assert of(entry(given_)) != of(entry(other))


def test_breakpoints_are_left_out_at_every_depth_of_the_protocol() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "a", "citations": [{"type": "char_location"}]}
    inner = {"type": "search_result", "source": "s", "title": "t", "content": [text]}
    outer = {"type": "tool_result", "tool_use_id": "c", "content": [inner]}
    marked = {**outer, **mark, "content": [{**inner, **mark, "content": [{**text, **mark}]}]}
    assert of({"role": "user", "content": [outer]}) == of({"role": "user", "content": [marked]})


def test_arguments_that_are_no_json_stay_text() -> None:
    calls = [{"type": "function_call", "call_id": "c", "arguments": text} for text in ('{"a":', '{"a": ', "NaN")]
    assert len({of(call) for call in calls}) == 3


def test_arguments_nested_too_deeply_stay_text_and_differ() -> None:
    deep = "[" * 5000 + "]" * 5000
    assert of({"arguments": deep}) == of({"arguments": deep})
    assert of({"arguments": deep}) != of({"arguments": "[" + deep + "]"})


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("raw", [DEEP, '{"n": 1e999}', '"\\ud800"', "{", "NaN", '{"n": -1e999}'])
def test_undecodable_content_is_a_value_error(raw: str) -> None:
    with pytest.raises(ValueError):
        decode_json(raw)


def keyed(raw: str) -> str:
    try:
        message_key(canonical_object({"role": "user", "x": decode_json(raw)}), TENANT, "chat")
    except ValueError as error:
        return str(error)
    return "keyed"


@pytest.mark.parametrize("depth", range(100, 1500, 25))
def test_deep_nesting_is_keyed_or_a_value_error_and_never_more(depth: int) -> None:
    for raw in ('{"a":' * depth + "1" + "}" * depth, "[" * depth + "]" * depth):
        assert keyed(raw) in {"keyed", "the JSON is nested too deeply"}
    assert keyed('{"a":' * 100 + "1" + "}" * 100) == "keyed"


def test_keys_differ_from_tenant_to_tenant_and_from_protocol_to_protocol() -> None:
    canonical = canonical_object({"role": "user", "content": "a"})
    assert message_key(canonical, ONE, "chat") != message_key(canonical, TWO, "chat")
    assert message_key(canonical, ONE, "chat") != message_key(canonical, ONE, "messages"), "their JSON differs"
    assert chain_start(ONE, "chat") != chain_start(TWO, "chat")
    assert chain_start(ONE, "chat") != chain_start(ONE, "responses")


def test_a_chain_tells_order_and_length() -> None:
    start = chain_start(TENANT, "chat")
    a, b = (message_key(canonical_object({"role": "user", "content": text}), TENANT, "chat") for text in "ab")
    chains = [start, chain_key(start, a), chain_key(start, b), chain_key(chain_key(start, a), b)]
    chains += [chain_key(chain_key(start, b), a), chain_key(chain_key(start, a), a)]
    assert len(set(chains)) == len(chains)


def test_keys_stay_the_same_from_release_to_release() -> None:
    """Keys are kept in stores: a change of these values is a change of format."""
    entry = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a", "n": 1.0}'}}
    ]}  # fmt: skip
    assert message_key(canonical_object(decode_json(json.dumps(entry))), TENANT, "chat").hex() == (
        "6e37c4a2cb2b9952b4a6396d4282a4197afa6fe4553af82a69b472244f4f34e6"
    )
    assert chain_key(chain_start(TENANT, "chat"), bytes(32)).hex() == (
        "8acba13e33fe5a8073fde0d0643229b35797fd20ba92853ff528cebf014fb223"
    )


@given(st.sampled_from(["system", "developer", "user", "assistant", "function", "tool", "x", None]), st.text())
def test_a_message_of_a_role_and_a_text_has_the_key_of_any_way_to_say_so(role: str | None, text: str) -> None:
    entry = {"role": role, "content": text}
    assert key("chat", entry) == of(entry) == key("chat", entry | {"refusal": None})


LONG = 5 << 20
"""More than is decoded at once."""


@pytest.mark.parametrize("unit", ["word ", "\\ ", "\n", '" ', "é ", "𝔘 ", "𝔘"])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_long_text_is_decoded_in_pieces_as_if_at_once(unit: str, is_ascii: bool) -> None:
    entry = {"role": "user", "content": unit * (LONG // len(unit)), "n": 1.0, "tags": [unit], "name": None}
    raw = json.dumps(entry, ensure_ascii=is_ascii, indent=1).encode()
    assert decode_json(raw) == {**entry, "n": 1}
    assert decode_json(json.dumps([entry]).encode()) == [{**entry, "n": 1}]


@pytest.mark.parametrize("wrong", [b"\\ ", b"\\u12 ", b"\\q", b"\xff ", b"\n"])
@pytest.mark.parametrize("before", [0, LONG // 5])
def test_a_long_text_that_is_no_json_is_refused(wrong: bytes, before: int) -> None:
    raw = b'{"content": "' + b"word " * before + wrong + b"word " * (LONG // 5) + b'"}'
    with pytest.raises(ValueError, match=r"JSON|UTF|utf"):
        decode_json(raw)


@pytest.mark.parametrize("shift", range(0, 30, 3))
def test_cache_breakpoints_are_counted_wherever_they_stand_in_a_large_message(shift: int) -> None:
    name = b'"cache_control"' if shift % 2 else b'"prompt_cache_breakpoint"'
    raw = b'{"content":"' + b"x" * ((1 << 20) - 12 - shift) + b'",' + name + b":1," + b" " * (3 << 20) + name + b":2}"
    assert count_breakpoints(raw) == raw.count(name) == 2


@pytest.mark.parametrize("unit", ["word ", '"\\', "\n\x00", "é", "𝔘"])
def test_a_message_with_a_long_text_has_the_key_of_its_whole_content(unit: str) -> None:
    canonical = {"role": "user", "content": [unit * (LONG // len(unit))]}
    whole = msgspec.json.Encoder(order="deterministic").encode(canonical)
    assert message_key(canonical, TENANT, "chat") == hashlib.sha256(TENANT.key + b"chat" + whole).digest()


TWO = TenantScope("two", b"two")


def key_of_content(protocol_name: ProtocolName, entry: Any) -> bytes:
    canonical = READERS[protocol_name].read_message(json.dumps(entry).encode()).canonical
    return content_key(canonical, TENANT, "chat") or message_key(canonical, TENANT, "chat")


def meanings(protocol_name: ProtocolName, listed: list[Any]) -> list[bytes]:
    return [each for entry in listed if (each := key_of_content(protocol_name, entry)) != NO_CONTENT]


@given(histories(max_turns=2, is_plain=True), protocol_names, randoms)
def test_a_history_in_another_form_means_the_same(history: Any, protocol_name: ProtocolName, random: Random) -> None:
    listed = entries(history, protocol_name)
    assert meanings(protocol_name, reform(listed, protocol_name, random)) == meanings(protocol_name, listed)


def is_form(entry: Any, path: tuple[Any, ...]) -> bool:
    """Whether a leaf is of a message's form only."""
    part = entry[path[0]][path[1]] if path[0] in ("content", "parts") and len(path) > 1 else {}
    names = ("thought", "reasoningContent")
    is_thought = part.get("type") == "thinking" or any(map(part.__contains__, names)) or path[-1] == "thoughtSignature"
    return entry.get("type") == "reasoning" or path[0] == "reasoning_content" or is_thought


@given(st.data(), histories(max_turns=2, is_plain=True), protocol_names)
def test_any_change_of_what_is_said_changes_the_meaning(
    data: st.DataObject, history: Any, protocol_name: ProtocolName
) -> None:
    entry = data.draw(st.sampled_from(entries(history, protocol_name)))
    path = data.draw(st.sampled_from(leaves(entry)))
    assume(not is_form(entry, path))
    other = changed(entry, path, data.draw(st.sampled_from(["other words", 7, 0.5, True, ["x"], {"x": None}])))
    assume(json.dumps(other) != json.dumps(entry))
    assert key_of_content(protocol_name, other) != key_of_content(protocol_name, entry)


SAID = {"role": "assistant", "content": "It is done."}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
FUNCTION = {"role": "function", "name": "read", "content": "42"}
RESPONSES_CALL = {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"}


@pytest.mark.parametrize(
    ("protocol_name", "one", "other"),
    [
        # The AI SDK and LangChain add the name of a tool, DeepSeek's clients drop the reasoning of earlier turns.
        ("chat", {"role": "tool", "tool_call_id": "c", "content": "42"}, {"role": "tool", "tool_call_id": "c",
                                                                          "content": "42", "name": "read"}),
        ("chat", SAID, SAID | {"reasoning_content": "Let me see."}),
        # LiteLLM
        ("chat", SAID, SAID | {"thinking_blocks": [{"type": "thinking", "thinking": "x", "signature": "s"}],
                               "provider_specific_fields": {"citations": None, "thinking_blocks": []}}),
        # Copilot
        ("chat", SAID, SAID | {"reasoning_text": "x", "reasoning_opaque": "sealed",
                               "copilot_cache_control": {"type": "ephemeral"}}),
        # OpenRouter
        ("chat", SAID, SAID | {"reasoning": "x", "reasoning_details": [{"type": "reasoning.text", "text": "x"}]}),
        # Gemini's OpenAI endpoint
        ("chat", SAID | {"tool_calls": [CALLED]},
         SAID | {"tool_calls": [CALLED | {"extra_content": {"google": {"thought_signature": "s"}}}]}),
        # The web search of OpenAI
        ("chat", SAID, SAID | {"annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}]}),
        ("messages", SAID, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"},
                                                             {"type": "text", "text": "It is done."}]}),
        ("messages", SAID, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "s"},
                                                             {"type": "text", "text": ""},
                                                             {"type": "text", "text": "It is done."}]}),
        # Codex
        ("responses", {"type": "message"} | SAID, {"type": "message", "phase": "final_answer", "id": "msg_1"} | SAID),
    ],
)  # fmt: skip
def test_forms_of_one_message_have_one_meaning_and_two_keys(protocol_name: ProtocolName, one: Any, other: Any) -> None:
    assert key_of_content(protocol_name, one) == key_of_content(protocol_name, other)
    assert protocol_name == "responses" or key(protocol_name, one) != key(protocol_name, other)


@pytest.mark.parametrize(
    ("protocol_name", "one", "other"),
    [
        ("chat", FUNCTION, FUNCTION | {"name": "write"}),
        ("chat", {"role": "tool", "name": "read", "content": "42"}, {"role": "tool", "name": "write", "content": "42"}),
        ("chat", SAID | {"tool_calls": [CALLED]}, SAID | {"tool_calls": [CALLED | {"id": "call_2"}]}),
        ("chat", SAID, SAID | {"refusal": "No."}),
        ("responses", RESPONSES_CALL, RESPONSES_CALL | {"name": "write"}),
        ("responses", {"type": "web_search_call", "id": "ws_1"}, {"type": "web_search_call", "id": "ws_2"}),
    ],
)
def test_names_and_ids_that_a_result_needs_are_meaning(protocol_name: ProtocolName, one: Any, other: Any) -> None:
    assert key_of_content(protocol_name, one) != key_of_content(protocol_name, other)


@pytest.mark.parametrize(
    ("protocol_name", "entry"),
    [
        ("responses", {"type": "reasoning", "summary": [], "encrypted_content": "sealed"}),
        ("messages", {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"}]}),
        ("chat", {"role": "assistant", "content": "", "reasoning_content": "x"}),
        ("chat", {"role": "assistant", "content": None}),
    ],
)
def test_a_message_with_reasoning_only_says_nothing(protocol_name: ProtocolName, entry: Any) -> None:
    assert key_of_content(protocol_name, entry) == NO_CONTENT
