"""Which spool a store has, and whether writes of a former version are that store's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accordion.archive.holdings import HELD, HOLDERS
from accordion.core.ports import Key, Put, Store
from accordion.settings import Settings
from accordion.storage.spool import Spool, open_spool

_NEEDED = ("fold/", "folding/", "overlay/", "link/", "point/")
"""How the names of such keys begin (compaction/records.py, compaction/overlays.py, archive/links.py,
identity/points.py)."""


def spool_of(settings: Settings) -> Spool:
    """The spool of the configured store. Raises ConfigError where its file is another program's."""
    path = settings.store.spool_path()
    return open_spool(
        Path(path) if path else None,
        place=settings.store.address_hash(),
        capacity=settings.store.spool_bytes,
        has_copies=is_server(settings),
    )


def is_needed_away(key: Key) -> bool:
    """Whether the next request of a conversation cannot do without what is stored under a key: a compaction, what was
    read back, what a response's id stands for, and what the provider keeps under it."""
    return not key.collection and key.name.startswith(_NEEDED)


def is_server(settings: Settings) -> bool:
    """Whether the store is a server: it may be away when the proxy starts, while the spool is there."""
    return not settings.store.file() and settings.store.url.reveal() != "memory://"


async def owns_former(settings: Settings, store: Store, puts: Sequence[Put]) -> bool:
    """Whether writes that a former version left without an identity are this store's. Raises StoreUnavailable.

    The file beside an SQLite store is that store's. Elsewhere the store has to know each tenant in the writes: tenants
    are named by a key that is random for each store, unless `server.tenant_key` sets it.
    """
    if settings.store.file() and settings.store.spool is None:
        return True
    tenants = {put.key.collection.removeprefix(HELD) for put in puts if put.key.collection.startswith(HELD)}
    if not tenants or settings.server.tenant_key.reveal():
        return False
    known = await store.get_many([Key(HOLDERS, tenant) for tenant in sorted(tenants)])
    return None not in known
