"""Conversations whose every request another worker serves, as fast as a provider on this machine answers."""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.agents import Client, connected, fetch
from tests.conftest import Start
from tests.e2e.small_window import (
    WINDOW,
    agent,
    broken_prefixes,
    compacted_requests,
    config,
    rounds,
)
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import StrictProvider
from tests.valkey import Valkey


@pytest.fixture(params=["SQLite", "Valkey"])
def store(request: pytest.FixtureRequest) -> str:
    """The address of a store that workers may share."""
    if request.param == "SQLite":
        return "sqlite:///one.db"
    server: Valkey = request.getfixturevalue("valkey_server")
    server.command("FLUSHALL")
    return server.url


@asynccontextmanager
async def one_of_each(proxy: Proxy, protocol_name: str) -> AsyncIterator[list[Client]]:
    """A client for each worker, with a connection that this one took."""
    await proxy.says("startup complete", 2)
    workers = proxy.workers[-2:]
    async with AsyncExitStack() as stack:
        clients = []
        for asleep in workers:
            client = await stack.enter_async_context(connected(proxy.url, protocol_name))
            os.kill(asleep, signal.SIGSTOP)
            try:
                await fetch(client, f"{proxy.url}/healthz")
            finally:
                os.kill(asleep, signal.SIGCONT)
            clients.append(client)
        yield clients


async def test_an_agent_whose_requests_take_turns_between_workers_is_compacted_as_by_one(start: Start, store: str):
    proxy = start(PATIENT + config("messages"), "--workers", "2", ACCORDION_STORE=store)
    provider = StrictProvider("messages", WINDOW, rounds=1_000, thinks=True)
    async with (
        proxy.provider(provider),
        one_of_each(proxy, "messages") as clients,
        agent(proxy, "messages") as run,
    ):
        while len(compacted_requests(run)) < 3:
            run.client = clients[len(run.answers) % 2]
            await rounds(run, 1)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    [(_, most), *_] = Counter(answer["x-accordion-session"] for answer in run.answers).most_common()
    assert most > len(run.answers) / 2
