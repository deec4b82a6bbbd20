"""What providers taught, shared by all workers and kept for the next run: the limits that they named, and how far
counts of their models are off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import msgspec

from accordion.accounting.calibration import Calibrations
from accordion.accounting.limits import AT_MOST, Limit, Limits, Whose
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Clock, Key, Outbox, Store

LIMITS, RATIOS = "learnt/limits", "learnt/ratios"
"""Collections: the name of a row says in JSON whose it is, its value in JSON what was learnt."""

_PAGE = 500
# Who sends longer names sends no model's. They stay in memory.
_LONGEST = 512
_WHOSE, _LIMIT = msgspec.json.Decoder(Whose), msgspec.json.Decoder(Limit)
_MODEL, _LATEST = msgspec.json.Decoder(tuple[str, str]), msgspec.json.Decoder(tuple[float, ...])


class Taught:
    """Hands in what this worker was taught, and takes what others were. A correction stays for `retention` seconds.

    Limits are looked for again and again: else a request would find another window with each worker. Corrections are
    read once, at the start: from then on each worker has reports of its own.
    """

    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        clock: Clock,
        limits: Limits,
        calibrations: Calibrations,
        retention: float,
    ) -> None:
        self._store, self._outbox, self._clock = store, outbox, clock
        self._limits, self._calibrations = limits, calibrations
        self._retention = retention
        self._begun = False

    async def look(self) -> None:
        """To be called about every second; never fails."""
        self.hand_in()
        with suppress(StoreUnavailable):
            async for name, value in self._rows(LIMITS):
                with suppress(msgspec.MsgspecError):
                    self._limits.take(_WHOSE.decode(name), _LIMIT.decode(value))
            if not self._begun:
                async for name, value in self._rows(RATIOS):
                    with suppress(msgspec.MsgspecError):
                        self._calibrations.take(_MODEL.decode(name), _LATEST.decode(value))
                self._begun = True

    def hand_in(self) -> None:
        """Gives the store what was learnt here since; nobody waits for it."""
        now = self._clock.now()
        for whose, limit in self._limits.fresh().items():
            if limit.until > now:
                self._put(LIMITS, whose, limit, limit.until - now)
        for model, latest in self._calibrations.fresh().items():
            self._put(RATIOS, model, latest, self._retention)

    def _put(self, collection: str, whose: tuple[object, ...], learnt: tuple[object, ...], ttl: float) -> None:
        name = msgspec.json.encode(whose).decode()
        if len(name) <= _LONGEST:
            self._outbox.put(Key(collection, name), partial(msgspec.json.encode, learnt), ttl)

    async def _rows(self, collection: str) -> AsyncIterator[tuple[str, bytes]]:
        """As many as are held in memory at the most."""
        after = ""
        for _ in range(0, AT_MOST, _PAGE):
            page = await self._store.scan(collection, after=after, limit=_PAGE)
            for row in page:
                yield row
            if len(page) < _PAGE:
                return
            after = page[-1][0]
