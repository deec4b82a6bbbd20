"""A window that is smaller than anybody knew: one compaction and one more try, and the client sees the answer."""

from typing import Any

import pytest

from tests.conftest import Start
from tests.e2e.small_window import agent, rounds
from tests.proxy_process import Proxy
from tests.strict_provider import StrictProvider, overflow_error, vllm_overflow_error

REAL = 4_600
"""What the provider takes, in tokens by its own count."""
UNKNOWN = "server: {shutdown_seconds: 1}\nsummaries: {writer: extractive}\nwindows: {default: 8000}\n"
WHOLE, BEFORE, WITHIN = "whole", "streamed, refused before", "streamed, refused in the stream"
REFUSALS = [
    pytest.param("chat", overflow_error, True, WHOLE, id="OpenAI, Chat Completions, whole"),
    pytest.param("chat", overflow_error, True, BEFORE, id="OpenAI, Chat Completions, before the stream"),
    pytest.param("chat", vllm_overflow_error, True, WITHIN, id="vLLM, Chat Completions, in the stream"),
    pytest.param("messages", overflow_error, True, WITHIN, id="Anthropic, in the stream"),
    pytest.param("responses", overflow_error, False, WITHIN, id="OpenAI, Responses, which names no figure"),
    pytest.param("responses", vllm_overflow_error, True, WHOLE, id="vLLM, Responses, whole"),
    pytest.param("gemini", overflow_error, True, WITHIN, id="Google, in the stream"),
]
"""tests/pipeline/test_overflow_probe.py has all shapes of refusals."""


@pytest.fixture
def proxy(start: Start) -> Proxy:
    """A proxy that knows nothing of the model's window."""
    return start(UNKNOWN)


@pytest.mark.parametrize(("protocol_name", "shape", "named", "how"), REFUSALS)
async def test_an_overflow_is_compacted_and_tried_again_unseen(
    proxy: Proxy, protocol_name: str, shape: Any, named: bool, how: str
):
    provider = StrictProvider(protocol_name, REAL, rounds=1_000, thinks=protocol_name != "chat", overflow=shape)
    provider.streamed_errors = how == WITHIN
    async with proxy.provider(provider) as upstream, agent(proxy, protocol_name, stream=how != WHOLE) as run:
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
