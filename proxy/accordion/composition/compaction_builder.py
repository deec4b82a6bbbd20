"""Builds the archive and the compaction services that outlive a change of settings, and a compactor for each pipeline.

The archive's services are removed content and transcripts, their encryption, retention and erasure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product

from msgspec.structs import replace

from accordion.accounting.token_meter import MessageTokenCache, TokenMeter
from accordion.archive.archive import Archive
from accordion.archive.archive_reader import ArchiveReader
from accordion.archive.artifacts import artifact_text
from accordion.archive.erasure import ExportAndErasure
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.passage_index import PassageIndexes
from accordion.archive.referenced_items import ReferencedItems
from accordion.archive.retention import Retention, SweepResult
from accordion.archive.stored_responses import StoredResponses
from accordion.archive.tool_calls import ArtifactTool, define_tool
from accordion.archive.transcripts import TranscriptStore
from accordion.compaction.assembly import build_assembler
from accordion.compaction.background import BackgroundSummaries, PreparationLimits, WriterHistory, create_summary_cache
from accordion.compaction.compactor import Compactor, CompactorServices, RetryLimit
from accordion.compaction.export_format import describe_value
from accordion.compaction.rendering import RequestRenderer
from accordion.compaction.renewal import RetentionRenewal
from accordion.compaction.repository import CompactionRepository, is_compaction_key
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.compaction.strategies import Strategy
from accordion.compaction.view import PinRules
from accordion.composition.cache_shares import divide_cache, divide_compaction_cache
from accordion.config import Settings
from accordion.insertions.artifact_recall import ArtifactRecall
from accordion.insertions.composer import InsertionCache, InsertionComposer
from accordion.insertions.excerpts import ArchiveSearch
from accordion.insertions.store import InsertionStore
from accordion.model.conversation import Message
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, KeyValueStore, Outbox, Put, Summarizer, Tasks, TokenCounter
from accordion.model.search import TokenEmbedding
from accordion.model.tenant import ArchiveNamespace, TenantScope
from accordion.pipeline.earlier_lists import EarlierLists
from accordion.pipeline.response_history import ResponseHistory
from accordion.pipeline.sent_history import SentHistory
from accordion.pipeline.shared_artifacts import SharedArtifacts
from accordion.pipeline.tool_loop import ToolLoop
from accordion.pipeline.tool_refusals import ToolRefusals
from accordion.protocols.base import WireProtocol
from accordion.protocols.registry import ARTIFACT_TOOLS, PROTOCOLS
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.server.event_loop import LoopWaiter
from accordion.sessions.prefix_nodes import merge_values
from accordion.sessions.session_names import SessionNames
from accordion.sessions.sessions import Sessions
from accordion.stores.encryption import open_sealer
from accordion.stores.spool import SpooledStore
from accordion.summaries.author import SummaryAuthor
from accordion.summaries.extractive import ExtractiveWriter
from accordion.summaries.prompts import load_prompts

Summarizers = Callable[[str], Summarizer | None]
"""Returns the summarizer of a model by its name (empty: the default of `summaries`); None if no model writes."""


class ArchiveServices:
    """The archive's services. `spooled` is the store behind the spool. `on_sweep` receives the result of each sweep."""

    def __init__(
        self,
        settings: Settings,
        store: KeyValueStore,
        spooled: SpooledStore,
        tasks: Tasks,
        clock: Clock,
        on_sweep: Callable[[SweepResult], None],
    ) -> None:
        config = settings.archive
        self.retention = config.retention_days * 86_400
        self.sealer = open_sealer(config.key.reveal())
        self.session_names = SessionNames(self.sealer, config.record_mode != "off")
        self.bounds = Retention(
            store, tasks, clock, max_bytes=config.max_bytes, retention=self.retention, on_sweep=on_sweep
        )
        self.archive = Archive(
            spooled,
            self.retention,
            sealer=self.sealer,
            clock=clock,
            on_write=self.bounds.note_write,
            capacity=divide_cache(settings.limits.cache_bytes).archive_rows,
            write_minor=spooled.write_minor,
        )
        # A second proxy may use the same file. Only a store in memory certainly belongs to this process alone.
        wait = None if settings.store.url.reveal() == "memory://" else asyncio.sleep
        self.erasures = ErasureNotices(store, clock, self.retention, wait)
        sessions = 2 * settings.limits.sessions_in_memory
        self.transcripts = TranscriptStore(
            self.archive, tasks, clock, config.record_mode, asyncio.sleep, sessions=sessions
        )

    async def close(self) -> None:
        """Writes the transcripts that are still in memory."""
        with suppress(StoreUnavailable):
            await self.transcripts.flush()


# -- compaction -------------------------------------------------------------------------------------------------------


class CompactionBuilder:
    """Builds all services of compaction, insertions and reading back."""

    def __init__(
        self,
        settings: Settings,
        store: KeyValueStore,
        spooled: SpooledStore,
        archive: ArchiveServices,
        outbox: Outbox,
        meter: TokenMeter,
        counter: TokenCounter,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        retention = archive.retention
        self._store, self._tasks, self._clock, self._counter = spooled, tasks, clock, counter
        self._outbox, self.waiter = outbox, LoopWaiter()
        shares = divide_compaction_cache(settings.limits.compaction_cache_bytes)
        small = divide_cache(settings.limits.cache_bytes)
        self._retry_limit_capacity, self._writers = small.failed_compactions, WriterHistory(clock, small.writers)
        self._reader = WrittenMessageReader(shares.written_messages)
        self._message_tokens = MessageTokenCache(meter)
        self.count_message = self._message_tokens.count_message
        self._archive = archive.archive
        self._extractor = ExtractiveWriter(small.facts, words=small.words)
        self._prompts = load_prompts()
        self.retention_renewal = RetentionRenewal(spooled, self._archive, tasks, clock, small.renewals)
        self.compactions = CompactionRepository(
            spooled,
            capacity=shares.records,
            list_capacity=shares.lists,
            retention=retention,
            sealer=archive.sealer,
            message_reader=self._reader,
            on_use=self.retention_renewal.renew_compaction,
            lookups_capacity=small.compaction_positions,
        )
        self.request_renderer = RequestRenderer(shares.rendered_requests)
        self.session_overrides = SessionOverrideStore(
            store, settings.store.retention_days * 86_400, small.pins, self.compactions.set_undone
        )
        self.archive = self._archive
        self.reader = self._reader
        self.insertion_store = InsertionStore(
            self._archive, outbox, clock, archive.erasures, capacity=shares.insertions, retention=retention
        )
        self._insertion_cache = InsertionCache(shares.lists_with_insertions)
        self._prepared_summaries = create_summary_cache(shares.prepared_summaries)
        self._passage_indexes = PassageIndexes(shares.recall)
        self._artifact_tool_protocols = ARTIFACT_TOOLS
        self.protocols = protocols = PROTOCOLS
        self._artifact_tool = ArtifactTool(self._archive, protocols, tasks, self._passage_indexes)
        self._transcripts = archive.transcripts
        self.export_and_erasure = ExportAndErasure(
            self._archive, tasks, describe_value, self._message_reader, archive.erasures, spooled.drop_erased
        )
        # One cache for mentioned items and one for continued responses; each also stores failed look-ups.
        cache_bytes = settings.limits.response_cache_bytes
        self.referenced_items = ReferencedItems(
            self._archive, tasks, archive.erasures, self._message_reader, cache_bytes // 8
        )
        self.stored_responses = StoredResponses(self._archive, tasks, archive.erasures, 3 * cache_bytes // 4)
        self.archive_reader = ArchiveReader(
            self._archive, archive.transcripts, self.export_and_erasure, protocols, tasks, clock
        )
        self._preparation_limits = PreparationLimits(
            max_concurrent=settings.summaries.max_concurrent,
            max_per_tenant=max(1, settings.summaries.max_concurrent // 2),
            timeout_seconds=settings.summaries.timeout_seconds,
            max_conversations=settings.limits.sessions_in_memory,
        )
        self._spooled = spooled
        spooled.settle, spooled.find_erased = self._settle, archive.erasures.find_erased
        archive.erasures.listen(self._on_erasure)

    def earlier_lists(self, sessions: Sessions) -> EarlierLists:
        """Builds the reader of the lists that clients' own compactions replaced."""
        return EarlierLists(sessions, self._transcripts, self._message_reader, self._tasks)

    def response_history(self, sessions: Sessions) -> ResponseHistory:
        """Builds the step that stores responses before they end."""
        return ResponseHistory(
            sessions,
            self.stored_responses,
            self.insertion_store,
            self._archive,
            self.export_and_erasure.erasures,
            self._transcripts,
        )

    def _message_reader(self, protocol_name: str, tenant: TenantScope) -> Callable[[bytes], Message]:
        return self._reader.reader_for(self.protocols[protocol_name], tenant)

    def _on_erasure(self, namespace: ArchiveNamespace, session: str | None) -> None:
        """Clears the caches after an erasure by this or another worker."""
        self.forget_store()
        self._transcripts.forget(namespace, session)

    def forget_store(self) -> None:
        """Clears the caches of the store's content."""
        self._archive.forget()
        self.insertion_store.forget()
        self.compactions.forget()

    def _settle(self, write: Put, stored: bytes) -> bytes | None:
        """Settles a spooled write with the store's value: adopts another machine's compaction, merges the rest."""
        if is_compaction_key(write.key):
            self.compactions.adopt(write.key, stored)
        merged = self.insertion_store.merge_values(write.key, write.value, stored)
        return merge_values(write.key, write.value, stored) if merged is None else merged

    def compactors(self, settings: Settings, summarizer: Summarizers) -> Callable[[str, bool], Compactor]:
        """Returns a function that finds the compactor for a model (by the clients' name) and for main or sub-agents."""
        default = settings.summaries.model
        services = {"": self._services(summarizer(default), default)}
        compactors: dict[tuple[str, bool], Compactor] = {}
        for model, delegated in product(("", *settings.compaction.models), (False, True)):
            pipeline = [entry.build() for entry in settings.compaction.pipeline_of(model, delegated=delegated)]
            writer = settings.compaction.writer_of(model, delegated=delegated)
            if writer not in services:
                services[writer] = self._services(summarizer(writer), writer)
            share = self._retry_limit_capacity // (2 + 2 * len(settings.compaction.models))
            compactors[model, delegated] = self._compactor(settings, pipeline, services[writer], RetryLimit(share))
        return lambda model, delegated: compactors.get((model, delegated)) or compactors["", delegated]

    def compactor_of(self, settings: Settings, strategies: Sequence[Strategy]) -> Compactor:
        """Builds a compactor with other strategies than those of the settings; no model writes."""
        services = self._services(None, "")
        return self._compactor(settings, list(strategies), services, RetryLimit(0))

    def insertion_composer(self, settings: Settings) -> InsertionComposer:
        """Builds the composer of insertions, which also offers our tool if it is enabled."""
        tool = define_tool if settings.read_back.tool else None
        return InsertionComposer(
            self.insertion_store, self._artifact_tool_protocols, self._reader, tool, self._insertion_cache
        )

    def sent_history(self, composer: Callable[[], InsertionComposer]) -> SentHistory:
        """Builds the reconstruction of forwarded requests. `composer` is that of the current settings."""
        return SentHistory(
            self._archive,
            self._transcripts,
            self.protocols,
            self._reader,
            self.compactions,
            composer,
            self.request_renderer,
            self._tasks,
        )

    def artifact_recall(self, settings: Settings) -> ArtifactRecall | None:
        """Builds the recall of what a turn asks of the archive; None if it is disabled."""
        counter, config = self._counter, settings.read_back.recall
        recall = ArtifactRecall(
            ArchiveSearch(self._passage_indexes, _load_embedding if config.embedding else None),
            self.insertion_store,
            self._tasks,
            self._clock,
            lambda text, model: counter.count(text, counter.encoding(model)),
            max_tokens=config.tokens,
            share=config.share,
        )
        return recall if config.tokens else None

    def tool_loop(
        self, settings: Settings, tool_refusals: ToolRefusals, shared_artifacts: SharedArtifacts | None = None
    ) -> ToolLoop:
        """Builds the loop that answers calls of our tool."""
        counter = self._counter
        return ToolLoop(
            self._artifact_tool_protocols,
            self._artifact_tool,
            self.insertion_store,
            lambda text, model: counter.count(text, counter.encoding(model)),
            self._clock,
            tool_refusals,
            settings.read_back.max_rounds,
            shared_artifacts,
        )

    def _services(self, summarizer: Summarizer | None, model: str) -> CompactorServices:
        author = SummaryAuthor(summarizer, self._extractor, self._tasks, self._prompts)
        return CompactorServices(
            compactions=self.compactions,
            archive=self._archive,
            author=author,
            extractor=self._extractor,
            background_summaries=BackgroundSummaries(
                author,
                self._store,
                self._tasks,
                self.waiter,
                self._preparation_limits,
                self._archive,
                self.export_and_erasure.erasures,
                self._writers,
                model,
                self._prepared_summaries,
            ),
            tasks=self._tasks,
            clock=self._clock,
            waiter=self.waiter,
            erasures=self.export_and_erasure.erasures,
        )

    def _compactor(
        self,
        settings: Settings,
        pipeline: list[Strategy],
        services: CompactorServices,
        recent_failures: RetryLimit,
    ) -> Compactor:
        assembler = build_assembler(
            pipeline,
            self._archive,
            self._message_tokens,
            self._reader,
            self._extractor,
            PinRules(frozenset(settings.compaction.pinned_tools), settings.compaction.pin_tag),
        )
        services = replace(services, recent_failures=recent_failures)
        return Compactor(assembler, services, wait_seconds=settings.summaries.wait_seconds)

    async def artifact_text(
        self, artifact_id: str, tenant: TenantScope, protocols: Mapping[str, WireProtocol]
    ) -> str | None:
        """Returns the whole text of an artifact of a tenant; None if any of it is missing.

        Raises StoreUnavailable.
        """
        [artifact] = await self._archive.load_artifacts(tenant, [artifact_id])
        if artifact is None:
            return None
        rows = await self._archive.load_rows(tenant, artifact.keys)
        if any(key not in rows for key in artifact.keys):
            return None
        read = self._reader.reader_for(protocols[artifact.protocol_name], tenant)
        return artifact_text(artifact, [read(rows[key]) for key in artifact.keys])

    async def close(self) -> None:
        """Closes the spool."""
        await self._spooled.close()


def _load_embedding() -> TokenEmbedding:
    from accordion.providers.models.static_embedding import load_table  # noqa: PLC0415  # only recall that is set up so

    return load_table()
