"""Where one request sits among the agents, what it is not shown, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass

from accordion.core.delegation import TOP, Evidence, Seat, name_of
from accordion.core.values import replace
from accordion.gauged import Gauge
from accordion.identity.marks import Marks, read_marks
from accordion.identity.nodes import tenant_of
from accordion.offline.rooms import Rooms
from accordion.seating import seat_marks


@dataclass(frozen=True, slots=True)
class Unseen:
    """A result that was hidden with its call. `index` is the place of its message in the client's list, `of` the
    delegation that it belongs to."""

    index: int
    tool: str
    call_id: str
    of: str


@dataclass(frozen=True, slots=True)
class Sitting:
    """Which agent a request is from: its delegation and those it works for (`path`, oldest first), by the names that
    clients have for them; empty for the main agent. `candidates` are the calls that could have begun it: of two,
    neither did. `on_record` says whether what proxies know could be asked for."""

    delegated: bool
    delegation: str
    path: tuple[str, ...]
    agent: str
    evidence: Evidence
    call_id: str
    candidates: int
    hidden: tuple[Unseen, ...]
    on_record: bool

    @property
    def told(self) -> bool:
        """Whether it is more than a main agent of which nothing is known."""
        return bool(self.delegated or self.delegation or self.agent or self.candidates)


async def sitting(gauge: Gauge, fields: dict[bytes, bytes], rooms: Rooms) -> Sitting | None:
    """Tells it of a request that was gauged; None where it was not read."""
    seated = gauge.seated
    if seated is None:
        return None
    seat, lead = seated.seat, len(seated.client.lead)
    if not seat.node:
        seat = await _found(gauge, read_marks(fields, seated.client.envelope), seat, rooms)
    hidden = (
        Unseen(lead + each.result[0], each.name, each.call_id, name_of(seated.owners.get(each.result, TOP)))
        for each in seated.taken
    )
    return Sitting(
        delegated=seat.delegated,
        delegation=name_of(seat.node),
        path=tuple(map(name_of, seat.path)),
        agent=seat.agent,
        evidence=seat.evidence,
        call_id=seat.call_id,
        candidates=seat.candidates,
        hidden=tuple(hidden),
        on_record=rooms.sessions is not None,
    )


async def _found(gauge: Gauge, marks: Marks, seat: Seat, rooms: Rooms) -> Seat:
    """The seat of a request that says nothing of it, where proxies found what began its conversation."""
    if rooms.sessions is None or gauge.place is None:
        return seat
    tenant, nodes = tenant_of(gauge.caller.space), rooms.gauging.seating.lineage.nodes
    place = await rooms.sessions.resolve(gauge.caller, seat_marks(marks, seat), gauge.place.conversation, "explained")
    node = f"s:{place.session.id}"
    await nodes.load(tenant, (node,))
    held = nodes.get(tenant, node)
    if held is None or not held.parent:
        return replace(seat, candidates=held.candidates) if held is not None else seat
    return replace(
        seat, node=node, path=nodes.path(tenant, node), agent=held.agent or seat.agent, evidence=held.evidence,
        delegated=True, parent=held.parent, call_id=held.call_id,
    )  # fmt: skip
