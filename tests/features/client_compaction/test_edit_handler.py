"""Context edits that a client asks for: done here where the provider lacks them, passed on where it has them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.accounting.key_limits import KeyLimits
from accordion.features.client_compaction.context_edits import SEAL_PREFIX
from accordion.features.client_compaction.edit_hook import MissingFeatures
from accordion.model.ports import Route, SummaryLimits
from accordion.model.tenant import NO_TENANT, TenantScope
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FakeReply, FakeRouter
from tests.features.client_compaction.edit_setup import edit_setup
from tests.pipeline.test_estimates import LONG, SOURCE, HeldTasks, body
from tests.pipeline_setup import MESSAGES, RESPONSES, PipelineSetup, header
from tests.writers import reading_request, words

Json = dict[str, Any]
TENANT = TenantScope("team", b"key of team")
COUNT = "/v1/messages/count_tokens"
COMPACT = "/v1/responses/compact"
TRANSLATED = Route("smart", "litellm", model="deepseek/chat")
NATIVE = Route("local", "anthropic", "http://upstream.test")
NATIVE_OPENAI = Route("local", "openai", "http://upstream.test/v1")
CLEAR = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "tool_uses", "value": 5},
    "keep": {"type": "tool_uses", "value": 2},
}
COMPACT_EDIT = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 500}}
STREAM = ((b"content-type", b"text/event-stream"),)


class Translator:
    """A translated provider: gives its answers in order, and records the bodies."""

    def __init__(self, *answers: FakeReply) -> None:
        self.answers, self.bodies = list(answers), list[Json]()

    async def send(self, protocol_name: str, body: bytes, *_more: Any) -> FakeReply:
        self.bodies.append(json.loads(body))
        return self.answers.pop(0)


def claude(rounds: int, **more: Any) -> Json:
    return reading_request("messages", rounds, model="smart", max_tokens=9, **more)


def codex(rounds: int, **more: Any) -> Json:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is read."}]}
    asked = {"role": "user", "content": "now sum up"}
    return reading_request("responses", rounds, said, asked, model="smart", **more)


def reply(value: Json, status: int = 200) -> FakeReply:
    return FakeReply(status, pieces=(json.dumps(value).encode(),))


USAGE = {"input_tokens": 100, "output_tokens": 5}


def message(*blocks: Json, stop: str = "end_turn") -> FakeReply:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": stop, "usage": USAGE}
    return reply({**head, "content": list(blocks) or [{"type": "text", "text": "Done."}]})


def response(*items: Json) -> FakeReply:
    said = [{"type": "output_text", "text": "Done."}]
    output = list(items) or [{"type": "message", "id": "msg_1", "role": "assistant", "content": said}]
    return reply({"id": "resp_1", "object": "response", "status": "completed", "output": output, "usage": USAGE})


def events(*values: Json) -> FakeReply:
    return FakeReply(
        headers=STREAM,
        pieces=tuple(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in values),
    )


def parsed_events(body: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]


def translated(*answers: FakeReply, **more: Any) -> tuple[PipelineSetup, Translator]:
    router = FakeRouter(models={"smart": TRANSLATED}, only=TRANSLATED)
    setup, translator = edit_setup(router=router, **more), Translator(*answers)
    setup.replace_in("sender", translator=translator)
    return setup, translator


def without_breakpoints(messages: list[Json]) -> list[Json]:
    """The client sets its own breakpoints, so that a block has none."""
    text = json.dumps(messages).replace(', "cache_control": {"type": "ephemeral"}', "")
    return list(json.loads(text))


def results(body: Json) -> list[str]:
    return [
        block["content"] if isinstance(block["content"], str) else block["content"][0]["text"]
        for entry in body["messages"]
        if isinstance(entry["content"], list)
        for block in entry["content"]
        if block["type"] == "tool_result"
    ]


# -- clearing ----------------------------------------------------------------------------------------------------------


async def test_old_tool_uses_are_cleared_for_a_translated_place() -> None:
    setup, translator = translated(message())
    _, body = await setup.ask(MESSAGES, claude(8, context_management={"edits": [CLEAR]}))
    [sent] = translator.bodies
    assert "context_management" not in sent
    assert ["r" in text and "art_" in text for text in results(sent)] == [True] * 6 + [False] * 2
    assert {tool["name"] for tool in sent["tools"]} == {"read_artifact"}
    [applied] = json.loads(body)["context_management"]["applied_edits"]
    assert applied["type"] == "clear_tool_uses_20250919"
    assert applied["cleared_tool_uses"] == 6
    assert 600 < applied["cleared_input_tokens"] < 1_200


async def test_cleared_content_stays_cleared_and_is_reported_again() -> None:
    setup, translator = translated(message(), message())
    edits = {"edits": [CLEAR]}
    await setup.ask(MESSAGES, claude(8, context_management=edits))
    _, body = await setup.ask(MESSAGES, claude(9, context_management=edits))
    assert translator.bodies[1]["messages"][: len(translator.bodies[0]["messages"])] == translator.bodies[0]["messages"]
    [applied] = json.loads(body)["context_management"]["applied_edits"]
    assert applied["cleared_tool_uses"] == 6


@pytest.mark.parametrize("mode", ["off", "observe"])
@pytest.mark.parametrize("is_configured", [True, False])
async def test_edits_are_left_out_where_compaction_is_switched_off(mode: str, is_configured: bool) -> None:
    config = f"compaction: {{mode: {mode}}}" if is_configured else ""
    setup, translator = translated(message(), message(), config=config)
    headers = {} if is_configured else {"x-accordion-compact": mode}
    for edit in (CLEAR, COMPACT_EDIT):
        _, body = await setup.ask(MESSAGES, claude(12, context_management={"edits": [edit]}), headers)
        assert json.loads(body)["context_management"] == {"applied_edits": []}
        assert [each["type"] for each in json.loads(body)["content"]] == ["text"]
    assert translator.bodies == [claude(12)] * 2
    alone = json.loads((await setup.ask(COMPACT, codex(12), headers))[1])
    assert alone["output"][-1]["type"] == "compaction"
    assert len(json.dumps(alone)) < len(json.dumps(codex(12))) / 2


@pytest.mark.parametrize("edit", [CLEAR, COMPACT_EDIT])
async def test_edits_that_the_provider_refuses_are_given_up(edit: Json) -> None:
    refusal = reply({"type": "error", "error": {"type": "invalid_request_error", "message": "Bad Request"}}, 400)
    setup, translator = translated(refusal, message(), message())
    edits = {"context_management": {"edits": [edit]}}
    out, body = await setup.ask(MESSAGES, claude(8, **edits))
    assert (out.status, translator.bodies[1:]) == (200, [claude(8)])
    assert json.loads(body)["context_management"] == {"applied_edits": []}
    assert [block["type"] for block in json.loads(body)["content"]] == ["text"]
    await setup.ask(MESSAGES, claude(9, **edits))
    assert len(translator.bodies) == 3
    assert not any("art_" in result for result in results(translator.bodies[2]))


async def test_nothing_is_cleared_below_the_trigger() -> None:
    setup, translator = translated(message())
    _, body = await setup.ask(MESSAGES, claude(4, context_management={"edits": [CLEAR]}))
    assert translator.bodies == [claude(4)]
    assert json.loads(body)["context_management"] == {"applied_edits": []}


@pytest.mark.parametrize(
    ("more", "cleared"),
    [
        ({"exclude_tools": ["read"]}, 0),
        ({"exclude_tools": ["write"]}, 6),
        ({"clear_at_least": {"type": "input_tokens", "value": 100_000}}, 0),
        ({"trigger": {"type": "input_tokens", "value": 100_000}}, 0),
        ({"trigger": {"type": "input_tokens", "value": 500}}, 6),
        ({"keep": {"type": "tool_uses", "value": 4}}, 4),
    ],
)
async def test_the_clients_rules_are_followed(more: Json, cleared: int) -> None:
    setup, translator = translated(message())
    await setup.ask(MESSAGES, claude(8, context_management={"edits": [{**CLEAR, **more}]}))
    assert sum("art_" in text for text in results(translator.bodies[0])) == cleared


@pytest.mark.parametrize(("inputs", "cleared"), [(True, 6), (["read"], 6), (["write"], 0), (False, 0)])
async def test_inputs_of_calls_are_cleared_if_the_client_wants_it(inputs: Any, cleared: int) -> None:
    setup, translator = translated(message())
    edit = {**CLEAR, "clear_tool_inputs": inputs}
    await setup.ask(MESSAGES, claude(8, context_management={"edits": [edit]}))
    calls = [b for e in translator.bodies[0]["messages"] if e["role"] == "assistant" for b in e["content"]]
    assert sum(call["input"] == {} for call in calls) == cleared
    assert [call["id"] for call in calls] == [f"c{at}" for at in range(8)]


async def test_old_thinking_is_cleared_with_its_count_of_turns() -> None:
    thought = {"type": "thinking", "thinking": words(100, "t"), "signature": "s" * 40}
    messages: list[Json] = []
    for at in range(4):
        answer = [thought, {"type": "text", "text": f"answer {at}"}]
        messages += [{"role": "user", "content": f"question {at}"}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": "and now?"})
    edit = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}
    setup, translator = translated(message())
    body = {"model": "smart", "max_tokens": 9, "messages": messages, "context_management": {"edits": [edit]}}
    _, answered = await setup.ask(MESSAGES, body)
    kept = [e["content"][0]["type"] for e in translator.bodies[0]["messages"] if e["role"] == "assistant"]
    assert kept == ["text", "text", "thinking", "thinking"]
    [applied] = json.loads(answered)["context_management"]["applied_edits"]
    assert applied["cleared_thinking_turns"] == 2
    assert applied["cleared_input_tokens"] >= 200


async def test_a_stream_reports_the_edits_in_its_message_delta() -> None:
    start = {"id": "m", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 9}}
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}
    setup, _ = translated(events({"type": "message_start", "message": start}, delta, {"type": "message_stop"}))
    _, body = await setup.ask(MESSAGES, claude(8, stream=True, context_management={"edits": [CLEAR]}))
    got = parsed_events(body)
    assert [each["type"] for each in got] == ["message_start", "message_delta", "message_stop"]
    assert got[1]["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 6
    assert got[1]["usage"] == {"output_tokens": 5}


async def test_a_token_count_has_the_tokens_before_and_after() -> None:
    setup, _ = translated()
    plain = json.loads((await setup.ask(COUNT, claude(8)))[1])["input_tokens"]
    counted = json.loads((await setup.ask(COUNT, claude(8, context_management={"edits": [CLEAR]})))[1])
    assert counted["context_management"] == {"original_input_tokens": plain}
    assert counted["input_tokens"] < plain


async def test_cleared_content_can_be_read_by_its_reference() -> None:
    setup, _ = translated()

    class ReadingTranslator(Translator):
        async def send(self, protocol_name: str, body: bytes, *_more: Any) -> FakeReply:
            self.bodies.append(json.loads(body))
            if len(self.bodies) == 2:
                return message()
            named = results(self.bodies[0])[0].partition('read_artifact("')[2].partition('"')[0]
            call = {"type": "tool_use", "id": "t1", "name": "read_artifact", "input": {"id": named}}
            return message(call, stop="tool_use")

    reading = ReadingTranslator()
    setup.replace_in("sender", translator=reading)
    _, body = await setup.ask(MESSAGES, claude(8, context_management={"edits": [CLEAR]}))
    assert "r0_199" in results(reading.bodies[1])[-1]
    assert json.loads(body)["content"] == [{"type": "text", "text": "Done."}]
    assert json.loads(body)["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 6


@pytest.mark.parametrize("route", [NATIVE, Route("cloud", "litellm", model="bedrock/anthropic.claude-x")])
async def test_a_provider_that_has_edits_gets_them_unchanged(route: Route) -> None:
    setup, translator = edit_setup(router=FakeRouter(only=route)), Translator(message())
    setup.replace_in("sender", translator=translator)
    setup.upstream.answers = [message()]
    body = claude(8, context_management={"edits": [CLEAR]})
    out, answered = await setup.ask(MESSAGES, json.dumps(body, indent=1).encode())
    sent = setup.upstream.requests[0].body if route is NATIVE else json.dumps(translator.bodies[0], indent=1).encode()
    assert sent == json.dumps(body, indent=1).encode()
    assert "context_management" not in json.loads(answered)
    assert header(out, "x-accordion-compaction") is None


BETA = {"anthropic-beta": "context-management-2025-06-27"}


@pytest.mark.parametrize("status", [400, 422])
async def test_a_place_that_refuses_the_field_is_asked_again_without_it_and_never_with_it(status: int) -> None:
    setup = edit_setup(router=FakeRouter(only=NATIVE))
    error = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "context_management: Extra inputs are not permitted"},
    }
    setup.upstream.answers = [reply(error, status), message(), message()]
    body = claude(8, context_management={"edits": [CLEAR]})
    for sent_before in (1, 2):
        out, answered = await setup.ask(MESSAGES, body, BETA)
        sent = json.loads(setup.upstream.requests[sent_before].body)  # type: ignore[arg-type]
        assert out.status == 200
        assert "context_management" not in sent
        assert json.loads(answered)["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 6
    assert len(setup.upstream.requests) == 3


@pytest.mark.parametrize("body", [b"not json", b"[]", b'{"type": "error"}'])
async def test_a_response_that_cannot_be_reported_in_goes_on_as_it_came(body: bytes) -> None:
    setup, _ = translated(FakeReply(pieces=(body,)))
    out, answered = await setup.ask(MESSAGES, claude(4, context_management={"edits": [CLEAR]}))
    assert (out.status, answered) == (200, body)


async def test_an_endpoint_that_refuses_a_context_edit_is_not_asked_for_it_again() -> None:
    setup = edit_setup(router=FakeRouter(only=NATIVE_OPENAI))
    management = [{"type": "compaction", "compact_threshold": 500}]
    unknown = {"error": {"message": "Unknown parameter: 'context_management'.", "param": "context_management"}}
    setup.upstream.answers = [reply(unknown, 400), response(), response()]
    for _ in range(2):
        _, body = await setup.ask(RESPONSES, codex(12, context_management=management))
        assert [each["type"] for each in json.loads(body)["output"]] == ["compaction", "message"]
    assert len(setup.upstream.requests) == 3
    invalid = {"error": {"message": "Invalid value: 'compaction_trigger'. Supported values are: 'message'."}}
    setup.upstream.answers = [reply(invalid, 400)]
    asked = codex(13)
    asked["input"].append({"type": "compaction_trigger"})
    for _ in range(2):
        _, body = await setup.ask(RESPONSES, asked)
        assert [each["type"] for each in json.loads(body)["output"]] == ["compaction"]
    assert len(setup.upstream.requests) == 4


def triggered(rounds: int, **more: Any) -> Json:
    asked = codex(rounds, **more)
    asked["input"].append({"type": "compaction_trigger"})
    return asked


def ignoring(is_stream: bool) -> FakeReply:
    """A gateway answers as if no compaction were asked for."""
    document = json.loads(response().pieces[0])
    return events({"type": "response.completed", "response": document}) if is_stream else response()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_gateway_that_ignores_a_trigger_is_noticed_and_not_asked_again(is_stream: bool) -> None:
    setup = edit_setup(router=FakeRouter(only=NATIVE_OPENAI))
    setup.upstream.answers = [ignoring(is_stream)]
    for _ in range(2):
        _, body = await setup.ask(RESPONSES, triggered(13, stream=is_stream))
        items = parsed_events(body)[-1]["response"]["output"] if is_stream else json.loads(body)["output"]
        assert [each["type"] for each in items] == ["compaction"]
    assert len(setup.upstream.requests) == 1


async def test_a_gateway_that_ignores_a_compaction_of_messages_is_noticed() -> None:
    setup = edit_setup(router=FakeRouter(only=NATIVE))
    setup.upstream.answers = [message()]
    beta = {"anthropic-beta": "compact-2026-09-04"}
    for _ in range(2):
        _, body = await setup.ask(MESSAGES, claude(12, compaction={"type": "summarize"}), beta)
        assert [each["type"] for each in json.loads(body)["content"]] == ["compaction"]
    assert len(setup.upstream.requests) == 1


async def test_a_providers_own_compaction_passes_as_it_comes() -> None:
    setup = edit_setup(router=FakeRouter(only=NATIVE_OPENAI))
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"}
    document = {**json.loads(response().pieces[0]), "output": [item]}
    setup.upstream.answers = [answer := events({"type": "response.completed", "response": document})]
    _, body = await setup.ask(RESPONSES, triggered(13, stream=True))
    assert body == b"".join(answer.pieces)


async def test_a_compaction_that_fails_at_the_provider_is_not_ignored() -> None:
    setup = edit_setup(router=FakeRouter(only=NATIVE_OPENAI))
    failed = {"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error"}}}
    setup.upstream.answers = [answer := events(failed)]
    _, body = await setup.ask(RESPONSES, triggered(13, stream=True))
    assert body == b"".join(answer.pieces)
    setup.upstream.answers = [ignoring(is_stream=False)]
    await setup.ask(RESPONSES, triggered(13))
    assert len(setup.upstream.requests) == 2, "the provider was asked again"


REFUSED_FIELD = "context_management: Extra inputs are not permitted"


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("max_tokens: invalid", BETA),
        ("context_management.edits.0.keep.value: Input should be greater than 0", BETA),
        ("context_management.edits.0.foo: Extra inputs are not permitted", BETA),
        ("Invalid 'context_management[0].compact_threshold': integer below minimum value.", BETA),
        ("Unsupported parameter: 'context_management' is not supported with this model.", BETA),
        (REFUSED_FIELD, {}),
    ],
)
async def test_a_refusal_that_a_provider_with_edits_may_give_teaches_nothing(
    text: str, headers: dict[str, str]
) -> None:
    setup = edit_setup(router=FakeRouter(only=NATIVE))
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
    setup.upstream.answers = [reply(error, 400)]
    out, answered = await setup.ask(MESSAGES, claude(8, context_management={"edits": [CLEAR]}), headers)
    assert (out.status, len(setup.upstream.requests), json.loads(answered)) == (400, 1, error)


@pytest.mark.parametrize(
    "text",
    [
        REFUSED_FIELD,
        "Unknown parameter: 'context_management'.",
        "Unrecognized request argument supplied: context_management",
        'json: unknown field "context_management"',
        "unknown field `context_management`, expected one of `model`, `messages`",
        "[{'type': 'extra_forbidden', 'loc': ('body', 'context_management'), 'msg': 'Extra inputs are not permitted'}]",
    ],
)
def test_the_refusal_of_a_whole_field_is_known(text: str) -> None:
    missing = MissingFeatures(lambda: 0.0)
    assert missing.learn(TENANT, NATIVE, "context_management", 400, json.dumps({"error": {"message": text}}).encode())
    assert missing.lacks(TENANT, NATIVE, "messages", "context_management")
    assert not missing.lacks(TENANT, NATIVE, "messages", "compaction")
    assert not missing.lacks(TENANT, NATIVE_OPENAI, "responses", "context_management")
    assert not missing.lacks(NO_TENANT, NATIVE, "messages", "context_management")


# -- a list compacted by its path --------------------------------------------------------------------------------------


async def test_a_list_is_compacted_for_a_translated_place() -> None:
    setup, translator = translated(response())
    _, body = await setup.ask(COMPACT, codex(12, instructions="Be brief."))
    assert translator.bodies == []
    answered = json.loads(body)
    assert answered["object"] == "response.compaction"
    *said, item = answered["output"]
    assert [each["content"][0]["text"] for each in said] == ["the task", "now sum up"]
    assert all(each["type"] == "message" and each["role"] == "user" for each in said)
    assert (item["type"], item["encrypted_content"][: len(SEAL_PREFIX)]) == ("compaction", SEAL_PREFIX)
    assert "r0_1" not in item["encrypted_content"]
    assert answered["usage"]["total_tokens"] == 0, "no model wrote it"


async def test_the_item_stands_for_the_list_with_any_model() -> None:
    setup, translator = translated(response())
    _, body = await setup.ask(COMPACT, codex(12))
    output = json.loads(body)["output"]
    setup.router.only = Route("other", "litellm", model="groq/else")
    await setup.ask(RESPONSES, {"model": "other", "input": [*output, {"role": "user", "content": "go on"}]})
    [sent] = translator.bodies
    texts = json.dumps(sent["input"])
    assert not any(each.get("type") == "compaction" for each in sent["input"])
    assert texts.count("the task") == 1
    assert texts.count("now sum up") == 1
    assert sent["input"][-1]["content"] == "go on"
    assert "art_" in texts
    assert "r2_199" not in texts
    assert len(texts) < len(json.dumps(codex(12))) / 2
    assert [tool["name"] for tool in sent["tools"]] == ["read_artifact"]


async def test_a_list_that_is_compacted_again_repeats_the_clients_messages_alone() -> None:
    setup, translator = translated(response())
    output: list[Json] = []
    for number in range(3):
        items = codex(12)["input"]
        for item in items:
            if "call_id" in item:
                item["call_id"] += f"_{number}"
        items[0]["content"], items[-1]["content"] = f"task {number}", f"sum up {number}"
        output = json.loads((await setup.ask(COMPACT, {"model": "m", "input": [*output, *items]}))[1])["output"]
    said = [each["content"][0]["text"] for each in output[:-1]]
    assert said == ["task 0", "sum up 0", "task 1", "sum up 1", "task 2", "sum up 2"]
    await setup.ask(RESPONSES, {"model": "m", "input": [*output, {"role": "user", "content": "go on"}]})
    sent = [json.dumps(each) for each in translator.bodies[0]["input"]]
    assert sum(": data, not a request" in each for each in sent) == 1
    assert all(sum(f'"{text}"' in each for each in sent) == 1 for text in said)


async def test_messages_that_a_client_puts_before_the_item_stay() -> None:
    setup, translator = translated(response())
    item = json.loads((await setup.ask(COMPACT, codex(12)))[1])["output"][-1]
    context = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a sandbox"}]}
    await setup.ask(RESPONSES, {"model": "m", "input": [context, {"role": "user", "content": "where"}, item]})
    first, second = translator.bodies[0]["input"][:2]
    assert (first, second["content"]) == (context, "where")


async def test_what_left_the_list_can_be_read_behind_the_item() -> None:
    setup, _ = translated()
    output = json.loads((await setup.ask(COMPACT, codex(12)))[1])["output"]

    class ReadingTranslator(Translator):
        async def send(self, protocol_name: str, body: bytes, *_more: Any) -> FakeReply:
            self.bodies.append(json.loads(body))
            if len(self.bodies) == 2:
                return response()
            named = "art_" + json.dumps(self.bodies[0]["input"]).partition("art_")[2][:12]
            call = {"type": "function_call", "id": "fc", "call_id": "k", "name": "read_artifact"}
            return response({**call, "arguments": json.dumps({"id": named})})

    reading = ReadingTranslator()
    setup.replace_in("sender", translator=reading)
    await setup.ask(RESPONSES, {"model": "m", "input": [*output, {"role": "user", "content": "go on"}]})
    read = reading.bodies[1]["input"][-1]
    assert read["type"] == "function_call_output"
    assert "r0_1" in read["output"]


async def test_a_native_place_has_its_path_asked_unchanged() -> None:
    setup = edit_setup()
    setup.upstream.answers = [reply({"object": "response.compaction", "output": []})]
    raw = json.dumps(codex(12), indent=1).encode()
    out, body = await setup.ask(COMPACT, raw)
    assert out.status == 200
    assert setup.upstream.requests[0].url == "http://upstream.test/v1/responses/compact"
    assert setup.upstream.requests[0].body == raw
    assert json.loads(body)["output"] == []


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_place_without_the_path_is_asked_once_a_day(status: int) -> None:
    setup = edit_setup()
    setup.upstream.answers = [reply({"detail": "Not Found"}, status)]
    for _ in range(2):
        out, body = await setup.ask(COMPACT, codex(12))
        assert (out.status, json.loads(body)["object"]) == (200, "response.compaction")
    assert len(setup.upstream.requests) == 1
    setup.clock.advance(86_400)
    setup.upstream.answers = [reply({"object": "response.compaction", "output": []})]
    assert json.loads((await setup.ask(COMPACT, codex(12)))[1])["output"] == []


async def test_a_model_that_is_not_found_is_no_missing_path() -> None:
    setup = edit_setup()
    error = {"error": {"code": "model_not_found", "message": "The model `x` does not exist"}}
    setup.upstream.answers = [reply(error, 404), reply(error, 404)]
    for _ in range(2):
        out, body = await setup.ask(COMPACT, codex(12))
        assert (out.status, json.loads(body)) == (404, error)
    assert len(setup.upstream.requests) == 2


async def test_a_short_list_is_sealed_as_it_is() -> None:
    setup, translator = translated(response())
    output = json.loads((await setup.ask(COMPACT, codex(0)))[1])["output"]
    await setup.ask(RESPONSES, {"model": "m", "input": [*output, {"role": "user", "content": "go on"}]})
    said = [
        each["content"] if isinstance(each["content"], str) else each["content"][0]["text"]
        for each in translator.bodies[0]["input"]
    ]
    assert said == ["the task", "It is read.", "now sum up", "go on"]


async def test_an_item_without_a_model_costs_nothing_and_is_recorded() -> None:
    setup, _ = translated(keys=(ProxyKey("team", "proxy-key-of-team", KeyLimits(tokens_per_day=100_000)),))
    await setup.ask(COMPACT, codex(12), {"x-api-key": "proxy-key-of-team"})
    [exchange] = setup.recorder.exchanges
    assert (exchange.costs, exchange.usage, exchange.path) == (None, None, COMPACT)
    assert exchange.compaction is not None
    assert exchange.compaction.state == "compacted"
    assert setup.key_usage.usage("team").tokens == 0


async def test_the_history_of_a_stored_response_is_not_compacted_here() -> None:
    setup, _ = translated()
    out, body = await setup.ask(COMPACT, {"model": "m", "previous_response_id": "resp_1", "input": []})
    assert out.status == 400
    assert "send all items" in json.loads(body)["error"]["message"]


# -- who may open a block ----------------------------------------------------------------------------------------------

KEYS = (ProxyKey("team", "proxy-key-of-team"), ProxyKey("rival", "proxy-key-of-rival"))


@pytest.mark.parametrize("encrypted", ["gAAAAforeign", "theirs", "broken"])
async def test_a_block_of_another_opens_for_nobody_else(encrypted: str) -> None:
    setup, translator = translated(response(), keys=KEYS)
    team, rival = ({"x-api-key": f"proxy-key-of-{name}"} for name in ("team", "rival"))
    item = json.loads((await setup.ask(COMPACT, codex(12), team))[1])["output"][-1]
    if encrypted != "theirs":
        item["encrypted_content"] = encrypted if encrypted != "broken" else item["encrypted_content"][:-8] + "AAAAAAA="
    body = {"model": "m", "input": [item, {"role": "user", "content": "go on"}]}
    out, answered = await setup.ask(RESPONSES, body, rival)
    assert out.status == 400
    assert "compaction item is sealed" in json.loads(answered)["error"]["message"]
    assert translator.bodies == []
    # A provider that may know it gets it as it is.
    setup.router.only = NATIVE_OPENAI
    setup.upstream.answers = [response()]
    await setup.ask(RESPONSES, body, {"x-accordion-key": "proxy-key-of-rival", "authorization": "Bearer sk"})
    assert json.loads(setup.upstream.requests[-1].body) == body  # type: ignore[arg-type]


async def test_our_block_is_opened_on_the_way_to_a_native_place() -> None:
    setup, _ = translated()
    output = json.loads((await setup.ask(COMPACT, codex(12)))[1])["output"]
    setup.router.only = NATIVE_OPENAI
    setup.upstream.answers = [response()]
    await setup.ask(RESPONSES, {"model": "m", "input": [*output, {"role": "user", "content": "go on"}]})
    assert SEAL_PREFIX.encode() not in setup.upstream.requests[0].body  # type: ignore[operator]


# -- a compaction within a response of Responses -----------------------------------------------------------------------


async def test_a_response_begins_with_the_item_from_the_threshold_on() -> None:
    setup, translator = translated(response(), response())
    for threshold, kinds in ((100_000, ["message"]), (500, ["compaction", "message"])):
        management = [{"type": "compaction", "compact_threshold": threshold}]
        _, body = await setup.ask(RESPONSES, codex(12, context_management=management))
        assert [each["type"] for each in json.loads(body)["output"]] == kinds
        assert "context_management" not in translator.bodies[-1]
    assert len(json.dumps(translator.bodies[1])) < len(json.dumps(translator.bodies[0])) / 2
    assert json.loads(body)["usage"]["input_tokens"] == 100


async def test_the_history_behind_the_item_goes_on_from_what_was_sent() -> None:
    setup, translator = translated(response(), response())
    management = [{"type": "compaction", "compact_threshold": 500}]
    first = codex(12, context_management=management)
    output = json.loads((await setup.ask(RESPONSES, first))[1])["output"]
    for before in (first["input"], []):
        del translator.bodies[1:]
        translator.answers = [response()]
        await setup.ask(RESPONSES, {"model": "m", "input": [*before, *output, {"role": "user", "content": "go on"}]})
        sent = translator.bodies[1]["input"]
        assert sent[: len(translator.bodies[0]["input"])] == translator.bodies[0]["input"]
        assert [each["content"] for each in sent[-2:]] == [[{"type": "output_text", "text": "Done."}], "go on"]


async def test_a_stream_has_the_item_first_and_its_numbers_stay_in_order() -> None:
    start = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    setup, _ = translated(
        events(
            {"type": "response.created", "sequence_number": 0, "response": start},
            {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": item},
            {"type": "response.output_text.delta", "sequence_number": 2, "output_index": 0, "delta": "Hi"},
            {"type": "response.output_item.done", "sequence_number": 3, "output_index": 0, "item": item},
            {"type": "response.completed", "sequence_number": 4, "response": {**start, "output": [item]}},
        )
    )
    management = [{"type": "compaction", "compact_threshold": 500}]
    _, body = await setup.ask(RESPONSES, codex(12, stream=True, context_management=management))
    got = parsed_events(body)
    assert [each["sequence_number"] for each in got] == list(range(8))
    assert [each["type"].removeprefix("response.") for each in got] == [
        "created", "output_item.added", "compaction.compacting", "output_item.done",
        "output_item.added", "output_text.delta", "output_item.done", "completed",
    ]  # fmt: skip
    assert [each.get("output_index") for each in got[1:7]] == [0, 0, 0, 1, 1, 1]
    assert [each["type"] for each in got[-1]["response"]["output"]] == ["compaction", "message"]
    assert got[3]["item"] == got[-1]["response"]["output"][0]


@pytest.mark.parametrize("asks", [{}, {"stream": True}, {"type": "response.create"}], ids=["", "stream", "socket"])
async def test_a_trigger_is_answered_with_the_item_alone(asks: Any) -> None:
    setup, translator = translated(response())
    asked, stream = codex(12, **asks), bool(asks)
    asked["input"].append({"type": "compaction_trigger"})
    _, body = await setup.ask(RESPONSES, asked)
    assert translator.bodies == []
    ended = parsed_events(body)[-1]["response"] if stream else json.loads(body)
    [item] = ended["output"]
    assert (item["type"], ended["status"], ended["object"]) == ("compaction", "completed", "response")
    await setup.ask(RESPONSES, {"model": "m", "input": [item, {"role": "user", "content": "go on"}]})
    assert "the task" in json.dumps(translator.bodies[0])


# -- a compaction of Messages ------------------------------------------------------------------------------------------


async def test_a_message_begins_with_the_compaction_block() -> None:
    setup, translator = translated(message(), message())
    asked = claude(12, context_management={"edits": [COMPACT_EDIT]})
    answered = json.loads((await setup.ask(MESSAGES, asked))[1])
    block, text = answered["content"]
    assert (block["type"], text["text"]) == ("compaction", "Done.")
    assert "the task" in block["content"]
    assert "art_" in block["content"]
    assert answered["usage"]["input_tokens"] == 100
    assert [each["type"] for each in answered["usage"]["iterations"]] == ["compaction", "message"]
    assert answered["usage"]["iterations"][1]["input_tokens"] == 100
    assert answered["context_management"] == {"applied_edits": []}
    follow = [
        *asked["messages"],
        {"role": "assistant", "content": answered["content"]},
        {"role": "user", "content": "go on"},
    ]
    await setup.ask(MESSAGES, claude(0) | {"messages": follow})
    first, second = (without_breakpoints(each["messages"]) for each in translator.bodies)
    assert second[: len(first)] == first
    assert second[len(first) :] == [
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
        {"role": "user", "content": "go on"},
    ]
    assert len(json.dumps(second)) < len(json.dumps(asked["messages"])) / 2
    assert [tool["name"] for tool in translator.bodies[1]["tools"]] == ["read_artifact"]


async def test_a_stream_has_the_block_first() -> None:
    start = {"id": "m", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 90}}
    setup, _ = translated(
        events(
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
            {"type": "message_stop"},
        )
    )
    _, body = await setup.ask(MESSAGES, claude(12, stream=True, context_management={"edits": [COMPACT_EDIT]}))
    got = parsed_events(body)
    assert [each.get("index") for each in got] == [None, 0, 0, 0, 1, 1, 1, None, None]
    assert got[2]["delta"]["type"] == "compaction_delta"
    assert got[2]["delta"]["content"]
    assert [each["type"] for each in got[-2]["usage"]["iterations"]] == ["compaction", "message"]
    assert got[-2]["usage"]["iterations"][1] == {
        "type": "message", "input_tokens": 90, "output_tokens": 5,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
    }  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pause_answers_with_the_block_alone(stream: bool) -> None:
    setup, translator = translated(message())
    edit = {**COMPACT_EDIT, "pause_after_compaction": True}
    asked = claude(12, stream=stream, context_management={"edits": [edit]})
    _, body = await setup.ask(MESSAGES, asked)
    assert translator.bodies == []
    if stream:
        got = parsed_events(body)
        block, reason = {**got[2]["delta"], "type": "compaction"}, got[-2]["delta"]["stop_reason"]
    else:
        [block], reason = json.loads(body)["content"], json.loads(body)["stop_reason"]
    assert reason == "compaction"
    # The client sends the newest messages again behind the block.
    newest = asked["messages"][-2:]
    await setup.ask(MESSAGES, claude(0) | {"messages": [{"role": "assistant", "content": [block]}, *newest]})
    [sent] = translator.bodies
    assert [each for each in sent["messages"] if each in newest] == newest


async def test_a_pause_below_the_threshold_is_none() -> None:
    setup, translator = translated(message())
    edit = {"type": "compact_20260112", "pause_after_compaction": True}
    _, body = await setup.ask(MESSAGES, claude(12, context_management={"edits": [edit]}))
    assert json.loads(body)["stop_reason"] == "end_turn"
    assert len(translator.bodies) == 1


async def test_a_compaction_on_demand_gives_the_block_alone() -> None:
    setup, _ = translated()
    _, body = await setup.ask(MESSAGES, claude(12, compaction={"type": "summarize"}))
    answered = json.loads(body)
    assert [each["type"] for each in answered["content"]] == ["compaction"]
    assert "context_management" not in answered


async def test_a_readable_block_of_another_provider_goes_to_a_translated_place_as_text() -> None:
    setup, translator = translated(message(), message())
    block = {"type": "compaction", "content": "In short: we agreed.", "signature": "sig"}
    messages = [
        {"role": "user", "content": "long ago"},
        {"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "go on"},
    ]
    body = {"model": "m", "max_tokens": 9, "messages": messages}
    await setup.ask(MESSAGES, body)
    assert translator.bodies[0]["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "In short: we agreed."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "go on"},
    ]
    # One without a text stands for a failed compaction.
    messages[1]["content"][0]["content"] = None  # type: ignore[index]
    await setup.ask(MESSAGES, body)
    assert [len(each["content"]) for each in translator.bodies[1]["messages"]] == [8, 1, 5]


@pytest.mark.parametrize(
    ("section", "configured"),
    [
        ("", ""),
        ("summaries: {instructions: Keep the tickets.}", "Keep the tickets.\n"),
        ("summaries: {instructions: x, models: {smart: {instructions: Keep the dates.}}}", "Keep the dates.\n"),
        ("summaries: {instructions: Keep the dates., models: {other: {instructions: x}}}", "Keep the dates.\n"),
    ],
)
async def test_the_users_instructions_reach_the_writer_of_the_summary(section: str, configured: str) -> None:
    asked: list[Any] = []

    class Writer:
        def limits(self, caller: Any) -> SummaryLimits:
            return SummaryLimits(100_000, 16_000)

        async def write(self, request: Any, caller: Any) -> Any:
            asked.append(request)
            raise ValueError("enough")

    config = "model_list: [{model_name: smart, litellm_params: {model: openai/gpt-5}}]\n" + section
    setup, _ = translated(message(), summarizer=Writer(), config=config)
    edit = {**COMPACT_EDIT, "instructions": "Keep the names of all files."}
    headers = {"x-accordion-instructions": "Be brief."}
    _, body = await setup.ask(MESSAGES, claude(12, context_management={"edits": [edit]}), headers)
    assert asked[0].instructions.endswith(f"\n{configured}Be brief.\nKeep the names of all files.")
    assert json.loads(body)["content"][0]["type"] == "compaction", "an extract takes its place"


async def test_a_request_with_context_edits_is_counted_first():
    setup, _ = translated(message(), message(), tasks=HeldTasks())
    setup.replace_in("measurer", can_estimate=True)
    asked = {**body(LONG), "max_tokens": 9}
    plain, _ = await setup.ask(MESSAGES, asked)
    edited, _ = await setup.ask(MESSAGES, {**asked, "context_management": {"edits": [CLEAR]}})
    assert (header(plain, SOURCE), header(edited, SOURCE)) == ("estimate", None)
