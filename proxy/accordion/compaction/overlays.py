"""What was put into conversations behind a fold, found again at every later request: weaves and recalls.

Like folds they are found by content: by the chain key of the client's message behind which they stand. dressing.py puts
them in place.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec
import zstandard

from accordion.archive.erasures import Erasures
from accordion.archive.writing import Archive
from accordion.compaction.records import LABEL, label_of
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Clock, Key, Outbox, Put
from accordion.core.values import dataclass
from accordion.core.weaves import Overlay, Recall, Round, Weave

_log = logging.getLogger("accordion")

_VERSION = b"\x01"
_MOST = 64 * 2**20
"""No value unpacks to more; one that says so is damaged."""
_WEAVES = 4
"""Replies to one request that are kept, the newest: a client may ask again, and go on from any of them."""
_BATCH = 1_024
_GONE = 16_384
_SHARE = 4
"""What is in use is written anew when this part of the time that it is kept for is over."""


@dataclass(frozen=True, slots=True)
class Laid:
    """What is kept at one place, in order, and the session that it is listed under."""

    session: str = ""
    overlays: tuple[Overlay, ...] = ()


@dataclass(frozen=True, slots=True)
class _Held:
    kept: Laid
    size: int
    since: float
    """When the store was last known to begin keeping it."""


class Overlays:
    """The weaves and recalls of one worker, within `capacity` bytes; behind them the store, for what other workers or
    an earlier run put in. `retention` (seconds) is how long the store keeps them, that of `archive` where it is not
    given; those in use are kept for longer. They hold archived text, so they are sealed, listed and erased as the
    archive is; `erasures` know what was erased.

    At one place there is at most one recall, the first that was sent (of session memories that were asked for the last,
    since what became of them may be another when they are asked for again), and there are the newest few weaves.
    """

    def __init__(
        self,
        archive: Archive,
        outbox: Outbox,
        clock: Clock,
        erasures: Erasures,
        *,
        capacity: int = 16 * 2**20,
        retention: float | None = None,
    ) -> None:
        self._archive = archive
        self._erasures = erasures
        self._outbox = outbox
        self._clock = clock
        self._capacity = capacity
        self._retention = archive.retention if retention is None else retention
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self._anchors: dict[bytes, set[bytes]] = {}
        """Those of what is held, by label: most requests have none, or few."""
        self._size = 0
        self._gone: OrderedDict[bytes, None] = OrderedDict()
        """Places whose overlays were let go of, so that the store is asked for them."""
        self._learnt = set[bytes]()
        """Ends of lists of which the store was asked for every place; another set where something was erased."""

    @property
    def size(self) -> int:
        """Bytes that the overlays in memory are reckoned to take."""
        return self._size

    async def add(self, space: bytes, scope: bytes, overlay: Overlay, session: str, began: float) -> bool:
        """Takes an overlay; it is in force here at once, and for all workers when this returns. `space` is the tenant's
        key, `scope` what divides conversations within the tenant, `session` the one it is listed under. While the store
        is away it waits for the store. Gives False, and leaves it, where the session was erased after `began` (when the
        request came, in seconds by the monotonic clock)."""
        if self._erasures.since(space, session, began):
            return False
        puts = await self.puts(space, scope, overlay, session)
        try:
            await self._archive.keep(puts)
        except StoreUnavailable:
            _log.debug(
                "the store is unavailable; until it is back, only this worker knows a text that the model read back"
            )
            self._later(puts)
        return True

    async def puts(self, space: bytes, scope: bytes, overlay: Overlay, session: str) -> list[Put]:
        """Takes an overlay, which is in force here at once; gives the writes that put it in force for all workers."""
        label = label_of(space, scope)
        name, key = label + overlay.anchor, _key(label, overlay.anchor)
        known = self._held.get(name)
        kept = _merged(Laid(session, (overlay,)), known.kept if known is not None else Laid())
        self._admit(name, kept, self._clock.now())
        with suppress(StoreUnavailable):
            kept = _merged(kept, self._read(space, key, await self._archive.store.get(key), overlay.anchor))
            self._admit(name, kept, self._clock.now())
        return self._puts(space, key, kept)

    async def find(
        self, space: bytes, scope: bytes, chain: Sequence[bytes], since: int, *, fresh: bool
    ) -> tuple[Overlay, ...]:
        """The overlays at `chain[since - 1]` and behind it, in the order of the chain; at one place a recall comes
        first, and of weaves the newest. `chain` is that of the client's own list.

        The store is asked only where `fresh` says that others may know more, and for what this worker has let go of;
        when it is away, what is known here must do.
        """
        label, places = label_of(space, scope), chain[max(0, since - 1) :]
        if fresh:
            await self._ask(space, label, places)
        elif self._gone and (gone := [anchor for anchor in places if label + anchor in self._gone]):
            await self._ask(space, label, gone)
        laid = self._anchors.get(label)
        if not laid:
            return ()
        found, now = list[Overlay](), self._clock.now()
        for anchor in filter(laid.__contains__, places):
            name = label + anchor
            held = self._held[name]
            found += held.kept.overlays
            self._held.move_to_end(name)
            if now - held.since > self._retention / _SHARE:
                self._held[name] = _Held(held.kept, held.size, now)
                self._later(self._puts(space, _key(label, anchor), held.kept))
        return tuple(found)

    async def learn(self, space: bytes, scope: bytes, chain: Sequence[bytes]) -> None:
        """Brings into memory what the store has at the places of a list, which are asked for once: of a list that goes
        on those that are new, and the one before them, to which a reply may have come since."""
        label, learnt = label_of(space, scope), self._learnt
        since = next((at for at in reversed(range(len(chain))) if label + chain[at] in learnt), 0)
        if chain and await self._ask(space, label, chain[since:]):
            if len(learnt) >= _GONE:
                learnt.clear()
            learnt.add(label + chain[-1])

    def forget(self) -> None:
        """Something was erased: what is in the store is not known any more."""
        self._held.clear()
        self._anchors.clear()
        self._gone.clear()
        self._learnt = set()
        self._size = 0

    # -- in memory ----------------------------------------------------------------

    def _admit(self, name: bytes, kept: Laid, since: float) -> None:
        self._gone.pop(name, None)
        if (former := self._held.pop(name, None)) is not None:
            self._size -= former.size
        self._held[name] = held = _Held(kept, sum(map(_size_of, kept.overlays)), since)
        self._anchors.setdefault(name[:LABEL], set()).add(name[LABEL:])
        self._size += held.size
        while self._size > self._capacity and len(self._held) > 1:
            gone, old = self._held.popitem(last=False)
            self._size -= old.size
            self._let_go(gone)
            self._gone[gone] = None
            if len(self._gone) > _GONE:
                self._gone.popitem(last=False)

    def _let_go(self, name: bytes) -> None:
        anchors = self._anchors[name[:LABEL]]
        anchors.discard(name[LABEL:])
        if not anchors:
            del self._anchors[name[:LABEL]]

    # -- in the store -------------------------------------------------------------

    async def _ask(self, space: bytes, label: bytes, anchors: Sequence[bytes]) -> bool:
        """Brings what the store has at these places into memory, beside what is there; whether it could be asked."""
        try:
            for start in range(0, len(anchors), _BATCH):
                batch = anchors[start : start + _BATCH]
                keys = [_key(label, anchor) for anchor in batch]
                values = await self._archive.store.get_many(keys)
                for anchor, key, value in zip(batch, keys, values, strict=True):
                    self._gone.pop(label + anchor, None)
                    if value is not None:
                        self._found(label + anchor, self._read(space, key, value, anchor))
        except StoreUnavailable:
            return False
        return True

    def _found(self, name: bytes, found: Laid) -> None:
        known = self._held.get(name)
        kept = found if known is None else _merged(known.kept, found)
        if kept.overlays and (known is None or kept != known.kept):
            self._admit(name, kept, max(overlay.at for overlay in kept.overlays))

    def _read(self, space: bytes, key: Key, value: bytes | None, anchor: bytes) -> Laid:
        return decode(self._archive.opened(space, key, value), anchor)

    def _puts(self, space: bytes, key: Key, kept: Laid) -> list[Put]:
        return self._archive.single(space, kept.session, "overlay", key, encode(kept), ttl=self._retention)

    def _later(self, puts: Sequence[Put]) -> None:
        for put in puts:
            self._outbox.put(put.key, partial(bytes, put.value), put.ttl)


def _key(label: bytes, anchor: bytes) -> Key:
    return Key("", f"overlay/{label.hex()}/{anchor.hex()}")


def _merged(one: Laid, other: Laid) -> Laid:
    """What stays of all that was put in at one place."""
    known = list(dict.fromkeys((*one.overlays, *other.overlays)))
    recalls = sorted((each for each in known if isinstance(each, Recall)), key=_rank)
    weaves = sorted((each for each in known if isinstance(each, Weave)), key=lambda each: each.at, reverse=True)
    return Laid(one.session or other.session, (*recalls[:1], *weaves[:_WEAVES]))


def _rank(recall: Recall) -> tuple[bool, float, bytes]:
    """Which of several recalls at one place stays: the least."""
    return not recall.names, -recall.at if recall.names else recall.at, recall.wire


def _size_of(overlay: Overlay) -> int:
    """What it takes in memory, in bytes, roughly."""
    if isinstance(overlay, Recall):
        return 500 + len(overlay.wire)
    wires = [wire for each in overlay.rounds for wire in (*each.said, *each.answered)]
    return 700 + 2 * len(overlay.text) + sum(50 + len(wire) for wire in wires)


# -- how they are written down: a version byte, then MessagePack, compressed, with a checksum -------------------------


class _Weave(msgspec.Struct, array_like=True, tag=0):
    rounds: list[tuple[list[bytes], list[bytes]]]
    calls: list[str]
    text: str
    at: float


class _Recall(msgspec.Struct, array_like=True, tag=1):
    wire: bytes
    at: float
    artifacts: list[str]
    names: list[str] = []


class _Value(msgspec.Struct, array_like=True):
    session: str
    overlays: list[_Weave | _Recall]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Value)


def encode(kept: Laid) -> bytes:
    """What is kept at one place, as the store has it."""
    records = [
        _Recall(each.wire, each.at, list(each.artifacts), list(each.names))
        if isinstance(each, Recall)
        else _Weave([(list(one.said), list(one.answered)) for one in each.rounds], list(each.calls), each.text, each.at)
        for each in kept.overlays
    ]
    plain = _ENCODER.encode(_Value(kept.session, records))
    return _VERSION + zstandard.ZstdCompressor(write_checksum=True).compress(plain)


def decode(value: bytes | None, anchor: bytes) -> Laid:
    """What the store has of the place whose chain key is `anchor`; nothing where there is nothing that can be read
    (damaged, or of a later version)."""
    if value is None or value[:1] != _VERSION:
        return Laid()
    try:
        found = _DECODER.decode(zstandard.ZstdDecompressor().decompress(value[1:], max_output_size=_MOST))
    except (zstandard.ZstdError, msgspec.MsgspecError, ValueError, MemoryError):
        return Laid()
    overlays = tuple(
        Recall(anchor, each.wire, each.at, tuple(each.artifacts), tuple(each.names))
        if isinstance(each, _Recall)
        else Weave(
            anchor, tuple(Round(tuple(said), tuple(answered)) for said, answered in each.rounds), tuple(each.calls),
            each.text, each.at,
        )
        for each in found.overlays
    )  # fmt: skip
    return Laid(found.session, overlays)
