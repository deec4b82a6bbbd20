"""A user asks for a saved session in any client and has it in the conversation from then on; and what compactions take
out becomes memories where that is wanted. With the official SDKs against a running proxy."""

import json

from accordion.memory.session_text import render_sections
from tests.conftest import Start
from tests.e2e.memory_samples import (
    call_memories,
    last_entries,
)
from tests.e2e.small_window import (
    STREAMS,
    agent,
    broken_prefixes,
    compacted_requests,
    config,
    fetch_session,
    rounds,
    strict_provider,
)
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import turn_text

CONFIG = f"{PATIENT}archive: {{record: all}}\n"
TOLD = "The ledger moves to region eu-west-7 on Thursday."
GIVEN = render_sections({"Project Root": "/srv/ledger", "Objective": TOLD})


def configured(protocol_name: str, more: str = "") -> str:
    return config(protocol_name) + CONFIG + more


async def save(proxy: Proxy, **headers: str) -> str:
    """Saves a session memory; gives its id."""
    reply = await call_memories(proxy, "core_memory", {"operation": "import", "text": GIVEN, "force": True}, **headers)
    return str(reply["id"])


@STREAMS
async def test_it_stands_behind_what_asked_for_it_as_long_as_nothing_is_compacted(
    start: Start, protocol_name: str, stream: bool
):
    proxy = start(configured(protocol_name))
    name = await save(proxy)
    begins = f"Please import memory {name}, then go on with it."
    provider = strict_provider(protocol_name, begins)
    async with proxy.provider(provider), agent(proxy, protocol_name, name=begins, stream=stream) as run:
        run.begin()
        await rounds(run, 1)
        listed = last_entries(provider)
        assert len(listed) == (2 if protocol_name == "responses" else 1)
        assert TOLD in listed[-1]
        assert run.answers[0]["x-accordion-memory"] == f"{name} imported"
        await rounds(run, 3)
        run.say(turn_text(1))
        await rounds(run, 2)
        seen = await fetch_session(proxy, run.answers[0]["x-accordion-session"], len(run.answers))
    assert not provider.problems
    assert broken_prefixes(provider.taken) == []
    assert "".join(last_entries(provider)).count(TOLD) == 1
    assert compacted_requests(run) == []
    assert TOLD not in json.dumps(run.history, default=str)
    recalled = [each["recalled"] for each in seen["exchanges"]]
    assert [each["memories"] for each in recalled if each is not None] == [[f"{name} imported"]]


# -- after a compaction ------------------------------------------------------------------------------------------------
