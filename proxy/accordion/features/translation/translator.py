"""Translates requests to providers with another protocol than the client's, with LiteLLM on its own thread.

LiteLLM takes seconds to import and about half a millisecond a chunk, so none of it runs on the caller's loop. A request
moves to a thread with its own loop (`LoopThread`); the response's head and pieces come back through a bounded channel
(channel.py). The thread imports calls.py with its first request: requests.py builds LiteLLM's arguments, responses.py
and errors.py build the client's response.

A response names the model that the client requested: LiteLLM names the provider's model or one of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from typing import Any

from accordion.features.translation.channel import (
    ResponseChannel,
    ResponseEnd,
    ResponseHead,
    TranslationRequest,
    call_soon,
)
from accordion.model.errors import UpstreamDisconnected
from accordion.model.ports import Headers, Route, UpstreamResponse
from accordion.protocols.base import WireProtocol

# -- the thread --------------------------------------------------------------------------------------------------------


class LoopThread:
    """A thread that runs an event loop. It starts at first use, and not again after `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Returns the thread's loop."""
        if self._loop is None:
            self._loop = asyncio.SelectorEventLoop()
            self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop

    async def close(self) -> None:
        """Cancels all tasks, ends the loop and waits for the thread up to five seconds (an import cannot be ended)."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        call_soon(loop, loop.stop)
        await asyncio.to_thread(thread.join, 5.0)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


# -- translation -------------------------------------------------------------------------------------------------------


class LiteLLMTranslator:
    """The Translator port. `protocols` are by name; `load` returns the LiteLLM module, at first
    use; None: the installed one.

    An error before the response has begun becomes an error response in the client's protocol, with the provider's
    headers about limits. A later error is raised, as with any other provider.
    """

    def __init__(self, protocols: Mapping[str, WireProtocol], load: Callable[[], Any] | None = None) -> None:
        self._protocols = protocols
        self._load = load
        self._worker = LoopThread("translate")

    async def send(
        self, protocol_name: str, body: bytes, route: Route, credential: str, request_id: str = ""
    ) -> UpstreamResponse:
        """Sends `body` to `route.model`; returns at the first piece of the response, or at its error.

        `credential` is the provider's key, without a scheme. `request_id` is the id of errors for which the provider
        sends none. Raises UpstreamDisconnected if `close` is called before the head arrives. Cancelling this cancels
        the call.
        """
        loop = self._worker.loop()
        channel = ResponseChannel(receiver=asyncio.get_running_loop(), sender=loop)
        request = TranslationRequest(protocol_name, body, route, credential, request_id)
        future = asyncio.run_coroutine_threadsafe(self._run_call(request, channel), loop)
        try:
            head = await channel.receive()
        except asyncio.CancelledError:
            future.cancel()
            raise
        if not isinstance(head, ResponseHead):
            raise UpstreamDisconnected("The translation was ended before the provider answered.")
        return _TranslatedResponse(head, channel, future)

    async def close(self) -> None:
        """Cancels all calls and ends the thread."""
        await self._worker.close()

    async def _run_call(self, request: TranslationRequest, channel: ResponseChannel) -> None:
        """Runs one call, on the worker's loop."""
        # Imported by the thread, so that neither the start of a proxy nor its loop waits for it.
        from accordion.features.translation.calls import run_call  # noqa: PLC0415

        await run_call(request, channel, self._protocols[request.protocol_name], self._load)


class _TranslatedResponse:
    """A translated response whose head has arrived."""

    def __init__(self, head: ResponseHead, channel: ResponseChannel, future: Future[None]) -> None:
        self.status: int = head.status
        self.headers: Headers = head.headers
        self.is_delimited = True
        self._channel = channel
        self._future = future

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the body, each event as soon as LiteLLM yields it. Raises the error that ended the stream."""
        while isinstance(item := await self._channel.receive(), bytes):
            yield item
        if isinstance(item, ResponseEnd) and item.error is not None:
            raise item.error

    async def close(self) -> None:
        """Cancels the call if it is still running, and closes its connection."""
        self._future.cancel()
