"""The house: every room of one process, and the settings in force."""

from __future__ import annotations

import gc
import logging
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from accordion import __version__
from accordion.accounting.calibration import Calibrations
from accordion.accounting.journal import Journal
from accordion.accounting.limits import Limits
from accordion.accounting.meter import Meter
from accordion.accounting.taught import Taught
from accordion.archive.bounds import EVERY as ARCHIVE_ROUNDS
from accordion.archive.erasures import LOOK
from accordion.clockwork import LoopClock, LoopTasks
from accordion.completing import Completing
from accordion.core.budget import Limits as BudgetLimits
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Observer
from accordion.dialects.reader import Reader
from accordion.faces.api import Api
from accordion.faces.archive import ArchiveApi
from accordion.faces.compaction_lines import CompactionLines
from accordion.faces.http import Http, new_id
from accordion.faces.lines import Lines
from accordion.faces.metrics import Metrics
from accordion.faces.websocket import Sockets
from accordion.folding import Folding
from accordion.forward import Forward
from accordion.gauge import Gauging
from accordion.identity.sessions import Sessions
from accordion.identity.tenants import ProxyKey, Tenants
from accordion.models.summarizer import ModelSummarizer
from accordion.models.tokens import TiktokenCounter
from accordion.models.translate import LiteLLMTranslator
from accordion.models.windows import ModelWindows
from accordion.observe import Observe
from accordion.retrieving import Retrieving
from accordion.sending import DeploymentPauses, Sending
from accordion.session_bounds import EVERY as SESSION_ROUNDS
from accordion.session_bounds import SessionBounds
from accordion.settings import Settings
from accordion.storage.guarded import GuardedStore
from accordion.storage.opening import open_store
from accordion.storage.others import Slots, others_of
from accordion.storage.outbox import GatheringOutbox
from accordion.storage.spool import SpooledStore
from accordion.storage.sqlite import SqliteStore
from accordion.upstream.client import HttpUpstream
from accordion.upstream.routes import Routes
from accordion.upstream.sockets import SocketClosed, open_socket
from accordion.upstream.transport import AiohttpTransport, Timeouts
from accordion.wiring.kitchen import Kitchen
from accordion.wiring.mark import Mark
from accordion.wiring.memory import Library, note
from accordion.wiring.seats import Seats
from accordion.wiring.shares import shares
from accordion.wiring.spooling import is_needed_away, is_server, owns_former, spool_of
from accordion.wiring.tables import (
    base_models,
    counters,
    dialects,
    is_loopback,
    log_unknown_window,
    routes,
    rules,
    spans,
    thresholds,
    windows,
)
from accordion.wiring.vault import Vault

_log = logging.getLogger("accordion")

# Seconds that the reader of a large body lets requests go on between its steps.
_PAUSE = 0.002


class House:
    """Every room of one process, and the settings in force. `settings` may change while it serves; then what depends on
    them is built anew, and requests under way end with what they began with. `slots`: what workers share."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], slots: Slots | None = None) -> None:
        self.settings = settings
        self.clock, self.tasks = LoopClock(), LoopTasks()
        self.metrics = Metrics()
        self.counter = TiktokenCounter()
        self.dialects = dialects()
        self._worker = secrets.token_hex(6)
        url = settings.store.url.reveal()
        store = open_store(url, timeout=settings.store.write_timeout_seconds)
        self.store = GuardedStore(
            store,
            timeout=settings.store.timeout_seconds,
            write_timeout=settings.store.write_timeout_seconds,
            monotonic=self.clock.monotonic,
            on_change=self._store_changed,
        )
        self.spooled = SpooledStore(self.store, spool_of(settings), is_copied=is_needed_away)
        self._mark = Mark(
            self.store,
            settings.server.tenant_key.reveal().encode(),
            changed=lambda: self._apply(self.settings),
            # A store in memory is never emptied; where it is full it lets go of what was written first: the mark.
            emptied=self._store_emptied if url != "memory://" else lambda: None,
            replaced=lambda: store.replaced if isinstance(store, SqliteStore) else 0,
            learned=self._store_learned,
        )
        self.spooled.confirm = self._mark.check
        self.outbox = GatheringOutbox(self.spooled.minor(), on_drop=self.metrics.dropped)
        self._lasting(settings, environ, slots)
        self._apply(settings)

    def _lasting(self, settings: Settings, environ: Mapping[str, str], slots: Slots | None) -> None:
        """The rooms that keep what they know when settings change."""
        limits, retention = settings.limits, settings.store.retention_days * 86_400
        observers: list[Observer] = [self.metrics, Lines(), CompactionLines(self._limits_of)]
        self._spans = spans(environ)
        if self._spans is not None:
            observers.append(self._spans)
        self._reader = Reader(limits.body_cache_bytes, limits.messages_per_request, partial(time.sleep, _PAUSE))
        self._meter = Meter(self.counter, limits.count_cache_entries)
        self._calibrations, self._limits = Calibrations(), Limits(self.clock.now)
        self._taught = Taught(self.store, self.outbox, self.clock, self._limits, self._calibrations, retention)
        others = others_of(settings.store.url.reveal(), settings.server.workers, slots)
        self._sessions = Sessions(
            self.spooled, self.outbox, self.clock, self._worker, limits.sessions_in_memory, retention, others
        )
        self._vault = Vault(settings, self.store, self.spooled, self.tasks, self.clock, self.metrics.swept)
        self._session_bounds = SessionBounds(
            self.store, lambda tenant: self.tenants.space(tenant), max_bytes=settings.store.session_bytes,
            keep=limits.exchanges_per_session,
        )  # fmt: skip
        self._vault.erasures.listen(self._sessions.forget)
        # Who erases has the time for it to be written, and then removes it with the rest.
        self._vault.erasures.listen(lambda *_: self.outbox.hurry())
        self._vault.erasures.listen(lambda *_: self._clear_recent())
        self._vault.erasures.listen(lambda *_: self.spooled.drop_soon())
        self._kitchen = Kitchen(
            settings,
            self.store,
            self.spooled,
            self._vault,
            self.outbox,
            self._meter,
            self.counter,
            self.tasks,
            self.clock,
        )
        self._seats = Seats(
            self.spooled, self.outbox, self.clock, self.tasks, self._sessions, self._kitchen.reader,
            self._kitchen.archive, self.metrics.edge, shares(limits.cache_bytes),
        )  # fmt: skip
        self._vault.erasures.listen(self._seats.forget)
        self.library = Library(
            lambda: self.settings, self._kitchen.room, self._vault.transcripts, self.counter, self.tasks, self.clock,
            lambda space: note(self.outbox, self.tenants.name_of(space)), self.metrics.wrote,
        )  # fmt: skip
        ledger = self.outbox.patient(self.store)
        self._journal = Journal(ledger, observers, self._worker, limits.exchanges_per_session, retention)
        self._translator = LiteLLMTranslator(self._kitchen.spoken)
        self._upstream = self._connect(settings)
        self._deployment_pauses = DeploymentPauses(self.clock)

    def _apply(self, settings: Settings) -> None:
        """The rooms that settings shape."""
        self.tenants = Tenants(
            self._mark.secret,
            tuple(ProxyKey(key.id, key.key.reveal()) for key in settings.proxy_keys),
            loopback=is_loopback(settings.server.host),
        )
        router, known = routes(settings), windows(settings, self._limits, log_unknown_window)
        gauging = Gauging(
            dialects=self.dialects,
            counters=counters(self.dialects),
            openai=self.dialects["/v1/chat/completions"],
            anthropic=self.dialects["/v1/messages"],
            reader=self._reader,
            sessions=self._sessions,
            seating=self._seats.seating(settings),
            meter=self._meter,
            calibrations=self._calibrations,
            windows=known,
            folds=self._kitchen.folds,
            wishes=self._kitchen.wishes,
            rules=rules(settings),
            base_models=base_models(settings),
            router=router,
            tasks=self.tasks,
            max_body=settings.server.max_body_bytes,
            dresser=self._kitchen.dresser(settings),
            mentions=self.library.mentions(settings),
        )
        sending = Sending(self.tenants, router, self._upstream, self._translator, self._deployment_pauses)
        self._compactors = self._kitchen.compactors(settings, partial(self._summarizer, settings, router, known))
        folding = Folding(
            gauging,
            self._compactors,
            self._kitchen.rendering,
            self._kitchen.wishes,
            self._kitchen.named,
            self._kitchen.recalling(settings),
            self.library.importing(settings, self._kitchen.overlays),
            self.library.recollecting(settings, self._kitchen.overlays),
        )
        unfolding = self._kitchen.unfolding(settings, gauging.seating.sharing)
        retrieving = Retrieving(gauging.sessions, self._kitchen.overlays)
        self.forward = Forward(
            self.tenants, gauging, folding, sending, self._journal, self.clock, self._vault.erasures,
            self._kitchen.named, Completing(self._kitchen.links), self._kitchen.history(self._sessions), unfolding,
            retrieving, self.library.remembering(settings), settings.server.responses_websocket,
        )  # fmt: skip
        self.observe = Observe(
            self.store, self.outbox, known, thresholds(settings), settings.compaction.mode_of,
            gauging.seating.lineage, settings.limits.exchanges_per_session, lambda: self.store.has_answered,
            tuple(dict.fromkeys(name for name in router.models if "*" not in name)), self.spooled,
        )  # fmt: skip
        self.settings = settings

    def _limits_of(self, model: str, delegated: bool, window: int) -> BudgetLimits | None:
        """What the settings in force allow a model; None where its requests are never compacted."""
        if self.settings.compaction.mode_of(model, delegated=delegated) == "off":
            return None
        return self.settings.thresholds.of(model, delegated=delegated).limits(window)

    def _summarizer(
        self, settings: Settings, router: Routes, known: ModelWindows, model: str
    ) -> ModelSummarizer | None:
        if not model and settings.summaries.writer == "extractive":
            return None
        return ModelSummarizer(self._upstream, self._translator, router, known, self._kitchen.spoken, model=model)

    def swap(self, settings: Settings) -> None:
        """Puts other settings in force."""
        if (settings.timeouts, settings.retries) != (self.settings.timeouts, self.settings.retries):
            # The former one goes on with what is under way; its idle connections close by themselves, soon.
            self._upstream = self._connect(settings)
        self._apply(settings)

    async def start(self) -> None:
        """Makes ready what a request would else wait for."""
        # What is there now stays; what requests leave behind is freed by counting references. Collecting is seldom
        # needed, and costs a fifth of a small request at the usual pace.
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        # The loop notes each asynchronous generator, to close those that are left when it ends: nearly as long as
        # going through a short one takes. Here whoever has one closes it, or drops it; then the loop still does.
        sys.set_asyncgen_hooks(firstiter=None)
        # The threads of the store and of folds must not hold the interpreter for long while a request waits for it.
        sys.setswitchinterval(0.0005)
        # A store takes longer to open than to read, and a request has little time to wait for it.
        with suppress(StoreUnavailable):
            await self.store.ping()
        if is_server(self.settings):
            self._mark.recall(*await self.spooled.spool.recall(self._mark.secret))
        await self._mark.look()
        await self._taught.look()
        self.tasks.repeat(self.look, LOOK, "follow the store")
        self.tasks.repeat(self._vault.bounds.round, ARCHIVE_ROUNDS, "bound the archive")
        self.tasks.repeat(self._session_bounds.round, SESSION_ROUNDS, "bound the sessions")
        self.tasks.spawn(self.library.warm(), "open the memories")

    async def stop(self) -> None:
        """Ends what runs, and writes what is left to write."""
        await self.tasks.cancel()
        await self._vault.close()
        self._taught.hand_in()
        await self.outbox.close()
        await self._upstream.close()
        await self._translator.close()
        await self._kitchen.close()
        await self.library.close()
        await self.store.close()
        if self._spans is not None:
            await self._spans.close()
        await self.tasks.close()

    async def text_of(self, artifact_id: str, space: bytes) -> str | None:
        """The whole text of what left a tenant's window under this id; None where there is no such thing."""
        return await self._kitchen.text_of(artifact_id, space, self._kitchen.spoken)

    def app(self) -> ASGIApp:
        """The ASGI application."""
        openai = self.dialects["/v1/chat/completions"]
        room, wishes = self._kitchen.room, self._kitchen.wishes
        kept = ArchiveApi(lambda: self.observe, lambda: self.tenants, room, wishes, self.library.memories)
        api = Api(
            lambda: self.observe,
            lambda: self.tenants,
            self.metrics,
            lambda error: openai.error(error, new_id()),
            __version__,
            wishes,
            [*kept.routes(), *self.library.routes(lambda: self.tenants, __version__)],
            self.spooled.spool.described,
        )
        sockets = Sockets(
            lambda asked, names: open_socket(asked, names, timeout=self.settings.timeouts.connect_seconds), SocketClosed
        )
        return Http(lambda: self.forward, api.app(), sockets, new_id)

    def _connect(self, settings: Settings) -> HttpUpstream:
        silence = settings.timeouts.read_seconds
        timeouts = Timeouts(connect=settings.timeouts.connect_seconds, read=silence, write=silence)
        return HttpUpstream(AiohttpTransport(timeouts), attempts=settings.retries.connect_attempts)

    def _store_changed(self, available: bool) -> None:
        self.metrics.store(available)
        if available:
            _log.info("the store is available again")
            self.tasks.spawn(self.spooled.look(), "publish the spool")
        else:
            _log.warning(
                "the store is unavailable; requests are forwarded without it, and the proxy keeps trying: %s",
                self.store.problem,
            )

    async def _store_learned(self, identity: bytes, secret: bytes) -> None:
        """The store answered, for the first time or as another one: what waits for it on this machine goes there."""
        spool, settings = self.spooled.spool, self.settings
        await spool.identify(identity, secret, lasting=is_server(settings))
        former = settings.store.former_spool_path()
        await spool.adopt(
            self.store,
            partial(owns_former, settings, self.store),
            self.spooled.settle,
            self.spooled.erasures,
            Path(former) if former else None,
        )

    def _store_emptied(self) -> None:
        _log.warning(
            "the store was emptied or replaced; the proxy stores everything that it compacts from now on again"
        )
        self._kitchen.forget()
        self._clear_recent()
        self._vault.transcripts.begin_anew()
        self._sessions.forget("", None)
        self._seats.forget("", None)

    def _clear_recent(self) -> None:
        self.tasks.spawn(self.spooled.spool.clear_recent(), "remove the copies of recent records")

    async def look(self) -> None:
        """Learns what other workers were asked to do, were taught and erased, and whether the store is still the one
        that it was. Never fails."""
        await self._mark.look()
        await self.spooled.look()
        await self._kitchen.wishes.look()
        await self._vault.erasures.look()
        await self._taught.look()
