"""A turn is given the memories that belong to it, where the config says so: with the official SDKs against a running
proxy, two tenants and two projects."""

from tests.conftest import Start
from tests.e2e.memory_samples import (
    call_memories,
    last_entries,
)
from tests.e2e.small_window import (
    STREAMS,
    agent,
    broken_prefixes,
    config,
    fetch_session,
    rounds,
    strict_provider,
)
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import turn_text

ASK = "Which region does the ledger service replicate to?"
RECALL = f"{PATIENT}memory: {{project: ledger, recall: {{enabled: true, wait_seconds: 30}}}}\n"
OPENING = "[Memories from this user's earlier work"


async def remember(proxy: Proxy, canary: str, project: str = "ledger", **headers: str) -> str:
    """Adds a memory that answers the question; gives its id."""
    text = f"The ledger service does replicate to region {canary}."
    return str((await call_memories(proxy, "add", {"content": text, "project": project}, **headers))["id"])


@STREAMS
async def test_a_recalled_memory_follows_its_turn_and_keeps_the_prefix(start: Start, protocol_name: str, stream: bool):
    proxy = start(config(protocol_name) + RECALL)
    name = await remember(proxy, "eu-west-7")
    provider = strict_provider(protocol_name, ASK)
    async with proxy.provider(provider), agent(proxy, protocol_name, name=ASK, stream=stream) as run:
        run.begin()
        await rounds(run, 1)
        listed = last_entries(provider)
        assert len(listed) == (2 if protocol_name == "responses" else 1)
        assert listed[-1].index(OPENING) < listed[-1].index("eu-west-7")
        assert name in listed[-1]
        assert run.answers[0]["x-accordion-memory"] == f"{name} recalled"
        await rounds(run, 3)
        run.say(turn_text(1))
        await rounds(run, 2)
        seen = await fetch_session(proxy, run.answers[0]["x-accordion-session"], len(run.answers))
    assert not provider.problems
    assert broken_prefixes(provider.taken) == []
    assert "".join(last_entries(provider)).count(OPENING) == 1
    assert OPENING not in str(run.history)
    recalled = [each["recalled"] for each in seen["exchanges"] if each["recalled"] is not None]
    assert [each["memories"] for each in recalled] == [[f"{name} recalled"]]
