"""The services behind the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from accordion.archive.archive_reader import ArchiveReader
from accordion.archive.feature_records import FeatureRecords
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.composition.features import PageView
from accordion.features.page.feed import ExchangeFeed
from accordion.features.page.views import Health
from accordion.http.admin_api import Administration
from accordion.model.ports import Clock, Tasks
from accordion.pipeline.queries import Queries
from accordion.pipeline.sent_history import SentHistory
from accordion.sessions.tenants import Tenants


class PageServices(msgspec.Struct, frozen=True):
    """What the page reads and changes. `more_views` are those of other features."""

    queries: Callable[[], Queries]
    tenants: Callable[[], Tenants]
    archive: ArchiveReader
    sent: SentHistory
    overrides: SessionOverrideStore
    more_views: Sequence[PageView]
    feature_records: Sequence[FeatureRecords]
    health: Callable[[str], Health]
    feed: ExchangeFeed
    clock: Clock
    tasks: Tasks
    version: str
    administration: Administration
