"""Lists tenants, and resolves the `--tenant` option of the other commands."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from accordion.accounting.ledger import sessions_collection
from accordion.archive import archive_entries
from accordion.composition.configured_store import TENANT_SECRET
from accordion.config import Settings
from accordion.memory.entries import ALL_TYPES
from accordion.model.errors import BadRequest, ConfigError, StoreUnavailable
from accordion.model.memories import MemoryFilter, MemoryStore
from accordion.model.ports import KeyValueStore
from accordion.model.tenant import TenantScope
from accordion.sessions.proxy_keys import ProxyKey
from accordion.sessions.tenants import DEFAULT_TENANT, TENANTS, TENANTS_WITH_MEMORIES, Caller, Tenants

LOCAL = "local"
"""The command line's name for the only tenant of a proxy on a loopback address."""
_PAGE = 1_000


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant with its number of sessions, the bytes of its archive (at most), and its number of memories."""

    tenant: str
    sessions: int
    held: int
    memories: int | None
    """None if they are sealed with a key that is not in the config."""


async def list_tenants(settings: Settings, store: KeyValueStore) -> list[str]:
    """Returns all tenants: those of proxy keys, recent ones of the store, and those with memories.

    Raises StoreUnavailable.
    """
    names = [key.id for key in settings.proxy_keys]
    return list(
        dict.fromkeys([*names, *await _list_names(store, TENANTS), *await _list_names(store, TENANTS_WITH_MEMORIES)])
    )


async def _list_names(store: KeyValueStore, collection: str) -> list[str]:
    names, after = list[str](), ""
    while page := await store.scan(collection, after=after, limit=_PAGE):
        names += [name for name, _ in page]
        after = page[-1][0]
    return names


async def _count_memories(memories: MemoryStore, tenant: TenantScope) -> int | None:
    """Counts memories; None if they are sealed with another key."""
    with suppress(StoreUnavailable):
        return await memories.count(tenant, MemoryFilter(types=ALL_TYPES))
    return None


async def resolve_tenant(settings: Settings, store: KeyValueStore, option: str | None) -> str:
    """Resolves the `--tenant` option: a name, a prefix of one, or `local`; without it, the only tenant.

    Raises BadRequest for an ambiguous or unknown tenant, and StoreUnavailable.
    """
    names = await list_tenants(settings, store)
    if option is None:
        if len(names) > 1:
            raise BadRequest(f"--tenant: choose one of {', '.join(names)}")
        return names[0] if names else DEFAULT_TENANT
    if option in names or option == DEFAULT_TENANT:
        return option
    if option == LOCAL:
        return DEFAULT_TENANT
    matches = [name for name in names if name.startswith(option)]
    if len(matches) == 1:
        return matches[0]
    known_tenants = f"; the tenants are {', '.join(names)}" if names else ""
    raise BadRequest(f"--tenant: there is no tenant {option!r}{known_tenants}")


async def tenant_rows(settings: Settings, store: KeyValueStore, memories: MemoryStore) -> list[TenantRow]:
    """Returns every tenant with the amount of its data. Raises StoreUnavailable."""
    rows = []
    for name in await list_tenants(settings, store):
        caller = await caller_of(settings, store, name)
        size = 0
        async for page in archive_entries.scan_entries(store, caller.tenant.archive_namespace):
            size += sum(entry.size for entry in page)
        sessions, after = set[str](), ""
        while session_page := await store.scan(sessions_collection(caller.tenant), after=after, limit=_PAGE):
            sessions.update(row.partition(".")[0] for row, _ in session_page)
            after = session_page[-1][0]
        rows.append(TenantRow(name, len(sessions), size, await _count_memories(memories, caller.tenant)))
    return rows


async def caller_of(settings: Settings, store: KeyValueStore, tenant: str) -> Caller:
    """Returns the caller of a tenant as proxies identify it. Raises ConfigError if no proxy has used the store yet."""
    secret = settings.server.tenant_key.reveal().encode() or await store.get(TENANT_SECRET)
    if not secret:
        raise ConfigError("the store is empty: no proxy has used it yet", path="$.store.url")
    return Tenants(secret, (ProxyKey(tenant, "own"),)).identify({b"x-accordion-key": b"own"})
