"""A thread with its own event loop, and the channel that returns a response from it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from accordion.model.errors import AccordionError, UpstreamDisconnected
from accordion.model.ports import Headers

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
