"""The house with fakes at its walls: what a request meets on its way, in one process and without a socket."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from accordion.accounting.calibration import Calibrations
from accordion.accounting.ledger import Ledger
from accordion.accounting.token_meter import TokenMeter
from accordion.composition import protocols_by_path, rules_by_model, token_counting_paths
from accordion.composition.archive_builder import ArchiveServices
from accordion.composition.compaction_builder import CompactionBuilder
from accordion.composition.visibility_builder import VisibilityBuilder
from accordion.config.load import build
from accordion.model.budget import Thresholds
from accordion.model.http import Inbound, Outbound
from accordion.model.records import Exchange
from accordion.model.summarizer import Summarizer
from accordion.pipeline.compact import CompactionStep
from accordion.pipeline.forward import RequestPipeline
from accordion.pipeline.history_reconstruction import HistoryReconstruction
from accordion.pipeline.measure import Measurer
from accordion.pipeline.queries import Queries
from accordion.pipeline.response_retrieval import ResponseRetrieval
from accordion.pipeline.send import DeploymentPauses, Sender
from accordion.protocols.body_reader import BodyReader
from accordion.sessions.sessions import Sessions
from accordion.sessions.tenants import ProxyKey, Tenants
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.spool import Spool, SpooledStore
from tests.fakes import DirectOutbox, FakeClock, FakeRouter, FakeTasks, FakeUpstream, FakeWindows, WordCounter

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


class Seen:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.parents: list[str] = []

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        self.exchanges.append(exchange)
        self.parents.append(traceparent)


@dataclass
class World:
    """Every room, real; every wall, fake."""

    keys: tuple[ProxyKey, ...] = ()
    loopback: bool = True
    store: InMemoryStore = field(default_factory=InMemoryStore)
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    translator: FakeUpstream = field(default_factory=FakeUpstream)
    windows: FakeWindows = field(default_factory=FakeWindows)
    router: FakeRouter = field(default_factory=FakeRouter)
    clock: FakeClock = field(default_factory=FakeClock)
    tasks: FakeTasks = field(default_factory=FakeTasks)
    seen: Seen = field(default_factory=Seen)
    summarizer: Summarizer | None = None
    config: str = ""
    """More of config.yaml; the store is in memory, and no model writes summaries."""

    def __post_init__(self) -> None:
        spoken = protocols_by_path()
        self.outbox = DirectOutbox(self.store)
        config = "store: {url: memory://}\n" + self.config
        config += "" if self.summarizer or "summaries:" in config else "\nsummaries: {writer: extractive}"
        settings = build(config.encode(), {}, {})
        counter = self.counter = WordCounter()
        meter = TokenMeter(counter)
        self.spooled = SpooledStore(self.store, Spool(None, place="here"))
        self.vault = ArchiveServices(settings, self.store, self.spooled, self.tasks, self.clock, lambda _: None)
        self.kitchen = CompactionBuilder(
            settings, self.store, self.spooled, self.vault, self.outbox, meter, counter, self.tasks, self.clock
        )
        sessions = Sessions(self.store, self.outbox, self.clock, "worker")
        seats = VisibilityBuilder(
            self.store, self.outbox, self.clock, self.tasks, sessions, self.kitchen.reader, self.kitchen.archive
        )
        gauging = Measurer(
            protocols=spoken,
            token_count_protocols=token_counting_paths(spoken),
            openai=spoken[CHAT],
            anthropic=spoken[MESSAGES],
            request_reader=BodyReader(),
            sessions=sessions,
            visibility=seats.visibility(settings),
            token_meter=meter,
            calibrations=Calibrations(),
            window_table=self.windows,
            compactions=self.kitchen.compactions,
            session_overrides=self.kitchen.session_overrides,
            compaction_rules=rules_by_model(settings),
            base_models={},
            router=self.router,
            tasks=self.tasks,
            insertion_composer=self.kitchen.insertion_composer(settings),
        )
        tenants = Tenants(b"secret" * 6, self.keys, loopback=self.loopback)
        journal = Ledger(self.outbox, [self.seen], "worker")
        sending = Sender(tenants, self.router, self.upstream, self.translator, DeploymentPauses(self.clock))
        compactors = self.kitchen.compactors(settings, lambda _model: self.summarizer)
        recalling = self.kitchen.artifact_recall(settings)
        folding = CompactionStep(
            gauging,
            compactors,
            self.kitchen.request_renderer,
            self.kitchen.session_overrides,
            self.kitchen.named_items,
            recalling,
        )
        unfolding = self.kitchen.tool_loop(settings, gauging.visibility.shared_artifacts)
        retrieving = ResponseRetrieval(gauging.sessions, self.kitchen.insertion_store)
        self.forward = RequestPipeline(
            tenants,
            gauging,
            folding,
            sending,
            journal,
            self.clock,
            self.vault.erasures,
            self.kitchen.named_items,
            HistoryReconstruction(self.kitchen.response_links),
            self.kitchen.response_history(sessions),
            unfolding,
            retrieving,
        )
        self.observe = Queries(
            self.store,
            self.outbox,
            self.windows,
            {"": Thresholds()},
            delegation_tracker=gauging.visibility.delegation_tracker,
        )

    def inbound(self, path: str, body: Any, headers: dict[str, str] | None = None, method: str = "POST") -> Inbound:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        pairs = tuple((name.lower().encode(), value.encode()) for name, value in (headers or {}).items())
        return Inbound(method, path, "", pairs, raw, f"req-{len(self.seen.exchanges)}")

    async def ask(
        self, path: str, body: Any, headers: dict[str, str] | None = None, method: str = "POST"
    ) -> tuple[Outbound, bytes]:
        """Sends a request and takes the whole answer."""
        out = await self.forward(self.inbound(path, body, headers, method))
        if isinstance(out.body, bytes):
            return out, out.body
        return out, b"".join([piece async for piece in out.body])


def header(out: Outbound, name: str) -> str | None:
    """The value of a response header."""
    return next((value.decode() for key, value in out.headers if key == name.encode()), None)
