"""Requests whose words a provider of another protocol does not have: what they ask still arrives, and nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.features.translation.channel import TranslationRequest
from accordion.features.translation.litellm_compat import load_litellm
from accordion.features.translation.requests import TranslationTarget, fit, prepare_call
from accordion.model.ports import Route
from tests.features.translation.translator_setup import (
    ARGUMENTS,
    CHAT_TOOL,
    SCHEMA,
    TranslatorSetup,
    chat,
    request,
    say,
)

TOOL: dict[str, Any] = {"name": "get_weather", "input_schema": SCHEMA}
TEXT = {"type": "text", "text": "see"}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "the document"}


async def translate(translator: TranslatorSetup, protocol_name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the request that the provider got."""
    status, answer = await translator.ask(protocol_name, body)
    assert status == 200, answer
    return translator.provider.last


def build_request(*blocks: Any) -> dict[str, Any]:
    return request("messages") | {"messages": [{"role": "user", "content": [*blocks]}]}


# Messages for an OpenAI-compatible provider


@pytest.mark.parametrize("model", ["openai/gpt-4o", "openai/gpt-5", "openai/of-our-own"])
async def test_fields_of_messages_that_ask_nothing_of_the_answer_are_left_out(
    translator: TranslatorSetup, model: str
) -> None:
    translator.route = replace(translator.to_openai(), model=model)
    plain = await translate(translator, "messages", request("messages"))
    assert await translate(translator, "messages", request("messages", cache_control={"type": "ephemeral"})) == plain


@pytest.mark.parametrize(("model", "effort"), [("gpt-4o", None), ("gpt-5", None), ("gpt-5.1", "none")])
async def test_a_model_is_told_not_to_think_only_where_it_can_be_told(
    translator: TranslatorSetup, model: str, effort: str | None
) -> None:
    translator.route = replace(translator.to_openai(), model=f"openai/{model}")
    body = await translate(translator, "messages", request("messages", thinking={"type": "disabled"}))
    assert body.get("reasoning_effort") == effort


@pytest.mark.parametrize(
    "model", ["openai/responses/gpt-5", "openai/responses/gpt-4o", "azure/gpt5_series/dep", "azure/o_series/dep"]
)
def test_a_model_is_known_however_litellm_is_told_to_ask_it(model: str) -> None:
    asked = request("messages", thinking={"type": "disabled"})
    unsigned = {"type": "thinking", "thinking": "hm"}
    asked["messages"] += [{"role": "assistant", "content": [unsigned, TEXT]}, *say()]
    route = Route("a", "litellm", base_url="http://127.0.0.1:9", model=model)
    arguments = prepare_call(
        load_litellm(), TranslationRequest("messages", json.dumps(asked).encode(), route, "")
    ).arguments
    assert "thinking" not in arguments
    assert arguments["messages"][1]["content"] == [TEXT]


@pytest.mark.parametrize("model", ["openai/gpt-4o", "openai/of-our-own"])
async def test_claudes_thinking_is_not_sent_to_another_model(translator: TranslatorSetup, model: str) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "EqQBCkYI"}
    hidden = {"type": "redacted_thinking", "data": "EmwKAhgB"}
    translator.route = replace(translator.to_openai(), model=model)
    history = [*say(), {"role": "assistant", "content": [thought, hidden, {"type": "text", "text": "Yes."}]}, *say()]
    body = await translate(translator, "messages", request("messages") | {"messages": history})
    assert body["messages"][1] == {"role": "assistant", "content": "Yes."}


async def test_what_an_open_model_thought_is_sent_back_to_it_and_not_to_openais(translator: TranslatorSetup) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    translator.route = replace(translator.to_openai(), model="openai/of-our-own")
    history = [*say(), {"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]}, *say()]
    body = await translate(translator, "messages", request("messages") | {"messages": history})
    assert body["messages"][1]["reasoning_content"] == "hm"
    translator.route = translator.to_openai()
    body = await translate(translator, "messages", request("messages") | {"messages": history})
    assert body["messages"][1] == {"role": "assistant", "content": "Yes."}


async def test_a_user_id_over_openais_limit_is_hashed_and_keeps_its_session(
    translator: TranslatorSetup,
) -> None:
    user = json.dumps({"device_id": "d" * 64, "account_uuid": "a" * 36, "session_id": "s" * 36})
    for drop in (False, True):
        translator.route = translator.to_openai(drop_params=drop)
        body = await translate(translator, "messages", request("messages", metadata={"user_id": user}))
        assert body["user"] == hashlib.sha256(user.encode()).hexdigest()
        assert body["prompt_cache_key"] == "s" * 36
    assert (await translate(translator, "messages", request("messages", metadata={"user_id": "u1"})))["user"] == "u1"


async def test_a_tools_other_fields_do_not_stand_in_its_schema(translator: TranslatorSetup) -> None:
    translator.route = translator.to_openai()
    tool = TOOL | {"defer_loading": False, "input_examples": [ARGUMENTS], "allowed_callers": ["direct"]}
    body = await translate(translator, "messages", request("messages", tools=[tool]))
    assert body["tools"][0]["function"]["parameters"] == SCHEMA


async def test_calls_one_at_a_time_are_asked_for_in_openai_s_words(translator: TranslatorSetup) -> None:
    translator.route = translator.to_openai()
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    body = await translate(translator, "messages", request("messages", tools=[TOOL], tool_choice=choice))
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("auto", False)


@pytest.mark.parametrize("model", ["openai/o3", "cerebras/llama", "databricks/of-our-own"])
async def test_a_model_that_has_no_word_for_that_is_asked_without_it(translator: TranslatorSetup, model: str) -> None:
    translator.route = replace(translator.to_openai(), model=model)
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    body = await translate(translator, "messages", request("messages", tools=[TOOL], tool_choice=choice))
    assert body["tool_choice"] == "auto"
    assert "parallel_tool_calls" not in body


async def test_openai_s_own_word_for_that_is_none_of_messages(translator: TranslatorSetup) -> None:
    translator.route = replace(translator.to_openai(), model="gemini/gemini-2.5-pro")
    status, answer = await translator.ask("messages", request("messages", parallel_tool_calls=False))
    assert (status, b"`parallel_tool_calls` cannot be translated" in answer) == (400, True)


@pytest.mark.parametrize("model", ["openai/of-our-own", "openai/claude-sonnet-4-5", "azure/of-our-own"])
async def test_a_pdf_goes_to_a_gateway_that_is_configured_as_openai(translator: TranslatorSetup, model: str) -> None:
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}}
    translator.route = replace(translator.to_openai(), model=model)
    body = await translate(translator, "messages", build_request(pdf, TEXT))
    assert "JVBERi0xLjQK" in json.dumps(body["messages"][0])


@pytest.mark.parametrize(
    ("block", "texts"),
    [
        ({"type": "document", "source": PLAIN}, ["the document"]),
        ({"type": "document", "title": "T", "context": "C", "source": PLAIN}, ["T", "C", "the document"]),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}]}}, ["a"]),
        ({"type": "document", "source": {"type": "content", "content": "a"}}, ["a"]),
        (
            {"type": "search_result", "source": "https://a.invalid", "title": "T", "content": [TEXT]},
            ["T", "https://a.invalid", "see"],
        ),
    ],
)
async def test_documents_and_search_results_of_text_arrive_as_text(
    translator: TranslatorSetup, block: Any, texts: list[str]
) -> None:
    translator.route = translator.to_openai()
    expected = [{"type": "text", "text": text} for text in texts]
    body = await translate(translator, "messages", build_request(block, TEXT))
    assert body["messages"][0]["content"] == [*expected, TEXT]
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [block, TEXT]}]}
    body = await translate(
        translator, "messages", request("messages", tools=[TOOL]) | {"messages": [*say(), call, result]}
    )
    assert body["messages"][2]["content"] == [*expected, TEXT]


async def test_text_that_was_a_document_keeps_its_place_in_the_cache(translator: TranslatorSetup) -> None:
    translator.route = replace(translator.to_openai(), model="openrouter/anthropic/claude-sonnet-4.5")
    cached = {"cache_control": {"type": "ephemeral"}}
    body = await translate(
        translator, "messages", build_request({"type": "document", "title": "T", "source": PLAIN} | cached, TEXT)
    )
    texts = [{"type": "text", "text": "T"}, {"type": "text", "text": "the document"} | cached, TEXT]
    assert body["messages"][0]["content"] == texts


async def test_a_tool_that_was_found_is_named_to_a_model_that_has_all_tools(translator: TranslatorSetup) -> None:
    translator.route = translator.to_openai()
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}]}
    found = [{"type": "tool_reference", "tool_name": "send_mail"}]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": found}]}
    body = await translate(
        translator, "messages", request("messages", tools=[TOOL]) | {"messages": [*say(), call, result]}
    )
    assert "send_mail" in json.dumps(body["messages"][2])


async def test_messages_for_a_provider_that_speaks_messages_are_not_changed(translator: TranslatorSetup) -> None:
    block = {"type": "document", "title": "T", "source": PLAIN}
    thought = {"type": "thinking", "thinking": "hm", "signature": "EqQBCkYI"}
    asked = build_request(block) | {"cache_control": {"type": "ephemeral"}, "thinking": {"type": "disabled"}}
    asked["messages"] += [{"role": "assistant", "content": [thought, TEXT]}, *say()]
    body = await translate(translator, "messages", asked)
    assert (body["messages"], body["thinking"]) == (asked["messages"], {"type": "disabled"})


# Chat Completions and Responses for Claude


@pytest.mark.parametrize("written", ['{"city": "Pa', "[1]", "7", "no JSON"])
async def test_arguments_that_are_no_object_reach_claude_in_one(translator: TranslatorSetup, written: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": written}}
    history = [
        *say(),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "?"},
    ]
    body = await translate(translator, "chat", chat(tools=[CHAT_TOOL]) | {"messages": history})
    assert body["messages"][1]["content"][0]["input"] == {"INVALID_JSON": written}
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": written}
    items = [*say(), call, {"type": "function_call_output", "call_id": "c1", "output": "?"}]
    body = await translate(translator, "responses", request("responses") | {"input": items})
    assert body["messages"][1]["content"][0]["input"] == {"INVALID_JSON": written}


async def test_the_same_holds_for_the_legacy_call(translator: TranslatorSetup) -> None:
    call = {"name": "get_weather", "arguments": '{"city": "Pa'}
    result = {"role": "function", "name": "get_weather", "content": "?"}
    history = [*say(), {"role": "assistant", "content": None, "function_call": call}, result]
    body = await translate(translator, "chat", chat(tools=[CHAT_TOOL]) | {"messages": history})
    assert body["messages"][1]["content"][0]["input"] == {"INVALID_JSON": '{"city": "Pa'}


async def test_calls_whose_input_is_plain_text_reach_claude_with_their_results(translator: TranslatorSetup) -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "done"}
    body = await translate(
        translator, "chat", chat() | {"messages": [*say(), {"role": "assistant", "tool_calls": [call]}, result]}
    )
    block = body["messages"][1]["content"][0]
    assert (block["id"], block["name"], block["input"]) == ("c1", "patch", {"input": "*** Begin"})


@pytest.mark.parametrize(
    "said",
    [
        {"content": [{"type": "refusal", "refusal": "No."}]},
        {"content": None, "refusal": "No."},
        {"content": "", "refusal": "No."},
    ],
)
async def test_a_refusal_reaches_claude_as_text(translator: TranslatorSetup, said: dict[str, Any]) -> None:
    expected = {"role": "assistant", "content": [{"type": "text", "text": "No."}]}
    body = await translate(translator, "chat", chat() | {"messages": [*say(), {"role": "assistant", **said}, *say()]})
    assert body["messages"][1] == expected
    item = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    body = await translate(translator, "responses", request("responses") | {"input": [*say(), item, *say()]})
    assert body["messages"][1] == expected


async def test_arguments_that_are_an_object_or_nothing_reach_claude_as_they_are(translator: TranslatorSetup) -> None:
    for written, read in ((json.dumps(ARGUMENTS), ARGUMENTS), ("", {})):
        call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": written}}
        result = {"role": "tool", "tool_call_id": "c1", "content": "?"}
        history = [*say(), {"role": "assistant", "tool_calls": [call]}, result]
        body = await translate(translator, "chat", chat(tools=[CHAT_TOOL]) | {"messages": history})
        assert body["messages"][1]["content"][0]["input"] == read


CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
ITEMS: list[dict[str, Any]] = [
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
]
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "EqQBCkYI"}


async def test_claude_is_not_asked_to_think_about_calls_that_come_without_their_thinking(
    translator: TranslatorSetup,
) -> None:
    asked = chat(tools=[CHAT_TOOL], reasoning_effort="low")
    assert "thinking" in await translate(translator, "chat", asked)
    history = [*say(), {"role": "assistant", "tool_calls": [CALL]}, RESULT]
    assert "thinking" not in await translate(translator, "chat", asked | {"messages": history})
    assert "thinking" not in await translate(translator, "chat", asked | {"messages": [*history, *say("and?")]})
    after = [*history, {"role": "assistant", "content": "Sunny."}, *say("and now?")]
    assert "thinking" in await translate(translator, "chat", asked | {"messages": after})
    translator.route = translator.to_anthropic(reasoning_effort="low")
    assert "thinking" in await translate(translator, "chat", chat())
    assert "thinking" not in await translate(translator, "chat", chat() | {"messages": history})
    thoughtful = [*say(), {"role": "assistant", "tool_calls": [CALL], "thinking_blocks": [THOUGHT]}, RESULT]
    assert "thinking" in await translate(translator, "chat", asked | {"messages": thoughtful})


async def test_a_claude_that_decides_itself_how_much_it_thinks_is_asked_as_before(translator: TranslatorSetup) -> None:
    translator.route = replace(translator.to_anthropic(), model="anthropic/claude-sonnet-4-6")
    history = [*say(), {"role": "assistant", "tool_calls": [CALL]}, RESULT]
    body = await translate(translator, "chat", chat(tools=[CHAT_TOOL], reasoning_effort="low") | {"messages": history})
    assert body["thinking"]["type"] == "adaptive"


async def test_the_same_holds_for_responses_whose_reasoning_did_not_come_back(translator: TranslatorSetup) -> None:
    asked = request("responses", reasoning={"effort": "low"})
    assert "thinking" in await translate(translator, "responses", asked)
    assert "thinking" not in await translate(translator, "responses", asked | {"input": [*say(), *ITEMS]})
    opaque = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAAAAB"}
    assert "thinking" not in await translate(translator, "responses", asked | {"input": [*say(), opaque, *ITEMS]})
    kept = opaque | {"encrypted_content": json.dumps([THOUGHT])}
    assert "thinking" in await translate(translator, "responses", asked | {"input": [*say(), kept, *ITEMS]})


# Whatever the history

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
BLOCKS = st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}) | st.sampled_from(
    [THOUGHT, {"type": "thinking", "thinking": "hm"}, {"type": "document", "title": "T", "source": PLAIN}]
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": TEXTS | st.lists(BLOCKS, max_size=4)}
)


@given(st.lists(TURNS, max_size=6), st.sampled_from(["openai", "gemini"]))
def test_fitting_leaves_the_request_alone_keeps_every_text_and_is_done_once(history: list[Any], provider: str) -> None:
    body = request("messages") | {"messages": history}
    before = json.dumps(body)
    target = TranslationTarget(
        "messages", provider, "m", compatible=provider == "openai", own_protocol=False, drop=False
    )
    fitted = fit(load_litellm(), body, target)
    assert json.dumps(body) == before
    assert fit(load_litellm(), fitted, target) == fitted
    assert texts(fitted["messages"]) == texts(history)


def texts(history: list[Any]) -> list[str]:
    """All that is said in it, thinking aside."""
    said: list[str] = []
    for message in history:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if block["type"] == "text":
                said.append(block["text"])
            elif block["type"] == "document":
                said += [block["title"], block["source"]["data"]]
    return said
