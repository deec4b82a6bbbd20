"""Opens the memories in the store, for erasures: they are a tenant's data, whether or not the proxy uses memories."""

from __future__ import annotations

from accordion.config import Settings
from accordion.model.memories import MemoryStore
from accordion.model.ports import KeyValueStore
from accordion.stores.encryption import open_sealer


def open_stored_memories(settings: Settings, store: KeyValueStore) -> MemoryStore:
    """Returns the memories. The first call imports them, which takes tenths of a second."""
    from accordion.providers.models.static_embedder import StaticEmbedder  # noqa: PLC0415  # most proxies need none
    from accordion.stores.memories import StoredMemories  # noqa: PLC0415

    return StoredMemories(store, StaticEmbedder(), sealer=open_sealer(settings.archive.key.reveal()))
