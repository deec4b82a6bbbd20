"""A turn is given the memories that belong to it, where the config says so: with the official SDKs against a running
proxy, two tenants and two projects."""

from pathlib import Path

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
from tests.e2e.proxy_api import wait_until
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


async def test_it_is_there_after_a_restart_and_goes_with_a_compact(start: Start, tmp_path: Path):
    proxy = start(config("responses") + RECALL, ACCORDION_STORE=f"sqlite:///{tmp_path}/recalls.db")
    await remember(proxy, "eu-west-7")
    await check_text_stays(proxy, "responses", ASK, "eu-west-7")


async def test_nobody_is_given_what_is_anothers_or_of_another_project(start: Start):
    proxy = start(config("gemini") + RECALL + KEYS, KEY_ONE=ONE, KEY_TWO=TWO)
    canaries = {
        (key, project): f"canary-{number}{at}"
        for number, key in enumerate((ONE, TWO))
        for at, project in enumerate(("ledger", "audits"))
    }
    for (key, project), canary in canaries.items():
        await remember(proxy, canary, project, **{"x-accordion-key": key})
    for (key, project), canary in canaries.items():
        provider = strict_provider("gemini", ASK)
        # The project of the config is meant where a request names none.
        named = {} if project == "ledger" else {"x-accordion-project": project}
        headers = {"x-accordion-key": key, **named}
        async with proxy.provider(provider), agent(proxy, "gemini", name=ASK, headers=headers) as run:
            run.begin()
            await rounds(run, 2)
        said = "".join(last_entries(provider))
        assert [each for each in canaries.values() if each in said] == [canary]
        assert b"x-accordion" not in b"".join(each for one in provider.taken for each in one.entries)


async def test_without_a_word_in_the_config_nothing_is_recalled(start: Start):
    proxy = start(f"{config('chat')}{PATIENT}")
    await remember(proxy, "eu-west-7", "")
    provider = strict_provider("chat", ASK)
    async with proxy.provider(provider), agent(proxy, "chat", name=ASK) as run:
        run.begin()
        await rounds(run, 1)
    assert len(last_entries(provider)) == 1
    assert OPENING not in last_entries(provider)[0]


async def test_what_a_compaction_left_is_recalled_in_the_next_session_of_the_same_project(start: Start):
    more = "archive: {record: all}\nmemory: {after_compaction: true, recall: {enabled: true, wait_seconds: 30}}\n"
    proxy = start(f"{config('messages')}{PATIENT}{more}")
    audits = {"x-accordion-project": "audits"}
    provider = strict_provider("messages", DECIDED)
    async with proxy.provider(provider), agent(proxy, "messages", name=DECIDED, headers=audits) as run:
        run.begin()
        while not compacted_requests(run):
            await rounds(run, 1)
        await wait_until(lambda: read_memories(proxy))
    asked = "Was the ledger service to move to PostgreSQL 16?"
    for headers, found in ((audits, True), ({}, False)):
        provider = strict_provider("messages", asked)
        async with proxy.provider(provider), agent(proxy, "messages", name=asked, headers=headers) as run:
            run.begin()
            await rounds(run, 1)
        assert ("MySQL lost two writes" in "".join(last_entries(provider))) is found
        assert (OPENING in "".join(last_entries(provider))) is found
