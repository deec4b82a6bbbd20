"""The shared parts of the tool loops: placeholders in arguments, usage over rounds, a client's copy."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.conversation import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from accordion.model.insertions import ToolRoundInsertion
from accordion.protocols.artifact_placeholders import (
    PlaceholderScanner,
    find_placeholders,
    json_text,
    replace_placeholders,
)
from accordion.protocols.json_values import from_json, to_json
from accordion.protocols.registry import ARTIFACT_TOOLS
from accordion.protocols.sse import split_events
from accordion.protocols.tool_loop import (
    ArtifactPlaceholder,
    count_client_copy,
    find_tool_names,
    is_same_text,
    legible_arguments,
    normalize_space,
    sum_round_usage,
)
from tests.reply_parts import ReplyCall, ReplyText, ReplyThought, ScriptedReply, reply_document

# -- artifacts in arguments ----------------------------------------------------------


def streamed(pieces: list[str], texts: dict[str, str | None]) -> tuple[str, PlaceholderScanner]:
    arguments, out = PlaceholderScanner(), ""
    for piece in pieces:
        out += arguments.feed(piece)
        while arguments.pending_placeholders:
            out += arguments.resolve([texts.get(wanted.artifact) for wanted in arguments.pending_placeholders])
    return out + arguments.finish(), arguments


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    return [text[one:other] for one, other in pairwise(places)]


KEYS = st.sampled_from(["a", "path", "$artifact", "content"])
STRINGS = st.sampled_from(["", "x", "{", '{"$artifact"', '{"$artifact": "art_1"}', '\\"', "é\n", "$.x", "}"])
NAMES = st.fixed_dictionaries(
    {"$artifact": st.sampled_from(["art_1", "art_2", "art_0"])}, optional={"path": st.sampled_from(["$.a", "", None])}
)
VALUES = st.recursive(
    STRINGS | NAMES | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
TEXTS = {"art_1": 'the "first"\n{"$artifact": "art_2"}', "art_2": "☃", "art_0": None}


def resolved(value: Any, top: bool = True) -> Any:
    """The same by way of the parsed value."""
    if isinstance(value, list):
        return [resolved(entry, False) for entry in value]
    if not isinstance(value, dict):
        return value
    named = not top and next(iter(value), "") == "$artifact" and value.keys() <= {"$artifact", "path"}
    if named and isinstance(value["$artifact"], str) and value["$artifact"]:
        path = value.get("path")
        if path is None or isinstance(path, str):
            text = TEXTS.get(value["$artifact"])
            return value if text is None else text
    return {name: resolved(held, False) for name, held in value.items()}


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.lists(st.integers(0, 500), max_size=12), st.sampled_from([0, 2]))
def test_placeholders_are_resolved_wherever_the_arguments_are_cut(
    value: dict[str, Any], cuts: list[int], indent: int
) -> None:
    text = json.dumps(value, indent=indent or None)
    out, _ = streamed(pieces_of(text, cuts), TEXTS)
    assert json.loads(out) == resolved(value)
    assert replace_placeholders(text, [TEXTS.get(wanted.artifact) for wanted in find_placeholders(text)]) == out


@given(st.text(alphabet='{}[]"$artifct:,\\ x', max_size=80), st.lists(st.integers(0, 80), max_size=8))
def test_arguments_that_are_no_json_lose_no_character(text: str, cuts: list[int]) -> None:
    out, arguments = streamed(pieces_of(text, cuts), {})
    assert out == text
    assert not arguments.resolved


def test_text_that_cannot_become_a_placeholder_passes_at_once() -> None:
    arguments = PlaceholderScanner()
    for piece in ('{"path"', ': "a{b', '", "c": {"d', '": {"$artifact": [', '1, {"$artifact_id": 2}], "e": {"$arc'):
        assert arguments.feed(piece) == piece
        assert arguments.is_idle


def test_text_that_may_become_a_placeholder_waits_with_all_behind_it() -> None:
    arguments = PlaceholderScanner()
    assert arguments.feed('{"text": {"$art') == '{"text": '
    assert arguments.feed('ifact": "art_1", "path": "$.a"') == ""
    assert not arguments.pending_placeholders
    assert arguments.feed('}, "more": {"$artifact":"art_2"}, "x": 1') == ""
    assert arguments.pending_placeholders == (ArtifactPlaceholder("art_1", "$.a"), ArtifactPlaceholder("art_2"))
    assert arguments.resolve(["one", None]) == '"one", "more": {"$artifact":"art_2"}, "x": 1'
    assert arguments.resolved
    assert arguments.feed("}") == "}"


def test_the_whole_of_the_arguments_is_never_a_name() -> None:
    assert not find_placeholders('{"$artifact": "art_1"}')
    assert not find_placeholders(' {"$artifact": "art_1", "path": "x"}')
    assert streamed(["{", '"$artifact"', ': "art_1"}'], TEXTS)[0] == '{"$artifact": "art_1"}'


@pytest.mark.parametrize(
    "value",
    [
        '{"$artifact": 1}',
        '{"$artifact": ""}',
        '{"$artifact": "art_1", "other": 1}',
        '{"$artifact": "art_1", "path": 3}',
        '{"$artifact": ["art_1"]}',
        '{"$artifact": "%s"}' % ("x" * 2000),
    ],
)  # fmt: skip
def test_text_that_resembles_a_placeholder_stays(value: str) -> None:
    out, arguments = streamed(list(f'{{"a": {value}}}'), {"art_1": "text", "x" * 2000: None})
    assert out == f'{{"a": {value}}}'
    assert not arguments.resolved


@pytest.mark.parametrize(("length", "named"), [(1024, True), (1025, False)])
@pytest.mark.parametrize("step", [1, 7, 5000])
def test_how_long_a_name_may_be_does_not_hang_on_how_the_arguments_come(length: int, named: bool, step: int) -> None:
    artifact = "x" * (length - len('{"$artifact": ""}'))
    text = f'{{"a": {{"$artifact": "{artifact}"}}}}'
    out, arguments = streamed([text[at : at + step] for at in range(0, len(text), step)], {artifact: "text"})
    assert out == replace_placeholders(text, ["text"]) == ('{"a": "text"}' if named else text)
    assert arguments.resolved == bool(find_placeholders(text)) == named


def test_half_characters_become_question_marks() -> None:
    assert json_text("a\ud83d") == '"a?"'


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


# -- responses that end early ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol_name", "finish"),
    [
        ("chat", "length"),
        ("responses", "max_output_tokens"),
        ("messages", "max_tokens"),
        ("gemini", "MAX_TOKENS"),
        ("converse", "max_tokens"),
    ],
)
def test_a_document_that_ends_early_shows_no_call_of_ours(protocol_name: str, finish: str) -> None:
    thought, text = ReplyThought("Hm.", "c2VhbA=="), ReplyText("I look.")
    theirs, ours = ReplyCall("theirs", "run", "{}"), ReplyCall("ours", "read_artifact", "{}")
    pieces = (text, theirs, thought, ours)
    document = reply_document(protocol_name, ScriptedReply(1, pieces, 100, 20, finish), {})
    response = ARTIFACT_TOOLS[protocol_name].open_response("read_artifact", False)
    response.feed(json.dumps(document).encode())
    observed_round = response.read_round()
    shown = response.close().decode()
    entries = b"".join(observed_round.entries).decode()
    assert "ours" not in entries
    if protocol_name not in ("chat", "gemini"):
        assert "c2VhbA" not in entries, "reasoning leads to nothing"
    assert (observed_round.finished, observed_round.client_call_ids) == (False, ("theirs",))
    assert "ours" not in shown
    assert "read_artifact" not in shown
    assert all(text in shown for text in ("I look.", "theirs", finish))
