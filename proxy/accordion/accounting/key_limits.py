"""Limits of proxy keys, and the counts behind them: tokens and dollars a day, requests a minute.

Theory of operation. Days and minutes are those of UTC. The tokens and dollars of a day are known after each response.
Each worker counts them in a row for each key, which it only ever raises and writes once a second; it reads the rows of
all others once a second, or less often if there are more than `ROWS_PER_SECOND`. So a limit of the day is exceeded
by what the requests cost that were running when it was reached, and by what other workers counted in the two seconds
before, or in the time between two reads. Rows survive a restart.

Each request takes a number from a log in the store, one for each key and minute, and is refused beyond the limit. This
is exact, over all workers. While the store is unavailable, each worker counts by itself: then a key has its limit at
each of them. A store that does not answer counts as unavailable after its time-out, which one request at a time waits
for. A key without this limit causes no call of the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Final

import msgspec

from accordion.accounting.ledger import DAY
from accordion.model.costs import NANODOLLARS, Costs, to_dollars
from accordion.model.errors import LimitReached, StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore, Outbox

ROWS_PER_SECOND: Final = 10_000
"""Maximum number of rows that a worker reads each second on average; each takes it about 2 µs. A key has a row for each
worker that counted for it today, also for those that have ended."""
_MINUTE: Final = 60
_PAGE = 1_000


TokensPerDay = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
DollarsPerDay = Annotated[float, msgspec.Meta(ge=0, le=10**9)]
RequestsPerMinute = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class KeyLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of one proxy key; 0: no limit."""

    tokens_per_day: TokensPerDay = 0
    dollars_per_day: DollarsPerDay = 0.0
    requests_per_minute: RequestsPerMinute = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.dollars_per_day):
            raise ValueError("dollars_per_day must be a number")

    @property
    def has_day_limit(self) -> bool:
        """Whether tokens or dollars are limited."""
        return bool(self.tokens_per_day or self.dollars_per_day)

    def __bool__(self) -> bool:
        return bool(self.tokens_per_day or self.dollars_per_day or self.requests_per_minute)


NO_LIMITS: Final = KeyLimits()


class KeyUsage(msgspec.Struct, array_like=True):
    """The usage of a key on one day: the number of its requests, their tokens, and their cost in nanodollars.

    Tokens are those of input (cached input too) and output, of all rounds, and of summaries.
    """

    requests: int = 0
    tokens: int = 0
    cost: int = 0

    def add(self, other: KeyUsage) -> None:
        """Adds another usage to this one."""
        self.requests += other.requests
        self.tokens += other.tokens
        self.cost += other.cost


_USAGE = msgspec.msgpack.Decoder(KeyUsage)
_ENCODER = msgspec.msgpack.Encoder()


def usage_collection(day: int) -> str:
    """Returns the collection with the rows of a day (days since the epoch); names are `key|worker`."""
    return f"key-usage/{day}"


async def read_usage(store: KeyValueStore, day: int) -> dict[str, KeyUsage]:
    """Returns the usage of all keys on a day, by key, over all workers. Raises StoreUnavailable."""
    return _sum_rows(await _read_rows(store, day))


async def _read_rows(store: KeyValueStore, day: int) -> list[tuple[str, bytes]]:
    rows, after = list[tuple[str, bytes]](), ""
    while page := await store.scan(usage_collection(day), after=after, limit=_PAGE):
        rows += page
        after = page[-1][0]
        if len(page) < _PAGE:
            break
    return rows


def _sum_rows(rows: Iterable[tuple[str, bytes]], *, without: str = "") -> dict[str, KeyUsage]:
    """Returns the usage by key, over all workers but `without`."""
    usage = dict[str, KeyUsage]()
    for name, value in rows:
        key_id, _, worker = name.rpartition("|")
        if worker != without:
            with suppress(msgspec.MsgspecError):
                usage.setdefault(key_id, KeyUsage()).add(_USAGE.decode(value))
    return usage


_Rows = dict[str, tuple[Key, KeyUsage, Callable[[], bytes]]]
_MAX_FORMER_DAYS = 3


class KeyUsageLedger:
    """The usage of all keys today: rows of this worker, and what it last read of the others."""

    def __init__(self, store: KeyValueStore, outbox: Outbox, clock: Clock, worker: str) -> None:
        self._store, self._outbox, self._clock, self._worker = store, outbox, clock, worker
        self._day = 0
        self._rows: _Rows = {}
        self._others: Mapping[str, KeyUsage] = {}
        self._former_rows = dict[int, _Rows]()
        """The rows of other days: a clock that is set may come back to one."""
        self._next_poll = 0.0

    def count(self, key_id: str, costs: Costs) -> None:
        """Counts an exchange of a key, which has ended."""
        self._start_day()
        if (row := self._rows.get(key_id)) is None:
            usage = KeyUsage()
            key = Key(usage_collection(self._day), f"{key_id}|{self._worker}")
            row = self._rows[key_id] = key, usage, partial(_ENCODER.encode, usage)
        key, usage, encode = row
        usage.requests += costs.requests
        usage.tokens += costs.input + costs.output + costs.summary_input + costs.summary_output
        usage.cost += costs.sent_cost + costs.summary_cost
        self._outbox.put(key, encode, 2.0 * DAY)

    def usage(self, key_id: str) -> KeyUsage:
        """Returns what a key used today, as far as this worker knows."""
        self._start_day()
        total = KeyUsage()
        for usage in (self._rows[key_id][1] if key_id in self._rows else None, self._others.get(key_id)):
            if usage is not None:
                total.add(usage)
        return total

    async def poll(self) -> None:
        """Reads what other workers counted, unless that is too early; to be called about every second. Never fails."""
        if self._clock.monotonic() >= self._next_poll:
            with suppress(StoreUnavailable):
                await self.read_others()

    async def read_others(self) -> None:
        """Reads what other workers counted. Raises StoreUnavailable."""
        self._start_day()
        day = self._day
        rows = await _read_rows(self._store, day)
        pause = len(rows) / ROWS_PER_SECOND if len(rows) > ROWS_PER_SECOND else 0.0
        self._next_poll = self._clock.monotonic() + pause
        if day == self._day:
            self._others = _sum_rows(rows, without=self._worker)

    def _start_day(self) -> None:
        day = int(self._clock.now() // DAY)
        if day != self._day:
            self._former_rows[self._day] = self._rows
            self._day, self._rows, self._others = day, self._former_rows.pop(day, {}), {}
            if len(self._former_rows) > _MAX_FORMER_DAYS:
                del self._former_rows[next(iter(self._former_rows))]


class KeyLimiter:
    """Refuses requests of keys that have reached a limit. `on_refuse` gets the tenant and the limit's name."""

    def __init__(
        self,
        store: KeyValueStore,
        ledger: KeyUsageLedger,
        clock: Clock,
        on_refuse: Callable[[str, str], object] = lambda tenant, limit: None,
    ) -> None:
        self._store, self._ledger, self._clock, self._on_refuse = store, ledger, clock, on_refuse
        self._minute = 0
        self._numbers: dict[str, int] = {}
        """The highest number that this worker knows of each key in this minute."""

    async def admit(self, key_id: str, tenant: str, limits: KeyLimits) -> None:
        """Counts a request of a key. Raises LimitReached."""
        if limits.has_day_limit:
            usage = self._ledger.usage(key_id)
            if 0 < limits.tokens_per_day <= usage.tokens:
                used = f"{usage.tokens:,} of {limits.tokens_per_day:,} tokens"
                raise self._refuse(key_id, tenant, "tokens_per_day", used)
            if 0 < limits.dollars_per_day * NANODOLLARS <= usage.cost:
                used = f"${to_dollars(usage.cost):,.2f} of ${limits.dollars_per_day:,.2f}"
                raise self._refuse(key_id, tenant, "dollars_per_day", used)
        if limits.requests_per_minute and await self._take_number(key_id, limits.requests_per_minute) is None:
            used = f"{limits.requests_per_minute:,} requests"
            raise self._refuse(key_id, tenant, "requests_per_minute", used)

    async def _take_number(self, key_id: str, limit: int) -> int | None:
        """Returns the number of a request in its minute; None beyond the limit."""
        minute = int(self._clock.now() // _MINUTE)
        if minute != self._minute:
            self._minute, self._numbers = minute, {}
        numbers = self._numbers
        if numbers.get(key_id, 0) >= limit:
            return None
        log = Key(f"key-requests/{key_id}", str(minute))
        try:
            # Positions of a log count from 0 and never repeat.
            number = 1 + await self._store.append(log, (b"",), keep=1, ttl=2.0 * _MINUTE)
        except StoreUnavailable:
            number = numbers.get(key_id, 0) + 1
        numbers[key_id] = max(number, numbers.get(key_id, 0))
        return number if number <= limit else None

    def _refuse(self, key_id: str, tenant: str, limit: str, used: str) -> LimitReached:
        now = self._clock.now()
        self._on_refuse(tenant, limit)
        if limit == "requests_per_minute":
            seconds = math.ceil(_MINUTE - now % _MINUTE)
            return LimitReached(
                f"The proxy key {key_id} has sent its {used} of this minute. Send the request again in {seconds} s.",
                retry_after=seconds,
                is_budget=False,
            )
        seconds = math.ceil(DAY - now % DAY)
        hours, minutes = divmod(math.ceil(seconds / _MINUTE), _MINUTE)
        return LimitReached(
            f"The proxy key {key_id} has used {used} of this day. The next day begins at 00:00 UTC, in {hours} h "
            f"{minutes} min.",
            retry_after=seconds,
            is_budget=True,
        )
