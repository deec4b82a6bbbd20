"""Errors of a failed translation: their cause, and the words that they quote."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from accordion.accounting.overflow import read_overflow
from accordion.features.translation.channel import TranslationRequest
from accordion.features.translation.errors import read_problem
from accordion.features.translation.litellm_compat import load_litellm
from accordion.model.ports import Route
from tests.features.translation.thinking_provider import answer_with
from tests.features.translation.translator_setup import CHAT_TOOL, SCHEMA, TranslatorSetup, chat, request
from tests.loopback import replies_json

QUOTED = (
    "My log says: prompt is too long: 208310 tokens > 200000 maximum. Overloaded. Invalid API Key. Request timed out."
)
TOOL: dict[str, Any] = {"name": "look", "input_schema": SCHEMA}

WEBP = "data:image/webp;base64,UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA=="


def content(*parts: Any) -> dict[str, Any]:
    return chat() | {"messages": [{"role": "user", "content": [*parts]}]}


# Requests that no provider's request can be made of

MISTAKES: list[tuple[str, dict[str, Any]]] = [
    ("chat", content({"type": "image_url", "image_url": {"url": "no address"}}, {"type": "text", "text": QUOTED})),
    ("chat", chat() | {"messages": [{"role": "robot", "content": QUOTED}]}),
    ("chat", content(QUOTED)),
    ("chat", content({"type": "image_url"})),
    ("chat", chat() | {"messages": [{"role": "user", "content": 5}]}),
    ("chat", chat() | {"messages": [{"role": "system", "content": "Be brief."}]}),
    ("chat", chat(response_format="json")),
    ("responses", request("responses", tools=[{"type": "apply_patch"}])),
    ("messages", request("messages", tools=[TOOL], tool_choice="auto")),
    ("messages", request("messages", metadata={"user_id": 5})),
    ("chat", content({"type": "text", "text": "half an emoji: \ud83d"})),
    ("responses", request("responses", "half an emoji: \ud83d")),
    ("messages", request("messages", "half an emoji: \ud83d")),
    ("chat", chat(temperature=float("nan"))),
    (
        "messages",
        content({"type": "search_result", "content": 5}, {"type": "text", "text": QUOTED}) | {"max_tokens": 9},
    ),
]


@pytest.mark.parametrize(("protocol_name", "body"), MISTAKES)
async def test_what_cannot_be_translated_is_the_clients_doing_and_never_an_overflow(
    translator: TranslatorSetup, protocol_name: str, body: dict[str, Any]
) -> None:
    if protocol_name == "messages":
        translator.route = translator.to_openai()
    status, answer = await translator.ask(protocol_name, body)
    error = json.loads(answer)["error"]
    assert (status, error["type"], error.get("code")) == (400, "invalid_request_error", None)
    assert "cannot be translated for this model's provider" in error["message"]
    assert read_overflow(status, answer.decode()) is None
    assert translator.provider.seen == []


@pytest.mark.parametrize("field", [{"tools": "look"}, {"tools": ["look"]}, {"tool_choice": 5, "tools": [CHAT_TOOL]}])
async def test_tools_that_are_none_are_the_clients_doing(translator: TranslatorSetup, field: dict[str, Any]) -> None:
    assert (await translator.ask("chat", chat(**field)))[0] == 400
    assert translator.provider.seen == []


# Models that are not configured as their providers need it

LACKING = ["azure", "azure_ai", "cloudflare", "snowflake", "predibase", "triton", "huggingface", "no_such"]


@pytest.mark.parametrize("protocol_name", ["chat", "responses", "messages"])
@pytest.mark.parametrize("provider", LACKING)
async def test_what_a_models_entry_lacks_is_not_told_as_the_clients_mistake(
    translator: TranslatorSetup, provider: str, protocol_name: str
) -> None:
    translator.route = Route("our-model", "litellm", model=f"{provider}/x")
    status, answer = await translator.ask(protocol_name, request(protocol_name, QUOTED))
    message = json.loads(answer)["error"]["message"]
    assert status == 502
    assert message.startswith("The model `our-model` could not be asked as `model_list` has it. LiteLLM says: ")
    assert read_overflow(status, answer.decode()) is None


async def test_a_model_option_that_litellm_rejects_is_not_reported_as_the_clients_error(
    translator: TranslatorSetup,
) -> None:
    translator.route = translator.to_anthropic(timeout="soon")
    status, answer = await translator.ask("chat", chat())
    assert (status, b"could not convert string to float: 'soon'" in answer) == (502, True)


async def test_a_package_that_is_missing_is_not_told_as_the_clients_mistake(
    translator: TranslatorSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)
    translator.route = replace(translator.route, model="ollama/llava")
    status, answer = await translator.ask("chat", content({"type": "image_url", "image_url": {"url": WEBP}}))
    assert (status, b"Pillow" in answer) == (502, True)


@pytest.mark.parametrize("provider", ["watsonx", "oci"])
async def test_missing_credentials_of_a_model_keep_their_status(translator: TranslatorSetup, provider: str) -> None:
    translator.route = replace(translator.route, model=f"{provider}/x", base_url="")
    status, answer = await translator.ask("chat", chat())
    assert (status, json.loads(answer)["error"]["code"]) == (401, "invalid_api_key")


async def test_what_a_models_account_lacks_keeps_its_status_wherever_it_is_noticed(translator: TranslatorSetup) -> None:
    translator.route = replace(translator.route, model="watsonx_text/x", options=(("token", "t"),))
    assert (await translator.ask("chat", chat()))[0] == 401


async def test_a_field_that_a_translation_misses_is_named(translator: TranslatorSetup) -> None:
    _, answer = await translator.ask("chat", content({"type": "image_url"}))
    assert "'image_url' is missing" in json.loads(answer)["error"]["message"]


async def test_a_refusal_does_not_return_the_conversation(translator: TranslatorSetup) -> None:
    parts = {"type": "text", "text": "a long story " * 9000}, {"type": "image_url", "image_url": {"url": "x" * 9000}}
    status, answer = await translator.ask("chat", content(*parts))
    assert (status, len(answer) < 1000, b"a long story" in answer) == (400, True, False)


async def test_no_setting_is_advised_that_cannot_be_set(translator: TranslatorSetup) -> None:
    _, answer = await translator.ask("chat", chat() | {"messages": [{"role": "system", "content": "Be brief."}]})
    assert b"litellm" not in answer.lower()
    assert b"Anthropic requires at least one non-system message" in answer


async def test_a_file_by_address_is_refused_in_words_of_ours(translator: TranslatorSetup) -> None:
    status, answer = await translator.ask(
        "chat", content({"type": "file", "file": {"file_data": "https://a.invalid/b.pdf"}})
    )
    message = json.loads(answer)["error"]["message"]
    assert (status, "`data:` URL" in message, "MAX_IMAGE" in message) == (400, True, False)


@pytest.mark.parametrize("protocol_name", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_has_too_many_bytes_keeps_its_status(
    translator: TranslatorSetup, protocol_name: str, stream: bool
) -> None:
    status, answer = await translator.ask(protocol_name, request(protocol_name, "cue:heavy", stream=stream))
    error = json.loads(answer)["error"]
    assert (status, error["code"]) == (413, "request_too_large")
    assert error["message"].startswith("Request exceeds the maximum size")


# Credentials


@pytest.mark.parametrize("key", ["x", "1", "k", "tokens"])
async def test_a_short_key_leaves_the_providers_words_as_they_are(translator: TranslatorSetup, key: str) -> None:
    said = "prompt is too long: 208310 tokens > 200000 maximum"
    _, answer = await translator.ask("chat", chat("cue:long"), credential=key)
    assert json.loads(answer)["error"]["message"].startswith(said)
    translator.route = translator.to_openai()
    _, answer = await translator.ask("messages", request("messages", "cue:long"), credential=key)
    assert json.loads(answer)["error"]["message"] == "prompt is too long: 99 tokens > 10 maximum"
    _, answer = await translator.ask("chat", chat("cue:fault", stream=True), credential=key)
    assert b"***" not in answer
    assert b"Error:" not in answer


async def test_a_key_that_could_be_one_is_taken_out_of_an_error(translator: TranslatorSetup) -> None:
    _, answer = await translator.ask("chat", chat("cue:denied"))
    assert json.loads(answer)["error"]["message"].startswith("invalid x-api-key ***")


async def test_the_operators_secrets_are_taken_out_of_an_error(translator: TranslatorSetup) -> None:
    secret = "operators-own-0123"
    translator.route = replace(
        translator.to_anthropic(), extra_headers=(("x-gateway-token", secret), ("x-team", "blue"))
    )
    _, answer = await translator.ask("chat", chat() | {"messages": [{"role": "robot", "content": f"{secret} blue"}]})
    assert secret not in answer.decode()
    assert "*** blue" in json.loads(answer)["error"]["message"]


async def test_a_secret_that_is_cut_off_is_not_told_by_half(translator: TranslatorSetup) -> None:
    secret = "operators-own-0123"
    translator.route = replace(translator.to_anthropic(), extra_headers=(("x-gateway-token", secret),))
    for before in range(200, 300, 6):
        said = [{"role": "robot", "content": "x" * before + secret}]
        _, answer = await translator.ask("chat", chat() | {"messages": said})
        assert b"operators" not in answer


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no way by http://user:p@ss@host:1/x", "no way by http://***@host:1/x"),
        ("no way by http://user:pass/word@host:1", "no way by http://***@host:1"),
        ("no way by http://:secret@host", "no way by http://***@host"),
        ("ask https://host:8443/v1/models/claude@2025", "ask https://host:8443/v1/models/claude@2025"),
        ("see http://host/a:b and mail x@y", "see http://host/a:b and mail x@y"),
    ],
)
def test_only_users_and_passwords_are_taken_out_of_urls(text: str, told: str) -> None:
    assert problem("BadRequestError", text, is_sent=True) == told


# Texts of any length


def problem(name: str, text: str, *, is_sent: bool) -> str:
    """Returns the error's text for one of LiteLLM's exceptions."""
    ask = TranslationRequest("messages", b"{}", Route("a", "litellm", model="m"), "")
    raised = getattr(load_litellm().exceptions, name)(message=text, model="m", llm_provider="p")
    return read_problem(raised, ask, has_begun=False, is_sent=is_sent).error.message


@pytest.mark.timeout(60)  # one that took as long as the square of its length would take half an hour
@pytest.mark.parametrize("name", ["BadRequestError", "ContextWindowExceededError"])
@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize(
    "piece",
    [
        " ",
        "\n",
        "://a:",
        "http://h/x:1,",
        "If you want to drop ",
        "Either provide one or ",
        "Pass a or ",
        "set `",
        "aError: ",
        "Error",
        "maximum context length is 5 tokens ",
        "input token count (",
        '{"a":',
        "[",
    ],
)
def test_an_error_of_any_text_is_told_in_time_that_goes_by_its_length(piece: str, sent: bool, name: str) -> None:
    assert len(problem(name, (piece * 1_000_000)[:1_000_000], is_sent=sent)) < 70_000


@pytest.mark.timeout(60)  # LiteLLM's own pattern took ten minutes
@pytest.mark.parametrize("piece", ["eyJ-", "://a:", "http://h/x:1,"])
async def test_an_error_that_echoes_the_request_is_told_soon(piece: str) -> None:
    text = (piece * 200_000)[:200_000]
    async with answer_with(replies_json({"error": {"message": f"Invalid value: {text}"}}, 400)) as (translator, server):
        translator.route = Route("a", "litellm", base_url=server.url, model="hosted_vllm/x")
        status, answer = await translator.ask("messages", request("messages"))
    assert (status, json.loads(answer)["error"]["message"].startswith(f"Invalid value: {piece}")) == (400, True)


@pytest.mark.parametrize("protocol_name", ["chat", "responses", "messages"])
@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-pro", "openrouter/x/y"])
async def test_a_long_error_keeps_its_words_and_what_it_is(model: str, protocol_name: str) -> None:
    long = "Too many requests. " + "So it is. " * 500
    told = {"type": "error", "error": {"type": "overloaded_error", "code": 529, "message": long}}
    async with answer_with(replies_json(told, 529)) as (translator, server):
        translator.route = Route("a", "litellm", base_url=server.url, model=model)
        status, answer = await translator.ask(
            protocol_name, request(protocol_name), credential="sk-a-key-of-the-caller"
        )
    message = json.loads(answer)["error"]["message"]
    assert message.startswith("Too many requests. So it is. ")
    assert message.count("So it is.") == 500
    if model.startswith("anthropic"):
        assert status == (529 if protocol_name == "messages" else 503)


def test_an_answer_that_came_another_way_is_told_as_one() -> None:
    """The operator may have LiteLLM use a transport that is not watched."""
    exceptions, asked = load_litellm().exceptions, httpx.Request("POST", "http://host")
    raised = exceptions.RateLimitError(message="Rate limit reached.", model="m", llm_provider="p")
    raised.__cause__ = httpx.HTTPStatusError("429", request=asked, response=httpx.Response(429, request=asked))
    ask = TranslationRequest("chat", b"{}", Route("a", "litellm", model="m"), "")
    error = read_problem(raised, ask, has_begun=False, is_sent=False).error
    assert (error.status, error.code, error.message) == (429, "rate_limit_exceeded", "Rate limit reached.")


def test_an_error_whose_json_is_nested_without_end_is_told_as_text() -> None:
    assert problem("BadRequestError", '{"error":' * 50_000, is_sent=True).startswith('{"error":{"error":')
