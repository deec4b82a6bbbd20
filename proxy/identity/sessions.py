"""Which session a request belongs to, told by content.

The place of a request is the chain key of its last message. The next request of the same conversation holds that place
a few messages before its end; the deepest place on record names its session. A place that was already gone on from in
another way is a fork: a session of its own. Labels (marks.py) only divide: two labels never share a session.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial

import msgspec

from proxy.core.conversation import Conversation
from proxy.core.errors import StoreUnavailable
from proxy.core.ports import Clock, Key, Outbox, Store
from proxy.core.records import Session
from proxy.core.values import dataclass
from proxy.identity.marks import Marks
from proxy.identity.tenants import Caller

# How many places are asked of the store, newest first, when this worker knows none: one look finds a conversation
# that goes on, the second one that was rewound.
_LOOKS = (64, 512)


@dataclass(frozen=True, slots=True)
class Point:
    """A place where a request ended.

    `next` is the chain key of what followed it first. `reported` is the provider's count of the whole input then
    (0 where none was reported), `counted` our own, for the overhead told by `overhead_key`.
    """

    session: str
    next: bytes = b""
    reported: int = 0
    counted: int = 0
    overhead_key: bytes = b""
    chain: bytes = b""
    """For a place that a response id names: the chain key it stands for."""


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
class _Held:
    session: Session
    row: str


@dataclass(frozen=False, slots=True)
class Sessions:
    """The places and sessions of one worker; behind them the store, for what other workers or an earlier run saw.

    `worker` is a name of this process that no other has. `capacity` bounds the sessions held in memory, `retention`
    (seconds) what the store keeps.
    """

    store: Store
    outbox: Outbox
    clock: Clock
    worker: str
    capacity: int = 2_000
    retention: float = 30 * 86_400.0
    _points: OrderedDict[bytes, Point] = field(default_factory=OrderedDict)
    _sessions: OrderedDict[str, _Held] = field(default_factory=OrderedDict)

    async def resolve(self, caller: Caller, marks: Marks, conversation: Conversation, request_id: str) -> Place:
        """Finds or makes the session of a request, and puts its place on record. The store is asked only where this
        worker knows nothing; when it is away, the request counts as a new conversation."""
        label = _label(caller, marks)
        if conversation.previous is not None:
            return await self._continued(caller, marks, label, conversation, request_id)
        index, base = self._local(label, conversation.chain)
        if base is None and any(message.role == "assistant" for message in conversation.messages):
            index, base = await self._stored(label, conversation.chain)
        return self._settle(caller, marks, label, conversation, request_id, index, base)

    def settle(self, place: Place, session: Session, reported: int, counted: int) -> None:
        """Keeps what a reply taught: the session as it is now, and the provider's count for this place."""
        held = self._sessions.get(session.id)
        if held is not None:
            held.session = session
        if reported and place.conversation.chain:
            name = place.label + place.conversation.chain[-1]
            point = self._points.get(name)
            if point is not None:
                overhead = place.conversation.overhead_key
                self._keep(name, Point(point.session, point.next, reported, counted, overhead))

    def answered(self, caller: Caller, place: Place, state_id: str, reported: int) -> None:
        """Notes what `state_id` (a response's or a conversation's id) stands for: this request and its reply,
        `reported` tokens in all."""
        chain = place.conversation.chain[-1] if place.conversation.chain else b""
        self._keep(_state(caller, state_id), Point(place.session.id, reported=reported, chain=chain))

    @property
    def store_available(self) -> bool:
        """Whether the store answered when it was last asked."""
        return self.store.available

    def current(self, session_id: str) -> Session | None:
        """The session as this worker has it."""
        held = self._sessions.get(session_id)
        return held.session if held else None

    # -- finding ---------------------------------------------------------------

    def _local(self, label: bytes, chain: Sequence[bytes]) -> tuple[int, Point | None]:
        for index in range(len(chain) - 1, -1, -1):
            point = self._points.get(label + chain[index])
            if point is not None:
                return index, point
        return -1, None

    async def _stored(self, label: bytes, chain: Sequence[bytes]) -> tuple[int, Point | None]:
        end = len(chain)
        for look in _LOOKS:
            start = max(0, end - look)
            try:
                values = await self.store.get_many([_key(label + key) for key in chain[start:end]])
            except StoreUnavailable:
                return -1, None
            for index in range(end - 1, start - 1, -1):
                point = _decode(values[index - start])
                if point is not None:
                    self._remember(label + chain[index], point)
                    return index, point
            end = start
            if not end:
                break
        return -1, None

    async def _continued(
        self, caller: Caller, marks: Marks, label: bytes, conversation: Conversation, request_id: str
    ) -> Place:
        """A request that goes on from state kept by the provider."""
        name = _state(caller, conversation.previous or "")
        state = self._points.get(name)
        if state is None:
            try:
                state = _decode(await self.store.get(_key(name)))
            except StoreUnavailable:
                state = None
        start = last = hashlib.sha256(name + state.chain if state else name).digest()
        chain = []
        for message in conversation.messages:
            last = hashlib.sha256(last + message.key).digest()
            chain.append(last)
        conversation = replace(conversation, chain=tuple(chain))
        held = self._hold(caller, marks, state.session if state else _fresh(label, start), "")
        if chain:
            self._keep(label + chain[-1], Point(held.session.id))
        return Place(held.session, held.row, conversation, label, state, -1, recorded=state is not None)

    # -- deciding --------------------------------------------------------------

    def _settle(
        self,
        caller: Caller,
        marks: Marks,
        label: bytes,
        conversation: Conversation,
        request_id: str,
        index: int,
        base: Point | None,
    ) -> Place:
        chain = conversation.chain
        last = len(chain) - 1
        forked_from = ""
        if base is None:
            session_id = _fresh(label, chain[-1] if chain else request_id.encode())
        elif index == last:
            # The very same list again: a retry, unless the conversation has moved on since. Then it is a new one with
            # the same opening, or somebody went back to this point.
            session_id = base.session
            if base.next:
                session_id, forked_from = _fresh(label, request_id.encode()), base.session
        elif base.next in (b"", chain[index + 1]):
            session_id = base.session
            if not base.next:
                self._keep(label + chain[index], replace(base, next=chain[index + 1]))
        else:
            session_id, forked_from = _fresh(label, chain[-1]), base.session
        held = self._hold(caller, marks, session_id, forked_from)
        if chain and (base is None or index != last or forked_from):
            self._keep(label + chain[-1], Point(session_id))
        return Place(held.session, held.row, conversation, label, base, index)

    def _hold(self, caller: Caller, marks: Marks, session_id: str, forked_from: str) -> _Held:
        held = self._sessions.get(session_id)
        if held is None:
            now = self.clock.now()
            session = Session(
                id=session_id,
                tenant=caller.tenant,
                created=now,
                label=marks.session,
                agent=marks.agent,
                client=marks.client,
                forked_from=forked_from,
            )
            # Each time a session enters a worker's memory it gets a row of its own in the store; readers add them up.
            row = hashlib.sha256(f"{self.worker}{session_id}{now!r}".encode()).hexdigest()[:12]
            held = self._sessions[session_id] = _Held(session, row)
            while len(self._sessions) > self.capacity:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(session_id)
        return held

    # -- keeping ---------------------------------------------------------------

    def _keep(self, name: bytes, point: Point) -> None:
        self._remember(name, point)
        self.outbox.put(_key(name), partial(_ENCODER.encode, point), self.retention)

    def _remember(self, name: bytes, point: Point) -> None:
        self._points[name] = point
        self._points.move_to_end(name)
        while len(self._points) > 8 * self.capacity:
            self._points.popitem(last=False)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Point)


def _decode(value: bytes | None) -> Point | None:
    if value is None:
        return None
    try:
        return _DECODER.decode(value)
    except msgspec.MsgspecError:
        return None


def _key(name: bytes) -> Key:
    return Key("", f"point/{name.hex()}")


def _label(caller: Caller, marks: Marks) -> bytes:
    """A short prefix for the places of one label; chain keys are the tenant's own already."""
    return hashlib.sha256(caller.space + marks.label.encode()).digest()[:8] if marks.label else b""


def _state(caller: Caller, state_id: str) -> bytes:
    return hashlib.sha256(caller.space + b"state:" + state_id.encode()).digest()


def _fresh(label: bytes, content: bytes) -> str:
    """A session id made of content, so that two workers that see the same conversation begin name it alike."""
    return "s-" + hashlib.sha256(b"session:" + label + content).hexdigest()[:24]
