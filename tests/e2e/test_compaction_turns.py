"""A turn that begins over its trigger while a model takes some requests' time to write the summary: the request passes,
and what stands before the turn must leave as soon as it is told."""

import asyncio
import re
from typing import Any

import pytest

from tests.conftest import Start
from tests.e2e.small_window import agent, compacted_requests, config
from tests.e2e.test_compaction_summaries import good
from tests.strict_provider import StrictProvider

WINDOW = 32_000


@pytest.mark.parametrize(("slow", "writer"), [(0.0, "extractive"), (0.0, "request"), (0.5, "request")])
async def test_a_turn_that_begins_over_its_trigger_is_compacted_soon_and_once(
    start: Start, slow: float, writer: str
) -> None:
    proxy = start(re.sub(r"wait_seconds: .*", "", config("chat", window=WINDOW, writer=writer)))
    provider = StrictProvider("chat", WINDOW, rounds=58, run="slow", words=160, batch=lambda _: 1)
    scribe = good("chat")

    async def summary(request: Any, answer: Any) -> None:
        await asyncio.sleep(slow)
        await scribe(request, answer)

    provider.summary = summary
    async with proxy.provider(provider), agent(proxy, "chat", name="slow", words=160) as run:
        await run.turns(1)
        first = len(run.answers)
        run.begin()
        for _ in range(40):
            await asyncio.sleep(0.1)
            await run.step()
    full = [float(head["x-accordion-utilization"]) for head in run.answers[first:]]
    compactions = [at - first for at in compacted_requests(run) if at >= first]
    assert provider.problems == []
    assert compactions
    assert compactions[0] <= 20
    assert len(compactions) <= 3
    assert max(full[20:]) < 0.75
