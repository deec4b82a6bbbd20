"""Agents in front of a started proxy with a small window, and checks of their prefixes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from accordion.protocols.registry import PROTOCOLS
from tests.agents import Run, connected
from tests.conftest import Start
from tests.e2e.proxy_api import get_page, get_session, wait_until
from tests.proxy_process import Proxy
from tests.strict_provider import Forwarded, StrictProvider

WINDOW = 8_000
_CONFIG = """
server: {shutdown_seconds: 1}
summaries: {writer: WRITER}
model_list:
- model_name: small
  litellm_params: {model: FAMILY/small, api_base: "{upstream}PATH"}
  model_info: {max_input_tokens: WINDOW, max_output_tokens: 600}
"""
PROTOCOL_NAMES = tuple(name for name in PROTOCOLS if name != "converse")
"""tests/e2e/test_bedrock.py has Converse's own: its streams are frames, not lines."""
EACH = pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
STREAMS = pytest.mark.parametrize(
    ("protocol_name", "stream"),
    [(PROTOCOL_NAMES[0], False), *((name, True) for name in PROTOCOL_NAMES)],
    ids=["whole", *PROTOCOL_NAMES],
)
"""The streams of each protocol, and the whole replies of one: tests/e2e/test_tool_loop_agents.py has those of all."""


def config(protocol_name: str, *, window: int = WINDOW, writer: str = "extractive") -> str:
    """A config file with one model, `small`, that speaks the protocol."""
    family, path = {"messages": ("anthropic", ""), "gemini": ("gemini", "")}.get(protocol_name, ("openai", "/v1"))
    words = {"WRITER": writer, "FAMILY": family, "PATH": path, "WINDOW": str(window)}
    text = _CONFIG
    for name, value in words.items():
        text = text.replace(name, value)
    return text


class Proxies:
    """Started proxies, one for each protocol's config; started when they are first asked for."""

    def __init__(self, start: Start, *options: str, window: int = WINDOW, writer: str = "extractive", **environ: str):
        self._start, self._options, self._environ = start, options, environ
        self._window, self._writer = window, writer
        self._running: dict[str, Proxy] = {}

    def __getitem__(self, protocol_name: str) -> Proxy:
        kind = protocol_name if protocol_name in ("messages", "gemini") else "openai"
        if kind not in self._running:
            text = config(protocol_name, window=self._window, writer=self._writer)
            self._running[kind] = self._start(text, *self._options, **self._environ)
        return self._running[kind]


def strict_provider(protocol_name: str, name: str) -> StrictProvider:
    """A strict provider that answers any number of requests."""
    return StrictProvider(protocol_name, WINDOW, rounds=1_000, thinks=protocol_name != "chat", run=name)


@asynccontextmanager
async def agent(proxy: Proxy, protocol_name: str, **more: Any) -> AsyncIterator[Run]:
    """An agent behind a proxy, without messages."""
    async with connected(proxy.url, protocol_name) as client:
        yield Run(client, protocol_name, **more)


async def rounds(run: Run, count: int) -> Run:
    """Sends `count` requests of one turn; begins it if needed."""
    if not run.history:
        run.begin()
    for _ in range(count):
        await run.step()
    return run


async def fetch_session(proxy: Proxy, session_id: str | None, requests: int) -> dict[str, Any]:
    """A session's view in the API once `requests` of it are recorded, a moment after their responses."""

    async def known() -> dict[str, Any] | None:
        reply = await get_page(proxy, f"/accordion/sessions/{session_id}")
        found: dict[str, Any] = reply.json()
        return found if reply.status_code == 200 and found["totals"]["requests"] >= requests else None

    await wait_until(known)
    # A row may be written a moment before the exchange that it counts already; whoever looks again has both.
    return await get_session(proxy, session_id)


def broken_prefixes(taken: Sequence[Forwarded]) -> list[int]:
    """The indexes of forwarded lists that do not begin with the whole of the one before."""
    found = []
    for at, (one, two) in enumerate(itertools.pairwise(taken), 1):
        if two.fixed != one.fixed or two.entries[: len(one.entries)] != one.entries:
            found.append(at)
    return found


def compacted_requests(run: Run) -> list[int]:
    """The indexes of a run's requests that were compacted."""
    return [at for at, said in enumerate(run.compactions) if said is not None and said["state"] == "compacted"]
