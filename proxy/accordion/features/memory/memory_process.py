"""The memories in one process: what is switched on, and imports the packages of memories only for these parts.

What most proxies have switched on and few use, such as the interfaces and the import of session memories, is imported
in a thread when it is first used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from accordion import __version__
from accordion.archive.feature_records import TENANTS_WITH_FEATURE_RECORDS
from accordion.composition.cache_shares import divide_cache
from accordion.composition.features import Core, PageView, RunningFeature
from accordion.config import Settings
from accordion.config.extras import is_installed
from accordion.features.memory.memory_mentions import ALL_PROJECTS, MemoryMentions
from accordion.http.deferred_routes import DeferredRoutes
from accordion.insertions.recall_source import RecallRequest, RecallSource
from accordion.model.errors import AccordionError, MissingExtra
from accordion.model.ports import Key, Outbox, Tasks
from accordion.model.records import RecallUsage
from accordion.model.tenant import TenantScope
from accordion.pipeline.mentions import Mentions
from accordion.pipeline.response_hooks import ResponseHook
from accordion.sessions.tenants import Caller

if TYPE_CHECKING:
    from accordion.features.memory.memory_parts import MemoryParts

_log = logging.getLogger("accordion")

_REST_PATHS = ("/accordion/memory", "/accordion/memory/{path:path}")
_MCP_PATH = "/mcp"


class RunningMemory(RunningFeature):
    """The memories of a process. Their parts are built at their first use."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = Lock()
        self._parts: MemoryParts | None = None
        self.page_views = (
            PageView("memories", "Memories", "memories.html", "accordion.features.memory", self._list_memories),
        )

    def load(self) -> MemoryParts:
        """Returns the parts. The first call imports them and takes tenths of a second. Any thread may call."""
        with self._lock:
            if self._parts is None:
                from accordion.features.memory.memory_parts import MemoryParts  # noqa: PLC0415  # see above

                core = self._core
                self._parts = MemoryParts(
                    core.settings, core.store, core.archive_reader, core.transcripts, core.counter, core.tasks,
                    core.clock, partial(note_tenant, core.outbox), core.metrics.count_memory_writer,
                )  # fmt: skip
            return self._parts

    def mentions(self, settings: Settings) -> Mentions:
        """Builds the check for memories in a list."""
        recall = settings.memory.recall
        project = ALL_PROJECTS if recall.all_projects else settings.memory.project
        return MemoryMentions(
            divide_cache(settings.limits.cache_bytes).mentions, recall_everywhere=recall.enabled, project=project
        )

    def requested_sources(self, settings: Settings) -> Sequence[RecallSource]:
        """Builds the import of session memories into conversations; none if memories are disabled."""
        if not _is_on(settings):
            return ()
        store = self._core.insertion_store
        return (_DeferredImport(lambda: self.load().session_import(store), self._core.tasks),)

    def recall_sources(self, settings: Settings) -> Sequence[RecallSource]:
        """Builds the automatic recall of memories; none if it is disabled."""
        if not settings.memory.recall.enabled:
            return ()
        return (self.load().memory_recall(settings, self._core.insertion_store),)

    def response_hooks(self, settings: Settings) -> Sequence[ResponseHook]:
        """Builds the hook that makes memories of compacted messages; none if it is disabled."""
        if not (settings.memory.enabled and settings.memory.after_compaction):
            return ()
        from accordion.features.memory.memory_capture import MemoryCaptureHook  # noqa: PLC0415  # see above

        return (MemoryCaptureHook(self.load().memory_capture(settings.memory.project)),)

    def routes(self) -> Sequence[HttpRoute]:
        """Returns the routes of memories for REST and MCP; none if memories are disabled.

        Without the extra, each raises MissingExtra.
        """
        if not self._core.settings().memory.enabled:
            return ()
        if not is_installed("memory"):
            return [*_refuse("Memory", "memory", *_REST_PATHS), *_refuse("MCP", "mcp", _MCP_PATH)]
        core = self._core
        routes = DeferredRoutes(lambda: self.load().routes(core.tenants, __version__), core.tasks.offload)
        return routes.at(*_REST_PATHS, _MCP_PATH)

    async def start(self) -> None:
        """Begins to load the static embedding, so that no turn waits for it."""
        self._core.tasks.spawn(self._warm(), "open the memories")

    async def _warm(self) -> None:
        """Loads the static embedding. No endpoint is called."""
        config = self._core.settings().memory
        if config.recall.enabled and config.embeddings is None:
            with suppress(AccordionError):
                await self.load().warm()

    def forget(self) -> None:
        """Drops what is in memory of the memories, because another store took the place of the last one."""
        if self._parts is not None:
            self._parts.forget()

    async def close(self) -> None:
        """Closes the memories and the client."""
        if self._parts is not None:
            await self._parts.close()
            self._parts = None

    async def _list_memories(self, request: Request, caller: Caller) -> Mapping[str, Any]:
        """Returns the values of the page's view."""
        from accordion.features.memory.memory_view import NO_MEMORIES, list_memories  # noqa: PLC0415  # see above

        if not _is_on(self._core.settings()):
            return NO_MEMORIES
        parts = await self._core.tasks.offload(self.load)
        return await list_memories(parts.services(), request, caller)


def _is_on(settings: Settings) -> bool:
    return settings.memory.enabled and is_installed("memory")


class _DeferredImport:
    """The import of session memories, which is built at the first request that may ask for one."""

    def __init__(self, build: Callable[[], RecallSource], tasks: Tasks) -> None:
        self._build, self._tasks = build, tasks
        self._source: RecallSource | None = None

    @property
    def needs_proxy(self) -> bool:
        """Whether it asks for more than the conversation and its archive, which only a running proxy has."""
        return False

    async def recall(self, request: RecallRequest) -> RecallUsage | None:
        """Inserts the memories that the request asks for; see SessionImport. Never raises."""
        if not request.may_hold_insertions:
            return None
        source = self._source
        try:
            if source is None:
                source = self._source = await self._tasks.offload(self._build)
        except Exception:
            _log.exception("the packages of memories could not be imported")
            return None
        return await source.recall(request)


def _refuse(purpose: str, extra: str, *paths: str) -> list[HttpRoute]:
    """Returns routes whose endpoint raises MissingExtra, whatever the method is."""

    async def refuse(request: Request) -> Response:
        raise MissingExtra(purpose, extra)

    return [HttpRoute(path, refuse, methods=["GET", "POST", "DELETE"]) for path in paths]


def note_tenant(outbox: Outbox, tenant: TenantScope) -> None:
    """Adds a tenant to the list of tenants with records of features."""
    outbox.put(Key(TENANTS_WITH_FEATURE_RECORDS, tenant.name), bytes)
