"""Agents at work while workers are killed: what was under way fails as a lost connection, and nothing else does."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anthropic
import httpx
import openai

from tests.agents import Client, GeminiConnectionError, Run
from tests.conftest import Start
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import EACH, WINDOW, broken_prefixes, compacted_requests, config
from tests.loopback import Answer, Recorded
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import StrictProvider, result_of

AGENTS, REQUESTS = 4, 40
LOST = (openai.APIConnectionError, anthropic.APIConnectionError, httpx.TransportError, GeminiConnectionError)
"""How a reply that breaks off shows: the last of them where it had begun."""


def hopping(proxy: Proxy, protocol_name: str) -> Client:
    """A client with a new connection for each request, so that any worker may take it."""
    more: Any = {"api_key": "sk-test-agents", "max_retries": 4, "timeout": 60}
    more["default_headers"] = {"Connection": "close"}
    if protocol_name == "gemini":
        headers = {"x-goog-api-key": more["api_key"], **more["default_headers"]}
        return httpx.AsyncClient(base_url=proxy.url, headers=headers, timeout=more["timeout"], trust_env=False)
    if protocol_name == "messages":
        return anthropic.AsyncAnthropic(base_url=proxy.url, **more)
    return openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", **more)


async def worked(run: Run) -> None:
    """So many requests; one whose reply breaks off is sent again."""
    for _ in range(REQUESTS):
        try:
            await run.step()
        except Exception as error:
            # The SDKs each have an HTTP library of their own.
            if not isinstance(error, LOST) and "Protocol" not in type(error).__name__:
                raise


async def original_of(proxy: Proxy, run: Run) -> bool:
    """Whether all that tools returned to an agent, but for what it did not send yet, stands in its transcript."""
    text = (await get_page(proxy, f"/accordion/sessions/{run.answers[0]['x-accordion-session']}/original")).text
    said = str(run.history[:-4])
    calls = [f"call_{number}_0" for number in range(1, REQUESTS + 1)]
    return all(result_of(call) in text for call in calls if result_of(call) in said)


@EACH
async def test_killing_two_of_three_workers_loses_no_session_compaction_or_history(start: Start, protocol_name: str):
    text = config(protocol_name) + PATIENT
    proxy = start(text, "--workers", "3", ACCORDION_STORE="sqlite:///one.db")
    await proxy.says("startup complete", 3)
    names = [f"agent {number}." for number in range(AGENTS)]
    models = {
        name: StrictProvider(protocol_name, WINDOW, rounds=1_000, run=name, thinks=protocol_name != "chat")
        for name in names
    }

    async def script(request: Recorded, answer: Answer) -> None:
        await next(models[name] for name in names if name in request.body.decode())(request, answer)

    async def killed() -> None:
        for pid in proxy.workers[-3:][:2]:
            begun = sum(len(model.taken) for model in models.values())
            await wait_until(partial(more_than, models, begun + AGENTS * REQUESTS // 4))
            os.kill(pid, signal.SIGKILL)

    runs = [Run(None, protocol_name, name=name, stream=bool(number % 2)) for number, name in enumerate(names)]
    async with proxy.provider(script), AsyncExitStack() as stack:
        for run in runs:
            run.client = await stack.enter_async_context(hopping(proxy, protocol_name))
            run.begin()
        await asyncio.gather(killed(), *(worked(run) for run in runs))
        for run in runs:
            # What a worker had taken down for half a second may be gone with it, until it is sent again. An agent that
            # was quicker than the others may have ended within that time.
            await run.step()
            assert len({head["x-accordion-session"] for head in run.answers}) == 1
            await wait_until(partial(original_of, proxy, run))
    for name, run in zip(names, runs, strict=True):
        assert models[name].problems == []
        assert models[name].refusals == []
        assert len(compacted_requests(run)) >= 1
        # A fold whose answer was lost with its worker is told as one that is put back.
        assert (
            len(compacted_requests(run)) <= len(broken_prefixes(models[name].taken)) <= len(compacted_requests(run)) + 2
        )
    assert "Traceback" not in proxy.log


async def more_than(models: dict[str, StrictProvider], count: int) -> bool:
    return sum(len(model.taken) for model in models.values()) > count
