"""Conversations whose every request another worker serves, as fast as a provider on this machine answers."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.agents import Client, connected, fetch
from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, RESPONSES, ProtocolSamples
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import (
    WINDOW,
    agent,
    broken_prefixes,
    compacted_requests,
    config,
    fetch_session,
    rounds,
)
from tests.loopback import replies_json
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import StrictProvider
from tests.valkey import Valkey

ENOUGH, AT_MOST = 3, 15
"""Conversations that must hold. On a busy machine a worker may write too late what another waits for."""


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


async def sent(client: Client, protocol: ProtocolSamples, *texts: str, **more: Any) -> tuple[str, int]:
    """The session of a request, and the tokens that it was taken for."""
    path = protocol.path.removeprefix("/v1")
    answer = await client.post(path, cast_to=httpx.Response, content=protocol.body(*texts, **more))
    return answer.headers["x-accordion-session"], int(answer.headers["x-accordion-tokens"])


async def test_a_conversation_between_workers_is_one_session(start: Start, store: str):
    proxy = start(PATIENT, "--workers", "2", ACCORDION_STORE=store)
    whole = 0
    async with proxy.provider(CHAT.answers()), one_of_each(proxy, "chat") as clients:
        for run in range(AT_MOST):
            talk = [f"conversation {run}, message {number}" for number in range(16)]
            found = [await sent(clients[number // 2 % 2], CHAT, *talk[:number]) for number in range(1, 17, 2)]
            whole += len({session for session, _ in found}) == 1
            if whole == ENOUGH:
                break
    assert whole == ENOUGH


async def test_a_continuation_is_measured_by_the_usage_that_another_worker_saw(start: Start, store: str):
    proxy = start(PATIENT, "--workers", "2", ACCORDION_STORE=store)
    whole = 0
    async with one_of_each(proxy, "responses") as clients:
        for run in range(AT_MOST):
            previous, found = {}, []
            for number in range(6):
                response = f"resp_{run}_{number}"
                async with proxy.provider(RESPONSES.answers(given=500 + 100 * number, made=20, response_id=response)):
                    found.append(await sent(clients[number % 2], RESPONSES, f"Go on, {run}.", **previous))
                previous = {"previous_response_id": response}
            one = len({session for session, _ in found}) == 1
            whole += one and all(
                520 + 100 * number <= tokens < 540 + 100 * number for number, (_, tokens) in enumerate(found[1:])
            )
            if whole == ENOUGH:
                break
    assert whole == ENOUGH


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


async def test_a_conversation_that_a_call_began_is_that_calls_at_whichever_worker(start: Start, store: str):
    """The requests come no quicker behind each other than a model answers."""
    proxy = start(PATIENT, "--workers", "2", ACCORDION_STORE=store)
    whole = 0
    async with one_of_each(proxy, "chat") as clients:
        for run in range(AT_MOST):
            task = f"Look through folder {run} for whatever concerns the parser, and say what was found in it."
            call = {"id": "c1", "type": "function", "function": {"name": "Task", "arguments": json.dumps([task])}}
            said = CHAT.json()
            said["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
            async with proxy.provider(replies_json(said)):
                parent, _ = await sent(clients[0], CHAT, f"Delegate it, {run}.")
            talk, found = [task, "Well.", "Go on.", "Well.", "And on."], []
            async with proxy.provider(CHAT.answers()):
                child, _ = await sent(clients[1], CHAT, *talk[:1])
                for number, client in ((3, clients[0]), (5, clients[1])):
                    await asyncio.sleep(0.5)
                    assert (await sent(client, CHAT, *talk[:number]))[0] == child
                    known = await fetch_session(proxy, child, number // 2 + 1)
                    found.append((known["parent"], known["evidence"]))
            whole += found == [(parent, "tool")] * 2
            if whole == ENOUGH:
                break
    assert whole == ENOUGH


async def test_messages_behind_provider_history_are_recorded_in_order_by_any_worker(start: Start, store: str):
    proxy = start(PATIENT + "archive: {record: all}\n", "--workers", "2", ACCORDION_STORE=store)
    async with one_of_each(proxy, "responses") as clients:
        for attempt in range(5):
            texts = [f"Go on, {attempt}, {number}." for number in range(8)]
            sessions = dict[str, None]()
            previous: dict[str, str] = {}
            for number, text in enumerate(texts):
                async with proxy.provider(RESPONSES.answers(response_id=f"resp_{attempt}_{number}")):
                    sessions[(await sent(clients[number % 2], RESPONSES, text, **previous))[0]] = None
                previous = {"previous_response_id": f"resp_{attempt}_{number}"}
            if len(sessions) == 1:
                break
            # On a very busy machine a worker may write later than the other one waits.
    assert len(sessions) == 1

    async def recorded() -> bool:
        body = (await get_page(proxy, f"/accordion/sessions/{next(iter(sessions))}/original")).json()
        return [entry["content"] for entry in body.get("input", ())] == texts

    await wait_until(recorded)
