"""Agents that write into one list, on the official SDKs, each with its own word for where it stands."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.agent_replies import Json
from tests.agents import Run, connected
from tests.e2e.small_window import WINDOW, compacted_requests
from tests.loopback import Answer, Recorded
from tests.proxy_process import Proxy
from tests.strict_provider import Forwarded, StrictProvider
from tests.writers import LISTS, WRITERS

TOP = "top"
"""The agent that declares nothing."""
CALL = re.compile(r"src/(call_\d+_\d+)/")
"""A call, where its arguments or its result stand."""


class RoleJoiningProvider(StrictProvider):
    """Takes entries of one role in a row for one, where the protocol's provider does."""

    async def _asked(self, request: Recorded, body: Json, answer: Answer) -> None:
        listing = LISTS[self.protocol_name]
        await super()._asked(request, body | {listing: WRITERS[self.protocol_name].join(body[listing])}, answer)


def is_related(one: str, other: str, parents: Mapping[str, str]) -> bool:
    """Whether one agent may see the results of another. Independent of the product's own rule."""

    def above(name: str) -> set[str]:
        found = {name, TOP}
        while name in parents:
            name = parents[name]
            found.add(name)
        return found

    return one in above(other) or other in above(one)


@dataclass
class Branches:
    """One list, the agents that write into it, and their forwarded requests. `made` has the agent of each call."""

    runs: dict[str, Run]
    parents: Mapping[str, str]
    provider: StrictProvider
    made: dict[str, str] = field(default_factory=dict)
    taken: dict[str, list[Forwarded]] = field(default_factory=dict)

    async def step(self, name: str) -> None:
        """One request of an agent's, and the tools that it asks for; where nothing waits for it the user speaks."""
        run, before = self.runs[name], len(self.provider.taken)
        calls = await run.step()
        self.made |= dict.fromkeys(calls, name)
        self.taken.setdefault(name, []).extend(self.provider.taken[before:])
        if not calls:
            self.ask()

    def ask(self) -> None:
        """Adds the user's next message, which all agents see."""
        first = next(iter(self.runs.values()))
        first.begin()
        for run in self.runs.values():
            run.turn = first.turn

    def visible_calls(self, name: str, at: int = -1) -> set[str]:
        """The calls whose arguments or results stand anywhere in what was forwarded for an agent."""
        return set(CALL.findall(self.taken[name][at].text))

    def foreign(self) -> list[tuple[str, int, str]]:
        """Calls that an agent saw and should not have: the agent, its request, the call."""
        return [
            (name, at, call)
            for name, taken in self.taken.items()
            for at in range(len(taken))
            for call in sorted(self.visible_calls(name, at))
            if not is_related(self.made[call], name, self.parents)
        ]

    def broken(self) -> list[tuple[str, int]]:
        """The requests of agents that do not begin with the whole of the one before."""
        return [
            (name, at)
            for name, taken in self.taken.items()
            for at, (one, two) in enumerate(itertools.pairwise(taken), 1)
            if two.fixed != one.fixed or two.entries[: len(one.entries)] != one.entries
        ]

    def compactions(self) -> list[tuple[str, int]]:
        """The requests that were compacted."""
        return [(name, at) for name, run in self.runs.items() for at in compacted_requests(run)]


def delegation_headers(name: str, parents: Mapping[str, str]) -> dict[str, str]:
    """The headers by which an agent says where it stands."""
    if name == TOP:
        return {}
    above = parents.get(name, TOP)
    named = {} if above == TOP else {"x-accordion-parent": above}
    return {"x-accordion-delegation": name, "x-accordion-agent": f"the {name}", **named}


@asynccontextmanager
async def start_branches(
    proxy: Proxy,
    protocol_name: str,
    parents: Mapping[str, str],
    *,
    run: str,
    provider: StrictProvider | None = None,
    **more: Any,
) -> AsyncIterator[Branches]:
    """The agents of a tree, the top among them; each has a client of its own. The user has asked."""
    names = [TOP, *parents]
    model = provider or RoleJoiningProvider(
        protocol_name, WINDOW, rounds=1_000, thinks=protocol_name != "chat", run=run
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(proxy.provider(model))
        history: list[Any] = []
        runs = {}
        for name in names:
            client = await stack.enter_async_context(connected(proxy.url, protocol_name))
            headers = {**delegation_headers(name, parents), **more.get("headers", {})}
            runs[name] = Run(client, protocol_name, name=run, history=history, headers=headers,
                             **{key: value for key, value in more.items() if key != "headers"})  # fmt: skip
        made = Branches(runs, parents, model)
        made.ask()
        yield made
