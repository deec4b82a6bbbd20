"""Where a translated request is sent, and how its answer ends."""

from __future__ import annotations

import pytest

from tests.loopback import replies_json
from tests.models.thoughts import answered, chunks, leading
from tests.models.translation import request


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["openai/gpt-5", "openai/my-local-model", "openai/gpt-4.1-mini"])
async def test_a_messages_request_that_thinks_goes_to_chat_completions(model: str, stream: bool) -> None:
    said = {"role": "assistant", "content": "Yes."}
    choice = {"index": 0, "message": said, "finish_reason": "stop"}
    document = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    async with answered(chunks({"content": "Yes."}) if stream else replies_json(document)) as (rig, server):
        rig.route = leading(f"{server.url}/v1", model, drop_params=True)
        think = {"type": "enabled", "budget_tokens": 1024}
        status, body = await rig.ask("messages", request("messages", stream=stream, thinking=think))
    assert (status, b"Yes." in body) == (200, True)
    assert [asked.target for asked in server.requests] == ["/v1/chat/completions"]


async def test_a_model_that_is_named_so_goes_to_responses() -> None:
    async with answered(replies_json({"error": {"message": "no"}}, 404)) as (rig, server):
        rig.route = leading(f"{server.url}/v1", "openai/responses/gpt-5")
        await rig.ask("messages", request("messages", thinking={"type": "enabled", "budget_tokens": 1024}))
    assert [asked.target for asked in server.requests] == ["/v1/responses"]
