"""Builds the parts of memories that are switched on, and imports the packages of memories only for these.

What most proxies have switched on and few use, such as the interfaces and the import of session memories, is imported
in a thread when it is first used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from accordion.archive.archive_reader import ArchiveReader
from accordion.archive.transcripts import TranscriptStore
from accordion.composition.cache_shares import divide_cache
from accordion.config import Settings
from accordion.config.extras import is_installed
from accordion.http.deferred_routes import DeferredRoutes
from accordion.insertions.recall_source import RecallRequest, RecallSource
from accordion.insertions.store import InsertionStore
from accordion.model.errors import AccordionError, MissingExtra
from accordion.model.memories import MemoryStore
from accordion.model.ports import Clock, Key, KeyValueStore, Outbox, Tasks, TokenCounter
from accordion.model.records import RecallUsage
from accordion.model.tenant import TenantScope
from accordion.pipeline.memory_mentions import ALL_PROJECTS, MemoryMentions
from accordion.providers.models.summarizer import TokenUsageCallback
from accordion.sessions.tenants import TENANTS_WITH_MEMORIES, Tenants

if TYPE_CHECKING:
    from accordion.composition.memory_parts import MemoryParts
    from accordion.pipeline.memory_capture import MemoryCapture

_log = logging.getLogger("accordion")

_REST_PATHS = ("/accordion/memory", "/accordion/memory/{path:path}")
_MCP_PATH = "/mcp"


class MemoryBuilder:
    """Builds the parts of memories at their first use.

    `on_write` receives the tenant key of each written memory, `on_usage` the token usage of the model that writes them.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        store: KeyValueStore,
        archive_reader: ArchiveReader,
        transcripts: TranscriptStore,
        counter: TokenCounter,
        tasks: Tasks,
        clock: Clock,
        on_write: Callable[[TenantScope], object],
        on_usage: TokenUsageCallback,
    ) -> None:
        self._settings, self._tasks = settings, tasks
        self._arguments = (settings, store, archive_reader, transcripts, counter, tasks, clock, on_write, on_usage)
        self._lock = Lock()
        self._parts: MemoryParts | None = None

    def load(self) -> MemoryParts:
        """Returns the parts. The first call imports them and takes tenths of a second. Any thread may call."""
        with self._lock:
            if self._parts is None:
                from accordion.composition.memory_parts import MemoryParts  # noqa: PLC0415  # see above

                self._parts = MemoryParts(*self._arguments)
            return self._parts

    async def open_memories(self) -> MemoryStore:
        """Returns the store of memories, even if the interfaces are disabled."""
        return (await self._tasks.offload(self.load)).memories()

    def session_import(self, settings: Settings, insertion_store: InsertionStore) -> RecallSource | None:
        """Builds the import of session memories into conversations; None if memories are disabled."""
        if not (settings.memory.enabled and is_installed("memory")):
            return None
        return _DeferredImport(lambda: self.load().session_import(insertion_store), self._tasks)

    def memory_mentions(self, settings: Settings) -> MemoryMentions:
        """Builds the check for memories in a list."""
        recall = settings.memory.recall
        project = ALL_PROJECTS if recall.all_projects else settings.memory.project
        return MemoryMentions(
            divide_cache(settings.limits.cache_bytes).mentions, recall_everywhere=recall.enabled, project=project
        )

    def memory_recall(self, settings: Settings, insertion_store: InsertionStore) -> RecallSource | None:
        """Builds the automatic recall of memories; None if it is disabled."""
        return self.load().memory_recall(settings, insertion_store) if settings.memory.recall.enabled else None

    async def warm(self) -> None:
        """Loads the static embedding, so that no turn waits for it. No endpoint is called."""
        config = self._settings().memory
        if config.recall.enabled and config.embeddings is None:
            with suppress(AccordionError):
                await self.load().warm()

    def memory_capture(self, settings: Settings) -> MemoryCapture | None:
        """Builds the step that makes memories of compacted messages; None if it is disabled."""
        if not (settings.memory.enabled and settings.memory.after_compaction):
            return None
        return self.load().memory_capture(settings.memory.project)

    def routes(self, tenants: Callable[[], Tenants], version: str) -> list[HttpRoute]:
        """Returns the routes of memories for REST and MCP; none if memories are disabled.

        Without the extra, each raises MissingExtra.
        """
        if not self._settings().memory.enabled:
            return []
        if not is_installed("memory"):
            return [*_refuse("Memory", "memory", *_REST_PATHS), *_refuse("MCP", "mcp", _MCP_PATH)]
        routes = DeferredRoutes(lambda: self.load().routes(tenants, version), self._tasks.offload)
        return routes.at(*_REST_PATHS, _MCP_PATH)

    def forget(self) -> None:
        """Drops what is in memory of the memories, because another store took the place of the last one."""
        if self._parts is not None:
            self._parts.forget()

    async def close(self) -> None:
        """Closes the memories and the client."""
        if self._parts is not None:
            await self._parts.close()
            self._parts = None


class _DeferredImport:
    """The import of session memories, which is built at the first request that may ask for one."""

    def __init__(self, build: Callable[[], RecallSource], tasks: Tasks) -> None:
        self._build, self._tasks = build, tasks
        self._source: RecallSource | None = None

    async def recall(self, request: RecallRequest) -> RecallUsage | None:
        """Inserts the memories that the request asks for; see SessionImport. Never raises."""
        if not request.may_hold_memories:
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
    """Adds a tenant to the list of tenants with memories."""
    outbox.put(Key(TENANTS_WITH_MEMORIES, tenant.name), bytes)
