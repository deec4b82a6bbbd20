"""What people ask of a session: results that are to stay, and a fold at the next request.

Wishes live in the store, for every worker. Pins are read when a fold is made, which is seldom. Whether a fold is wanted
must be known at every request, so each worker keeps those in memory and looks for new ones now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field

import msgspec

from accordion.core.cache import Cache, weigh
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Store
from accordion.core.values import dataclass

MOST_PINS = 256
FORCED_FOR = 86_400.0
"""How long a fold stays wanted where no request comes, in seconds."""

_PINS = msgspec.json.Decoder(list[str])
_FORCED = "wishes/forced"
_KNOWN = 1_000
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of one session."""

    pins: frozenset[str] = frozenset()
    forced: bool = False


@dataclass(frozen=False, slots=True)
class Wishes:
    """`retention` is how long a pin is kept, in seconds; a wish for a fold lasts a day."""

    store: Store
    retention: float = 30 * 86_400.0
    capacity: int = 1 * 2**20
    """Bytes of the pins that are in memory: half for those that the store has, half for those that it has not."""
    _forced: set[str] = field(default_factory=set)
    _pinned: Cache[str, frozenset[str]] = field(init=False)
    _late: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """Pins that came by header and are not in the store yet."""
    _changes: int = 0
    _deferred: dict[tuple[str, str], None] = field(default_factory=dict)
    """The sessions, by tenant, in which a fold waits for its summary."""

    def __post_init__(self) -> None:
        self._pinned = Cache(self.capacity // 2, lambda session, pins: weigh(session, *pins))

    # -- pins ---------------------------------------------------------------------

    async def pin(self, tenant: str, session: str, call_ids: frozenset[str]) -> None:
        """Sets the pins of a session, whatever they were. Raises StoreUnavailable."""
        if call_ids:
            value = msgspec.json.encode(sorted(call_ids))
            await self.store.put(_pins(tenant, session), value, ttl=self.retention)
        else:
            await self.store.delete([_pins(tenant, session)])
        self._late.pop((tenant, session), None)
        self._learn(tenant, session, call_ids)

    async def add(self, tenant: str, session: str, call_ids: frozenset[str]) -> None:
        """Adds pins that a request brought along; they last as those do that were set. Never fails: while the store is
        away, this worker keeps them, and `look` hands them in. Of more than MOST_PINS in all, the last in the alphabet
        hold for their own requests only."""
        if call_ids <= self._known(tenant, session):
            return
        late = self._late.get((tenant, session), frozenset()) | call_ids
        self._late[tenant, session] = frozenset(sorted(late)[:MOST_PINS])
        while len(self._late) > 1 and sum(weigh(*pins) for pins in self._late.values()) > self.capacity // 2:
            del self._late[next(iter(self._late))]
        await self._hand_in(tenant, session)

    async def pinned(self, tenant: str, session: str) -> frozenset[str]:
        """The call ids whose results stay. While the store is away, those that were known last."""
        with suppress(StoreUnavailable):
            self._learn(tenant, session, _read(await self.store.get(_pins(tenant, session))))
        late = self._late.get((tenant, session), frozenset())
        return self._known(tenant, session) | late

    # -- folds --------------------------------------------------------------------

    async def force(self, tenant: str, session: str) -> None:
        """Wants a fold at the session's next request. Raises StoreUnavailable."""
        await self.store.put(_wish(tenant, session), b"1", ttl=FORCED_FOR)
        self._changes += 1
        self._forced.add(f"{tenant}|{session}")

    def forced(self, tenant: str, session: str) -> bool:
        """Whether a fold is wanted, as far as this worker knows."""
        return bool(self._forced) and f"{tenant}|{session}" in self._forced

    async def done(self, tenant: str, session: str) -> None:
        """The wish has been fulfilled."""
        self._changes += 1
        self._forced.discard(f"{tenant}|{session}")
        try:
            await self.store.delete([_wish(tenant, session)])
        except StoreUnavailable:
            return
        finally:
            self._changes += 1

    def defer(self, tenant: str, session: str, deferred: bool) -> None:
        """Notes whether a fold that was due at the beginning of a turn waits for its summary. In memory only: where it
        is forgotten, the turn's own trigger comes later."""
        self._deferred.pop((tenant, session), None)
        if deferred:
            self._deferred[tenant, session] = None
            if len(self._deferred) > _KNOWN:
                del self._deferred[next(iter(self._deferred))]

    def deferred(self, tenant: str, session: str) -> bool:
        """Whether a fold of the whole history waits for its summary."""
        return bool(self._deferred) and (tenant, session) in self._deferred

    # -- all of them --------------------------------------------------------------

    async def of(self, tenant: str, sessions: Sequence[str]) -> list[Wish]:
        """What is asked of each of these sessions, as the store has it. Raises StoreUnavailable."""
        keys = [key for session in sessions for key in (_pins(tenant, session), _wish(tenant, session))]
        values = await self.store.get_many(keys) if keys else []
        return [
            Wish(_read(pins) | self._late.get((tenant, session), frozenset()), wish is not None)
            for session, pins, wish in zip(sessions, values[::2], values[1::2], strict=True)
        ]

    async def look(self) -> None:
        """Learns what other workers were asked, and hands in what the store does not have yet."""
        before, found, after = self._changes, set[str](), ""
        try:
            while page := await self.store.scan(_FORCED, after=after, limit=_PAGE):
                found.update(name for name, _ in page)
                after = page[-1][0]
                if len(page) < _PAGE:
                    break
        except StoreUnavailable:
            return
        if self._changes == before:
            # Else what was read may be older than what this worker knows.
            self._forced = found
        for tenant, session in list(self._late):
            await self._hand_in(tenant, session)

    async def _hand_in(self, tenant: str, session: str) -> None:
        late = self._late.get((tenant, session), frozenset())
        try:
            known = _read(await self.store.get(_pins(tenant, session)))
            more = frozenset([*known, *sorted(late - known)][:MOST_PINS])
            if more != known:
                value = msgspec.json.encode(sorted(more))
                await self.store.put(_pins(tenant, session), value, ttl=self.retention)
        except StoreUnavailable:
            return
        self._learn(tenant, session, more)
        if self._late.get((tenant, session)) == late:
            self._late.pop((tenant, session), None)

    def _learn(self, tenant: str, session: str, call_ids: frozenset[str]) -> None:
        self._pinned[f"{tenant}|{session}"] = call_ids

    def _known(self, tenant: str, session: str) -> frozenset[str]:
        return self._pinned.get(f"{tenant}|{session}") or frozenset()


def _read(value: bytes | None) -> frozenset[str]:
    """The pins of a kept value; none where there is none that can be read."""
    try:
        return frozenset(_PINS.decode(value)) if value is not None else frozenset()
    except msgspec.MsgspecError:
        return frozenset()


def _pins(tenant: str, session: str) -> Key:
    return Key(f"pins/{tenant}", session)


def _wish(tenant: str, session: str) -> Key:
    return Key(_FORCED, f"{tenant}|{session}")
