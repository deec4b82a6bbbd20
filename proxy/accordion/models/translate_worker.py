"""A thread with an event loop of its own, and the channel by which its results come back."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from accordion.core.errors import AccordionError, UpstreamCut
from accordion.core.ports import Headers

ROOM = 64
"""Pieces that may wait in a channel: a slow client holds up its own call, and nothing else."""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a reply."""

    status: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class End:
    """The end of a reply; `error` is what went wrong, None where it is whole."""

    error: AccordionError | None


Item = Head | bytes | End


class Channel:
    """One reply's way from the sender's loop to the receiver's. Bounded; only `send` waits for room."""

    def __init__(
        self, receiver: asyncio.AbstractEventLoop, sender: asyncio.AbstractEventLoop, room: int = ROOM
    ) -> None:
        self._receiver = receiver
        self._sender = sender
        self._items: deque[Item] = deque()  # append and popleft are atomic
        self._arrived = asyncio.Event()  # touched on the receiver's loop only
        self._room = asyncio.Semaphore(room)  # touched on the sender's loop only
        self._error: AccordionError | None = UpstreamCut("The translation was ended before the provider's answer was.")

    async def send(self, item: Item) -> None:
        """On the sender's loop: hand over, as soon as there is room."""
        await self._room.acquire()
        self._put(item)

    def finish(self) -> None:
        """On the sender's loop: nothing more comes, and the reply is whole."""
        self._error = None

    def fail(self, error: AccordionError) -> None:
        """On the sender's loop: nothing more comes, for this reason."""
        self._error = error

    def end(self) -> None:
        """On the sender's loop: the last thing that is said, whatever happened before."""
        self._put(End(self._error))

    async def receive(self) -> Item:
        """On the receiver's loop: the next item. After the end, the end again."""
        while not self._items:
            self._arrived.clear()
            if not self._items:
                await self._arrived.wait()
        item = self._items[0]
        if not isinstance(item, End):
            self._items.popleft()
            _call(self._sender, self._room.release)
        return item

    def _put(self, item: Item) -> None:
        self._items.append(item)
        _call(self._receiver, self._arrived.set)


class Worker:
    """A thread that runs an event loop. It is started at the first use, and not again after `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's loop."""
        if self._loop is None:
            self._loop = asyncio.SelectorEventLoop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop

    async def close(self) -> None:
        """Cancel what runs, end the loop and wait for the thread, at most five seconds (an import cannot be ended)."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        _call(loop, loop.stop)
        await asyncio.to_thread(thread.join, 5.0)


def _run(loop: asyncio.AbstractEventLoop) -> None:
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


def _call(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call on another thread's loop. A loop that is closed has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
