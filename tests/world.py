"""The house with fakes at its walls: what a request meets on its way, in one process and without a socket."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from proxy.accounting.calibration import Calibrations
from proxy.accounting.journal import Journal
from proxy.accounting.meter import Meter
from proxy.core.budget import Thresholds
from proxy.core.http import Inbound, Outbound
from proxy.core.records import Exchange
from proxy.dialects.reader import Reader
from proxy.forward import Forward
from proxy.gauge import Gauging
from proxy.identity.sessions import Sessions
from proxy.identity.tenants import ProxyKey, Tenants
from proxy.observe import Observe
from proxy.storage.ephemeral import EphemeralStore
from proxy.wiring import dialects
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

    def __post_init__(self) -> None:
        spoken = dialects()
        self.outbox = DirectOutbox(self.store)
        gauging = Gauging(
            dialects=spoken,
            openai=spoken[CHAT],
            anthropic=spoken[MESSAGES],
            reader=Reader(),
            sessions=Sessions(self.store, self.outbox, self.clock, "worker"),
            meter=Meter(WordCounter()),
            calibrations=Calibrations(),
            windows=self.windows,
            thresholds={"": Thresholds()},
            base_models={},
            router=self.router,
            tasks=self.tasks,
        )
        tenants = Tenants(b"secret" * 6, self.keys, loopback=self.loopback)
        journal = Journal(self.outbox, [self.seen], "worker")
        self.forward = Forward(tenants, gauging, self.upstream, self.translator, journal, self.clock)
        self.observe = Observe(self.store, self.outbox, self.windows, {"": Thresholds()})

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
