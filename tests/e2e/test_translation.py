"""A model whose provider speaks another protocol is reached by translation, in the client's own."""

import anthropic
import openai
import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY, MESSAGES, RESPONSES, ProtocolSamples
from tests.e2e.proxy_api import get_exchanges, wait_until
from tests.e2e.raw_client import ask
from tests.loopback import replies_json
from tests.proxy_process import Proxy

CONFIG = """
server: {shutdown_seconds: 1}
model_list:
  - model_name: clever
    litellm_params: {model: anthropic/claude-haiku-4-5, api_base: "{upstream}"}
  - model_name: smart
    litellm_params: {model: openai/gpt-4o, api_base: "{upstream}/v1"}
  - model_name: local
    litellm_params: {model: hosted_vllm/my-model, api_base: "{upstream}/v1"}
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
        assert text == "Hello there."
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
    assert (done.usage.input_tokens, done.usage.cache_read_input_tokens) == (20, 20)
    assert text == "Hello there."


@pytest.mark.parametrize(("protocol", "model"), [(CHAT, "clever"), (RESPONSES, "clever"), (MESSAGES, "smart")])
async def test_an_error_has_the_id_by_which_the_ledger_knows_it(
    translating: Proxy, protocol: ProtocolSamples, model: str
):
    label = f"failed-{protocol.name}"
    headers = [("Content-Type", "application/json"), ("Authorization", f"Bearer {KEY}"), ("x-session-id", label)]
    async with translating.provider(replies_json("<html>", 500)):
        reply = await ask(translating, "POST", protocol.path, headers, protocol.body("Fail.", model=model))
    named = reply.header("request-id" if protocol is MESSAGES else "x-request-id")
    assert reply.status == 500
    assert named is not None
    assert named in reply.body.decode()
    (exchange,) = await wait_until(lambda: get_exchanges(translating, label))
    assert exchange["request_id"] == named
