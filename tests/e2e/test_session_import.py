"""A user asks for a saved session in any client and has it in the conversation from then on; and what compactions take
out becomes memories where that is wanted. With the official SDKs against a running proxy."""

import json
from pathlib import Path

import httpx

from accordion.memory.session_text import render_sections
from tests.agents import Run
from tests.conftest import Start
from tests.e2e.memory_samples import (
    DECIDED,
    KEYS,
    ONE,
    TWO,
    call_memories,
    check_text_stays,
    last_entries,
    read_memories,
)
from tests.e2e.proxy_api import get_page, wait_until
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
NONE = "CMEM-20200101-000000"


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


async def test_it_is_there_after_a_restart_and_goes_with_a_compact(start: Start, tmp_path: Path):
    proxy = start(configured("messages"), ACCORDION_STORE=f"sqlite:///{tmp_path}/imports.db")
    begins = f"Please import memory {await save(proxy)}"
    await check_text_stays(proxy, "messages", begins, TOLD)


async def test_what_is_not_ones_own_is_unknown_whatever_it_is(start: Start):
    proxy = start(configured("gemini", KEYS), KEY_ONE=ONE, KEY_TWO=TWO)
    name = await save(proxy, **{"x-accordion-key": ONE})
    begins = f"Please import memories {name} and {NONE}"
    provider = strict_provider("gemini", begins)
    async with (
        proxy.provider(provider),
        agent(proxy, "gemini", name=begins, headers={"x-accordion-key": TWO}) as run,
    ):
        run.begin()
        await rounds(run, 2)
    said = "".join(last_entries(provider))
    assert TOLD not in said
    assert "/srv/ledger" not in said
    assert run.answers[0]["x-accordion-memory"] == f"{name} unknown, {NONE} unknown"
    assert said.replace(NONE, name).count(f"[Session memory {name} is not among this user's") == 2
    assert broken_prefixes(provider.taken) == []


async def test_nothing_is_put_in_where_there_are_no_memories(start: Start):
    proxy = start(configured("chat", "memory: {enabled: false}\n"))
    begins = f"Please import memory {NONE}"
    provider = strict_provider("chat", begins)
    async with proxy.provider(provider), agent(proxy, "chat", name=begins) as run:
        run.begin()
        await rounds(run, 1)
    assert len(last_entries(provider)) == 1
    assert "Session memory" not in last_entries(provider)[0]


# -- after a compaction ------------------------------------------------------------------------------------------------


async def ranges(proxy: Proxy, run: Run) -> list[tuple[int, int]]:
    """The ranges of a run's conversation that are compacted; none before there are two."""
    path, session_id = f"{proxy.url}/accordion/memory/search", run.answers[0]["x-accordion-session"]
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        reply = await client.post(path, json={"query": "ledger", "conversation_id": session_id})
    found = reply.json()["compactions"] if reply.status_code == 200 else []
    return sorted((each["start_index"], each["end_index"]) for each in found) if len(found) > 1 else []


async def test_what_a_compaction_takes_out_becomes_memories_once(start: Start):
    proxy = start(configured("responses", "memory: {after_compaction: true, project: ledger}\n"))
    begins = f"{DECIDED} Please import memory {await save(proxy)}"
    provider = strict_provider("responses", begins)
    async with proxy.provider(provider), agent(proxy, "responses", name=begins) as run:
        run.begin()
        while len(compacted_requests(run)) < 2:
            await rounds(run, 1)
        found = await wait_until(lambda: ranges(proxy, run))
        memories = await read_memories(proxy)
    (first, last), (then, _) = found[:2]
    assert first == 0
    assert then == last + 1
    said = json.dumps(memories)
    assert "PostgreSQL 16" in said
    assert TOLD not in said
    assert "/srv/ledger" not in said
    assert "Please import" not in said
    assert {each["project"] for each in memories} == {"ledger"}


async def test_by_default_compactions_leave_no_memories(start: Start):
    proxy = start(configured("chat"))
    provider = strict_provider("chat", DECIDED)
    async with proxy.provider(provider), agent(proxy, "chat", name=DECIDED) as run:
        run.begin()
        while not compacted_requests(run):
            await rounds(run, 1)
        await wait_until(lambda: recorded(proxy, run))
    assert await read_memories(proxy) == []
    assert "remembered" not in proxy.log


async def recorded(proxy: Proxy, run: Run) -> bool:
    path = f"/accordion/sessions/{run.answers[0]['x-accordion-session']}/original"
    return (await get_page(proxy, path)).status_code == 200
