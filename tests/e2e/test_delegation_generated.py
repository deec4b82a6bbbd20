"""Agents of any tree write into one list in any order: what each is given, against a reference written apart. The whole
application in one process."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent_replies import TOOL, TOOLS, AgentReply, Json
from tests.e2e.agent_branches import CALL, TOP, delegation_headers, is_related
from tests.fakes import FakeReply, FakeWindows
from tests.history_content import content_items
from tests.pipeline_setup import PipelineSetup
from tests.reply_parts import reply_document
from tests.strict_provider import PATHS
from tests.tiers import examples
from tests.writers import LISTS, WRITERS, MadeCall

PROTOCOL_NAMES = st.sampled_from(list(WRITERS))
NAMES = ("red", "blue", "green", "grey")


@dataclass(frozen=True)
class Step:
    """A request: whose it is, and the reply to it."""

    who: int
    calls: int
    speaks: bool
    thinks: bool
    moves_to: int = -1
    """Whom the agent declares to work for from now on; -1: as before."""


@st.composite
def trees(draw: st.DrawFn) -> dict[str, str]:
    """Parents: each agent's stands before it, or is the top."""
    return {name: draw(st.sampled_from([TOP, *NAMES[:at]])) for at, name in enumerate(NAMES)}


def steps(moving: bool) -> st.SearchStrategy[list[Step]]:
    moves = st.integers(-8, 3) if moving else st.just(-1)
    one = st.builds(Step, st.integers(0, 4), st.integers(0, 3), st.booleans(), st.booleans(), moves)
    return st.lists(one, min_size=4, max_size=14)


@dataclass
class Shared:
    """One list, and what was forwarded of it for each agent."""

    protocol_name: str
    setup: PipelineSetup
    parents: dict[str, str]
    listed: list[Json]
    made: dict[str, str] = field(default_factory=dict)
    sent: dict[str, list[list[Json]]] = field(default_factory=dict)
    asked: list[Json] = field(default_factory=list)
    """The list as the newest request had it."""
    number: int = 0

    async def take(self, step: Step) -> str:
        """One request and its reply; gives whose it was."""
        name = (TOP, *NAMES)[step.who]
        if 0 <= step.moves_to < step.who - 1:
            self.parents[name] = NAMES[step.moves_to]
        self.number += 1
        made = tuple(f"call_{self.number}_{at}" for at in range(step.calls))
        said = "" if made and not step.speaks else f"Step {self.number}."
        thought = "so" if step.thinks and self.protocol_name != "chat" else None
        told = AgentReply(self.number, made, said, thought, 10).scripted(self.protocol_name)
        reply = reply_document(self.protocol_name, told, {})
        self.setup.upstream.answers = [FakeReply(pieces=(json.dumps(reply).encode(),))]
        writer = WRITERS[self.protocol_name]
        model = "claude-sonnet-4-5" if self.protocol_name == "messages" else "gpt-5"
        body = writer.with_tools(writer.request(model, self.listed), TOOLS[self.protocol_name])
        self.asked = self.listed
        out, _ = await self.setup.ask(PATHS[self.protocol_name], body, delegation_headers(name, self.parents))
        assert out.status == 200
        self.sent.setdefault(name, []).append(
            json.loads(self.setup.upstream.requests[-1].body)[LISTS[self.protocol_name]]
        )
        self.made |= dict.fromkeys(made, name)
        self.listed = [*self.listed, *writer.replied(reply), *self._answered(made)]
        return name

    def _answered(self, calls: tuple[str, ...]) -> list[Json]:
        writer = WRITERS[self.protocol_name]
        if not calls:
            return [writer.user(f"And now {self.number}?")]
        return writer.results(*(MadeCall(call, TOOL, {}, f"src/{call}/main.py says this") for call in calls))

    def due(self, name: str) -> set[str]:
        """Those that should, of all that stand in the newest list that it sent."""
        return {call for call, whose in self.made.items() if is_related(whose, name, self.parents)}


def shared(protocol_name: str, tree: dict[str, str]) -> Shared:
    listed = [WRITERS[protocol_name].user("the task")]
    return Shared(protocol_name, PipelineSetup(windows=FakeWindows(1_000_000)), dict(tree), listed)


async def introduced(made: Shared) -> None:
    """Each agent says once where it stands: what was never heard of hangs from the top."""
    for at in range(len(NAMES) + 1):
        await made.take(Step(at, 1, False, False))


@given(PROTOCOL_NAMES, trees(), steps(moving=False))
@settings(max_examples=examples(60))
async def test_each_is_given_its_own_branch_whole_and_no_more(
    protocol_name: str, tree: dict[str, str], told: list[Step]
):
    made = shared(protocol_name, tree)
    await introduced(made)
    for step in told:
        due = {name: made.due(name) for name in (TOP, *NAMES)}
        name = await made.take(step)
        now = made.sent[name][-1]
        assert set(CALL.findall(json.dumps(now))) == due[name]
        assert set(calls(protocol_name, now)) == due[name]
        assert users(now) == users(made.asked), "what users say stays"
        # What agents said stays too, but for words behind which all is hidden: they wait until something follows.
        waits = words(made.asked) - words(now)
        assert not waits or min(waits) > max([0, *map(number, due[name]), *users(now)])
    steady(made)


@given(PROTOCOL_NAMES, trees(), steps(moving=True))
@settings(max_examples=examples(60))
async def test_whatever_is_learnt_of_the_tree_no_prefix_breaks(
    protocol_name: str, tree: dict[str, str], told: list[Step]
):
    made = shared(protocol_name, tree)
    for step in told:
        await made.take(step)
    steady(made)


def steady(made: Shared) -> None:
    """Each list begins with the one before, has both halves of each pair, and leaves the last word to the model."""
    for name, sent in made.sent.items():
        for one, two in itertools.pairwise(sent):
            assert two[: len(one)] == one, name
        for each in sent:
            assert sorted(calls(made.protocol_name, each)) == sorted(results(made.protocol_name, each))
            assert content_items(made.protocol_name, each)[-1][0] in ("user", "result")


def calls(protocol_name: str, listed: list[Json]) -> list[str]:
    """The ids of the calls in a list."""
    return [atom[1] for atom in content_items(protocol_name, listed) if atom[0] == "call"]


def results(protocol_name: str, listed: list[Json]) -> list[str]:
    """The ids of the calls that are answered in a list."""
    return [atom[1] for atom in content_items(protocol_name, listed) if atom[0] == "result"]


def users(listed: list[Json]) -> list[int]:
    """What users said, by its numbers."""
    return [int(found) for found in re.findall(r"And now (\d+)\?", json.dumps(listed))]


def words(listed: list[Json]) -> set[int]:
    """What agents said, by its numbers."""
    return {int(found) for found in re.findall(r"Step (\d+)\.", json.dumps(listed))}


def number(call: str) -> int:
    return int(call.split("_")[1])
