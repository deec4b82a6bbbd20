"""Agents at work while workers are killed: what was under way fails as a lost connection, and nothing else does."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from functools import partial

import anthropic

from tests.agents import Run
from tests.conftest import Start
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import WINDOW, broken_prefixes, compacted_requests, config
from tests.loopback import Answer, Recorded
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import StrictProvider, result_of

AGENTS, REQUESTS = 4, 40


def hopping(proxy: Proxy) -> anthropic.AsyncAnthropic:
    """A client with a new connection for each request, so that any worker may take it."""
    headers = {"Connection": "close"}
    return anthropic.AsyncAnthropic(
        base_url=proxy.url, api_key="sk-test-agents", max_retries=4, timeout=60, default_headers=headers
    )


async def worked(run: Run) -> None:
    """So many requests; one whose reply breaks off is sent again."""
    for _ in range(REQUESTS):
        try:
            await run.step()
        except Exception as error:
            # Where the reply had begun, it is an error of the SDK's HTTP library.
            if not isinstance(error, anthropic.APIConnectionError) and "Protocol" not in type(error).__name__:
                raise


async def original_of(proxy: Proxy, run: Run) -> bool:
    """Whether all that tools returned to an agent, but for what it did not send yet, stands in its transcript."""
    text = (await get_page(proxy, f"/accordion/sessions/{run.answers[0]['x-accordion-session']}/original")).text
    said = str(run.history[:-4])
    calls = [f"call_{number}_0" for number in range(1, REQUESTS + 1)]
    return all(result_of(call) in text for call in calls if result_of(call) in said)


async def test_killing_two_of_three_workers_loses_no_session_compaction_or_history(start: Start):
    text = config("messages") + PATIENT
    proxy = start(text, "--workers", "3", ACCORDION_STORE="sqlite:///one.db")
    await proxy.says("startup complete", 3)
    names = [f"agent {number}." for number in range(AGENTS)]
    models = {name: StrictProvider("messages", WINDOW, rounds=1_000, run=name, thinks=True) for name in names}

    async def script(request: Recorded, answer: Answer) -> None:
        await next(models[name] for name in names if name in request.body.decode())(request, answer)

    async def killed() -> None:
        for pid in proxy.workers[-3:][:2]:
            begun = sum(len(model.taken) for model in models.values())
            await wait_until(partial(more_than, models, begun + AGENTS * REQUESTS // 4))
            os.kill(pid, signal.SIGKILL)

    runs = [Run(None, "messages", name=name, stream=bool(number % 2)) for number, name in enumerate(names)]
    async with proxy.provider(script), AsyncExitStack() as stack:
        for run in runs:
            run.client = await stack.enter_async_context(hopping(proxy))
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
        # A compaction whose answer was lost with its worker is told as one that is put back.
        assert (
            len(compacted_requests(run)) <= len(broken_prefixes(models[name].taken)) <= len(compacted_requests(run)) + 2
        )
    assert "Traceback" not in proxy.log


async def more_than(models: dict[str, StrictProvider], count: int) -> bool:
    return sum(len(model.taken) for model in models.values()) > count
