"""The services behind the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from accordion.archive.archive_reader import ArchiveReader
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.features.page.feed import ExchangeFeed
from accordion.features.page.views import Health
from accordion.http.admin_api import Administration
from accordion.http.memory_operations import MemoryServices
from accordion.model.memories import MemoryStore
from accordion.model.ports import Clock, Tasks
from accordion.pipeline.queries import Queries
from accordion.pipeline.sent_history import SentHistory
from accordion.sessions.tenants import Tenants


class PageServices(msgspec.Struct, frozen=True):
    """What the page reads and changes. `memory` is None where memories are off or not installed."""

    queries: Callable[[], Queries]
    tenants: Callable[[], Tenants]
    archive: ArchiveReader
    sent: SentHistory
    overrides: SessionOverrideStore
    memory: Callable[[], MemoryServices] | None
    stored_memories: Callable[[], Awaitable[MemoryStore]]
    health: Callable[[str], Health]
    feed: ExchangeFeed
    clock: Clock
    tasks: Tasks
    version: str
    administration: Administration
