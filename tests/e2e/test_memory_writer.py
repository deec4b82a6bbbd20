"""A configured model writes memories: asked in its own name, checked, accounted apart; the rules stand in for it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.conftest import Start
from tests.e2e.memory_samples import MESSAGES, RECORDED, record_conversation
from tests.e2e.proxy_api import get_page
from tests.e2e.test_memory_mcp import call, connected
from tests.loopback import Answer, Recorded
from tests.proxy_process import Proxy
from tests.summary_samples import line

CONFIG = f"""{RECORDED}
memory: {{writer: scribe}}
model_list:
- model_name: scribe
  litellm_params: {{model: openai/scribe-1, api_key: "${{SCRIBE_KEY}}"}}
  model_info: {{max_input_tokens: 60000, max_output_tokens: 4000}}
"""
TOLD = {
    "overview": [line("The ledger service listens on port 5433 of host db-7.example.org", 6)],
    "flow": {"decisions": [line("The user decided to move the ledger service to PostgreSQL 16", 1)]},
    "goals": {"secondary": [line("The user prefers that migrations of the ledger service run in one transaction", 7)]},
}
EACH = pytest.mark.parametrize("way", ["rest", "mcp"])


@pytest.fixture(scope="module")
def proxy(start: Start) -> Proxy:
    return start(CONFIG, SCRIBE_KEY="sk-scribe")


@asynccontextmanager
async def scribe(proxy: Proxy, answer: object, status: int = 200) -> AsyncIterator[list[Recorded]]:
    """A provider whose model tells what it is told to."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 700, "completion_tokens": 90, "total_tokens": 790}
    reply = {"id": "c", "object": "chat.completion", "model": "scribe-1", "choices": [choice], "usage": usage}

    async def script(request: Recorded, out: Answer) -> None:
        body = json.dumps(reply if status == 200 else {"error": {"message": "no", "type": "server_error"}}).encode()
        await out.head(status, [("Content-Type", "application/json")], length=len(body))
        await out.send(body)

    async with proxy.provider(script) as provider:
        yield provider.requests


async def compacted(proxy: Proxy, way: str, session: str) -> dict[str, Any]:
    """The whole of a session, by REST or MCP, with the search that must come first."""
    asked = {"conversation_id": session, "start_index": 0, "end_index": len(MESSAGES)}
    if way == "mcp":
        async with connected(proxy) as client:
            await call(client, "memory_search", conversation_id=session)
            return await call(client, "memory_compact_conversation", **asked)
    async with httpx.AsyncClient(trust_env=False, timeout=60, base_url=f"{proxy.url}/accordion/memory/") as client:
        await client.post("search", json={"conversation_id": session})
        reply = await client.post("compact_conversation", json=asked)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found


async def spent(proxy: Proxy, direction: str) -> float:
    page = (await get_page(proxy, "/metrics")).text
    rows = [row for row in page.splitlines() if row.startswith("accordion_memory_tokens_total")]
    return sum(float(row.rpartition(" ")[2]) for row in rows if f'direction="{direction}",model="scribe"' in row)


def asking(way: str, what: str) -> list[dict[str, Any]]:
    return [*MESSAGES, {"role": "user", "content": f"Go on for {way}: {what}."}]


@EACH
async def test_what_the_model_tells_and_the_messages_bear_out_is_remembered(proxy: Proxy, way: str):
    session = await record_conversation(proxy, asking(way, "truly"))
    before = await spent(proxy, "input"), await spent(proxy, "output")
    async with scribe(proxy, TOLD) as requests:
        first = await compacted(proxy, way, session)
        assert await compacted(proxy, way, session) == first
    (asked,) = requests
    assert (asked.target, asked.header("authorization")) == ("/v1/chat/completions", "Bearer sk-scribe")
    assert asked.json()["model"] == "scribe-1"
    assert "sk-own" not in asked.raw.decode()
    assert (first["writer"], first["notice"]) == ("scribe-1", "")
    assert (first["writer_input"], first["writer_output"]) == (700, 90)
    told = [each["content"] for each in first["memories_created"]]
    if way == "rest":
        # The second conversation says the same, and what is remembered already is not stored again.
        assert any("Decision: " in content and "PostgreSQL 16" in content for content in told)
    assert (await spent(proxy, "input") - before[0], await spent(proxy, "output") - before[1]) == (700, 90)
