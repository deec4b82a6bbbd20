"""The house with fakes at its walls: what a request meets on its way, in one process and without a socket."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from accordion.accounting.calibration import Calibrations
from accordion.accounting.journal import Journal
from accordion.accounting.meter import Meter
from accordion.completing import Completing
from accordion.core.budget import Thresholds
from accordion.core.http import Inbound, Outbound
from accordion.core.records import Exchange
from accordion.core.summarizing import Summarizer
from accordion.dialects.reader import Reader
from accordion.folding import Folding
from accordion.forward import Forward
from accordion.gauge import Gauging
from accordion.identity.sessions import Sessions
from accordion.identity.tenants import ProxyKey, Tenants
from accordion.observe import Observe
from accordion.retrieving import Retrieving
from accordion.sending import DeploymentPauses, Sending
from accordion.settings.load import build
from accordion.storage.ephemeral import EphemeralStore
from accordion.storage.spool import Spool, SpooledStore
from accordion.wiring import counters, dialects, rules
from accordion.wiring.kitchen import Kitchen
from accordion.wiring.seats import Seats
from accordion.wiring.vault import Vault
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
    store: EphemeralStore = field(default_factory=EphemeralStore)
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
        spoken = dialects()
        self.outbox = DirectOutbox(self.store)
        config = "store: {url: memory://}\n" + self.config
        config += "" if self.summarizer or "summaries:" in config else "\nsummaries: {writer: extractive}"
        settings = build(config.encode(), {}, {})
        counter = self.counter = WordCounter()
        meter = Meter(counter)
        self.spooled = SpooledStore(self.store, Spool(None, place="here"))
        self.vault = Vault(settings, self.store, self.spooled, self.tasks, self.clock, lambda _: None)
        self.kitchen = Kitchen(
            settings, self.store, self.spooled, self.vault, self.outbox, meter, counter, self.tasks, self.clock
        )
        sessions = Sessions(self.store, self.outbox, self.clock, "worker")
        seats = Seats(
            self.store, self.outbox, self.clock, self.tasks, sessions, self.kitchen.reader, self.kitchen.archive
        )
        gauging = Gauging(
            dialects=spoken,
            counters=counters(spoken),
            openai=spoken[CHAT],
            anthropic=spoken[MESSAGES],
            reader=Reader(),
            sessions=sessions,
            seating=seats.seating(settings),
            meter=meter,
            calibrations=Calibrations(),
            windows=self.windows,
            folds=self.kitchen.folds,
            wishes=self.kitchen.wishes,
            rules=rules(settings),
            base_models={},
            router=self.router,
            tasks=self.tasks,
            dresser=self.kitchen.dresser(settings),
        )
        tenants = Tenants(b"secret" * 6, self.keys, loopback=self.loopback)
        journal = Journal(self.outbox, [self.seen], "worker")
        sending = Sending(tenants, self.router, self.upstream, self.translator, DeploymentPauses(self.clock))
        compactors = self.kitchen.compactors(settings, lambda _model: self.summarizer)
        recalling = self.kitchen.recalling(settings)
        folding = Folding(
            gauging, compactors, self.kitchen.rendering, self.kitchen.wishes, self.kitchen.named, recalling
        )
        unfolding = self.kitchen.unfolding(settings, gauging.seating.sharing)
        retrieving = Retrieving(gauging.sessions, self.kitchen.overlays)
        self.forward = Forward(
            tenants, gauging, folding, sending, journal, self.clock, self.vault.erasures, self.kitchen.named,
            Completing(self.kitchen.links), self.kitchen.history(sessions), unfolding, retrieving,
        )  # fmt: skip
        self.observe = Observe(
            self.store, self.outbox, self.windows, {"": Thresholds()}, lineage=gauging.seating.lineage
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
