"""What a model costs whose summaries are of no use, by the provider's own count."""

import json
import re
from typing import Any

import pytest

from tests.agent_replies import TOOLS
from tests.agents import Run
from tests.conftest import Start
from tests.e2e.small_window import agent, compacted_requests, config, rounds
from tests.e2e.test_compaction_summaries import failing
from tests.loopback import Script
from tests.proxy_process import Proxy
from tests.strict_provider import StrictProvider

WINDOW = 24_000
REQUESTS = 25


def large_tools(protocol_name: str) -> list[dict[str, Any]]:
    """The usual tools with descriptions as long as those of coding agents: about 6,000 tokens in all."""
    tools = json.loads(json.dumps(TOOLS[protocol_name]))
    text = " ".join(
        f"Rule {at} of this tool: read the path, change little, and say what was done." for at in range(340)
    )
    held = tools[0].get("function", tools[0])
    held["description"] = text
    return list(tools)


def started(start: Start) -> Proxy:
    text = config("chat", window=WINDOW)
    return start(re.sub(r"summaries: .*\n", "summaries: {writer: request, wait_seconds: 0.4}\n", text))


async def conversation(proxy: Proxy, summary: Script, requests: int = REQUESTS) -> tuple[StrictProvider, Run]:
    """So many requests of an agent with large tools in a small window."""
    tools = large_tools("chat")
    provider = StrictProvider("chat", WINDOW, rounds=1_000, summary=summary, words=900, tools=tools)
    async with proxy.provider(provider), agent(proxy, "chat", words=900, more={"tools": tools}) as run:
        await rounds(run, requests)
    assert provider.problems == []
    return provider, run


def share(provider: StrictProvider) -> float:
    """Tokens of requests for summaries, as a share of those of the agent's own requests."""
    return sum(map(provider.count, provider.summaries)) / sum(one.tokens for one in provider.taken)


@pytest.mark.parametrize("how", ["prose", "empty", "invented"])
async def test_a_model_that_never_writes_a_summary_costs_a_twentieth_at_most(start: Start, how: str):
    provider, run = await conversation(started(start), failing(how))
    assert len(compacted_requests(run)) >= 3
    assert sum(one.tokens for one in provider.taken) > 200_000
    assert 0 < share(provider) <= 0.05
    failed = [said["summary_failed_answers"] for said in run.compactions if said and said["state"] == "compacted"]
    assert sum(failed) == len(provider.summaries)
    assert {said["writer"] for said in run.compactions if said and said["state"] == "compacted"} <= {"", "extractive"}
