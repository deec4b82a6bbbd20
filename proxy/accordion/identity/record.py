"""The places on record: those that one worker has in memory, and behind them the store.

A place is named by its label and its chain key (points.py). The store is asked only where this worker knows nothing or
may be out of date. A conversation that begins does not wait for that: what an earlier run knew of its opening is met
where the place is written, a moment later, and as a rule long before a reply lets it go on. One that goes on waits for
what a worker nearby is known to be about to write.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import field
from functools import partial

from accordion.core.conversation import Conversation
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Others, Outbox, Put, Store
from accordion.core.values import dataclass
from accordion.identity.points import (
    ENCODER,
    Point,
    decode,
    deepest,
    first_of,
    goes_on,
    joined,
    listing,
    place_id,
    place_key,
    rival,
    rounds,
    store_key,
    takers,
)

# How many of the newest places each look at the store takes in: the first finds a conversation that goes on, the second
# one that was rewound. The last is for what the places found refer to. What was asked is not asked again.
_LOOKS = (64, 576, 64)

# How often what another worker is about to write is looked for (what was erased meanwhile never comes), and how often
# what one may have written that cannot be heard.
_WAITS, _UNHEARD = 25, 4


@dataclass(frozen=False, slots=True)
class Record:
    """The places of one worker. `capacity` bounds those held in memory, `retention` (seconds) what the store keeps.
    `others` are the workers that use the same store; None where there are none."""

    store: Store
    outbox: Outbox
    capacity: int
    retention: float
    others: Others | None = None
    points: OrderedDict[bytes, Point] = field(default_factory=OrderedDict)
    _unmet: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    """Places in memory of which the store may know more: it was not asked when they were made, and has not met them.
    With what was on its way there since: where the store has that, it is our own, and says nothing new."""

    async def found(self, label: bytes, conversation: Conversation) -> tuple[int, Point | None]:
        """The deepest place of a list and its index (-1: none), with all in memory that decides about it: the store is
        asked where it may know more. When it is away, what is known here must do."""
        index, base = await self._deepest(label, conversation)
        others = self.others
        if base is not None or others is None or not (self.store.available and goes_on(conversation)):
            return index, base
        # Another worker may have served it a moment ago.
        names = [label + key for key in conversation.chain[-_LOOKS[0] :]]
        coming = [name for name in names if others.coming(place_id(name))]
        if not coming:
            return index, base
        for _ in range(_WAITS):
            await others.pause()
            if not await self._ask(coming) or not self.points.keys().isdisjoint(coming):
                break
        # Whether they came or not: this worker may have served another request of it meanwhile.
        return await self._deepest(label, conversation)

    async def _deepest(self, label: bytes, conversation: Conversation) -> tuple[int, Point | None]:
        chain = conversation.chain
        index, base = deepest(self.points, label, chain)
        asked: set[bytes] = set()
        for look in _LOOKS:
            doubts = {*self._doubts(label, conversation, index, base, look)} - asked
            if not (doubts and await self._ask(doubts)):
                break
            asked |= doubts
            index, base = deepest(self.points, label, chain)
        if base is None and chain and label + chain[-1] not in asked:
            self._unmet.setdefault(label + chain[-1], ())
        return index, base

    async def get(self, name: bytes, *, awaited: bool = False) -> Point | None:
        """One place; None where it is not on record. What the store has of it is not kept in memory. `awaited` says
        that there should be one, so that workers that cannot be heard are given the time to write it, too."""
        known, others = self.points.get(name), self.others
        if known is not None:
            return known
        with suppress(StoreUnavailable):
            known = decode(await self.store.get(store_key(name)))
            if known is None and others is not None:
                unheard = _UNHEARD if awaited and not others.heard else 0
                for _ in range(_WAITS if others.coming(place_id(name)) else unheard):
                    await others.pause()
                    if (known := decode(await self.store.get(store_key(name)))) is not None:
                        break
        return known

    def keep(self, name: bytes, point: Point) -> None:
        """Puts a place on record, and in the list of its session."""
        known, place = self.points.get(name), place_id(name)
        if (known is None or known.session != point.session) and place != first_of(point.session):
            self.outbox.put(Key(listing(point.session), place), bytes, self.retention)
        self.write(name, place, point)

    def puts(self, name: bytes, point: Point) -> list[Put]:
        """The same, of a place that nobody had; gives the writes for it, which the caller makes."""
        place = place_id(name)
        self._remember(name, point)
        if self.others is not None:
            self.others.wrote(place)
        listed = Put(Key(listing(point.session), place), b"", self.retention)
        return [listed, Put(place_key(place), ENCODER.encode(point), self.retention)]

    def write(self, name: bytes, place: str, point: Point) -> None:
        """Puts a place on record; `place` is its id."""
        self._remember(name, point)
        if name in self._unmet:
            met = partial(self._unmet.pop, name, ())
            self.outbox.merge(place_key(place), partial(self._met, name, point), met, self.retention)
        else:
            self.outbox.put(place_key(place), partial(ENCODER.encode, point), self.retention)
        if self.others is not None:
            self.others.wrote(place)

    def forget(self, session: str | None) -> None:
        """What is known here of the places of a session, or of all, is asked for anew."""
        for name in [name for name, point in self.points.items() if session in (None, point.session)]:
            del self.points[name]
            self._unmet.pop(name, ())

    def _met(self, name: bytes, written: Point, value: bytes | None) -> bytes:
        """What the store is to have of a place that it was not asked for, from the `value` that it has. None is told
        before it has answered: the place is as unmet then as before."""
        point = self.points.get(name, written)
        if value is None:
            made, sent = ENCODER.encode(point), self._unmet.get(name)
            if sent is not None and made not in sent:
                self._unmet[name] = (*sent, made)
            return made
        kept = None if value in self._unmet.pop(name, ()) else decode(value)
        if kept is not None:
            point = joined(point, kept)
            if name in self.points:
                self.points[name] = point
        return ENCODER.encode(point)

    async def _ask(self, names: Collection[bytes]) -> bool:
        """Brings what the store has of these places into memory; False where it could not be asked."""
        try:
            values = await self.store.get_many([store_key(name) for name in names])
        except StoreUnavailable:
            return False
        for name, value in zip(names, values, strict=True):
            known, kept = self.points.get(name), decode(value)
            own = known is not None and value in self._unmet.get(name, ())
            if kept is not None and not own and not self._sure(name):
                known = joined(known, kept)
            if known is not None:
                self._remember(name, known)
        for name in names:
            self._unmet.pop(name, ())
        return True

    def _doubts(
        self, label: bytes, conversation: Conversation, index: int, base: Point | None, look: int
    ) -> list[bytes]:
        """The places of which the store may know more: none where a conversation simply goes on by one round.
        Conversations may begin alike at several workers; so beginnings are looked at where another one has been."""
        chain, others = conversation.chain, self.others
        if base is None:
            if goes_on(conversation):
                return [label + key for key in chain[-look:]]
            # Noted by nobody, it is new, or from long ago. Then it is met when it is written.
            begun = chain and others is not None and others.mine(place_id(label + chain[-1])) is not None
            return [label + chain[-1]] if begun else []
        unsure = not base.next and not self._sure(label + chain[index])
        if index == len(chain) - 1:
            return [label + chain[index]] if unsure else []
        other = rival(self.points, label, chain, index, base)
        # Where this very branch had gone on from here, what came next should be in memory, and is not.
        simple = other is None and not base.next and not base.taken and rounds(conversation, index) <= 1
        # Whoever cannot be heard may have been anywhere; they are asked after where a conversation begins, and later
        # found by what they wrote.
        if simple and not (unsure and (not base.base or (others is not None and others.heard))):
            return []
        keys = {*chain[index + 1 :][-_LOOKS[0] :], chain[index], base.base, base.branch}
        keys.update(takers(self.points, label, base))
        if other is not None:
            keys |= {other[0], other[1].branch}
        return [label + key for key in keys if key]

    def _sure(self, name: bytes) -> bool:
        """Whether the store knows no more of a place than this worker, which may not have written all it knows yet."""
        if name not in self.points or name in self._unmet:
            return False
        # Noted by nobody although it is in memory, it was noted, and another place has its slot now.
        return self.others is None or self.others.mine(place_id(name)) is True

    def _remember(self, name: bytes, point: Point) -> None:
        points = self.points
        points[name] = point
        points.move_to_end(name)
        if len(points) > self.capacity:
            self._unmet.pop(points.popitem(last=False)[0], ())
