"""A time limit that a result that came in time always meets, however busy the event loop is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_GRACE = 0.02
"""Seconds of a second timer, in which the loop takes what has come from sockets and threads."""


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Returns the result of `work`. Raises TimeoutError if it takes longer than `seconds`.

    If the event loop was busy for longer, the result counts that came meanwhile. asyncio's loop would take it before a
    timer ends, but uvloop ends timers first.
    """
    async with asyncio.timeout(None) as deadline:
        timer = asyncio.get_running_loop().call_later(seconds, _give_grace, deadline)
        try:
            return await work
        finally:
            timer.cancel()


def _give_grace(deadline: asyncio.Timeout) -> None:
    asyncio.get_running_loop().call_later(_GRACE, _expire, deadline)


def _expire(deadline: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # The work ended meanwhile.
        deadline.reschedule(asyncio.get_running_loop().time())
