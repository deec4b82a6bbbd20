"""Waiting without knowing the event loop: a port of this room."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Signal(Protocol):
    """Something that happens once; any number may wait for it."""

    def set(self) -> None:
        """It has happened."""

    async def wait(self) -> Any:
        """Return when it has happened."""


class Waiting(Protocol):
    """Where signals come from, and how long is waited for something."""

    def signal(self) -> Signal:
        """A new one, which has not happened yet."""

    async def within(self, seconds: float, work: Awaitable[T]) -> T:
        """What `work` gives. Raises TimeoutError after so many seconds; then the work is cancelled."""
