"""Where a translated request is sent, and how its answer ends."""

from __future__ import annotations

import pytest

from tests.features.translation.thinking_provider import answer_with, chunks, leading, text, thinker
from tests.features.translation.translator_setup import request, say
from tests.loopback import replies_json


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["openai/gpt-5", "openai/my-local-model", "openai/gpt-4.1-mini"])
async def test_a_messages_request_that_thinks_goes_to_chat_completions(model: str, stream: bool) -> None:
    said = {"role": "assistant", "content": "Yes."}
    choice = {"index": 0, "message": said, "finish_reason": "stop"}
    document = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    async with answer_with(chunks({"content": "Yes."}) if stream else replies_json(document)) as (translator, server):
        translator.route = leading(f"{server.url}/v1", model, drop_params=True)
        think = {"type": "enabled", "budget_tokens": 1024}
        status, body = await translator.ask("messages", request("messages", stream=stream, thinking=think))
    assert (status, b"Yes." in body) == (200, True)
    assert [asked.target for asked in server.requests] == ["/v1/chat/completions"]


async def test_a_model_that_is_named_so_goes_to_responses() -> None:
    async with answer_with(replies_json({"error": {"message": "no"}}, 404)) as (translator, server):
        translator.route = leading(f"{server.url}/v1", "openai/responses/gpt-5")
        await translator.ask("messages", request("messages", thinking={"type": "enabled", "budget_tokens": 1024}))
    assert [asked.target for asked in server.requests] == ["/v1/responses"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_filled_the_window_is_not_finished(stream: bool) -> None:
    async with answer_with(thinker(text("And so"), stop="model_context_window_exceeded")) as (translator, _):
        _, body = await translator.ask("chat", request("chat", stream=stream))
        assert b'"finish_reason":"length"' in body
        _, body = await translator.ask("responses", request("responses", stream=stream))
        assert b'"status":"incomplete"' in body
        assert b'"incomplete_details":{"reason":"max_output_tokens"}' in body


@pytest.mark.parametrize("pieces", [["I cannot."], ["I ", "cannot."]])
async def test_a_streamed_refusal_is_one_to_a_messages_client(pieces: list[str]) -> None:
    async with answer_with(chunks({"content": None, "refusal": None}, *({"refusal": p} for p in pieces))) as (
        translator,
        _,
    ):
        translator.route = translator.to_openai()
        async with translator.anthropic().messages.stream(model="my-model", max_tokens=9, messages=say()) as stream:
            message = await stream.get_final_message()
        _, body = await translator.ask("chat", request("chat", stream=True))
    assert (message.stop_reason, [block.to_dict() for block in message.content]) == (
        "refusal",
        [{"type": "text", "text": "I cannot."}],
    )
    assert body.count(b'"refusal":"') == len(pieces)


@pytest.mark.parametrize("pieces", [["I cannot."], ["I ", "cannot."]])
async def test_a_streamed_refusal_is_one_to_a_responses_client(pieces: list[str]) -> None:
    async with answer_with(chunks({"role": "assistant"}, *({"refusal": piece} for piece in pieces))) as (
        translator,
        server,
    ):
        translator.route = leading(server.url, "mistral/x")
        async with translator.openai().responses.stream(model="my-model", input="hi") as stream:
            kinds = [event.type async for event in stream]
            response = await stream.get_final_response()
    assert [item.to_dict()["content"] for item in response.output] == [[{"type": "refusal", "refusal": "I cannot."}]]
    assert kinds[2:] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.refusal.delta",
        "response.refusal.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_a_refusal_is_one_to_any_client() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, "refusal": "No."}, "finish_reason": "stop"}
    document = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    async with answer_with(replies_json(document)) as (translator, server):
        translator.route = leading(server.url, "mistral/x")
        completion = await translator.openai().chat.completions.create(model="my-model", messages=say())
        response = await translator.openai().responses.create(model="my-model", input="hi")
    assert completion.choices[0].message.refusal == "No."
    assert [item.to_dict()["content"] for item in response.output] == [[{"type": "refusal", "refusal": "No."}]]


async def test_an_answer_that_cannot_be_read_is_no_success() -> None:
    async with answer_with(replies_json({"object": "something.else"})) as (translator, server):
        translator.route = leading(f"{server.url}/v1", "openai/responses/gpt-5")
        status, _ = await translator.ask("messages", request("messages"))
        assert status == 502
        translator.route = leading(server.url, "hosted_vllm/x")
        status, _ = await translator.ask("responses", request("responses"))
        assert status == 502
