"""The rooms of the memories, built at the first call: who does not use them pays nothing for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from starlette.routing import Route

from accordion.archive.reading_room import ReadingRoom
from accordion.archive.transcripts import Transcripts
from accordion.clockwork import LoopWaiting
from accordion.compaction.overlays import Overlays
from accordion.core.errors import AccordionError
from accordion.core.memories import Memories
from accordion.core.ports import Clock, Key, Outbox, Tasks, TokenCounter
from accordion.core.values import replace
from accordion.faces.mcp import McpFace
from accordion.faces.memory import MemoryApi
from accordion.faces.memory_rooms import Rooms
from accordion.identity.tenants import REMEMBERED, Tenants
from accordion.importing import EVERYWHERE, Importing, Mentions
from accordion.memory.adding import Adding
from accordion.memory.compact import Compactions
from accordion.memory.consolidate import Consolidation
from accordion.memory.core_memory import CoreMemory
from accordion.memory.drafting import Drafting
from accordion.memory.reading import Reader
from accordion.memory.search import Query, Search
from accordion.memory.stretches import Conversations
from accordion.models.bounded import Spent
from accordion.models.embedder import StaticEmbedder
from accordion.models.embedding_endpoint import EndpointEmbedder, Endpoints
from accordion.models.translate import LiteLLMTranslator
from accordion.recollecting import Bounds, Recollecting
from accordion.remembering import Remembering
from accordion.settings import Settings
from accordion.storage.opening import open_memories
from accordion.storage.sealed import open_sealer
from accordion.upstream.client import HttpUpstream
from accordion.upstream.transport import AiohttpTransport
from accordion.wiring.endpoints import endpoints
from accordion.wiring.shares import shares
from accordion.wiring.tables import dialects_by_name
from accordion.wiring.writing import narrator


class Library:
    """Opens the memories when they are first wanted. `room` reads artifacts, `transcripts` what was said; `wrote` hears
    for whose space something was remembered, `spent` what the model that writes memories takes."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        room: ReadingRoom,
        transcripts: Transcripts,
        counter: TokenCounter,
        tasks: Tasks,
        clock: Clock,
        wrote: Callable[[bytes], object],
        spent: Spent = lambda model, taken, given: None,
    ) -> None:
        self._settings, self._room, self._transcripts = settings, room, transcripts
        self._counter, self._tasks, self._clock = counter, tasks, clock
        self._wrote, self._spent = wrote, spent
        self._rooms: Rooms | None = None
        self._passing: TemporaryDirectory[str] | None = None
        # Connections of its own; there are none until there is an endpoint or a model to ask.
        self._upstream = HttpUpstream(AiohttpTransport(), attempts=2)
        self._spoken = dialects_by_name()
        self._translator = LiteLLMTranslator(self._spoken)
        self._endpoints = Endpoints()
        self._settled: Settings | None = None

    def rooms(self) -> Rooms:
        """The rooms, with the project, the endpoints and the writer that are configured now."""
        settings, rooms = self._settings(), self._rooms or self._built()
        if self._rooms is None or settings is not self._settled:
            self._endpoints, self._settled = endpoints(settings), settings
            writer = narrator(
                settings, self._upstream, self._translator, self._tasks, self._clock, self._count, self._spent
            )
            compactions = replace(rooms.compactions, narrator=writer)
            self._rooms = rooms = replace(rooms, project=settings.memory.project, compactions=compactions)
        return rooms

    def memories(self) -> Memories:
        """What the rooms keep, whether or not anybody may come in."""
        return self.rooms().memories

    def importing(self, settings: Settings, overlays: Overlays) -> Importing | None:
        """Who puts session memories into conversations; None where there are to be none."""
        if not settings.memory.enabled:
            return None
        return Importing(self.memories, overlays, self._clock, self._count)

    def mentions(self, settings: Settings) -> Mentions:
        """Who tells whether memories may stand in a list."""
        recall = settings.memory.recall
        project = EVERYWHERE if recall.all_projects else settings.memory.project
        return Mentions(shares(settings.limits.cache_bytes).mentions, unasked=recall.enabled, project=project)

    def recollecting(self, settings: Settings, overlays: Overlays) -> Recollecting | None:
        """Who gives turns memories unasked; None where nobody does."""
        recall = settings.memory.recall
        if not recall.enabled:
            return None
        return Recollecting(
            lambda: self.rooms().search,
            self.memories,
            overlays,
            self._tasks,
            LoopWaiting(),
            self._clock,
            self._count,
            Bounds(
                tokens=recall.tokens,
                memories=recall.memories,
                relevance=recall.relevance,
                seconds=recall.wait_seconds,
                project=settings.memory.project,
                everywhere=recall.all_projects,
            ),
        )

    async def warm(self) -> None:
        """Makes ready what the first turn that is given memories would else wait for; nobody is asked for it."""
        asked = self._settings().memory
        if asked.recall.enabled and asked.embeddings is None:
            with suppress(AccordionError):
                await self.rooms().search.search(b"", Query("what is there"))

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
        await self._upstream.close()
        await self._translator.close()
        if self._passing is not None:
            self._passing.cleanup()

    def _built(self) -> Rooms:
        clock, tasks, count = self._clock, self._tasks, self._count
        embedder = EndpointEmbedder(StaticEmbedder(), self._upstream, lambda: self._endpoints, clock.monotonic)
        store = self._settings().store
        sealer = open_sealer(self._settings().archive.key.reveal(), lasting=False)
        memories = open_memories(
            store.url.reveal(), self._folder(), embedder,
            timeout=store.write_timeout_seconds, sealer=sealer, wrote=self._wrote,
        )  # fmt: skip
        conversations = Conversations(self._transcripts, self._spoken, tasks)
        search = Search(memories, embedder, clock)
        return Rooms(
            memories,
            Adding(memories, clock),
            search,
            Reader(memories, clock),
            Compactions(memories, conversations, tasks, clock, self._room.custody.erasures),
            Consolidation(memories, clock, count),
            Drafting(memories, count, tasks),
            CoreMemory(memories, conversations, search, tasks, clock),
            self._transcripts,
            self._room,
            clock,
        )

    def _count(self, text: str, model: str = "") -> int:
        return self._counter.count(text, self._counter.encoding(model))

    def _folder(self) -> Path:
        """Where files of them are: beside the store's; for a store in memory, in a folder that goes when it does."""
        store = self._settings().store
        if store.url.reveal() == "memory://":
            self._passing = TemporaryDirectory(prefix="accordion-memories-")
            return Path(self._passing.name)
        return folder_of(self._settings())


def folder_of(settings: Settings) -> Path:
    """Where the memories' files stand beside a store in a file."""
    return Path(f"{settings.store.file()}.memories")


def note(outbox: Outbox, tenant: str) -> None:
    """Lists a tenant, where its name is known, among those for whom something was remembered."""
    if tenant:
        outbox.put(Key(REMEMBERED, tenant), bytes)
