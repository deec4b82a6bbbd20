"""Several agents write into one list: each sees its own branch, in Chat Completions, Responses and Messages, with the
official SDKs."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.e2e.agent_branches import TOP, Branches, start_branches
from tests.e2e.raw_client import post
from tests.e2e.small_window import EACH, Proxies, config
from tests.proxy_process import PATIENT
from tests.strict_provider import PATHS, SYSTEM
from tests.valkey import running_valkey
from tests.writers import LISTS

TREE = {"red": TOP, "blue": TOP, "scarlet": "red", "crimson": "red", "ruby": "scarlet"}


@pytest.fixture(scope="module")
def wide(start: Start) -> Proxies:
    return Proxies(start, window=400_000)


async def mixed(made: Branches, steps: int, seed: object) -> None:
    """So many requests of the agents in turns that nobody planned, once each has said where it stands."""
    chance = random.Random(str(seed))
    first = [name for name in made.runs if name not in made.taken]
    for name in [*first, *(chance.choice(list(made.runs)) for _ in range(steps))]:
        await made.step(name)
        assert made.missing(name) == set(), (name, "is not shown what is its to see")


@EACH
async def test_each_sees_its_own_branch_and_the_top_sees_all(wide: Proxies, protocol_name: str):
    async with start_branches(wide[protocol_name], protocol_name, TREE, run="branches") as made:
        made.provider.window = 400_000
        await mixed(made, 40, "whole")
    assert made.provider.problems == []
    assert made.foreign() == []
    assert made.broken() == []


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


@EACH
async def test_a_result_of_another_agent_is_visible_until_the_next_compaction(small: Proxies, protocol_name: str):
    """Scarlet works for red, and then for blue: what it knew of red stays where a provider has cached it."""
    tree = {"red": TOP, "blue": TOP, "scarlet": "red"}
    async with start_branches(small[protocol_name], protocol_name, tree, run="late") as made:
        for name in ("red", "blue", "scarlet", "red", "scarlet"):
            await made.step(name)
        of_red = {call for call, whose in made.made.items() if whose == "red"}
        of_blue = {call for call, whose in made.made.items() if whose == "blue"}
        assert made.visible_calls("scarlet") & of_red == of_red
        assert made.visible_calls("scarlet") & of_blue == set()
        made.runs["scarlet"].headers["x-accordion-parent"] = "blue"
        for name in ("red", "blue", "scarlet", "red", "scarlet"):
            await made.step(name)
        new_of_blue = {call for call, whose in made.made.items() if whose == "blue"} - of_blue
        assert made.visible_calls("scarlet") & {c for c, whose in made.made.items() if whose == "red"} == of_red, (
            "and no more"
        )
        assert made.visible_calls("scarlet") & {c for c, whose in made.made.items() if whose == "blue"} == new_of_blue
        assert made.broken() == []
        made.runs["scarlet"].headers["x-accordion-compact"] = "now"
        await made.step("scarlet")
        del made.runs["scarlet"].headers["x-accordion-compact"]
        at = len(made.taken["scarlet"]) - 1
        assert made.compactions() == [("scarlet", at)]
        assert made.visible_calls("scarlet") & of_red == set()
        await made.step("blue")
        await made.step("scarlet")
    assert made.visible_calls("scarlet") & of_red == set()
    assert made.broken() == [("scarlet", at)]
    assert made.provider.problems == []


@EACH
@pytest.mark.parametrize("alone", [{}, {"x-accordion-delegation": "only"}], ids=["undeclared", "declared"])
async def test_a_request_with_one_scope_is_forwarded_byte_for_byte(
    wide: Proxies, protocol_name: str, alone: dict[str, str]
):
    """However oddly it is written."""
    async with start_branches(wide[protocol_name], protocol_name, {}, run="alone") as made:
        made.provider.window = 400_000
        made.runs[TOP].headers.update(alone)
        for _ in range(8):
            await made.step(TOP)
        history = json.loads(json.dumps(made.runs[TOP].history, default=lambda value: value.model_dump()))
        body = made.provider.taken[-1].request.json() | {LISTS[protocol_name]: history}
        if protocol_name == "chat":
            history.insert(0, {"role": "system", "content": SYSTEM})
        odd = json.dumps(body, indent=3, sort_keys=True).replace("\n", "\r\n").encode() + b" \n"
        reply = await post(wide[protocol_name], PATHS[protocol_name], odd, *alone.items())
    assert reply.status == 200, reply.body
    assert made.provider.taken[-1].request.body == odd


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


async def test_agents_may_speak_to_different_workers(start: Start, tmp_path: Path):
    """Each request goes to the other of two proxies with one store, once what the last one taught is written."""
    text = config("chat", window=400_000)
    with running_valkey(tmp_path) as valkey:
        first = start(text, ACCORDION_STORE=valkey.url)
        text = text.replace("{upstream}", f"http://127.0.0.1:{first.upstream_port}")
        second = start(text, ACCORDION_STORE=valkey.url)
        async with start_branches(first, "chat", {"red": TOP, "blue": TOP, "scarlet": "red"}, run="workers") as made:
            made.provider.window = 400_000
            for number, name in enumerate([TOP, "red", "blue", "scarlet", "red", "blue"] * 4):
                await made.move((first, second)[number % 2])
                await made.step(name)
                # Each call is noted for its list, and for all that is declared.
                due = 2 * sum(whose != TOP for whose in made.made.values())
                async with asyncio.timeout(30):
                    while valkey.command("KEYS", "*scope/*").count(b"scope/") < due:
                        await asyncio.sleep(0.01)
    assert made.foreign() == []
    assert made.broken() == []
    assert made.provider.problems == []


async def test_a_store_that_is_away_costs_those_nothing_that_one_worker_serves(start: Start, tmp_path: Path):
    with running_valkey(tmp_path) as valkey:
        text = config("responses", window=400_000) + "store: {timeout_seconds: 0.25}\n"
        proxy = start(text, ACCORDION_STORE=valkey.url)
        async with start_branches(proxy, "responses", TREE, run="away") as made:
            made.provider.window = 400_000
            await mixed(made, 12, "there")
            valkey.kill()
            await mixed(made, 20, "away")
    assert made.foreign() == []
    assert made.broken() == []
    assert made.provider.problems == []
