"""Clients that go away while their requests are served are noticed, and nobody goes on working for them."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from accordion.core.http import LEFT

# A client that goes away is noticed by a look that begins this many seconds into a request; most are over by then.
_LOOK_AFTER = 0.2


class Watches:
    """The requests that are not looked after yet, the oldest first: one timer for all, since nearly all of them are
    over before it rings."""

    def __init__(self) -> None:
        self._waiting: dict[Watch, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watch: Watch) -> None:
        """Has it begin later."""
        self._waiting[watch] = due = asyncio.get_running_loop().time() + _LOOK_AFTER
        if self._timer is None:
            self._set(due)

    def drop(self, watch: Watch) -> None:
        """It need not begin any more."""
        self._waiting.pop(watch, None)

    def _set(self, due: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(due, self._begin, due)

    def _begin(self, now: float) -> None:
        # A timer may ring a little early: a loop rounds. Set again to the same time, it would ring at once, on and on.
        now, self._timer = max(now, asyncio.get_running_loop().time()), None
        for watch, due in list(self._waiting.items()):
            if due > now:
                self._set(due)
                return
            del self._waiting[watch]
            watch.begin()


class Watch:
    """Cancels the task that serves a request when its client goes away. Begins late: a task for each would cost."""

    __slots__ = ("_looking", "_lost", "_over", "_receive", "_serving", "_watches", "gone")

    def __init__(self, receive: Receive, watches: Watches) -> None:
        self.gone = False
        self._receive = receive
        self._watches = watches
        self._serving = asyncio.current_task()
        self._looking: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[None] | None = None
        self._over = False

    def heed(self, lost: asyncio.Future[None] | None) -> None:
        """Begins at once by another sign than what is received, which belongs to whoever reads the body: `lost` is done
        once the client went away."""
        self._lost = lost
        if lost is not None:
            lost.add_done_callback(self._left)

    def start(self) -> None:
        """Begins, once the whole body has been received."""
        if not self._over:
            self._watches.add(self)

    def begin(self) -> None:
        """Looks from now on."""
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def stop(self) -> None:
        """The request is over."""
        if self._over:
            return
        self._over = True
        self._watches.drop(self)
        if self._lost is not None:
            self._lost.remove_done_callback(self._left)
        if self._looking is not None:
            self._looking.cancel()
        # The task that looked holds an error, the error a frame, and the frame this watch. Without the way back all of
        # it is freed at once; the garbage collector seldom runs.
        self._looking = self._serving = None

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self, _: object = None) -> None:
        if not self.gone and self._serving is not None:
            self._serving.cancel(LEFT)
        self.gone = True
