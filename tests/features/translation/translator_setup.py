"""A provider that speaks two protocols, and the translator between it and the vendors' own clients."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import httpx2
import openai
from aiohttp import web

from accordion.features.translation.translator import LiteLLMTranslator
from accordion.model.errors import AccordionError
from accordion.model.ports import Route, UpstreamResponse
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.openai_responses.protocol import OpenAIResponses

PROTOCOLS = {"chat": OpenAIChat(), "responses": OpenAIResponses(), "messages": AnthropicMessages()}
KEY = "callers-own-0123456789"
ARGUMENTS = {"city": "Paris"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
LIMITS = {
    "request-id": "req_1",
    "anthropic-ratelimit-tokens-limit": "9",
    "x-ratelimit-limit-tokens": "9",
    "set-cookie": "a=b",
}
REFUSALS: dict[str, tuple[int, str, str, dict[str, str]]] = {
    "limit": (429, "rate_limit_error", "slow down", {"retry-after": "7", "request-id": "req_9"}),
    "long": (400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum", {}),
    "denied": (401, "authentication_error", f"invalid x-api-key {KEY}", {}),
    "heavy": (413, "request_too_large", "Request exceeds the maximum size", {}),
    "busy": (529, "overloaded_error", "Overloaded", {}),
}


class Provider:
    """A provider that speaks Anthropic's Messages and OpenAI's Chat Completions. A word in the prompt is its cue."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.asked, self.gone = asyncio.Event(), asyncio.Event()

    @property
    def last(self) -> dict[str, Any]:
        return self.seen[-1][2]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.set()
        body = await request.json()
        self.seen.append((request.path, {k.lower(): v for k, v in request.headers.items()}, body))
        cue = json.dumps(body["messages"][-1])
        speak = self._messages if request.path.endswith("/messages") else self._chat
        try:
            if "cue:elsewhere" in cue:
                return web.Response(status=307, headers={"location": "/elsewhere"})
            if "cue:gone" in cue:
                _reset(request)
            if "cue:half" in cue:
                response = web.StreamResponse(headers={"content-type": "application/json"})
                await response.prepare(request)
                await response.write(b'{"id":')
                _reset(request)
            if "cue:shut" in cue and request.transport is not None:
                request.transport.close()
            if "hang" in cue and not body.get("stream"):
                await asyncio.sleep(60)
            return await speak(request, body, cue)
        except asyncio.CancelledError:
            self.gone.set()
            raise

    async def _messages(self, request: web.Request, body: dict[str, Any], cue: str) -> web.StreamResponse:
        for word, (status, kind, text, headers) in REFUSALS.items():
            if f"cue:{word}" in cue:
                error = {"type": "error", "error": {"type": kind, "message": text}}
                return web.json_response(error, status=status, headers=headers)
        content: list[dict[str, Any]] = [{"type": "text", "text": "Hello"}]
        if "tools" in body:
            content.append({"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": ARGUMENTS})
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-of-the-day"}
        usage = {"input_tokens": 11, "output_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0}
        stop = {"stop_reason": "tool_use" if "tools" in body else "end_turn", "stop_sequence": None}
        if not body.get("stream"):
            reply = message | stop | {"content": content, "usage": usage}
            return web.json_response(reply, headers=LIMITS)
        events = [{"type": "message_start", "message": message | {"content": [], "stop_reason": None, "usage": usage}}]
        for index, block in enumerate(content):
            events += _block(index, block)
        events += [{"type": "message_delta", "delta": stop, "usage": {"output_tokens": 5}}, {"type": "message_stop"}]
        if "cue:large" in cue:
            events[3]["delta"]["text"] = "x" * 200_000
        if "cue:fault" in cue:
            events[3:] = [{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}]
        return await self._stream(request, [(event["type"], json.dumps(event)) for event in events], cue)

    async def _chat(self, request: web.Request, body: dict[str, Any], cue: str) -> web.StreamResponse:
        if "cue:long" in cue:
            text = "This model's maximum context length is 10 tokens. However, your messages resulted in 99 tokens."
            error = {"message": text, "type": "invalid_request_error", "code": "context_length_exceeded"}
            return web.json_response({"error": error}, status=400)
        base = {"id": "chatcmpl-1", "created": 1, "model": "gpt-of-the-day"}
        call = {"id": "call_1", "type": "function"}
        function = {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)}
        calls = [call | {"function": function}] if "tools" in body else []
        stop = "tool_calls" if calls else "stop"
        usage = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
        if not body.get("stream"):
            said = {"role": "assistant", "content": "Hello"} | ({"tool_calls": calls} if calls else {})
            choice = {"index": 0, "message": said, "finish_reason": stop}
            whole = base | {"object": "chat.completion", "choices": [choice], "usage": usage}
            return web.json_response(whole, headers=LIMITS)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "Hel"}, {"content": "lo"}]
        if calls:
            deltas.append({"tool_calls": [calls[0] | {"index": 0}]})
        choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
        choices.append([{"index": 0, "delta": {}, "finish_reason": stop}])
        chunks = [base | {"object": "chat.completion.chunk", "choices": choice} for choice in choices]
        chunks.append(base | {"object": "chat.completion.chunk", "choices": [], "usage": usage})
        if "cue:fault" in cue:
            chunks[2:] = [{"error": {"message": "Overloaded", "type": "server_error", "code": 503}}]
        return await self._stream(request, [*(("", json.dumps(chunk)) for chunk in chunks), ("", "[DONE]")], cue)

    async def _stream(self, request: web.Request, events: list[tuple[str, str]], cue: str) -> web.StreamResponse:
        response = web.StreamResponse(headers=LIMITS | {"content-type": "text/event-stream"})
        await response.prepare(request)
        event = b""
        for index, (name, data) in enumerate(events):
            middle = index == (3 if name else 2)
            if middle and "cue:reset" in cue:
                await asyncio.sleep(0.1)  # what was sent before is to arrive
                _reset(request)
            if middle and "cue:cut" in cue and request.transport is not None:
                request.transport.abort()
            if middle and ("cue:cut" in cue or "cue:reset" in cue or "cue:short" in cue):
                break
            if middle and "cue:hang" in cue:
                await asyncio.sleep(60)
            while middle and "cue:flood" in cue:
                await response.write(event)
            event = (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()
            await response.write(event)
        return response


def _reset(request: web.Request) -> None:
    """Breaks the connection as a provider's crash does."""
    if request.transport is not None:
        linger = struct.pack("ii", 1, 0)
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        request.transport.abort()


def _block(index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    if block["type"] == "text":
        empty, pieces = {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in ("Hel", "lo")]
    else:
        written = json.dumps(block["input"])
        empty = block | {"input": {}}
        pieces = [{"type": "input_json_delta", "partial_json": part} for part in (written[:5], written[5:])]
    return [
        {"type": "content_block_start", "index": index, "content_block": empty},
        *({"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces),
        {"type": "content_block_stop", "index": index},
    ]


class TranslatorSetup:
    """The translator between the vendors' clients and the provider."""

    def __init__(self, translator: LiteLLMTranslator, provider: Provider, origin: str) -> None:
        self.translator, self.provider, self.origin = translator, provider, origin
        self.route = self.to_anthropic()

    def to_anthropic(self, **options: object) -> Route:
        base = self.origin
        return Route("a", "litellm", base_url=base, model="anthropic/claude-sonnet-4-5", options=(*options.items(),))

    def to_openai(self, **options: object) -> Route:
        base = f"{self.origin}/v1"
        return Route("o", "litellm", base_url=base, model="openai/gpt-4o", options=(*options.items(),))

    def openai(self) -> openai.AsyncOpenAI:
        client = self._client(httpx)
        return openai.AsyncOpenAI(api_key="k", base_url="http://proxy/v1", http_client=client, max_retries=0)

    def anthropic(self) -> anthropic.AsyncAnthropic:
        client = self._client(httpx2)
        return anthropic.AsyncAnthropic(api_key="k", base_url="http://proxy", http_client=client, max_retries=0)

    async def ask(self, protocol_name: str, body: dict[str, Any], credential: str = KEY) -> tuple[int, bytes]:
        reply = await self.reply(protocol_name, body, credential)
        return reply.status, b"".join([chunk async for chunk in relay(reply, protocol_name)])

    async def reply(self, protocol_name: str, body: dict[str, Any], credential: str = KEY) -> UpstreamResponse:
        return await self.translator.send(protocol_name, json.dumps(body).encode(), self.route, credential)

    def _client(self, library: Any) -> Any:
        """A client of `library` whose requests go straight to the translator."""
        translator = self

        class Body(library.AsyncByteStream):  # type: ignore[misc]
            def __init__(self, reply: UpstreamResponse, protocol_name: str) -> None:
                self.reply, self.protocol_name = reply, protocol_name

            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for chunk in relay(self.reply, self.protocol_name):
                    yield chunk

            async def aclose(self) -> None:
                await self.reply.close()

        class Transport(library.AsyncBaseTransport):  # type: ignore[misc]
            async def handle_async_request(self, request: Any) -> Any:
                name = request.url.path.rpartition("/")[2]
                protocol_name = "chat" if name == "completions" else name
                reply = await translator.translator.send(protocol_name, await request.aread(), translator.route, KEY)
                return library.Response(reply.status, headers=list(reply.headers), stream=Body(reply, protocol_name))

        return library.AsyncClient(transport=Transport())


async def relay(reply: UpstreamResponse, protocol_name: str) -> AsyncIterator[bytes]:
    """The body as a client sees it: one that breaks off ends in an error of the protocol."""
    try:
        async for chunk in reply.chunks():
            yield chunk
    except AccordionError as error:
        yield PROTOCOLS[protocol_name].render_stream_error(error, "req_1")


@asynccontextmanager
async def start_translator() -> AsyncIterator[TranslatorSetup]:
    """A setup whose provider listens."""
    provider = Provider()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", provider.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    translator = LiteLLMTranslator(PROTOCOLS)
    yield TranslatorSetup(translator, provider, f"http://127.0.0.1:{runner.addresses[0][1]}")
    await translator.close()
    await runner.cleanup()


def say(text: str = "hi") -> list[Any]:
    return [{"role": "user", "content": text}]


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "my-model", "messages": say(text), **fields}


def request(protocol_name: str, text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A request in any protocol."""
    if protocol_name == "responses":
        return {"model": "my-model", "input": text, **fields}
    return chat(text, **({"max_tokens": 9} if protocol_name == "messages" else {}), **fields)
