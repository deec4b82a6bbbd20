"""The official SDKs, unchanged, with nothing but another base URL."""

import json
from collections.abc import AsyncIterator

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.e2e.protocol_samples import CHAT, KEY, MESSAGES, RESPONSES
from tests.loopback import Answer, Recorded, replies_bytes, replies_json
from tests.proxy_process import Proxy

ASK = [{"role": "user", "content": "Say hello."}]
TOOL = {"name": "weather", "description": "Weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
async def gpt(proxy: Proxy) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
async def claude(proxy: Proxy) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=proxy.url, api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


async def test_openai_completes_a_chat(proxy: Proxy, gpt: openai.AsyncOpenAI):
    async with proxy.provider(CHAT.answers("Hello there.")) as provider:
        raw = await gpt.chat.completions.with_raw_response.create(model=CHAT.model, messages=ASK)
    assert raw.parse().choices[0].message.content == "Hello there."
    assert raw.headers["x-accordion-session"].startswith("s-")
    assert provider.requests[0].header("authorization") == f"Bearer {KEY}"


async def test_openai_streams_a_chat(proxy: Proxy, gpt: openai.AsyncOpenAI):
    async with proxy.provider(CHAT.answers("Hello there.")):
        stream = await gpt.chat.completions.create(model=CHAT.model, messages=ASK, stream=True)
        chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hellothere."
    assert chunks[-1].usage.prompt_tokens == 11


async def test_openai_calls_tools(proxy: Proxy, gpt: openai.AsyncOpenAI):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    whole = CHAT.json()
    whole["choices"][0]["message"] |= {"content": None, "tool_calls": [call]}
    async with proxy.provider(replies_json(whole)) as provider:
        done = await gpt.chat.completions.create(
            model=CHAT.model, messages=ASK, tools=[{"type": "function", "function": TOOL}]
        )
    assert done.choices[0].message.tool_calls[0].function.name == "weather"
    assert provider.requests[0].json()["tools"] == [{"type": "function", "function": TOOL}]


async def test_openai_parses_into_a_schema(proxy: Proxy, gpt: openai.AsyncOpenAI):
    class Place(BaseModel):
        name: str

    async with proxy.provider(CHAT.answers('{"name": "Oslo"}')):
        done = await gpt.chat.completions.parse(model=CHAT.model, messages=ASK, response_format=Place)
    assert done.choices[0].message.parsed == Place(name="Oslo")


async def test_openai_creates_and_streams_responses(proxy: Proxy, gpt: openai.AsyncOpenAI):
    async with proxy.provider(RESPONSES.answers("Hello there.")):
        whole = await gpt.responses.create(model=RESPONSES.model, input="Say hello.")
        stream = await gpt.responses.create(model=RESPONSES.model, input="Say hello.", stream=True)
        kinds = [event.type async for event in stream]
    assert whole.output_text == "Hello there."
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


async def test_openai_embeds(proxy: Proxy, gpt: openai.AsyncOpenAI):
    vector = {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    async with proxy.provider(replies_json({"object": "list", "data": [vector], "model": "e", "usage": usage})):
        done = await gpt.embeddings.create(model="text-embedding-3-small", input="x", encoding_format="float")
    assert done.data[0].embedding == [0.5, -1.0]


def test_openai_works_without_asyncio(proxy: Proxy):
    """The provider is away, so what is raised is the proxy's own answer, as the SDK understands it."""
    with (
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=KEY, max_retries=0, timeout=30) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(model=CHAT.model, messages=ASK)
    assert caught.value.status_code == 502
    assert caught.value.code == "upstream_unreachable"
    assert caught.value.request_id.startswith("req_")


async def test_anthropic_creates_a_message(proxy: Proxy, claude: anthropic.AsyncAnthropic):
    async with proxy.provider(MESSAGES.answers("Hello there.")) as provider:
        raw = await claude.messages.with_raw_response.create(model=MESSAGES.model, messages=ASK, max_tokens=64)
    assert (await raw.parse()).content[0].text == "Hello there."
    assert raw.headers["x-accordion-session"].startswith("s-")
    head = provider.requests[0]
    assert KEY in (head.header("x-api-key") or head.header("authorization") or "")
    assert head.header("anthropic-version")


async def test_anthropic_streams_a_message(proxy: Proxy, claude: anthropic.AsyncAnthropic):
    async with (
        proxy.provider(MESSAGES.answers("Hello there.")),
        claude.messages.stream(model=MESSAGES.model, messages=ASK, max_tokens=64) as stream,
    ):
        text = "".join([part async for part in stream.text_stream])
        final = await stream.get_final_message()
    assert text == "Hellothere."
    assert final.stop_reason == "end_turn"


async def test_anthropic_counts_tokens_at_the_provider(proxy: Proxy, claude: anthropic.AsyncAnthropic):
    async with proxy.provider(replies_json({"input_tokens": 7})) as provider:
        counted = await claude.messages.count_tokens(model=MESSAGES.model, messages=ASK)
    assert counted.input_tokens == 7
    assert provider.requests[0].target == "/v1/messages/count_tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_providers_own_error_is_what_the_sdk_raises(proxy: Proxy, gpt: openai.AsyncOpenAI, stream: bool):
    said = {"error": {"message": "Slow down.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
    async with proxy.provider(replies_json(said, 429, [("retry-after", "7"), ("x-request-id", "up-1")])):
        with pytest.raises(openai.RateLimitError) as caught:
            await gpt.chat.completions.create(model=CHAT.model, messages=ASK, stream=stream)
    assert caught.value.body == said["error"]
    assert caught.value.request_id == "up-1"
    assert caught.value.response.headers["retry-after"] == "7"


async def test_a_providers_own_error_is_what_anthropics_sdk_raises(proxy: Proxy, claude: anthropic.AsyncAnthropic):
    said = {"type": "error", "error": {"type": "overloaded_error", "message": "Busy."}, "request_id": "req_up"}
    async with proxy.provider(replies_json(said, 529, [("request-id", "req_up")])):
        with pytest.raises(anthropic.InternalServerError) as caught:
            await claude.messages.create(model=MESSAGES.model, messages=ASK, max_tokens=64)
    assert caught.value.body == said
    assert caught.value.request_id == "req_up"


async def test_an_error_in_a_providers_stream_is_what_the_sdk_raises(proxy: Proxy, gpt: openai.AsyncOpenAI):
    begun = CHAT.events()[0]
    error = b'data: {"error": {"message": "The engine broke.", "type": "server_error"}}\n\n'

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        await answer.chunk(begun + error)
        await answer.last_chunk()

    async with proxy.provider(script):
        stream = await gpt.chat.completions.create(model=CHAT.model, messages=ASK, stream=True)
        with pytest.raises(openai.APIError, match="The engine broke"):
            [chunk async for chunk in stream]


async def test_a_reply_that_is_no_json_reaches_the_client_as_it_is(proxy: Proxy, gpt: openai.AsyncOpenAI):
    page = b"HTTP/1.1 503 Busy\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<h1>Busy</h1>"
    async with proxy.provider(replies_bytes(page)):
        with pytest.raises(openai.InternalServerError) as caught:
            await gpt.chat.completions.create(model=CHAT.model, messages=ASK)
    assert caught.value.response.text == "<h1>Busy</h1>"


async def test_odd_unicode_comes_back_as_the_provider_wrote_it(proxy: Proxy, gpt: openai.AsyncOpenAI):
    odd = 'é\u0301 \U0001f600 \u202e \x7f \\ " \n'
    async with proxy.provider(CHAT.answers(odd)) as provider:
        done = await gpt.chat.completions.create(model=CHAT.model, messages=[{"role": "user", "content": odd}])
    assert done.choices[0].message.content == odd
    assert json.loads(provider.requests[0].body)["messages"][0]["content"] == odd
