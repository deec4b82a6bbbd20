"""One call of LiteLLM, on its thread: from the request to the last piece of the response."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from accordion.features.translation.channel import ResponseChannel, ResponseHead, TranslationRequest
from accordion.features.translation.errors import read_problem
from accordion.features.translation.litellm_compat import CallConnections, bind_task, load_litellm
from accordion.features.translation.requests import connect_limit, prepare_call
from accordion.features.translation.responses import render_document, stream_events, useful_headers
from accordion.protocols.base import WireProtocol

_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


async def run_call(
    request: TranslationRequest,
    channel: ResponseChannel,
    protocol: WireProtocol,
    load: Callable[[], Any] | None,
) -> None:
    """Calls LiteLLM and sends its response, or its error in the client's protocol, to the channel. Always ends it."""
    connections = CallConnections(connect_limit(request.route))
    bind_task(connections)
    try:
        await _send_response(request, channel, connections, protocol, load)
    finally:
        channel.end()
        await connections.close()


async def _send_response(
    request: TranslationRequest,
    channel: ResponseChannel,
    connections: CallConnections,
    protocol: WireProtocol,
    load: Callable[[], Any] | None,
) -> None:
    has_begun = False
    try:
        litellm = (load or load_litellm)()
        call = prepare_call(litellm, request)
        result = await getattr(litellm, call.function)(**call.arguments)
        if not call.stream:
            document = render_document(call, result)
            await channel.send(ResponseHead(200, (_JSON, *useful_headers(connections.headers))))
            await channel.send(document)
            channel.finish()
            return
        async with aclosing(stream_events(call, result)) as pieces:
            # The head waits for the first piece: some providers refuse a request only when their stream is read.
            async for piece in pieces:
                if not has_begun:
                    await channel.send(ResponseHead(200, (_EVENTS, *useful_headers(connections.headers))))
                    has_begun = True
                await channel.send(piece)
    except Exception as error:
        problem = read_problem(error, request, has_begun=has_begun, is_sent=connections.is_sent)
        if has_begun:
            channel.fail(problem.error)
            return
        await channel.send(ResponseHead(problem.error.status, (_JSON, *problem.headers)))
        await channel.send(protocol.render_error(problem.error, problem.request_id))
    channel.finish()
