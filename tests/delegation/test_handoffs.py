"""Agents that share one list and pass it on by a tool."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.delegation.handoffs import ToolPatterns, read_tool_names
from accordion.delegation.tracker import HANDOFF_TOOLS
from tests.delegation.delegation_worker import Worker, calls, metadata, result, talk, user
from tests.tiers import examples

TASK = user("the task")


class Team:
    """Agents over one shared list, each with its tools, and a system prompt of its own if it has one."""

    def __init__(self, worker: Worker | None = None, **tools: tuple[str, ...]) -> None:
        self.worker, self.tools, self.prompts = worker or Worker(), tools, dict.fromkeys(tools, "")
        self.history, self.count = [TASK], 0

    async def says(self, agent: str, tool: str = "", *, dynamic: bool = False):
        """The agent is asked, and calls a tool that is answered."""
        self.count += 1
        prompt = f"{agent} {self.count if dynamic else ''}"
        made = [(f"call_{self.count}", tool, "{}")] if tool else []
        asked = await self.worker.ask(talk(self.history, tools=self.tools[agent], system=prompt), None, made)
        self.history += [calls(*made, text="well"), *(result(call[0]) for call in made)]
        return asked


def names(asked) -> list[str]:
    return [asked.position.agent] if asked.position.node else ["top"]


async def test_a_supervisor_and_its_workers_with_the_way_back():
    team = Team(boss=("transfer_to_research", "transfer_to_math"), research=("search",), math=("add",))
    assert (await team.says("boss", "transfer_to_research")).position.node == ""
    research = await team.says("research", "search")
    assert (research.position.agent, research.position.evidence, research.position.partition) == (
        "research", "handoff", research.position.node,
    )  # fmt: skip
    await team.says("research", "transfer_back_to_boss")
    boss = await team.says("boss", "transfer_to_math")
    assert (boss.position.node, boss.hidden_call_ids) == ("", set())
    math = await team.says("math", "add")
    assert math.position.agent == "math"
    assert math.hidden_call_ids == {"call_2", "call_3"}
    assert research.position.path[:1] == math.position.path[:1] == (f"s:{boss.session}",)
    await team.says("math", "transfer_back_to_boss")
    assert (await team.says("boss", "transfer_to_research")).hidden_call_ids == set()
    again = await team.says("research")
    assert again.position.node == research.position.node
    assert again.hidden_call_ids == {"call_5", "call_6"}


async def test_a_supervisor_that_speaks_again_without_being_handed_back_to():
    team = Team(boss=("transfer_to_research", "transfer_to_math"), research=("search",), math=("add",))
    await team.says("boss", "transfer_to_research")
    await team.says("research", "search")
    assert (await team.says("boss", "transfer_to_math")).position.node == ""
    assert (await team.says("math")).hidden_call_ids == {"call_2"}


@pytest.mark.parametrize("dynamic", [False, True])
async def test_a_swarm_that_passes_the_word_to_and_fro(dynamic):
    team = Team(a=("transfer_to_b", "find"), b=("transfer_to_a", "look"))
    seats = [await team.says("a", "transfer_to_b", dynamic=dynamic)]
    for agent, tool in (("b", "look"), ("b", "transfer_to_a"), ("a", "find"), ("a", "transfer_to_b"), ("b", "")):
        seats.append(await team.says(agent, tool, dynamic=dynamic))
    assert [names(asked)[0] for asked in seats] == ["top", "b", "b", "top", "top", "b"]
    assert len({asked.position.node for asked in seats}) == 2


async def test_a_tool_with_such_a_name_that_hands_nothing_over_changes_nothing():
    team = Team(clerk=("transfer_to_human_agents", "look"))
    for tool in ("look", "transfer_to_human_agents", "look", "transfer_to_human_agents", ""):
        asked = await team.says("clerk", tool)
        assert (asked.position.node, asked.hidden_call_ids) == ("", set())


async def test_an_agent_that_offers_a_handoff_tool_is_not_the_agent_that_the_tool_names():
    made = ("c1", "transfer_to_human_agents", "{}")
    history = [TASK, calls(made), result("c1")]
    clerk = await Worker().ask(talk(history, tools=["transfer_to_human_agents", "look"]))
    assert clerk.position.node == ""
    human = await Worker().ask(talk(history, tools=["look"]))
    assert human.position.agent == "human_agents"


async def test_of_several_hand_offs_in_one_reply_the_first_counts():
    team = Team(boss=("transfer_to_a", "transfer_to_b"), a=("f",))
    made = [("c1", "transfer_to_a", "{}"), ("c2", "transfer_to_b", "{}")]
    await team.worker.ask(talk([TASK], tools=team.tools["boss"]), None, made)
    team.history = [TASK, calls(*made), result("c1"), result("c2", "Multiple handoffs detected, ignoring this one.")]
    assert (await team.says("a")).position.agent == "a"


async def test_a_hand_off_that_failed_or_was_not_answered_hands_nothing_over():
    worker, made = Worker(), ("c1", "transfer_to_a", "{}")
    for history in ([TASK, calls(made), result("c1", error=True)], [TASK, calls(made), user("stop")]):
        assert (await worker.ask(talk(history, tools=["f"]))).position.node == ""


async def test_hand_offs_go_on_in_another_worker():
    team = Team(boss=("transfer_to_a", "transfer_to_b"), a=("f",), b=("g",))
    for agent, tool in (("boss", "transfer_to_a"), ("a", "f")):
        first = await team.says(agent, tool)
    await team.worker.settle()
    team.worker = Worker(team.worker.store, "w2")
    again = await team.says("a", "f")
    assert (again.position.node, again.position.path) == (first.position.node, first.position.path)
    assert (await team.says("boss", "transfer_to_b")).position.node == ""
    assert (await team.says("b")).hidden_call_ids == {"call_2", "call_3"}


async def test_hand_offs_below_a_known_clients_agent_hang_from_it():
    worker, said = Worker(), metadata(x_claude_code_session_id="11111111-aaaa", x_claude_code_agent_id="agent-one1")
    made = ("c1", "transfer_to_a", "{}")
    await worker.ask(talk([TASK], tools=["transfer_to_a"]), said, [made])
    asked = await worker.ask(talk([TASK, calls(made), result("c1")], tools=["f"]), said)
    assert asked.position.path[:2] == ("m:11111111-aaaa", "m:11111111-aaaa/agent-one1")
    assert asked.position.agent == "a"


async def test_hand_offs_deeper_than_allowed_stay_where_they_are():
    worker = Worker(settings={"max_depth": 2})
    history = [TASK]
    for depth in range(4):
        made = (f"c{depth}", f"transfer_to_{depth}", "{}")
        asked = await worker.ask(talk(history, tools=[made[1]], system=str(depth)), None, [made])
        history += [calls(made), result(made[0])]
    assert len(asked.position.path) == 3  # the list's own agent, and two below


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", "back", "f"]), max_size=12))
def test_a_list_read_at_once_and_bit_by_bit_gives_the_same(tools):
    async def run() -> None:
        one, whole = Team(x=()), Team(x=())
        for tool in tools:
            await one.says("x", {"back": "transfer_back_to_x", "f": "f"}.get(tool, f"transfer_to_{tool}"))
        bit = await one.says("x")
        whole.history = list(one.history[:-1])
        assert (await whole.says("x")).position.path[-1:] == bit.position.path[-1:]

    asyncio.run(run())


def test_patterns_say_whom_a_tool_hands_over_to():
    target = ToolPatterns(HANDOFF_TOOLS).find_target
    assert target("transfer_to_Billing") == ("billing", False)
    assert target("transfer_back_to_boss") == ("boss", True)
    assert target("handoff_to_a.b") == ("a.b", False)
    assert target("search") is target("my_transfer_to_x") is None
    assert ToolPatterns(["escalate"]).find_target("escalate") == ("escalate", False)


def test_names_of_tools_are_read_in_any_protocol():
    offered = ['{"type":"function","function":{"name":"a"}}', '{"type":"function","name":"b"}', '{"name":"c"}',
               '{"type":"web_search"}', "[1]", "{", '{"name":5}']  # fmt: skip
    assert read_tool_names(offered) == {"a", "b", "c"}
