"""Workers in this process on one SQLite file, and searches in its content."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import zstandard

from accordion.composition.application import Application
from accordion.config.load import build
from accordion.model.http import Inbound
from tests.loopback import Loopback, Script, replies_json
from tests.pipeline_setup import OWNER, OWNER_TOKEN

CANARY = "canary-7319-of-the-erased"
CONFIG = """
store: {url: "sqlite:///FOLDER/kept.db", timeout_seconds: 60, write_timeout_seconds: 60}
summaries: {writer: extractive}
model_list:
- model_name: small
  litellm_params: {model: openai/small, api_base: "UPSTREAM/v1"}
  model_info: {max_input_tokens: 6000, max_output_tokens: 600}
"""
KEY = "01" * 32
REPLY = {
    "id": "c", "object": "chat.completion", "model": "small",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Well."}}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
}  # fmt: skip


def request_with_name(rounds: int, name: str = CANARY) -> bytes:
    """A request in which every text holds the name."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Look for {name} in all of it."}]
    for at in range(rounds):
        function = {"name": "read", "arguments": json.dumps({"path": f"{name}/{at}.py"})}
        call = {"id": f"c{at}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        text = "\n".join(f"{at}.{line}: the line {line * at} has {name}" for line in range(60))
        messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": text})
    return json.dumps({"model": "small", "messages": messages}).encode()


async def ask(application: Application, body: bytes, key: str = "", **more: str) -> dict[str, str]:
    """Sends a request with an optional proxy key and more headers; returns the response's headers."""
    own = ((b"x-accordion-key", key.encode()), (b"authorization", b"Bearer mine")) if key else ()
    named = ((name.replace("_", "-").encode(), value.encode()) for name, value in more.items())
    pairs = ((b"content-type", b"application/json"), *own, *named)
    out = await application.forward(Inbound("POST", "/v1/chat/completions", "", pairs, body, "req-1"))
    if not isinstance(out.body, bytes):
        [_ async for _ in out.body]
    assert out.status == 200
    return {name.decode(): value.decode() for name, value in out.headers}


def compaction_id(headers: dict[str, str]) -> str:
    """The id of the compaction in a response's headers."""
    return str(json.loads(headers["x-accordion-compaction"])["id"])


async def api(application: Application, method: str, path: str, key: str = "") -> httpx.Response:
    """Asks the API."""
    headers = OWNER | ({"x-accordion-key": key} if key else {})
    transport = httpx.ASGITransport(app=application.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as client:
        return await client.request(method, path, headers=headers)


def files_with_name(folder: Path, name: str = CANARY) -> list[str]:
    """The files that contain the name, plain or compressed."""
    return [path.name for path in sorted(folder.iterdir()) if name.encode() in with_decompressed(path.read_bytes())]


def with_decompressed(data: bytes) -> bytes:
    """The data, and its compressed pieces in plain."""
    plain, at = bytearray(data), -1
    while (at := data.find(b"\x28\xb5\x2f\xfd", at + 1)) >= 0:
        try:
            plain += zstandard.ZstdDecompressor().decompressobj().decompress(data[at : at + 200_000])
        except zstandard.ZstdError:
            continue
    return bytes(plain)


def config_with_keys(*keys: str) -> str:
    """Config with these keys, the newest first."""
    return f'archive: {{key: "{",".join(keys)}"}}\n'


@asynccontextmanager
async def workers(folder: Path, *configs: str, script: Script | None = None) -> AsyncIterator[list[Application]]:
    """Workers on one store, one for each of these pieces of config. `script`: what the provider does, if not just
    answer."""
    async with Loopback(script or replies_json(REPLY)) as provider:
        texts = [(CONFIG + each).replace("FOLDER", str(folder)).replace("UPSTREAM", provider.url) for each in configs]
        applications = [Application(build(text.encode(), {}, {}), {}, owner_token=OWNER_TOKEN) for text in texts]
        try:
            for application in applications:
                await application.start()
            yield applications
        finally:
            for application in applications:
                await application.stop()
