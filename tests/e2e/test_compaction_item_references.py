"""An agent whose client names what the model thought and said, and sends calls and results, as the AI SDK does."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests import agent_replies
from tests.agent_replies import AgentReply, Json
from tests.e2e.small_window import STREAMED, WINDOW, Proxies, agent, broken_prefixes, compacted_requests, fetch_session
from tests.loopback import Answer, Recorded
from tests.strict_provider import StrictProvider

NAMED = ("reasoning", "message")
SOME = ("4_0", "8_0")


def as_item_references(entries: list[Json]) -> list[Json]:
    """A reply's items as such a client sends them again; of calls it names those of some tools."""
    return [
        {"type": "item_reference", "id": each["id"]}
        if each.get("type") in NAMED or each.get("call_id", "").endswith(SOME)
        else each
        for each in entries
    ]


@dataclass
class Naming(StrictProvider):
    """Judges and counts the list with what is named in its place; what it never said is an odd thing to name."""

    said: dict[str, Any] = field(default_factory=dict)

    async def __call__(self, request: Recorded, answer: Answer) -> None:
        body = request.json()
        body["input"] = [
            self.said[each["id"]] if each.get("type") == "item_reference" else each for each in body["input"]
        ]
        await super().__call__(replace(request, body=json.dumps(body).encode()), answer)

    def _next(self, tokens: int) -> AgentReply:
        reply = super()._next(tokens)
        if reply.text:
            # Words that nobody else says.
            reply = replace(reply, text=f"Decided: the table of docs/plan_{reply.number}.md must stay as it is.")
        self.said |= {item["id"]: item for item in agent_replies.responses(reply)["output"]}
        return reply


@STREAMED
@pytest.mark.parametrize("thinks", [True, False], ids=["reasoning", "plain"])
async def test_an_agent_that_names_its_reasoning_and_texts_is_compacted(proxies: Proxies, thinks: bool, stream: bool):
    proxy, name = proxies["responses"], f"named {thinks} {stream}"
    provider = Naming("responses", WINDOW, rounds=80, thinks=thinks, run=name)
    async with (
        proxy.provider(provider),
        agent(proxy, "responses", stream=stream, name=name, keeps=as_item_references, more={"store": True}) as run,
    ):
        await run.turns(1)
        await fetch_session(proxy, run.answers[-1]["x-accordion-session"], len(run.answers))
    assert sum(each.get("type") == "item_reference" for each in run.history) > 20
    assert provider.problems == []
    assert provider.refusals == []
    assert max(one.tokens for one in provider.taken) <= WINDOW
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    assert 2 <= len(compacted_requests(run)) <= 20
    assert len({head["x-accordion-session"] for head in run.answers}) == 1
