"""Compaction that a client asks for, with the official SDKs: at a place that has none, and at one that has it."""

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY
from tests.proxy_process import Proxy

CONFIG = """
server: {shutdown_seconds: 1}
summaries: {writer: extractive}
model_list:
  - model_name: plain
    litellm_params: {model: together_ai/some-model, api_base: "{upstream}/v1"}
  - model_name: gpt
    litellm_params: {model: openai/gpt-5.2, api_base: "{upstream}/v1"}
"""
BETAS = ["context-management-2025-06-27", "compact-2026-01-12"]
COMPACT: Any = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 3_000}}
TOOL: Any = {"name": "read", "input_schema": {"type": "object"}}
FUNCTION: Any = {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture(scope="module")
def translating(start: Start) -> Proxy:
    return start(CONFIG)


def text(at: int) -> str:
    return " ".join(f"line {at}.{number} of a file" for number in range(150))


def history(name: str, rounds: int = 8) -> list[Any]:
    """The history of an agent, as a client of Messages sends it. Each `name` is another conversation."""
    messages: list[Any] = [{"role": "user", "content": f"Read all files of {name}."}]
    for at in range(rounds):
        call = {"type": "tool_use", "id": f"c{at}", "name": "read", "input": {"path": f"{at}.py"}}
        result = {"type": "tool_result", "tool_use_id": f"c{at}", "content": text(at)}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return messages


def items(name: str, rounds: int = 8) -> list[Any]:
    """The same for Responses."""
    listed: list[Any] = [{"role": "user", "content": f"Read all files of {name}."}]
    for at in range(rounds):
        listed += [
            {
                "type": "function_call",
                "call_id": f"c{at}",
                "name": "read",
                "arguments": json.dumps({"path": f"{at}.py"}),
            },
            {"type": "function_call_output", "call_id": f"c{at}", "output": text(at)},
        ]
    return [*listed, {"role": "user", "content": "Now sum up."}]


def openai_client(proxy: Proxy) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=KEY, max_retries=0, timeout=90)


def anthropic_client(proxy: Proxy) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=proxy.url, api_key=KEY, max_retries=0, timeout=90)


async def test_openais_sdk_compacts_against_a_provider_of_chat_completions(translating: Proxy) -> None:
    async with openai_client(translating) as client, translating.provider(CHAT.answers("Done.")) as provider:
        compacted = await client.responses.compact(model="plain", input=items("red"))
        assert provider.requests == []
        assert compacted.object == "response.compaction"
        assert [each.type for each in compacted.output] == ["message", "message", "compaction"]
        given: Any = [each.to_dict() for each in compacted.output]
        go_on: Any = [*given, {"role": "user", "content": "Go on."}]
        done = await client.responses.create(model="plain", input=go_on, tools=[FUNCTION])
    assert done.output_text == "Done."
    [asked] = provider.requests
    assert asked.target == "/v1/chat/completions"
    sent = json.dumps(asked.json())
    assert "art_" in sent
    assert "read_artifact" in sent
    assert "line 0.149" not in sent
    assert sent.count("Now sum up.") == 1


async def test_anthropics_sdk_has_a_conversation_compacted_and_goes_on(translating: Proxy) -> None:
    management: Any = {"edits": [COMPACT]}
    arguments: Any = {"model": "plain", "tools": [TOOL], "betas": BETAS, "max_tokens": 50}
    async with anthropic_client(translating) as client, translating.provider(CHAT.answers("Done.")) as provider:
        done = await client.beta.messages.create(**arguments, messages=history("white"), context_management=management)
        async with client.beta.messages.stream(
            **arguments, messages=history("white"), context_management=management
        ) as stream:
            streamed = await stream.get_final_message()
        given: Any = {"role": "assistant", "content": [block.to_dict() for block in streamed.content]}
        messages: Any = [*history("white"), given, {"role": "user", "content": "Go on."}]
        await client.beta.messages.create(**arguments, messages=messages, context_management=management)
    for each in (done, streamed):
        block, said = each.content
        assert (block.type, said.type) == ("compaction", "text")
        assert block.content  # type: ignore[union-attr]
        assert block.encrypted_content  # type: ignore[union-attr]
        assert each.usage.iterations is not None
        assert [one.type for one in each.usage.iterations] == ["compaction", "message"]
    last = provider.requests[-1].json()["messages"]
    assert last[-1]["content"] == "Go on."
    assert "line 0.149" not in json.dumps(last)
    assert "Read all files of white." in json.dumps(last)
