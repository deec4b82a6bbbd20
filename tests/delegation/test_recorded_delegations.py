"""Sub-agents of recorded runs: how many of their parents are found, without a mark of any kind."""

import gzip
import json
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from accordion.model.conversation import Message, ToolCall
from accordion.model.tenant import TenantScope
from accordion.sessions.tenants import Caller
from tests.delegation.delegation_worker import ServedRequest, Worker, calls, result, talk, user
from tests.recordings import transcripts

RECORDINGS = {path.name: path for path in transcripts()}
TENANTS = [Caller(TenantScope(name, name.encode() * 8), False, "") for name in ("able", "beth", "carl")]

pytestmark = pytest.mark.skipif(
    "coding_claude_code_subagents.jsonl.gz" not in RECORDINGS, reason="the recorded sub-agents are not here"
)


@dataclass
class Run:
    """One recorded conversation; of a sub-agent the id of the call that began it (the answer, not an input)."""

    name: str
    messages: list[Message]
    parent: tuple[str, str] | None = None


def read(name: str) -> Iterator[Run]:
    with gzip.open(RECORDINGS[name]) as lines:
        for line in lines:
            recorded = json.loads(line)
            messages = [message(entry) for entry in recorded["messages"] if entry["role"] != "system"]
            meta = recorded["meta"]
            answer = (meta["parent_id"], meta["parent_tool_call_id"]) if "parent_tool_call_id" in meta else None
            yield Run(recorded["id"], messages, answer)


def message(entry: dict) -> Message:
    if entry["role"] == "user":
        return user(entry["content"])
    if entry["role"] == "tool":
        return result(entry["tool_call_id"], entry["content"] or "")
    made = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in entry.get("tool_calls") or ()]
    return calls(*made, text=entry["content"] or "")


class Stage:
    """All runs of all tenants at once; a child starts while the call that began it is open, as it did when recorded."""

    def __init__(self, runs: list[Run], seed: int, workers: list[Worker]) -> None:
        self.runs, self.random, self.workers = {run.name: run for run in runs}, random.Random(seed), workers
        self.children: dict[tuple[str, str], list[str]] = {}
        for run in runs:
            if run.parent is not None:
                self.children.setdefault(run.parent, []).append(run.name)
        self.begun: set[tuple[Caller, str]] = set()
        self.makers: dict[tuple[Caller, str], str] = {}
        self.last: dict[tuple[Caller, str], ServedRequest] = {}
        self.on_record: set[str] = set()

    async def play(self) -> None:
        going = {(who, name): self.steps(who, name) for who in TENANTS for name, run in self.runs.items()
                 if run.parent is None or run.parent[0] not in self.runs}  # fmt: skip
        while going:
            who, name = self.random.choice(list(going))
            try:
                begun = await anext(going[who, name])
            except StopAsyncIteration:
                del going[who, name]
                continue
            going.update({(who, child): self.steps(who, child) for child in begun})

    async def steps(self, who: Caller, name: str) -> AsyncIterator[list[str]]:
        """A request for each recorded reply; gives the children that its calls begin."""
        run = self.runs[name]
        whole = talk(run.messages, caller=who)
        pending: list[str] = []
        for end, entry in enumerate(run.messages):
            if entry.role != "assistant" or end == 0:
                continue
            while any((who, child) not in self.begun for child in pending):
                yield []
            made = [part for part in entry.parts if isinstance(part, ToolCall)]
            for one in self.workers:
                one.clock.advance(0.2)
            worker = self.random.choice(self.workers)
            asked = await worker.ask(
                replace(whole, messages=whole.messages[:end], chain=whole.chain[:end]),
                None,
                [(call.call_id, call.name, call.arguments) for call in made],
                caller=who,
            )
            self.begun.add((who, name))
            # Two runs that open alike are one session until they part: what counts is the caller's at its call.
            self.makers.update({(who, call.call_id): asked.session for call in made})
            self.last[who, name] = asked
            if len(self.workers) > 1:
                for one in self.workers:
                    await one.settle()
            pending = [child for call in made for child in self.children.get((name, call.call_id), ())]
            self.on_record.update(pending)
            yield pending


def recorded() -> list[Run]:
    files = (
        "coding_claude_code.jsonl.gz",
        "coding_claude_code_joined.jsonl.gz",
        "coding_claude_code_subagents.jsonl.gz",
    )
    return [run for file in files for run in read(file)]


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_parents_of_recorded_sub_agents_are_found_among_all_that_runs_at_once(workers: int) -> None:
    runs = recorded()
    one = Worker()
    stage = Stage(runs, 7 + workers, [one, *(Worker(one.store, f"w{n + 2}") for n in range(workers - 1))])
    await stage.play()
    for worker in stage.workers:
        await worker.settle()
    reader = Worker(one.store, "reader").tracker
    found = false = 0
    for (who, name), asked in stage.last.items():
        answer = stage.runs[name].parent
        tree = await reader.load_tree(who.tenant, f"s:{asked.session}")
        me = next((node for node in tree if node.id == f"s:{asked.session}"), None)
        if me is None or not me.parent:
            continue
        right = answer is not None and (me.parent, me.call_id) == (f"s:{stage.makers[who, answer[1]]}", answer[1])
        found, false = found + right, false + (not right)
        assert me.evidence == "tool"
    edges = len(stage.on_record) * len(TENANTS)
    print(f"{workers} workers: {len(stage.last)} conversations, {edges} edges on record, {found} found, {false} false")
    assert edges == 17 * len(TENANTS)
    assert found >= 0.95 * edges
    assert false == 0
