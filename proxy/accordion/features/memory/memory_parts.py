"""The services of memories and everything that uses them: interfaces, recall, import and capture.

Also here: the endpoints for embeddings and relevance, and the model that writes memories in place of the rules.
memory_process.py imports this module, and with it the packages of memories, at the first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace
from starlette.routing import Route as HttpRoute

from accordion.accounting.calibration import LearnedLimits
from accordion.archive.archive_reader import ArchiveReader
from accordion.archive.transcripts import TranscriptStore
from accordion.composition.cache_shares import divide_cache
from accordion.composition.features import create_translator
from accordion.composition.tables import build_windows, routes
from accordion.config import Settings
from accordion.config.settings import EndpointModel
from accordion.features.memory.conversation.message_ranges import RecordedConversations
from accordion.features.memory.extraction.memory_extractor import MemoryExtractor
from accordion.features.memory.extraction.narration import Narrator
from accordion.features.memory.mcp_app import McpApp
from accordion.features.memory.memories import MemoryStore
from accordion.features.memory.memory_api import MemoryApi
from accordion.features.memory.memory_capture import MemoryCapture
from accordion.features.memory.memory_operations import MemoryServices
from accordion.features.memory.memory_recall import MemoryRecall, MemoryRecallLimits
from accordion.features.memory.search.memory_search import MemorySearch, SearchQuery
from accordion.features.memory.session.session_memory import SessionMemories
from accordion.features.memory.session_import import SessionImport
from accordion.features.memory.store.consolidation import Consolidator
from accordion.features.memory.store.embedding_endpoint import EmbeddingEndpoint, EmbeddingEndpoints, EndpointEmbedder
from accordion.features.memory.store.memory_writer import MemoryWriter
from accordion.features.memory.store.static_embedder import StaticEmbedder
from accordion.features.memory.store.stored_memories import StoredMemories
from accordion.insertions.store import InsertionStore
from accordion.model.ports import Clock, KeyValueStore, Route, SummaryCaller, Tasks, TokenCounter, Translator, Upstream
from accordion.model.tenant import NO_TENANT, TenantScope
from accordion.protocols.registry import PROTOCOLS
from accordion.providers.http.client import HttpUpstream
from accordion.providers.http.transport import AiohttpTransport
from accordion.providers.models.summarizer import BoundedSummarizer, ModelSummarizer, TokenUsageCallback
from accordion.server.event_loop import LoopWaiter
from accordion.sessions.tenants import Tenants
from accordion.stores.encryption import open_sealer
from accordion.summaries.extractive import ExtractiveWriter
from accordion.summaries.prompts import load_prompts

_SECONDS: Final = 120.0
"""The longest wait for one response, in seconds; then the rules write."""
_MAX_CONCURRENT: Final = 4
"""The largest number of concurrent requests of one worker."""
_FACTS: Final = 1 << 20


class MemoryParts:
    """Builds what uses memories, and opens them at the first use.

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
        on_usage: TokenUsageCallback = lambda model, input_tokens, output_tokens: None,
    ) -> None:
        self._settings, self._store = settings, store
        self._archive_reader, self._transcripts = archive_reader, transcripts
        self._counter, self._tasks, self._clock = counter, tasks, clock
        self._on_write, self._on_usage = on_write, on_usage
        self._services: MemoryServices | None = None
        self._memories: StoredMemories | None = None
        # It has its own client, which opens no connection until an endpoint or a model is called.
        self._upstream = HttpUpstream(AiohttpTransport(), attempts=2)
        self._translator = create_translator()
        self._endpoints = EmbeddingEndpoints()
        self._applied_settings: Settings | None = None

    def services(self) -> MemoryServices:
        """Returns the services with the current project, endpoints and writer."""
        settings, services = self._settings(), self._services or self._build()
        if self._services is None or settings is not self._applied_settings:
            self._endpoints, self._applied_settings = build_endpoints(settings), settings
            writer = build_narrator(
                settings, self._upstream, self._translator, self._tasks, self._clock, self._count, self._on_usage
            )
            compactions = replace(services.compactions, narrator=writer)
            self._services = services = replace(services, project=settings.memory.project, compactions=compactions)
        return services

    def memories(self) -> MemoryStore:
        """Returns the store of memories, even if the interfaces are disabled."""
        return self.services().memories

    def session_import(self, insertion_store: InsertionStore) -> SessionImport:
        """Builds the import of session memories into conversations."""
        return SessionImport(self.memories, insertion_store, self._clock, self._count)

    def memory_recall(self, settings: Settings, insertion_store: InsertionStore) -> MemoryRecall:
        """Builds the automatic recall of memories."""
        recall = settings.memory.recall
        return MemoryRecall(
            lambda: self.services().search,
            self.memories,
            insertion_store,
            self._tasks,
            LoopWaiter(),
            self._clock,
            self._count,
            MemoryRecallLimits(
                tokens=recall.tokens,
                memories=recall.memories,
                relevance=recall.relevance,
                timeout_seconds=recall.wait_seconds,
                project=settings.memory.project,
                all_projects=recall.all_projects,
            ),
        )

    async def warm(self) -> None:
        """Loads the static embedding with a first search."""
        await self.services().search.search(NO_TENANT, SearchQuery("what is there"))

    def memory_capture(self, project: str) -> MemoryCapture:
        """Builds the step that makes memories of compacted messages; `project` is that of requests without one."""
        return MemoryCapture(
            lambda: self.services().compactions, self._transcripts, self._tasks, asyncio.sleep, project
        )

    def routes(self, tenants: Callable[[], Tenants], version: str) -> list[HttpRoute]:
        """Returns the routes of memories for REST and MCP."""
        return [
            *MemoryApi(self.services, tenants, version).routes(),
            *McpApp(self.services, tenants, self._tasks.spawn, version).routes(),
        ]

    def forget(self) -> None:
        """Drops the indexes of the memories."""
        if self._memories is not None:
            self._memories.forget()

    async def close(self) -> None:
        """Closes the memories and the client."""
        self._services = None
        await self._upstream.close()
        await self._translator.close()

    def _build(self) -> MemoryServices:
        clock, tasks = self._clock, self._tasks
        embedder = EndpointEmbedder(StaticEmbedder(), self._upstream, lambda: self._endpoints, clock.monotonic)
        settings = self._settings()
        self._memories = memories = StoredMemories(
            self._store, embedder, sealer=open_sealer(settings.archive.key.reveal()), on_write=self._on_write
        )
        conversations = RecordedConversations(self._transcripts, PROTOCOLS, tasks)
        search = MemorySearch(memories, embedder)
        return MemoryServices(
            memories,
            MemoryWriter(memories, clock),
            search,
            MemoryExtractor(memories, conversations, tasks, clock, self._archive_reader.export_and_erasure.erasures),
            Consolidator(memories, clock),
            SessionMemories(memories, conversations, search, tasks, clock),
            self._transcripts,
            self._archive_reader,
            clock,
        )

    def _count(self, text: str, model: str = "") -> int:
        return self._counter.count(text, self._counter.encoding(model))


def build_endpoints(settings: Settings) -> EmbeddingEndpoints:
    """Returns the endpoints that the `memory` section configures."""
    embeddings, rerank = settings.memory.embeddings, settings.memory.rerank
    return EmbeddingEndpoints(
        _endpoint(settings, embeddings, embeddings.dimensions or 0) if embeddings is not None else None,
        _endpoint(settings, rerank) if rerank is not None else None,
    )


def _endpoint(settings: Settings, config: EndpointModel, dimensions: int = 0) -> EmbeddingEndpoint:
    if config.api_base is not None:
        route = Route(config.model, "openai", config.api_base.rstrip("/"), api_key=config.api_key.reveal())
    else:
        # config/checks.py ensures that there is a model with this name.
        route = routes(settings).models[config.model]
    headers = [(name.lower().encode(), value.encode()) for name, value in route.extra_headers]
    if route.api_key:
        headers.append((b"authorization", f"Bearer {route.api_key}".encode()))
    return EmbeddingEndpoint(
        route.model or config.model,
        route.base_url,
        tuple(headers),
        config.timeout_seconds,
        config.max_characters,
        dimensions,
    )


def build_narrator(
    settings: Settings,
    upstream: Upstream,
    translator: Translator,
    tasks: Tasks,
    clock: Clock,
    count: Callable[[str], int],
    on_usage: TokenUsageCallback,
) -> Narrator | None:
    """Builds the writer of memories by the configured model, with its own key; None if the rules write.

    `count` returns the tokens of a text.
    """
    name = settings.memory.model
    if not name:
        return None
    # config/checks.py ensures that there is a model with this name and a key.
    router = routes(settings)
    route = router.models[name]
    caller = SummaryCaller(
        "", route, "messages" if route.family == "anthropic" else "chat", name, (), can_use_configured_keys=True
    )
    model = ModelSummarizer(
        upstream, translator, router, build_windows(settings, LearnedLimits(clock.now)), PROTOCOLS, model=name
    )
    bounded = BoundedSummarizer(model, on_usage, max_concurrent=_MAX_CONCURRENT, seconds=_SECONDS)
    return Narrator(
        bounded,
        caller,
        ExtractiveWriter(_FACTS, divide_cache(settings.limits.cache_bytes).words),
        tasks,
        load_prompts(),
        count,
    )
