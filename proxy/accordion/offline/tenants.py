"""`accordion tenants`, and whose things another command means."""

from __future__ import annotations

from contextlib import suppress

from accordion.accounting.journal import sessions_of
from accordion.archive import holdings
from accordion.archive.artifacts import tenant_of
from accordion.core.errors import BadRequest, ConfigError, StoreUnavailable
from accordion.core.memories import Filter, Memories
from accordion.core.ports import Store
from accordion.core.values import dataclass
from accordion.identity.tenants import DEFAULT_TENANT, LISTED, REMEMBERED, Caller, ProxyKey, Tenants
from accordion.memory.entries import EVERY
from accordion.settings import Settings
from accordion.wiring.mark import TENANT_SECRET

LOCAL = "local"
"""What people call the only tenant of a proxy on a loopback address."""
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant, how many sessions are on record, the bytes that are held of it, at most, and how many memories."""

    tenant: str
    sessions: int
    held: int
    memories: int | None
    """None where they are sealed and their key is not in the config."""


async def known(settings: Settings, store: Store) -> list[str]:
    """The tenants that there are: those of proxy keys, all that used the store of late, and all for whom something was
    remembered. Raises StoreUnavailable."""
    names = [key.id for key in settings.proxy_keys]
    return list(dict.fromkeys([*names, *await _listed(store, LISTED), *await _listed(store, REMEMBERED)]))


async def _listed(store: Store, collection: str) -> list[str]:
    names, after = list[str](), ""
    while page := await store.scan(collection, after=after, limit=_PAGE):
        names += [name for name, _ in page]
        after = page[-1][0]
    return names


async def _remembered(memories: Memories, space: bytes) -> int | None:
    """How many memories there are; None where they are sealed with another key."""
    with suppress(StoreUnavailable):
        return await memories.count(space, Filter(types=EVERY))
    return None


async def named(settings: Settings, store: Store, given: str | None) -> str:
    """Whose things are meant: by name, by the beginning of one, or as `local`; where nothing is given the only tenant's
    that there is. Raises BadRequest where that is not clear, StoreUnavailable."""
    names = await known(settings, store)
    if given is None:
        if len(names) > 1:
            raise BadRequest(f"--tenant: choose one of {', '.join(names)}")
        return names[0] if names else DEFAULT_TENANT
    if given in names or given == DEFAULT_TENANT:
        return given
    if given == LOCAL:
        return DEFAULT_TENANT
    begun = [name for name in names if name.startswith(given)]
    if len(begun) == 1:
        return begun[0]
    there = f"; the tenants are {', '.join(names)}" if names else ""
    raise BadRequest(f"--tenant: there is no tenant {given!r}{there}")


async def rows(settings: Settings, store: Store, memories: Memories) -> list[TenantRow]:
    """Every tenant with what is kept of it. Raises StoreUnavailable."""
    made = []
    for name in await known(settings, store):
        caller = await caller_of(settings, store, name)
        held = 0
        async for page in holdings.entries(store, tenant_of(caller.space)):
            held += sum(entry.size for entry in page)
        sessions, after = set[str](), ""
        while found := await store.scan(sessions_of(name), after=after, limit=_PAGE):
            sessions.update(row.partition(".")[0] for row, _ in found)
            after = found[-1][0]
        made.append(TenantRow(name, len(sessions), held, await _remembered(memories, caller.space)))
    return made


async def caller_of(settings: Settings, store: Store, tenant: str) -> Caller:
    """Who would ask, as proxies tell him. Raises ConfigError where none has used the store yet."""
    secret = settings.server.tenant_key.reveal().encode() or await store.get(TENANT_SECRET)
    if not secret:
        raise ConfigError("the store is empty: no proxy has used it yet", path="$.store.url")
    return Tenants(secret, (ProxyKey(tenant, "own"),)).identify({b"x-accordion-key": b"own"})
