"""Cancels the work for a request when its client disconnects."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from accordion.model.http import CLIENT_DISCONNECTED

# Seconds into a request before its watch begins; most requests are over by then.
_DELAY = 0.2


class DisconnectWatches:
    """The watches that have not begun yet, oldest first, on one timer: nearly all requests end before it fires."""

    def __init__(self) -> None:
        self._waiting: dict[DisconnectWatch, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watch: DisconnectWatch) -> None:
        """Schedules the begin of a watch."""
        self._waiting[watch] = due = asyncio.get_running_loop().time() + _DELAY
        if self._timer is None:
            self._set(due)

    def drop(self, watch: DisconnectWatch) -> None:
        """Removes a watch that need not begin."""
        self._waiting.pop(watch, None)

    def _set(self, due: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(due, self._begin, due)

    def _begin(self, now: float) -> None:
        # A timer may fire slightly early because the loop rounds. Set again to the same time, it would fire at once,
        # again and again.
        now, self._timer = max(now, asyncio.get_running_loop().time()), None
        for watch, due in list(self._waiting.items()):
            if due > now:
                self._set(due)
                return
            del self._waiting[watch]
            watch.begin()


class DisconnectWatch:
    """Cancels the task that serves a request when its client disconnects.

    It begins only after `_DELAY` seconds: a task for every request would cost too much.
    """

    __slots__ = ("_looking", "_lost", "_over", "_receive", "_serving", "_watches", "gone")

    def __init__(self, receive: Receive, watches: DisconnectWatches) -> None:
        self.gone = False
        self._receive = receive
        self._watches = watches
        self._serving = asyncio.current_task()
        self._looking: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[None] | None = None
        self._over = False

    def watch_future(self, lost: asyncio.Future[None] | None) -> None:
        """Begins at once, on the future `lost`, which is done once the client has left.

        While a body is streamed, `receive` belongs to its reader and cannot be used here.
        """
        self._lost = lost
        if lost is not None:
            lost.add_done_callback(self._on_disconnect)

    def start(self) -> None:
        """Schedules the watch; the whole body has been received."""
        if not self._over:
            self._watches.add(self)

    def begin(self) -> None:
        """Waits for the disconnect message from now on."""
        self._looking = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    def stop(self) -> None:
        """Ends the watch: the request is over."""
        if self._over:
            return
        self._over = True
        self._watches.drop(self)
        if self._lost is not None:
            self._lost.remove_done_callback(self._on_disconnect)
        if self._looking is not None:
            self._looking.cancel()
        # The watching task refers to an error, the error to a frame, and the frame to this watch. Breaking the cycle
        # frees all of it at once; the garbage collector seldom runs.
        self._looking = self._serving = None

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._on_disconnect()

    def _on_disconnect(self, _: object = None) -> None:
        if not self.gone and self._serving is not None:
            self._serving.cancel(CLIENT_DISCONNECTED)
        self.gone = True
