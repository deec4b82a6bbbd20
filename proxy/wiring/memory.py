"""The rooms of the memories, built at the first call: who does not use them pays nothing for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from starlette.routing import Route

from proxy.archive.reading_room import ReadingRoom
from proxy.archive.transcripts import Transcripts
from proxy.compaction.overlays import Overlays
from proxy.core.ports import Clock, Tasks, TokenCounter
from proxy.faces.mcp import McpFace
from proxy.faces.memory import MemoryApi
from proxy.faces.memory_rooms import Rooms
from proxy.identity.tenants import Tenants
from proxy.importing import Importing
from proxy.memory.compact import Compactions
from proxy.memory.consolidate import Consolidation
from proxy.memory.core_memory import CoreMemory
from proxy.memory.drafting import Drafting
from proxy.memory.reading import Reader
from proxy.memory.search import Search
from proxy.models.embedder import StaticEmbedder
from proxy.models.embedding_endpoint import EndpointEmbedder, Endpoints
from proxy.remembering import Remembering
from proxy.settings import Settings
from proxy.storage.opening import open_memories
from proxy.upstream.client import HttpUpstream
from proxy.upstream.transport import AiohttpTransport
from proxy.wiring.endpoints import endpoints
from proxy.wiring.tables import dialects


class Library:
    """Opens the memories when they are first wanted. `room` reads artifacts, `transcripts` what was said."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        room: ReadingRoom,
        transcripts: Transcripts,
        counter: TokenCounter,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._settings, self._room, self._transcripts = settings, room, transcripts
        self._counter, self._tasks, self._clock = counter, tasks, clock
        self._rooms: Rooms | None = None
        self._passing: TemporaryDirectory[str] | None = None
        self._upstream: HttpUpstream | None = None
        self._endpoints = Endpoints()
        self._settled: Settings | None = None

    def rooms(self) -> Rooms:
        """The rooms, with the project and the endpoints that are configured now. Raises NoMemories."""
        settings = self._settings()
        if settings is not self._settled:
            self._endpoints, self._settled = endpoints(settings), settings
        if self._rooms is None:
            self._rooms = self._built()
        project = settings.memory.project
        if self._rooms.project != project:
            self._rooms = replace(self._rooms, project=project)
        return self._rooms

    def importing(self, settings: Settings, overlays: Overlays) -> Importing | None:
        """Who puts session memories into conversations; None where there are to be none."""
        if not settings.memory.enabled:
            return None
        counter = self._counter
        return Importing(
            lambda: self.rooms().memories,
            overlays,
            self._clock,
            lambda text, model: counter.count(text, counter.encoding(model)),
        )

    def remembering(self, settings: Settings) -> Remembering | None:
        """Who makes memories of what is folded; None where nobody does."""
        if not (settings.memory.enabled and settings.memory.after_fold):
            return None
        return Remembering(
            lambda: self.rooms().compactions, self._transcripts, self._tasks, asyncio.sleep, settings.memory.project
        )

    def routes(self, tenants: Callable[[], Tenants], version: str) -> list[Route]:
        """Where they are had by REST and MCP; nowhere where the settings say so."""
        if not self._settings().memory.enabled:
            return []
        rest = MemoryApi(self.rooms, tenants, version)
        return [*rest.routes(), *McpFace(self.rooms, tenants, self._tasks.spawn, version).routes()]

    async def close(self) -> None:
        """Lets go of them."""
        if self._rooms is not None:
            await self._rooms.memories.close()
            self._rooms = None
        if self._upstream is not None:
            await self._upstream.close()
        if self._passing is not None:
            self._passing.cleanup()

    def _built(self) -> Rooms:
        clock, tasks, encoding = self._clock, self._tasks, self._counter.encoding("")

        def count(text: str) -> int:
            return self._counter.count(text, encoding)

        # Connections of its own, made when there is an endpoint to ask.
        self._upstream = HttpUpstream(AiohttpTransport(), attempts=2)
        embedder = EndpointEmbedder(StaticEmbedder(), self._upstream, lambda: self._endpoints, clock.monotonic)
        store = self._settings().store
        memories = open_memories(store.url.reveal(), self._folder(), embedder, timeout=store.write_timeout_seconds)
        spoken = {dialect.name: dialect for dialect in dialects().values()}
        search = Search(memories, embedder, clock)
        return Rooms(
            memories,
            search,
            Reader(memories, clock),
            Compactions(memories, self._transcripts, spoken, tasks, clock),
            Consolidation(memories, clock, count),
            Drafting(memories, count),
            CoreMemory(memories, self._transcripts, spoken, tasks, clock, search),
            self._transcripts,
            self._room,
            clock,
        )

    def _folder(self) -> Path:
        """Where files of them are: beside the store's; for a store in memory, in a folder that goes when it does."""
        store = self._settings().store
        if store.url.reveal() == "memory://":
            self._passing = TemporaryDirectory(prefix="accordion-memories-")
            return Path(self._passing.name)
        return Path(f"{store.file()}.memories")
