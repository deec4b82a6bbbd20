"""Our tool in Anthropic's requests: offered, answered, and the record put in the place of the client's copy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.insertions import ToolRound, ToolRoundInsertion
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages, MessagesArtifactTool
from accordion.protocols.legality import find_messages_problems
from accordion.protocols.tool_loop import ArtifactToolResult, ToolDefinition
from tests.protocols.edit_samples import message
from tests.protocols.messages_streams import OURS, TOOL, call, hosted, text, thought

TOOL_PROTOCOL = MessagesArtifactTool()
OFFER = ToolDefinition(TOOL, "Reads.", b'{"type":"object"}')
DEFINED = {"name": TOOL, "description": "Reads.", "input_schema": {"type": "object"}}
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
THEIRS = call("theirs", {"a": 1})
RESULT = {"type": "tool_result", "tool_use_id": "toolu_theirs", "content": "r"}
ANSWER = {"type": "tool_result", "tool_use_id": "toolu_ours", "content": "read"}
HOSTED = [hosted(), {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}]


def fields(**values: Any) -> Mapping[str, bytes]:
    return {name: json.dumps(value).encode() for name, value in values.items()}


def test_the_next_request_names_the_container_in_which_code_ran() -> None:
    asked = fields(model="m", tools=[])
    assert TOOL_PROTOCOL.continuation_fields(asked, "") == asked
    assert TOOL_PROTOCOL.continuation_fields(asked, "c_1") == {**asked, "container": b'"c_1"'}
    skills = {"skills": [{"type": "anthropic", "skill_id": "xlsx", "version": "latest"}]}
    told = TOOL_PROTOCOL.continuation_fields(fields(container=skills), "c_1")
    assert json.loads(told["container"]) == {**skills, "id": "c_1"}
    assert json.loads(TOOL_PROTOCOL.continuation_fields(fields(container="c_0"), "c_1")["container"]) == "c_1"


def assistant(*blocks: Any) -> Any:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Any) -> Any:
    return {"role": "user", "content": list(blocks)}


def wire(entry: Any) -> bytes:
    return json.dumps(entry).encode()


def build_insertion(*rounds: Any, calls: Sequence[str] = (), text: str = "") -> ToolRoundInsertion:
    """A weave of rounds; each is what was said, answered by `ANSWER` where it holds our call."""
    made = []
    for said in rounds:
        answered = (
            TOOL_PROTOCOL.render_results([ArtifactToolResult("toolu_ours", "read")], "read_artifact")
            if OURS in said["content"]
            else ()
        )
        made.append(ToolRound((wire(said),), answered))
    return ToolRoundInsertion(b"", tuple(made), tuple(calls), text, 0.0)


def insert(listed: Sequence[Any], record: ToolRoundInsertion) -> tuple[int, list[Any]] | None:
    found = TOOL_PROTOCOL.insert_rounds([message(AnthropicMessages(), entry) for entry in listed], record, {})
    return None if found is None else (found[0], [json.loads(entry) for entry in found[1]])


# -- the tool -----------------------------------------------------------------------


def test_the_tool_stands_behind_the_clients_whose_bytes_stay() -> None:
    raw = b'[ {"name": "a", "cache_control":{"type":"ephemeral"}} ,{"type":"web_search_20260101"}\n]'
    told = TOOL_PROTOCOL.offer({"tools": raw, **fields(tool_choice={"type": "none"})}, OFFER)
    assert told is not None
    assert list(told) == ["tools"]
    assert told["tools"].startswith(raw.rstrip(b"\n]"))
    assert json.loads(told["tools"]) == [*json.loads(raw), DEFINED]


FORM = {"type": "json_schema", "schema": {}}


@pytest.mark.parametrize(
    ("given_fields", "offered"),
    [
        ({}, True),
        ({"tools": []}, True),
        ({"tools": None, "tool_choice": None}, True),
        ({"output_config": {"effort": "low"}}, True),
        ({"output_config": {"format": FORM}}, False),
        ({"output_format": FORM}, False),
        ({"output_format": FORM, "tools": [{"name": "a"}]}, True),
        ({"tool_choice": {"type": "auto"}}, True),
        ({"tool_choice": {"type": "any"}}, False),
        ({"tool_choice": {"type": "none"}, "tools": []}, False),
        ({"tools": {"name": "a"}}, False),
    ],
)
def test_the_tool_is_offered_where_it_can_be(given_fields: Any, offered: bool) -> None:
    told = TOOL_PROTOCOL.offer(fields(**given_fields), OFFER)
    assert (told is not None) is offered
    if told is not None:
        assert json.loads(told["tools"]) == [*(given_fields.get("tools") or []), DEFINED]


def test_names_are_those_of_all_tools() -> None:
    assert TOOL_PROTOCOL.tool_names(
        fields(tools=[{"name": "a"}, {"type": "x", "name": "b"}, {"type": "mcp_toolset"}])
    ) == {
        "a",
        "b",
    }
    assert TOOL_PROTOCOL.tool_names({}) == frozenset()


def test_the_last_request_leaves_the_clients_tools_or_forbids_all() -> None:
    two, none = fields(tools=[{"name": "a"}, DEFINED]), {"type": "none"}
    assert {name: json.loads(v) for name, v in TOOL_PROTOCOL.final_fields(two).items()} == {"tools": [{"name": "a"}]}
    off = TOOL_PROTOCOL.final_fields({**two, **fields(thinking={"type": "disabled"})})
    assert list(off) == ["tools"]
    for envelope in (fields(tools=[DEFINED]), {**two, **fields(thinking={"type": "adaptive"})}):
        assert {name: json.loads(v) for name, v in TOOL_PROTOCOL.final_fields(envelope).items()} == {
            "tool_choice": none
        }


def test_answers_are_one_message_of_results() -> None:
    (entry,) = TOOL_PROTOCOL.render_results(
        [ArtifactToolResult("a", "one"), ArtifactToolResult("b", "two", error=True)], "read_artifact"
    )
    assert json.loads(entry) == user(
        {"type": "tool_result", "tool_use_id": "a", "content": "one"},
        {"type": "tool_result", "tool_use_id": "b", "content": "two", "is_error": True},
    )
    assert TOOL_PROTOCOL.render_results([], "read_artifact") == ()


# -- the record in the place of the copy -----------------------------------------------

FIRST = assistant(thought("hm"), text("Let me see."), OURS)
LAST = assistant(thought("so"), text("It is 7."))
READ = build_insertion(FIRST, LAST, text="Let me see. It is 7.")
ROUNDS = [FIRST, user(ANSWER), LAST]
NEXT = user(text("and?"))


@pytest.mark.parametrize(
    "copy",
    [
        [assistant(thought("hm"), text("Let me see."), thought("so"), text("It is 7."))],
        [assistant(text("Let me see."), text("It is 7."))],
        [{"role": "assistant", "content": "Let me see.It is 7."}],
        [{"role": "assistant", "content": "Let me see.\n\nIt is 7.\n"}],
        [assistant(text("Let me see.")), assistant(text("It is 7."))],
    ],
)
def test_a_copy_of_any_shape_becomes_the_rounds(copy: Any) -> None:
    assert insert([*copy, NEXT], READ) == (len(copy), ROUNDS)
    assert insert(copy, READ) == (len(copy), ROUNDS)
    assert not find_messages_problems([message(AnthropicMessages(), entry) for entry in [NEXT, *ROUNDS, NEXT]])


@pytest.mark.parametrize(
    "listed", [[], [NEXT], [assistant(text("It is 8.")), NEXT], [assistant(text("Let me see. It is 7."), THEIRS)]]
)
def test_another_reply_is_left_alone(listed: Any) -> None:
    assert insert(listed, READ) is None


MIXED = assistant(thought("hm"), OURS, text("And this."), THEIRS)


@pytest.mark.parametrize("copy", [[assistant(text("And this."), THEIRS)], [assistant(text("x")), assistant(THEIRS)]])
@pytest.mark.parametrize("behind", [[RESULT], [RESULT, text("go on")], [RESULT | MARK]])
def test_our_result_comes_first_in_what_the_user_says_next(copy: Any, behind: Any) -> None:
    record = build_insertion(MIXED, calls=["toolu_theirs"])
    listed = [*copy, user(*behind), LAST]
    assert insert(listed, record) == (len(copy) + 1, [MIXED, user(ANSWER, *behind)])
    assert not find_messages_problems(
        [message(AnthropicMessages(), e) for e in [NEXT, MIXED, user(ANSWER, *behind), LAST]]
    )
    assert insert(copy, record) is None
    assert insert([*copy, LAST], record) is None


def test_the_users_other_bytes_stay() -> None:
    odd = b'{"role":"user","content":[ {"type":"tool_result",  "tool_use_id":"toolu_theirs","content":"\\u0041"} ]}'
    listed = [message(AnthropicMessages(), assistant(THEIRS)), message(AnthropicMessages(), odd)]
    found = TOOL_PROTOCOL.insert_rounds(listed, build_insertion(MIXED, calls=["toolu_theirs"]), {})
    assert found is not None
    assert odd[odd.index(b"[") + 1 :] in found[1][1]
    split = [assistant(THEIRS), {"role": "user", "content": "go on"}]
    told = insert(split, build_insertion(MIXED, calls=["toolu_theirs"]))
    assert told == (2, [MIXED, user(ANSWER, text("go on"))])


def test_calls_of_the_providers_own_tools_do_not_hide_the_reply() -> None:
    last = assistant(*HOSTED, text("It is 7."))
    record = build_insertion(FIRST, last, text="Let me see. It is 7.")
    assert insert([assistant(text("Let me see."), *HOSTED, text("It is 7."))], record) == (
        1,
        [FIRST, user(ANSWER), last],
    )
    last = assistant(HOSTED[0], {"type": "mcp_tool_use", "id": "m", "input": {}},
                     {"type": "mcp_tool_result", "tool_use_id": "m"}, text("It is 7."))  # fmt: skip
    record = build_insertion(FIRST, last, text="Let me see. It is 7.")
    copy = assistant(text("Let me see."), *last["content"])
    assert insert([copy], record) == (1, [FIRST, user(ANSWER), last])
    mixed = assistant(*HOSTED, OURS, THEIRS)
    told = insert([assistant(*HOSTED, THEIRS), user(RESULT)], build_insertion(mixed, calls=["toolu_theirs"]))
    assert told == (2, [mixed, user(ANSWER, RESULT)])


def test_the_clients_breakpoint_moves_to_the_last_block_that_may_carry_one() -> None:
    told = insert([assistant(text("Let me see."), text("It is 7.") | MARK)], READ)
    assert told == (1, [FIRST, user(ANSWER), assistant(thought("so"), text("It is 7.") | MARK)])
    told = insert([assistant(THEIRS | MARK), user(RESULT)], build_insertion(MIXED, calls=["toolu_theirs"]))
    assert told == (2, [assistant(*MIXED["content"][:-1], THEIRS | MARK), user(ANSWER, RESULT)])
    silent = ToolRoundInsertion(b"", (build_insertion(FIRST).rounds[0], ToolRound(())), (), "Let me see.", 0.0)
    told = insert([assistant(text("Let me see.") | MARK), NEXT], silent)
    assert told == (1, [FIRST, user(ANSWER | MARK)])
    thinks = build_insertion(assistant(text("a"), OURS), assistant(text("b"), thought("x")), text="a b")
    told = insert([assistant(text("a"), text("b") | MARK)], thinks)
    assert told is not None
    assert told[1][-1] == assistant(text("b") | MARK, thought("x"))


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_rounds_of_any_text_are_known_again_and_the_same_every_time(words: Any, joined: bool, mixed: bool) -> None:
    said = [assistant(text(word), OURS | {"input": {"n": at}}) for at, word in enumerate(words)]
    rounds = [
        ToolRound(
            (wire(each),), TOOL_PROTOCOL.render_results([ArtifactToolResult("toolu_ours", "read")], "read_artifact")
        )
        for each in said
    ]
    last = assistant(text("end"), OURS, THEIRS) if mixed else assistant(text("end"))
    rounds.append(ToolRound((wire(last),), rounds[0].results if mixed else ()))
    calls = ("toolu_theirs",) if mixed else ()
    record = ToolRoundInsertion(b"", tuple(rounds), calls, " ".join(" ".join([*words, "end"]).split()), 0.0)
    shown = [text("".join([*words, "end"]))] if joined else [text(word) for word in [*words, "end"]]
    copy = [assistant(*shown, *([THEIRS] if mixed else [])), user(*([RESULT] if mixed else [text("next")]))]
    entries = [message(AnthropicMessages(), entry) for entry in copy]
    found = TOOL_PROTOCOL.insert_rounds(entries, record, {})
    assert found is not None
    assert found == TOOL_PROTOCOL.insert_rounds(entries, record, {})
    assert found[0] == (2 if mixed else 1)
    whole = [NEXT, *[json.loads(entry) for entry in found[1]], *copy[found[0] :]]
    assert not find_messages_problems([message(AnthropicMessages(), entry) for entry in whole])
