"""What passes between the caller's loop and that of LiteLLM's thread: a request, and its response in pieces."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from accordion.model.errors import AccordionError, UpstreamDisconnected
from accordion.model.ports import Headers, Route


@dataclass(frozen=True, slots=True)
class TranslationRequest:
    """A request to translate."""

    protocol_name: str
    body: bytes
    route: Route
    credential: str
    request_id: str = ""


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
            call_soon(self._sender, self._free_slots.release)
        return item

    def _put(self, item: Item) -> None:
        self._items.append(item)
        call_soon(self._receiver, self._has_items.set)


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Calls a function on another thread's loop, unless that loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
