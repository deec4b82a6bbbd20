"""A store that an earlier version wrote is read: commit 5213af4 wrote the files in `former_store/`.

It served `request()` as it grew, compacted the tenth, and stored a memory. The archive was encrypted with
KEY, and nothing in the store expires within a lifetime.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import Start
from tests.e2e.proxy_api import get_page
from tests.loopback import Answer, Recorded

FORMER = Path(__file__).parent / "former_store"
KEY = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
CONFIG = """
# The store answers in time on a busy machine, too: without an answer the history would be compacted anew.
store: {retention_days: 36500, timeout_seconds: 20}
summaries: {writer: extractive}
archive: {key: "KEY", retention_days: 36500}
windows: {default: 8000}
model_list:
- model_name: m
  litellm_params: {model: openai/m, api_base: "{upstream}/v1", api_key: x}
  model_info: {max_input_tokens: 8000}
""".replace("KEY", KEY)
ROUNDS = 12
MEMORIES = "fd0362ff4b5fe77a0cbf46c1.db"
"""The name of the tenant's file of memories."""
ANSWER = json.dumps(
    {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    }
).encode()


def content(number: int) -> str:
    return f"file {number}: " + " ".join(f"word{number}x{each}" for each in range(150))


def request() -> dict[str, Any]:
    """The last request that the earlier version served."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a helper."},
        {"role": "user", "content": "Please look at all files. Never touch prod.yaml."},
    ]
    for number in range(ROUNDS):
        function = {"name": "read", "arguments": json.dumps({"path": f"f{number}.txt"})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": content(number)})
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    return {"model": "m", "messages": messages, "tools": tools}


async def test_a_store_of_an_earlier_version_is_read(start: Start, tmp_path: Path) -> None:
    memories = tmp_path / "store.db.memories"
    memories.mkdir()
    shutil.copy(FORMER / "store.sqlite", tmp_path / "store.db")
    shutil.copy(FORMER / "memories.sqlite", memories / MEMORIES)
    proxy = start(CONFIG, ACCORDION_STORE=f"sqlite:///{tmp_path / 'store.db'}")
    forwarded: list[bytes] = []

    async def provider(received: Recorded, answer: Answer) -> None:
        forwarded.append(received.body)
        await answer.head(200, [("Content-Type", "application/json")], length=len(ANSWER))
        await answer.send(ANSWER)

    headers = {"authorization": "Bearer k", "content-type": "application/json"}
    client = httpx.AsyncClient(base_url=proxy.url, headers=headers, trust_env=False)
    async with proxy.provider(provider), client:
        response = await client.post("/v1/chat/completions", content=json.dumps(request()).encode(), timeout=30)
        assert json.loads(response.headers["x-accordion-compaction"])["state"] == "replayed"
        # The description of our tool is this version's.
        [(_, _, messages)] = [body.partition(b'"messages":') for body in forwarded]
        assert messages
        assert messages == (FORMER / "forwarded.json").read_bytes().partition(b'"messages":')[2]
        references = set(re.findall(r"art_[0-9a-f]{12}", forwarded[0].decode()))
        assert references
        texts = [
            (await get_page(proxy, f"/accordion/artifacts/{each}?limit=1000", authorization="Bearer k")).text
            for each in references
        ]
        assert any(content(0)[:60] in text for text in texts)
        found = await client.post("/accordion/memory/search", json={"query": "ledger PostgreSQL"})
        assert [each["preview"] for each in found.json()["results"]] == ["The ledger runs on PostgreSQL 16."]
