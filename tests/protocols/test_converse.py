"""Bedrock's Converse API: what a path says, what is read of requests and responses, and what is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.accounting.overflow import read_overflow
from accordion.model.conversation import Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from accordion.model.errors import ContextOverflow, LimitReached, NotFound, UpstreamDisconnected
from accordion.model.insertions import ToolRound, ToolRoundInsertion
from accordion.model.records import ObservedCall, ObservedResponse, Usage
from accordion.model.tenant import TenantScope
from accordion.protocols.base import Endpoint
from accordion.protocols.bedrock_converse.protocol import BedrockConverse, ConverseArtifactTool
from accordion.protocols.bedrock_frames import ConverseFrames
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.clouds import open_frames
from accordion.protocols.json_writing import without_breakpoints
from accordion.protocols.registry import error_response, family_for, find_protocol, is_protocol_path, protocol_for
from accordion.protocols.tool_loop import ArtifactToolResult, ToolDefinition
from tests import frames
from tests.protocols.edit_samples import message
from tests.reply_parts import converse_response, converse_stream

CONVERSE, TOOL_PROTOCOL = BedrockConverse(), ConverseArtifactTool()
TENANT = TenantScope("tenant", b"s" * 32)
TOOL = ToolDefinition("read_artifact", "Reads.", b'{"type":"object","properties":{}}')
POINT = {"cachePoint": {"type": "default"}}
Json = dict[str, Any]


def fields(**values: Any) -> dict[str, bytes]:
    return {name: json.dumps(value).encode() for name, value in values.items()}


def call(name: str, call_id: str, **given: Any) -> Json:
    return {"toolUse": {"toolUseId": call_id, "name": name, "input": given}}


def result(call_id: str, *content: Json, **more: Any) -> Json:
    return {"toolResult": {"toolUseId": call_id, "content": list(content), **more}}


def reasoned(text: str, signature: str = "sig") -> Json:
    return {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}


# -- paths and errors ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/model/amazon.nova-pro-v1%3A0/converse", Endpoint(model="amazon.nova-pro-v1:0", is_stream=False)),
        ("/model/m/converse-stream", Endpoint(model="m", is_stream=True)),
        ("/model/arn%3Aaws%3A1%3Ap%2Fq/converse", Endpoint(model="arn:aws:1:p/q", is_stream=False)),
        ("/model/m/count-tokens", None),
        ("/model/a/b/converse", None),
        ("/model/m/converse-streams", None),
    ],
)  # fmt: skip
def test_a_path_says_the_model_and_the_method(path: str, expected: Endpoint | None) -> None:
    assert CONVERSE.find_endpoint(path) == expected
    assert find_protocol(path) == (None if expected is None else (protocol_for(path, {}), expected))
    assert family_for(path, {}) == "bedrock"
    assert protocol_for(path, {}).name == "converse"


def test_a_stream_has_frames_and_another_spelling_is_known() -> None:
    assert isinstance(open_frames("/model/m/converse-stream"), ConverseFrames)
    assert open_frames("/model/m/converse") is None
    assert is_protocol_path("/model//m/Converse-Stream")


@pytest.mark.parametrize(
    ("error", "exception", "words"),
    [
        (ContextOverflow(210_000, 200_000), "ValidationException", "Input is too long for requested model (prompt"),
        (LimitReached("Enough.", retry_after=9, is_budget=True), "ThrottlingException", "Enough."),
        (NotFound("No."), "ResourceNotFoundException", "No."),
        (UpstreamDisconnected("Lost."), "ServiceUnavailableException", "Lost."),
    ],
)  # fmt: skip
def test_errors_have_bedrocks_form(error: Any, exception: str, words: str) -> None:
    response = error_response("/model/m/converse", {}, error, "req_1")
    assert isinstance(response.body, bytes)
    headers = dict(response.headers)
    assert (headers[b"x-amzn-errortype"], headers[b"x-amzn-requestid"]) == (exception.encode(), b"req_1")
    assert headers[b"content-length"] == b"%d" % len(response.body)
    shown = json.loads(response.body)
    assert shown.keys() == {"message"}
    assert shown["message"].startswith(words)


def test_an_overflow_of_ours_is_one_for_a_proxy_before_this_one() -> None:
    body = CONVERSE.render_error(ContextOverflow(210_000, 200_000), "r").decode()
    overflow = read_overflow(400, body)
    assert overflow is not None
    assert (overflow.requested, overflow.limit) == (210_000, 200_000)


def test_an_error_within_a_stream_is_an_exception() -> None:
    written = ConverseFrames().write(CONVERSE.render_stream_error(UpstreamDisconnected("Lost."), "r"))
    [(headers, payload)] = frames.read(written)
    assert (headers[":exception-type"], payload) == ("serviceUnavailableException", {"message": "Lost."})
    written = ConverseFrames().write(CONVERSE.stream_provider_error(b'{"message":"Too long."}'))
    assert frames.read(written)[0][1] == {"message": "Too long."}
    assert CONVERSE.stream_provider_error(b"{}") == b""


# -- requests --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"text": "a"}, [Text("a")]),
        ({"text": ""}, []),
        (POINT, []),
        (call("f", "c", a=1), [ToolCall("c", "f", '{"a":1}')]),
        (result("c", {"text": "a"}, {"json": {"b": 1}}), [ToolResult("c", (Text("a"), Text('{"b":1}')))]),
        (result("c", {"text": "no"}, status="error"), [ToolResult("c", (Text("no"),), error=True)]),
        (reasoned("hm", "12345"), [Reasoning("hm", 5)]),
        ({"reasoningContent": {"redactedContent": "QUJD"}}, [Reasoning("", 4)]),
        ({"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k"}}}}, [Media("image", "image/png")]),
        ({"video": {"format": "mp4", "source": {"bytes": "AAAA"}}}, [Media("video", "video/mp4", 3)]),
        ({"audio": {"format": "wav", "source": {"bytes": "AAAA"}}}, [Media("audio", "audio/wav", 3)]),
        ({"document": {"format": "txt", "name": "n", "source": {"text": "t"}}}, [Text("n"), Text("t")]),
        ({"document": {"name": "n", "source": {"content": [{"text": "t"}]}}}, [Text("n"), Text("t")]),
        (
            {"document": {"format": "pdf", "name": "n", "source": {"bytes": "AAAA"}}},
            [Text("n"), Media("file", "application/pdf", 3)],
        ),
        ({"guardContent": {"text": {"text": "g", "qualifiers": ["query"]}}}, [Text("g")]),
        ({"citationsContent": {"content": [{"text": "a"}, {"text": "b"}], "citations": []}}, [Text("ab")]),
        ({"searchResult": {"source": "s", "title": "t", "content": [{"text": "c"}]}}, [*map(Text, "tsc")]),
    ],
)  # fmt: skip
def test_blocks_are_read(block: Json, expected: list[Any]) -> None:
    assert list(message(CONVERSE, {"role": "user", "content": [block]}).parts) == expected


@pytest.mark.parametrize("block", [{"toolAddition": {"tools": []}}, {"image": 5}, {}, 7, {"new": {"x": 1}}])
def test_a_block_that_is_not_known_is_opaque_and_stays(block: Any) -> None:
    read = message(CONVERSE, {"role": "user", "content": [block, {"text": "a"}]})
    assert isinstance(read.parts[0], Opaque)
    edited = json.loads(CONVERSE.edit_message(read, {1: "b"}) or b"")
    assert edited["content"] == [block, {"text": "b"}]


BODY: Json = {
    "system": [{"text": "Be brief."}, POINT],
    "messages": [{"role": "user", "content": [{"text": "Hi."}]}],
    "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {}}}}, POINT]},
    "outputConfig": {"textFormat": {"type": "json_schema"}},
    "inferenceConfig": {"maxTokens": 7, "temperature": 0.5},
    "additionalModelRequestFields": {"thinking": {}},
}


def test_a_request_is_read() -> None:
    conversation = BodyReader().read(CONVERSE, json.dumps(BODY).encode(), TENANT)
    assert conversation.preamble == (Text("Be brief."),)
    assert (conversation.max_output, len(conversation.messages)) == (7, 1)
    assert conversation.tools == ('{"name":"f","inputSchema":{"json":{}}}', '{"type":"json_schema"}')


def test_cache_points_are_no_part_of_a_message_and_leave_what_is_written() -> None:
    marked = {"role": "user", "content": [{"text": "a"}, POINT, {"text": "b"}, POINT]}
    bare = {"role": "user", "content": [{"text": "a"}, {"text": "b"}]}
    one, other = message(CONVERSE, marked), message(CONVERSE, bare)
    assert (one.key, one.cache_breakpoints, other.cache_breakpoints) == (other.key, 2, 0)
    assert json.loads(without_breakpoints(one.wire)) == bare
    asked = {"role": "assistant", "content": [call("f", "c", cachePoint={"a": 1})]}
    assert json.loads(without_breakpoints(json.dumps(asked).encode())) == asked


def test_a_prompt_has_no_model_and_is_not_streamed() -> None:
    assert CONVERSE.prompt_path("a/b:0") == "/model/a%2Fb%3A0/converse"


# -- responses -------------------------------------------------------------------------

BLOCKS = [reasoned("hm"), {"text": "Let me see."}, call("read", "c1", path="a")]
WHOLE = converse_response(BLOCKS, "tool_use", (100, 64, 20))
OBSERVED = ObservedResponse(
    usage=Usage(164, 20, 64), finish="tool_use", calls=(ObservedCall("c1", "read", '{"path":"a"}'),)
)


def observe(body: bytes, *, stream: bool, counts_text: bool = False) -> ObservedResponse:
    observer = CONVERSE.observer(stream, counts_text=counts_text)
    for start in range(0, len(body), 37):
        observer.feed(body[start : start + 37])
    assert observer.has_ended is stream
    return observer.observation()


def test_a_stream_and_a_document_are_observed() -> None:
    streamed = observe(b"".join(converse_stream(WHOLE)), stream=True)
    assert streamed.calls[0].arguments == '{"path": "a"}'
    assert (streamed.usage, streamed.finish) == (OBSERVED.usage, OBSERVED.finish)
    assert observe(json.dumps(WHOLE).encode(), stream=False) == OBSERVED


def test_the_characters_of_a_response_are_counted() -> None:
    for stream, body in ((True, b"".join(converse_stream(WHOLE))), (False, json.dumps(WHOLE).encode())):
        assert observe(body, stream=stream, counts_text=True).characters >= len("hmLet me see.")


def test_an_error_is_observed() -> None:
    assert observe(b'{"message": "The input is odd."}', stream=False).error == "The input is odd."
    events = ConverseFrames().reader().feed(frames.failure("throttlingException", "Too many."))
    assert observe(events, stream=True).error == "Too many."


# -- the artifact tool -----------------------------------------------------------------

OWN = {"toolSpec": {"name": "read_artifact", "description": "Reads.", "inputSchema": {"json": json.loads(TOOL.schema)}}}


def test_the_tool_stands_behind_the_clients_whose_bytes_stay() -> None:
    config = b'{ "tools" : [ {"toolSpec": {"name" :"f", "n":1.50}} ], "toolChoice":{"any":{}} }'
    changed = TOOL_PROTOCOL.offer({"toolConfig": config}, TOOL)
    assert changed is not None
    assert b'{"toolSpec": {"name" :"f", "n":1.50}}' in changed["toolConfig"]
    made = json.loads(changed["toolConfig"])
    assert (made["tools"][1], made["toolChoice"]) == (OWN, {"any": {}})
    assert TOOL_PROTOCOL.tool_names(changed) == {"f", "read_artifact"}
    final = json.loads(TOOL_PROTOCOL.final_fields(changed)["toolConfig"])
    assert [each["toolSpec"]["name"] for each in final["tools"]] == ["f"]


@pytest.mark.parametrize(
    "values", [{}, {"toolConfig": {"tools": []}}, {"toolConfig": None}, {"toolConfig": {"tools": 5}}]
)
def test_a_client_without_tools_gets_none(values: Json) -> None:
    assert TOOL_PROTOCOL.offer(fields(**values), TOOL) is None


def streamed(blocks: list[Json], finish: str = "tool_use") -> bytes:
    return b"".join(converse_stream(converse_response(blocks, finish, (100, 0, 20))))


def run(*rounds: bytes, size: int = 0) -> tuple[list[tuple[str, Json]], list[Any]]:
    """The events that the client gets of these rounds, and the rounds as they were observed."""
    response, out, observed = TOOL_PROTOCOL.open_response("read_artifact", True), b"", []
    for number, stream in enumerate(rounds):
        if number:
            response.continue_response()
        for start in range(0, len(stream), size or len(stream)):
            out += response.feed(stream[start : start + (size or len(stream))])
        observed.append(response.read_round())
    out += response.close()
    parsed = [each.split(b"\ndata: ") for each in out.split(b"\n\n") if each]
    return [(name.decode().removeprefix("event: "), json.loads(data)) for name, data in parsed], observed


def blocks_in(events: list[tuple[str, Json]]) -> list[Any]:
    """The blocks that a client puts together, which are numbered without gaps."""
    return frames.converse_blocks(b"".join(frames.event(name, json.dumps(data).encode()) for name, data in events))


def test_a_response_with_own_calls_only_ends_its_turn() -> None:
    events, _ = run(streamed([call("read_artifact", "o1")]), streamed([{"text": "Seven."}], "end_turn"))
    assert (blocks_in(events), events[-2][1]) == ([{"text": "Seven."}], {"stopReason": "end_turn"})
    events, _ = run(streamed([{"text": "a"}, call("read_artifact", "o1")]))
    assert events[-2][1] == {"stopReason": "end_turn"}


def test_blocks_of_which_little_came_are_sent_back_as_the_api_requires_it() -> None:
    """A text without a delta is left out, and reasoning of which only the signature came has an empty text."""
    blocks = [reasoned("", "sig"), {"text": ""}, {"text": "a"}, call("read_artifact", "o1")]
    events = converse_stream(converse_response(blocks, "tool_use", (100, 0, 20)))
    _, observed = run(b"".join(each for each in events if b'"text":""' not in each and b'"text": ""' not in each))
    content = json.loads(observed[0].entries[0])["content"]
    assert content == [reasoned("", "sig"), {"text": "a"}, call("read_artifact", "o1")]
    assert observed[0].finished


def test_input_that_is_no_object_is_sent_back_as_one() -> None:
    odd = {"toolUse": {"toolUseId": "o1", "name": "read_artifact", "input": '{"id": oops'}}
    _, observed = run(streamed([odd]))
    assert observed[0].own_calls[0].arguments == '{"id": oops'
    assert json.loads(observed[0].entries[0])["content"] == [call("read_artifact", "o1", INVALID_JSON='{"id": oops')]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"citation": {"title": "t"}}}),
        ("contentBlockStart", {"contentBlockIndex": 7, "start": {"toolResult": {"toolUseId": "s"}}}),
        ("error", {"type": "error", "error": {"type": "throttlingException", "message": "Too many."}}),
    ],
)
def test_a_round_with_unknown_content_or_an_error_is_not_finished(name: str, data: Json) -> None:
    event = b"event: %s\ndata: %s\n\n" % (name.encode(), json.dumps(data).encode())
    head, end, tail = streamed([{"text": "a"}]).partition(b"event: messageStop")
    response = TOOL_PROTOCOL.open_response("read_artifact", True)
    assert event in response.feed(head + event + end + tail) + response.close()
    assert not response.read_round().finished


def test_the_clients_copy_is_replaced_by_the_rounds_and_its_results_joined() -> None:
    own = {"role": "assistant", "content": [call("read_artifact", "o1"), call("read", "c1")]}
    results = TOOL_PROTOCOL.render_results([ArtifactToolResult("o1", "page")], "read_artifact")
    insertion = ToolRoundInsertion(b"", (ToolRound((json.dumps(own).encode(),), results),), ("c1",), "", 0.0)
    copy = [
        {"role": "assistant", "content": [call("read", "c1"), POINT]},
        {"role": "user", "content": [result("c1", {"text": "r"}), POINT]},
    ]
    replaced = TOOL_PROTOCOL.insert_rounds([message(CONVERSE, each) for each in copy], insertion, {})
    assert replaced is not None
    assert replaced[0] == 2
    [model, user] = map(json.loads, replaced[1])
    assert model == own
    assert user["content"] == [result("o1", {"text": "page"}), result("c1", {"text": "r"}), POINT]


# -- writing ---------------------------------------------------------------------------


def written(*wires: Json, own: list[int]) -> list[Json]:
    return [*map(json.loads, CONVERSE.join_messages([json.dumps(each).encode() for each in wires], own))]


def test_our_texts_join_the_users_messages_and_roles_alternate() -> None:
    user, said = {"role": "user", "content": [{"text": "a"}]}, {"role": "assistant", "content": [{"text": "b"}]}
    block = json.loads(CONVERSE.text_message("recalled"))
    assert written(block, user, said, own=[0]) == [
        {"role": "user", "content": [{"text": "recalled"}, {"text": "a"}]},
        said,
    ]
    assert written(user, user, said, said, own=[]) == [
        {"role": "user", "content": [{"text": "a"}] * 2},
        {"role": "assistant", "content": [{"text": "b"}] * 2},
    ]


def test_a_text_of_our_own_before_results_is_put_into_the_first() -> None:
    answer = {"role": "user", "content": [result("c", {"json": {"a": 1}}), result("d")]}
    [joined] = written(json.loads(CONVERSE.text_message("recalled")), answer, own=[0])
    heading = {"text": "[What follows is what the tool returned.]"}
    assert joined["content"] == [result("c", {"text": "recalled"}, heading, {"json": {"a": 1}}), result("d")]
    odd = {"role": "user", "content": [result("c", {"new": {}})]}
    [joined] = written(json.loads(CONVERSE.text_message("recalled")), odd, own=[0])
    assert joined["content"] == [result("c", {"new": {}}), {"text": "recalled"}]


def test_edits_keep_what_is_beside_them() -> None:
    content = [reasoned("hm"), call("f", "c", a=1), {"image": {"format": "png", "source": {"bytes": "AA"}}}, POINT]
    read = message(CONVERSE, {"role": "assistant", "content": content})
    edited = json.loads(CONVERSE.edit_message(read, {0: None, 1: '{"b":2}', 2: "a picture"}) or b"")
    assert edited["content"] == [call("f", "c", b=2), {"text": "a picture"}, POINT]
    assert CONVERSE.edit_message(read, {1: None, 2: None}) is None
    with pytest.raises(ValueError, match="reasoning"):
        CONVERSE.edit_message(read, {0: "other"})
    answers = message(CONVERSE, {"role": "user", "content": [result("c", {"text": "long"}, status="error")]})
    shortened = json.loads(CONVERSE.edit_message(answers, {0: "short"}) or b"")
    assert shortened["content"] == [result("c", {"text": "short"}, status="error")]
