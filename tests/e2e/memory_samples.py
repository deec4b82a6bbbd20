"""Samples for tests of memories: a conversation with facts, and calls that record and read it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.e2e.proxy_api import get_page, wait_until
from tests.loopback import replies_json
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import StrictProvider

RECORDED = f"{PATIENT}archive: {{record: all}}\n"
KEYS = """
proxy_keys:
  - {id: one, key: "${KEY_ONE}"}
  - {id: two, key: "${KEY_TWO}"}
"""
ONE, TWO = "acc-one-5fKq72LmZ", "acc-two-9pWx31RtB"
PLAN = [
    {"content": "Move the ledger to PostgreSQL 16", "status": "completed", "activeForm": "Moving"},
    {"content": "Write the migration in /srv/ledger/migrate.py", "status": "in_progress", "activeForm": "Writing"},
    {"content": "Retire the old cluster", "status": "pending", "activeForm": "Retiring"},
]
REPLY = {
    "id": "c", "object": "chat.completion", "model": "gpt-4o",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "All is noted."}}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
}  # fmt: skip


def _call(number: int, name: str, arguments: Any, result: str) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an engineer of the ledger team."},
    {
        "role": "user",
        "content": "We decided to move the ledger service to PostgreSQL 16, as MySQL lost two writes.",
    },
    *_call(1, "TodoWrite", {"todos": PLAN}, "The list was saved."),
    *_call(2, "Write", {"file_path": "/srv/ledger/migrate.py", "content": "print('moved')\n"}, "Written."),
    {"role": "assistant", "content": "The ledger service now listens on port 5433 of host db-7.example.org."},
    {"role": "user", "content": "I prefer that every migration of the ledger service runs in one transaction."},
]


async def record_conversation(proxy: Proxy, messages: list[dict[str, Any]] = MESSAGES, key: str = "") -> str:
    """Sends a conversation through a proxy that records; gives its session, once it is recorded."""
    headers = {"authorization": "Bearer sk-own"} | ({"x-accordion-key": key} if key else {})
    async with proxy.provider(replies_json(REPLY)), httpx.AsyncClient(trust_env=False, timeout=60) as client:
        body = {"model": "gpt-4o", "messages": messages}
        reply = await client.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    session = reply.headers["x-accordion-session"]

    async def recorded() -> bool | None:
        path, mine = f"/accordion/sessions/{session}/original", {"x-accordion-key": key} if key else {}
        return (await get_page(proxy, path, **mine)).status_code == 200 or None

    await wait_until(recorded)
    return str(session)


async def call_memories(proxy: Proxy, call: str, body: Any, **headers: str) -> dict[str, Any]:
    """The answer to a call about memories."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        reply = await client.post(f"{proxy.url}/accordion/memory/{call}", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def last_entries(provider: StrictProvider) -> list[str]:
    """The list that the provider got last, without the system prompt."""
    return [entry.decode() for entry in provider.taken[-1].entries if b'"role":"system"' not in entry]


def memory_arguments(number: int, topic: str = "ledger") -> list[dict[str, Any]]:
    """Arguments for so many memories on a topic."""
    subjects = ("balances", "postings", "audits", "archives", "currencies", "accounts")
    return [
        {
            "content": f"Rule {at}: {topic} keeps {subjects[at % 6]} of region {at} in table t{at} of {2000 + at}.",
            "topics": [topic],
        }
        for at in range(number)
    ]


SUMMARY = """The ledger is the service that records every posting of every region, and the one place that all balances
come from. Its present state: balances, postings, audits, archives, currencies and accounts each stand in a table of
their own, numbered by region, and none of them is shared between regions. The key decision was to move from MySQL to
PostgreSQL 16, after two writes had been lost under load; a second decision was that no migration may run in more than
one transaction, so that a failed one leaves nothing behind. Solved problems: the lost writes came from a replica that
answered before its log was flushed, which synchronous replication has ended; slow audits came from a missing index on
the date of a posting, which exists since spring. Reports are made nightly from a read replica, never from the primary,
because they had blocked the closing of the month twice. Access goes through the accounts team, which rotates the
credentials every ninety days by a script in its own repository. Open questions: whether archives older than ten years
may leave the database for cheaper storage, who decides on new currencies when the finance board does not meet, and
whether the old cluster can be retired before the auditors have signed their report for the present year."""
