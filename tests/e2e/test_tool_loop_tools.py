"""Reading back beside what the client demands: a choice of tools, tools of its own, forms of the answer."""

import json
from typing import Any

import pytest

from tests.agent_replies import TOOL, TOOLS, Json
from tests.e2e.raw_client import post
from tests.e2e.reading_agent import ReadingAgent, start_reading_agent
from tests.e2e.small_window import EACH, STREAMED, STREAMS, Proxies
from tests.history_content import content_items
from tests.loopback import Answer, Recorded
from tests.strict_provider import PATHS, SYSTEM
from tests.writers import LISTS, WRITERS


def last_body(one: ReadingAgent) -> Json:
    body: Json = one.provider.taken[-1].request.json()
    return body


def function_calling(mode: str, **more: Any) -> Json:
    """Gemini's choice of functions."""
    return {"toolConfig": {"functionCallingConfig": {"mode": mode, **more}}}


def ours_in(one: ReadingAgent) -> list[Any]:
    """The calls of our tool that stand in the newest list."""
    listed = content_items(one.run.protocol_name, one.provider.taken[-1].entries)
    return [atom for atom in listed if atom[0] == "call" and atom[1].startswith("ours_")]


# -- which tool the client wants ---------------------------------------------------------------------------------------

ONLY: dict[str, Json] = {
    "chat": {"tool_choice": {"type": "function", "function": {"name": TOOL}}},
    "responses": {"tool_choice": {"type": "function", "name": TOOL}},
    "messages": {"tool_choice": {"type": "tool", "name": TOOL}},
    "gemini": function_calling("ANY", allowedFunctionNames=[TOOL]),
}
NONE: dict[str, Json] = {
    "chat": {"tool_choice": "none"},
    "responses": {"tool_choice": "none"},
    "messages": {"tool_choice": {"type": "none"}},
    "gemini": function_calling("NONE"),
}
SOME: dict[str, Json] = {
    "chat": {"tool_choice": "required"},
    "responses": {"tool_choice": "required"},
    "messages": {"tool_choice": {"type": "any"}},
    "gemini": function_calling("ANY"),
}
ALONE: dict[str, Json] = {
    "chat": {"parallel_tool_calls": False},
    "responses": {"parallel_tool_calls": False},
    "messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
}
"""Gemini has no such field."""
STRICT = {"chat": "parameters", "responses": "parameters", "messages": "input_schema"}
"""The name of a tool's schema, where a tool may be strict."""


@STREAMS
@pytest.mark.parametrize("choice", [ONLY, NONE], ids=["one", "none"])
async def test_a_choice_of_tools_stays_the_clients(
    proxies: Proxies, protocol_name: str, choice: dict[str, Json], stream: bool
):
    """Ours stands among the tools all the same, so that the prefix holds; what was read before stays."""
    proxy = proxies[protocol_name]
    async with start_reading_agent(
        proxy, protocol_name, f"choice {choice is ONLY} {stream}", ways=("o",), stream=stream
    ) as one:
        await one.until_offered()
        await one.rounds(1)
        one.provider.ways = ("w",) if choice is NONE else ("t",)
        one.run.more = choice[protocol_name]
        await one.rounds(1)
        assert last_body(one).items() >= choice[protocol_name].items()
        one.provider.ways, one.run.more = ("wo t",), {}
        await one.rounds(3)
    one.whole("o", "wo t")


@STREAMS
async def test_where_a_tool_must_be_called_reading_goes_on_until_one_of_the_clients_is(
    proxies: Proxies, protocol_name: str, stream: bool
):
    proxy = proxies[protocol_name]
    async with start_reading_agent(
        proxy, protocol_name, f"must {stream}", ways=("o p t",), every=1, stream=stream
    ) as one:
        await one.until_offered()
        one.run.more = SOME[protocol_name]
        await one.rounds(4)
        assert last_body(one).items() >= SOME[protocol_name].items()
    one.whole("o p t")


@pytest.mark.parametrize("protocol_name", ALONE)
@STREAMED
async def test_one_call_at_a_time_stays_one_at_a_time(proxies: Proxies, protocol_name: str, stream: bool):
    proxy = proxies[protocol_name]
    options = {"batch": lambda number: 1}
    ways = ("o t", "wo p w", "o")
    async with start_reading_agent(
        proxy,
        protocol_name,
        f"alone {stream}",
        ways=ways,
        every=1,
        stream=stream,
        provider=options,
        more=ALONE[protocol_name],
    ) as one:
        await one.until_offered()
        await one.rounds(4)
    one.whole(*ways)
    for each in one.provider.exchanges:
        assert each.body.items() >= ALONE[protocol_name].items()


# -- which tools the client has ----------------------------------------------------------------------------------------


def define_tool(protocol_name: str, name: str, **more: Any) -> Json:
    """A tool of the client's."""
    [tool] = TOOLS[protocol_name]
    if protocol_name == "chat":
        return {"type": "function", "function": {**tool["function"], "name": name, **more}}
    return {**tool, "name": name, **more}


@STREAMS
async def test_a_client_that_has_a_tool_of_this_name_keeps_it(proxies: Proxies, protocol_name: str, stream: bool):
    proxy = proxies[protocol_name]
    tools = [*TOOLS[protocol_name], define_tool(protocol_name, "read_artifact")]
    ways = ("o", "n", "won", "no", "wo n")
    async with start_reading_agent(
        proxy, protocol_name, f"name {stream}", ways=ways, every=1, stream=stream,
        provider={"tools": tools}, more={"tools": tools},
    ) as one:  # fmt: skip
        await one.until_offered()
        await one.rounds(2 * len(ways))
    assert one.provider.problems == []
    one.stable()
    assert set(one.provider.offered) == {"", "accordion_read_artifact"}
    assert one.provider.done >= set(ways)
    for heard in one.witness.heard:
        assert b"accordion_read_artifact" not in heard.body
        assert b"ours_" not in heard.body
    calls = [atom[2] for atom in one.client_history if atom[0] == "call"]
    assert calls.count("read_artifact") == sum("n" in each.way and bool(each.theirs) for each in one.provider.exchanges)


@pytest.mark.parametrize("protocol_name", STRICT)
@STREAMED
async def test_strict_schemas_stay_strict_and_ours_is_none(proxies: Proxies, protocol_name: str, stream: bool):
    proxy = proxies[protocol_name]
    schema = {
        "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"],
        "additionalProperties": False,
    }  # fmt: skip
    tools = [define_tool(protocol_name, TOOL, strict=True, **{STRICT[protocol_name]: schema})]
    async with start_reading_agent(
        proxy, protocol_name, f"schemas {stream}", ways=("wo t",), every=1, stream=stream,
        provider={"tools": tools}, more={"tools": tools},
    ) as one:  # fmt: skip
        await one.until_offered()
        await one.rounds(2)
    one.whole("wo t")
    ours = last_body(one)["tools"][1]
    assert not (ours["function"] if protocol_name == "chat" else ours).get("strict")
    assert protocol_name != "responses" or ours["strict"] is False, "else it were strict"


# -- what the client wants of the answer -------------------------------------------------------------------------------


SEVERAL: dict[str, Json] = {"chat": {"n": 2}, "gemini": {"generationConfig": {"candidateCount": 2}}}


@pytest.mark.parametrize("protocol_name", SEVERAL)
@STREAMED
async def test_where_several_answers_are_asked_for_nothing_is_read(proxies: Proxies, protocol_name: str, stream: bool):
    """What was read before stays."""
    proxy = proxies[protocol_name]
    async with start_reading_agent(
        proxy, protocol_name, f"several {stream}", ways=("wo t",), every=1, stream=stream
    ) as one:
        await one.until_offered()
        one.provider.ways = ()
        reads = len(ours_in(one))
        await one.rounds(1)
        reads = len(ours_in(one))
        one.run.more = SEVERAL[protocol_name]
        await one.rounds(1)
        assert one.provider.offered[-1] == ""
        assert last_body(one).items() >= SEVERAL[protocol_name].items()
        assert len(ours_in(one)) == reads == 1
        one.run.more = {}
        await one.rounds(1)
        assert one.provider.offered[-1] == "read_artifact"
        assert len(ours_in(one)) == reads
    assert one.provider.problems == []


FORMS: dict[str, Json] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    "gemini": {"generationConfig": {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}}},
}


@EACH
async def test_a_form_that_is_demanded_where_there_are_no_tools_leaves_it_so(proxies: Proxies, protocol_name: str):
    """No tool is added, and what was read back, which would be calls of a tool that is not there, is left out."""
    proxy = proxies[protocol_name]
    seen: list[Json] = []

    async def script(request: Recorded, answer: Answer) -> None:
        seen.append(request.json())
        await answer.head(200, [("Content-Type", "application/json")], length=2)
        await answer.send(b"{}")

    async with start_reading_agent(
        proxy, protocol_name, "form", ways=("wo t",), every=1, provider={"summary": script}
    ) as one:
        await one.until_offered()
        await one.rounds(1)
        history = json.loads(json.dumps(one.run.history, default=lambda value: value.model_dump(exclude_none=True)))
        writer = WRITERS[protocol_name]
        body = writer.with_system(writer.request("small", history, **FORMS[protocol_name]), SYSTEM)
        reply = await post(proxy, PATHS[protocol_name], json.dumps(body).encode())
        await one.rounds(1)
    assert reply.status == 200
    [sent] = seen
    assert not sent.get("tools")
    assert sent.items() >= FORMS[protocol_name].items()
    assert len(sent[LISTS[protocol_name]]) < len(body[LISTS[protocol_name]])
    assert "ours_" not in json.dumps(sent)
    one.whole("wo t")
