"""How many clients may be there at once is for the system's hard limit to say."""

import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.conftest import Start
from tests.e2e.raw import connected

FEW, CLIENTS = 128, 300


@pytest.fixture
def _few_files() -> Iterator[None]:
    """What is started meanwhile begins with a soft limit of `FEW` open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_few_files")
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_more_clients_than_the_soft_limit_of_open_files_are_served_at_once(start: Start, workers: str):
    proxy = start("", "--workers", workers)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(proxy)) for _ in range(CLIENTS)]
        for client in clients:
            await client.ask("GET", "/healthz")
            assert (await client.reply()).status == 200
