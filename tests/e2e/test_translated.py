"""A model whose provider speaks another protocol is reached by translation, in the client's own dialect."""

import json

import anthropic
import openai
import pytest

from tests.conftest import Start
from tests.e2e.raw import post
from tests.e2e.replies import CHAT, KEY, MESSAGES
from tests.loopback import replies_json
from tests.proxying import Proxy

CONFIG = """
server: {shutdown_seconds: 1}
model_list:
  - model_name: clever
    litellm_params: {model: anthropic/claude-haiku-4-5, api_base: "{upstream}"}
  - model_name: smart
    litellm_params: {model: openai/gpt-4o, api_base: "{upstream}/v1"}
"""
ASK = [{"role": "user", "content": "Hi."}]


@pytest.fixture(scope="module")
def translating(start: Start) -> Proxy:
    return start(CONFIG)


async def test_an_openai_client_talks_to_an_anthropic_model(translating: Proxy):
    async with openai.AsyncOpenAI(base_url=f"{translating.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        async with translating.provider(MESSAGES.answers("Hello there.", given=40, made=4)) as provider:
            raw = await client.chat.completions.with_raw_response.create(model="clever", messages=ASK)
            stream = await client.chat.completions.create(model="clever", messages=ASK, stream=True)
            text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        done = raw.parse()
        assert done.choices[0].message.content == "Hello there."
        assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (40, 4)
        assert text == "Hellothere."
        assert raw.headers["x-accordion-window"] == "200000"
        for request in provider.requests:
            assert (request.target, request.json()["model"]) == ("/v1/messages", "claude-haiku-4-5")
            assert KEY in request.head.decode()
        async with translating.provider(replies_json({"type": "error", "error": {"type": "x", "message": "No."}}, 400)):
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="clever", messages=ASK)


async def test_an_anthropic_client_talks_to_an_openai_model(translating: Proxy):
    async with (
        anthropic.AsyncAnthropic(base_url=translating.url, api_key=KEY, max_retries=0, timeout=60) as client,
        translating.provider(CHAT.answers("Hello there.", given=40, made=4)),
    ):
        done = await client.messages.create(model="smart", messages=ASK, max_tokens=5)
        async with client.messages.stream(model="smart", messages=ASK, max_tokens=5) as stream:
            text = "".join([part async for part in stream.text_stream])
    assert done.content[0].text == "Hello there."
    assert done.usage.input_tokens == 40
    assert text == "Hellothere."


async def test_a_provider_that_is_away_is_told_in_the_clients_dialect(translating: Proxy):
    body = json.dumps({"model": "clever", "messages": ASK}).encode()
    reply = await post(translating, CHAT.path, body, ("Authorization", f"Bearer {KEY}"))
    assert reply.status in (500, 502, 503)
    assert CHAT.error_of(reply.body)
    assert KEY not in str(reply)


async def test_what_cannot_be_translated_is_refused_plainly(translating: Proxy):
    reply = await post(translating, "/v1/embeddings", b'{"model": "smart", "input": "x"}')
    assert reply.status == 502, "an OpenAI model's other paths are not translated but forwarded"
