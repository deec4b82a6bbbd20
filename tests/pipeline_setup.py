"""The request pipeline in one process, without a socket: real steps, fakes for store, clock, providers and windows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from accordion.accounting.calibration import Calibrations
from accordion.accounting.key_limits import KeyLimiter, KeyUsageLedger
from accordion.accounting.ledger import Ledger
from accordion.accounting.token_meter import TokenMeter
from accordion.composition.compaction_builder import ArchiveServices, CompactionBuilder
from accordion.composition.features import RunningFeature
from accordion.composition.pipeline_builder import (
    LastingParts,
    PipelineSteps,
    VisibilityBuilder,
    build_pipelines,
    build_steps,
)
from accordion.composition.tables import build_prices
from accordion.config import Settings
from accordion.config.load import build
from accordion.model.budget import Thresholds
from accordion.model.http import Inbound, Outbound
from accordion.model.ports import Summarizer
from accordion.model.records import Exchange
from accordion.pipeline.compaction_stops import CompactionStops
from accordion.pipeline.mentions import Mentions
from accordion.pipeline.queries import Queries
from accordion.pipeline.request import MeasuredRequest
from accordion.pipeline.request_hooks import RequestHook
from accordion.pipeline.send import DeploymentPauses, Sender
from accordion.pipeline.tool_refusals import ToolRefusals
from accordion.protocols.body_reader import BodyReader
from accordion.sessions.proxy_keys import CreatedKeys, ProxyKey
from accordion.sessions.sessions import Sessions
from accordion.sessions.tenants import Tenants
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import DirectOutbox, FakeClock, FakeRouter, FakeTasks, FakeUpstream, FakeWindows, WordCounter
from tests.spools import with_spool
from tests.writers import WRITERS

PATHS = {name: writer.path("gpt-5") for name, writer in WRITERS.items()}
CHAT, RESPONSES, MESSAGES = PATHS["chat"], PATHS["responses"], PATHS["messages"]

OWNER_TOKEN = "token-of-the-owner-7Lq2"
OWNER = {"x-accordion-token": OWNER_TOKEN}
"""The header with which a caller of this machine may erase and export."""


class ExchangeRecorder:
    """An observer that records exchanges."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.parents: list[str] = []

    def exchange(self, tenant: str, exchange: Exchange, traceparent: str) -> None:
        self.exchanges.append(exchange)
        self.parents.append(traceparent)


class SetupFeature(RunningFeature):
    """The parts of features that a test gives to its pipeline."""

    def __init__(self, request_hooks: Sequence[RequestHook], mentions: Mentions | None) -> None:
        self.request_hooks, self._mentions = request_hooks, mentions

    def mentions(self, settings: Settings) -> Mentions | None:
        return self._mentions


@dataclass
class PipelineSetup:
    """A pipeline whose steps are real, with fakes for everything outside of it."""

    keys: tuple[ProxyKey, ...] = ()
    admin_key: str = ""
    loopback: bool = True
    store: InMemoryStore = field(default_factory=InMemoryStore)
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    translator: FakeUpstream = field(default_factory=FakeUpstream)
    windows: FakeWindows = field(default_factory=FakeWindows)
    router: FakeRouter = field(default_factory=FakeRouter)
    clock: FakeClock = field(default_factory=FakeClock)
    tasks: FakeTasks = field(default_factory=FakeTasks)
    recorder: ExchangeRecorder = field(default_factory=ExchangeRecorder)
    summarizer: Summarizer | None = None
    config: str = ""
    """More of config.yaml; the store is in memory, and no model writes summaries."""
    mentions: Mentions | None = None
    request_hooks: Callable[[PipelineSetup], Sequence[RequestHook]] = lambda _: ()
    """Builds the hooks of features in requests."""

    def __post_init__(self) -> None:
        self.outbox = DirectOutbox(self.store)
        config = "store: {url: memory://}\n" + self.config
        config += "" if self.summarizer or "summaries:" in config else "\nsummaries: {writer: extractive}"
        settings = build(config.encode(), {}, {})
        self.counter = WordCounter()
        self.spooled = with_spool(self.store)
        self.archive = ArchiveServices(settings, self.store, self.spooled, self.tasks, self.clock, lambda _: None)
        meter = TokenMeter(self.counter)
        self.builder = CompactionBuilder(
            settings, self.store, self.spooled, self.archive, self.outbox, meter, self.counter, self.tasks, self.clock
        )
        self.sessions = Sessions(self.store, self.outbox, self.clock, "worker")
        self.created_keys = CreatedKeys(self.store, self.clock)
        self.key_usage = KeyUsageLedger(self.store, self.outbox, self.clock, "worker")
        self.refused: list[tuple[str, str]] = []
        self.compaction_stops = CompactionStops(
            self.store, self.clock, lambda: self.observe, lambda name: self.forward.tenants.scope(name), "worker"
        )
        self._steps = self._build_steps(settings, self._build_parts(meter))
        self.archive.erasures.listen(lambda namespace, _: self._steps.ledger.savings.forget_agents(namespace))
        self.rebuild()
        self.observe = Queries(
            self.store,
            self.outbox,
            self.windows,
            self.archive.session_names,
            {"": Thresholds()},
            delegation_tracker=self._steps.measurer.visibility.delegation_tracker,
            prices=build_prices(settings),
            stops_if_worse=settings.compaction.stop_if_worse,
        )

    def _build_parts(self, meter: TokenMeter) -> LastingParts:
        return LastingParts(
            clock=self.clock,
            tasks=self.tasks,
            sessions=self.sessions,
            archive=self.archive,
            compaction=self.builder,
            visibility=VisibilityBuilder(
                self.store, self.outbox, self.clock, self.tasks, self.sessions, self.builder.reader,
                self.builder.archive,
            ),
            body_reader=BodyReader(),
            features=[SetupFeature(self.request_hooks(self), self.mentions)],
            tool_refusals=ToolRefusals(self.clock.now),
            token_meter=meter,
            calibrations=Calibrations(),
            ledger=Ledger(self.outbox, [self.recorder], "worker"),
            key_limiter=KeyLimiter(self.store, self.key_usage, self.clock, self._note_refusal),
            key_usage=self.key_usage,
            compaction_stops=self.compaction_stops,
        )  # fmt: skip

    def _build_steps(self, settings: Settings, parts: LastingParts) -> PipelineSteps:
        tenants = Tenants(
            b"secret" * 6,
            self.keys,
            loopback=self.loopback,
            admin_key=self.admin_key,
            created=self.created_keys,
            owner_token=OWNER_TOKEN,
        )
        sender = Sender(tenants, self.router, self.upstream, self.translator, DeploymentPauses(self.clock))
        steps = build_steps(parts, settings, sender, self.windows, lambda _model: self.summarizer)
        # Each request is counted before it is sent, except in the tests of estimates, so that its figures are exact.
        return replace(steps, measurer=replace(steps.measurer, can_estimate=False))

    def _note_refusal(self, tenant: str, limit: str) -> None:
        self.refused.append((tenant, limit))

    def inbound(self, path: str, body: Any, headers: dict[str, str] | None = None, method: str = "POST") -> Inbound:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        pairs = tuple((name.lower().encode(), value.encode()) for name, value in (headers or {}).items())
        path, _, query = path.partition("?")
        return Inbound(method, path, query, pairs, raw, f"req_{len(self.recorder.exchanges)}")

    def rebuild(self, **steps: Any) -> None:
        """Builds the pipelines, with other steps if given. `steps` are fields of `PipelineSteps`."""
        self._steps = replace(self._steps, **steps)
        self.forward, self.upgrade = build_pipelines(self._steps)

    def replace_in(self, step: str, **changes: Any) -> None:
        """Builds the pipelines with changed fields of one step."""
        value: Any = getattr(self._steps, step)
        replaced = (
            replace(value, **changes) if isinstance(value, msgspec.Struct) else dataclasses.replace(value, **changes)
        )
        self.rebuild(**{step: replaced})

    def replace_list_meter(self, **changes: Any) -> None:
        """Builds the pipelines with changed fields of the list meter that measures and compacts."""
        list_meter = replace(self.forward.reader.measurer.list_meter, **changes)
        self.replace_in("measurer", list_meter=list_meter)
        self.replace_in("compaction_step", list_meter=list_meter)

    async def measure(self, path: str, body: Any, headers: dict[str, str] | None = None) -> MeasuredRequest:
        """Reads, identifies and measures a request."""
        inbound = self.inbound(path, body, headers)
        caller = self.forward.tenants.identify(inbound.headers_by_name)
        request = await self.forward.reader.read(inbound, caller, self.clock.monotonic())
        assert isinstance(request, MeasuredRequest)
        return request

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
