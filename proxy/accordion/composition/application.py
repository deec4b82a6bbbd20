"""The application: builds all parts of one process from the settings, starts them, stops them and reloads settings.

`Application` builds two kinds of parts. Lasting ones keep their caches, connections and state when the settings change:
store, sessions, archive, compactions, ledger. Configured ones are built again with each change: the request pipeline,
its steps, the tenants. A request keeps the pipeline that it began with.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from starlette.types import ASGIApp

from accordion import __version__
from accordion.accounting.calibration import Calibrations, LearnedLimits, LearnedSync
from accordion.accounting.key_limits import KeyLimiter, KeyUsageLedger
from accordion.accounting.ledger import Ledger, session_of_record
from accordion.accounting.token_meter import TokenMeter
from accordion.archive.erasure_notices import CHECK_INTERVAL
from accordion.archive.retention import ROUND_SECONDS as ARCHIVE_ROUNDS
from accordion.composition.cache_shares import divide_cache
from accordion.composition.compaction_builder import ArchiveServices, CompactionBuilder
from accordion.composition.configured_store import StoreIdentity, build_spool, propose_secret
from accordion.composition.features import Core, create_translator, feature_records, open_features
from accordion.composition.pipeline_builder import LastingParts, VisibilityBuilder, build_pipelines, build_steps
from accordion.composition.tables import (
    build_prices,
    build_windows,
    reaches_anthropic,
    routes,
    thresholds_by_model,
)
from accordion.config import Settings
from accordion.config.value_types import is_loopback
from accordion.http.admin_api import AdminApi, Administration
from accordion.http.api import RestApi
from accordion.http.archive_api import ArchiveApi
from accordion.http.exchange_log import CompactionLogger, FailureLogger
from accordion.http.metrics import Metrics
from accordion.http.path_prefix import CODEX_PATH, PathPrefix
from accordion.http.proxy_app import ProxyApp, new_id
from accordion.http.websocket_relay import WebSocketRelay
from accordion.model.budget import TokenLimits as BudgetLimits
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, Observer, Upstream
from accordion.model.tenant import ArchiveNamespace, TenantScope
from accordion.pipeline.compaction_stops import ROUND_SECONDS as STOP_ROUNDS
from accordion.pipeline.compaction_stops import CompactionStops
from accordion.pipeline.queries import Queries
from accordion.pipeline.send import DeploymentPauses, Sender
from accordion.pipeline.session_exchanges import RequestPoints
from accordion.pipeline.session_limits import ROUND_SECONDS as SESSION_ROUNDS
from accordion.pipeline.session_limits import SessionSizeLimit
from accordion.pipeline.tool_refusals import ToolRefusals
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.registry import PROTOCOLS
from accordion.providers.http.client import HttpUpstream
from accordion.providers.http.routes import RouteTable
from accordion.providers.http.transport import AiohttpTransport, TransportTimeouts
from accordion.providers.http.websockets import SocketClosed, open_socket
from accordion.providers.models.prices import load_price_table
from accordion.providers.models.summarizer import ModelSummarizer
from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.providers.models.windows import ModelWindows
from accordion.server.event_loop import LoopClock, LoopTasks
from accordion.server.interpreter import FreeMemoryObserver, find_trim
from accordion.sessions.proxy_keys import CreatedKeys
from accordion.sessions.sessions import Sessions
from accordion.sessions.tenants import Tenants
from accordion.stores.guarded import GuardedStore
from accordion.stores.open import open_store
from accordion.stores.sqlite import SqliteStore
from accordion.stores.worker_sync import Slots, StoreBoard, worker_sync_for
from accordion.stores.write_queue import WriteQueue

_log = logging.getLogger("accordion")
_POINTS_BYTES = 4 * 2**20
"""Memory for the figures of sessions that people look at: enough for one of the longest."""

# Seconds that the reader of a large body sleeps between its steps, so that requests go on.
_PAUSE = 0.002


class Application:
    """All parts of one process, and its current settings. `slots` is the memory that a supervisor's workers share.

    `owner_token` is the token with which the proxy's owner opens the page, erases and exports; empty for none.
    `connect` returns the client that reaches the providers.
    """

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        slots: Slots | None = None,
        owner_token: str = "",
        *,
        connect: Callable[[Settings], Upstream] | None = None,
    ) -> None:
        self._owner_token, self._connect = owner_token, connect or connect_upstream
        self.settings = settings
        self.clock, self.tasks = LoopClock(), LoopTasks()
        self.metrics = Metrics()
        self.counter = TiktokenCounter()
        self._worker = secrets.token_hex(6)
        url = settings.store.url.reveal()
        store = open_store(url, timeout=settings.store.write_timeout_seconds)
        self.store = GuardedStore(
            store,
            timeout=settings.store.timeout_seconds,
            write_timeout=settings.store.write_timeout_seconds,
            monotonic=self.clock.monotonic,
            on_change=self._on_store_change,
        )
        self.spooled = build_spool(settings, self.store)
        self._store_identity = StoreIdentity(
            self.store,
            settings.server.tenant_key.reveal().encode(),
            on_secret_change=lambda: self._build_configured(self.settings),
            # A store in memory is never emptied, but a full one drops its oldest entry, which is the mark.
            on_emptied=self._on_store_emptied if url != "memory://" else lambda: None,
            replacements=lambda: store.replacements if isinstance(store, SqliteStore) else 0,
            on_identified=self.spooled.identify,
            proposed=propose_secret(store),
        )
        self.spooled.confirm = self._store_identity.check
        self.outbox = WriteQueue(self.spooled.write_minor, on_drop=self.metrics.count_dropped_writes)
        self._build_lasting(settings, environ, slots)
        self._build_configured(settings)

    def _build_lasting(self, settings: Settings, environ: Mapping[str, str], slots: Slots | None) -> None:
        """Builds the parts that keep their state when settings change."""
        limits, retention = settings.limits, settings.store.retention_days * 86_400
        observers: list[Observer] = [
            self.metrics,
            FailureLogger(),
            CompactionLogger(self._limits_of, limits.sessions_in_memory),
            FreeMemoryObserver(self.tasks, find_trim()),
        ]
        meter = TokenMeter(self.counter)
        calibrations, self._limits = Calibrations(), LearnedLimits(self.clock.now)
        self._learned_sync = LearnedSync(self.store, self.outbox, self.clock, self._limits, calibrations, retention)
        self.created_keys = CreatedKeys(self.store, self.clock)
        self._worker_sync = worker_sync_for(settings.store.url.reveal(), settings.store.file(), slots)
        self._sessions = Sessions(
            self.spooled, self.outbox, self.clock, self._worker, limits.sessions_in_memory, retention, self._worker_sync
        )
        self._archive = ArchiveServices(
            settings, self.store, self.spooled, self.tasks, self.clock, self.metrics.note_sweep
        )
        self._session_size_limit = SessionSizeLimit(
            self.store, lambda name: self.tenants.scope(name), max_bytes=settings.store.session_bytes,
        )  # fmt: skip
        self._archive.erasures.listen(lambda _, session: self._sessions.forget(session))
        # An erasure waits until queued writes are in the store, so that it removes them too.
        self._archive.erasures.listen(lambda *_: self.tasks.spawn(self.outbox.flush(), "write what is queued"))
        self._archive.erasures.listen_to_others(
            lambda *erased: self.tasks.spawn(self._drop_erased(*erased), "drop erased records")
        )
        self._archive.erasures.listen(lambda namespace, _: self._ledger.savings.forget_agents(namespace))
        self._compaction_builder = CompactionBuilder(
            settings,
            self.store,
            self.spooled,
            self._archive,
            self.outbox,
            meter,
            self.counter,
            self.tasks,
            self.clock,
        )
        self._visibility_builder = VisibilityBuilder(
            self.spooled, self.outbox, self.clock, self.tasks, self._sessions, self._compaction_builder.reader,
            self._compaction_builder.archive, self.metrics.count_delegation, divide_cache(limits.cache_bytes),
        )  # fmt: skip
        self._archive.erasures.listen(lambda *_: self._visibility_builder.forget())
        self._request_points = RequestPoints(_POINTS_BYTES)
        self._sent_history = self._compaction_builder.sent_history(
            lambda: self.forward.prepare.compaction_step.list_meter.insertion_composer
        )
        ledger_queue = self.outbox.slow_queue()
        self.key_usage = KeyUsageLedger(self.store, ledger_queue, self.clock, self._worker)
        self._administration = Administration(
            lambda: self.tenants, self.created_keys, self.key_usage, lambda: self.queries
        )
        self._compaction_stops = CompactionStops(
            self.store, self.clock, lambda: self.queries, lambda name: self.tenants.scope(name), self._worker
        )
        self.features = open_features(self._core(environ))
        for feature in self.features:
            observers += feature.observers
        self._ledger = Ledger(ledger_queue, observers, self._worker, retention)
        self._parts = LastingParts(
            clock=self.clock,
            tasks=self.tasks,
            sessions=self._sessions,
            archive=self._archive,
            compaction=self._compaction_builder,
            visibility=self._visibility_builder,
            body_reader=BodyReader(limits.body_cache_bytes, limits.messages_per_request, partial(time.sleep, _PAUSE)),
            features=self.features,
            tool_refusals=ToolRefusals(self.clock.now),
            token_meter=meter,
            calibrations=calibrations,
            ledger=self._ledger,
            key_limiter=KeyLimiter(self.store, self.key_usage, self.clock, self.metrics.count_refused),
            key_usage=self.key_usage,
            compaction_stops=self._compaction_stops,
        )
        self._translator = create_translator()
        self._upstream = self._connect(settings)
        self._deployment_pauses = DeploymentPauses(self.clock)

    def _core(self, environ: Mapping[str, str]) -> Core:
        """Returns what features may use."""
        return Core(
            settings=lambda: self.settings,
            tenants=lambda: self.tenants,
            queries=lambda: self.queries,
            environ=environ,
            clock=self.clock,
            tasks=self.tasks,
            store=self.store,
            spooled=self.spooled,
            outbox=self.outbox,
            archive_reader=self._compaction_builder.archive_reader,
            sent_history=self._sent_history,
            session_overrides=self._compaction_builder.session_overrides,
            learned_limits=self._limits,
            renderer=self._compaction_builder.request_renderer,
            count_message=self._compaction_builder.count_message,
            administration=self._administration,
            insertion_store=self._compaction_builder.insertion_store,
            transcripts=self._archive.transcripts,
            counter=self.counter,
            metrics=self.metrics,
            page_views=lambda: [view for feature in self.features for view in feature.page_views],
        )

    def _build_configured(self, settings: Settings) -> None:
        """Builds the parts that depend on settings."""
        self.tenants = Tenants(
            self._store_identity.secret,
            tuple(key.proxy_key() for key in settings.proxy_keys),
            loopback=is_loopback(settings.server.host),
            owner_token=self._owner_token,
            admin_key=settings.admin_key.reveal(),
            created=self.created_keys,
        )
        self.metrics.name_tenants(self.tenants.has_proxy_keys)
        router, windows = routes(settings), build_windows(settings, self._limits)
        sender = Sender(self.tenants, router, self._upstream, self._translator, self._deployment_pauses)
        summarizers = partial(self._summarizer, settings, router, windows)
        steps = build_steps(self._parts, settings, sender, windows, summarizers)
        self.forward, self.upgrade = build_pipelines(steps)
        self.queries = Queries(
            self.store,
            self.outbox,
            windows,
            self._archive.session_names,
            thresholds_by_model(settings),
            settings.compaction.mode_of,
            steps.measurer.visibility.delegation_tracker,
            lambda: self.store.has_answered,
            tuple(dict.fromkeys(name for name in router.models if "*" not in name)),
            self.spooled,
            build_prices(settings),
            self._request_points,
            settings.store.retention_days * 86_400,
            settings.compaction.stop_if_worse,
        )
        self.settings = settings

    def _limits_of(self, model: str, delegated: bool, window: int) -> BudgetLimits | None:
        """Returns a model's limits by the current settings; None if its requests are never compacted."""
        if self.settings.compaction.mode_of(model, delegated=delegated) == "off":
            return None
        return self.settings.thresholds.thresholds_for(model, delegated=delegated).limits(window)

    def _summarizer(
        self, settings: Settings, router: RouteTable, windows: ModelWindows, model: str
    ) -> ModelSummarizer | None:
        if not model and settings.summaries.writer == "extractive":
            return None
        return ModelSummarizer(
            self._upstream, self._translator, router, windows, self._compaction_builder.protocols, model=model
        )

    def apply_settings(self, settings: Settings) -> None:
        """Applies changed settings. Requests that are running end with the former ones."""
        if (settings.timeouts, settings.retries) != (self.settings.timeouts, self.settings.retries):
            # The former client finishes its running requests. Its idle connections soon close by themselves.
            self._upstream = self._connect(settings)
        self._build_configured(settings)

    async def start(self) -> None:
        """Opens the store, reads the shared state and starts the background tasks, so that no request waits for it."""
        for feature in self.features:
            await feature.start()
        self._store_identity.recall(self.spooled.recall(self._store_identity.secret))
        # Opening a store takes longer than reading it, and a request waits for the store only briefly.
        with suppress(StoreUnavailable):
            await self.store.ping()
        await self._store_identity.poll()
        await self._poll_keys()
        await self._learned_sync.poll()
        await self._compaction_builder.session_overrides.poll()
        await self._compaction_stops.poll()
        self.tasks.repeat(self.poll, CHECK_INTERVAL, "follow the store")
        self.tasks.repeat(self._archive.bounds.run_round, ARCHIVE_ROUNDS, "bound the archive")
        self.tasks.repeat(self._session_size_limit.run_round, SESSION_ROUNDS, "bound the sessions")
        self.tasks.repeat(self._compaction_stops.run_round, STOP_ROUNDS, "compare with the hold-out")
        self.tasks.spawn(self._load_prices(), "load the prices")

    async def _load_prices(self) -> None:
        """Reads the prices in a thread, so that the first request does not wait for them."""
        await self.tasks.offload(load_price_table)

    async def stop(self) -> None:
        """Cancels the background tasks, writes what is queued, and closes all connections."""
        await self.tasks.cancel()
        await self._archive.close()
        self._learned_sync.publish()
        await self.outbox.flush()
        await self._upstream.close()
        await self._translator.close()
        await self._compaction_builder.close()
        await self.store.close()
        if isinstance(self._worker_sync, StoreBoard):
            self._worker_sync.close()
        for feature in self.features:
            await feature.close()
        await self.tasks.close()

    async def artifact_text(self, artifact_id: str, tenant: TenantScope) -> str | None:
        """Returns the whole text of a tenant's artifact; None if there is no artifact with this id."""
        return await self._compaction_builder.artifact_text(artifact_id, tenant, self._compaction_builder.protocols)

    def app(self) -> ASGIApp:
        """Builds the ASGI application."""
        openai = PROTOCOLS["chat"]
        overrides = self._compaction_builder.session_overrides
        archive_api = ArchiveApi(
            lambda: self.queries,
            lambda: self.tenants,
            self._compaction_builder.archive_reader,
            overrides,
            feature_records(),
            self._sent_history,
            self.clock.now,
        )
        api = RestApi(
            lambda: self.queries,
            lambda: self.tenants,
            self.metrics,
            lambda error: openai.render_error(error, new_id()),
            __version__,
            overrides,
            [
                *archive_api.routes(),
                *AdminApi(lambda: self.tenants, self._administration, self.clock.now).routes(),
                *(route for feature in self.features for route in feature.routes()),
            ],
            self.spooled.describe,
            self.clock.now,
            lambda: {
                "responses_websocket": self.settings.server.model_sockets,
                "reaches_anthropic": reaches_anthropic(self.settings),
            },
        )
        sockets = WebSocketRelay(
            lambda request, names: open_socket(request, names, timeout=self.settings.timeouts.connect_seconds),
            SocketClosed,
            lambda: self.settings.timeouts.read_seconds,
        )
        app = ProxyApp(lambda: self.forward, lambda: self.upgrade, api.app(), sockets, new_id)
        codex_app, base_path = PathPrefix(app, CODEX_PATH, "/v1"), self.settings.server.base_path
        return PathPrefix(codex_app, base_path) if base_path else codex_app

    def _on_store_change(self, available: bool) -> None:
        self.metrics.note_store(available)
        if available:
            _log.info("the store is available again")
            self.tasks.spawn(self.spooled.poll(), "publish the spool")
        else:
            _log.warning(
                "the store is unavailable; requests are forwarded without it, and the proxy keeps trying: %s",
                self.store.problem,
            )

    def _on_store_emptied(self) -> None:
        _log.warning(
            "the store was emptied or replaced; the proxy stores everything that it compacts from now on again"
        )
        self._compaction_builder.forget_store()
        self.tasks.spawn(self._drop_copies(), "remove the copies of recent records")
        self._archive.transcripts.begin_anew()
        self._sessions.forget(None)
        self._visibility_builder.forget()
        for feature in self.features:
            feature.forget()

    async def _drop_copies(self) -> None:
        with suppress(StoreUnavailable):
            await self.spooled.drop_erased()

    async def _drop_erased(self, namespace: ArchiveNamespace, session: str | None) -> None:
        """Writes what is queued, and drops what another worker erases from what waits, with the copies of records."""
        await self.outbox.flush()
        with suppress(StoreUnavailable):
            await self.spooled.drop_erased(partial(self._is_record_of, namespace, session))

    def _is_record_of(self, namespace: ArchiveNamespace, session: str | None, key: Key) -> bool:
        record = session_of_record(key)
        if record is None or session not in (None, record[1]):
            return False
        return self.tenants.scope(record[0]).archive_namespace == namespace

    async def poll(self) -> None:
        """Reads the other workers' overrides, learned limits, stops, keys and erasures; checks the store's identity.

        Never fails.
        """
        if isinstance(self._worker_sync, StoreBoard):
            self._worker_sync.renew()
        await self._store_identity.poll()
        await self._poll_keys()
        # Before what waits is published.
        await self._archive.erasures.poll()
        await self.spooled.poll()
        await self._compaction_builder.session_overrides.poll()
        await self._learned_sync.poll()
        await self._compaction_stops.poll()

    async def _poll_keys(self) -> None:
        """Reads the created keys, and the usage of keys with a limit."""
        if self.settings.admin_key:
            await self.created_keys.poll()
        if self.tenants.has_day_limits:
            await self.key_usage.poll()


def connect_upstream(settings: Settings) -> Upstream:
    """Returns a client with connections of its own."""
    seconds = settings.timeouts.read_seconds
    timeouts = TransportTimeouts(connect=settings.timeouts.connect_seconds, read=seconds, write=seconds)
    return HttpUpstream(AiohttpTransport(timeouts), attempts=settings.retries.connect_attempts)
