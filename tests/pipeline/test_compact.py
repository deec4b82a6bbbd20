"""What must never become of a request that is compacted, in one process."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from accordion.protocols.registry import PROTOCOLS
from tests.fakes import FakeReply, FakeWindows
from tests.histories import Call, History, HistoryRound, Image, ProtocolName, Turn, body
from tests.pipeline_setup import CHAT, MESSAGES, RESPONSES, PipelineSetup, header
from tests.reply_parts import fake_reply
from tests.writers import WRITERS, reading_request, words

Json = dict[str, Any]
COUNT = "/v1/messages/count_tokens"


def refused(limit: int, tokens: int) -> FakeReply:
    said = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens. "
        "Please reduce the length of the messages."
    )
    error = {"error": {"message": said, "type": "invalid_request_error", "code": "context_length_exceeded"}}
    return FakeReply(400, pieces=(json.dumps(error).encode(),))


def claude(rounds: int, marked: int = -1) -> Json:
    """`marked`: the round whose result bears a cache breakpoint."""
    request = reading_request("messages", rounds, model="claude-sonnet-4-5", max_tokens=9)
    if marked >= 0:
        request["messages"][2 * marked + 2]["content"][0]["cache_control"] = {"type": "ephemeral"}
    return request


def sent(setup: PipelineSetup) -> Json:
    body = setup.upstream.requests[-1].body
    assert isinstance(body, bytes)
    return dict(json.loads(body))


def state(out: Any) -> str:
    return str(json.loads(header(out, "x-accordion-compaction") or '{"state":"none"}')["state"])


# -- what is not to be touched ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "headers"),
    [
        ("compaction: {mode: off}", {}),
        ("compaction: {mode: observe}", {}),
        ("", {"x-accordion-compact": "off"}),
        ("", {"x-accordion-compact": "observe"}),
    ],
)
async def test_an_overflow_is_passed_on_with_compaction_switched_off(config: str, headers: dict[str, str]) -> None:
    setup = PipelineSetup(config=config)
    setup.upstream.answers = [refused(3_000, 5_000)]
    out, body = await setup.ask(CHAT, reading_request("chat", 20), headers)
    assert (out.status, len(setup.upstream.requests)) == (400, 1)
    assert b"maximum context length" in body
    assert setup.windows.learnt


@pytest.mark.parametrize("kept", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
async def test_an_overflow_of_what_the_provider_keeps_takes_no_result_away(kept: Json) -> None:
    setup = PipelineSetup()
    setup.upstream.answers = [refused(3_000, 5_000)]
    outputs = [
        {"type": "function_call_output", "call_id": f"c{at}", "output": words(200, f"r{at}_")} for at in range(20)
    ]
    items = [*outputs, {"role": "user", "content": "go on"}]
    out, _ = await setup.ask(RESPONSES, {"model": "gpt-5", "input": items, **kept})
    # A conversation object's items are asked for, and not given.
    assert (out.status, [each.method for each in setup.upstream.requests].count("POST")) == (400, 1)


async def test_figures_that_an_error_may_only_quote_do_not_shape_the_compact() -> None:
    setup, plain = PipelineSetup(), PipelineSetup()
    request = reading_request("chat", 20)
    request["messages"].append({"role": "user", "content": "Who says that maximum context length is 300?"})
    for each, said in ((setup, "maximum context length is 300"), (plain, "prompt is too long")):
        each.upstream.answers = [FakeReply(400, pieces=(said.encode(),))]
        out, _ = await each.ask(CHAT, request)
        assert (out.status, len(each.upstream.requests)) == (200, 2)
    assert sent(setup) == sent(plain)
    assert setup.windows.learnt == []


# -- where the answer that is asked for takes the room -----------------------------------------------------------------

VLLM = (
    "This model's maximum context length is {0} tokens. However, you requested {1} output tokens and your prompt "
    "contains at least {2} input tokens, for a total of at least {3} tokens."
)
VLLM_ALONE = (
    "'max_tokens' or 'max_completion_tokens' is too large: {1}. This model's maximum context length is {0} tokens and "
    "your request has {2} input tokens ({1} > {0} - {2})."
)
OPENAI = (
    "This model's maximum context length is {0} tokens. However, you requested {3} tokens ({2} in the messages, {1} in "
    "the completion). Please reduce the length of the messages or completion."
)


def crowded(words: str, limit: int, output: int, given: int) -> FakeReply:
    said = words.format(limit, output, given, output + given)
    return FakeReply(400, pieces=(json.dumps({"error": {"message": said, "code": 400}}).encode(),))


@pytest.mark.parametrize("words", [VLLM, VLLM_ALONE, OPENAI])
@pytest.mark.parametrize("output", [8_000, 9_000])
async def test_no_history_is_compacted_where_the_answer_alone_fills_the_window(words: str, output: int) -> None:
    setup, request = PipelineSetup(), reading_request("chat", 20) | {"max_tokens": output}
    setup.upstream.answers = [crowded(words, 8_000, output, 5_000)]
    out, body = await setup.ask(CHAT, request)
    assert (out.status, len(setup.upstream.requests)) == (400, 1)
    assert b"maximum context length is 8000" in body
    assert {learnt[-1] for learnt in setup.windows.learnt} == {8_000}
    out, _ = await setup.ask(CHAT, request | {"max_tokens": 1_000})
    assert (out.status, state(out)) == (200, "none")
    assert sent(setup)["messages"] == request["messages"]


async def test_no_history_is_compacted_where_what_stays_does_not_fit_beside_the_answer() -> None:
    setup, request = PipelineSetup(), reading_request("chat", 20) | {"max_tokens": 5_900}
    request["messages"].append({"role": "user", "content": words(2_000, "question")})
    setup.upstream.answers = [crowded(VLLM, 8_000, 5_900, 6_500)]
    out, _ = await setup.ask(CHAT, request)
    assert (out.status, len(setup.upstream.requests)) == (400, 1)
    out, _ = await setup.ask(CHAT, request | {"max_tokens": 10})
    assert state(out) == "none"


async def test_a_history_is_compacted_to_what_the_answer_leaves_of_the_window() -> None:
    setup, request = PipelineSetup(), reading_request("chat", 20) | {"max_tokens": 5_000}
    setup.upstream.answers = [crowded(VLLM, 8_000, 5_000, 6_000)]
    out, _ = await setup.ask(CHAT, request)
    assert (out.status, len(setup.upstream.requests)) == (200, 2)
    told = json.loads(header(out, "x-accordion-compaction") or "")
    assert (told["state"], told["cause"], told["before"]) == ("compacted", "overflow", 6_000)
    assert int(header(out, "x-accordion-tokens") or 0) + 5_000 < 8_000


# -- items that only the provider has ---------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 2])
async def test_results_of_calls_that_are_sent_by_reference_stay(every: int) -> None:
    items: list[Json] = [{"role": "user", "content": "the task"}]
    for at in range(20):
        call = {"type": "function_call", "call_id": f"c{at}", "name": "read", "arguments": f'{{"at":{at}}}'}
        items.append(call if at % every else {"type": "item_reference", "id": f"fc_{at}"})
        items.append({"type": "function_call_output", "call_id": f"c{at}", "output": words(200, f"r{at}_")})
    items += [{"role": "assistant", "content": "found"}, {"role": "user", "content": "go on"}]
    setup = PipelineSetup(windows=FakeWindows(4_000))
    out, _ = await setup.ask(RESPONSES, {"model": "gpt-5", "input": items})
    assert (out.status, state(out)) == (200, "compacted")
    given = sent(setup)["input"]
    answered = {item["call_id"] for item in given if item.get("type") == "function_call_output"}
    assert {item["id"] for item in given if item.get("type") == "item_reference"} == {
        f"fc_{at}" for at in range(0, 20, every)
    }
    assert answered >= {f"c{at}" for at in range(0, 20, every)}
    assert len(json.dumps(given)) < len(json.dumps(items)) * 0.6


async def test_words_that_are_only_named_before_anybody_spoke_stay() -> None:
    """They may be what the user asked: OpenAI's messages have such ids, whoever said them."""
    items: list[Json] = [{"type": "item_reference", "id": "msg_task"}]
    for at in range(20):
        items.append({"type": "function_call", "call_id": f"c{at}", "name": "read", "arguments": f'{{"at":{at}}}'})
        items.append({"type": "function_call_output", "call_id": f"c{at}", "output": words(200, f"r{at}_")})
        items.append({"type": "item_reference", "id": f"msg_{at}"})
    items += [{"role": "user", "content": "go on"}]
    setup = PipelineSetup(windows=FakeWindows(4_000))
    out, _ = await setup.ask(RESPONSES, {"model": "gpt-5", "input": items})
    assert (out.status, state(out)) == (200, "compacted")
    named = {item["id"] for item in sent(setup)["input"] if item.get("type") == "item_reference"}
    assert "msg_task" in named
    assert len(json.dumps(sent(setup)["input"])) < len(json.dumps(items)) * 0.6


# -- what the system says within the list -----------------------------------------------------------------------------


def misplaced(messages: list[Json]) -> list[int]:
    """The system's messages that Anthropic refuses: not behind the user's, or neither before a reply nor at the end."""
    roles = [message["role"] for message in messages] + ["assistant"]
    return [
        at
        for at, role in enumerate(roles)
        if role == "system" and not (at and roles[at - 1] == "user" and roles[at + 1] == "assistant")
    ]


def find_tool_changes(messages: list[Json]) -> list[Json]:
    """The blocks of system messages that change the tools, in order."""
    blocks = [each for message in messages if message["role"] == "system" for each in message["content"]]
    return [block for block in blocks if isinstance(block, dict) and block["type"] in ("tool_addition", "tool_removal")]


@pytest.mark.parametrize("seed", range(30))
async def test_what_the_system_says_within_the_list_stands_where_the_provider_takes_it(seed: int) -> None:
    chance, messages = random.Random(seed), list[Json]()
    for at in range(12):
        messages.append({"role": "user", "content": f"part {at}"})
        while True:
            if chance.random() < 0.4:
                messages.append({"role": "system", "content": f"rule {len(messages)}"})
            elif chance.random() < 0.3:
                tool = {"type": "tool_reference", "name": f"tool{len(messages)}"}
                kind = chance.choice(["tool_addition", "tool_removal"])
                messages.append({"role": "system", "content": [{"type": kind, "tool": tool}]})
            if chance.random() < 0.5:
                messages.append({"role": "assistant", "content": words(120, f"a{at}_")})
                break
            use = {"type": "tool_use", "id": f"t{len(messages)}", "name": "read", "input": {}}
            result = {"type": "tool_result", "tool_use_id": use["id"], "content": words(120, f"r{at}_")}
            messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    messages.append({"role": "user", "content": "the last part"})
    if seed % 2:
        messages.append({"role": "system", "content": "the last rule"})
    assert misplaced(messages) == []
    setup, body = PipelineSetup(windows=FakeWindows(100_000)), {"model": "claude-sonnet-4-5", "max_tokens": 9}
    out, _ = await setup.ask(MESSAGES, {**body, "messages": messages}, {"x-accordion-compact": "now"})
    assert state(out) == "compacted"
    given = sent(setup)["messages"]
    assert misplaced(given) == []
    assert find_tool_changes(given) == find_tool_changes(messages)
    rules = [each["content"] for each in messages if each["role"] == "system" and isinstance(each["content"], str)]
    assert not rules or f'"{rules[-1]}"' in json.dumps([each for each in given if each["role"] == "system"])
    # What comes behind is taken with the compaction, at the same places.
    more = [{"role": "assistant", "content": "well"}, {"role": "user", "content": "and?"}]
    await setup.ask(MESSAGES, {**body, "messages": [*messages, *more]})
    assert misplaced(sent(setup)["messages"]) == []
    assert sent(setup)["messages"][: len(given) - 1] == given[:-1]


# -- breakpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", ["chat", "responses", "messages", "converse"])
async def test_reminders_in_every_round_leave_with_their_rounds(protocol_name: ProtocolName) -> None:
    setup, rounds, compacted = PipelineSetup(windows=FakeWindows(8_000)), list[HistoryRound](), list[int]()
    for at in range(40):
        call = Call(f"call_{at}", "read", {"path": f"{at}.py"}, words(200, f"r{at}_"))
        rounds.append(HistoryRound((call,), instruction=f"Reminder {at}: {words(100, f'i{at}_')}"))
        request = body(History((Turn(("the task",), tuple(rounds)),)), protocol_name)
        out, _ = await setup.ask(WRITERS[protocol_name].path("gpt-5"), request)
        assert out.status == 200
        compacted += [at] if state(out) == "compacted" else []
    assert 2 <= len(compacted) <= 8
    assert json.dumps(sent(setup)).count("Reminder ") < 12


async def test_a_breakpoint_that_the_client_moves_on_does_not_stay_in_what_was_compacted() -> None:
    config = "compaction: {pipeline: [{compact_tool_results: {keep_last_n: 1, replacement: 'kept as {artifact_id}'}}]}"
    setup = PipelineSetup(windows=FakeWindows(4_000), config=config)
    system = [{"type": "text", "text": part, "cache_control": {"type": "ephemeral"}} for part in ("a", "b", "c")]
    marks = []
    for rounds in range(1, 30):
        # Three breakpoints in the system prompt, the fourth moves along with the result before the newest.
        out, _ = await setup.ask(MESSAGES, claude(rounds, marked=max(0, rounds - 2)) | {"system": system})
        assert out.status == 200
        marks.append(json.dumps(sent(setup)).count('"cache_control"'))
    assert state(out) in ("compacted", "replayed")
    assert max(marks) <= 4


# -- thinking that is bound to what was shown -------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "stays"), [("claude-opus-5-5", True), ("claude-sonnet-4-5", False)])
async def test_bound_thinking_stays_where_a_compaction_may_fail(model: str, stays: bool) -> None:
    """Scarlet works for red, and then for blue: what it saw of red is hidden before the next compaction."""
    setup = PipelineSetup()
    messages: list[Json] = [{"role": "user", "content": "the task"}]

    async def step(name: str, parent: str, *said: Json, word: str = "auto") -> None:
        call = {"type": "tool_use", "id": f"toolu_of_{name}_{len(messages)}", "name": "read", "input": {"at": name}}
        reply = {"role": "assistant", "content": [*said, call]}
        document = {"id": "msg_1", "type": "message", "model": model, "stop_reason": "tool_use", **reply}
        answer = json.dumps(document | {"usage": {"input_tokens": 9, "output_tokens": 9}}).encode()
        setup.upstream.answers = [FakeReply(headers=((b"content-type", b"application/json"),), pieces=(answer,))]
        headers = {"x-accordion-delegation": name, "x-accordion-compact": word}
        headers |= {"x-accordion-parent": parent} if parent else {}
        out, _ = await setup.ask(MESSAGES, {"model": model, "max_tokens": 9, "messages": messages}, headers)
        assert out.status == 200
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": words(50, name)}
        messages.extend([reply, {"role": "user", "content": [result]}])

    await step("red", "")
    await step("blue", "")
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk" * 9}
    await step("scarlet", "red", thinking)
    before = sent(setup)["messages"]
    assert "toolu_of_red" in json.dumps(before)
    await step("scarlet", "blue", word="now")
    after = sent(setup)["messages"]
    assert "signature" in json.dumps(after)
    assert (after[: len(before)] == before) is stays


# -- calls that are answered late -------------------------------------------------------------------------------------


async def test_a_compaction_that_took_an_open_call_out_is_not_applied_once_it_is_answered() -> None:
    setup = PipelineSetup(windows=FakeWindows(4_000))
    body = reading_request("chat", 20)
    late = body["messages"][3]
    late["tool_calls"].append({"id": "late", "type": "function", "function": {"name": "wait", "arguments": "{}"}})
    messages = [*body["messages"], {"role": "user", "content": "meanwhile"}]
    out, _ = await setup.ask(CHAT, body | {"messages": messages})
    assert state(out) == "compacted"
    assert "late" not in json.dumps(sent(setup))
    messages += [{"role": "assistant", "content": "yes"}, {"role": "tool", "tool_call_id": "late", "content": "now"}]
    await setup.ask(CHAT, body | {"messages": messages})
    given = json.dumps(sent(setup))
    assert ('"id": "late"' in given or '"id":"late"' in given) == ('"tool_call_id": "late"' in given)


# -- nothing is lost --------------------------------------------------------------------------------------------------


async def test_what_is_sliced_again_is_still_named_by_an_id_that_leads_to_it() -> None:
    setup = PipelineSetup(windows=FakeWindows(1_000))
    messages: list[Json] = [{"role": "user", "content": "TASK " + words(1_500, "t")}]
    found = set()
    for at in range(8):
        await setup.ask(CHAT, {"model": "gpt-5", "messages": messages})
        found |= set(re.findall(r"art_[0-9a-f]{12}", json.dumps(sent(setup))))
        messages += [{"role": "assistant", "content": f"a{at}"}, {"role": "user", "content": words(300, f"u{at}_")}]
    tenant = setup.forward.tenants.identify({}).tenant
    protocols = PROTOCOLS
    texts = {name: await setup.builder.artifact_text(name, tenant, protocols) for name in found}
    assert len(texts) > 2
    assert None not in texts.values()


# -- counting ---------------------------------------------------------------------------------------------------------


async def test_counting_answers_for_any_size() -> None:
    setup = PipelineSetup(windows=FakeWindows(1_000))
    body = claude(0) | {"system": words(3_000, "s")}
    out, _ = await setup.ask(COUNT, body)
    assert (out.status, len(setup.upstream.requests)) == (200, 1)
    out, _ = await setup.ask(MESSAGES, body)
    assert (out.status, len(setup.upstream.requests)) == (400, 1)


async def test_counting_compacts_as_the_request_would_be_and_keeps_nothing() -> None:
    setup = PipelineSetup(windows=FakeWindows(4_000))
    out, _ = await setup.ask(COUNT, claude(20))
    assert state(out) == "compacted"
    counted = sent(setup)["messages"]
    tenant = setup.forward.tenants.identify({}).tenant
    out, _ = await setup.ask(MESSAGES, claude(20))
    # It is this request that makes the compaction, so that what left is listed with its session.
    assert state(out) == "compacted"
    assert sent(setup)["messages"] == counted
    assert await setup.builder.archive.list_artifacts(tenant, header(out, "x-accordion-session") or "")


async def test_a_compaction_that_is_asked_for_while_counting_is_none_of_the_conversations() -> None:
    setup = PipelineSetup()
    out, _ = await setup.ask(COUNT, claude(20), {"x-accordion-compact": "now"})
    assert state(out) == "compacted"
    out, _ = await setup.ask(MESSAGES, claude(20))
    assert state(out) == "none"


# -- legality ---------------------------------------------------------------------------------------------------------


async def test_thinking_between_calls_that_are_dropped_leaves_with_them() -> None:
    config = "compaction: {pipeline: [{compact_tool_results: {keep_last_n: 1, replacement: drop}}]}"
    messages: list[Json] = [{"role": "user", "content": "the task"}]
    for at in range(10):
        thoughts = [{"type": "thinking", "thinking": "so", "signature": f"{at}{n}"} for n in range(2)]
        calls = [{"type": "tool_use", "id": f"c{at}_{n}", "name": "read", "input": {}} for n in range(2)]
        said = [{"type": "text", "text": f"step {at}"}]
        messages.append({"role": "assistant", "content": [thoughts[0], *said, calls[0], thoughts[1], calls[1]]})
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": words(200, "r")} for call in calls]
        messages.append({"role": "user", "content": results})
    messages += [{"role": "assistant", "content": "done"}, {"role": "user", "content": "next"}]
    setup = PipelineSetup(windows=FakeWindows(6_000), config=config)
    out, _ = await setup.ask(MESSAGES, {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages})
    assert state(out) == "compacted"
    replies = [entry["content"] for entry in sent(setup)["messages"] if entry["role"] == "assistant"]
    assert [block for block in replies[0] if block["type"] != "thinking"] == [{"type": "text", "text": "step 0"}]
    assert all(not isinstance(content, list) or content[-1]["type"] != "thinking" for content in replies)


async def test_reasoning_leaves_with_the_call_that_nobody_answered() -> None:
    items: list[Json] = [{"role": "user", "content": "the task"}]
    for at in range(12):
        items.append({"type": "reasoning", "id": f"rs_{at}", "summary": [], "encrypted_content": "x"})
        call = {"type": "function_call", "id": f"fc_{at}", "call_id": f"c{at}", "name": "read", "arguments": f"[{at}]"}
        items.append(call)
        items.append({"type": "function_call_output", "call_id": f"c{at}", "output": words(200, f"r{at}_")})
    # The last one was interrupted.
    items[-1] = {"role": "user", "content": "stop that"}
    setup = PipelineSetup(windows=FakeWindows(3_000))
    out, _ = await setup.ask(RESPONSES, {"model": "gpt-5", "input": items})
    assert state(out) == "compacted"
    assert sent(setup)["input"][-1] == items[-1]
    assert "rs_11" not in json.dumps(sent(setup))


# -- budgets beside tokens --------------------------------------------------------------------------------------------


async def test_images_over_the_budget_leave_even_where_their_references_count_more_tokens() -> None:
    setup = PipelineSetup(config="budgets: {max_images: 10}")
    source = {"type": "base64", "media_type": "image/png", "data": Image(1, 1).base64}
    shown = [{"type": "image", "source": source} for _ in range(12)]
    messages: list[Json] = [{"role": "user", "content": [{"type": "text", "text": "the task"}]}]
    messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": shown}]
    messages += [{"role": "assistant", "content": "seen"}, {"role": "user", "content": "go on"}]
    out, _ = await setup.ask(MESSAGES, {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages})
    assert state(out) == "compacted"
    assert json.dumps(sent(setup)).count('"image"') <= 10


async def test_room_for_an_answer_is_kept_as_configured_where_the_request_asks_for_none() -> None:
    setup = PipelineSetup(windows=FakeWindows(size=1_000), config="thresholds: {reserved_output: 300}\n")
    ask = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    out, _ = await setup.ask(CHAT, ask)
    tokens = int(dict(out.headers)[b"x-accordion-tokens"])
    assert dict(out.headers)[b"x-accordion-utilization"] == b"%.4f" % ((tokens + 300) / 1_000)
    out, _ = await setup.ask(CHAT, {**ask, "max_tokens": 50})
    assert dict(out.headers)[b"x-accordion-utilization"] == b"%.4f" % ((tokens + 50) / 1_000)


# -- the space for the answer ------------------------------------------------------------------------------------------


async def warmed(setup: PipelineSetup, outputs: list[int]) -> None:
    """A setup whose model has answered with so many tokens each time."""
    for at, output in enumerate(outputs):
        setup.upstream.answers = [fake_reply("chat", output=output)]
        await setup.ask(CHAT, {"model": "gpt-5", "messages": [{"role": "user", "content": f"hello {at}"}]})


def reserved(setup: PipelineSetup) -> int:
    return setup.recorder.exchanges[-1].utilization.reserved_output


@pytest.mark.parametrize(
    ("config", "outputs", "space"),
    [
        ("", [], 45_000),
        ("", [300] * 5, 8_192),
        ("", [300] * 5 + [9_000], 18_000),
        ("", [50_000] * 5, 45_000),
        ("thresholds: {output_factor: 3}", [9_000] * 5, 27_000),
        ("thresholds: {output_factor: 0}", [300] * 5, 45_000),
    ],
)
async def test_what_responses_needed_is_kept_free_of_a_far_larger_max_tokens(
    config: str, outputs: list[int], space: int
) -> None:
    setup = PipelineSetup(windows=FakeWindows(100_000), config=config)
    await warmed(setup, outputs)
    request = reading_request("chat", 30) | {"max_tokens": 45_000}
    request["messages"] += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "more"}]
    out, _ = await setup.ask(CHAT, request)
    assert reserved(setup) == space
    # With all of it, the request is over the trigger.
    assert state(out) == ("compacted" if space == 45_000 else "none")


async def test_a_session_with_long_answers_keeps_more_free_than_its_model_needs() -> None:
    setup, request = PipelineSetup(windows=FakeWindows(100_000)), reading_request("chat", 3) | {"max_tokens": 64_000}
    setup.upstream.answers = [fake_reply("chat", output=20_000)]
    await setup.ask(CHAT, request)
    await warmed(setup, [300] * 70)
    request["messages"] += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "more"}]
    await setup.ask(CHAT, request)
    assert reserved(setup) == 40_000


@pytest.mark.parametrize("words", [VLLM, OPENAI])
async def test_a_provider_that_counts_requested_output_gets_one_retry_and_is_remembered(words: str) -> None:
    setup = PipelineSetup(windows=FakeWindows(40_000))
    await warmed(setup, [300] * 5)
    sent_before = len(setup.upstream.requests)
    setup.upstream.answers = [crowded(words, 40_000, 30_000, 10_100)]
    out, _ = await setup.ask(CHAT, reading_request("chat", 45) | {"max_tokens": 30_000})
    assert (out.status, len(setup.upstream.requests) - sent_before) == (200, 2)
    assert json.loads(header(out, "x-accordion-compaction") or "")["cause"] == "overflow"
    assert setup.windows.counts_output
    await setup.ask(CHAT, reading_request("chat", 1) | {"max_tokens": 30_000})
    assert reserved(setup) == 30_000


async def test_an_overflow_by_the_input_alone_does_not_teach_that_output_counts() -> None:
    setup = PipelineSetup(windows=FakeWindows(100_000))
    await warmed(setup, [300] * 5)
    setup.upstream.answers = [refused(3_000, 4_100)]
    await setup.ask(CHAT, reading_request("chat", 20) | {"max_tokens": 64_000})
    assert not setup.windows.counts_output
