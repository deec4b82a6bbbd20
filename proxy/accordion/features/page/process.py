"""The page in one process: what it remembers of exchanges and of the log, and its routes.

The modules of the views, and the templates, are imported in a thread with the first request: most workers never serve
the page.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.routing import Route

from accordion import __version__
from accordion.composition.features import Core, RunningFeature, feature_records
from accordion.features.page.addresses import ALL_PATHS
from accordion.features.page.feed import ExchangeFeed
from accordion.features.page.recent_log import RecentLog
from accordion.features.page.request_health import RequestHealth
from accordion.http.deferred_routes import DeferredRoutes

if TYPE_CHECKING:
    from accordion.features.page.views import Health

_log = logging.getLogger("accordion")


class RunningPage(RunningFeature):
    """The page of a process."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._feed, self._request_health, self._recent_log = ExchangeFeed(), RequestHealth(), RecentLog()
        self.observers = (self._feed, self._request_health)

    def routes(self) -> Sequence[Route]:
        """Returns the routes of the page."""
        return DeferredRoutes(self._build_routes, self._core.tasks.offload).at(*ALL_PATHS)

    async def start(self) -> None:
        """Begins to remember the log."""
        _log.addHandler(self._recent_log)

    async def close(self) -> None:
        """Ends that."""
        _log.removeHandler(self._recent_log)

    def _build_routes(self) -> list[Route]:
        from accordion.features.page.routes import Pages  # noqa: PLC0415  # see above
        from accordion.features.page.services import PageServices  # noqa: PLC0415

        core = self._core
        return Pages(
            PageServices(
                core.queries,
                core.tenants,
                core.archive_reader,
                core.sent_history,
                core.session_overrides,
                core.page_views(),
                feature_records(),
                self._health,
                self._feed,
                core.clock,
                core.tasks,
                __version__,
                core.administration,
            )
        ).routes()

    def _health(self, tenant: str) -> Health:
        """Describes the state of this process to a tenant."""
        from accordion.features.page.views import Health  # noqa: PLC0415  # see above

        core = self._core
        return Health(
            str(core.settings().store.url),
            core.store.is_available,
            "" if core.store.is_available else core.store.problem,
            core.outbox.waiting,
            core.spooled.describe(),
            core.learned_limits.list_limits(tenant),
            self._request_health.of(tenant),
            self._recent_log.lines,
        )
