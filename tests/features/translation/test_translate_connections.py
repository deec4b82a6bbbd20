"""The way to a translated model's provider: HTTP proxies, certificates, names, redirects."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from accordion.model.ports import Route
from tests.features.translation.translator_setup import TranslatorSetup, request
from tests.outbound_network import certificate

PASSWORD = "PXSECRET"


@pytest.mark.parametrize("protocol_name", ["chat", "messages"])  # with Mistral: LiteLLM itself blots some others out
@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", b"what?\r\n\r\n"])
async def test_an_http_proxy_that_refuses_never_gives_its_password_away(
    translator: TranslatorSetup, monkeypatch: pytest.MonkeyPatch, protocol_name: str, answer: bytes
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://corpuser:{PASSWORD}@127.0.0.1:{port}")
        translator.route = Route("m", "litellm", base_url="https://provider.invalid", model="mistral/x")
        status, body = await translator.ask(protocol_name, request(protocol_name))
    assert status >= 500
    assert PASSWORD not in body.decode()
    if b"407" in answer:
        assert status == 502
        assert "The HTTP proxy on the way refused it" in json.loads(body)["error"]["message"]


async def test_a_proxy_url_that_cannot_be_read_never_gives_its_password_away(
    translator: TranslatorSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://corpuser:{PASSWORD}/x@127.0.0.1:9")
    translator.route = Route("m", "litellm", base_url="https://another.invalid", model="mistral/x")
    status, body = await translator.ask("chat", request("chat"))
    assert status >= 500
    assert PASSWORD not in body.decode()


async def test_why_a_provider_could_not_be_reached_is_said(translator: TranslatorSetup, tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate(tmp_path / "own.pem"))
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context) as server:
        translator.origin = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        translator.route = translator.to_anthropic()
        status, body = await translator.ask("chat", request("chat"))
    assert (status, "SSL_CERT_FILE" in json.loads(body)["error"]["message"]) == (502, True)
    translator.origin = "http://nowhere.invalid"
    translator.route = translator.to_anthropic()
    status, body = await translator.ask("chat", request("chat"))
    assert (status, "could not be resolved" in json.loads(body)["error"]["message"]) == (502, True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol_name", ["chat", "messages"])
async def test_a_redirect_is_not_followed_with_the_key_and_the_conversation(
    translator: TranslatorSetup, protocol_name: str, stream: bool
) -> None:
    translator.route = translator.to_anthropic() if protocol_name == "chat" else translator.to_openai()
    status, body = await translator.ask(protocol_name, request(protocol_name, "cue:elsewhere", stream=stream))
    assert (status, len(translator.provider.seen)) == (502, 1)
    assert "redirect" in json.loads(body)["error"]["message"]
