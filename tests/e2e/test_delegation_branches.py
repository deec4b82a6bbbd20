"""Several agents write into one list: each sees its own branch, in Chat Completions, Responses and Messages, with the
official SDKs."""

import random
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.e2e.agent_branches import TOP, Branches, start_branches
from tests.e2e.small_window import EACH, Proxies, config
from tests.proxy_process import PATIENT

TREE = {"red": TOP, "blue": TOP, "scarlet": "red", "crimson": "red", "ruby": "scarlet"}


async def mixed(made: Branches, steps: int, seed: object) -> None:
    """So many requests of the agents in turns that nobody planned, once each has said where it stands."""
    chance = random.Random(str(seed))
    first = [name for name in made.runs if name not in made.taken]
    for name in [*first, *(chance.choice(list(made.runs)) for _ in range(steps))]:
        await made.step(name)
        assert made.missing(name) == set(), (name, "is not shown what is its to see")


@pytest.fixture(scope="module")
def small(start: Start) -> Proxies:
    return Proxies(start)


@EACH
async def test_each_is_measured_and_compacted_by_itself(small: Proxies, protocol_name: str):
    """Filter, then replay, then measure and compact: an agent's compactions are of its own list, and its prefix breaks
    there alone."""
    async with start_branches(
        small[protocol_name], protocol_name, {"red": TOP, "blue": TOP}, run="compactions"
    ) as made:
        while len(made.taken.get("red", ())) < 30:
            for name in (TOP, "red", "blue"):
                await made.step(name)
    assert made.provider.problems == []
    assert made.provider.refusals == []
    assert made.foreign() == [], "nor by a summary"
    compactions = made.compactions()
    assert made.broken() == compactions
    assert {name for name, _ in compactions} == {TOP, "red", "blue"}
    first = {name: min(at for whose, at in compactions if whose == name) for name in made.runs}
    assert first[TOP] < first["red"], "whose list is longer compactions earlier"
    told = {name: {said["id"] for said in run.compactions if said is not None} for name, run in made.runs.items()}
    assert len(set.union(*told.values())) == sum(map(len, told.values())), "no compaction is two agents'"


async def test_a_restart_changes_nothing_of_what_agents_see(start: Start, tmp_path: Path):
    text = config("messages", window=400_000) + PATIENT
    proxy = start(text, ACCORDION_STORE=f"sqlite:///{tmp_path}/branches.db")
    async with start_branches(proxy, "messages", TREE, run="restart") as made:
        made.provider.window = 400_000
        await mixed(made, 20, "before")
        sessions = {name: made.session(name) for name in made.taken}
        proxy.stop()
        proxy.port = 0
        proxy.start()
        await made.move(proxy)
        await mixed(made, 20, "after")
    assert made.foreign() == []
    assert made.broken() == []
    assert made.provider.problems == []
    assert {name: made.session(name) for name in sessions} == sessions
