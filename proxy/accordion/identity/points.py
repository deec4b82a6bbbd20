"""Places where requests ended, as they are kept, and the names they are kept under."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Protocol, TypeVar

import msgspec
from msgspec import structs

from accordion.core.conversation import Conversation
from accordion.core.ports import Key
from accordion.identity.marks import Marks
from accordion.identity.tenants import Caller


class Point(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place where a request ended. Every request makes some and writes them: hence a Struct, of which only what was
    said is written.

    `next` is the chain key of what followed it first, `branch` the place of the request that went on from here and has
    the session, `base` the place of the same session that this one went on from. `reported` is the provider's count of
    the whole input then (0 where none was reported) to `model`, `counted` our own, for the overhead told by
    `overhead_key`.
    """

    session: str
    next: bytes = b""
    reported: int = 0
    counted: int = 0
    overhead_key: bytes = b""
    chain: bytes = b""
    """For a place that a response id names: the chain key it stands for."""
    branch: bytes = b""
    base: bytes = b""
    fold: str = ""
    """The compaction that was in force when `reported` was said; empty where nothing was folded."""
    ids: tuple[str, ...] = ()
    """For a place that a response id names: the provider's own ids of the rounds of the reply, where something was read
    back in it. The last leads to all that was said."""
    taken: bytes = b""
    """For an end that another branch took the session over from: where that branch was then."""
    model: str = ""
    label: bytes = b""
    """What divides conversations within the tenant, for such a place."""
    changed: bool = False
    """For a place that a response id names: whether the provider keeps another list there than the client's."""
    folded: bool = False
    """For such a place: whether its session was folded, or may have been."""
    tried: int = 0
    """For such a place of a thread that was over its trigger, and that no fold made smaller: its tokens then."""


# How many rounds back a branch is held against the one on record: another worker may have learnt late of a rival.
_BACK = 8

# What is noted of a place when its reply has come, and says nothing apart.
_REPORT = ("reported", "counted", "overhead_key", "fold", "model")

_PLACE = "point/"
_role = attrgetter("role")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Point)


class Kept(Protocol[T_co]):
    """What is kept by place: a mapping or a cache."""

    def get(self, name: bytes, /) -> T_co | None:
        """What is kept of a place, or None."""


def decode(value: bytes | None) -> Point | None:
    """A kept place; None where nothing is kept, or nothing that can be read."""
    with suppress(msgspec.MsgspecError):
        return _DECODER.decode(value) if value is not None else None
    return None


def joined(known: Point | None, kept: Point) -> Point:
    """The store's record of a place, with what this worker knows of it and has not yet written."""
    if known is None:
        return kept
    if known.session != kept.session:
        return kept
    if known.next and not kept.next:
        return known
    if known.reported and not kept.reported:
        return structs.replace(kept, **{name: getattr(known, name) for name in _REPORT})
    return kept


def deepest(kept: Kept[T], label: bytes, chain: Sequence[bytes]) -> tuple[int, T | None]:
    """What is kept for the deepest place of a list of which there is anything, and its index (-1: none)."""
    index = len(chain)
    for key in reversed(chain):
        index -= 1
        found = kept.get(label + key)
        if found is not None:
            return index, found
    return -1, None


def rival(
    points: Mapping[bytes, Point], label: bytes, chain: Sequence[bytes], index: int, base: Point
) -> tuple[bytes, Point, bytes] | None:
    """A point where another branch than this request's has the session, with its key and the key of this branch: the
    base itself, or one before it where somebody took over."""
    key, point = chain[index], base
    if base.next:
        other = base.next == chain[index + 1] and base.branch and base.branch not in chain[index + 1 :]
        return (key, base, chain[-1]) if other else None
    for _ in range(_BACK):
        before = points.get(label + point.base) if point.base else None
        if before is None or before.session != base.session:
            break
        if before.branch not in (b"", key):
            return point.base, before, key
        key, point = point.base, before
    return None


def lives(points: Mapping[bytes, Point], label: bytes, point: Point) -> bool:
    """Whether the branch on record at a point was gone on from. (An end that passed to another session was.)"""
    return _gone_on(points.get(label + point.branch), point.session)


def takers(points: Mapping[bytes, Point], label: bytes, point: Point) -> Iterator[bytes]:
    """The ends that took the session over from an end, one from the other, up to the first that is not known here."""
    for _ in range(_BACK):
        if not point.taken:
            return
        yield point.taken
        taker = points.get(label + point.taken)
        if taker is None:
            return
        point = taker


def taken_over(points: Mapping[bytes, Point], label: bytes, point: Point) -> bool:
    """Whether one of them was gone on from. The place where they parted may be another conversation's by now."""
    return any(_gone_on(points.get(label + key), point.session) for key in takers(points, label, point))


def _gone_on(end: Point | None, session: str) -> bool:
    return end is not None and (end.next != b"" or end.session != session)


def link(before: bytes, key: bytes) -> bytes:
    """The next key of a chain that begins with what the provider keeps."""
    return hashlib.sha256(before + key).digest()


def goes_on(conversation: Conversation) -> bool:
    """Whether a reply stands in the list already."""
    return "assistant" in map(_role, conversation.messages)


def rounds(conversation: Conversation, index: int) -> int:
    """How many replies follow a message; a reply may be several entries."""
    roles = [message.role for message in conversation.messages[index:]]
    return sum(role == "assistant" != before for before, role in pairwise(roles))


@lru_cache(1_024)
def place_id(name: bytes) -> str:
    """What a place is called in the store, 24 hexadecimal digits. A request asks for that of its own place twice."""
    return hashlib.sha256(b"session:" + name).hexdigest()[:24]


def place_key(place: str) -> Key:
    """Where the store keeps a place, by its id."""
    return Key("", f"{_PLACE}{place}")


def store_key(name: bytes) -> Key:
    """The same by its name."""
    return place_key(place_id(name))


def joined_values(key: Key, mine: bytes, theirs: bytes) -> bytes | None:
    """Two values that workers wrote for one place, as one; None where the key is no place's, or theirs says it all."""
    if not key.name.startswith(_PLACE):
        return None
    known, kept = decode(mine), decode(theirs)
    if known is None or kept is None or (both := joined(known, kept)) == kept:
        return None
    return ENCODER.encode(both)


def listing(session: str) -> str:
    """The collection that lists the places of a session, by their ids: they are found by content otherwise. The one
    that the session is named after (`first_of`) is not in it, so that a session of one request needs none."""
    return f"points/{session}"


def first_of(session: str) -> str:
    """The id of the place that a session is named after."""
    return session.removeprefix("s-")


def label_of(caller: Caller, marks: Marks) -> bytes:
    """A short prefix for the places of one label; chain keys are the tenant's own already."""
    if not (marks.session or marks.agent or marks.scope):
        return b""
    name = f"{marks.label}\n{marks.scope}" if marks.scope else marks.label
    return hashlib.sha256(caller.space + name.encode()).digest()[:8]


def state_name(caller: Caller, state_id: str) -> bytes:
    """The name of the place that a response's or a conversation's id stands for."""
    return hashlib.sha256(caller.space + b"state:" + state_id.encode()).digest()


def named_after(place: str) -> str:
    """The session that is named after a place, by the place's id: two workers that see the same conversation begin name
    it alike."""
    return f"s-{place}"


def fresh_id(label: bytes, content: bytes) -> str:
    """A session id made of content."""
    return named_after(place_id(label + content))
