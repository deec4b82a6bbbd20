"""Compactions are put back the same way: after a restart, by another worker, by another proxy; as far as a history
holds."""

from pathlib import Path

from tests.agents import Run, connected
from tests.conftest import Start
from tests.e2e.small_window import (
    agent,
    broken_prefixes,
    compacted_requests,
    config,
    rounds,
    strict_provider,
)

BEYOND = 27
"""Requests after which a compaction was made, and some more were sent."""


def references_in(run: Run) -> list[str]:
    """The id of the compaction in force, by answer."""
    return ["" if said is None else said["id"] for said in run.compactions]


async def test_a_compaction_is_the_same_after_a_restart(start: Start, tmp_path: Path):
    proxy = start(config("chat"), ACCORDION_STORE=f"sqlite:///{tmp_path}/compactions.db")
    provider = strict_provider("chat", "restart")
    async with proxy.provider(provider):
        async with agent(proxy, "chat", name="restart") as run:
            await rounds(run, BEYOND)
        proxy.stop()
        proxy.port = 0
        proxy.start()
        async with connected(proxy.url, "chat") as client:
            run.client = client
            await rounds(run, 3)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    assert len(compacted_requests(run)) in (1, 2)
    assert references_in(run)[BEYOND - 1] == references_in(run)[BEYOND] != ""
    assert run.answers[0]["x-accordion-session"] == run.answers[-1]["x-accordion-session"]
