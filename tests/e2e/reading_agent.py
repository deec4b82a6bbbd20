"""What tests of reading back share: an agent whose network is heard, in front of a proxy, in front of a model that
reads back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.agents import Run, connected
from tests.e2e.small_window import WINDOW, compacted_requests
from tests.loopback import Loopback
from tests.proxy_process import Proxy
from tests.reading_provider import OURS, WAYS, ReadingProvider
from tests.response_recorder import ResponseRecorder, read_usage

LONG = 60
"""Requests within which a history is compacted for certain."""


@dataclass
class ReadingAgent:
    """An agent, its provider, and the responses recorded on its network."""

    run: Run
    provider: ReadingProvider
    witness: ResponseRecorder
    behind: Loopback
    starts: list[int] = field(default_factory=list)
    """For each request of the client, the index of the provider's first request."""

    async def rounds(self, count: int) -> ReadingAgent:
        """Sends `count` requests of the client; begins the next turn when one is over."""
        for _ in range(count):
            if not self.run.history or not self._waits:
                self.run.begin()
            self.starts.append(len(self.provider.taken))
            await self.run.step()
        return self

    async def until_offered(self) -> ReadingAgent:
        """Sends requests until our tool is offered."""
        while not self.provider.offered or not self.provider.offered[-1]:
            assert len(self.starts) < LONG, "our tool was never offered"
            await self.rounds(1)
        return self

    async def until(self, *ways: str) -> ReadingAgent:
        """Sends requests until the model has gone these ways."""
        while not self.provider.done >= set(ways):
            assert len(self.starts) < 2 * LONG, "the model never went that way"
            await self.rounds(1)
        return self

    async def until_named(self) -> ReadingAgent:
        """Sends requests until the list names something to read back. A short record may name no call."""
        while not self.provider.artifacts(self.provider.exchanges[-1].entries):
            assert len(self.starts) < 2 * LONG, "nothing was named"
            await self.rounds(1)
        return self

    @property
    def _waits(self) -> bool:
        last = self.run.history[-1]
        if self.run.protocol_name in ("messages", "gemini", "converse"):
            return bool(last["role"] == "user")
        if self.run.protocol_name == "responses":
            return last.get("type") == "function_call_output" or last.get("role") == "user"
        return last["role"] in ("user", "tool")

    @property
    def compactions(self) -> list[int]:
        """The provider's requests that were compacted anew."""
        return [self.starts[at] for at in compacted_requests(self.run)]

    def whole(self, *ways: str) -> None:
        """Checks all of the below, and that these ways were gone."""
        provider = self.provider
        assert not provider.problems, provider.problems[:3]
        assert not provider.refusals
        odd = self.witness.problems(self.run.protocol_name)
        assert not odd, odd[:3]
        self.stable()
        self.offered()
        self.counted()
        self.check_tool_is_hidden()
        assert provider.done >= set(ways), "not all was tried"

    def stable(self) -> None:
        """Checks that each list begins with the one it continues, except at compactions."""
        provider = self.provider
        # Of a compaction at the beginning of a turn nothing may be left that was said before.
        alone = [at for at in provider.alone if at]
        assert not set(alone) - set(self.compactions), alone
        held = [at for at in self.compactions if at not in alone]
        assert provider.broke == held, [provider.how(at) for at in provider.broke if at not in held][:3]

    def offered(self) -> None:
        """Checks that the tool is offered in every request from the first compaction on."""
        first = min(self.compactions, default=len(self.provider.taken))
        assert [bool(name) for name in self.provider.offered] == [
            at >= first for at in range(len(self.provider.taken))
        ]  # fmt: skip

    def counted(self) -> None:
        """Checks that the client's usage is the last round's input and all rounds' output."""
        heard = [one for one in self.witness.heard if one.status == 200]
        assert len(heard) == len(self.starts)
        for one, start, end in zip(heard, self.starts, [*self.starts[1:], len(self.provider.taken)], strict=True):
            rounds = [each.said for each in self.provider.exchanges[start:end]]
            assert read_usage(self.run.protocol_name, one) == (rounds[-1].input, sum(each.output for each in rounds))

    def check_tool_is_hidden(self) -> None:
        """Checks that the client's history has no trace of our tool."""
        kept = json.dumps(self.run.history, default=_plain)
        assert "read_artifact" not in kept
        assert OURS not in kept


def _plain(value: Any) -> Any:
    return value.model_dump()


async def prepare_way(one: ReadingAgent, way: str = "wo") -> None:
    """Waits until our tool is offered, and sets the way of the next reply."""
    one.provider.ways = ()
    await one.until_offered()
    await one.rounds(1)
    await one.until_named()
    one.provider.ways, one.provider.every = (way,), 1


@asynccontextmanager
async def start_reading_agent(
    proxy: Proxy,
    protocol_name: str,
    name: str,
    *,
    ways: Sequence[str] = WAYS,
    every: int = 2,
    provider: dict[str, Any] | None = None,
    reader: type[ReadingProvider] = ReadingProvider,
    **more: Any,
) -> AsyncIterator[ReadingAgent]:
    """Starts an agent without messages, and its provider."""
    options = {"rounds": 1_000, "thinks": protocol_name != "chat", **(provider or {})}
    model = reader(protocol_name, WINDOW, run=name, ways=ways, every=every, **options)
    witness = ResponseRecorder()
    async with proxy.provider(model) as behind, connected(proxy.url, protocol_name, witness) as client:
        yield ReadingAgent(Run(client, protocol_name, name=name, **more), model, witness, behind)
