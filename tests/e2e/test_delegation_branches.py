"""Several agents write into one list: each sees its own branch, in Chat Completions, Responses and Messages, with the
official SDKs."""

from tests.e2e.agent_branches import TOP, start_branches
from tests.e2e.small_window import EACH, Proxies


@EACH
async def test_each_is_measured_and_compacted_by_itself(proxies: Proxies, protocol_name: str):
    """Filter, then replay, then measure and compact: an agent's compactions are of its own list, and its prefix breaks
    there alone."""
    async with start_branches(
        proxies[protocol_name], protocol_name, {"red": TOP, "blue": TOP}, run="compactions"
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
