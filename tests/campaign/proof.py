"""After a round: whether all that agents sent, and all that left their windows, is found again byte for byte."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.campaign.agents import KINDS, Agent
from tests.strict_provider import result_of
from tests.writers import LISTS

Json = dict[str, Any]


@dataclass
class Proof:
    """What was looked for of one agent, and what was not found."""

    agent: Agent
    messages: int = 0
    missing: list[str] = field(default_factory=list)
    """Messages that it sent and got an answer for, and that are in no transcript of its sessions."""
    disordered: list[str] = field(default_factory=list)
    """Sessions whose transcripts have its messages in another order."""
    results: int = 0
    """Tool results that left the window."""
    lost: list[str] = field(default_factory=list)
    """Calls whose results left the window and are in no artifact of its sessions."""
    references: int = 0
    gone: list[str] = field(default_factory=list)
    """References that reached the provider and cannot be read, or give another text than the tool returned."""

    @property
    def is_whole(self) -> bool:
        return not (self.missing or self.disordered or self.lost or self.gone)


async def prove(url: str, agent: Agent) -> Proof:
    """Reads an agent's transcripts and artifacts by the API, and compares them with what it sent."""
    proof = Proof(agent)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        await _compare_messages(client, proof)
        await _compare_results(client, proof)
        await _compare_references(client, proof)
    return proof


async def _compare_messages(client: httpx.AsyncClient, proof: Proof) -> None:
    agent = proof.agent
    sent = [_text(each) for each in agent.entries()]
    places: dict[str, int] = {}
    for at, text in enumerate(sent):
        places.setdefault(text, at)
    there = set[str]()
    for session in sorted(agent.sessions):
        body = await _json(client, f"/accordion/sessions/{session}/original")
        texts = [_text(each) for each in (body or {}).get(LISTS[KINDS[agent.kind]], [])]
        there.update(texts)
        order = [places[text] for text in texts if text in places]
        if order != sorted(order):
            proof.disordered.append(session)
    proof.messages = len(sent)
    proof.missing = [f"{at}: {text}" for at, text in enumerate(sent) if text not in there]


async def _compare_results(client: httpx.AsyncClient, proof: Proof) -> None:
    agent = proof.agent
    text = agent.model.taken[-1].text if agent.model.taken else ""
    sent = json.dumps(agent.entries())
    calls = {call.id for each in agent.model.exchanges for call in each.said.calls if call.id in sent}
    left = sorted(call for call in calls if (returned := result_of(call, agent.run.words)) in sent
                  and returned not in text)  # fmt: skip
    proof.results = len(left)
    if not left:
        return
    singles, ranges = dict[str, set[str]](), list[str]()
    for session in sorted(agent.sessions):
        for record in await _records(client, session):
            found = (await _read(client, record["id"])) or ""
            if record["kind"] == "result":
                singles.setdefault(record.get("call_id") or "", set()).add(found)
            else:
                ranges.append(found)
    archived = "\n".join(ranges)
    for call in left:
        wanted = result_of(call, agent.run.words)
        if wanted not in singles.get(call, ()) and wanted not in archived:
            proof.lost.append(call)


async def _compare_references(client: httpx.AsyncClient, proof: Proof) -> None:
    agent = proof.agent
    references = agent.offered
    proof.references = len(references)
    for reference in sorted(references):
        text = await _read(client, reference)
        wanted = [result_of(call, agent.run.words) for call in agent.model.referenced.get(reference, ())]
        if text is None or any(each != text for each in wanted):
            proof.gone.append(reference)


async def _records(client: httpx.AsyncClient, session: str) -> list[Json]:
    found, after = list[Json](), ""
    while True:
        page = await _json(client, f"/accordion/artifacts?session={session}&limit=1000{after}")
        found += (page or {}).get("artifacts", [])
        if not (page or {}).get("next"):
            return found
        after = f"&after={page['next']}"  # type: ignore[index]


async def _read(client: httpx.AsyncClient, reference: str) -> str | None:
    """The whole text of an artifact."""
    page = await _reply(client, f"/accordion/artifacts/{reference}")
    return page.text if page is not None else None


async def _json(client: httpx.AsyncClient, path: str) -> Json | None:
    reply = await _reply(client, path)
    found: Json | None = reply.json() if reply is not None else None
    return found


async def _reply(client: httpx.AsyncClient, path: str) -> httpx.Response | None:
    """The reply of the API; None for 404. Waits while the store is not there yet."""
    for _ in range(40):
        reply = await client.get(path)
        if reply.status_code == 200:
            return reply
        if reply.status_code == 404:
            return None
        await asyncio.sleep(0.5)
    raise AssertionError(f"{path}: {reply.status_code} {reply.text[:200]}")


def _text(entry: Json) -> str:
    return json.dumps(entry, sort_keys=True)
