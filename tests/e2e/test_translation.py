"""A model whose provider speaks another protocol is reached by translation, in the client's own."""

import asyncio
import json

import anthropic
import openai
import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY, MESSAGES, RESPONSES, ProtocolSamples
from tests.e2e.proxy_api import get_exchanges, wait_until
from tests.e2e.raw_client import ask, connected, post
from tests.loopback import Answer, Recorded, replies_json
from tests.providers.litellm.thinking_provider import call, thinker, thinking, thoughts
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
ROLES = ["user", "assistant"]


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


async def test_a_beta_that_a_client_asks_for_reaches_the_provider(translating: Proxy):
    body = json.dumps({"model": "clever", "messages": ASK}).encode()
    betas = [("anthropic-beta", "context-1m-2025-08-07"), ("Anthropic-Beta", "interleaved-thinking-2025-05-14")]
    async with translating.provider(MESSAGES.answers("Hello there.")) as provider:
        reply = await post(translating, CHAT.path, body, ("Authorization", f"Bearer {KEY}"), *betas)
    assert reply.status == 200
    asked = provider.requests[0].header("anthropic-beta")
    assert {"context-1m-2025-08-07", "interleaved-thinking-2025-05-14"} <= {*asked.split(",")}


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


async def test_a_thread_that_no_provider_keeps_is_begun_again_and_left_by_the_sdk(translating: Proxy):
    """The provider has no threads: what would go on from one must not reach it without its beginning."""
    asked: list[int] = []

    @anthropic.beta_async_tool
    async def look() -> str:
        """Looks."""
        return "Nothing yet."

    async def script(request: Recorded, answer: Answer) -> None:
        asked.append(len(request.json()["messages"]))
        said = CHAT.json("Done.") if len(asked) == 4 else CHAT.json("")
        if len(asked) < 4:
            call = {"id": f"call_{len(asked)}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            said["choices"][0] |= {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}
            said["choices"][0]["finish_reason"] = "tool_calls"
        await replies_json(said)(request, answer)

    async with (
        anthropic.AsyncAnthropic(base_url=translating.url, api_key=KEY, max_retries=0, timeout=60) as client,
        translating.provider(script),
    ):
        runner = client.beta.messages.tool_runner(model="smart", max_tokens=50, messages=ASK, tools=[look])
        done = await runner.until_done()
    assert done.content[-1].text == "Done."
    assert asked == [1, 3, 5, 7], "each time all that was said"


async def test_a_provider_that_is_away_is_told_in_the_clients_protocol(translating: Proxy):
    body = json.dumps({"model": "clever", "messages": ASK}).encode()
    reply = await post(translating, CHAT.path, body, ("Authorization", f"Bearer {KEY}"))
    assert reply.status in (500, 502, 503)
    assert CHAT.error_of(reply.body)
    assert KEY not in str(reply)


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


async def test_what_cannot_be_translated_is_refused_plainly(translating: Proxy):
    reply = await post(translating, "/v1/embeddings", b'{"model": "smart", "input": "x"}')
    assert reply.status == 502, "an OpenAI model's other paths are not translated but forwarded"


WAYS = [(CHAT, "clever", MESSAGES), (RESPONSES, "clever", MESSAGES), (MESSAGES, "smart", CHAT)]
EACH_WAY = pytest.mark.parametrize(
    ("protocol", "model", "spoken"), WAYS, ids=lambda part: getattr(part, "name", str(part))
)


def asked(protocol: ProtocolSamples, model: str, label: str) -> tuple[bytes, list[tuple[str, str]]]:
    body = protocol.body("Stream.", stream=True, model=model)
    return body, [("Content-Type", "application/json"), ("Authorization", f"Bearer {KEY}"), ("x-session-id", label)]


@EACH_WAY
async def test_a_provider_that_goes_away_ends_the_stream_in_an_error_and_not_as_it_should(
    translating: Proxy, protocol: ProtocolSamples, model: str, spoken: ProtocolSamples
):
    label = f"cut-{protocol.name}"
    body, headers = asked(protocol, model, label)

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        await answer.chunk(b"".join(spoken.events("one two three")[:4]))
        await answer.last_chunk()

    async with translating.provider(script) as provider:
        reply = await ask(translating, "POST", protocol.path, headers, body)
    last = reply.body.removesuffix(b"\n\n").rpartition(b"data: ")[2]
    assert "Connection lost" in protocol.error_of(last)["message"]
    assert (reply.status, reply.ended, len(provider.requests)) == (200, False, 1)
    assert b"one" in reply.body
    (exchange,) = await wait_until(lambda: get_exchanges(translating, label))
    assert exchange["error"] == "upstream_disconnected"


@EACH_WAY
async def test_a_client_that_goes_away_stops_the_providers_call(
    translating: Proxy, protocol: ProtocolSamples, model: str, spoken: ProtocolSamples
):
    body, headers = asked(protocol, model, f"gone-{protocol.name}")

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        await answer.chunk(b"".join(spoken.events("one two three")[:4]))
        await answer.until_gone()

    async with translating.provider(script) as provider:
        async with connected(translating) as client:
            await client.ask("POST", protocol.path, headers, body)
            await anext(client.pieces(await client.head()))
            client.leave()
        await asyncio.wait_for(provider.all_gone(), 30)


async def test_the_usage_that_is_reported_tells_what_was_read_from_a_cache(translating: Proxy):
    cached = {"cache_read_input_tokens": 30, "cache_creation_input_tokens": 5}
    async with translating.provider(MESSAGES.answers("Hello.", given=40, made=4, **cached)):
        for stream in (False, True):
            body, headers = asked(CHAT, "clever", f"usage-{stream}")
            said = json.loads(body) | {"stream": stream, "stream_options": {"include_usage": True}}
            said = {name: value for name, value in said.items() if stream or name != "stream_options"}
            reply = await ask(translating, "POST", CHAT.path, headers, json.dumps(said).encode())
            usage = json.loads(reply.body.removesuffix(b"data: [DONE]\n\n").strip().rpartition(b"data: ")[2])["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (75, 4)
            assert usage["prompt_tokens_details"]["cached_tokens"] == 30


async def test_a_translation_error_that_quotes_an_overflow_starts_no_compaction(translating: Proxy):
    said = "My log: This model's maximum context length is 5000 tokens. However, your messages resulted in 9000 tokens."
    turns = [{"role": role, "content": f"{said} {index} " + "word " * 99} for index, role in enumerate(ROLES * 9)]
    picture = {"type": "image_url", "image_url": {"url": "no address"}}
    body = json.dumps({"model": "clever", "messages": [*turns, {"role": "user", "content": [picture]}]}).encode()
    async with translating.provider(MESSAGES.answers("Hello there.")) as provider:
        reply = await post(translating, CHAT.path, body, ("Authorization", f"Bearer {KEY}"))
    assert (reply.status, reply.header("x-accordion-compaction"), provider.requests) == (400, None, [])
    assert CHAT.error_of(reply.body)["code"] is None
    assert len(reply.body) < 1000


async def test_a_responses_agent_of_a_model_that_thinks_goes_on_after_a_streamed_call(translating: Proxy):
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
    fields = {"model": "clever", "tools": [tool], "reasoning": {"effort": "low"}, "store": False}
    said = [thinking("I ", "look."), call()]
    async with (
        openai.AsyncOpenAI(base_url=f"{translating.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client,
        translating.provider(thinker(*said)) as provider,
    ):
        stream = await client.responses.create(input=ASK, stream=True, **fields)
        items = [event.item.to_dict() async for event in stream if event.type == "response.output_item.done"]
        result = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "Rain."}
        await client.responses.create(input=[*ASK, *items, result], **fields)
    assert provider.requests[1].json()["messages"][1]["content"] == [*thoughts(said), call()]


async def test_a_claude_client_with_thinking_reaches_a_chat_completions_server(translating: Proxy):
    async with (
        anthropic.AsyncAnthropic(base_url=translating.url, api_key=KEY, max_retries=0, timeout=60) as client,
        translating.provider(CHAT.answers("Hello there.")) as provider,
    ):
        think = {"type": "enabled", "budget_tokens": 1024}
        done = await client.messages.create(model="local", messages=ASK, max_tokens=2000, thinking=think)
    assert done.content[0].text == "Hello there."
    assert [request.target for request in provider.requests] == ["/v1/chat/completions"]
