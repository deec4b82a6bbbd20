"""A window that is smaller than anybody knew: one compaction and one more try, and the client sees the answer."""

import json
import re
from typing import Any

import anthropic
import openai
import pytest

from tests.agent_replies import TOOLS
from tests.agents import MODEL, GeminiError, Run
from tests.conftest import Start
from tests.e2e.raw_client import post
from tests.e2e.small_window import EACH, WINDOW, Proxies, agent, compacted_requests, rounds
from tests.proxy_process import Proxy
from tests.strict_provider import PATHS, SYSTEM, StrictProvider, overflow_error, turn_text, vllm_overflow_error
from tests.writers import WRITERS

REAL = 4_600
"""What the provider takes, in tokens by its own count."""
REFUSED = {
    "chat": "context_length_exceeded",
    "responses": "context_length_exceeded",
    "messages": "prompt is too long: ",
    "gemini": "exceeds the maximum number of tokens allowed (40)",
}
"""What each provider says of a request that is too long."""
CLAUDE_CODE = re.compile(r"^prompt is too long: \d+ tokens > \d+ maximum$")
UNKNOWN = "server: {shutdown_seconds: 1}\nsummaries: {writer: extractive}\nwindows: {default: 8000}\n"
SHAPES = [
    pytest.param("chat", overflow_error, True, id="OpenAI, Chat Completions"),
    pytest.param("messages", overflow_error, True, id="Anthropic"),
    pytest.param("responses", overflow_error, False, id="OpenAI, Responses, which names no figure"),
    pytest.param("chat", vllm_overflow_error, True, id="vLLM, Chat Completions"),
    pytest.param("responses", vllm_overflow_error, True, id="vLLM, Responses"),
    pytest.param("gemini", overflow_error, True, id="Google"),
]


@pytest.fixture
def proxy(start: Start) -> Proxy:
    """A proxy that knows nothing of the model's window."""
    return start(UNKNOWN)


@pytest.mark.parametrize(("protocol_name", "shape", "named"), SHAPES)
@pytest.mark.parametrize("how", ["whole", "streamed, refused before", "streamed, refused in the stream"])
async def test_an_overflow_is_compacted_and_tried_again_unseen(
    proxy: Proxy, protocol_name: str, shape: Any, named: bool, how: str
):
    provider = StrictProvider(protocol_name, REAL, rounds=1_000, thinks=protocol_name != "chat", overflow=shape)
    provider.streamed_errors = how.endswith("in the stream")
    async with proxy.provider(provider) as upstream, agent(proxy, protocol_name, stream=how != "whole") as run:
        while not provider.refusals:
            await rounds(run, 1)
        at = len(run.answers) - 1
        said = run.compactions[at]
        await rounds(run, 12)
        assert len(upstream.requests) == len(provider.taken) + len(provider.refusals)
    assert provider.problems == []
    assert said is not None
    assert (said["state"], said["cause"]) == ("compacted", "overflow")
    assert provider.taken[at].tokens < provider.count(provider.refusals[0])
    assert len(provider.taken) == len(run.answers), "each request was answered"
    if named:
        assert run.answers[-1]["x-accordion-window"] == str(REAL), "the limit was learnt"
        assert len(provider.refusals) == 1, "so the provider need not say it again"


@EACH
async def test_what_a_provider_refuses_in_any_form_is_its_own_error(proxy: Proxy, protocol_name: str):
    """One more try, not more, and then the client hears the provider."""
    provider = StrictProvider(protocol_name, REAL, rounds=1_000)
    async with proxy.provider(provider) as upstream, agent(proxy, protocol_name) as run:
        await rounds(run, 12)
        provider.window, asked = 40, len(upstream.requests)
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError, GeminiError)) as caught:
            await run.step()
        assert len(upstream.requests) - asked <= 2
    assert REFUSED[protocol_name] in str(caught.value)


def huge(protocol_name: str) -> dict[str, Any]:
    """A request whose system prompt alone is larger than the window."""
    writer = WRITERS[protocol_name]
    body = writer.with_system(writer.request(MODEL, [writer.user(turn_text(0))]), SYSTEM * 800)
    return writer.with_tools(body, TOOLS[protocol_name])


@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_fit_is_refused_in_words_that_openais_clients_know(proxies: Proxies, stream: bool):
    proxy = proxies["chat"]
    async with proxy.provider(StrictProvider("chat", 10**6)) as upstream, agent(proxy, "chat") as run:
        with pytest.raises(openai.BadRequestError) as caught:
            await run.client.chat.completions.create(**huge("chat"), stream=stream)
        assert upstream.requests == []
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    found = re.search(
        r"This model's maximum context length is (\d+) tokens\. However, your messages resulted in (\d+) tokens",
        caught.value.message,
    )
    assert found is not None
    assert int(found[1]) <= WINDOW < int(found[2])


async def test_what_does_not_fit_though_a_compaction_was_made_is_told_so(proxies: Proxies):
    proxy = proxies["chat"]
    body = huge("chat")
    rules = {"role": "system", "content": " ".join(f"rule{number} is {number * 7}" for number in range(1_260))}
    told = [{"role": role, "content": f"word {number} " * 200} for number in range(9) for role in ("user", "assistant")]
    body["messages"] = [rules, *told, {"role": "user", "content": "Go on."}]
    async with proxy.provider(StrictProvider("chat", 10**6)) as upstream, agent(proxy, "chat") as run:
        with pytest.raises(openai.BadRequestError, match=r"Everything that may be compacted was compacted\.") as caught:
            await run.client.chat.completions.create(**body)
        assert upstream.requests == []
    assert json.loads(caught.value.response.headers["x-accordion-compaction"])["state"] == "compacted"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_fit_is_refused_in_the_words_of_responses(proxies: Proxies, stream: bool):
    proxy = proxies["responses"]
    async with proxy.provider(StrictProvider("responses", 10**6)) as upstream, agent(proxy, "responses") as run:
        with pytest.raises(openai.BadRequestError) as caught:
            await run.client.responses.create(**huge("responses"), stream=stream)
        assert upstream.requests == []
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    assert "Your input exceeds the context window of this model." in caught.value.message
    assert any(int(figure) > WINDOW for figure in re.findall(r"\d{4,}", caught.value.message))


@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_fit_is_refused_in_words_that_claude_code_knows(proxies: Proxies, stream: bool):
    proxy = proxies["messages"]
    async with proxy.provider(StrictProvider("messages", 10**6)) as upstream, agent(proxy, "messages") as run:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await run.client.messages.create(**huge("messages"), stream=stream)
        assert upstream.requests == []
    body: Any = caught.value.body
    assert body["error"]["type"] == "invalid_request_error"
    assert CLAUDE_CODE.match(body["error"]["message"])
    tokens, most = map(int, re.findall(r"\d+", body["error"]["message"]))
    assert most <= WINDOW < tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_fit_is_refused_in_the_words_of_gemini(proxies: Proxies, stream: bool):
    """The client is told by the status also where it asked for a stream."""
    proxy = proxies["gemini"]
    async with proxy.provider(StrictProvider("gemini", 10**6)) as upstream:
        path, body = WRITERS["gemini"].path(MODEL, stream=stream), json.dumps(huge("gemini")).encode()
        reply = await post(proxy, path, body)
        assert upstream.requests == []
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    found = re.fullmatch(
        r"The input token count \((\d+)\) exceeds the maximum number of tokens allowed \((\d+)\)\..*", error["message"]
    )
    assert found is not None
    assert int(found[2]) <= WINDOW < int(found[1])


@EACH
async def test_one_result_larger_than_the_window_is_cut_and_answered(proxies: Proxies, protocol_name: str):
    """The newest result alone breaks the hard limit; the model reads its beginning and end."""
    provider = StrictProvider(protocol_name, WINDOW, rounds=1_000, run="large")
    proxy = proxies[protocol_name]
    async with proxy.provider(provider), agent(proxy, protocol_name, name="large") as run:
        await rounds(run, 4)
        _enlarge(run)
        provider.whole = False
        await run.step()
    assert provider.problems == []
    assert run.sent[-1] // 4 > 2 * WINDOW
    assert provider.taken[-1].tokens < WINDOW
    assert "a line of a very long file" in provider.taken[-1].entries[-1].decode()
    assert compacted_requests(run) == [len(run.answers) - 1]


@EACH
async def test_an_error_of_another_kind_is_neither_compacted_nor_tried_again(proxies: Proxies, protocol_name: str):
    """A 400 about something else goes to the client as it is, near the window too. With a compaction in force, the
    request is sent once without it."""
    said = json.dumps({"error": {"message": "Unknown parameter: 'tempo'.", "type": "invalid_request_error"}}).encode()
    provider, proxy = StrictProvider(protocol_name, WINDOW, rounds=1_000, run="other"), proxies[protocol_name]

    async def other(request: Any, answer: Any) -> None:
        await answer.head(400, [("Content-Type", "application/json")], length=len(said))
        await answer.send(said)

    async with proxy.provider(provider), agent(proxy, protocol_name, name="other") as run:
        await rounds(run, 20)
    body = json.dumps(_body(run)).encode()
    async with proxy.provider(other) as upstream:
        reply = await post(proxy, PATHS[protocol_name], body)
    assert (reply.status, reply.body) == (400, said)
    assert len(upstream.requests) <= 2


def _enlarge(run: Run) -> None:
    """Makes the newest result very long."""
    long, last = "a line of a very long file\n" * 4_000, run.history[-1]
    if run.protocol_name == "messages":
        last["content"][0]["content"] = long
    elif run.protocol_name == "gemini":
        last["parts"][0]["functionResponse"]["response"] = {"output": long}
    else:
        last["content" if run.protocol_name == "chat" else "output"] = long


def _body(run: Run) -> dict[str, Any]:
    history = [
        json.loads(json.dumps(entry, default=lambda value: value.model_dump(exclude_none=True)))
        for entry in run.history
    ]
    writer = WRITERS[run.protocol_name]
    return writer.with_tools(writer.request(MODEL, history), TOOLS[run.protocol_name])
