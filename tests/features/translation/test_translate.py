"""Translation through the real LiteLLM, against a loopback provider, read by the vendors' own clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from accordion.model.errors import UpstreamDisconnected
from tests.features.translation.translator_setup import (
    ARGUMENTS,
    CHAT_TOOL,
    KEY,
    REFUSALS,
    SCHEMA,
    TranslatorSetup,
    chat,
    say,
)

# Chat Completions, answered by an Anthropic provider


async def test_a_chat_request_is_answered_by_an_anthropic_provider(translator: TranslatorSetup) -> None:
    messages = [{"role": "system", "content": "be brief"}, *say()]
    reply = await translator.openai().chat.completions.with_raw_response.create(model="my-model", messages=messages)
    completion = reply.parse()
    assert completion.model == "my-model"
    assert completion.choices[0].message.content == "Hello"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (14, 5)
    assert reply.headers["content-type"] == "application/json"
    assert (reply.headers["request-id"], reply.headers["anthropic-ratelimit-tokens-limit"]) == ("req_1", "9")
    path, headers, body = translator.provider.seen[0]
    assert (path, headers["x-api-key"], body["model"]) == ("/v1/messages", KEY, "claude-sonnet-4-5")
    assert body["system"] == [{"type": "text", "text": "be brief"}]


async def test_a_chat_stream_gives_each_piece_and_usage_only_if_asked(translator: TranslatorSetup) -> None:
    stream = await translator.openai().chat.completions.create(model="my-model", messages=say(), stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
    assert {chunk.model for chunk in chunks} == {"my-model"}
    assert all(chunk.usage is None for chunk in chunks)
    status, body = await translator.ask("chat", chat(stream=True))
    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")
    assert b"usage" not in body


async def test_the_last_chunk_of_a_chat_stream_holds_usage_and_no_choices_if_asked(translator: TranslatorSetup) -> None:
    options: Any = {"include_usage": True}
    create = translator.openai().chat.completions.create
    stream = await create(model="my-model", messages=say(), stream=True, stream_options=options)
    *chunks, last = [chunk async for chunk in stream]
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (14, 5)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_of_an_anthropic_provider_come_as_chat_tool_calls(
    translator: TranslatorSetup, stream: bool
) -> None:
    fields: Any = {"model": "my-model", "messages": say(), "tools": [CHAT_TOOL]}
    if stream:
        state: Any = ChatCompletionStreamState()
        async for chunk in await translator.openai().chat.completions.create(**fields, stream=True):
            state.handle_chunk(chunk)
        completion = state.get_final_completion()
    else:
        completion = await translator.openai().chat.completions.create(**fields)
    assert completion.choices[0].finish_reason == "tool_calls"
    (call,) = completion.choices[0].message.tool_calls or ()
    assert (call.id, call.type, call.function.name) == ("toolu_1", "function", "get_weather")
    assert json.loads(call.function.arguments) == ARGUMENTS
    assert translator.provider.last["tools"][0]["input_schema"] == SCHEMA


@pytest.mark.parametrize(
    ("cue", "raised", "code"),
    [
        ("limit", openai.RateLimitError, "rate_limit_exceeded"),
        ("long", openai.BadRequestError, "context_length_exceeded"),
        ("denied", openai.AuthenticationError, "invalid_api_key"),
        ("busy", openai.InternalServerError, "overloaded"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_s_refusal_reaches_a_chat_client_in_its_own_words(
    translator: TranslatorSetup, cue: str, raised: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    with pytest.raises(raised) as refused:
        await translator.openai().chat.completions.create(model="m", messages=say(f"cue:{cue}"), stream=stream)
    assert refused.value.code == code
    assert REFUSALS[cue][2].removesuffix(KEY) in refused.value.message
    assert KEY not in refused.value.response.text
    assert len(translator.provider.seen) == 1  # nothing was tried again


async def test_a_rate_limit_keeps_its_retry_after(translator: TranslatorSetup) -> None:
    reply = await translator.translator.send("chat", json.dumps(chat("cue:limit")).encode(), translator.route, KEY)
    assert (reply.status, dict(reply.headers)[b"retry-after"]) == (429, b"7")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_stops_the_call_to_the_provider(
    translator: TranslatorSetup, stream: bool
) -> None:
    body = json.dumps(chat("cue:hang", stream=stream)).encode()
    asking = asyncio.create_task(translator.translator.send("chat", body, translator.route, KEY))
    if stream:
        reply = await asking
        async for chunk in reply.chunks():
            assert b"Hel" in chunk
            break
        await reply.close()
    else:
        await translator.provider.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    await asyncio.wait_for(translator.provider.gone.wait(), 20)


async def test_closing_the_translator_breaks_off_a_stream_as_cut(translator: TranslatorSetup) -> None:
    reply = await translator.translator.send(
        "chat", json.dumps(chat("cue:hang", stream=True)).encode(), translator.route, KEY
    )
    chunks = reply.chunks()
    await anext(chunks)
    await translator.translator.close()
    with pytest.raises(UpstreamDisconnected):
        [chunk async for chunk in chunks]


# Messages, answered by an OpenAI-compatible provider


@pytest.mark.parametrize("stream", [False, True])
async def test_a_messages_request_is_answered_by_an_openai_compatible_provider(
    translator: TranslatorSetup, stream: bool
) -> None:
    translator.route = translator.to_openai()
    tool: Any = {"name": "get_weather", "input_schema": SCHEMA}
    fields: Any = {"model": "my-model", "max_tokens": 99, "system": "be brief", "messages": say(), "tools": [tool]}
    if stream:
        async with translator.anthropic().messages.stream(**fields) as events:
            message = await events.get_final_message()
    else:
        message = await translator.anthropic().messages.create(**fields)
    text, call = message.content
    assert (text.type == "text" and text.text, message.model) == ("Hello", "my-model")
    assert call.type == "tool_use"
    assert (call.id, call.name, call.input) == ("call_1", "get_weather", ARGUMENTS)
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == 5
    path, headers, body = translator.provider.seen[0]
    assert (path, headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert (body["messages"][0], body["max_tokens"]) == ({"role": "system", "content": "be brief"}, 99)
    assert body["tools"][0]["function"]["parameters"] == SCHEMA


async def test_an_overflow_is_told_to_a_messages_client_in_anthropic_s_words(translator: TranslatorSetup) -> None:
    translator.route = translator.to_openai()
    with pytest.raises(anthropic.BadRequestError) as refused:
        await translator.anthropic().messages.create(model="m", max_tokens=9, messages=say("cue:long"))
    body: Any = refused.value.body
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"] == "prompt is too long: 99 tokens > 10 maximum"


# Responses, answered by an Anthropic provider


@pytest.mark.parametrize("stream", [False, True])
async def test_a_responses_request_is_answered_by_an_anthropic_provider(
    translator: TranslatorSetup, stream: bool
) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
    fields: Any = {"model": "my-model", "input": "hi", "instructions": "be brief", "tools": [tool], "store": False}
    if stream:
        async with translator.openai().responses.stream(**fields) as events:
            numbers = [event.sequence_number async for event in events]
            response = await events.get_final_response()
        assert numbers == list(range(len(numbers)))
    else:
        response = await translator.openai().responses.create(**fields)
    assert (response.output_text, response.model, response.status) == ("Hello", "my-model", "completed")
    call = response.output[-1]
    assert call.type == "function_call"
    assert (call.call_id, call.name, json.loads(call.arguments)) == ("toolu_1", "get_weather", ARGUMENTS)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (14, 5)
    assert translator.provider.last["system"] == [{"type": "text", "text": "be brief"}]


async def test_state_that_the_provider_does_not_keep_is_refused_and_not_forgotten(translator: TranslatorSetup) -> None:
    fields = {"model": "m", "input": "hi", "previous_response_id": "resp_1"}
    status, body = await translator.ask("responses", fields)
    assert (status, json.loads(body)["error"]["param"]) == (400, "previous_response_id")
    assert translator.provider.seen == []
