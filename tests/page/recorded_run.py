"""A recorded conversation, sent through a started proxy request by request, as its agent did."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from tests.loopback import Answer, Recorded
from tests.proxy_process import Proxy

EXAMPLE = Path(__file__).parents[2] / "examples" / "transcript.jsonl"
MODEL = "claude-sonnet-example"
CONFIG = """
server: {shutdown_seconds: 300}
store: {timeout_seconds: 60, write_timeout_seconds: 60}
archive: {record: all}
summaries: {writer: extractive}
model_list:
  - {model_name: MODEL, litellm_params: {model: openai/gpt-4o, api_base: "{upstream}/v1", api_key: sk-none},
     model_info: {max_input_tokens: 24000}}
""".replace("MODEL", MODEL)
TASK = "Find out which of the reports of March name a supplier twice, and list their numbers."
ASK = "Look through the reports."
CALL = {
    "id": "call_task",
    "type": "function",
    "function": {"name": "Task", "arguments": json.dumps({"agent": "reader", "prompt": TASK})},
}
_numbers = count()


async def provider(request: Recorded, answer: Answer) -> None:
    """Answers each request with a plausible usage: a call for a sub-agent where the user asks for it, else a word."""
    size = len(request.body) // 4
    message: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if request.json()["messages"][-1]["content"] == ASK:
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    body = json.dumps({
        "id": f"chatcmpl-{next(_numbers)}", "object": "chat.completion", "created": 0, "model": MODEL,
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": size, "completion_tokens": 120, "total_tokens": size + 120,
                  "prompt_tokens_details": {"cached_tokens": size * 4 // 5}},
    }).encode()  # fmt: skip
    await answer.head(200, [("Content-Type", "application/json")], length=len(body))
    await answer.send(body)


def recorded_requests() -> list[dict[str, Any]]:
    """The requests of the example: its list up to each of the model's messages."""
    example = json.loads(EXAMPLE.read_text("utf-8").splitlines()[0])
    tools, messages = example["tools"], example["messages"]
    ends = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    return [{"model": MODEL, "tools": tools, "messages": messages[:end]} for end in ends]


async def send(proxy: Proxy, body: Any, **headers: str) -> httpx.Response:
    """Sends a request; returns the answer."""
    async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await client.post(f"{proxy.url}/v1/chat/completions", json=body, headers=named)
        assert answer.status_code == 200, answer.text
        return answer


async def send_recorded(proxy: Proxy, **headers: str) -> str:
    """Sends the whole example; returns its session."""
    session = ""
    for body in recorded_requests():
        session = (await send(proxy, body, **headers)).headers["x-accordion-session"]
    return session


async def send_delegation(proxy: Proxy, **headers: str) -> tuple[str, str]:
    """Sends a main agent's requests, and its sub-agent's between them; returns their sessions."""
    start = [{"role": "user", "content": ASK}]
    main = (await send(proxy, {"model": MODEL, "messages": start}, **headers)).headers["x-accordion-session"]
    child = await send(proxy, {"model": MODEL, "messages": [{"role": "user", "content": TASK}]}, **headers)
    result = {"role": "tool", "tool_call_id": CALL["id"], "content": "Numbers 4 and 11."}
    called = [*start, {"role": "assistant", "content": None, "tool_calls": [CALL]}, result]
    await send(proxy, {"model": MODEL, "messages": called}, **headers)
    return main, child.headers["x-accordion-session"]
