"""Replay: earlier folds are found again by content, and put back the same way every time.

A client sends its whole history with every request. The deepest compaction whose anchor lies on the request's chain is
the one in force; a history that was rewound or forked simply has a shallower one on its chain, or none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from accordion.archive.sealing import Unsealed
from accordion.compaction.heads import Heads, swallows
from accordion.compaction.reading import WrittenReader
from accordion.compaction.records import LEVELS, decode, encode, key_of, keys_of, label_of, meeting, place_of, size_of
from accordion.core.conversation import Conversation
from accordion.core.edits import Compaction, Folded, unfolded
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Sealer, Store
from accordion.core.values import dataclass
from accordion.dialects.base import Dialect

_BATCHES = (64, 512)
_BATCH = 1_024
"""How many places one look at the store takes in, the newest first: what follows a fold of late is found at once."""
_REPEATED = 900.0
"""Seconds in which the same list is folded alike by all workers: clients send a request again when it took too long,
which for most is ten minutes."""
_ANSWER = 350
"""Bytes of memory that a place takes with what was found there."""


@dataclass(frozen=True, slots=True)
class _Held:
    compaction: Compaction
    level: int
    size: int
    alone: bool
    """Whether it is in force in this worker alone, as far as is known."""


class Folds:
    """The compactions of one worker, within `capacity` bytes; behind them the store, for what other workers or an
    earlier run made. `retention` (seconds) is how long the store keeps them; `used` is told of each that a request
    finds. What the store keeps is sealed by `sealer`; what cannot be opened is as if it were not there.

    For each place where a request ended it is remembered which fold was in force there, so that a conversation that
    goes on costs what is new of it. That takes `places` bytes at most.
    """

    def __init__(
        self,
        store: Store,
        *,
        capacity: int = 64 * 2**20,
        retention: float = 30 * 86_400.0,
        reader: WrittenReader | None = None,
        used: Callable[[bytes, bytes, Conversation, Compaction], None] = lambda *_: None,
        sealer: Sealer | None = None,
        places: int = 12 * 2**20,
    ) -> None:
        self._store = store
        self._sealer: Sealer = sealer or Unsealed()
        self._capacity = capacity
        self._retention = retention
        self._used = used
        self._most_places = max(1, places // 3 // _ANSWER)
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self._size = 0
        self._answers: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self._changes: OrderedDict[bytes, int] = OrderedDict()
        self._heads = Heads(reader or WrittenReader(), capacity // 2)
        self._floor = self._count = 0
        self._spooled: dict[bytes, bytes] = {}
        """The tenants' keys of the labels whose folds are in force here alone."""

    @property
    def size(self) -> int:
        """Bytes that the compactions in memory are reckoned to take."""
        return self._size

    async def find(
        self, dialect: Dialect, space: bytes, scope: bytes, conversation: Conversation, *, fresh: bool
    ) -> Folded:
        """The conversation as earlier folds left it.

        `space` is the tenant's key, `scope` what divides folds within the tenant. The store is asked only where `fresh`
        says that others may know more, and for what this worker has let go of; when it is away, what is known here
        must do.
        """
        chain = conversation.chain
        if not chain:
            return unfolded(conversation)
        label = label_of(space, scope)
        index, held = await self._deepest(space, label, chain, fresh)
        if held is None:
            self._answer(label, chain, index)
            return unfolded(conversation)
        folded = self._with(dialect, space, conversation, held)
        if swallows(folded, conversation):
            index, held = await self._deepest(space, label, chain[:-1], fresh)
            folded = self._with(dialect, space, conversation, held)
        self._answer(label, chain, index)
        if folded.compaction is not None:
            self._used(space, scope, conversation, folded.compaction)
        return folded

    async def _deepest(
        self, space: bytes, label: bytes, chain: Sequence[bytes], fresh: bool
    ) -> tuple[int, _Held | None]:
        index, held, missing = self._known(label, chain)
        if fresh or missing >= 0:
            return await self._asked(space, label, chain, index, held, missing if not fresh else -1)
        return index, held

    def remembers(self, space: bytes, scope: bytes, key: bytes) -> bool:
        """Whether this worker knows which fold was in force at the place that has this chain key."""
        name = label_of(space, scope) + key
        return name in self._answers or name in self._held

    def local(self, dialect: Dialect, space: bytes, scope: bytes, conversation: Conversation) -> Folded:
        """The same by what this worker has in memory."""
        label, chain = label_of(space, scope), conversation.chain
        folded = self._with(dialect, space, conversation, self._known(label, chain)[1])
        if swallows(folded, conversation):
            return self._with(dialect, space, conversation, self._known(label, chain[:-1])[1])
        return folded

    def _with(self, dialect: Dialect, space: bytes, conversation: Conversation, held: _Held | None) -> Folded:
        if held is None:
            return unfolded(conversation)
        try:
            return self._heads.applied(dialect, space, conversation, held.compaction)
        except ValueError:
            # A call that was taken out for want of an answer has one now: the history is to be folded anew.
            return unfolded(conversation)

    def applied(self, dialect: Dialect, space: bytes, conversation: Conversation, compaction: Compaction) -> Folded:
        """The conversation with this compaction. Raises ValueError where it does not hold for it."""
        return self._heads.applied(dialect, space, conversation, compaction)

    async def publish(
        self, space: bytes, scope: bytes, root: bytes, compaction: Compaction, *, of: bytes = b""
    ) -> Compaction:
        """Makes a compaction known to all workers; who comes second takes the first one's. `root` is the chain key of
        the history's first message, `of` that of the last one of the list that was folded, with the fold that was in
        force before. Raises StoreUnavailable; then it is in force nowhere."""
        label = label_of(space, scope)
        if of:
            # Workers that measure differently cut the same list at different places, so the list itself is what they
            # meet at. The whole record lies there: who takes it makes it known, should its maker not come to that.
            met = meeting(label, of, compaction.cause)
            compaction = await self._first(space, met, compaction, _REPEATED) or compaction
        winner = compaction
        first, away = self._level(label, compaction), not self._store.available
        # While the store is away it cannot say what lies below: what is known here must do.
        for level in range(first if away else 0, LEVELS):
            found = await self._first(space, key_of(label, compaction.anchor, level), compaction, self._retention)
            # What lies at this anchor already may be what this fold was made of, or a record that nobody can read, or
            # made before a provider said that it takes less.
            over = compaction.cause == "overflow" and found is not None and found.cause != "overflow"
            if found is not None and (found.generation >= compaction.generation + over or level == LEVELS - 1):
                winner = found
                break
        self._admit(label, root, winner, level, alone=self._waits(space, label))
        return winner

    def _waits(self, space: bytes, label: bytes) -> bool:
        """Whether a fold that was just written or found waits for the store; then another may win against it."""
        if self._store.available:
            return False
        if len(self._spooled) >= self._most_places:
            self._spooled.clear()
        self._spooled[label] = space
        return True

    async def _first(self, space: bytes, key: Key, compaction: Compaction, ttl: float) -> Compaction | None:
        """What lies at a key from now on, the first that came there; None where that cannot be read."""
        value = self._sealed(space, key, compaction)
        kept = await self._store.put_if_absent(key, value, ttl=ttl)
        return compaction if kept == value else self._read(space, key, kept)

    def _sealed(self, space: bytes, key: Key, compaction: Compaction) -> bytes:
        return self._sealer.seal(space, key.path, encode(compaction))

    def _read(self, space: bytes, key: Key, value: bytes | None) -> Compaction | None:
        return decode(self._sealer.open(space, key.path, value) if value is not None else None)

    def adopt(self, key: Key, value: bytes) -> None:
        """Takes over what another worker had published under `key` first, in place of what was held here."""
        label, anchor, level = place_of(key)
        if label not in self._spooled:
            # An earlier run spooled it: nothing is held of it here, and what is in the store is found there.
            return
        compaction = self._read(self._spooled[label], key, value)
        if compaction is not None and compaction.anchor == anchor:
            self._admit(label, b"", compaction, level)

    def forget(self) -> None:
        """Something was erased: what is in the store is not known any more."""
        for held in (self._held, self._answers, self._changes):
            held.clear()
        self._heads.forget()
        self._size = 0
        self._floor = self._count = self._count + 1

    # -- in memory ----------------------------------------------------------------

    def _level(self, label: bytes, compaction: Compaction) -> int:
        """How many folds lie below a new one at its anchor, as far as is known here."""
        under = self._held.get(label + compaction.anchor)
        return 0 if under is None else min(under.level + 1, LEVELS - 1)

    def _known(self, label: bytes, chain: Sequence[bytes]) -> tuple[int, _Held | None, int]:
        """The deepest fold in memory, with its index; and the index of a deeper one that was let go of, or -1."""
        folds, answers, believed = self._held, self._answers, -1
        index = len(chain) - 1
        while index > believed:
            name = label + chain[index]
            if name in folds:
                folds.move_to_end(name)
                return index, folds[name], -1
            if name in answers:
                count, deepest = answers[name]
                believed = max(believed, deepest)
                if count >= self._floor and count >= self._changes.get(label + chain[0], 0):
                    # Nothing was folded since, so nothing deeper is to be found.
                    index = deepest + 1
            index -= 1
        held, missing = None, -1
        while index >= 0 and (held := folds.get(label + chain[index])) is None:
            missing = max(missing, index if index == believed else -1)
            index -= 1
        return index, held, missing

    def _answer(self, label: bytes, chain: Sequence[bytes], index: int) -> None:
        name, answers = label + chain[-1], self._answers
        answers[name] = (self._count, index)
        answers.move_to_end(name)
        if len(answers) > self._most_places:
            answers.popitem(last=False)

    def _admit(self, label: bytes, root: bytes, compaction: Compaction, level: int, *, alone: bool = False) -> None:
        """Takes a compaction into memory. What was answered for this history before (for all, where `root` is empty)
        counts no longer."""
        name = label + compaction.anchor
        known = self._held.pop(name, None)
        if known is not None:
            self._size -= known.size
        held = _Held(compaction, level, size_of(compaction), alone)
        self._held[name] = held
        self._size += held.size
        while self._size > self._capacity and len(self._held) > 1:
            _, gone = self._held.popitem(last=False)
            self._size -= gone.size
        self._count += 1
        if not root:
            self._floor = self._count
            return
        self._changes[label + root] = self._count
        self._changes.move_to_end(label + root)
        while len(self._changes) > self._most_places:
            _, change = self._changes.popitem(last=False)
            self._floor = max(self._floor, change)

    # -- in the store -------------------------------------------------------------

    async def _asked(
        self, space: bytes, label: bytes, chain: Sequence[bytes], index: int, held: _Held | None, only: int
    ) -> tuple[int, _Held | None]:
        """The deepest fold that the store has behind the one in memory, or upon it, or in its place where it is only
        ours; of one place alone where `only` names it."""
        upon = held.level + (not held.alone) if held is not None else 0
        places = [only] if only >= 0 else range(len(chain) - 1, index - (held is not None), -1)
        sizes, at = iter(_BATCHES), 0
        try:
            while at < len(places):
                batch = places[at : at + next(sizes, _BATCH)]
                at += len(batch)
                keys = [key_of(label, chain[place], upon if place == index else 0) for place in batch]
                values = await self._store.get_many(keys)
                for place, value in zip(batch, values, strict=True):
                    if value is not None and (found := await self._top(space, label, chain[place])) is not None:
                        self._admit(label, chain[0], *found, alone=self._waits(space, label))
                        return place, self._held[label + chain[place]]
        except StoreUnavailable:
            pass
        return index, held

    async def _top(self, space: bytes, label: bytes, anchor: bytes) -> tuple[Compaction, int] | None:
        """The uppermost readable fold of an anchor."""
        keys = keys_of(label, anchor)
        kept = list(zip(keys, await self._store.get_many(keys), strict=True))
        for level in reversed(range(LEVELS)):
            compaction = self._read(space, *kept[level])
            if compaction is not None and compaction.anchor == anchor:
                return compaction, level
        return None
