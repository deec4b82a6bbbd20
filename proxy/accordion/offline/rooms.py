"""The rooms that a request passes before it leaves: those of a house that serves nobody and keeps all in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from accordion.archive.artifacts import Artifact
from accordion.archive.writing import Archive
from accordion.core.budget import Window
from accordion.core.http import Inbound
from accordion.core.values import replace
from accordion.forward import Forward
from accordion.gauge import Gauging
from accordion.gauged import Gauge
from accordion.identity.tenants import Caller, Tenants
from accordion.offline.beside import Beside
from accordion.settings import Settings
from accordion.settings.kinds import Secret, StoreUrl
from accordion.wiring import House

# Where the config has none: the same every time, so that session ids are too.
_TENANT_KEY = "offline"


@dataclass(frozen=True, slots=True)
class OneWindow:
    """Windows (core/ports.py) of one size, whatever the model."""

    size: int

    def window(self, model: str, upstream: str = "", beta: str = "", tenant: str = "") -> Window:
        """A window of that size."""
        return Window(self.size, self.size, "config")

    def learn(self, model: str, upstream: str, beta: str, tenant: str, limit: int) -> None:
        """Nothing is learnt: the size was given."""


class Rooms:
    """The rooms as `settings` shape them, with `window` tokens for every model where it is given.

    To be made within a running event loop, and closed there. Nothing is sent, and nothing is written to a disk. What is
    `known` of agents is what proxies found out; else nothing is.
    """

    def __init__(self, settings: Settings, window: int | None = None, known: Beside | None = None) -> None:
        self._key = settings.server.tenant_key.reveal() or _TENANT_KEY
        changed = msgspec.structs.replace
        server = changed(settings.server, tenant_key=Secret(self._key))
        store = changed(settings.store, url=StoreUrl("memory://"), spool=None)
        self._settings = settings
        # Nobody can be asked for a summary here.
        summaries = changed(settings.summaries, writer="extractive")
        self._house = House(changed(settings, server=server, store=store, summaries=summaries), {})
        gauging = self._house.forward.gauging
        if window is not None:
            gauging = replace(gauging, windows=OneWindow(window))
        self.tenants, self.sessions = self._house.tenants, None if known is None else known.sessions(self._house.clock)
        if known is not None:
            self.tenants = known.tenants(settings)
            lineage = known.lineage(settings, self._house.clock, self._house.tasks)
            gauging = replace(gauging, seating=replace(gauging.seating, lineage=lineage))
        self.gauging: Gauging = gauging
        """Identity and accounting."""

    def writer(self, model: str) -> str:
        """Who would write summaries for `model` live; here it is the extractive writer."""
        return self._settings.compaction.writer_of(model) or self._settings.summaries.writer

    async def fold(self, inbound: Inbound, caller: Caller) -> Gauge:
        """What a live request passes until it is sent: read, replayed, measured, folded where that is decided. The
        decision is to refuse it where it is known to fit in no form."""
        return await self.carried_out(inbound, await self.gauging.gauge(inbound, inbound.fields, caller))

    async def carried_out(self, inbound: Inbound, gauge: Gauge) -> Gauge:
        """The second half of that: what was gauged, folded where that is decided."""
        # Nobody's memories are here to be recalled.
        folding = replace(self._house.forward.folding, gauging=self.gauging, recollecting=None)
        return await self._house.forward.completing.fold(folding, inbound, gauge, lambda _gauge: None)

    async def artifacts(self, ids: Sequence[str], caller: Caller) -> list[Artifact]:
        """What left the window, by id, in that order."""
        found = await Archive(self._house.store).artifacts(caller.space, ids)
        return [artifact for artifact in found if artifact is not None]

    async def text_of(self, artifact: str, caller: Caller) -> str | None:
        """The whole text of what left the window under an id; None where there is no such thing."""
        return await self._house.text_of(artifact, caller.space)

    @property
    def forward(self) -> Forward:
        """What would send a request; never asked to."""
        return self._house.forward

    @property
    def caller(self) -> Caller:
        """Who asks where nobody says who he is: one tenant."""
        return Tenants(self._key.encode()).identify({})

    async def close(self) -> None:
        """Lets go of everything."""
        await self._house.stop()
