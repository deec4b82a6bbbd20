"""Agent frameworks run their loops through the proxy as they do without it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import agents
import pytest
import replies
import smolagents
from client_link import KEY, PROXY_PYTHON, ClientLink, proxy_missing, run
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from replies import Call, steps

MODEL = "gpt-test"
HERE = Path(__file__).parent
LOOP = steps([Call("get_weather", {"city": "Ōsaka"})], "It says: {result}")


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: The city.
    """
    return f"22 °C in {city}"


SAID = "It says: 22 °C in Ōsaka"


# OpenAI Agents SDK


def agents_model(link: ClientLink, kind: str) -> agents.Model:
    """A model of the Agents SDK on a link."""
    agents.set_tracing_disabled(True)
    api = AsyncOpenAI(base_url=link.v1, api_key=KEY, max_retries=0, timeout=30)
    if kind == "chat":
        return agents.OpenAIChatCompletionsModel(MODEL, openai_client=api)
    return agents.OpenAIResponsesModel(MODEL, openai_client=api)


@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_openai_agents_sdk_runs_a_tool_loop(link: ClientLink, kind: str, stream: bool) -> None:
    """A function tool, in both protocols."""
    link.upstream.rule = LOOP

    async def main() -> tuple[str, list[str]]:
        agent = agents.Agent(
            name="Meteorologist",
            instructions="Use your tool.",
            model=agents_model(link, kind),
            tools=[agents.function_tool(get_weather)],
        )
        if not stream:
            done = await agents.Runner.run(agent, "Weather in Ōsaka?")
            return done.final_output, [item.type for item in done.new_items]
        streamed = agents.Runner.run_streamed(agent, "Weather in Ōsaka?")
        kinds = [event.type async for event in streamed.stream_events()]
        return streamed.final_output, kinds

    output, kinds = asyncio.run(main())
    assert output == SAID
    link.note(kinds=kinds)


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_the_openai_agents_sdk_hands_over_to_another_agent(link: ClientLink, kind: str) -> None:
    """A handoff, then the other agent's tool."""
    call, transfer = Call("get_weather", {"city": "Ōsaka"}), Call("transfer_to_meteorologist")
    link.upstream.rule = steps([transfer], [call], "It says: {result}")

    async def main() -> Any:
        model = agents_model(link, kind)
        expert = agents.Agent(name="Meteorologist", model=model, tools=[agents.function_tool(get_weather)])
        desk = agents.Agent(name="Desk", instructions="Hand over.", model=model, handoffs=[expert])
        return await agents.Runner.run(desk, "Weather in Ōsaka?")

    done = asyncio.run(main())
    assert (done.final_output, done.last_agent.name) == (SAID, "Meteorologist")
    assert len(link.requests()) == 3
    link.note(kinds=[item.type for item in done.new_items])


# LangChain and LangGraph


def langchain_model(link: ClientLink, kind: str) -> Any:
    """A chat model of LangChain on a link."""
    if kind == "anthropic":
        options: Any = {"base_url": link.origin, "api_key": KEY, "max_retries": 0, "timeout": 30}
        return ChatAnthropic(model_name="claude-test", **options)
    options = {"base_url": link.v1, "api_key": KEY, "max_retries": 0, "timeout": 30}
    return ChatOpenAI(model=MODEL, use_responses_api=kind == "responses", **options)


KINDS = ["chat", "responses", "anthropic"]


@pytest.mark.parametrize("kind", KINDS)
def test_langchain_invokes_streams_and_binds_tools(link: ClientLink, kind: str) -> None:
    """A chat model alone."""
    link.upstream.rule = steps([Call("get_weather", {"city": "Ōsaka"})])
    model = langchain_model(link, kind)
    plain = model.invoke("Hi")
    streamed = [chunk.text for chunk in model.stream("Hi")]
    called = model.bind_tools([tool(get_weather)]).invoke("Weather?")
    assert "".join(streamed) == plain.text == "A short title"
    assert called.tool_calls[0]["args"] == {"city": "Ōsaka"}
    link.note(streamed=streamed, calls=called.tool_calls, usage=plain.usage_metadata)


def test_langchain_embeds_texts(link: ClientLink) -> None:
    """Embeddings without local counting."""
    options: Any = {"base_url": link.v1, "api_key": KEY, "check_embedding_ctx_length": False}
    assert OpenAIEmbeddings(model="text-embedding-test", **options).embed_documents(["one"])[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_langgraph_agent_runs_a_tool_loop(link: ClientLink, kind: str, stream: bool) -> None:
    """LangChain's agent is a LangGraph graph."""
    link.upstream.rule = LOOP
    agent: Any = create_agent(langchain_model(link, kind), [tool(get_weather)], system_prompt="Use your tool.")
    question = {"messages": [{"role": "user", "content": "Weather in Ōsaka?"}]}
    if stream:
        parts = [part for part, _ in agent.stream(question, stream_mode="messages")]
        text = "".join(part.text for part in parts if part.type == "AIMessageChunk")
    else:
        text = agent.invoke(question)["messages"][-1].text
    assert text == SAID


# Pydantic AI


def pydantic_model(link: ClientLink, kind: str) -> Any:
    """A model of Pydantic AI on a link."""
    if kind == "anthropic":
        import anthropic

        api = anthropic.AsyncAnthropic(base_url=link.origin, api_key=KEY, max_retries=0, timeout=30)
        return AnthropicModel("claude-test", provider=AnthropicProvider(anthropic_client=api))
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=link.v1, api_key=KEY, max_retries=0, timeout=30))
    return (OpenAIResponsesModel if kind == "responses" else OpenAIChatModel)(MODEL, provider=provider)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_pydantic_ai_runs_a_tool_loop(link: ClientLink, kind: str, stream: bool) -> None:
    """A plain tool."""
    link.upstream.rule = LOOP

    async def main() -> str:
        agent = PydanticAgent(pydantic_model(link, kind), instructions="Use your tool.", tools=[get_weather])
        if not stream:
            return (await agent.run("Weather in Ōsaka?")).output
        async with agent.run_stream("Weather in Ōsaka?") as streamed:
            return [text async for text in streamed.stream_text(debounce_by=None)][-1]

    assert asyncio.run(main()) == SAID


# smolagents


def test_smolagents_runs_a_tool_loop(link: ClientLink) -> None:
    """Its tool-calling agent, which ends by a tool of its own."""
    weather = smolagents.tool(get_weather)
    first, last = steps([Call("get_weather", {"city": "Ōsaka"})]), steps([Call("final_answer", {"answer": SAID})])
    link.upstream.rule = lambda request: (last if b"Observation" in request.body else first)(request)
    model = smolagents.OpenAIServerModel(MODEL, api_base=link.v1, api_key=KEY)
    agent = smolagents.ToolCallingAgent(tools=[weather], model=model, max_steps=4, verbosity_level=0)
    assert agent.run("Weather in Ōsaka?") == SAID


# LiteLLM as a client


def test_litellm_calls_both_protocols(link: ClientLink) -> None:
    """LiteLLM as a client, in the proxy's environment, which has it."""
    if not PROXY_PYTHON.exists():
        pytest.skip(proxy_missing() or "")
    answers = steps([Call("get_weather", {"city": "Ōsaka"})])
    refused = replies.failure(401, "invalid_api_key", "No.")
    link.upstream.rule = lambda request: refused if b"FAIL" in request.body else answers(request)
    command = [str(PROXY_PYTHON), str(HERE / "litellm_client.py")]
    seen = json.loads(run(command, link, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}).strip().splitlines()[-1])
    assert seen["openai"] == seen["anthropic"] == "A short title"
    assert seen["tool"] == {"city": "Ōsaka"}
    link.note(**seen)
