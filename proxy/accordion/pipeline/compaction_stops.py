"""Stops compaction for the models where the hold-out shows that it does not pay (`compaction.stop_if_worse`).

A stop is a row of the store. One worker at a time compares each tenant's sessions of the last 30 days, model by model,
and writes a stop where they cost more with compaction. All workers read the stops in the background. A stop lasts as
long as the sessions that it follows from count: then compaction is tried again. Meanwhile no session enters the
comparison, so nothing but such a new try can change it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from accordion.accounting.holdout import DAYS_COMPARED, STOPS, CompactionStop
from accordion.accounting.holdout_text import describe_stop
from accordion.accounting.ledger import DAY, ENCODER
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore
from accordion.model.tenant import TenantScope
from accordion.pipeline.queries import Queries

ROUND_SECONDS: Final = 300.0
"""Seconds between two comparisons."""
_SECONDS = float(DAYS_COMPARED * DAY)
"""Seconds for which a stop lasts."""
_ROUND_MARK = Key("", "compaction-stops/round")
_ROUND_MARK_SECONDS = 0.9 * ROUND_SECONDS
"""Seconds for which a comparison keeps other workers from the next one; less than the time between two."""

_log = logging.getLogger("accordion")


class CompactionStops:
    """The models for which compaction is stopped, of all tenants.

    `find_tenant` returns a tenant by its name. `worker` names this process.
    """

    def __init__(
        self,
        store: KeyValueStore,
        clock: Clock,
        queries: Callable[[], Queries],
        find_tenant: Callable[[str], TenantScope],
        worker: str,
    ) -> None:
        self._store, self._clock, self._queries, self._find_tenant = store, clock, queries, find_tenant
        self._worker = worker.encode()
        self._stopped: frozenset[tuple[str, str]] = frozenset()
        """By tenant and model."""

    def is_stopped(self, tenant: TenantScope, model: str) -> bool:
        """Whether compaction is stopped for a tenant's sessions of a model, by the clients' name."""
        return bool(self._stopped) and (tenant.name, model) in self._stopped

    async def poll(self) -> None:
        """Reads the stops of all workers. Never fails: while the store is unavailable, the last ones apply."""
        with suppress(StoreUnavailable):
            stops = await self._queries().read_stops(self._clock.now())
            self._stopped = frozenset((stop.tenant, stop.model) for stop in stops)

    async def run_round(self) -> None:
        """Stops compaction for the models where it does not pay, unless another worker compared them lately.

        To be called about every `ROUND_SECONDS` seconds. Never fails.
        """
        queries = self._queries()
        if not queries.stops_if_worse:
            return
        with suppress(StoreUnavailable):
            if await self._store.put_if_absent(_ROUND_MARK, self._worker, ttl=_ROUND_MARK_SECONDS) == self._worker:
                await self.poll()
                for name in await queries.list_tenants():
                    await self._compare(queries, self._find_tenant(name))
                await self.poll()

    async def _compare(self, queries: Queries, tenant: TenantScope) -> None:
        now = self._clock.now()
        comparison = await queries.read_holdout([tenant], now, DAYS_COMPARED)
        for each in comparison.models if comparison is not None else ():
            change = each.cost_change
            if each.verdict != "costs" or change is None or self.is_stopped(tenant, each.model):
                continue
            stop = CompactionStop(tenant.name, each.model, now, now + _SECONDS, change)
            key, value = Key(STOPS, f"{tenant.name}|{each.model}"), ENCODER.encode(stop)
            if await self._store.put_if_absent(key, value, ttl=_SECONDS) == value:
                _log.warning("tenant %s: %s", tenant.name, describe_stop(stop))
