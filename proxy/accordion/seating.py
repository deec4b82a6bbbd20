"""Where a request sits among the agents, and the list as it may see it there: what identity and the filter do before
anything is measured.

From here on a request is treated as if its client had sent no more than what may be seen.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

from accordion.compaction.filtering import Filter, Taken
from accordion.core.boundaries import Place as Spot
from accordion.core.conversation import Conversation, ToolCall
from accordion.core.delegation import Delegation, Seat
from accordion.core.errors import BadRequest
from accordion.core.records import CallSeen
from accordion.core.values import dataclass, replace
from accordion.dialects.base import Dialect
from accordion.dialects.metadata import metadata_sent, without_ours
from accordion.dialects.writing import body
from accordion.identity.kinship import Viewer
from accordion.identity.lineage import Lineage
from accordion.identity.marks import Marks
from accordion.identity.points import Point, deepest, label_of
from accordion.identity.sessions import Place, Sessions
from accordion.identity.shown import NOTHING, Hidden
from accordion.identity.tenants import Caller
from accordion.sharing import Sharing

_log = logging.getLogger("accordion")


@dataclass(frozen=True, slots=True)
class Seated:
    """A request at its seat. `client` is the list as the client sent it, `conversation` what of it may be seen, `plain`
    a body that holds just that; `changed` says whether it differs from the client's own.

    `taken` are the results that were hidden, with their calls; `owners` says whose each is, by its place in the
    client's list. `late` says that some are shown only because they were shown before.
    """

    seat: Seat
    client: Conversation
    conversation: Conversation
    plain: bytes = field(repr=False)
    changed: bool = False
    taken: tuple[Taken, ...] = ()
    owners: Mapping[Spot, str] = field(default_factory=dict)
    late: bool = False


@dataclass(frozen=True, slots=True)
class Seating:
    """Seats requests."""

    lineage: Lineage
    filter: Filter
    sessions: Sessions
    sharing: Sharing | None = None
    """None where nothing that is hidden is kept, and nothing read of others."""

    async def seated(
        self, dialect: Dialect, caller: Caller, marks: Marks, conversation: Conversation, plain: bytes
    ) -> Seated:
        """A request at its seat. Raises BadRequest where its client declares what cannot be; whatever else fails leaves
        it at the top, where all is seen."""
        try:
            seat = self.lineage.top(marks, conversation) or await self.lineage.seat(caller, marks, conversation)
            hidden = NOTHING
            if seat.path:
                label = label_of(caller, seat_marks(marks, seat))
                shown, _ = deepest(self.sessions.record.points, label, conversation.chain)
                hidden = await self.lineage.hidden(caller, seat, conversation, shown)
            return self._filtered(dialect, caller, seat, conversation, plain, hidden)
        except BadRequest:
            raise
        except Exception:
            _log.exception("a request's place in the agent tree could not be determined; it is shown everything")
            return Seated(Seat(delegated=marks.delegated), conversation, conversation, plain)

    async def anew(self, dialect: Dialect, caller: Caller, seated: Seated, place: Place) -> tuple[Seated, Place]:
        """The same with all hidden that is known today to be others', as before a fold: then the prefix breaks anyway.
        The session stays."""
        seat, client = seated.seat, seated.client
        hidden = await self.lineage.hidden(caller, seat, client, -1, anew=True)
        seated = self._filtered(dialect, caller, seat, client, seated.plain, hidden)
        chain = seated.conversation.chain
        if chain:
            self.sessions.record.keep(place.label + chain[-1], Point(place.session.id))
        return seated, replace(place, conversation=seated.conversation, base=None, base_index=-1)

    async def placed(self, caller: Caller, seated: Seated, place: Place) -> Seated:
        """The same once its session is known: a new one may have been begun by a call that is open elsewhere."""
        try:
            new = place.base is None and seated.client.previous is None
            seat = await self.lineage.placed(caller, seated.seat, place.session.id, seated.client, new=new)
        except Exception:
            _log.exception("the call that started a conversation could not be looked up")
            return seated
        return seated if seat is seated.seat else replace(seated, seat=seat)

    def answered(self, caller: Caller, seated: Seated, session: str, calls: Sequence[CallSeen]) -> None:
        """Notes the calls of a reply that has ended."""
        if calls:
            self.lineage.answered(caller, seated.seat, session, seated.client, calls)

    async def reads(self, caller: Caller, seated: Seated, place: Place, plain: bytes) -> bool | None:
        """Whether a sub-agent's list, `plain`, shows an id of something that it may read; None where none stands there.
        Never fails."""
        if not seated.seat.path or self.sharing is None:
            return None
        try:
            viewer = Viewer(caller, seated.seat, place.session.id, seated.client)
            return await self.sharing.readable(viewer, plain)
        except Exception:
            _log.exception("the artifacts that a sub-agent may read could not be determined")
            return False

    async def begun(self, caller: Caller, seated: Seated, session: str) -> Mapping[str, Delegation]:
        """The delegations that calls of this conversation began and whose answers are the calls' results, by the calls'
        ids; one that stands for several calls says nothing. Asks the store; never fails."""
        try:
            found = await self.lineage.begun(caller, seated.seat, session)
            found = {call_id: child for call_id, child in found.items() if child.evidence != "handoff"}
            parts = (part for message in (seated.client.messages if found else ()) for part in message.parts)
            made = Counter(part.call_id for part in parts if isinstance(part, ToolCall))
            return {call_id: child for call_id, child in found.items() if made[call_id] == 1}
        except Exception:
            _log.exception("the delegations that a conversation started could not be looked up")
            return {}

    def _filtered(
        self,
        dialect: Dialect,
        caller: Caller,
        seat: Seat,
        client: Conversation,
        plain: bytes,
        hidden: Hidden,
    ) -> Seated:
        fields = client.envelope
        metadata = metadata_sent(dialect.name, fields) if "metadata" in fields else None
        stripped = metadata != fields.get("metadata")
        if not hidden.scopes and not stripped:
            return Seated(seat, client, client, plain, late=hidden.late)
        found = self.filter.filtered(dialect, caller.space, client, hidden.places)
        if found.kept:
            self.lineage.showed(caller, seat, client, found.kept)
        seen = found.conversation
        if stripped:
            others = {name: value for name, value in fields.items() if name != "metadata"}
            seen = replace(seen, envelope=others if metadata is None else {**fields, "metadata": metadata})
        if found.taken:
            plain = body(seen, dialect.listing, [message.wire for message in seen.messages])
        elif stripped:
            plain = without_ours(dialect.name, plain, fields)
        changed = bool(found.taken) or stripped
        return Seated(seat, client, seen, plain, changed, found.taken, hidden.scopes, hidden.late)


def seat_marks(marks: Marks, seat: Seat) -> Marks:
    """The marks by which places are divided: those of requests that share a label, but not a seat, too."""
    return replace(marks, scope="\n".join(filter(None, (marks.scope, seat.scope)))) if seat.scope else marks
