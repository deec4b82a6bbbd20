"""What agents read of each other behind a started proxy, with the official SDKs: a reference that is passed on, what
was hidden of one of them, what a sub-agent returned."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests import reply_parts, strict_provider
from tests.agents import Run, connected
from tests.conftest import Start
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import EACH, STREAMED, Proxies, config
from tests.loopback import Answer, Recorded
from tests.proxy_process import Proxy
from tests.reply_parts import Piece, ReplyCall, ReplyText, ScriptedReply
from tests.strict_provider import result_of
from tests.writers import LISTS

PROMPT = "Read the ledger of the harbour from its first page on and tell me which ships owe a fee."
REPORT = "\n".join(
    ["I read all pages.", *(f"On page {at} nothing of note was found at all." for at in range(150)),
     "- the Anna owes 312 since May", *(f"On sheet {at} nothing of note was found at all." for at in range(150)),
     "In short: one ship owes."]
)  # fmt: skip


@dataclass
class Model:
    """A provider that says what it is told to, in turn; without that it calls the client's tool again and again."""

    protocol_name: str
    says: list[tuple[Piece, ...]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    async def __call__(self, request: Recorded, answer: Answer) -> None:
        body = request.json()
        self.bodies.append(body)
        number = len(self.bodies)
        again = (ReplyCall(f"call_{number}", "read_file", json.dumps({"path": f"{number}.py"})),)
        said = ScriptedReply(number, self.says.pop(0) if self.says else again, len(request.body) // 4, 20)
        if strict_provider.is_streamed(request, body):
            return await strict_provider.send_events(
                answer, b"".join(reply_parts.reply_events(self.protocol_name, said, body))
            )
        return await strict_provider.send_json(answer, 200, reply_parts.reply_document(self.protocol_name, said, body))

    @property
    def list(self) -> list[Any]:
        """The newest list that it was sent."""
        return list(self.bodies[-1][LISTS[self.protocol_name]])

    @property
    def offered(self) -> bool:
        """Whether our tool was among the newest request's."""
        return "read_artifact" in json.dumps(self.bodies[-1]["tools"])


@dataclass
class Crew:
    """Agents in front of a proxy, in front of one model."""

    proxy: Proxy
    protocol_name: str
    model: Model
    client: Any
    stream: bool

    def agent(self, name: str = "", parent: str = "") -> Run:
        """One that declares itself, where it has a name."""
        headers = {"x-accordion-delegation": name} if name else {}
        headers |= {"x-accordion-parent": parent} if parent else {}
        return Run(self.client, self.protocol_name, stream=self.stream, headers=headers)

    async def say(self, run: Run, text: str, *said: tuple[Piece, ...]) -> None:
        """The user says something, and the model answers so."""
        run.ask(text)
        self.model.says += said
        await run.step()
        assert not self.model.says

    async def compacted(self, run: Run) -> str:
        """Works until there was a compaction; gives the id of a result that left then, and its call's."""
        while "x-accordion-compaction" not in (run.answers[-1] if run.answers else {}):
            await run.step()
        session = run.answers[-1]["x-accordion-session"]
        found = (await get_page(self.proxy, f"/accordion/artifacts?session={session}&limit=1000")).json()["artifacts"]
        self.left = next(each for each in found if each["kind"] == "result")
        return str(self.left["id"])


@asynccontextmanager
async def crew(proxy: Proxy, protocol_name: str, *, stream: bool = False) -> AsyncIterator[Crew]:
    model = Model(protocol_name)
    async with proxy.provider(model), connected(proxy.url, protocol_name) as client:
        yield Crew(proxy, protocol_name, model, client, stream)


@EACH
@STREAMED
async def test_a_sub_agent_reads_what_its_parent_passes_on_and_nobody_else_does(
    proxies: Proxies, protocol_name: str, stream: bool
):
    async with crew(proxies[protocol_name], protocol_name, stream=stream) as all_of:
        own = f"{protocol_name}-{stream}"
        parent = all_of.agent(f"boss-{own}")
        parent.ask(f"Repair the build ({own}).")
        name = await all_of.compacted(parent)
        text = result_of(all_of.left["call_id"])

        child, reads = (
            all_of.agent(f"kid-{own}", f"boss-{own}"),
            (ReplyCall("o1", "read_artifact", f'{{"id": "{name}"}}'),),
        )
        await all_of.say(child, f"Look into {name}.", reads, (ReplyText("It is as it was."),))
        assert all_of.model.offered
        assert text in json.dumps(all_of.model.list[-1])
        assert "read_artifact" not in json.dumps(child.history, default=lambda value: value.model_dump())
        # It goes on from there, and knows what it read.
        before = all_of.model.list
        await all_of.say(child, "And what else?", (ReplyText("Nothing."),))
        assert all_of.model.list[: len(before)] == before
        assert len(all_of.model.list) == len(before) + 2

        stranger = all_of.agent(f"kid-of-another-{own}", f"another-{own}")
        await all_of.say(stranger, f"Look into {name}.", (ReplyText("I cannot."),))
        assert not all_of.model.offered


@EACH
async def test_what_one_agent_does_not_see_is_kept_for_the_one_that_found_it(proxies: Proxies, protocol_name: str):
    async with crew(proxies[protocol_name], protocol_name) as all_of:
        own = f"hidden-{protocol_name}"
        blue, red = all_of.agent(f"blue-{own}", own), all_of.agent(f"red-{own}", own)
        await all_of.say(red, f"Find the flags ({own}).", (ReplyText("Soon."),))
        await all_of.say(blue, f"Find the flags ({own}).", (ReplyCall(f"c-{own}", "read_file", '{"path": "flag.py"}'),))
        red.history[:] = [*blue.history, {"role": "user", "content": "And now red?"}]
        text = result_of(f"c-{own}")
        await all_of.say(red, "Well?", (ReplyText("Red is here."),))
        assert text not in json.dumps(all_of.model.list)

        async def stored_artifacts() -> Any:
            # It is written behind the reply.
            session = blue.answers[-1]["x-accordion-session"]
            found = await get_page(all_of.proxy, f"/accordion/artifacts?session={session}")
            return found.json()["artifacts"] if found.status_code == 200 else None

        [artifact] = await wait_until(stored_artifacts)
        assert artifact["call_id"] == f"c-{own}"
        assert (await get_page(all_of.proxy, f"/accordion/artifacts/{artifact['id']}")).text == text
        # Whose it is may read it by its id, the other one may not.
        reads = (ReplyCall("o1", "read_artifact", json.dumps({"id": artifact["id"]})),)
        mine = all_of.agent(f"blue-{own}", own)
        await all_of.say(mine, f"What says {artifact['id']}?", reads, (ReplyText("This."),))
        assert text in json.dumps(all_of.model.list[-1])
        theirs = all_of.agent(f"red-{own}", own)
        await all_of.say(theirs, f"What says {artifact['id']}?", (ReplyText("Who knows."),))
        assert not all_of.model.offered


@EACH
@STREAMED
async def test_a_return_becomes_a_digest_that_leads_to_the_childs_session(
    start: Start, protocol_name: str, stream: bool
):
    proxy = start(config(protocol_name) + "thresholds: {generation_target: 0.5}\n")
    async with crew(proxy, protocol_name, stream=stream) as all_of:
        parent, child = all_of.agent(), all_of.agent()
        await all_of.say(parent, "Who owes a fee?", (ReplyCall("t1", "Task", json.dumps({"prompt": PROMPT})),))
        await all_of.say(child, PROMPT, (ReplyText(REPORT),))
        # The tool returns what the sub-agent said.
        told = json.dumps(parent.history[-1]).replace(json.dumps(result_of("t1"))[1:-1], json.dumps(REPORT)[1:-1])
        parent.history[-1] = json.loads(told)
        await all_of.compacted(parent)
        session = child.answers[-1]["x-accordion-session"]
        sent = json.dumps(all_of.model.list)
        assert re.search(rf"Answer of a sub-agent \(session {session}\) to Task\(", sent)
        assert "the Anna owes 312 since May" in sent
        assert "On page 77 " not in sent
        main = parent.answers[-1]["x-accordion-session"]
        found = (await get_page(proxy, f"/accordion/artifacts?session={main}&limit=1000")).json()["artifacts"]
        [artifact] = [each for each in found if each["kind"] == "result" and each["call_id"] == "t1"]
        assert artifact["child"] == session
        assert session in artifact["description"]
        assert (await get_page(proxy, f"/accordion/artifacts/{artifact['id']}")).text == REPORT
        steps = [json.loads(one["x-accordion-compaction"])["steps"] for one in parent.answers[-1:]]
        assert "delegated_digests" in [step["compactor"] for step in steps[0]]
