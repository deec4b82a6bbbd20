"""Problems that a provider would refuse: legal histories have none, and each fault is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.conversation import Message, ToolCall, ToolResult
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from tests.histories import PROTOCOL_NAMES, ProtocolName, body, entries, histories
from tests.protocols.edit_samples import SPOKEN, message, write_message

TENANT = TenantScope("t", b"t" * 32)

protocol_names = pytest.mark.parametrize("name", PROTOCOL_NAMES)


def problems(name: ProtocolName, *listed: Any) -> list[str]:
    return SPOKEN[name].find_problems([message(SPOKEN[name], entry) for entry in listed])


def read(name: ProtocolName, request: Any) -> tuple[Message, ...]:
    return BodyReader().read(SPOKEN[name], json.dumps(request).encode(), TENANT).messages


@protocol_names
@given(histories())
def test_a_legal_history_has_no_problems(name: ProtocolName, history: Any) -> None:
    assert SPOKEN[name].find_problems(read(name, body(history, name))) == []


@protocol_names
@given(histories(), st.data())
def test_a_result_or_a_call_that_was_taken_out_is_named(name: ProtocolName, history: Any, data: st.DataObject) -> None:
    messages = list(read(name, body(history, name)))
    pairs = [
        (at, index, part)
        for at, held in enumerate(messages)
        for index, part in enumerate(held.parts)
        # Calls of the provider's own leave with their results.
        if isinstance(part, ToolCall | ToolResult) and "mcpr" not in part.call_id
    ]
    if not pairs:
        return
    at, index, part = data.draw(st.sampled_from(pairs))
    edited = SPOKEN[name].edit_message(messages[at], {index: None})
    messages[at : at + 1] = [] if edited is None else [message(SPOKEN[name], edited)]
    kind = "The call" if isinstance(part, ToolResult) else "The result of the call"
    found = SPOKEN[name].find_problems(messages)
    named = [problem for problem in found if problem.startswith(f"{kind} {part.call_id} ")]
    # Calls that end the list wait for their results: that is no fault.
    assert named or _ends_in(messages, part.call_id)


def _ends_in(messages: list[Message], call_id: str) -> bool:
    """Whether nothing but the model's own words and calls stands behind the call."""
    for held in reversed(messages):
        if held.role != "assistant":
            return False
        if any(isinstance(part, ToolCall) and part.call_id == call_id for part in held.parts):
            return True
    return False


@protocol_names
def test_an_empty_list_has_no_problems(name: ProtocolName) -> None:
    assert problems(name) == []


USER = {"role": "user", "content": "a"}
SAID = {"role": "assistant", "content": "b"}


@protocol_names
def test_a_list_that_the_assistant_begins_is_named(name: ProtocolName) -> None:
    user, model = write_message(name, "user", "a"), write_message(name, "assistant", "b")
    assert problems(name, model, user) == ["The list does not begin with the user."]
    if name != "gemini":
        assert problems(name, write_message(name, "system", "s"), user, model) == []


@protocol_names
def test_problems_are_the_same_wherever_in_the_list_they_stand(name: ProtocolName) -> None:
    faults = {"chat": chat_result("c"), "messages": result("c"), "responses": output("c"), "gemini": responds("c")}
    faults["converse"] = {"role": "user", "content": [{"toolResult": {"toolUseId": "c", "content": []}}]}
    stray = "The result of the call c answers no call before it."
    pair, fault = [write_message(name, "user", "a"), write_message(name, "assistant", "b")], faults[name]
    assert problems(name, *pair, fault) == problems(name, *pair * 3, fault) == [stray]


# -- Chat Completions ----------------------------------------------------------------


def chat_calls(*ids: str) -> Any:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def chat_result(call_id: str) -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": "r"}


CHAT_FAULTS: list[tuple[list[Any], list[str]]] = [
    ([chat_calls("a")], []),
    ([chat_calls("a", "b"), chat_result("b"), chat_result("a")], []),
    ([chat_calls("a"), chat_result("a"), chat_calls("a"), chat_result("a")], []),
    ([chat_calls("a", "a"), chat_result("a"), chat_result("a")], []),
    ([chat_calls("a", "a"), chat_result("a")], ["The call a is not answered."]),
    ([chat_calls("a", "b"), chat_result("b")], ["The call a is not answered."]),
    ([chat_calls("a"), USER], ["The call a is not answered."]),
    ([chat_calls("a"), chat_calls("b"), chat_result("b")], ["The call a is not answered."]),
    (
        [chat_calls("a"), chat_result("a"), chat_result("a")],
        ["The result of the call a answers no call before it."],
    ),
    (
        [chat_calls("a"), USER, chat_result("a")],
        ["The call a is not answered.", "The result of the call a answers no call before it."],
    ),
    (
        [chat_calls("a"), chat_result("a"), SAID, chat_result("a")],
        ["The result of the call a answers no call before it."],
    ),
    ([{"role": "assistant", "content": None}, USER], ["A message of the assistant says nothing."]),
    ([{"role": "assistant", "content": "", "reasoning": "hm"}], ["A message of the assistant says nothing."]),
    ([{"role": "oracle", "content": "a"}, USER], ["A message has no role that is known."]),
    ([{"role": "system", "content": "s"}, USER], []),
]


@pytest.mark.parametrize(("listed", "found"), CHAT_FAULTS)
def test_faults_of_chat_completions(listed: list[Any], found: list[str]) -> None:
    assert problems("chat", USER, *listed) == found


# -- Messages -----------------------------------------------------------------------


def uses(*ids: str, **last: Any) -> Any:
    blocks: list[Any] = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
    return {"role": "assistant", "content": [*blocks, last] if last else blocks}


def result(*ids: str, said: str = "") -> Any:
    blocks: list[Any] = [{"type": "tool_result", "tool_use_id": i, "content": "r"} for i in ids]
    return {"role": "user", "content": [*blocks, {"type": "text", "text": said}] if said else blocks}


TEXT = {"type": "text", "text": "a"}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
RUN = {"type": "server_tool_use", "id": "own_1", "name": "code_execution", "input": {}}
RAN = {"type": "code_execution_tool_result", "tool_use_id": "own_1", "content": {"type": "code_execution_result"}}

MESSAGES_FAULTS: list[tuple[list[Any], list[str]]] = [
    ([uses("a")], []),
    ([uses("a", "b"), result("b", "a", said="and")], []),
    ([uses("a"), result("a"), uses("a"), result("a")], []),
    ([uses("a", "b"), result("a"), result("b")], []),
    ([uses("a", "b"), result("b")], ["The call a is not answered."]),
    ([uses("a"), USER, SAID], ["The call a is not answered."]),
    ([uses("a"), SAID], ["The call a is not answered."]),
    (
        [uses("a"), {"role": "user", "content": [TEXT, *result("a")["content"]]}],
        ["The result of the call a does not come first in its message."],
    ),
    ([uses("a"), USER, result("a")], ["The result of the call a does not come first in its message."]),
    ([uses("a"), result("a"), result("a")], ["The result of the call a answers no call before it."]),
    (
        [uses("a"), SAID, result("a")],
        ["The call a is not answered.", "The result of the call a answers no call before it."],
    ),
    ([{"role": "assistant", "content": [SEARCH, FOUND, TEXT]}, USER], []),
    ([{"role": "assistant", "content": [RUN, RAN, TEXT]}, USER], []),
    ([{"role": "assistant", "content": [SEARCH]}, {"role": "assistant", "content": [FOUND, TEXT]}], []),
    (
        [{"role": "assistant", "content": [FOUND, TEXT]}],
        ["The result of the call srvtoolu_1 answers no call before it."],
    ),
    ([{"role": "assistant", "content": []}, USER], ["A message of the assistant says nothing."]),
    ([{"role": "assistant", "content": ""}], []),
    ([SAID, {"role": "user", "content": []}], ["A message of the user is empty."]),
    ([SAID, {"role": "user", "content": " \n"}], ["A block of text holds only white space."]),
    ([{"role": "assistant", "content": " "}, USER], ["A block of text holds only white space."]),
    (
        [{"role": "assistant", "content": [TEXT, {"type": "thinking", "thinking": "hm", "signature": "s"}]}, USER],
        ["A message of the assistant ends in thinking."],
    ),
    ([{"role": "tool", "content": "a"}], ["A message has no role that is known."]),
    ([SAID, {"role": "system", "content": "s"}, USER], []),
    ([USER, USER], []),
]


@pytest.mark.parametrize(("listed", "found"), MESSAGES_FAULTS)
def test_faults_of_messages(listed: list[Any], found: list[str]) -> None:
    assert problems("messages", USER, *listed) == found


# -- Responses ----------------------------------------------------------------------


def call(call_id: str) -> Any:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": "r"}


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "s"}
HOSTED = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
ASKS = {"type": "mcp_approval_request", "id": "m", "name": "n", "server_label": "s", "arguments": "{}"}
ALLOWS = {"type": "mcp_approval_response", "approval_request_id": "m", "approve": True}
DENIES = ALLOWS | {"approve": False}
APPROVED = {**ASKS, "type": "mcp_call", "id": "c", "output": "done", "approval_request_id": "m"}
TRIGGER = {"type": "compaction_trigger"}

RESPONSES_FAULTS: list[tuple[list[Any], list[str]]] = [
    ([call("a")], []),
    ([call("a"), call("b"), SAID], []),
    ([call("a"), call("b"), output("b"), output("a")], []),
    ([call("a"), output("a"), call("b"), output("b"), SAID], []),
    ([call("a"), call("b"), output("a"), call("c"), output("c"), output("b")], []),
    ([call("a"), output("a"), call("a"), output("a")], []),
    ([ASKS, ALLOWS], []),
    ([ASKS, DENIES, SAID], []),
    ([ASKS, ALLOWS, APPROVED, APPROVED | {"id": "d"}, SAID], []),
    ([ASKS, ALLOWS, SAID], ["The approval m led to no call."]),
    ([APPROVED, SAID], ["The approval m of a call is missing."]),
    ([HOSTED, USER], []),
    ([call("a"), call("b"), output("a")], ["The call b is not answered."]),
    ([call("a"), USER], ["The call a is not answered."]),
    ([call("a"), output("a"), output("a")], ["The result of the call a answers no call before it."]),
    (
        [output("a"), call("a"), USER],
        ["The result of the call a answers no call before it.", "The call a is not answered."],
    ),
    ([THOUGHT, call("a"), output("a")], []),
    ([THOUGHT, THOUGHT, SAID], []),
    ([THOUGHT, HOSTED], []),
    ([THOUGHT, {"type": "item_reference", "id": "msg_1"}], []),
    ([THOUGHT, USER], ["A reasoning item is not followed by what it led to."]),
    ([call("a"), THOUGHT, output("a")], ["A reasoning item is not followed by what it led to."]),
    ([SAID, THOUGHT], ["A reasoning item is not followed by what it led to."]),
    ([{"type": "message", "role": "assistant", "content": []}], ["A message of the assistant says nothing."]),
    ([TRIGGER], []),
    ([TRIGGER, USER], ["A compaction trigger is not the last item."]),
    ([{"type": "hologram"}, {"type": "compaction", "encrypted_content": "s"}], []),
]


@pytest.mark.parametrize(("listed", "found"), RESPONSES_FAULTS)
def test_faults_of_responses(listed: list[Any], found: list[str]) -> None:
    assert problems("responses", USER, *listed) == found


# -- Gemini -------------------------------------------------------------------------


def asks(*ids: str, name: str = "f") -> Any:
    return {"role": "model", "parts": [{"functionCall": {"id": each, "name": name, "args": {}}} for each in ids]}


def responds(*ids: str, name: str = "f") -> Any:
    given = [{"functionResponse": {"id": each, "name": name, "response": {"output": "r"}}} for each in ids]
    return {"role": "user", "parts": given}


ASKED = {"role": "user", "parts": [{"text": "a"}]}
TOLD = {"role": "model", "parts": [{"text": "b"}]}
BARE_ASK = {"role": "model", "parts": [{"functionCall": {"name": "f"}}] * 2}
BARE_ANSWER = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}] * 2}
CODE = {
    "role": "model",
    "parts": [{"executableCode": {"code": "1"}}, {"codeExecutionResult": {"output": "1"}}, {"text": "One."}],
}

GEMINI_FAULTS: list[tuple[list[Any], list[str]]] = [
    ([asks("a")], []),
    ([asks("a", "b"), responds("a", "b")], []),
    ([asks("a", "b"), responds("a"), responds("b")], []),
    ([asks("a"), asks("b"), responds("a", "b")], []),
    ([BARE_ASK, BARE_ANSWER, TOLD], []),
    ([asks("a", "b"), BARE_ANSWER, TOLD], []),
    ([BARE_ASK, responds("a", "b"), TOLD], []),
    ([asks("a", "b"), {"role": "user", "parts": BARE_ANSWER["parts"][:1]}, TOLD], ["The call a is not answered."]),
    (
        [BARE_ASK, responds("a", name="g"), responds("b")],
        ["The result of the call a answers no call before it.", "The call f is not answered."],
    ),
    ([CODE, ASKED], []),
    ([{"parts": [{"text": "a"}]}, TOLD], []),
    ([asks("a", "b"), responds("b")], ["The call a is not answered."]),
    ([BARE_ASK, {"role": "user", "parts": BARE_ANSWER["parts"][:1]}, TOLD], ["The call f is not answered."]),
    ([asks("a"), ASKED, TOLD], ["The call a is not answered."]),
    ([asks("a"), ASKED], ["The call a is not answered."]),
    (
        [asks("a"), ASKED, responds("a")],
        ["The call a is not answered.", "The result of the call a answers no call before it."],
    ),
    ([asks("a"), responds("a", "a")], ["The result of the call a answers no call before it."]),
    (
        [{"role": "model", "parts": [{"text": "hm", "thought": True}]}, ASKED],
        ["A message of the assistant says nothing."],
    ),
    ([TOLD, {"role": "user", "parts": []}], ["A message of the user is empty."]),
    ([{"role": "oracle", "parts": [{"text": "a"}]}], ["A message has no role that is known."]),
]


@pytest.mark.parametrize(("listed", "found"), GEMINI_FAULTS)
def test_faults_of_gemini(listed: list[Any], found: list[str]) -> None:
    assert problems("gemini", ASKED, *listed) == found


def test_a_list_may_begin_with_what_the_provider_compacted() -> None:
    assert problems("responses", {"type": "compaction", "encrypted_content": "s"}, USER) == []


@given(histories(max_turns=2))
def test_blocks_of_ours_leave_the_speakers_of_messages_alternating(history: Any) -> None:
    listed = [json.dumps(entry).encode() for entry in entries(history, "messages")]
    ours = SPOKEN["messages"].text_message("ours")
    for at in range(len(listed) + 1):
        for span in range(2):
            cut = [*listed[:at], ours, *listed[at + span :]]
            roles = [json.loads(wire)["role"] for wire in SPOKEN["messages"].join_messages(cut, [at])]
            assert "user user" not in " ".join(roles) or _answers_after(listed, at + span)


def _answers_after(listed: list[bytes], at: int) -> bool:
    """Whether a result comes next, which may not stand behind a text."""
    return at < len(listed) and b'"tool_result"' in listed[at]
