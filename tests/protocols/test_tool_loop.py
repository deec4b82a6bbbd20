"""The shared parts of the tool loops: usage over rounds, a client's copy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.conversation import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.json_values import from_json, to_json
from accordion.protocols.registry import ARTIFACT_TOOLS, PROTOCOLS
from accordion.protocols.sse import split_events
from accordion.protocols.tool_loop import (
    count_client_copy,
    find_tool_names,
    is_same_text,
    legible_arguments,
    normalize_space,
    sum_round_usage,
)
from tests.reply_parts import ReplyCall, ReplyText, ReplyThought, ScriptedReply, reply_document, reply_events
from tests.response_recorder import RecordedResponse, find_problems
from tests.sample_responses import observe

# -- usage -----------------------------------------------------------------------------

CHAT = ("prompt_tokens", "completion_tokens", "completion_tokens_details", "total_tokens")


def test_usage_over_rounds_is_the_last_rounds_input_and_all_output() -> None:
    first = {
        "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 5, "audio_tokens": 0},
    }  # fmt: skip
    last = {
        "prompt_tokens": 150, "completion_tokens": 7, "total_tokens": 157, "queue_time": 0.5,
        "prompt_tokens_details": {"cached_tokens": 128},
        "completion_tokens_details": {"reasoning_tokens": 2, "audio_tokens": None, "accepted": None},
    }  # fmt: skip
    assert sum_round_usage([first, last], *CHAT) == {
        "prompt_tokens": 150,
        "completion_tokens": 27,
        "total_tokens": 177,
        "queue_time": 0.5,
        "prompt_tokens_details": {"cached_tokens": 128},
        "completion_tokens_details": {"reasoning_tokens": 7, "audio_tokens": 0, "accepted": None},
    }


def test_usage_of_one_round_stays_as_it_is() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": "many", "total_tokens": 9}
    assert sum_round_usage([usage], *CHAT) == usage


def test_usage_that_is_no_count_counts_nothing() -> None:
    summed = sum_round_usage([{"output_tokens": "x"}, {"input_tokens": 2, "output_tokens": 3}], "input_tokens",
                          "output_tokens", "output_tokens_details")  # fmt: skip
    assert summed == {"input_tokens": 2, "output_tokens": 3}


# -- a client's copy -----------------------------------------------------------------


def message(role: Role, *parts: Part) -> Message:
    return Message(b"", role, parts, b"{}")


def call(call_id: str) -> ToolCall:
    return ToolCall(call_id, "read", "{}")


USER = message("user", Text("go on"))


def build_insertion(*calls: str, text: str = "") -> ToolRoundInsertion:
    return ToolRoundInsertion(b"", (), calls, text, 0.0)


def test_a_copy_is_known_by_its_call_ids_whatever_became_of_the_text() -> None:
    copy = message("assistant", call("b"), call("a"))
    assert count_client_copy([copy, message("tool", ToolResult("b", ()))], build_insertion("a", "b", text="gone")) == 1
    assert count_client_copy([copy], build_insertion("a")) == 0
    assert count_client_copy([copy], build_insertion("a", "b", "c")) == 0
    assert count_client_copy([message("assistant", Text("gone"))], build_insertion("a", "b", text="gone")) == 0


def test_a_copy_may_be_several_entries() -> None:
    entries = [message("assistant", Text("I look.")), message("assistant", call("a")), message("assistant", call("b"))]
    assert count_client_copy([*entries, USER], build_insertion("a", "b", text="I look.")) == 3


def test_a_copy_without_calls_is_known_by_its_text() -> None:
    known = build_insertion(text=normalize_space(["I look.\n", "  It is 5."]))
    assert known.text == "I look. It is 5."
    assert count_client_copy([message("assistant", Text("I look.It is 5."))], known) == 1
    assert count_client_copy([message("assistant", Text("I look."), Text("It is 5."))], known) == 1
    assert (
        count_client_copy([message("assistant", Text("I look.")), message("assistant", Text("It is 5.")), USER], known)
        == 2
    )
    assert count_client_copy([message("assistant", Text("It is 5."))], known) == 0
    assert count_client_copy([message("assistant", Text("I look. It is 5."), call("a"))], known) == 0
    assert count_client_copy([USER], known) == 0
    assert count_client_copy([], known) == 0


def test_calls_that_the_provider_answers_itself_do_not_tell_a_copy() -> None:
    own = [call("srvtoolu_1"), call("mcptoolu_1"), call("z"), ToolResult("z", ())]
    assert count_client_copy([message("assistant", Text("said"), *own)], build_insertion(text="said")) == 1
    assert count_client_copy([message("assistant", *own, call("a"))], build_insertion("a")) == 1
    assert (
        count_client_copy(
            [message("assistant", call("z")), message("assistant", ToolResult("z", ()))], build_insertion()
        )
        == 2
    )
    # A server of another protocol may hand such a call to the client.
    assert count_client_copy([message("assistant", call("srvtoolu_1"))], build_insertion("srvtoolu_1")) == 1
    assert count_client_copy([message("assistant", call("a"))], build_insertion("a", "srvtoolu_1")) == 0


def test_another_reply_behind_a_copy_does_not_belong_to_it() -> None:
    entries = [
        message("assistant", Text("one")),
        message("assistant", Reasoning("hm")),
        message("assistant", call("z")),
    ]
    assert count_client_copy(entries, build_insertion(text="one")) == 2


def test_a_reply_that_showed_nothing_is_known_by_saying_nothing() -> None:
    assert count_client_copy([message("assistant"), USER], build_insertion()) == 1
    assert count_client_copy([message("assistant"), message("assistant", Text("one"))], build_insertion()) == 1
    assert count_client_copy([message("assistant", Text("one"))], build_insertion()) == 0
    assert count_client_copy([message("assistant", call("a"))], build_insertion()) == 0
    assert count_client_copy([USER], build_insertion()) == 0


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"id": "a"}', '{"id": "a"}'),
        (' {"id":"a"} ', ' {"id":"a"} '),
        ("", "{}"),
        (" ", "{}"),
        ('{"id": é', '{"INVALID_JSON": "{\\"id\\": é"}'),
        ("[1]", '{"INVALID_JSON": "[1]"}'),
        ("null", '{"INVALID_JSON": "null"}'),
    ],
)
def test_arguments_that_are_no_object_are_wrapped(arguments: str, sent: str) -> None:
    assert legible_arguments(arguments) == sent


def test_calls_without_an_id_tell_nothing() -> None:
    assert count_client_copy([message("assistant", Text("x"), call(""))], build_insertion(text="x")) == 1


def test_white_space_does_not_tell_texts_apart() -> None:
    assert is_same_text(" a b\n", "ab")
    assert not is_same_text("ab", "a c")


# -- bytes -----------------------------------------------------------------------------


@given(st.lists(st.sampled_from([b"data: x", b": c", b"\n", b"\r\n", b"\r", b"\n\n"]), max_size=12).map(b"".join))
def test_cutting_loses_no_byte(block: bytes) -> None:
    assert b"".join(split_events(block)) == block
    assert all(split_events(block))


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\n\n"])
def test_events_are_cut_at_their_ends(end: bytes) -> None:
    block = b"data: 1" + end + b"event: x\ndata: 2" + end
    assert [piece.strip() for piece in split_events(block) if piece.strip()] == [b"data: 1", b"event: x\ndata: 2"]


@pytest.mark.parametrize("raw", ['{"a":1.0,"b":[1e300]}', '{"a":"\\ud83d"}', '{"a":1%s}' % ("0" * 40)])
def test_what_providers_send_can_be_written_again(raw: str) -> None:
    again = to_json(from_json(raw.encode()))
    assert repr(json.loads(again)) == repr(json.loads(raw))


def test_what_is_no_number_becomes_null() -> None:
    assert to_json(from_json(b'{"a":NaN}')) == b'{"a":null}'


def test_json_that_is_nested_too_deeply_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        from_json(b"[" * 100_000)


def test_names_are_found_along_a_path() -> None:
    tools = [{"function": {"name": "a"}}, {"custom": {"name": "b"}}, {"function": {"name": 3}}, "x", None]
    assert find_tool_names(tools, "function", "name") == {"a"}
    assert find_tool_names([{"name": "c"}], "name") == {"c"}


# -- any rounds --------------------------------------------------------------------------------

WORDS = st.text(st.sampled_from('ab {}"\\\n é😀'), min_size=1, max_size=20).filter(str.strip)
SAID = st.lists(st.builds(ReplyText, WORDS) | st.builds(ReplyThought, WORDS, st.just("c2VhbA==")), max_size=3)
CALLS = st.lists(st.sampled_from(["run", "read_artifact"]), max_size=3)


@st.composite
def replies(draw: st.DrawFn) -> list[ScriptedReply]:
    """The rounds of one response. All but the last call our tool and none of the client's."""
    rounds = []
    for number in range(count := draw(st.integers(1, 3))):
        names = draw(CALLS) if number == count - 1 else ["read_artifact"]
        calls = [
            ReplyCall(
                f"{'hidden' if name == 'read_artifact' else 'theirs'}_{number}{at}",
                name,
                json.dumps({"id": f"secret {draw(WORDS)}"} if name == "read_artifact" else {"text": draw(WORDS)}),
            )
            for at, name in enumerate(names)
        ]
        pieces = (*draw(SAID), ReplyText(draw(WORDS)), *calls)
        rounds.append(ScriptedReply(number + 1, pieces, 100 + number, 20))
    return rounds


def run_rounds(protocol_name: str, rounds: Sequence[Sequence[bytes]], *, stream: bool) -> tuple[bytes, Any]:
    """What the client gets of these rounds, each in blocks, and the rounds as they were observed."""
    response, out, observed = ARTIFACT_TOOLS[protocol_name].open_response("read_artifact", stream), b"", []
    for number, blocks in enumerate(rounds):
        if number:
            response.continue_response()
        out += b"".join(map(response.feed, blocks))
        observed.append(response.read_round())
    return out + response.close(), observed


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("protocol_name", ARTIFACT_TOOLS)
@given(rounds=replies(), size=st.integers(2, 9), end=st.sampled_from([b"\n", b"\r\n"]))
def test_any_rounds_cut_anywhere_are_one_response_without_a_call_of_ours(
    protocol_name: str, stream: bool, rounds: list[ScriptedReply], size: int, end: bytes
) -> None:
    body: dict[str, Any] = {"stream_options": {"include_usage": True}}
    if stream:
        events = [[b": a comment\n\n", *reply_events(protocol_name, each, body)] for each in rounds]
        blocks = [[event.replace(b"\n", end) for event in each] for each in events]
    else:
        documents = [json.dumps(reply_document(protocol_name, each, body)).encode() for each in rounds]
        blocks = [[each[at : at + 50] for at in range(0, len(each), 50)] for each in documents]
    out, observed = run_rounds(protocol_name, blocks, stream=stream)
    larger = [[b"".join(each[at : at + size]) for at in range(0, len(each), size)] for each in blocks]
    assert run_rounds(protocol_name, larger, stream=stream) == (out, observed)
    assert not any(word in out for word in (b"read_artifact", b"hidden_", b"secret"))
    if protocol_name != "converse":
        assert [*find_problems(protocol_name, RecordedResponse(stream, 200, bytearray(out)))] == []
    theirs = [(call.id, call.name) for each in rounds for call in each.calls if call.name == "run"]
    shown = observe(PROTOCOLS[protocol_name], out, stream=stream)
    assert [(call.call_id, call.name) for call in shown.calls] == theirs
    assert shown.usage is not None
    assert (shown.usage.input, shown.usage.output) == (rounds[-1].input, 20 * len(rounds))
    for each, seen in zip(rounds, observed, strict=True):
        own = [(call.id, json.loads(call.arguments)) for call in each.calls if call.name == "read_artifact"]
        assert [(call.call_id, json.loads(call.arguments)) for call in seen.own_calls] == own
        assert list(seen.client_call_ids) == [call.id for call in each.calls if call.name == "run"]
        assert (seen.finished, normalize_space(seen.text)) == (True, normalize_space(each.text))
    if not any(call.name == "read_artifact" for each in rounds for call in each.calls):
        assert out == b"".join(blocks[0])


SSE_NAMES = [name for name in ARTIFACT_TOOLS if name != "converse"]
"""Converse's streams are frames, which are read when they are whole."""
READS = ScriptedReply(1, (ReplyText("I look."), ReplyCall("hidden_0", "read_artifact", '{"id": "secret"}')), 100, 20)


@pytest.mark.parametrize("protocol_name", SSE_NAMES)
def test_a_stream_that_breaks_off_anywhere_shows_nothing_of_our_call(protocol_name: str) -> None:
    stream = b"".join(reply_events(protocol_name, READS, {}))
    for end in range(len(stream) - 1):
        out, [observed] = run_rounds(protocol_name, [[stream[:end]]], stream=True)
        assert not any(word in out for word in (b"read_artifact", b"hidden_0", b"secret"))
        assert observed.finished or b"hidden_0" not in b"".join(observed.entries)


@pytest.mark.parametrize("protocol_name", SSE_NAMES)
def test_a_last_event_without_its_empty_line_is_heard(protocol_name: str) -> None:
    streams = [
        b"".join(reply_events(protocol_name, each, {})) for each in (READS, ScriptedReply(2, READS.pieces[:1], 1, 1))
    ]
    whole, rounds = run_rounds(protocol_name, [[stream] for stream in streams], stream=True)
    out, observed = run_rounds(protocol_name, [[stream.rstrip(b"\n")] for stream in streams], stream=True)
    assert observed == rounds
    assert out.rstrip(b"\n") == whole.rstrip(b"\n")


# -- documents -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", ARTIFACT_TOOLS)
@pytest.mark.parametrize(
    "raw",
    [
        b'{"error": {"message": "no"}}',
        b'{"type": "error", "error": {"message": "no"}}',
        b'{"choices": [3]}',
        b'{"content": [3]}',
        b'{"candidates": [3]}',
        b"<html>",
        b"[]",
        b"{}",
        b"",
    ],
)
def test_a_document_of_another_kind_passes_as_it_came(protocol_name: str, raw: bytes) -> None:
    out, [observed] = run_rounds(protocol_name, [[raw]], stream=False)
    assert (out, observed.finished) == (raw, False)


@pytest.mark.parametrize("protocol_name", ARTIFACT_TOOLS)
def test_nothing_of_a_document_passes_before_it_is_whole(protocol_name: str) -> None:
    raw = json.dumps(reply_document(protocol_name, ScriptedReply(1, (ReplyText("{x}"),), 100, 20), {})).encode()
    response = ARTIFACT_TOOLS[protocol_name].open_response("read_artifact", False)
    for at in range(0, len(raw), 7):
        assert not response.is_round_over
        assert response.feed(raw[at : at + 7]) == b""
    assert response.is_round_over
    assert response.close() == raw


@pytest.mark.parametrize("protocol_name", ARTIFACT_TOOLS)
def test_without_a_next_document_the_response_is_what_there_is(protocol_name: str) -> None:
    raw = json.dumps(reply_document(protocol_name, READS, {})).encode()
    out, [first, last] = run_rounds(protocol_name, [[raw], []], stream=False)
    assert (len(first.own_calls), last.finished) == (1, False)
    shown = observe(PROTOCOLS[protocol_name], out, stream=False)
    assert b"I look." in out
    assert (shown.calls, shown.finish) == ((), ENDINGS[protocol_name])


ENDINGS = {"chat": "stop", "responses": "completed", "messages": "end_turn", "gemini": "STOP", "converse": "end_turn"}


# -- responses that end early ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol_name", "finish"),
    [
        ("chat", "length"),
        ("chat", "content_filter"),
        ("responses", "max_output_tokens"),
        ("responses", "content_filter"),
        ("messages", "max_tokens"),
        ("messages", "pause_turn"),
        ("messages", "refusal"),
        ("messages", "model_context_window_exceeded"),
        ("messages", "a new one"),
        ("gemini", "MAX_TOKENS"),
        ("gemini", "SAFETY"),
        ("converse", "max_tokens"),
        ("converse", "guardrail_intervened"),
    ],
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_response_that_ends_early_shows_no_call_of_ours(protocol_name: str, finish: str, stream: bool) -> None:
    thought, text = ReplyThought("Hm.", "c2VhbA=="), ReplyText("I look.")
    theirs, ours = ReplyCall("theirs", "run", "{}"), ReplyCall("ours", "read_artifact", "{}")
    said = ScriptedReply(1, (text, theirs, thought, ours), 100, 20, finish)
    document = json.dumps(reply_document(protocol_name, said, {})).encode()
    blocks = reply_events(protocol_name, said, {}) if stream else [document]
    out, [observed] = run_rounds(protocol_name, [blocks], stream=stream)
    shown, entries = out.decode(), b"".join(observed.entries).decode()
    assert "ours" not in entries
    if protocol_name not in ("chat", "gemini"):
        assert "c2VhbA" not in entries, "reasoning leads to nothing"
    assert (observed.finished, observed.client_call_ids) == (False, ("theirs",))
    assert "ours" not in shown
    assert "read_artifact" not in shown
    assert all(text in shown for text in ("theirs", finish))


@pytest.mark.parametrize("protocol_name", ARTIFACT_TOOLS)
def test_the_arguments_of_a_clients_call_pass_at_once_and_unchanged(protocol_name: str) -> None:
    arguments = json.dumps({"text": {"$artifact": "art_0123456789ab"}, "more": 'a \\ "b" {'})
    said = ScriptedReply(1, (ReplyText("I look."), ReplyCall("theirs", "write", arguments)), 100, 20)
    response = ARTIFACT_TOOLS[protocol_name].open_response("read_artifact", True)
    for event in reply_events(protocol_name, said, {}):
        out = response.feed(event)
        assert out == (b"" if response.is_round_over else event)
    assert response.read_round().client_call_ids == ("theirs",)
