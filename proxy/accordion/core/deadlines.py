"""Time limits that are nearly always put off: by the next piece that comes, the next request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """What an event loop gives for a call that it will make."""

    def cancel(self) -> None:
        """The call is not made."""


class Loop(Protocol):
    """What is asked of an event loop. Times in seconds, by its own clock."""

    def time(self) -> float:
        """What its clock says."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Has something called, once it is so late."""


class Deadline:
    """Calls `missed` once so many seconds have passed since it was last put off.

    To put it off is to note a time: the one timer that there is looks, when it rings, whether it is late enough, and
    else is set to what was noted. A timer for each piece or request costs ten times as much.
    """

    __slots__ = ("_at", "_due", "_loop", "_missed", "_timer")

    def __init__(self, loop: Loop, missed: Callable[[], object]) -> None:
        self._loop = loop
        self._missed = missed
        self._due = 0.0
        self._at = 0.0
        self._timer: Timer | None = None

    def put_off(self, seconds: float) -> None:
        """From now on, so many seconds are left."""
        self._due = due = self._loop.time() + seconds
        if self._timer is not None and self._at > due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._set(due)

    def lift(self) -> None:
        """There is no limit, until it is put off again."""
        self._due = 0.0

    def close(self) -> None:
        """There will be none any more. Who was to be called is let go of, since that is mostly who holds this."""
        self._due = 0.0
        self._missed = _nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, due: float) -> None:
        self._at = due
        self._timer = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._due:
            return
        if self._due > self._at:
            self._set(self._due)
        else:
            self._due = 0.0
            self._missed()


def _nothing() -> None:
    """What a deadline that was closed calls."""
