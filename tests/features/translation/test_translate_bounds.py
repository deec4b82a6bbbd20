"""The bounds of a translation: content that it forwards, refuses or hides, and its time."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from accordion.features.translation.channel import ResponseChannel, ResponseEnd
from accordion.features.translation.litellm_compat import load_litellm
from accordion.features.translation.translator import LiteLLMTranslator
from accordion.model.errors import UpstreamDisconnected, UpstreamError
from accordion.model.ports import Route
from tests.features.translation.translator_setup import KEY, PROTOCOLS, TranslatorSetup, chat, request, say


async def test_fields_that_litellm_would_take_for_its_own_never_steer_it(translator: TranslatorSetup) -> None:
    evil = {"api_base": "http://127.0.0.1:9", "api_key": "x", "mock_response": "no", "custom_llm_provider": "openai"}
    translator.route = translator.to_openai()
    status, _ = await translator.ask("chat", chat(**evil, chat_template_kwargs={"a": 1}))
    assert status == 200
    _, headers, body = translator.provider.seen[0]
    assert headers["authorization"] == f"Bearer {KEY}"
    assert evil.items() <= body.items()
    assert body["chat_template_kwargs"] == {"a": 1}


async def test_a_field_that_cannot_be_translated_is_refused_by_name_or_left_out(translator: TranslatorSetup) -> None:
    for field in ("moderation", "seed"):  # one that LiteLLM does not know, and one that Anthropic has not
        translator.route = translator.to_anthropic()
        status, body = await translator.ask("chat", chat(**{field: 1}))
        assert (status, json.loads(body)["error"]["code"]) == (400, "unsupported_parameter")
        assert field in json.loads(body)["error"]["message"]
        assert "drop_params" in json.loads(body)["error"]["message"]
        translator.route = translator.to_anthropic(drop_params=True)
        status, _ = await translator.ask("chat", chat(**{field: 1}))
        assert (status, field in translator.provider.last) == (200, False)
    assert len(translator.provider.seen) == 2


async def test_a_route_without_a_model_asks_for_the_client_s_and_adds_its_own_headers(
    translator: TranslatorSetup,
) -> None:
    translator.route = Route("r", "litellm", base_url=translator.origin, extra_headers=(("x-team", "blue"),))
    status, body = await translator.ask("chat", chat() | {"model": "anthropic/claude-haiku-4-5"})
    assert (status, json.loads(body)["model"]) == (200, "anthropic/claude-haiku-4-5")
    _, headers, sent = translator.provider.seen[0]
    assert (sent["model"], headers["x-team"]) == ("claude-haiku-4-5", "blue")


@pytest.mark.parametrize("protocol_name", ["chat", "messages", "responses"])
async def test_a_requested_beta_is_sent_beside_those_of_the_translation(
    translator: TranslatorSetup, protocol_name: str
) -> None:
    asked = (("Anthropic-Beta", "context-1m-2025-08-07,interleaved-thinking-2025-05-14"),)
    translator.route = Route(
        "r", "litellm", base_url=translator.origin, model="anthropic/claude-sonnet-4-5", extra_headers=asked
    )
    status, _ = await translator.ask(protocol_name, request(protocol_name))
    _, headers, _ = translator.provider.seen[0]
    assert status == 200
    assert {"context-1m-2025-08-07", "interleaved-thinking-2025-05-14"} <= {*headers["anthropic-beta"].split(",")}


async def test_an_image_is_not_fetched_by_the_proxy(
    translator: TranslatorSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_litellm(), "user_url_validation", False)  # its own guard would refuse a loopback address
    translator.route = Route("g", "litellm", base_url=translator.origin, model="gemini/gemini-2.5-pro")
    image = {"type": "image_url", "image_url": {"url": f"{translator.origin}/image.png"}}
    status, body = await translator.ask("chat", {"model": "m", "messages": [{"role": "user", "content": [image]}]})
    assert (status, translator.provider.asked.is_set()) == (400, False)
    assert "`data:` URL" in json.loads(body)["error"]["message"]


async def test_hints_that_ask_nothing_of_the_answer_do_not_stop_a_translation(translator: TranslatorSetup) -> None:
    hints = {"store": True, "prompt_cache_key": "k", "client_metadata": {"a": "b"}, "metadata": {"user_id": "u"}}
    status, _ = await translator.ask("chat", chat(**hints))
    assert status == 200
    assert translator.provider.last["metadata"] == {"user_id": "u"}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "advisor_20260301", "name": "advisor", "model": "openai/gpt-4o", "api_base": "https://127.0.0.1:9"},
        {"type": "mcp", "server_url": "litellm_proxy/mcp/x"},
        {"type": "file_search", "vector_store_ids": ["v"]},
    ],
)
async def test_tools_that_litellm_would_run_by_asking_others_are_refused(
    translator: TranslatorSetup, tool: dict[str, Any]
) -> None:
    translator.route = translator.to_openai()
    status, _ = await translator.ask("messages", {"model": "m", "max_tokens": 9, "messages": say(), "tools": [tool]})
    assert (status, translator.provider.seen) == (400, [])


async def test_a_caller_without_a_key_is_not_lent_the_operator_s(
    translator: TranslatorSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-operator")
    await translator.ask("chat", chat(), credential="")
    assert "sk-operator" not in json.dumps(translator.provider.seen)
    status, _ = await translator.ask("chat", chat(), credential="os.environ/ANTHROPIC_API_KEY")
    assert (status, len(translator.provider.seen)) == (401, 1)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model": "m"}', b'{"model": "m", "messages": 7}'])
async def test_a_body_that_cannot_be_read_is_refused_as_the_client_s_doing(
    translator: TranslatorSetup, body: bytes
) -> None:
    reply = await translator.translator.send("chat", body, translator.route, KEY)
    answer = json.loads(b"".join([chunk async for chunk in reply.chunks()]))
    assert (reply.status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert translator.provider.seen == []


async def test_a_provider_that_cannot_be_reached_is_a_502_that_names_no_address(translator: TranslatorSetup) -> None:
    translator.route = Route("r", "litellm", base_url="http://127.0.0.1:1", model="anthropic/claude-sonnet-4-5")
    status, body = await translator.ask("chat", chat())
    assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_unreachable")
    assert b"127.0.0.1" not in body


async def test_a_time_out_is_a_504(translator: TranslatorSetup) -> None:
    translator.route = translator.to_anthropic(timeout=0.2)
    status, body = await translator.ask("chat", chat("cue:hang"))
    assert (status, json.loads(body)["error"]["code"]) == (504, "upstream_timeout")


async def test_without_litellm_the_client_is_told_so(translator: TranslatorSetup) -> None:
    def missing() -> Any:
        raise UpstreamError("LiteLLM could not be imported.", code="translation_unavailable")

    without = LiteLLMTranslator(PROTOCOLS, missing)
    reply = await without.send("messages", b"{}", translator.route, KEY)
    assert reply.status == 502
    assert b"LiteLLM could not be imported." in b"".join([chunk async for chunk in reply.chunks()])
    await without.close()


async def test_nothing_of_a_conversation_is_logged_or_printed(
    translator: TranslatorSetup, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    await translator.ask("chat", chat("a-private-word"))
    await translator.ask("chat", chat("a-private-word cue:long", stream=True))
    printed = capfd.readouterr()
    assert "a-private-word" not in caplog.text + printed.out + printed.err
    assert KEY not in caplog.text + printed.out + printed.err


async def test_a_channel_holds_its_sender_up_until_there_is_room() -> None:
    loop = asyncio.get_running_loop()
    channel = ResponseChannel(receiver=loop, sender=loop, capacity=2)
    sent: list[bytes] = []

    async def send() -> None:
        for piece in (b"1", b"2", b"3", b"4"):
            await channel.send(piece)
            sent.append(piece)
        channel.finish()
        channel.end()

    sending = asyncio.create_task(send())
    for _ in range(9):
        await asyncio.sleep(0)
    assert sent == [b"1", b"2"]
    assert [await channel.receive() for _ in range(6)] == [
        *(b"1", b"2", b"3", b"4"),
        ResponseEnd(None),
        ResponseEnd(None),
    ]
    await sending


async def test_a_channel_that_was_not_finished_ends_as_broken_off() -> None:
    loop = asyncio.get_running_loop()
    channel = ResponseChannel(receiver=loop, sender=loop)
    channel.end()
    end = await channel.receive()
    assert isinstance(end, ResponseEnd)
    assert isinstance(end.error, UpstreamDisconnected)


_FRESH = """
import asyncio, gc, json, sys
from accordion.model.ports import Route
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.features.translation.translator import LiteLLMTranslator

async def main():
    assert "litellm" not in sys.modules
    translator = LiteLLMTranslator({"chat": OpenAIChat()})
    ticks = 0
    route = Route("r", "litellm", base_url="http://127.0.0.1:1", model="anthropic/claude-sonnet-4-5")
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    sending = asyncio.create_task(translator.send("chat", body, route, "k"))
    while not sending.done():
        await asyncio.sleep(0.001)
        ticks += 1
    assert "litellm" in sys.modules
    assert (await sending).status == 502
    assert gc.isenabled()
    await translator.close()
    print(ticks)

asyncio.run(main())
"""


def test_litellm_is_imported_at_the_first_use_and_the_loop_goes_on_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", _FRESH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50  # a loop that the import had blocked would have gone round once or twice
