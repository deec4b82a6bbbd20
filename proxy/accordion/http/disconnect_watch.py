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
        self._scheduled: dict[DisconnectWatch, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watch: DisconnectWatch) -> None:
        """Schedules the begin of a watch."""
        self._scheduled[watch] = start_time = asyncio.get_running_loop().time() + _DELAY
        if self._timer is None:
            self._set_timer(start_time)

    def drop(self, watch: DisconnectWatch) -> None:
        """Removes a watch that need not begin."""
        self._scheduled.pop(watch, None)

    def _set_timer(self, start_time: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(start_time, self._start_due, start_time)

    def _start_due(self, now: float) -> None:
        # A timer may fire slightly early because the loop rounds. Set again to the same time, it would fire at once,
        # again and again.
        now, self._timer = max(now, asyncio.get_running_loop().time()), None
        for watch, start_time in list(self._scheduled.items()):
            if start_time > now:
                self._set_timer(start_time)
                return
            del self._scheduled[watch]
            watch.begin()


class DisconnectWatch:
    """Cancels the task that serves a request when its client disconnects.

    It begins only after `_DELAY` seconds: a task for every request would cost too much.
    """

    __slots__ = (
        "_disconnect_future",
        "_is_stopped",
        "_receive",
        "_request_task",
        "_watch_task",
        "_watches",
        "is_disconnected",
    )

    def __init__(self, receive: Receive, watches: DisconnectWatches) -> None:
        self.is_disconnected = False
        self._receive = receive
        self._watches = watches
        self._request_task = asyncio.current_task()
        self._watch_task: asyncio.Task[None] | None = None
        self._disconnect_future: asyncio.Future[None] | None = None
        self._is_stopped = False

    def watch_future(self, future: asyncio.Future[None] | None) -> None:
        """Begins at once, on a future that is done once the client has left.

        While a body is streamed, `receive` belongs to its reader and cannot be used here.
        """
        self._disconnect_future = future
        if future is not None:
            future.add_done_callback(self._on_disconnect)

    def start(self) -> None:
        """Schedules the watch; the whole body has been received."""
        if not self._is_stopped:
            self._watches.add(self)

    def begin(self) -> None:
        """Waits for the disconnect message from now on."""
        self._watch_task = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    def stop(self) -> None:
        """Ends the watch: the request is over."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._watches.drop(self)
        if self._disconnect_future is not None:
            self._disconnect_future.remove_done_callback(self._on_disconnect)
        if self._watch_task is not None:
            self._watch_task.cancel()
        # The watching task refers to an error, the error to a frame, and the frame to this watch. Breaking the cycle
        # frees all of it at once; the garbage collector seldom runs.
        self._watch_task = self._request_task = None

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._on_disconnect()

    def _on_disconnect(self, _: object = None) -> None:
        if not self.is_disconnected and self._request_task is not None:
            self._request_task.cancel(CLIENT_DISCONNECTED)
        self.is_disconnected = True
