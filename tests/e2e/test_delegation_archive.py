"""What agents read of each other behind a started proxy, with the official SDKs: a reference that is passed on, what
was hidden of one of them, what a sub-agent returned."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests import reply_parts, strict_provider
from tests.agents import Run, connected
from tests.e2e.proxy_api import get_page
from tests.e2e.small_window import EACH, STREAMED, Proxies
from tests.loopback import Answer, Recorded
from tests.proxy_process import Proxy
from tests.reply_parts import Piece, ReplyCall, ReplyText, ScriptedReply
from tests.strict_provider import result_of
from tests.writers import LISTS


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
