"""The observer records the arguments of calls while the response passes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.records import ARGUMENTS, ObservedCall
from accordion.protocols.base import WireProtocol
from accordion.protocols.registry import PROTOCOLS
from tests.reply_parts import ReplyCall, ReplyText, ReplyThought, ScriptedReply, reply_document, reply_events
from tests.sample_responses import SSE_PROTOCOLS, calls, chunk, observe, sse

CHAT, RESPONSES, MESSAGES, GEMINI = (PROTOCOLS[name] for name in ("chat", "responses", "messages", "gemini"))
BODY: dict[str, Any] = {}


@st.composite
def replies(draw: st.DrawFn) -> ScriptedReply:
    """Replies with calls among words and thoughts; arguments are JSON objects, or no JSON at all."""
    given_ = st.dictionaries(st.text(max_size=6), st.text(max_size=20), max_size=3).map(
        lambda value: json.dumps(value, ensure_ascii=False)
    )
    free = st.text(max_size=30)
    pieces: list[Any] = []
    for at in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["words", "call", "call", "thought"]))
        if kind == "call":
            pieces.append(
                ReplyCall(f"call_{at}", draw(st.sampled_from(["read", "input_json_delta"])), draw(given_ | free))
            )
        elif kind == "words":
            pieces.append(ReplyText(draw(st.text(min_size=1, max_size=20))))
        else:
            pieces.append(ReplyThought(draw(st.text(min_size=1, max_size=20)), "sealed"))
    return ScriptedReply(draw(st.integers(1, 4)), tuple(pieces), 10, 5)


def expected(said: ScriptedReply) -> tuple[ObservedCall, ...]:
    return tuple(ObservedCall(call.id, call.name, call.arguments) for call in said.calls)


def decoded(protocol: WireProtocol, made: tuple[ObservedCall, ...]) -> list[Any]:
    """Calls as they are compared. Gemini's arguments are objects in the response itself, never a text."""
    if protocol is not GEMINI:
        return list(made)
    given_ = [ReplyCall(call.call_id, call.name, call.arguments).parsed_arguments for call in made]
    objects = [
        value if isinstance(value, dict) else {"INVALID_JSON": call.arguments}
        for call, value in zip(made, given_, strict=True)
    ]
    return [(call.call_id, call.name, value) for call, value in zip(made, objects, strict=True)]


@given(replies(), st.sampled_from(SSE_PROTOCOLS), st.integers(1, 400))
def test_arguments_are_noted_as_they_were_written_wherever_the_stream_is_cut(
    said: ScriptedReply, protocol: WireProtocol, size: int
) -> None:
    stream = b"".join(reply_events(protocol.name, said, BODY))
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert decoded(protocol, observe(protocol, *pieces).calls) == decoded(protocol, expected(said))


@given(replies(), st.sampled_from(SSE_PROTOCOLS))
def test_the_arguments_of_a_whole_reply_are_those_of_its_stream(said: ScriptedReply, protocol: WireProtocol) -> None:
    body = json.dumps(reply_document(protocol.name, said, BODY)).encode()
    seen = observe(protocol, body, stream=False).calls
    wanted = expected(said)
    if protocol is MESSAGES:
        # A document of Messages has the input as an object.
        for one, other, call in zip(seen, wanted, said.calls, strict=True):
            if isinstance(call.parsed_arguments, dict):
                assert (one.call_id, one.name, json.loads(one.arguments)) == (
                    other.call_id,
                    other.name,
                    call.parsed_arguments,
                )
    else:
        assert decoded(protocol, seen) == decoded(protocol, wanted)


def test_parallel_calls_of_chat_may_be_written_in_turns() -> None:
    begun = [
        calls({"index": at, "id": f"c{at}", "type": "function", "function": {"name": "read", "arguments": ""}})
        for at in range(3)
    ]
    more = [
        calls({"index": at, "function": {"arguments": piece}})
        for piece in ('{"a"', ": ", "1}")
        for at in (2, 0, 1)
    ]  # fmt: skip
    both = calls({"index": 0, "function": {"arguments": " "}}, {"index": 2, "function": {"arguments": "\n"}})
    seen = observe(CHAT, sse(*begun, *more, both)).calls
    assert [call.arguments for call in seen] == ['{"a": 1} ', '{"a": 1}', '{"a": 1}\n']


def test_parallel_calls_of_messages_may_be_written_in_turns() -> None:
    def start(at: int) -> Any:
        block = {"type": "tool_use", "id": f"t{at}", "name": "read", "input": {}}
        return {"type": "content_block_start", "index": at, "content_block": block}

    def delta(at: int, piece: str) -> Any:
        return {
            "type": "content_block_delta",
            "index": at,
            "delta": {"type": "input_json_delta", "partial_json": piece},
        }

    written = [delta(at, piece) for piece in ('{"a"', ": 1}") for at in (1, 0)]
    for named in (True, False):
        seen = observe(MESSAGES, sse(start(0), start(1), *written, named=named)).calls
        assert [call.arguments for call in seen] == ['{"a": 1}', '{"a": 1}']


@given(replies(), st.sampled_from([CHAT, MESSAGES]), st.data())
def test_of_a_reply_that_was_cut_the_arguments_are_there_as_far_as_they_came(
    said: ScriptedReply, protocol: WireProtocol, data: st.DataObject
) -> None:
    events = reply_events(protocol.name, said, BODY)
    cut = data.draw(st.integers(0, len(events)))
    for seen, call in zip(observe(protocol, *events[:cut]).calls, said.calls, strict=False):
        assert call.arguments.startswith(seen.arguments)


def test_an_item_that_never_ended_has_the_arguments_that_it_began_with() -> None:
    added = {"type": "function_call", "id": "fc", "call_id": "c", "name": "read", "arguments": ""}
    more = {"type": "response.function_call_arguments.delta", "item_id": "fc", "output_index": 0, "delta": '{"a"'}
    seen = observe(RESPONSES, sse({"type": "response.output_item.added", "item": added}, more, named=True))
    assert seen.calls == (ObservedCall("c", "read", ""),)


def test_text_and_actions_of_tools_that_are_no_functions_are_noted() -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "*** Begin\n+é"},
        {"type": "local_shell_call", "call_id": "b", "action": {"command": ["ls"]}},
    ]
    done = [{"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(items)]
    assert [call.arguments for call in observe(RESPONSES, sse(*done, named=True)).calls] == [
        "*** Begin\n+é",
        '{"command":["ls"]}',
    ]


def test_an_input_that_comes_all_at_once_is_noted() -> None:
    block = {"type": "tool_use", "id": "t", "name": "read", "input": {"path": "é"}}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    assert observe(MESSAGES, sse(start, named=True)).calls == (ObservedCall("t", "read", '{"path":"é"}'),)


def test_a_legacy_call_has_its_arguments() -> None:
    pieces = [chunk({"function_call": held}) for held in ({"name": "read", "arguments": "{"}, {"arguments": "}"})]
    assert observe(CHAT, sse(*pieces)).calls == (ObservedCall("read", "read", "{}"),)


def test_a_server_that_gives_no_index_writes_to_the_call_at_the_same_place() -> None:
    pieces = [
        calls({"id": "a", "function": {"name": "read", "arguments": "{"}}),
        calls({"function": {"arguments": "}"}}),
    ]
    assert observe(CHAT, sse(*pieces)).calls == (ObservedCall("a", "read", "{}"),)


def test_calls_of_two_choices_are_two() -> None:
    def of(choice: int, call: dict[str, Any]) -> Any:
        return {
            "id": "x",
            "model": "m",
            "choices": [{"index": choice, "delta": {"tool_calls": [{"index": 0, **call}]}}],
        }

    begun = [of(at, {"id": f"c{at}", "function": {"name": "read", "arguments": ""}}) for at in (0, 1)]
    more = [of(at, {"function": {"arguments": f"[{at}]"}}) for at in (1, 0)]
    assert [call.arguments for call in observe(CHAT, sse(*begun, *more)).calls] == ["[0]", "[1]"]


def filled(protocol: WireProtocol, length: int) -> ScriptedReply:
    arguments = json.dumps({"a": "x" * (length - 8)}, separators=(",", ":"))
    assert len(arguments) == length
    return ScriptedReply(1, (ReplyCall("a", "write", arguments), ReplyCall("b", "read", "{}")), 1, 1)


@pytest.mark.parametrize("protocol", SSE_PROTOCOLS)
def test_arguments_are_noted_up_to_a_bound_and_beyond_it_not_at_all(protocol: WireProtocol) -> None:
    for length, noted in ((ARGUMENTS, ARGUMENTS), (ARGUMENTS + 1, 0), (5 * ARGUMENTS, 0)):
        said = filled(protocol, length)
        body = json.dumps(reply_document(protocol.name, said, BODY)).encode()
        for seen in (
            observe(protocol, *reply_events(protocol.name, said, BODY)),
            observe(protocol, body, stream=False),
        ):
            assert [len(call.arguments) for call in seen.calls] == [noted, 2]


@pytest.mark.parametrize("half", [b'"\\ud83d"', b'"\xff"', b'"a', b"5"])
def test_arguments_of_which_a_piece_cannot_be_read_are_not_noted_as_others(half: bytes) -> None:
    begin = calls({"index": 0, "id": "c", "function": {"name": "read", "arguments": '{"a": "'}})
    odd = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":%s}}]}}]}\n\n' % half
    end = calls({"index": 0, "function": {"arguments": '"}'}})
    seen = observe(CHAT, sse(*itertools.repeat(chunk({"content": "x"}), 9), begin), odd, sse(end)).calls
    assert [(call.call_id, call.name) for call in seen] == [("c", "read")]
    bare = calls({"index": 0, "id": "c", "function": {"name": "read"}})
    first = observe(CHAT, sse(*itertools.repeat(chunk({"content": "x"}), 9), bare), odd, sse(end)).calls
    assert first[0].arguments == ('"}' if half == b"5" else "")
    # A number is no piece of a text: nothing is missing.
    assert seen[0].arguments == ('{"a": ""}' if half == b"5" else "")
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "r"}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{"}}
    odd = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":%s}}\n\n'
    assert observe(MESSAGES, sse(start, delta), odd % half, sse(delta)).calls[0].arguments in ("", "{{")
