"""Two servers, each with one worker, on one SQLite file: a conversation may go to either of them at any time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.agents import Client, connected
from tests.conftest import Start
from tests.e2e.small_window import WINDOW, agent, broken_prefixes, compacted_requests, config, rounds
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import StrictProvider


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
