"""The limits that providers named in their overflow errors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

AT_MOST = 1_024


class Whose(NamedTuple):
    """What a limit holds for: nobody else's window is made smaller by it."""

    tenant: str
    upstream: str
    model: str
    long: bool
    """Whether the request asked for a long context."""


class Limit(NamedTuple):
    """A limit in tokens, and until when it holds, in seconds since the epoch."""

    tokens: int
    until: float


class Limits:
    """Learnt limits, of which the latest are held. `now` gives seconds since the epoch. Safe in threads."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = Lock()
        self._fresh: dict[Whose, Limit] = {}
        self.held: OrderedDict[Whose, Limit] = OrderedDict()

    def of(self, whose: Whose) -> int | None:
        """The limit in tokens, where one was learnt and still holds."""
        with self._lock:
            limit = self.held.get(whose)
            if limit is not None and limit.until <= self._now():
                del self.held[whose]
                return None
        return limit.tokens if limit else None

    def learn(self, whose: Whose, tokens: int, lasting: float) -> None:
        """Takes what a provider named; it holds for `lasting` seconds."""
        limit = Limit(tokens, self._now() + lasting)
        with self._lock:
            self._fresh[whose] = limit
            self._hold(whose, limit)

    def take(self, whose: Whose, limit: Limit) -> None:
        """Takes what another worker or an earlier run learnt, unless this one learnt later."""
        with self._lock:
            known = self.held.get(whose)
            if limit.until > self._now() and (known is None or known.until < limit.until):
                self._hold(whose, limit)

    def fresh(self) -> dict[Whose, Limit]:
        """What was learnt here since this was last asked."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        return fresh

    def _hold(self, whose: Whose, limit: Limit) -> None:
        self.held[whose] = limit
        self.held.move_to_end(whose)
        if len(self.held) > AT_MOST:
            gone, _ = self.held.popitem(last=False)
            self._fresh.pop(gone, None)
