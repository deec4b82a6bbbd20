"""A window that is smaller than anybody knew: one compaction and one more try, and the client sees the answer."""

import json
import re
from typing import Any

import anthropic
import openai
import pytest

from tests.agent_replies import TOOLS
from tests.agents import MODEL
from tests.conftest import Start
from tests.e2e.small_window import WINDOW, Proxies, agent, rounds
from tests.proxy_process import Proxy
from tests.strict_provider import SYSTEM, StrictProvider, overflow_error, turn_text, vllm_overflow_error
from tests.writers import WRITERS

REAL = 4_600
"""What the provider takes, in tokens by its own count."""
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


def huge(protocol_name: str) -> dict[str, Any]:
    """A request whose system prompt alone is larger than the window."""
    writer = WRITERS[protocol_name]
    body = writer.with_system(writer.request(MODEL, [writer.user(turn_text(0))]), SYSTEM * 800)
    return writer.with_tools(body, TOOLS[protocol_name])


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
