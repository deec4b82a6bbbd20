"""The room in which requests are seated; it keeps what it knows while its settings stay the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from accordion.archive.writing import Archive
from accordion.compaction.filtering import Filter
from accordion.compaction.reading import WrittenReader
from accordion.core.delegation import Evidence
from accordion.core.ports import Clock, Outbox, Store, Tasks
from accordion.identity.kinship import Kinship
from accordion.identity.lineage import Lineage, Sizes
from accordion.identity.sessions import Sessions
from accordion.seating import Seating
from accordion.settings import Settings
from accordion.settings.delegating import Delegation
from accordion.sharing import Sharing
from accordion.wiring.shares import DEFAULT, Shares, shares


class Seats:
    """Makes the room for the settings in force."""

    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        clock: Clock,
        tasks: Tasks,
        sessions: Sessions,
        reader: WrittenReader,
        archive: Archive,
        told: Callable[[Evidence], None] | None = None,
        sizes: Shares | None = None,
    ) -> None:
        self._rooms = store, outbox, clock, tasks
        self._archive = archive
        self._sessions, self._told = sessions, told
        self._shares = sizes or shares(DEFAULT)
        self._filter = Filter(reader, self._shares.filtered)
        self._made: tuple[Delegation, Lineage, Sharing] | None = None

    def seating(self, settings: Settings) -> Seating:
        """The room as the settings want it."""
        wanted = settings.delegation
        if self._made is None or self._made[0] != wanted:
            sizes = self._shares
            lineage = Lineage.build(
                *self._rooms,
                tools=wanted.tools,
                handoff_tools=wanted.handoff_tools,
                max_depth=wanted.max_depth,
                max_agents=wanted.max_agents,
                retention=settings.store.retention_days * 86_400,
                told=self._told,
                wait=asyncio.sleep,
                sizes=Sizes(
                    sizes.nodes, sizes.scopes, sizes.places, sizes.origins, sizes.shown, sizes.openings, sizes.waiting
                ),
            )
            store, _, clock, tasks = self._rooms
            kinship = Kinship(store, lineage.nodes, lineage.scopes)
            self._made = wanted, lineage, Sharing(self._archive, kinship, tasks, clock, capacity=sizes.hidden)
        _, lineage, sharing = self._made
        return Seating(lineage, self._filter, self._sessions, sharing)

    def forget(self, tenant: str, session: str | None) -> None:
        """Something of a tenant was erased, of one session or of all: asks the store anew."""
        if self._made is not None:
            self._made[1].forget()
            self._made[2].forget()
