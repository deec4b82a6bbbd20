"""Agents of LangGraph share one history: a supervisor and its workers, and agents that write into it at once."""

import uuid
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from agent_team import AgentTeam, TeamRun, run_team, tool_text
from client_link import KEY, ClientLink, Proxy
from langchain.agents import create_agent
from langchain.tools import InjectedState, InjectedToolCallId
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from replies import Call
from upstream import Upstream

KINDS = pytest.mark.parametrize("kind", ["chat", "responses", "anthropic"])
BOSS, SEEKER, WRITER = tool_text("boss"), tool_text("seeker"), tool_text("writer")


def model(link: ClientLink, kind: str, **headers: str) -> Any:
    """A chat model on a link, with headers of its own."""
    options: Any = {"api_key": KEY, "max_retries": 0, "timeout": 30}
    options["default_headers"] = {name.replace("_", "-"): value for name, value in headers.items()}
    if kind == "anthropic":
        return ChatAnthropic(model_name="claude-test", base_url=link.origin, **options)
    return ChatOpenAI(model="gpt-test", base_url=link.v1, use_responses_api=kind == "responses", **options)


def giving(name: str, gives: str) -> StructuredTool:
    """A tool of this name, that gives this."""

    def called(topic: str) -> str:
        return gives

    return StructuredTool.from_function(called, name=name, description=f"Does {name}.")


def call_tool(name: str, number: int = 0) -> Call:
    return Call(name, {"topic": f"the {name} of the valley, {number}"})


# A supervisor, its workers, and one history


def handing_to(name: str) -> Any:
    """A tool that hands the whole history to a worker, as supervisors have it."""

    @tool(f"transfer_to_{name}", description=f"Hands over to the {name}.")
    def transfer(
        number: int, state: Annotated[Any, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[str]:
        handed = ToolMessage(
            f"Successfully transferred to {name}", name=f"transfer_to_{name}", tool_call_id=tool_call_id
        )
        return Command(goto=name, graph=Command.PARENT, update={"messages": [*state["messages"], handed]})

    return transfer


def working(worker: Any, name: str) -> Callable[[Any], Any]:
    """A worker as a node: all that it did goes into the history, and then the word is handed back."""

    def node(state: Any) -> Any:
        call_id = f"back_{uuid.uuid4().hex}"
        back = {"name": "transfer_back_to_boss", "args": {}, "id": call_id}
        done = AIMessage("Transferring back to boss", tool_calls=[back], name=name)
        got = ToolMessage("Successfully transferred back to boss", name=back["name"], tool_call_id=call_id)
        return {"messages": [*worker.invoke(state)["messages"], done, got]}

    return node


def supervised(shared: Any) -> Any:
    """A boss over a seeker and a writer, all on one model and one history."""
    graph = StateGraph(MessagesState)
    tools = [giving("note", BOSS), handing_to("seeker"), handing_to("writer")]
    graph.add_node(
        "boss",
        create_agent(shared, tools, system_prompt="You are Boss.", name="boss"),
        destinations=("seeker", "writer", END),
    )
    for name, does, gives in (("seeker", "seek", SEEKER), ("writer", "write", WRITER)):
        worker = create_agent(shared, [giving(does, gives)], system_prompt=f"You are {name.title()}.", name=name)
        graph.add_node(name, working(worker, name))
        graph.add_edge(name, "boss")
    graph.add_edge(START, "boss")
    return graph.compile()


@KINDS
def test_workers_of_a_supervisor_see_their_own_work_and_the_supervisor_all(
    upstream: Upstream, proxy: Proxy, kind: str
) -> None:
    team = AgentTeam(
        {
            "Boss": [
                [call_tool("note")],
                ["The seeker first.", Call("transfer_to_seeker", {"number": 1})],
                [Call("transfer_to_writer", {"number": 2})],
                [Call("transfer_to_seeker", {"number": 3})],
                ["All is known."],
            ],
            "Seeker": [[call_tool("seek")], ["They came long ago."], ["They still live there."]],
            "Writer": [["I write.", call_tool("write")], [call_tool("write", 1)], ["Green, mostly."]],
        }
    )
    with run_team(upstream, proxy, team) as way:
        task = {"messages": [{"role": "user", "content": f"Tell of the valley ({uuid.uuid4()})."}]}
        last = supervised(model(way.link, kind)).invoke(task)["messages"][-1]
        assert last.text == "All is known."
        team.check_complete()
        assert team.requests_with("Boss", SEEKER) == [False, False, True, True, True]
        assert team.requests_with("Boss", WRITER) == [False, False, False, True, True]
        assert team.requests_with("Writer", SEEKER) == [False] * 3
        assert team.requests_with("Writer", "the seek of the valley") == [False] * 3, "nor the call"
        assert team.requests_with("Seeker", WRITER) == [False] * 3
        assert team.requests_with("Seeker", "the write of the valley") == [False] * 3
        assert team.requests_with("Writer", WRITER) == [False, True, True]
        assert team.requests_with("Seeker", SEEKER) == [False, True, True], "its own work, also when it is asked again"
        assert team.requests_with("Writer", BOSS) == [True] * 3, "what the supervisor knew before"
        assert team.requests_with("Writer", "They came long ago.") == [True] * 3, "what agents say stays"
        each_has_its_session(way, "Boss", "Seeker", "Writer")
        handed = sorted((way.sessions(name)[0], "handoff") for name in ("Seeker", "Writer"))
        assert way.edges("Boss", 2) == handed
        assert way.filtered("Boss") == [0] * 5


def each_has_its_session(way: TeamRun, *names: str) -> None:
    """Each agent has one session, and no two the same."""
    sessions = [way.sessions(name) for name in names]
    assert [len(each) for each in sessions] == [1] * len(names), sessions
    assert len({each[0] for each in sessions}) == len(names)


# Agents that write into one history at once


def at_once(models: dict[str, Any], tools: dict[str, Any], rounds: int) -> Any:
    """Red and blue work at the same time, round by round; main has the last word. All share the history."""
    graph = StateGraph(MessagesState)

    def speaking(name: str) -> Callable[[Any], Any]:
        mine = [tools[name]] if name in tools else []
        bound = models[name].bind_tools(mine) if mine else models[name]

        def node(state: Any) -> Any:
            reply = bound.invoke([SystemMessage(f"You are {name.title()}."), *state["messages"]])
            got = [mine[0].invoke(call) for call in reply.tool_calls]
            return {"messages": [reply, *got]}

        return node

    graph.add_node("gate", lambda state: {})
    for name in models:
        graph.add_node(name, speaking(name))
        graph.add_edge(name, END if name == "main" else "gate")

    def next_round(state: Any) -> list[str]:
        done = sum(isinstance(message, AIMessage) for message in state["messages"])
        return ["red", "blue"] if done < 2 * rounds else ["main"]

    graph.add_edge(START, "gate")
    graph.add_conditional_edges("gate", next_round, ["red", "blue", "main"])
    return graph.compile()


RED, BLUE = tool_text("red"), tool_text("blue")
TOOLS = {"red": giving("dig", RED), "blue": giving("sail", BLUE)}


def both() -> AgentTeam:
    return AgentTeam(
        {
            "Red": [[call_tool("dig", 1)], ["I dig on.", call_tool("dig", 2)], [call_tool("dig", 3)]],
            "Blue": [[call_tool("sail", 1)], [call_tool("sail", 2)], ["I sail on.", call_tool("sail", 3)]],
            "Main": [["All is known."]],
        }
    )


def told_by(models: dict[str, Any]) -> str:
    task = {"messages": [{"role": "user", "content": f"Tell of the valley ({uuid.uuid4()})."}]}
    return str(at_once(models, TOOLS, 3).invoke(task)["messages"][-1].text)


@KINDS
@pytest.mark.parametrize("top", [False, True], ids=["declared", "undeclared"])
def test_agents_that_write_at_once_and_say_who_they_are_see_their_own(
    upstream: Upstream, proxy: Proxy, kind: str, top: bool
) -> None:
    """Each has a client of its own, whose headers say where it stands; main need not say it."""
    team, run = both(), uuid.uuid4().hex
    with run_team(upstream, proxy, team) as way:
        main = {} if top else {"x_accordion_delegation": f"{run}.main"}
        above = {} if top else {"x_accordion_parent": f"{run}.main"}
        models = {
            name: model(way.link, kind, x_accordion_delegation=f"{run}.{name}", x_accordion_agent=name, **above)
            for name in ("red", "blue")
        }
        assert told_by({**models, "main": model(way.link, kind, **main)}) == "All is known."
        team.check_complete()
        assert team.requests_with("Red", BLUE) == team.requests_with("Red", "the sail of the valley") == [False] * 3
        assert team.requests_with("Blue", RED) == team.requests_with("Blue", "the dig of the valley") == [False] * 3
        assert team.requests_with("Red", RED) == team.requests_with("Blue", BLUE) == [False, True, True]
        assert team.requests_with("Main", RED) == team.requests_with("Main", BLUE) == [True]
        assert team.asked["Main"][0].body.count(b"was found") == 6, "the main agent has all"
        each_has_its_session(way, "Red", "Blue", "Main")
        known = sorted((way.sessions(name)[0], "header") for name in ("Red", "Blue"))
        assert [edge for edge in way.edges("Red", 0 if top else 2) if edge in known] == ([] if top else known)
        assert (way.filtered("Red"), way.filtered("Blue")) == ([0, 1, 2], [0, 1, 2])


@KINDS
def test_agents_that_write_at_once_and_say_nothing_see_everything(upstream: Upstream, proxy: Proxy, kind: str) -> None:
    """Nothing tells them apart: one client, one history, no hand-off. So nothing is kept from anybody, and every byte
    that was sent is forwarded."""
    team = both()
    with run_team(upstream, proxy, team) as way:
        shared = model(way.link, kind)
        assert told_by(dict.fromkeys(("red", "blue", "main"), shared)) == "All is known."
        team.check_complete()
        assert team.requests_with("Red", BLUE) == team.requests_with("Blue", RED) == [False, True, True]
        sent = sorted(exchange.request.body for exchange in way.link.exchanges())
        assert sent == sorted(request.body for asked in team.asked.values() for request in asked)
