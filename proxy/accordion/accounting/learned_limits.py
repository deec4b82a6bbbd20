"""Limits that were learned from providers' overflow errors, and whether the requested output counts towards them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from accordion.model.cache import BoundedCache, count_entry

MAX_LIMITS = 1_024


class LimitOwner(NamedTuple):
    """The requests that a limit applies to; no other window is made smaller by it."""

    tenant: str
    upstream: str
    model: str
    long: bool
    """Whether the request asked for a long context."""


class LearnedLimit(NamedTuple):
    """A limit in tokens (0: none was named), and the time when it expires, in seconds since the epoch.

    `counts_output` says that the provider refuses a request whose input and requested output together exceed the
    window.
    """

    tokens: int
    until: float
    counts_output: bool = False


class LearnedLimits:
    """The latest learned limits. `now` returns seconds since the epoch. Safe to use from several threads."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = Lock()
        self._changed: dict[LimitOwner, LearnedLimit] = {}
        self.limits: BoundedCache[LimitOwner, LearnedLimit] = BoundedCache(
            MAX_LIMITS, count_entry, lambda owner, _: self._changed.pop(owner, None)
        )

    def get(self, owner: LimitOwner) -> int | None:
        """Returns the limit in tokens; None if none was learned, or it has expired."""
        limit = self._find(owner)
        return limit.tokens or None if limit else None

    def counts_output(self, owner: LimitOwner) -> bool:
        """Whether the provider is known to count the requested output towards the window."""
        limit = self._find(owner)
        return limit is not None and limit.counts_output

    def _find(self, owner: LimitOwner) -> LearnedLimit | None:
        with self._lock:
            limit = self.limits.get(owner)
            if limit is not None and limit.until <= self._now():
                self.limits.pop(owner)
                return None
        return limit

    def list_limits(self, tenant: str) -> list[tuple[LimitOwner, LearnedLimit]]:
        """Returns a tenant's limits that have not expired."""
        with self._lock:
            return [
                (owner, limit)
                for owner, limit in self.limits.items()
                if owner.tenant == tenant and limit.tokens and limit.until > self._now()
            ]

    def learn(self, owner: LimitOwner, tokens: int, seconds: float, *, counts_output: bool = False) -> None:
        """Learns from an overflow error; it applies for `seconds`. What it does not say stays as it was."""
        known = self._find(owner)
        if known is not None:
            tokens, counts_output = tokens or known.tokens, counts_output or known.counts_output
        limit = LearnedLimit(tokens, self._now() + seconds, counts_output)
        with self._lock:
            self._changed[owner] = limit
            self.limits[owner] = limit

    def restore(self, owner: LimitOwner, limit: LearnedLimit) -> None:
        """Takes a limit of another worker or an earlier run, unless this one learned a later one."""
        with self._lock:
            current = self.limits.get(owner)
            if limit.until > self._now() and (current is None or current.until < limit.until):
                self.limits[owner] = limit

    def drain_changes(self) -> dict[LimitOwner, LearnedLimit]:
        """Returns the limits that were learned here since the last call."""
        with self._lock:
            changed, self._changed = self._changed, {}
        return changed
