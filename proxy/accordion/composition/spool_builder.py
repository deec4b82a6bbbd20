"""Builds the spool of the configured store, and decides whether a former version's writes belong to that store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accordion.archive.archive_entries import ENTRIES_PREFIX, TENANTS_WITH_ARCHIVE
from accordion.config import Settings
from accordion.insertions.store import is_insertion_key
from accordion.model.ports import Key, KeyValueStore, Put
from accordion.stores.spool import Spool, find_memory_folder, open_spool

_ESSENTIAL_PREFIXES = ("fold/", "folding/", "form/", "overlay/", "link/", "point/")
"""The prefixes of essential keys (compaction/repository.py, insertions/store.py, archive/response_links.py,
sessions/prefix_nodes.py)."""


def build_spool(settings: Settings) -> Spool:
    """Opens the spool of the configured store. Raises ConfigError if its file belongs to another program."""
    path = Path(text) if (text := settings.store.spool_path()) else None
    return open_spool(
        path,
        address_hash=settings.store.address_hash(),
        memory_folder=find_memory_folder(path.parent) if path is not None else None,
        capacity=settings.store.spool_bytes,
        has_copies=is_server(settings),
        is_merged=is_insertion_key,
    )


def is_needed_while_unavailable(key: Key) -> bool:
    """Whether the next request of a conversation needs the value of a key.

    That holds for compactions, insertions, and the history behind a response's id.
    """
    return not key.collection and key.name.startswith(_ESSENTIAL_PREFIXES)


def is_server(settings: Settings) -> bool:
    """Whether the store is a server, which may be unavailable when the proxy starts, unlike the spool."""
    return not settings.store.file() and settings.store.url.reveal() != "memory://"


async def owns_former(settings: Settings, store: KeyValueStore, puts: Sequence[Put]) -> bool:
    """Whether writes that a former version spooled without an identity belong to this store. Raises StoreUnavailable.

    A file beside an SQLite store belongs to that store. Any other store must know each tenant in the writes: the
    tenants' names depend on a key that is random for each store, unless `server.tenant_key` sets it.
    """
    if settings.store.file() and settings.store.spool is None:
        return True
    tenants = {
        put.key.collection.removeprefix(ENTRIES_PREFIX) for put in puts if put.key.collection.startswith(ENTRIES_PREFIX)
    }
    if not tenants or settings.server.tenant_key.reveal():
        return False
    values = await store.get_many([Key(TENANTS_WITH_ARCHIVE, tenant) for tenant in sorted(tenants)])
    return None not in values
