"""The rooms that a request passes before it leaves: those of a house that serves nobody and keeps all in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from proxy.core.budget import Window
from proxy.forward import Forward
from proxy.gauge import Gauging
from proxy.identity.tenants import Caller, Tenants
from proxy.settings import Settings
from proxy.settings.kinds import Secret, StoreUrl
from proxy.wiring import House

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

    To be made within a running event loop, and closed there. Nothing is sent, and nothing is written to a disk.
    """

    def __init__(self, settings: Settings, window: int | None = None) -> None:
        self._key = settings.server.tenant_key.reveal() or _TENANT_KEY
        changed = msgspec.structs.replace
        server = changed(settings.server, tenant_key=Secret(self._key))
        store = changed(settings.store, url=StoreUrl("memory://"))
        self._house = House(changed(settings, server=server, store=store), {})
        self._window = window

    @property
    def gauging(self) -> Gauging:
        """Identity and accounting."""
        known = self._house.forward.gauging
        return known if self._window is None else replace(known, windows=OneWindow(self._window))

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
