"""Shares what was learned from responses between workers, and stores it for the next run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import msgspec

from accordion.accounting.calibration import Calibrations
from accordion.accounting.learned_limits import MAX_LIMITS, LearnedLimit, LearnedLimits, LimitOwner
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore, Outbox

LIMITS, RATIOS, OUTPUTS = "learnt/limits", "learnt/ratios", "learnt/outputs"
"""Collections. The name of a row is its owner in JSON, its value the limit, the ratios or the lengths in JSON."""

_PAGE = 500
# Longer names are not those of models. They stay in memory.
_LONGEST = 512
_OWNER, _LIMIT = msgspec.json.Decoder(LimitOwner), msgspec.json.Decoder(LearnedLimit)
_MODEL, _LATEST = msgspec.json.Decoder(tuple[str, str]), msgspec.json.Decoder(tuple[float, ...])
_LENGTHS = msgspec.json.Decoder(tuple[int, ...])


class LearnedSync:
    """Publishes this worker's limits and corrections, and reads those of others. A correction is stored for `retention`
    seconds.

    Limits are read again and again: else the window would depend on the worker. Corrections are read once, at the
    start: from then on each worker has reports of its own.
    """

    def __init__(
        self,
        store: KeyValueStore,
        outbox: Outbox,
        clock: Clock,
        limits: LearnedLimits,
        calibrations: Calibrations,
        retention: float,
    ) -> None:
        self._store, self._outbox, self._clock = store, outbox, clock
        self._limits, self._calibrations = limits, calibrations
        self._retention = retention
        self._has_read_ratios = False

    async def poll(self) -> None:
        """Publishes and reads; to be called about every second. Never fails."""
        self.publish()
        with suppress(StoreUnavailable):
            async for name, value in self._read_rows(LIMITS):
                with suppress(msgspec.MsgspecError):
                    self._limits.restore(_OWNER.decode(name), _LIMIT.decode(value))
            if not self._has_read_ratios:
                async for name, value in self._read_rows(RATIOS):
                    with suppress(msgspec.MsgspecError):
                        self._calibrations.restore(_MODEL.decode(name), _LATEST.decode(value))
                async for name, value in self._read_rows(OUTPUTS):
                    with suppress(msgspec.MsgspecError):
                        self._calibrations.restore_outputs(_MODEL.decode(name), _LENGTHS.decode(value))
                self._has_read_ratios = True

    def publish(self) -> None:
        """Queues the limits and ratios that changed here; does not wait for the write."""
        now = self._clock.now()
        for owner, limit in self._limits.drain_changes().items():
            if limit.until > now:
                self._put(LIMITS, owner, limit, limit.until - now)
        for model, latest in self._calibrations.drain_changes().items():
            self._put(RATIOS, model, latest, self._retention)
        for model, lengths in self._calibrations.drain_output_changes().items():
            self._put(OUTPUTS, model, lengths, self._retention)

    def _put(self, collection: str, owner: tuple[object, ...], value: tuple[object, ...], ttl: float) -> None:
        name = msgspec.json.encode(owner).decode()
        if len(name) <= _LONGEST:
            self._outbox.put(Key(collection, name), partial(msgspec.json.encode, value), ttl)

    async def _read_rows(self, collection: str) -> AsyncIterator[tuple[str, bytes]]:
        """Reads a collection, at most as many rows as fit in memory."""
        after = ""
        for _ in range(0, MAX_LIMITS, _PAGE):
            page = await self._store.scan(collection, after=after, limit=_PAGE)
            for row in page:
                yield row
            if len(page) < _PAGE:
                return
            after = page[-1][0]
