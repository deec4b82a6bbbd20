"""How many clients may be there at once is for the system's hard limit to say."""

import os
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.conftest import Start
from tests.e2e.raw_client import connected


@pytest.fixture
def few_files() -> Iterator[int]:
    """What is started meanwhile begins with this soft limit of open files; this process has some open already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/dev/fd")) + 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_more_clients_than_the_soft_limit_of_open_files_are_served_at_once(
    start: Start, workers: str, few_files: int
):
    proxy = start("", "--workers", workers)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(proxy)) for _ in range(2 * few_files)]
        for client in clients:
            await client.ask("GET", "/healthz")
            assert (await client.reply()).status == 200
