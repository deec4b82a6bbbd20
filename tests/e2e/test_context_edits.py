"""Compaction that a client asks for, with the official SDKs: at a place that has none, and at one that has it."""

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY, MESSAGES, RESPONSES
from tests.loopback import Answer, Recorded, replies_json
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
CLEAR: Any = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "tool_uses", "value": 5},
    "keep": {"type": "tool_uses", "value": 2},
}
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


async def test_openais_sdk_gets_the_item_within_a_response(translating: Proxy) -> None:
    management: Any = [{"type": "compaction", "compact_threshold": 3_000}]
    async with openai_client(translating) as client, translating.provider(CHAT.answers("Done.")) as provider:
        done = await client.responses.create(
            model="plain", input=items("blue"), tools=[FUNCTION], context_management=management
        )
        async with client.responses.stream(
            model="plain", input=items("blue"), tools=[FUNCTION], context_management=management
        ) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_response()
    for each in (done, streamed):
        assert each.output[0].type == "compaction"
        assert each.output[-1].type == "message"
    assert (
        kinds[:4]
        == [
            "response.created",
            *(["response.in_progress"] if "response.in_progress" in kinds else []),
            *["response.output_item.added", "response.compaction.compacting", "response.output_item.done"],
        ][:4]
    )
    assert all(len(request.body) < len(json.dumps(items("blue"))) / 2 for request in provider.requests)
    assert all("context_management" not in request.json() for request in provider.requests)


async def test_anthropics_sdk_has_tool_uses_cleared(translating: Proxy) -> None:
    management: Any = {"edits": [CLEAR]}
    arguments: Any = {"model": "plain", "messages": history("green"), "tools": [TOOL], "betas": BETAS}
    async with anthropic_client(translating) as client, translating.provider(CHAT.answers("Done.")) as provider:
        counted = await client.beta.messages.count_tokens(**arguments, context_management=management)
        done = await client.beta.messages.create(**arguments, context_management=management, max_tokens=50)
        async with client.beta.messages.stream(**arguments, context_management=management, max_tokens=50) as stream:
            streamed = await stream.get_final_message()
    assert counted.context_management is not None
    assert counted.input_tokens < counted.context_management.original_input_tokens
    for each in (done, streamed):
        assert each.content[-1].text == "Done."  # type: ignore[union-attr]
        assert each.context_management is not None
        [applied] = each.context_management.applied_edits
        assert (applied.type, applied.cleared_tool_uses) == ("clear_tool_uses_20250919", 6)  # type: ignore[union-attr]
        assert applied.cleared_input_tokens > 1_000
    assert ["line 0.149" in request.body.decode() for request in provider.requests] == [False, False]
    assert ["line 7.149" in request.body.decode() for request in provider.requests] == [True, True]


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


async def test_the_tokens_of_a_models_summary_are_reported_apart(start: Start) -> None:
    """By the client's own instructions, and in both SDKs' figures."""
    asked: list[str] = []

    async def script(request: Recorded, answer: Answer) -> None:
        if "The lines of your record" not in request.body.decode():
            return await CHAT.answers("Done.")(request, answer)
        asked.append(request.body.decode())
        # A model that is not known yet gets the first messages, and then the others.
        given = [at for at in range(8) if f"line {at}.7 of a file" in asked[-1]]
        lines = [
            {"text": f"It says: line {at}.{number} of a file", "sources": [2 * at + 2]}
            for at in (given[0], given[-1])
            for number in (7, 8, 9)
        ]
        said = {"overview": lines[:1], "outcomes": {"completed": lines[1:3], "discoveries": lines[3:]}}
        await replies_json(CHAT.json(json.dumps(said), given=700, made=70))(request, answer)

    writing = start(CONFIG.replace("summaries: {writer: extractive}", "summaries: {writer: request}"))
    edit: Any = {**COMPACT, "instructions": "Name each line of a file."}
    async with (
        anthropic_client(writing) as claude,
        openai_client(writing) as gpt,
        writing.provider(script),
    ):
        done = await claude.beta.messages.create(
            model="plain", messages=history("teal"), max_tokens=50, context_management={"edits": [edit]}, betas=BETAS
        )
        compacted = await gpt.responses.compact(model="plain", input=items("teal"))
    block: Any = done.content[0]
    assert "It says: line 0.7 of a file" in block.content
    assert done.usage.iterations is not None
    assert [(each.type, each.input_tokens, each.output_tokens) for each in done.usage.iterations] == [
        ("compaction", 700, 70),
        ("message", 11, 3),
    ]
    calls = len(asked) - 1
    assert calls >= 1
    assert (compacted.usage.input_tokens, compacted.usage.output_tokens) == (700 * calls, 70 * calls)
    assert ["Name each line of a file." in each for each in asked] == [True] + [False] * calls


async def test_anthropics_sdk_pauses_behind_a_compaction(translating: Proxy) -> None:
    management: Any = {"edits": [{**COMPACT, "pause_after_compaction": True}]}
    async with anthropic_client(translating) as client, translating.provider(CHAT.answers("Done.")) as provider:
        paused = await client.beta.messages.create(
            model="plain", messages=history("black"), max_tokens=50, context_management=management, betas=BETAS
        )
    assert (paused.stop_reason, [each.type for each in paused.content]) == ("compaction", ["compaction"])
    assert provider.requests == []


async def test_native_places_get_what_is_asked_unchanged(translating: Proxy) -> None:
    """The default upstreams and a configured OpenAI model: byte for byte, but for a configured name."""
    compacted = {"id": "resp_1", "object": "response.compaction", "created_at": 1, "output": [], "usage": None}

    async def script(request: Recorded, answer: Answer) -> None:
        protocol = MESSAGES if "messages" in request.target else RESPONSES
        whole = compacted if request.target.endswith("/compact") else protocol.json("Done.")
        await replies_json(whole)(request, answer)

    management: Any = {"edits": [CLEAR, COMPACT]}
    async with (
        openai_client(translating) as gpt,
        anthropic_client(translating) as claude,
        translating.provider(script) as provider,
    ):
        raw = await gpt.responses.with_raw_response.compact(model="gpt-5.2", input=items("grey"))
        assert raw.http_response.json() == compacted
        await gpt.responses.compact(model="gpt", input=items("grey"))
        entry: Any = [{"type": "compaction", "compact_threshold": 3_000}]
        done = await gpt.responses.create(model="gpt-5.2", input=items("grey"), context_management=entry)
        said = await claude.beta.messages.create(
            model="claude-haiku-4-5",
            messages=history("grey"),
            max_tokens=50,
            context_management=management,
            betas=BETAS,
        )
    targets = [request.target for request in provider.requests]
    assert targets == ["/v1/responses/compact"] * 2 + ["/v1/responses", "/v1/messages"]
    assert [request.json().get("input") for request in provider.requests[:3]] == [items("grey")] * 3
    assert provider.requests[1].json()["model"] == "gpt-5.2"
    assert provider.requests[2].json()["context_management"] == entry
    assert provider.requests[3].json()["context_management"] == management
    assert provider.requests[3].json()["messages"] == history("grey")
    assert [each.type for each in done.output] == ["message"]
    assert [each.type for each in said.content] == ["text"]
