"""Translates requests to providers with another protocol than the client's, with LiteLLM on its own thread.

LiteLLM takes seconds to import and about half a millisecond a chunk, so none of it runs on the caller's loop. A request
moves to a thread with its own loop (`LoopThread`); the response's head and pieces come back through a bounded channel
(`ResponseChannel`). requests.py builds LiteLLM's arguments, responses.py and errors.py build the client's response.

A response names the model that the client requested: LiteLLM names the provider's model or one of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from accordion.model.errors import AccordionError, UpstreamDisconnected
from accordion.model.ports import Headers, Route, UpstreamResponse
from accordion.protocols.base import WireProtocol
from accordion.providers.litellm.errors import read_problem
from accordion.providers.litellm.litellm_compat import CallConnections, bind_task, load_litellm
from accordion.providers.litellm.requests import TranslationRequest, connect_limit, prepare_call
from accordion.providers.litellm.responses import render_document, stream_events, useful_headers

# -- the thread --------------------------------------------------------------------------------------------------------


CAPACITY = 64
"""The largest number of pieces in a channel, so that a slow client delays its own call only."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The status and headers of a response."""

    status: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """The end of a response; `error` is None if the response is complete."""

    error: AccordionError | None


Item = ResponseHead | bytes | ResponseEnd


class ResponseChannel:
    """Carries one response from the sender's loop to the receiver's. It is bounded; only `send` waits for space."""

    def __init__(
        self, receiver: asyncio.AbstractEventLoop, sender: asyncio.AbstractEventLoop, capacity: int = CAPACITY
    ) -> None:
        self._receiver = receiver
        self._sender = sender
        self._items: deque[Item] = deque()  # append and popleft are atomic
        self._has_items = asyncio.Event()  # touched on the receiver's loop only
        self._free_slots = asyncio.Semaphore(capacity)  # touched on the sender's loop only
        self._error: AccordionError | None = UpstreamDisconnected(
            "The translation was ended before the provider's answer was."
        )

    async def send(self, item: Item) -> None:
        """On the sender's loop: adds an item as soon as there is space."""
        await self._free_slots.acquire()
        self._put(item)

    def finish(self) -> None:
        """On the sender's loop: marks the response as complete."""
        self._error = None

    def fail(self, error: AccordionError) -> None:
        """On the sender's loop: marks the response as failed."""
        self._error = error

    def end(self) -> None:
        """On the sender's loop: adds the end. It is always the last call."""
        self._put(ResponseEnd(self._error))

    async def receive(self) -> Item:
        """On the receiver's loop: returns the next item; after the end, always the end."""
        while not self._items:
            self._has_items.clear()
            if not self._items:
                await self._has_items.wait()
        item = self._items[0]
        if not isinstance(item, ResponseEnd):
            self._items.popleft()
            _call_soon(self._sender, self._free_slots.release)
        return item

    def _put(self, item: Item) -> None:
        self._items.append(item)
        _call_soon(self._receiver, self._has_items.set)


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
        _call_soon(loop, loop.stop)
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


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Calls a function on another thread's loop, unless that loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


# -- translation -------------------------------------------------------------------------------------------------------


_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class LiteLLMTranslator:
    """The Translator port. `protocols` are by name; `load` returns the LiteLLM module, at first use.

    An error before the response has begun becomes an error response in the client's protocol, with the provider's
    headers about limits. A later error is raised, as with any other provider.
    """

    def __init__(self, protocols: Mapping[str, WireProtocol], load: Callable[[], Any] = load_litellm) -> None:
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
        connections = CallConnections(connect_limit(request.route))
        bind_task(connections)
        try:
            await self._send_response(request, channel, connections)
        finally:
            channel.end()
            await connections.close()

    async def _send_response(
        self, request: TranslationRequest, channel: ResponseChannel, connections: CallConnections
    ) -> None:
        """Calls LiteLLM and sends its response to the channel, on the worker's loop."""
        protocol = self._protocols[request.protocol_name]
        has_begun = False
        try:
            litellm = self._load()
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
