"""Thoughts and calls in translated answers: they add up, and go back as they came."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.features.translation.thinking_provider import (
    Block,
    answer_with,
    call,
    chunks,
    leading,
    redacted,
    text,
    thinker,
    thinking,
    thoughts,
    whole,
)
from tests.features.translation.translator_setup import TranslatorSetup, request, say
from tests.tiers import examples

CHAT_TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TOOL: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
EFFORT: Any = {"effort": "low"}
WORDS = st.lists(st.sampled_from(["so ", "then ", "42 ", "a parser "]), min_size=1, max_size=3)


def blocks() -> st.SearchStrategy[list[Block]]:
    """The blocks that Claude may return in one answer."""
    numbers = st.integers(1, 10**6)
    one = st.one_of(
        st.builds(lambda pieces, n: thinking(*pieces, signature=f"sig-{n}"), st.one_of(WORDS, st.just([])), numbers),
        numbers.map(lambda n: redacted(f"sealed-{n}")),
        WORDS.map(lambda pieces: text(*pieces)),
        numbers.map(call),
    )
    return st.lists(one, max_size=6, unique_by=lambda block: json.dumps(block) if "id" in block else object())


async def response_events(translator: TranslatorSetup) -> list[dict[str, Any]]:
    _, body = await translator.ask("responses", request("responses", stream=True, tools=[TOOL], reasoning=EFFORT))
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]


def numbered(pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as they were done; fails where one is not in its place, or an event speaks of none that is there."""
    added: list[str] = []
    done: dict[int, dict[str, Any]] = {}
    for event in pieces:
        if event["type"] == "response.output_item.added":
            added.append(event["item"]["id"])
        if "output_index" in event:
            assert added[event["output_index"]] == (event.get("item_id") or event["item"]["id"])
        if event["type"] == "response.output_item.done":
            done[event["output_index"]] = event["item"]
    assert len(set(added)) == len(added)
    assert [*done] == [*range(len(added))]
    return [*done.values()]


def signed(items: list[dict[str, Any]]) -> list[Block]:
    return [block for item in items for block in json.loads(item.get("encrypted_content", "[]"))]


@settings(max_examples=examples(60))
@given(blocks())
def test_the_items_of_a_translated_response_equal_those_of_its_last_event(said: list[Block]) -> None:
    async def run() -> None:
        async with answer_with(thinker(*said)) as (translator, _):
            told = await response_events(translator)
        assert [event["sequence_number"] for event in told] == [*range(len(told))]
        items, last = numbered(told), told[-1]
        assert last["type"] == "response.completed"
        output = last["response"]["output"]
        assert [item["id"] for item in output] == [item["id"] for item in items]
        assert [item for item in output if item["type"] == "reasoning"] == [
            i for i in items if i["type"] == "reasoning"
        ]
        assert signed(items) == thoughts(said)
        assert [item["call_id"] for item in items if "call_id" in item] == [b["id"] for b in said if "id" in b]
        heard = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
        spoken = "".join(whole(block)["text"] for block in said if block["type"] == "text")
        assert heard == ([spoken] if spoken else [])
        summary = [part["text"] for item in items if item["type"] == "reasoning" for part in item["summary"]]
        assert "".join(summary) == "".join(block.get("thinking", "") for block in thoughts(said))

    asyncio.run(run())


@settings(max_examples=examples(40))
@given(blocks())
def test_the_thoughts_of_a_translated_chat_add_up_to_what_was_signed_and_go_back_so(said: list[Block]) -> None:
    async def run() -> None:
        async with answer_with(thinker(*said)) as (translator, server):
            create: Any = translator.openai().chat.completions.create
            fields = {"model": "my-model", "reasoning_effort": "low", "tools": [CHAT_TOOL]}
            state: Any = ChatCompletionStreamState()
            async for chunk in await create(messages=say(), stream=True, **fields):
                state.handle_chunk(chunk)
            message = state.get_final_completion().choices[0].message
            added = [
                {name: value for name, value in block.items() if name != "index"}
                for block in getattr(message, "thinking_blocks", None) or ()
            ]
            assert added == thoughts(said)
            results = [{"role": "tool", "tool_call_id": c.id, "content": "R"} for c in message.tool_calls or ()]
            if added and results:
                await create(messages=[*say(), message.to_dict(), *results], **fields)
                assert len(server.requests) == 2

    asyncio.run(run())


@pytest.mark.parametrize("how", ["as they are done", "at the end", "whole"])
async def test_a_responses_agent_that_thinks_goes_on_with_the_items_it_was_given(how: str) -> None:
    async with answer_with(thinker(thinking("I ", "look."), redacted(), call())) as (translator, server):
        create: Any = translator.openai().responses.create
        fields = {"model": "my-model", "tools": [TOOL], "reasoning": EFFORT, "store": False}
        if how == "whole":
            items = [item.to_dict() for item in (await create(input="hi", **fields)).output]
        else:
            told = await response_events(translator)
            items = numbered(told) if how == "as they are done" else told[-1]["response"]["output"]
        result = {"type": "function_call_output", "call_id": "toolu_1", "output": "R"}
        await create(input=[*say(), *items, result], **fields)
    assert [item["type"] for item in items] == ["reasoning", "function_call"]
    assert items[0]["summary"] == [{"type": "summary_text", "text": "I look."}]
    assert not {"role", "content"} & items[0].keys()
    sent = server.requests[-1].json()["messages"][1]["content"]
    assert sent == [whole(thinking("I look.")), redacted(), call()]


async def test_a_translated_response_is_streamed_by_the_vendors_own_helper() -> None:
    for said in ([call()], [thinking("Hm."), call(), call(2)], [text("Yes."), call()], []):
        async with (
            answer_with(thinker(*said)) as (translator, _),
            translator.openai().responses.stream(model="my-model", input="hi", tools=[TOOL]) as stream,
        ):
            response = await stream.get_final_response()
        kinds = {"thinking": "reasoning", "text": "message", "tool_use": "function_call"}
        assert [item.type for item in response.output] == [kinds[block["type"]] for block in said]


async def test_a_thought_behind_an_empty_first_chunk_is_an_item_before_the_message() -> None:
    script = chunks({"content": ""}, {"reasoning_content": "I "}, {"reasoning_content": "look."}, {"content": "Yes."})
    async with answer_with(script) as (translator, server):
        translator.route = leading(server.url, "deepseek/deepseek-chat")
        told = await response_events(translator)
    assert [item["type"] for item in numbered(told)] == ["reasoning", "message"]
    assert [item["type"] for item in told[-1]["response"]["output"]] == ["reasoning", "message"]
    assert numbered(told)[0]["summary"] == [{"type": "summary_text", "text": "I look."}]
