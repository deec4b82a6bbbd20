"""The overrides that people set for a session: pins, its mode, a compaction at the next request, undone compactions.

All are in the store, for every worker. Pins are read when a compaction is made, which is rare. The others must be known
at every request, so each worker keeps them in memory and polls for new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec

from accordion.model.budget import RefusedForm, most_careful
from accordion.model.cache import BoundedCache, string_size
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore
from accordion.model.tenant import TenantScope

SessionMode = Literal["auto", "observe", "off"]
"""Whether a session's requests are compacted, only reported, or left alone. `auto` leaves it to the settings."""
MODES: tuple[SessionMode, ...] = get_args(SessionMode)
MOST_PINS = 256
REQUEST_SECONDS = 86_400.0
"""Seconds after which a compaction request expires if the session sends no request."""

_PINS = msgspec.json.Decoder(list[str])
_COLLECTION = "overrides"
_MODE_SUFFIX = "|mode"
"""Ends the name of a session's mode in the same collection, so that one scan reads all."""
_UNDONE_SUFFIX = "|undone"
"""Ends the name of a session's undone compactions in the same collection."""
_MAX_WAITING = 1_000
_PAGE = 1_000


class UndoneCompactions(msgspec.Struct, frozen=True):
    """The compactions of a session that people undid, or that a provider refused, by their ids. They are never applied
    again.

    `at` is when the last one was undone, in seconds since the epoch, `tokens` the size of the request without it. A new
    compaction is tried when the history has grown, as after one that gained too little; after a refusal `tokens` is 0,
    and it is tried at once, in a more careful form.
    """

    at: float
    tokens: int
    ids: frozenset[str]
    refused_form: RefusedForm = ""
    """The most careful form that a provider refused."""
    refusals: dict[str, str] = {}
    """Status and words of the refusals, by the id of the compaction."""

    def merge(self, earlier: UndoneCompactions) -> UndoneCompactions:
        """Returns these undone compactions and the earlier ones."""
        return msgspec.structs.replace(
            self,
            ids=self.ids | earlier.ids,
            refused_form=most_careful(self.refused_form, earlier.refused_form),
            refusals=earlier.refusals | self.refusals,
        )


_UNDONE = msgspec.json.Decoder(UndoneCompactions)


class SessionOverrides(msgspec.Struct, frozen=True):
    """The overrides of one session."""

    pins: frozenset[str] = frozenset()
    wants_compaction: bool = False
    mode: SessionMode = "auto"
    undone: frozenset[str] = frozenset()
    """The ids of the compactions that somebody undid, or a provider refused."""
    refusals: Mapping[str, str] = {}
    """Status and words of a provider's refusals, by the id of the compaction."""


@dataclass(slots=True)
class SessionOverrideStore:
    """Stores session overrides. They are kept for `retention` seconds, a compaction request for a day.

    `on_undone` is called with the ids of all undone compactions when they change.
    """

    store: KeyValueStore
    retention: float = 30 * 86_400.0
    capacity: int = 1 * 2**20
    """Bytes of the pins in memory: half for stored ones, half for unwritten ones."""
    on_undone: Callable[[frozenset[str]], None] = lambda _: None
    _requests: set[str] = field(default_factory=set)
    _modes: dict[str, SessionMode] = field(default_factory=dict)
    """The modes other than `auto`, by `tenant|session`."""
    _undone: dict[str, UndoneCompactions] = field(default_factory=dict)
    """The undone compactions, by `tenant|session`."""
    _pins: BoundedCache[str, frozenset[str]] = field(init=False)
    _unwritten_pins: dict[tuple[TenantScope, str], frozenset[str]] = field(default_factory=dict)
    """Pins from headers that are not in the store yet."""
    _unwritten_refusals: dict[tuple[TenantScope, str], UndoneCompactions] = field(default_factory=dict)
    """Compactions that a provider refused while the store was unavailable."""
    _changes: int = 0
    """How often this worker changed a mode or a compaction request; shows whether a poll is outdated."""
    _waiting_sessions: dict[tuple[TenantScope, str], None] = field(default_factory=dict)
    """The sessions, as (tenant, session), in which a compaction waits for its summary."""

    def __post_init__(self) -> None:
        self._pins = BoundedCache(self.capacity // 2, lambda session, pins: string_size(session, *pins))

    # -- pins ---------------------------------------------------------------------

    async def set_pins(self, tenant: TenantScope, session: str, call_ids: frozenset[str]) -> None:
        """Replaces the pins of a session. Raises StoreUnavailable."""
        if call_ids:
            value = msgspec.json.encode(sorted(call_ids))
            await self.store.put(_pins_key(tenant, session), value, ttl=self.retention)
        else:
            await self.store.delete([_pins_key(tenant, session)])
        self._unwritten_pins.pop((tenant, session), None)
        self._cache_pins(tenant, session, call_ids)

    async def add_pins(self, tenant: TenantScope, session: str, call_ids: frozenset[str]) -> None:
        """Adds the pins of a request's header; they last as long as others.

        Never raises: while the store is unavailable, this worker keeps them, and `poll` writes them later. Of more than
        MOST_PINS, the last in alphabetical order apply to their own request only.
        """
        if call_ids <= self._pins_in_memory(tenant, session):
            return
        unwritten = self._unwritten_pins.get((tenant, session), frozenset()) | call_ids
        self._unwritten_pins[tenant, session] = frozenset(sorted(unwritten)[:MOST_PINS])
        while (
            len(self._unwritten_pins) > 1
            and sum(string_size(*pins) for pins in self._unwritten_pins.values()) > self.capacity // 2
        ):
            del self._unwritten_pins[next(iter(self._unwritten_pins))]
        await self._publish_pins(tenant, session)

    async def find_pins(self, tenant: TenantScope, session: str) -> frozenset[str]:
        """Returns the pinned call ids; while the store is unavailable, those known last."""
        with suppress(StoreUnavailable):
            self._cache_pins(tenant, session, _decode_pins(await self.store.get(_pins_key(tenant, session))))
        unwritten = self._unwritten_pins.get((tenant, session), frozenset())
        return self._pins_in_memory(tenant, session) | unwritten

    # -- demanded compactions -------------------------------------------------------

    async def demand_compaction(self, tenant: TenantScope, session: str) -> None:
        """Demands a compaction at the session's next request. Raises StoreUnavailable."""
        await self.store.put(_request_key(tenant, session), b"1", ttl=REQUEST_SECONDS)
        self._changes += 1
        self._requests.add(f"{tenant.name}|{session}")

    def is_compaction_demanded(self, tenant: TenantScope, session: str) -> bool:
        """Whether a person demands a compaction, as far as this worker knows."""
        return bool(self._requests) and f"{tenant.name}|{session}" in self._requests

    async def clear_demand(self, tenant: TenantScope, session: str) -> None:
        """Removes a demand that was fulfilled."""
        self._changes += 1
        self._requests.discard(f"{tenant.name}|{session}")
        try:
            await self.store.delete([_request_key(tenant, session)])
        except StoreUnavailable:
            return
        finally:
            self._changes += 1

    # -- modes ------------------------------------------------------------------------

    async def set_mode(self, tenant: TenantScope, session: str, mode: SessionMode) -> None:
        """Sets a session's mode. Raises StoreUnavailable."""
        key, name = _mode_key(tenant, session), f"{tenant.name}|{session}"
        if mode == "auto":
            await self.store.delete([key])
            self._modes.pop(name, None)
        else:
            await self.store.put(key, mode.encode(), ttl=self.retention)
            self._modes[name] = mode
        self._changes += 1

    def find_mode(self, tenant: TenantScope, session: str) -> SessionMode:
        """Returns a session's mode, as far as this worker knows."""
        return self._modes.get(f"{tenant.name}|{session}", "auto") if self._modes else "auto"

    # -- undone compactions -------------------------------------------------------------

    async def undo_compactions(self, tenant: TenantScope, session: str, undone: UndoneCompactions) -> None:
        """Adds undone compactions to those of the session. Raises StoreUnavailable."""
        key = _undone_key(tenant, session)
        earlier = _decode_undone(await self.store.get(key))
        merged = undone.merge(earlier) if earlier is not None else undone
        await self.store.put(key, msgspec.json.encode(merged), ttl=self.retention)
        self._changes += 1
        self._set_undone(self._undone | {f"{tenant.name}|{session}": merged})

    async def withdraw_compactions(self, tenant: TenantScope, session: str, refused: UndoneCompactions) -> None:
        """Adds compactions that a provider refused. While the store is unavailable, this worker alone knows of them,
        and `poll` writes them later."""
        name = f"{tenant.name}|{session}"
        known = self._undone.get(name)
        self._set_undone(self._undone | {name: refused.merge(known) if known is not None else refused})
        try:
            await self.undo_compactions(tenant, session, refused)
            self._unwritten_refusals.pop((tenant, session), None)
        except StoreUnavailable:
            waiting = self._unwritten_refusals.get((tenant, session))
            self._unwritten_refusals[tenant, session] = refused.merge(waiting) if waiting is not None else refused
            if len(self._unwritten_refusals) > _MAX_WAITING:
                del self._unwritten_refusals[next(iter(self._unwritten_refusals))]

    def find_undone(self, tenant: TenantScope, session: str) -> UndoneCompactions | None:
        """Returns a session's undone compactions, as far as this worker knows; None if there are none."""
        return self._undone.get(f"{tenant.name}|{session}") if self._undone else None

    def find_refused_form(self, tenant: TenantScope, session: str, learned: RefusedForm) -> RefusedForm:
        """Returns the most careful form that was refused: in this session, or of the model as it was `learned`."""
        undone = self.find_undone(tenant, session)
        return most_careful(learned, undone.refused_form) if undone is not None else learned

    def _set_undone(self, undone: dict[str, UndoneCompactions]) -> None:
        is_changed = undone != self._undone
        self._undone = undone
        if is_changed:
            self.on_undone(frozenset().union(*(each.ids for each in undone.values())))

    # -- waiting summaries --------------------------------------------------------------

    def set_waiting_for_summary(self, tenant: TenantScope, session: str, is_waiting: bool) -> None:
        """Sets whether a compaction due at the start of a turn waits for its summary. In memory only: if it is lost,
        the mid-generation trigger applies later."""
        self._waiting_sessions.pop((tenant, session), None)
        if is_waiting:
            self._waiting_sessions[tenant, session] = None
            if len(self._waiting_sessions) > _MAX_WAITING:
                del self._waiting_sessions[next(iter(self._waiting_sessions))]

    def is_waiting_for_summary(self, tenant: TenantScope, session: str) -> bool:
        """Whether a compaction of the whole history waits for its summary."""
        return bool(self._waiting_sessions) and (tenant, session) in self._waiting_sessions

    # -- all of them --------------------------------------------------------------

    async def load(self, tenant: TenantScope, sessions: Sequence[str]) -> list[SessionOverrides]:
        """Loads the overrides of these sessions from the store. Raises StoreUnavailable."""
        keys = [make_key(tenant, session) for session in sessions for make_key in _KEYS]
        values = await self.store.get_many(keys) if keys else []
        return [
            SessionOverrides(
                _decode_pins(pins) | self._unwritten_pins.get((tenant, session), frozenset()),
                request is not None,
                _decode_mode(mode),
                undone.ids if (undone := _decode_undone(undone_value)) is not None else frozenset(),
                undone.refusals if undone is not None else {},
            )
            for session, pins, request, mode, undone_value in zip(
                sessions, *(values[at :: len(_KEYS)] for at in range(len(_KEYS))), strict=True
            )
        ]

    async def forget(self, tenant: TenantScope, sessions: Collection[str]) -> None:
        """Removes all overrides of sessions that are erased. Raises StoreUnavailable."""
        for session in sessions:
            self._unwritten_pins.pop((tenant, session), None)
            self._unwritten_refusals.pop((tenant, session), None)
        keys = [make_key(tenant, session) for session in sessions for make_key in _KEYS]
        for start in range(0, len(keys), _PAGE):
            await self.store.delete(keys[start : start + _PAGE])
        self._changes += 1
        names = {f"{tenant.name}|{session}" for session in sessions}
        self._requests -= names
        for session in sessions:
            self._cache_pins(tenant, session, frozenset())
        for name in names & self._modes.keys():
            del self._modes[name]
        self._set_undone({name: undone for name, undone in self._undone.items() if name not in names})

    async def poll(self) -> None:
        """Reads the modes, compaction requests and undone compactions of other workers, and writes the pins that the
        store does not have yet."""
        before, requests, modes, after = self._changes, set[str](), dict[str, SessionMode](), ""
        undone = dict[str, UndoneCompactions]()
        try:
            while page := await self.store.scan(_COLLECTION, after=after, limit=_PAGE):
                for name, value in page:
                    if name.endswith(_MODE_SUFFIX):
                        modes[name.removesuffix(_MODE_SUFFIX)] = _decode_mode(value)
                    elif name.endswith(_UNDONE_SUFFIX):
                        if (each := _decode_undone(value)) is not None:
                            undone[name.removesuffix(_UNDONE_SUFFIX)] = each
                    else:
                        requests.add(name)
                after = page[-1][0]
                if len(page) < _PAGE:
                    break
        except StoreUnavailable:
            return
        if self._changes == before:
            # Otherwise the result may be older than what this worker knows.
            self._requests, self._modes = requests, modes
            self._set_undone(undone)
        for (tenant, session), refused in list(self._unwritten_refusals.items()):
            await self.withdraw_compactions(tenant, session, refused)
        for tenant, session in list(self._unwritten_pins):
            await self._publish_pins(tenant, session)

    async def _publish_pins(self, tenant: TenantScope, session: str) -> None:
        unwritten = self._unwritten_pins.get((tenant, session), frozenset())
        try:
            stored = _decode_pins(await self.store.get(_pins_key(tenant, session)))
            merged = frozenset([*stored, *sorted(unwritten - stored)][:MOST_PINS])
            if merged != stored:
                value = msgspec.json.encode(sorted(merged))
                await self.store.put(_pins_key(tenant, session), value, ttl=self.retention)
        except StoreUnavailable:
            return
        self._cache_pins(tenant, session, merged)
        if self._unwritten_pins.get((tenant, session)) == unwritten:
            self._unwritten_pins.pop((tenant, session), None)

    def _cache_pins(self, tenant: TenantScope, session: str, call_ids: frozenset[str]) -> None:
        self._pins[f"{tenant.name}|{session}"] = call_ids

    def _pins_in_memory(self, tenant: TenantScope, session: str) -> frozenset[str]:
        return self._pins.get(f"{tenant.name}|{session}") or frozenset()


def _decode_pins(value: bytes | None) -> frozenset[str]:
    """Decodes stored pins; none if there is no value or it is unreadable."""
    try:
        return frozenset(_PINS.decode(value)) if value is not None else frozenset()
    except msgspec.MsgspecError:
        return frozenset()


def _decode_mode(value: bytes | None) -> SessionMode:
    """Decodes a stored mode; `auto` if there is none or it is unknown."""
    return next((mode for mode in MODES if value == mode.encode()), "auto")


def _decode_undone(value: bytes | None) -> UndoneCompactions | None:
    """Decodes stored undone compactions; None if there are none or they are unreadable."""
    try:
        return _UNDONE.decode(value) if value is not None else None
    except msgspec.MsgspecError:
        return None


def _pins_key(tenant: TenantScope, session: str) -> Key:
    return Key(f"pins/{tenant.name}", session)


def _request_key(tenant: TenantScope, session: str) -> Key:
    return Key(_COLLECTION, f"{tenant.name}|{session}")


def _mode_key(tenant: TenantScope, session: str) -> Key:
    return Key(_COLLECTION, f"{tenant.name}|{session}{_MODE_SUFFIX}")


def _undone_key(tenant: TenantScope, session: str) -> Key:
    return Key(_COLLECTION, f"{tenant.name}|{session}{_UNDONE_SUFFIX}")


_KEYS = (_pins_key, _request_key, _mode_key, _undone_key)
"""They make the keys of a session's overrides."""
