"""Two servers, each with one worker, on one SQLite file: a conversation may go to either of them at any time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.agents import Client, connected
from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.e2e.small_window import WINDOW, agent, broken_prefixes, compacted_requests, config, rounds
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import StrictProvider

RUNS = 5
"""On a busy machine a server may come too late to write what the other waits for; most conversations tell."""


def start_another(start: Start, first: Proxy, settings: str = PATIENT) -> Proxy:
    """Starts a server on the first one's store, with its provider."""
    url = f"http://127.0.0.1:{first.upstream_port}"
    return start(
        settings.replace("{upstream}", url),
        ACCORDION_STORE=first.environ["ACCORDION_STORE"],
        ACCORDION_OPENAI_BASE_URL=f"{url}/v1",
        ACCORDION_ANTHROPIC_BASE_URL=url,
    )


def store_in(folder: Path) -> str:
    return f"sqlite:///{folder}/one.db"


@asynccontextmanager
async def clients_of(proxies: list[Proxy], protocol_name: str) -> AsyncIterator[list[Client]]:
    async with connected(proxies[0].url, protocol_name) as one, connected(proxies[1].url, protocol_name) as other:
        yield [one, other]


async def ask(client: Client, texts: str, **more: Any) -> str:
    """Returns the session of a request; its texts are divided by blanks."""
    body = CHAT.body(*texts.split(), **more)
    answer = await client.post("/chat/completions", cast_to=httpx.Response, content=body)
    return str(answer.headers["x-accordion-session"])


async def test_a_conversation_that_alternates_between_two_servers_is_one_session(start: Start, tmp_path: Path):
    first = start(PATIENT, ACCORDION_STORE=store_in(tmp_path))
    proxies = [first, start_another(start, first)]
    whole = 0
    async with first.provider(CHAT.answers()), clients_of(proxies, "chat") as clients:
        for run in range(RUNS):
            talk = [f"{run}-{number}" for number in range(16)]
            sessions = [
                await ask(clients[number // 2 % 2], " ".join(talk[:number])) for number in range(1, len(talk), 2)
            ]
            whole += len(set(sessions)) == 1
    assert whole > RUNS / 2


async def test_conversations_with_one_opening_are_told_apart_by_a_server_that_was_alone(start: Start, tmp_path: Path):
    first = start(PATIENT, ACCORDION_STORE=store_in(tmp_path))
    async with first.provider(CHAT.answers()), connected(first.url, "chat") as one:
        openings = [f"opening{number}" for number in range(RUNS)]
        for opening in openings:
            await ask(one, opening)
        second = start_another(start, first)
        async with connected(second.url, "chat") as two:
            for opening in openings:
                right = await ask(two, f"{opening} right go")
                # What a server records is in the store a moment later, as a rule before a model has answered.
                await asyncio.sleep(0.5)
                left = await ask(one, f"{opening} left go")
                assert left != right
                await asyncio.sleep(0.5)
                assert await ask(two, f"{opening} left go on further") == left
                assert await ask(one, f"{opening} right go on further") == right


async def test_an_agent_that_alternates_between_two_servers_is_compacted_as_by_one(start: Start, tmp_path: Path):
    settings = PATIENT + config("responses")
    first = start(settings, ACCORDION_STORE=store_in(tmp_path))
    proxies = [first, start_another(start, first, settings)]
    provider = StrictProvider("responses", WINDOW, rounds=1_000, thinks=True)
    async with (
        first.provider(provider),
        clients_of(proxies, "responses") as clients,
        agent(first, "responses") as run,
    ):
        while len(compacted_requests(run)) < 3:
            run.client = clients[len(run.answers) % 2]
            await rounds(run, 1)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    at = compacted_requests(run)[0]
    # Both servers put the same compaction back until the next one.
    assert all(said is not None and said["state"] != "none" for said in run.compactions[at : at + 2])
