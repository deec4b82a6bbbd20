"""Whether something that left a window is of a viewer's own branch: of its own delegation, of one that it works for, or
of one that works for it."""

from __future__ import annotations

from collections.abc import Sequence

from accordion.core.conversation import Conversation
from accordion.core.delegation import TOP, Path, Seat, visible
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Store
from accordion.core.values import dataclass
from accordion.identity.nodes import Nodes, tenant_of
from accordion.identity.scopes import Scopes, Standing, namespaces
from accordion.identity.tenants import Caller


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks, and from where: `client` is the list as its client sent it."""

    caller: Caller
    seat: Seat
    session: str
    client: Conversation


@dataclass(frozen=True, slots=True)
class Kinship:
    """Knows branches by the tree of delegations."""

    store: Store
    nodes: Nodes
    scopes: Scopes

    async def related(self, viewer: Viewer, session: str) -> bool:
        """Whether another session is of the viewer's branch. Only a known edge leads from one conversation to another:
        a delegation of which nobody says whom it works for, and no call either, is the uppermost of a branch of its
        own. Asks the store; False while it is away."""
        if session == viewer.session:
            return True
        tenant, seat = tenant_of(viewer.caller.space), viewer.seat
        try:
            node = await self.nodes.seated(tenant, session)
        except StoreUnavailable:
            return False
        names = [f"s:{session}"] if node is None else [node, f"s:{session}"]
        await self.nodes.load(tenant, names)
        theirs = [self.nodes.path(tenant, name) for name in names]
        mine: list[Path] = [seat.path] if seat.path else [(f"s:{viewer.session}",)]
        if not seat.path and seat.home:
            mine.append((seat.home,))
        return any(visible(one, two) for one in theirs for two in mine)

    async def unhidden(self, viewer: Viewer, calls: Sequence[Standing]) -> bool:
        """Whether the results of all these calls may be seen: what left the window of an ancestor may hold what
        another of its delegations found. Asks the store; False while it is away."""
        seat, space = viewer.seat, viewer.caller.space
        if not seat.path or not calls:
            return True
        found = await self.scopes.find(space, namespaces(space, seat, viewer.client), calls)
        foreign, tenant = set(found) - {TOP, *seat.path}, tenant_of(space)
        await self.nodes.load(tenant, foreign)
        # What could not be asked for is not known to be anybody's.
        return self.store.available and all(visible(self.nodes.path(tenant, node), seat.path) for node in foreign)
