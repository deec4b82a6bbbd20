"""Translated streams that do not go as they should, in every protocol: none ends as if it had gone well."""

from __future__ import annotations

import asyncio
import re

import pytest
from msgspec.structs import replace

from tests.features.translation.translator_setup import PROTOCOLS, TranslatorSetup, request
from tests.loopback import full_queue

WAYS = [
    (protocol_name, provider)
    for provider in ("anthropic", "openai")
    for protocol_name in ("chat", "messages", "responses")
]
WAYS.remove(("responses", "openai"))
"""LiteLLM hands Responses for OpenAI on as they are."""
NORMAL = {"chat": b"[DONE]", "messages": b"message_stop", "responses": b"response.completed"}
REASONS = (b'"finish_reason":"', b'"stop_reason":"', b'"stop_reason": "')
SOON = 20


@pytest.fixture(params=WAYS, ids=lambda way: "-to-".join(way))
def protocol(request: pytest.FixtureRequest, translator: TranslatorSetup) -> str:
    """The client's protocol; the setup's route leads to a provider of one protocol."""
    spoken, provider = request.param
    translator.route = translator.to_anthropic() if provider == "anthropic" else translator.to_openai()
    assert isinstance(spoken, str)
    return spoken


@pytest.mark.parametrize("cue", ["fault", "cut", "reset", "short"])
async def test_a_stream_that_breaks_off_ends_in_one_error_of_the_protocol(
    translator: TranslatorSetup, protocol: str, cue: str
) -> None:
    status, body = await translator.ask(protocol, request(protocol, f"cue:{cue}", stream=True))
    assert (status, len(re.findall(rb'"error": ?{', body))) == (200, 1)
    assert b"Hel" in body
    assert NORMAL[protocol] not in body
    assert not any(reason in body for reason in REASONS)
    assert b"litellm" not in body.lower()


async def test_a_whole_stream_ends_as_its_protocol_says_and_names_the_clients_model(
    translator: TranslatorSetup, protocol: str
) -> None:
    status, body = await translator.ask(protocol, request(protocol, stream=True))
    assert status == 200
    assert NORMAL[protocol] in body
    assert b"my-model" in body
    assert b"error" not in body.replace(b'"error":null', b"")


async def test_a_stream_that_falls_silent_ends_in_a_time_out_of_the_protocol(
    translator: TranslatorSetup, protocol: str
) -> None:
    translator.route = replace(translator.route, options=(("timeout", 0.3),))
    status, body = await translator.ask(protocol, request(protocol, "cue:hang", stream=True))
    assert (status, len(re.findall(rb'"error": ?{', body))) == (200, 1)
    assert b"Hel" in body
    assert b"did not answer in time" in body
    assert NORMAL[protocol] not in body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_that_takes_no_connection_is_given_up_soon(
    translator: TranslatorSetup, protocol: str, stream: bool
) -> None:
    with full_queue() as port:
        translator.route = replace(
            translator.route,
            base_url=f"http://127.0.0.1:{port}/v1",
            options=(("timeout", 60.0), ("connect_timeout", 0.2)),
        )
        status, body = await asyncio.wait_for(translator.ask(protocol, request(protocol, stream=stream)), SOON)
    assert (status, b"could not be reached" in body) == (502, True)


@pytest.mark.parametrize(("cue", "stream"), [("gone", False), ("gone", True), ("shut", False), ("half", False)])
async def test_a_provider_that_goes_away_before_it_answered_is_asked_once(
    translator: TranslatorSetup, protocol: str, cue: str, stream: bool
) -> None:
    status, body = await translator.ask(protocol, request(protocol, f"cue:{cue}", stream=stream))
    assert (status, len(translator.provider.seen)) == (502, 1)
    assert b"Connection lost" in body


@pytest.mark.parametrize("stream", [False, True])
async def test_the_providers_word_on_limits_and_its_request_id_come_back(
    translator: TranslatorSetup, protocol: str, stream: bool
) -> None:
    reply = await translator.reply(protocol, request(protocol, stream=stream))
    headers = dict(reply.headers)
    await reply.close()
    assert headers[b"request-id"] == b"req_1"
    assert b"9" in (headers.get(b"anthropic-ratelimit-tokens-limit"), headers.get(b"x-ratelimit-limit-tokens"))
    assert not [name for name in headers if name in (b"date", b"server", b"transfer-encoding", b"set-cookie")]


@pytest.mark.parametrize("spoken", ["chat", "messages", "responses"])
async def test_an_event_of_any_size_is_one_event(translator: TranslatorSetup, spoken: str) -> None:
    _, body = await translator.ask(spoken, request(spoken, "cue:large", stream=True))
    events = [piece for piece in body.split(b"\n\n") if b"xxx" in piece]
    assert all(event.startswith((b"event: ", b"data: ")) for event in events)
    assert b"x" * 200_000 in events[0]
    assert NORMAL[spoken] in body


async def test_a_client_that_goes_away_closes_the_providers_call(translator: TranslatorSetup, protocol: str) -> None:
    reply = await translator.reply(protocol, request(protocol, "cue:hang", stream=True))
    await anext(reply.chunks())
    await reply.close()
    await asyncio.wait_for(translator.provider.gone.wait(), SOON)


async def test_a_slow_client_that_goes_away_closes_the_providers_call(
    translator: TranslatorSetup, protocol: str
) -> None:
    """Nobody reads, so that nothing of the call is waiting for the provider when it is ended."""
    reply = await translator.reply(protocol, request(protocol, "cue:flood", stream=True))
    pieces = reply.chunks()
    for _ in range(5):
        await anext(pieces)
    await asyncio.sleep(0.3)
    await reply.close()
    await asyncio.wait_for(translator.provider.gone.wait(), SOON)


def test_every_protocol_is_tried() -> None:
    assert {spoken for spoken, _ in WAYS} == set(PROTOCOLS)
