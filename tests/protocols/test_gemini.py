"""Gemini's protocol: what a path says, what is read of requests and responses, and what is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.conversation import Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from accordion.model.errors import ContextOverflow, LimitReached, NotFound
from accordion.model.insertions import ToolRound, ToolRoundInsertion
from accordion.model.records import ObservedCall, ObservedResponse, Usage
from accordion.model.tenant import TenantScope
from accordion.protocols.base import Endpoint
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.gemini.protocol import Gemini, GeminiArtifactTool
from accordion.protocols.registry import family_for, find_protocol, protocol_for, unread_api_reason
from accordion.protocols.tool_loop import ArtifactToolResult, ToolDefinition
from tests.protocols.edit_samples import message
from tests.sample_responses import sse

GEMINI, TOOL_PROTOCOL = Gemini(), GeminiArtifactTool()
TENANT = TenantScope("tenant", b"s" * 32)
TOOL = ToolDefinition("read_artifact", "Reads.", b'{"type":"object","properties":{},"additionalProperties":false}')
Json = dict[str, Any]


def fields(**values: Any) -> dict[str, bytes]:
    return {name: json.dumps(value).encode() for name, value in values.items()}


# -- paths -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1beta/models/gemini-2.5-pro:generateContent", Endpoint(False, False, "gemini-2.5-pro", False)),
        ("/v1/models/gemini-2.5-pro:streamGenerateContent", Endpoint(False, False, "gemini-2.5-pro", True)),
        ("/v1alpha/models/g:countTokens", Endpoint(True, False, "g", False)),
        ("/v1beta/tunedModels/my-model:generateContent", None),
        ("/v1beta/models/a%2Fb%3AgenerateContent", Endpoint(False, False, "a/b", False)),
        ("/v1/projects/p/locations/l/publishers/google/models/g:generateContent", Endpoint(False, False, "g", False)),
        ("/v1beta/models/g:embedContent", None),
        ("/v1beta/models/g", None),
        ("/v1beta/models", None),
        ("/v1/chat/completions", None),
    ],
)
def test_a_path_says_the_model_and_the_method(path: str, expected: Endpoint | None) -> None:
    assert GEMINI.find_endpoint(path) == expected
    assert (find_protocol(path) or (None, None))[1] == (expected if path != "/v1/chat/completions" else Endpoint())


@pytest.mark.parametrize(
    ("path", "headers", "family"),
    [
        ("/v1beta/models", {}, "gemini"),
        ("/v1beta/cachedContents/c?x", {}, "gemini"),
        ("/upload/v1beta/files", {}, "gemini"),
        ("/v1alpha/auth_tokens", {}, "gemini"),
        ("/v1/models/g:embedContent", {}, "gemini"),
        ("/v1/models", {b"x-goog-api-key": b"k"}, "gemini"),
        ("/v1/files/f", {b"x-goog-api-key": b"k"}, "gemini"),
        ("/v1/chat/completions", {b"x-goog-api-key": b"k"}, "openai"),
        ("/v1/models", {}, "openai"),
        ("/v1/models/ft:gpt-4o:org::id", {}, "openai"),
        ("/v1/messages/batches", {}, "anthropic"),
        ("/v1/messages", {}, "anthropic"),
        ("/v1/messagesque", {}, "openai"),
        ("/v1/models", {b"anthropic-version": b"v"}, "anthropic"),
        ("/v1/chat/completions", {b"anthropic-version": b"v"}, "anthropic"),
    ],
)
def test_a_request_is_for_the_api_that_its_path_and_headers_say(path: str, headers: Any, family: str) -> None:
    assert family_for(path, headers) == family


@pytest.mark.parametrize(
    ("path", "is_unread"),
    [
        ("/v1beta/interactions", True),
        ("/v1alpha/interactions", True),
        ("/v1beta1/projects/p/locations/global/interactions", True),
        ("/v1/projects/p/locations/l/interactions:stream", True),
        ("/v1beta/interactions/i", False),
        ("/v1beta/interactions/i/cancel", False),
        ("/v1/interactions", False),
        ("/v1beta/models/interactions:generateContent", False),
        ("/v1beta/cachedContents", False),
    ],
)
def test_interactions_are_known_and_not_read(path: str, is_unread: bool) -> None:
    assert ("Interactions API" in unread_api_reason(path)) is is_unread
    assert find_protocol(path) is None or not is_unread


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "a/b", "a b?c#d", "a%2Fb", "ft:own", "modèle"])
def test_a_model_of_any_name_is_found_in_the_path_of_a_prompt(model: str) -> None:
    path = GEMINI.prompt_path(model)
    assert path.isascii()
    assert GEMINI.find_endpoint(path) == Endpoint(False, False, model, False)


def test_a_protocol_gives_the_error_format_of_its_own_path() -> None:
    assert protocol_for("/v1/chat/completions", {b"anthropic-version": b"v"}).name == "chat"
    assert protocol_for("/v1beta/models", {}).name == "gemini"


# -- requests ----------------------------------------------------------------------------

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)  # fmt: skip

PICTURE = {"inlineData": {"mimeType": "image/png", "data": PNG}}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"text": "a"}, [Text("a")]),
        ({"text": "a", "thoughtSignature": "sig"}, [Text("a")]),
        ({"text": ""}, []),
        ({"text": "hm", "thought": True}, [Reasoning("hm")]),
        ({"text": "", "thoughtSignature": "sign"}, [Reasoning("", 4)]),
        ({"thought_signature": "sign"}, [Reasoning("", 4)]),
        (
            {"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}}, "thoughtSignature": "s"},
            [ToolCall("c1", "f", '{"a":1}')],
        ),
        ({"function_call": {"name": "f"}}, [ToolCall("f", "f", "{}")]),
        (
            {"functionResponse": {"id": "c1", "name": "f", "response": {"output": "r"}}},
            [ToolResult("c1", (Text("r"),), name="f")],
        ),
        ({"functionResponse": {"name": "f", "response": {"result": "r"}}}, [ToolResult("f", (Text("r"),), name="f")]),
        ({"functionResponse": {"name": "f", "response": {"error": "no"}}}, [ToolResult("f", (Text("no"),), True, "f")]),
        (
            {"functionResponse": {"name": "f", "response": {"a": [1], "error": None}}},
            [ToolResult("f", (Text('{"a":[1],"error":null}'),), name="f")],
        ),
        (
            {"functionResponse": {"name": "f", "response": {}, "parts": [PICTURE]}},
            [ToolResult("f", (Media("image", "image/png", 70, 1, 1),), name="f")],
        ),
        ({"inline_data": {"mime_type": "image/png", "data": PNG}}, [Media("image", "image/png", 70, 1, 1)]),
        ({"fileData": {"fileUri": "u", "mimeType": "video/mp4"}}, [Media("video", "video/mp4")]),
        ({"fileData": {"fileUri": "u", "mimeType": "application/pdf"}}, [Media("file", "application/pdf")]),
        (
            {"executableCode": {"language": "PYTHON", "code": "1"}},
            [ToolCall("code_execution", "code_execution", '{"language":"PYTHON","code":"1"}')],
        ),
        (
            {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "x"}},
            [ToolResult("code_execution", (Text("x"),), True)],
        ),
    ],
)  # fmt: skip
def test_each_kind_of_part_is_read(part: Json, expected: list[Any]) -> None:
    content = message(GEMINI, {"role": "model", "parts": [part]})
    assert list(content.parts) == expected
    assert content.role == "assistant"


def test_a_part_that_nobody_knows_is_opaque_by_its_name() -> None:
    [part] = message(GEMINI, {"role": "model", "parts": [{"toolCall": {"id": "t"}, "thoughtSignature": "s"}]}).parts
    assert isinstance(part, Opaque)
    assert part.kind == "toolCall"


@pytest.mark.parametrize(("role", "expected"), [(None, "user"), ("user", "user"), ("function", "tool"), ("x", "other")])
def test_roles_have_the_words_of_all_protocols(role: str | None, expected: str) -> None:
    assert message(GEMINI, {"role": role, "parts": [{"text": "a"}]}).role == expected


BODY: Json = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [{"role": "user", "parts": [{"text": "a"}]}],
    "tools": [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}, {"googleSearch": {}}],
    "generationConfig": {"maxOutputTokens": 99, "responseSchema": {"type": "OBJECT"}},
}
SNAKES: Json = {
    "system_instruction": {"parts": [{"text": "Be brief."}]},
    "contents": [{"parts": [{"text": "a"}]}],
    "tools": [{"function_declarations": [{"name": "f"}, {"name": "g"}]}, {"googleSearch": {}}],
    "generation_config": {"max_output_tokens": 99, "response_schema": {"type": "OBJECT"}},
}


def test_a_body_is_read_in_either_spelling() -> None:
    one, two = (BodyReader().read(GEMINI, json.dumps(each).encode(), TENANT) for each in (BODY, SNAKES))
    assert one.preamble == two.preamble == (Text("Be brief."),)
    assert one.tools == two.tools == ('{"name":"f"}', '{"name":"g"}', '{"googleSearch":{}}', '{"type":"OBJECT"}')
    assert one.max_output == two.max_output == 99
    assert one.chain == two.chain
    assert (one.model, one.stream) == ("", False)


def test_the_path_completes_the_body() -> None:
    conversation = BodyReader().read(GEMINI, json.dumps(BODY).encode(), TENANT)
    completed = Endpoint(False, False, "gemini-pro", True).complete(conversation)
    assert (completed.model, completed.stream, completed.chain) == ("gemini-pro", True, conversation.chain)
    assert Endpoint().complete(conversation) is conversation


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: json.dumps({"parts": text}).encode()))
def test_any_content_is_read_or_refused_with_a_value_error(raw: bytes) -> None:
    try:
        GEMINI.read_message(raw)
    except ValueError:
        return


def test_a_system_change_is_another_overhead() -> None:
    reader = BodyReader()
    one = reader.read(GEMINI, json.dumps(BODY).encode(), TENANT)
    other = {**BODY, "systemInstruction": {"parts": [{"text": "Be long."}]}}
    assert reader.read(GEMINI, json.dumps(other).encode(), TENANT).overhead_key != one.overhead_key


# -- errors --------------------------------------------------------------------------------


def test_an_overflow_has_googles_words() -> None:
    error = json.loads(GEMINI.render_error(ContextOverflow(1_048_577, 1_048_576), "req_1"))["error"]
    assert error["message"].startswith(
        "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576)."
    )
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["details"][1]["requestId"] == "req_1"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (NotFound("no"), 404, "NOT_FOUND"),
        (LimitReached("stop", retry_after=9, is_budget=True), 429, "RESOURCE_EXHAUSTED"),
    ],
)
def test_an_error_has_googles_form(error: Any, code: int, status: str) -> None:
    shown = json.loads(GEMINI.render_error(error, "r"))["error"]
    assert (shown["code"], shown["status"], shown["message"]) == (code, status, error.message)
    assert GEMINI.render_stream_error(error, "r").startswith(b'data: {"error":')


# -- responses ------------------------------------------------------------------------------


def chunk(*parts: Json, finish: str = "", usage: Json | None = None, **more: Any) -> Json:
    candidate: Json = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    counts = {"usageMetadata": usage} if usage else {}
    return {"candidates": [candidate], **counts, "modelVersion": "gemini-pro", "responseId": "r1", **more}


def call(name: str, given_id: str = "", signature: str = "", **args: Any) -> Json:
    made: Json = {"functionCall": {"name": name, "args": args} | ({"id": given_id} if given_id else {})}
    return made | ({"thoughtSignature": signature} if signature else {})


USAGE = {
    "promptTokenCount": 100, "candidatesTokenCount": 15, "thoughtsTokenCount": 5, "cachedContentTokenCount": 64,
    "totalTokenCount": 120,
}  # fmt: skip
CHUNKS = [
    chunk({"text": "hm", "thought": True}, usage={"promptTokenCount": 100, "totalTokenCount": 100}),
    chunk({"text": "Let "}),
    chunk({"text": "me see."}, call("read", "c1", "sig", path="a")),
    chunk(call("run"), finish="STOP", usage=USAGE),
]
OBSERVED = ObservedResponse(
    "r1",
    "gemini-pro",
    Usage(100, 20, 64, 0, 5),
    "STOP",
    (ObservedCall("c1", "read", '{"path":"a"}'), ObservedCall("run", "run", "{}")),
)


def observe(body: bytes, *, stream: bool) -> ObservedResponse:
    observer = GEMINI.observer(stream)
    for start in range(0, len(body), 37):
        observer.feed(body[start : start + 37])
    return observer.observation()


def test_a_stream_of_events_is_observed() -> None:
    assert observe(sse(*CHUNKS), stream=True) == OBSERVED


def test_a_stream_that_is_a_list_is_observed() -> None:
    assert (
        observe(b"[" + b",\r\n".join(json.dumps(each).encode() for each in CHUNKS) + b"\n]", stream=False) == OBSERVED
    )


def test_a_document_is_observed() -> None:
    whole = chunk({"text": "Yes."}, call("run"), finish="STOP", usage=USAGE | {"toolUsePromptTokenCount": 7})
    observed = observe(json.dumps(whole).encode(), stream=False)
    assert observed.usage == Usage(107, 20, 64, 0, 5)
    assert [each.name for each in observed.calls] == ["run"]


def test_a_blocked_prompt_ends_with_its_reason() -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 9}}
    for stream, body in ((True, sse(blocked)), (False, json.dumps(blocked).encode())):
        assert observe(body, stream=stream).finish == "SAFETY"


@pytest.mark.parametrize("listed", [False, True])
def test_an_error_is_observed(listed: bool) -> None:
    error = {"error": {"code": 400, "message": "The input is odd.", "status": "INVALID_ARGUMENT"}}
    body = json.dumps([error] if listed else error).encode()
    assert observe(body, stream=False).error == "The input is odd."
    assert GEMINI.stream_provider_error(body) == b"data: " + json.dumps(error, separators=(",", ":")).encode() + b"\n\n"


# -- the artifact tool ------------------------------------------------------------------------


def offered(**values: Any) -> Any:
    changed = TOOL_PROTOCOL.offer(fields(**values), TOOL)
    return None if changed is None else json.loads(changed["tools"])


OWN = {"name": "read_artifact", "description": "Reads.", "parameters": {"type": "object", "properties": {}}}


def test_the_tool_stands_behind_the_clients_functions() -> None:
    assert offered() == [{"functionDeclarations": [OWN]}]
    assert offered(tools=[{"functionDeclarations": [{"name": "f"}]}, {"googleSearch": {}}]) == [
        {"functionDeclarations": [{"name": "f"}, OWN]},
        {"googleSearch": {}},
    ]
    assert offered(tools=[{"function_declarations": [{"name": "f"}]}]) == [
        {"function_declarations": [{"name": "f"}, OWN]}
    ]


def test_the_clients_declarations_keep_their_bytes() -> None:
    own = b'[ { "functionDeclarations" : [ {"name" :"f", "n":1.50} ] } ]'
    changed = TOOL_PROTOCOL.offer({"tools": own}, TOOL)
    assert changed is not None
    assert b'{"name" :"f", "n":1.50}' in changed["tools"]


@pytest.mark.parametrize(
    "values",
    [
        {"cachedContent": "cachedContents/1"},
        {"generationConfig": {"candidateCount": 2}},
        {"generationConfig": {"responseMimeType": "application/json"}},
        {"generation_config": {"response_modalities": ["IMAGE"]}},
        {"tools": [{"googleSearch": {}}]},
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        {"toolConfig": {"functionCallingConfig": {"streamFunctionCallArguments": True}}},
    ],
)
def test_the_tool_is_not_offered_where_it_could_not_work(values: Json) -> None:
    assert offered(**values) is None


def test_the_names_of_all_functions_are_known() -> None:
    tools = [{"functionDeclarations": [{"name": "f"}]}, {"function_declarations": [{"name": "g"}]}]
    assert TOOL_PROTOCOL.tool_names(fields(tools=tools)) == {"f", "g"}


def test_at_the_end_the_tool_may_not_be_called() -> None:
    with_client = TOOL_PROTOCOL.offer(fields(tools=[{"functionDeclarations": [{"name": "f"}]}]), TOOL) or {}
    assert json.loads(TOOL_PROTOCOL.final_fields(with_client)["tools"]) == [{"functionDeclarations": [{"name": "f"}]}]
    alone = TOOL_PROTOCOL.offer({}, TOOL) or {}
    assert json.loads(TOOL_PROTOCOL.final_fields(alone)["toolConfig"]) == {"functionCallingConfig": {"mode": "NONE"}}


def test_results_name_the_function_and_the_id_if_there_is_one() -> None:
    answers = [ArtifactToolResult("o1", "text"), ArtifactToolResult("read_artifact", "no", error=True)]
    [content] = TOOL_PROTOCOL.render_results(answers, "read_artifact")
    assert json.loads(content) == {
        "role": "user",
        "parts": [
            {"functionResponse": {"id": "o1", "name": "read_artifact", "response": {"output": "text"}}},
            {"functionResponse": {"name": "read_artifact", "response": {"error": "no"}}},
        ],
    }
    assert TOOL_PROTOCOL.render_results([], "read_artifact") == ()


def test_a_token_count_has_no_tools_that_the_client_did_not_send() -> None:
    body = json.dumps({"tools": [], "contents": []}).encode()
    assert json.loads(GEMINI.token_count_body(body, {})) == {"contents": []}
    assert GEMINI.token_count_body(body, fields(tools=[])) == body


# -- tool rounds -----------------------------------------------------------------------------


def run(rounds: list[list[Json]], *, size: int = 0) -> tuple[list[Json], list[Any]]:
    """The events that the client gets of these rounds, and the rounds as they were observed."""
    response, out, observed = TOOL_PROTOCOL.open_response("read_artifact", True), b"", []
    for number, chunks in enumerate(rounds):
        if number:
            response.continue_response()
        for each in chunks:
            out += response.feed(sse(each))
        observed.append(response.read_round())
    out += response.close()
    return [json.loads(line[6:]) for line in out.decode().split("\n") if line], observed


def parts_in(events: list[Json]) -> list[Json]:
    return [part for event in events for part in event["candidates"][0]["content"]["parts"]]


def test_content_beside_an_own_call_at_the_end_passes_at_once() -> None:
    both = [chunk({"text": "Look."}, call("read_artifact", "o1"), finish="STOP")]
    events, _ = run([both, [chunk({"text": "Seven."}, finish="STOP")]])
    assert parts_in(events) == [{"text": "Look."}, {"text": "\n\nSeven."}]


def test_a_hidden_signature_goes_to_the_next_visible_call() -> None:
    mixed = [chunk(call("read_artifact", "o1", "step"), call("read", "c1"), call("run", "c2"), finish="STOP")]
    events, observed = run([mixed])
    assert parts_in(events)[:2] == [call("read", "c1", "step"), call("run", "c2")]
    assert observed[0].client_call_ids == ("c1", "c2")
    assert json.loads(observed[0].entries[0])["parts"][1] == call("read", "c1")


def test_a_text_with_a_signature_stays_as_it_is_behind_the_text_of_another_round() -> None:
    signed = {"text": "Seven.", "thoughtSignature": "sig"}
    events, _ = run(
        [[chunk({"text": "Look."}, call("read_artifact", "o1"), finish="STOP")], [chunk(signed, finish="STOP")]]
    )
    assert parts_in(events) == [{"text": "Look."}, {"text": "\n\n"}, signed]


@pytest.mark.parametrize("listed", [False, True])
def test_documents_of_all_rounds_become_one(listed: bool) -> None:
    response = TOOL_PROTOCOL.open_response("read_artifact", False)
    first = [chunk({"text": "Look."}), chunk(call("read_artifact", "o1"), finish="STOP", usage=USAGE)]
    second = chunk({"text": "Seven."}, finish="STOP", usage=USAGE, responseId="r2")
    whole = chunk({"text": "Look."}, call("read_artifact", "o1"), finish="STOP", usage=USAGE)
    response.feed(json.dumps(first if listed else whole).encode())
    assert [each.call_id for each in response.read_round().own_calls] == ["o1"]
    response.continue_response()
    response.feed(json.dumps([second] if listed else second).encode())
    made = json.loads(response.close())
    assert type(made) is (list if listed else dict)
    made = made[0] if listed else made
    assert (parts_in([made]), made["responseId"]) == ([{"text": "Look.\n\nSeven."}], "r1")
    assert made["usageMetadata"]["candidatesTokenCount"] == 30


def test_the_clients_copy_is_replaced_by_the_rounds_and_its_results_joined() -> None:
    own = {"role": "model", "parts": [call("read_artifact", "o1", "s"), call("read", "c1")]}
    results = TOOL_PROTOCOL.render_results([ArtifactToolResult("o1", "page")], "read_artifact")
    insertion = ToolRoundInsertion(b"", (ToolRound((json.dumps(own).encode(),), results),), ("c1",), "", 0.0)
    answer = {"functionResponse": {"id": "c1", "name": "read", "response": {"output": "r"}}}
    copy = [{"role": "model", "parts": [call("read", "c1")]}, {"role": "user", "parts": [answer]}]
    replaced = TOOL_PROTOCOL.insert_rounds([message(GEMINI, each) for each in copy], insertion, {})
    assert replaced is not None
    assert replaced[0] == 2
    [model, user] = map(json.loads, replaced[1])
    assert model == own
    assert [part["functionResponse"]["id"] for part in user["parts"]] == ["o1", "c1"]


# -- writing -----------------------------------------------------------------------------------


def test_a_call_that_leaves_hands_its_signature_on() -> None:
    content = message(GEMINI, {"role": "model", "parts": [call("f", "a", "step"), call("g", "b")]})
    edited = GEMINI.edit_message(content, {0: None})
    assert edited is not None
    assert json.loads(edited)["parts"] == [call("g", "b", "step")]


def test_a_new_result_keeps_its_id_its_name_and_its_fault() -> None:
    answers = [
        {"functionResponse": {"id": "a", "name": "f", "response": {"error": "no"}}},
        {"functionResponse": {"id": "b", "name": "g", "response": {"x": 1}, "parts": [{"inlineData": {}}]}},
    ]
    edited = GEMINI.edit_message(message(GEMINI, {"role": "user", "parts": answers}), {0: "short", 1: "brief"})
    assert edited is not None
    assert [part["functionResponse"] for part in json.loads(edited)["parts"]] == [
        {"id": "a", "name": "f", "response": {"error": "short"}},
        {"id": "b", "name": "g", "response": {"output": "brief"}},
    ]


def test_a_thought_only_leaves() -> None:
    content = message(GEMINI, {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "a"}]})
    with pytest.raises(ValueError, match="thought"):
        GEMINI.edit_message(content, {0: "other"})
    assert json.loads(GEMINI.edit_message(content, {0: None}) or b"")["parts"] == [{"text": "a"}]


def test_a_text_of_ours_before_results_follows_them_in_their_content() -> None:
    answer = {"functionResponse": {"id": "a", "name": "f", "response": {"output": "r"}}}
    wires = [
        json.dumps({"role": "model", "parts": [call("f", "a")]}).encode(),
        GEMINI.text_message("recalled"),
        json.dumps({"role": "user", "parts": [answer]}).encode(),
    ]
    joined = GEMINI.join_messages(wires, [1])
    assert joined[0] == wires[0]
    assert json.loads(joined[1]) == {"role": "user", "parts": [answer, {"text": "recalled"}]}
