"""The way to providers that speak another protocol than the client: LiteLLM, on a thread of its own.

LiteLLM costs seconds to import and about half a millisecond a chunk, so nothing of it runs on the caller's loop. A
request crosses to a worker thread with a loop of its own; the reply's head and pieces cross back through a bounded
channel (translate_worker.py). What goes in is made in translate_request.py, what comes out in translate_reply.py and
translate_errors.py.

The model that a reply names is the one that the client asked for: LiteLLM names now the provider's, now its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from accordion.core.errors import UpstreamCut
from accordion.core.ports import Headers, Route, UpstreamReply
from accordion.dialects.base import Dialect
from accordion.models.translate_errors import read_problem
from accordion.models.translate_litellm import load_litellm
from accordion.models.translate_reply import document, events, kept_headers
from accordion.models.translate_request import Ask, connect_limit, prepare
from accordion.models.translate_thinking import unnumber_thinking
from accordion.models.translate_wire import Wire, begin
from accordion.models.translate_worker import Channel, End, Head, Worker

_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class LiteLLMTranslator:
    """The `Translator` port. `dialects` maps a dialect's name to it; `load` gives the LiteLLM module, when first used.

    What goes wrong before the answer has begun is a reply too, in the client's dialect: a status and an error body,
    with what the provider's head said of limits. Later it is raised, as with any other provider.
    """

    def __init__(self, dialects: Mapping[str, Dialect], load: Callable[[], Any] = load_litellm) -> None:
        self._dialects = dialects
        self._load = load
        self._worker = Worker("translate")

    async def send(
        self, dialect: str, body: bytes, route: Route, credential: str, request_id: str = ""
    ) -> UpstreamReply:
        """Ask `route.model` what `body` asks; returns when the first piece of the answer, or its error, is there.

        `credential` is the key that the provider is asked with, bare; an error that has no id of the provider's goes by
        `request_id`. Raises UpstreamCut if `close` comes before the head does. Cancelling it cancels the call.
        """
        loop = self._worker.loop()
        channel = Channel(receiver=asyncio.get_running_loop(), sender=loop)
        ask = Ask(dialect, body, route, credential, request_id)
        work = asyncio.run_coroutine_threadsafe(self._serve(ask, channel), loop)
        try:
            head = await channel.receive()
        except asyncio.CancelledError:
            work.cancel()
            raise
        if not isinstance(head, Head):
            raise UpstreamCut("The translation was ended before the provider answered.")
        return _Reply(head, channel, work)

    async def close(self) -> None:
        """End what runs, and the thread."""
        await self._worker.close()

    async def _serve(self, ask: Ask, channel: Channel) -> None:
        wire = Wire(connect_limit(ask.route))
        begin(wire)
        try:
            await self._answer(ask, channel, wire)
        finally:
            channel.end()
            await wire.close()

    async def _answer(self, ask: Ask, channel: Channel, wire: Wire) -> None:
        """Everything below runs on the worker's loop."""
        dialect = self._dialects[ask.dialect]
        begun = False
        try:
            litellm = self._load()
            call = prepare(litellm, ask)
            if call.dialect == "chat":
                unnumber_thinking(call.arguments["messages"])
            result = await getattr(litellm, call.function)(**call.arguments)
            if not call.stream:
                whole = document(call, result)
                await channel.send(Head(200, (_JSON, *kept_headers(wire.headers))))
                await channel.send(whole)
                channel.finish()
                return
            async with aclosing(events(call, result)) as pieces:
                # The head waits for the first piece: some providers refuse only when they are read.
                async for piece in pieces:
                    if not begun:
                        await channel.send(Head(200, (_EVENTS, *kept_headers(wire.headers))))
                        begun = True
                    await channel.send(piece)
        except Exception as error:
            problem = read_problem(error, ask, begun=begun, sent=wire.sent)
            if begun:
                channel.fail(problem.error)
                return
            await channel.send(Head(problem.error.status, (_JSON, *problem.headers)))
            await channel.send(dialect.error(problem.error, problem.request_id))
        channel.finish()


class _Reply:
    """A translated answer whose head is there."""

    def __init__(self, head: Head, channel: Channel, work: Future[None]) -> None:
        self.status: int = head.status
        self.headers: Headers = head.headers
        self.delimited = True
        self._channel = channel
        self._work = work

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body, each event as soon as LiteLLM gives it. Raises what the provider's stream broke off with."""
        while isinstance(item := await self._channel.receive(), bytes):
            yield item
        if isinstance(item, End) and item.error is not None:
            raise item.error

    async def close(self) -> None:
        """Let go: a call that is still running is cancelled, its connection closed."""
        self._work.cancel()
