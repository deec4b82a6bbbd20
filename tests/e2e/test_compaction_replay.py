"""Compactions are put back the same way: after a restart, by another worker, by another proxy; as far as a history
holds."""

from pathlib import Path

from tests.agents import Run, connected
from tests.conftest import Start
from tests.e2e.small_window import (
    EACH,
    Proxies,
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


@EACH
async def test_a_history_that_is_rewound_behind_a_compaction_goes_on_without_it(proxies: Proxies, protocol_name: str):
    """The client takes back so much that the compaction tells of what is no longer there."""
    name, proxy = "behind", proxies[protocol_name]
    provider = strict_provider(protocol_name, name)
    async with proxy.provider(provider), agent(proxy, protocol_name, name=name) as run:
        await rounds(run, BEYOND)
        compaction = references_in(run)[-1]
        assert compaction
        del run.history[5:]
        _to_a_question(run, "Q: another way, please.")
        await rounds(run, 3)
        assert references_in(run)[-1] == ""
        await rounds(run, BEYOND)
    assert provider.problems == []
    assert references_in(run)[-1] not in ("", compaction), "the fork is compacted by itself"


def _to_a_question(run: Run, text: str) -> None:
    """Cuts a history back to where a user may speak, and lets the user speak."""
    while run.history and run.open:
        del run.history[-1]
    run.say(text)
