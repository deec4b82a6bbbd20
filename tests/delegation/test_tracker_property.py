"""Random trees that write into one history, told by random evidence to random workers: each viewer sees what a plain
walk over the tree says."""

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.stores.memory_store import InMemoryStore
from tests.delegation.delegation_worker import ALICE, BOB, Worker, calls, metadata, result, talk, user
from tests.tiers import examples

MAIN = "11111111-aaaa"


def is_related(parents: dict[int, int], one: int, other: int) -> bool:
    """The reference: whether one is the other, or is met on the way up from it; -1 is the top."""

    def reached(start: int, goal: int) -> bool:
        while start != goal and start != -1:
            start = parents[start]
        return start == goal

    return reached(one, other) or reached(other, one)


def declared_metadata(node: int, parents: dict[int, int]):
    """By our own headers; the main agent's children name no parent but its session."""
    if node == -1:
        return metadata(x_session_id=MAIN)
    above = {"x_accordion_parent": f"n{parents[node]}"} if parents[node] != -1 else {}
    return metadata(x_session_id=MAIN, x_accordion_delegation=f"n{node}", **above)


def known_client_metadata(node: int, parents: dict[int, int]):
    """By the headers of a known client."""
    own = {"x_claude_code_agent_id": f"agent-{node}aaa"} if node != -1 else {}
    above = {"x_claude_code_parent_agent_id": f"agent-{parents[node]}aaa"} if parents.get(node, -1) != -1 else {}
    return metadata(x_claude_code_session_id=MAIN, **own, **above)


@st.composite
def trees(draw) -> dict[int, int]:
    size = draw(st.integers(1, 7))
    return {node: draw(st.integers(-1, node - 1)) for node in range(size)}


@settings(max_examples=examples(150), deadline=None)
@given(trees(), st.data(), st.sampled_from([declared_metadata, known_client_metadata]), st.booleans())
def test_each_viewer_sees_its_own_its_ancestors_and_its_descendants(parents, data, evidence, several):
    async def run() -> None:
        store = InMemoryStore()
        workers = [Worker(store, f"w{n}") for n in range(3 if several else 1)]
        nodes = st.integers(-1, len(parents) - 1)
        history, owners = [user("the task")], {}
        # Everybody appears once, parents first: a node whose parent is unknown is related to nobody yet.
        for node in parents:
            await workers[0].ask(talk(history), evidence(node, parents))
        for turn in range(data.draw(st.integers(1, 6))):
            batch = data.draw(st.lists(nodes, min_size=1, max_size=3))
            made = []
            for number, node in enumerate(batch):
                call = (f"c{turn}.{number}", "f", json.dumps({"n": number}))
                worker = data.draw(st.sampled_from(workers))
                await worker.ask(talk(history), evidence(node, parents), [call])
                owners[call[0]] = node
                made.append(call)
            for worker in workers:
                await worker.settle()
                worker.clock.advance(2)
            history += [calls(*made), *(result(call[0]) for call in made)]
            viewer = data.draw(nodes)
            asked = await data.draw(st.sampled_from(workers)).ask(talk(history), evidence(viewer, parents))
            assert asked.hidden_call_ids == {
                call for call, node in owners.items() if not is_related(parents, viewer, node)
            }
            for one in workers:
                await one.settle()
        # Another tenant that sends the very same list sees all of it, whoever it says that it is.
        other = await workers[0].ask(talk(history, caller=BOB), evidence(0, parents), caller=BOB)
        assert other.hidden_call_ids == set()
        assert ALICE.tenant != BOB.tenant

    asyncio.run(run())


@settings(max_examples=examples(100), deadline=None)
@given(trees(), st.data())
def test_what_was_shown_stays_shown_and_what_was_hidden_hidden_whatever_is_learnt(parents, data):
    async def run() -> None:
        worker = Worker()
        history, before = [user("the task")], {}
        nodes = st.integers(0, len(parents) - 1)
        for turn in range(6):
            # Parents are told late, or never.
            node = data.draw(nodes)
            said = metadata(x_accordion_delegation=f"n{node}")
            if data.draw(st.booleans()) and parents[node] != -1:
                said = declared_metadata(node, parents)
            call = (f"c{turn}", "f", "{}")
            await worker.ask(talk(history), said, [call])
            history += [calls(call), result(call[0])]
            viewer = data.draw(nodes)
            asked = await worker.ask(talk(history), metadata(x_accordion_delegation=f"n{viewer}"))
            known = {f"c{n}" for n in range(turn + 1)}
            for done, unseen in before.get(viewer, []):
                assert asked.hidden_call_ids & done == unseen
            before.setdefault(viewer, []).append((known, asked.hidden_call_ids))

    asyncio.run(run())
