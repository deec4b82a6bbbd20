"""Which session a request belongs to, told by content.

The place of a request is the chain key of its last message. The next request of the same conversation holds that place
a few messages before its end; the deepest place on record names its session. Another reply at a place that was gone
on from is a fork: a session of its own. Another question behind the same reply may be a side request that nobody goes
on from, or an edit: the branch that last went on from there has the session until one of them is gone on from; every
other that lives is a fork. Labels (marks.py) only divide: two labels never share a session.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import accumulate

from msgspec import structs

from accordion.core.cache import LONGEST_NAME
from accordion.core.conversation import Conversation
from accordion.core.ports import Clock, Key, Others, Outbox, Put, Store
from accordion.core.records import Session
from accordion.core.values import dataclass, replace
from accordion.identity.marks import Marks
from accordion.identity.points import (
    Point,
    deepest,
    fresh_id,
    label_of,
    link,
    lives,
    named_after,
    place_id,
    rival,
    state_name,
    taken_over,
)
from accordion.identity.record import Record
from accordion.identity.tenants import LISTED, Caller


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands.

    `base` is the deepest place on record that the request goes on from, `base_index` the index of its message (-1 where
    the provider keeps what came before). `recorded` is False where it goes on from state that is not on record.
    """

    session: Session
    row: str
    conversation: Conversation
    label: bytes
    base: Point | None = None
    base_index: int = -1
    recorded: bool = True


@dataclass(frozen=False, slots=True)
class Sessions:
    """The places and sessions of one worker; behind them the store, for what other workers or an earlier run saw.

    `worker` is a name of this process that no other has. `capacity` bounds the sessions held in memory, `retention`
    (seconds) what the store keeps. `others` are the workers that use the same store; None where there are none.
    """

    store: Store
    outbox: Outbox
    clock: Clock
    worker: str
    capacity: int = 2_000
    retention: float = 30 * 86_400.0
    others: Others | None = None
    record: Record = field(init=False)
    _sessions: OrderedDict[str, tuple[Session, str]] = field(default_factory=OrderedDict)
    _entered: int = 0

    def __post_init__(self) -> None:
        self.record = Record(self.store, self.outbox, 8 * self.capacity, self.retention, self.others)

    async def resolve(self, caller: Caller, marks: Marks, conversation: Conversation, request_id: str) -> Place:
        """Finds or makes the session of a request, and puts its place on record. The store is asked only where this
        worker knows nothing or may be out of date; when it is away, what is known here must do."""
        label = label_of(caller, marks)
        if conversation.previous is not None:
            return await self._continued(caller, marks, label, conversation)
        chain = conversation.chain
        index, base = await self.record.found(label, conversation)
        if base is None:
            name = label + (chain[-1] if chain else request_id.encode())
            place = place_id(name)
            session_id, forked_from = named_after(place), ""
            if chain:
                self.record.write(name, place, Point(session_id))
        elif index < len(chain) - 1:
            session_id, forked_from = self._follow(label, chain, index, base)
        else:
            # The very same list again: a retry, unless the conversation has moved on since. Then it is a new one with
            # the same opening, or somebody went back to this point.
            forked_from = base.session if base.next else ""
            session_id = fresh_id(label, request_id.encode()) if base.next else base.session
            if forked_from:
                self.record.keep(label + chain[-1], Point(session_id))
        session, row = self._hold(caller, marks, session_id, forked_from)
        return Place(session, row, conversation, label, base, index)

    def aside(self, caller: Caller, marks: Marks, conversation: Conversation) -> Place:
        """The place of a request that is none of a conversation's, such as one that only asks for a count; with the
        session that this worker knows of its history, if any. Nothing is put on record."""
        label = label_of(caller, marks)
        index, base = deepest(self.record.points, label, conversation.chain)
        session = self.current(base.session) if base is not None else None
        session = session or Session(id="", tenant=caller.tenant, created=self.clock.now(), label=marks.label)
        return Place(session, "", conversation, label, base, index, recorded=conversation.previous is None)

    def settle(self, place: Place, session: Session, reported: int, counted: int, fold: str = "") -> None:
        """Keeps what a reply taught: the session as it is now, and the provider's count for this place, with the
        compaction `fold` in force."""
        if (held := self._sessions.get(session.id)) is not None:
            self._sessions[session.id] = session, held[1]
        if reported and place.conversation.chain:
            name = place.label + place.conversation.chain[-1]
            if (point := self.record.points.get(name)) is not None:
                told = structs.replace(
                    point,
                    reported=reported,
                    counted=counted,
                    overhead_key=place.conversation.overhead_key,
                    model=place.conversation.model[:LONGEST_NAME],
                    fold=fold,
                )
                self.record.write(name, place_id(name), told)

    def answered(self, caller: Caller, states: Mapping[str, Point]) -> None:
        """Puts on record what ids of the provider's (a response's or a conversation's) stand for."""
        for state_id, point in states.items():
            self.record.keep(state_name(caller, state_id), point)

    def puts(self, caller: Caller, states: Mapping[str, Point]) -> list[Put]:
        """The same; gives the writes for it, which the caller makes."""
        return [put for name, point in states.items() for put in self.record.puts(state_name(caller, name), point)]

    async def state(self, caller: Caller, state_id: str) -> Point | None:
        """What a response's or a conversation's id stands for; None where that is not on record."""
        # Not kept in memory where the store has it: what a conversation's id stands for moves on, wherever it does.
        return await self.record.get(state_name(caller, state_id))

    def current(self, session_id: str) -> Session | None:
        """The session as this worker has it."""
        held = self._sessions.get(session_id)
        return held[0] if held else None

    async def _continued(self, caller: Caller, marks: Marks, label: bytes, conversation: Conversation) -> Place:
        """A request that goes on from state kept by the provider."""
        name = state_name(caller, conversation.previous or "")
        # A conversation's id stands for nothing at first; a reply's id is not known before there was a reply.
        state = await self.record.get(name, awaited=conversation.kept != "object")
        start = hashlib.sha256(name + state.chain if state else name).digest()
        links = accumulate((message.key for message in conversation.messages), link, initial=start)
        conversation = replace(conversation, chain=tuple(links)[1:])
        session, row = self._hold(caller, marks, state.session if state else fresh_id(label, start), "")
        if conversation.chain:
            self.record.keep(label + conversation.chain[-1], Point(session.id))
        return Place(session, row, conversation, label, state, -1, recorded=state is not None)

    def _follow(self, label: bytes, chain: Sequence[bytes], index: int, base: Point) -> tuple[str, str]:
        """The session of a request that goes on from `base`, and the one it is a fork of."""
        points = self.record.points
        other = rival(points, label, chain, index, base)
        # Workers that had not heard of each other's places passed over some: an end in this list is no rival's.
        passed = other is not None and other[1].branch in chain
        parted = base.next not in (b"", chain[index + 1]) or taken_over(points, label, base)
        parted = parted or (other is not None and not passed and lives(points, label, other[1]))
        session_id = fresh_id(label, chain[-1]) if parted else base.session
        if parted and base.next:
            self.record.keep(label + chain[-1], Point(session_id))
            return session_id, base.session
        # An end whose session was taken over goes with its branch, so that this branch is like any other from now on.
        origin = b"" if parted else base.base
        following = {"next": chain[index + 1], "branch": chain[-1], "base": origin, "taken": b""}
        self.record.keep(label + chain[index], structs.replace(base, session=session_id, **following))
        self.record.keep(label + chain[-1], Point(session_id, base=chain[index]))
        if parted:
            return session_id, base.session
        self._takes(label, base.taken, chain[index])
        if other is not None:
            at, point, branch = other
            if not passed:
                self._takes(label, point.branch, chain[-1] if point is base else chain[index])
            if point is not base and at in chain:
                # Whoever took over never went on, such as a side request: the session is taken back.
                reply = chain[chain.index(at) + 1]
                self.record.keep(label + at, structs.replace(point, next=reply, branch=branch))
        return session_id, ""

    def _takes(self, label: bytes, other: bytes, end: bytes) -> None:
        """The branch that is at `end` has the session from now on, and no more the one that ended at `other`."""
        loser = self.record.points.get(label + other) if other else None
        if loser is not None:
            self.record.keep(label + other, structs.replace(loser, taken=end))

    def _hold(self, caller: Caller, marks: Marks, session_id: str, forked_from: str) -> tuple[Session, str]:
        sessions = self._sessions
        held = sessions.get(session_id)
        if held is not None:
            sessions.move_to_end(session_id)
            return held
        now, tenant = self.clock.now(), caller.tenant
        session = Session(session_id, tenant, now, marks.session, marks.client, marks.agent, forked_from)
        self.outbox.put(Key(LISTED, tenant), bytes, self.retention)
        # Each time a session enters a worker's memory it gets a row of its own in the store; readers add them up.
        self._entered += 1
        held = sessions[session_id] = session, f"{self.worker}.{self._entered}"
        if len(sessions) > self.capacity:
            sessions.popitem(last=False)
        return held

    def forget(self, tenant: str, session: str | None) -> None:
        """Something was erased: what this worker knows of that session, or of all, is asked for anew."""
        self.record.forget(session)
        if session is None:
            self._sessions.clear()
        else:
            self._sessions.pop(session, None)
