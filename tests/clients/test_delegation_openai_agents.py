"""Agents of the OpenAI Agents SDK hand work on: each sees what belongs to its task, and the main agent sees all."""

import asyncio
import json
import uuid
from typing import Any

import agents
import pytest
from agent_team import AgentTeam, TeamRun, run_team, tool_text, unanswered
from client_link import KEY, ClientLink, Proxy
from openai import AsyncOpenAI
from replies import Call, Reply, body_of, results_in
from test_compaction_agent_clis import counted, settings
from upstream import Upstream
from wire import Request

KINDS = pytest.mark.parametrize("kind", ["chat", "responses"])
DESK, SEEKER, WRITER = tool_text("desk"), tool_text("seeker"), tool_text("writer")


def model(link: ClientLink, kind: str, **headers: str) -> agents.Model:
    """A model on a link; all agents that are given one are one client."""
    agents.set_tracing_disabled(True)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    api = AsyncOpenAI(base_url=link.v1, api_key=KEY, max_retries=0, timeout=30, default_headers=named)
    made = agents.OpenAIChatCompletionsModel if kind == "chat" else agents.OpenAIResponsesModel
    return made("gpt-test", openai_client=api)


def tool(name: str, gives: str) -> agents.Tool:
    """A tool of this name, that gives this."""

    def called(topic: str) -> str:
        return gives

    return agents.function_tool(called, name_override=name, description_override=f"Does {name}.")


def crew(shared: agents.Model, *, back: bool) -> agents.Agent[Any]:
    """A desk that hands to a seeker and to a writer; `back`: who then hand back to it."""
    seeker = agents.Agent(name="Seeker", instructions="You are Seeker.", model=shared, tools=[tool("seek", SEEKER)])
    writer = agents.Agent(name="Writer", instructions="You are Writer.", model=shared, tools=[tool("write", WRITER)])
    desk = agents.Agent(
        name="Desk", instructions="You are Desk.", model=shared, tools=[tool("note", DESK)], handoffs=[seeker, writer]
    )
    if back:
        seeker.handoffs = writer.handoffs = [desk]
    return desk


def call_tool(name: str) -> Call:
    return Call(name, {"topic": f"the {name} of the valley"})


def to(name: str, number: int) -> Call:
    """A hand-off; its number makes its id one of its own."""
    return Call(f"transfer_to_{name}", {"number": number})


def run(agent: agents.Agent[Any], stream: bool, **options: Any) -> str:
    """A whole run; gives what was said last. No two have the same history."""
    task = f"Tell of the valley ({uuid.uuid4()})."

    async def main() -> str:
        if not stream:
            return str((await agents.Runner.run(agent, task, **options)).final_output)
        streamed = agents.Runner.run_streamed(agent, task, **options)
        async for _ in streamed.stream_events():
            pass
        return str(streamed.final_output)

    return asyncio.run(main())


def there_and_back() -> AgentTeam:
    """The desk asks both, one after the other, the seeker twice."""
    return AgentTeam(
        {
            "Desk": [
                [call_tool("note")],
                ["The seeker first.", to("seeker", 1)],
                [to("writer", 2)],
                [to("seeker", 3)],
                ["All is known."],
            ],
            "Seeker": [[call_tool("seek")], ["Found.", to("desk", 4)], [to("desk", 5)]],
            "Writer": [["I write.", call_tool("write")], [to("desk", 6)]],
        }
    )


@KINDS
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_agents_that_hand_to_and_fro_see_their_own_branch(
    upstream: Upstream, proxy: Proxy, kind: str, stream: bool
) -> None:
    team = there_and_back()
    with run_team(upstream, proxy, team) as way:
        assert run(crew(model(way.link, kind), back=True), stream) == "All is known."
        team.check_complete()
        assert team.requests_with("Desk", SEEKER) == [False, False, True, True, True]
        assert team.requests_with("Desk", WRITER) == [False, False, False, True, True]
        assert team.requests_with("Seeker", WRITER) == [False, False, False]
        assert team.requests_with("Writer", SEEKER) == [False, False]
        assert team.requests_with("Seeker", "the write of the valley") == [False] * 3, "nor the call"
        assert team.requests_with("Writer", "the seek of the valley") == [False] * 2
        assert team.requests_with("Seeker", SEEKER) == [False, True, True], "its own work, also when it is asked again"
        assert team.requests_with("Seeker", DESK) == [True] * 3, "what the main agent knew before"
        assert team.requests_with("Writer", DESK) == [True] * 2
        assert team.requests_with("Writer", "The seeker first.") == [True] * 2, "what agents say stays"
        sessions_of_their_own(way, "Desk", "Seeker", "Writer")
        handed = sorted((way.sessions(name)[0], "handoff") for name in ("Seeker", "Writer"))
        assert way.edges("Desk", 2) == handed
        assert way.filtered("Desk") == [0] * 5
        # What the other one called, and its handing back.
        assert (way.filtered("Seeker"), way.filtered("Writer")) == ([0, 0, 2], [2, 2])


def sessions_of_their_own(way: TeamRun, *names: str) -> None:
    """Each agent has one session, and no two the same."""
    found = [way.sessions(name) for name in names]
    assert [len(each) for each in found] == [1] * len(names), found
    assert len({each[0] for each in found}) == len(names)
    for name, [session] in zip(names, found, strict=True):
        told = way.look(f"/accordion/sessions/{session}").json()
        assert told["totals"]["requests"] == len(way.heads(name))


@KINDS
def test_who_is_handed_to_by_another_sees_what_that_one_did(upstream: Upstream, proxy: Proxy, kind: str) -> None:
    """A chain: what an agent hands on is the next one's task, and it works for it."""
    team = AgentTeam(
        {
            "Desk": [[call_tool("note")], [to("seeker", 7)]],
            "Seeker": [[call_tool("seek")], [to("writer", 8)]],
            "Writer": [[call_tool("write")], ["Written."]],
        }
    )
    with run_team(upstream, proxy, team) as way:
        shared = model(way.link, kind)
        desk = crew(shared, back=False)
        seeker, writer = desk.handoffs
        assert isinstance(seeker, agents.Agent)
        seeker.handoffs = [writer]
        desk.handoffs = [seeker]
        assert run(desk, stream=False) == "Written."
        team.check_complete()
        assert team.requests_with("Writer", SEEKER) == team.requests_with("Writer", DESK) == [True, True]


@KINDS
def test_a_history_that_the_sdk_nests_is_what_its_agent_was_told(upstream: Upstream, proxy: Proxy, kind: str) -> None:
    """With `nest_handoff_history` the SDK writes what came before into one message. That is what its user chose to
    tell: it stays byte for byte, whatever stands in it."""
    team = there_and_back()
    with run_team(upstream, proxy, team) as way:
        options = {"run_config": agents.RunConfig(nest_handoff_history=True)}
        assert run(crew(model(way.link, kind), back=True), stream=False, **options) == "All is known."
        team.check_complete()
        sent = [exchange.request.body for exchange in way.link.exchanges()]
        forwarded = [request.body for asked in team.asked.values() for request in asked]
        assert sorted(sent) == sorted(forwarded)
        assert team.requests_with("Writer", SEEKER) == [True, True]


# Agents as tools


TASK = {
    "seeker": "Find out who lives in the valley, and since when.",
    "writer": "Write down what the valley looks like in spring.",
}


def as_tools(shared: agents.Model, *, long: bool = False) -> agents.Agent[Any]:
    """A desk whose seeker and writer are tools; `long`: what is found and noted fills a page."""
    seek, note = (tool(name, f"{gives} " * (60 if long else 1)) for name, gives in (("seek", SEEKER), ("note", DESK)))
    seeker = agents.Agent(name="Seeker", instructions="You are Seeker.", model=shared, tools=[seek])
    writer = agents.Agent(name="Writer", instructions="You are Writer.", model=shared, tools=[tool("write", WRITER)])
    made = [
        agent.as_tool(tool_name=name, tool_description=f"Asks the {name}.")
        for name, agent in (("ask_seeker", seeker), ("ask_writer", writer))
    ]
    return agents.Agent(name="Desk", instructions="You are Desk.", model=shared, tools=[*made, note])


@KINDS
def test_agents_as_tools_have_lists_and_sessions_of_their_own(upstream: Upstream, proxy: Proxy, kind: str) -> None:
    """Both at once: each opens with the argument of its call, and belongs to it."""
    team = AgentTeam(
        {
            "Desk": [
                [call_tool("note")],
                [Call("ask_seeker", {"input": TASK["seeker"]}), Call("ask_writer", {"input": TASK["writer"]})],
                ["All is known."],
            ],
            "Seeker": [[call_tool("seek")], ["They came long ago."]],
            "Writer": [[call_tool("write")], ["Green, mostly."]],
        }
    )
    with run_team(upstream, proxy, team) as way:
        assert run(as_tools(model(way.link, kind)), stream=False) == "All is known."
        team.check_complete()
        assert team.requests_with("Seeker", WRITER) == team.requests_with("Writer", SEEKER) == [False, False]
        assert team.requests_with("Seeker", DESK) == [False, False], "its list is its own"
        assert team.requests_with("Desk", SEEKER) == [False] * 3, "the tool gives what the agent said"
        assert team.requests_with("Desk", "They came long ago.") == [False, False, True]
        sent = sorted(exchange.request.body for exchange in way.link.exchanges())
        assert sent == sorted(one.body for asked in team.asked.values() for one in asked), "nothing to be hidden"
        sessions_of_their_own(way, "Desk", "Seeker", "Writer")
        begun = sorted((way.sessions(name)[0], "argument") for name in ("Seeker", "Writer"))
        assert way.edges("Desk", 2) == begun


class Counting(AgentTeam):
    """Tells how long a request truly is."""

    def __call__(self, request: Request) -> Reply | None:
        said = super().__call__(request)
        return counted(request, said) if said is not None else None


@KINDS
def test_an_agent_as_a_tool_is_compacted_by_thresholds_of_its_own(
    upstream: Upstream, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    """Both read as much; the one that was asked compactions early, and its task stands there word for word."""
    wanted = json.loads(settings(8_000, upstream.port)) | {"thresholds": {"delegated": {"generation": 0.3}}}
    small = Proxy(upstream.port, tmp_path_factory.mktemp("early"), json.dumps(wanted))
    pages = [[Call("seek", {"topic": f"page {number}"})] for number in range(8)]
    notes = [[Call("note", {"topic": f"page {number}"})] for number in range(8)]
    ask = Call("ask_seeker", {"input": TASK["seeker"]})
    team = Counting({"Desk": [*notes, [ask], ["All is known."]], "Seeker": [*pages, ["Long ago."]], "Writer": []})
    try:
        with run_team(upstream, small, team) as way:
            desk = as_tools(model(way.link, kind), long=True)
            assert run(desk, stream=False) == "All is known."
            told = {name: [head.get("x-accordion-compaction") for head in way.heads(name)] for name in team.asked}
    finally:
        small.stop()
    assert not any(told["Desk"]), "its own window is far from full"
    assert any(told["Seeker"])
    last = team.asked["Seeker"][-1]
    assert last.body.count(TASK["seeker"].encode()) == 1
    assert len(results_in(body_of(last))) < 8
    assert unanswered(body_of(last)) == []
