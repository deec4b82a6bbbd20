"""Time limits that are nearly always extended before they expire: by the next chunk or the next request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that an event loop will make later."""

    def cancel(self) -> None:
        """Cancels the call."""


class Loop(Protocol):
    """The part of an event loop's interface that a deadline needs. Times in seconds, by the loop's own clock."""

    def time(self) -> float:
        """Returns the current time."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Calls `callback` at the time `when`."""


class Deadline:
    """Calls `on_expiry` when the time set by the last call of `restart` has passed.

    `restart` only stores a time. The single timer checks, when it fires, whether the deadline was moved, and is then
    set again. A new timer for each chunk or request would cost ten times as much.
    """

    __slots__ = ("_expires_at", "_loop", "_on_expiry", "_timer", "_timer_expires_at")

    def __init__(self, loop: Loop, on_expiry: Callable[[], object]) -> None:
        self._loop = loop
        self._on_expiry = on_expiry
        self._expires_at = 0.0
        self._timer_expires_at = 0.0
        self._timer: Timer | None = None

    def restart(self, seconds: float) -> None:
        """Sets the deadline to `seconds` from now."""
        self._expires_at = expires_at = self._loop.time() + seconds
        if self._timer is not None and self._timer_expires_at > expires_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._start_timer(expires_at)

    def stop(self) -> None:
        """Removes the deadline until the next `restart`."""
        self._expires_at = 0.0

    def close(self) -> None:
        """Removes the deadline for good, and the reference to `on_expiry`, whose owner usually owns this deadline."""
        self._expires_at = 0.0
        self._on_expiry = _do_nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, expires_at: float) -> None:
        self._timer_expires_at = expires_at
        self._timer = self._loop.call_at(expires_at, self._handle_timer)

    def _handle_timer(self) -> None:
        self._timer = None
        if not self._expires_at:
            return
        if self._expires_at > self._timer_expires_at:
            self._start_timer(self._expires_at)
        else:
            self._expires_at = 0.0
            self._on_expiry()


def _do_nothing() -> None:
    """The callback of a closed deadline."""
