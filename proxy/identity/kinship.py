"""Whether something that left a window is of a viewer's own branch: of its own delegation, of one that it works for, or
of one that works for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from proxy.core.conversation import Conversation
from proxy.core.delegation import TOP, Path, Seat, visible
from proxy.core.errors import StoreUnavailable
from proxy.core.ports import Key, Store
from proxy.core.values import dataclass
from proxy.identity.nodes import Nodes, tenant_of
from proxy.identity.scopes import Scopes, Standing, namespaces
from proxy.identity.tenants import Caller


def seated_key(tenant: str, session_id: str) -> Key:
    """Where it is kept which node a session is."""
    return Key(f"seated/{tenant}", session_id)


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
        """Whether another session is of the viewer's branch. Nobody can tell whose the top is that declared delegations
        without a parent work for: any that they are shown something of. Asks the store; False while it is away."""
        if session == viewer.session:
            return True
        tenant, seat = tenant_of(viewer.caller.space), viewer.seat
        try:
            row = await self.store.get(seated_key(tenant, session))
        except StoreUnavailable:
            return False
        names = [f"s:{session}"] if row is None else [row.decode(), f"s:{session}"]
        await self.nodes.load(tenant, names)
        theirs = [self.nodes.path(tenant, name) for name in names]
        mine: list[Path] = [seat.path] if seat.path else [(f"s:{viewer.session}",)]
        if not seat.path and seat.home:
            mine.append((seat.home,))
        if any(visible(one, two) for one in theirs for two in mine):
            return True
        plain = row is None and len(theirs[0]) == 1
        return _declared(theirs[0]) if not seat.path else plain and _declared(seat.path)

    async def unhidden(self, viewer: Viewer, calls: Sequence[Standing]) -> bool:
        """Whether the results of all these calls may be seen: what left the window of an ancestor may hold what
        another of its delegations found. Asks the store."""
        seat, space = viewer.seat, viewer.caller.space
        if not seat.path or not calls:
            return True
        found = await self.scopes.find(space, namespaces(space, seat, viewer.client), calls)
        foreign = set(found) - {TOP, *seat.path}
        tenant = tenant_of(space)
        with suppress(StoreUnavailable):
            await self.nodes.load(tenant, foreign)
        return all(visible(self.nodes.path(tenant, node), seat.path) for node in foreign)


def _declared(path: Path) -> bool:
    """Whether the uppermost of a branch was declared without a parent."""
    return path[0][:2] == "x:"
