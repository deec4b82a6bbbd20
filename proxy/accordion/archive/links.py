"""What the provider keeps of a conversation, reply by reply, so that it can be put in place of a reply's id.

A client of Responses may send `previous_response_id` and only what is new; OpenAI keeps the rest. Such a request cannot
be folded as it is. So each of its replies is put on record as a link: what its request brought, what was answered, and
the ids of the replies before. The first of a conversation waits in memory, for nobody knows yet whether its client will
go on by its id; where other workers may be asked next it is also in the store, for an hour. Of clients that send their
history themselves nothing else is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate

import msgspec
from msgspec import structs

from accordion.archive.artifacts import packer, tenant_of, unpack
from accordion.archive.erasures import Erasures
from accordion.archive.items import provider_key
from accordion.archive.writing import Archive
from accordion.core.cache import Cache
from accordion.core.conversation import Conversation
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Put, Tasks

_OVERHEAD = 300
_LONGEST = 4_096
"""Replies in a row that are put together; more of them are no conversation."""
_AT_ONCE = 32
"""Replies before it that a link names, so that they are read together."""
_WHOLE = 65_536
"""Bytes: a longer list in which replies stand is of a client that sends them itself."""
_BRIEFLY = 3_600.0
"""Seconds for which the beginning of a conversation is kept before it was gone on from."""
_PACK_AT_ONCE = 32_768
"""Bytes that are compressed at once; more of them in a thread, so that requests need not wait."""

Name = tuple[bytes, str]
"""A tenant's key, and a reply's id."""


class Link(msgspec.Struct, frozen=True, array_like=True):
    """A reply: `given` are the entries of its request's own list, `said` the items that the client was shown, as JSON;
    `before` are the ids of the replies that led to it, the last one first, at least that one. None: the request brought
    the whole list."""

    given: tuple[bytes, ...]
    said: tuple[bytes, ...]
    before: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, roughly."""
        return _OVERHEAD + sum(map(len, self.given)) + sum(map(len, self.said)) + 100 * len(self.before)


class _Waiting(msgspec.Struct):
    """A reply that is not in the store for good. `began`: see `said`. `begins`: nothing was answered before it."""

    session: str
    began: float
    link: Link
    begins: bool


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Link)


class Links:
    """Keeps and finds replies by their ids. Up to `capacity` bytes wait in memory, those that came first are the first
    to go, and no single reply takes more than half; twice as much is at hand of what the store has."""

    def __init__(self, archive: Archive, tasks: Tasks, erasures: Erasures, capacity: int) -> None:
        self._archive = archive
        self._tasks = tasks
        self._erasures = erasures
        self._capacity = capacity
        self._size = 0
        self._waiting: OrderedDict[Name, _Waiting] = OrderedDict()
        self._newest: dict[Name, str] = {}
        """By tenant and session, the reply that waits of a client that sent its list with replies in it."""
        self._known = Cache[Name, Link](2 * capacity)
        self._erased = 0
        erasures.listen(self._forget)

    def said(
        self, space: bytes, session: str, conversation: Conversation, reply: str, said: tuple[bytes, ...], began: float
    ) -> None:
        """Takes a reply that the provider keeps under the id `reply`, and what it answers, as the client sent it, which
        came at `began` by the monotonic clock. Quick: what is to be kept is written in the background."""
        previous, entries = conversation.previous, (*conversation.lead, *conversation.messages)
        begins = previous is None and all(message.role != "assistant" for message in entries)
        if previous is None and not begins:
            former = self._newest.get((space, session))
            if former is not None:
                # Its client sent the list again. Of beginnings that is not known: several may be alike.
                self._drop((space, former))
            if any(size > _WHOLE for size in accumulate(len(message.wire) for message in entries)):
                return
        link = Link(tuple([message.wire for message in entries]), said, (previous,) if previous is not None else ())
        if link.size > self._capacity // 2:
            return
        self._take((space, reply), _Waiting(session, began, link, begins))
        if previous is not None or (begins and not self._erasures.alone):
            self._tasks.spawn(self._keep(space, reply, lent=begins), "store response history")

    async def before(self, space: bytes, reply: str) -> list[bytes] | None:
        """All that the provider keeps up to a reply and with it, as entries of a list; None where not all of it is on
        record. Raises StoreUnavailable."""
        links, read = list[Link](), dict[str, Link]()
        names: Sequence[str] = (reply,)
        while names and len(links) < _LONGEST:
            link = self._at_hand((space, names[0])) or read.get(names[0])
            if link is None:
                read |= await self._read(space, names)
                if (link := read.get(names[0])) is None:
                    return None
            if names[0] in link.before:
                # A provider that gives its replies one id over and over keeps nothing that could be told apart.
                return None
            links.append(link)
            names = link.before
        return None if names else [entry for link in reversed(links) for entry in (*link.given, *link.said)]

    # -- finding ------------------------------------------------------------------

    def _at_hand(self, name: Name) -> Link | None:
        waiting = self._waiting.get(name)
        return waiting.link if waiting is not None else self._known.get(name)

    async def _read(self, space: bytes, names: Sequence[str]) -> dict[str, Link]:
        """Replies that the store has."""
        keys, erased = [link_key(space, name) for name in names], self._erased
        found = dict[str, Link]()
        for name, key, value in zip(names, keys, await self._archive.store.get_many(keys), strict=True):
            if (link := decode(unpack(self._archive.opened(space, key, value)))) is not None:
                found[name] = link
                if self._erased == erased:  # Else it may be what was erased meanwhile.
                    self._known.put((space, name), link, link.size)
        return found

    # -- keeping ------------------------------------------------------------------

    async def _keep(self, space: bytes, reply: str, *, lent: bool) -> None:
        """Puts into the store what is to be there of a reply and of those before it that wait. Where the store is away,
        it is tried again with the next reply of the conversation."""
        waiting = self._waiting.get((space, reply))
        if waiting is None:
            return
        with suppress(StoreUnavailable):
            links = await self._unwritten(space, reply)
            await self._write(space, waiting, links, _BRIEFLY if lent else None)
            if lent and (space, reply) in self._known:
                # It was gone on from meanwhile: what was written for good may stand under this.
                await self._write(space, waiting, links, None)
            for name, link in () if lent else links.items():
                if name in self._waiting:
                    self._drop(name)
                    self._known.put(name, link, link.size)

    async def _write(self, space: bytes, waiting: _Waiting, links: dict[Name, Link], ttl: float | None) -> None:
        small = sum(link.size for link in links.values()) <= _PACK_AT_ONCE
        packed = _packed(links.values()) if small else await self._tasks.offload(_packed, links.values())
        if self._erasures.since(space, waiting.session, waiting.began):
            return
        puts = list[Put]()
        for name, value in zip(links, packed, strict=True):
            puts += self._archive.single(space, waiting.session, "link", link_key(*name), value, ttl)
        await self._archive.keep(puts)

    async def _unwritten(self, space: bytes, reply: str) -> dict[Name, Link]:
        """The replies that are not in the store for good, from this one back, with those that led to each. None is kept
        where they go on from one that is not on record: they could never be put together."""
        chain = list(self._row(space, reply))
        first = chain[-1][1]
        if first.before:
            former = first.before[0]
            before = self._known.get((space, former)) or (await self._read(space, (former,))).get(former)
            if before is None:
                for name, _ in chain:
                    self._drop(name)
                return {}
            chain.append(((space, former), before))
        led = chain[-1][1].before
        for at in range(len(chain) - 2, -1, -1):
            led = (chain[at + 1][0][1], *led)[:_AT_ONCE]
            chain[at] = chain[at][0], structs.replace(chain[at][1], before=led)
        # A beginning that another worker put there stays for an hour only.
        return dict(chain[:-1] if first.before and (chain[-1][1].before or self._erasures.alone) else chain)

    def _row(self, space: bytes, reply: str) -> Iterator[tuple[Name, Link]]:
        """The replies that wait, from this one back."""
        for _ in range(_LONGEST):
            if (waiting := self._waiting.get((space, reply))) is None:
                return
            yield (space, reply), waiting.link
            former, reply = reply, waiting.link.before[0] if waiting.link.before else ""
            if former == reply:
                return

    def _take(self, name: Name, waiting: _Waiting) -> None:
        self._drop(name)
        self._waiting[name] = waiting
        self._size += waiting.link.size
        if not (waiting.begins or waiting.link.before):
            self._newest[name[0], waiting.session] = name[1]
        while self._size > self._capacity:
            self._drop(next(iter(self._waiting)))

    def _drop(self, name: Name) -> None:
        if (waiting := self._waiting.pop(name, None)) is None:
            return
        self._size -= waiting.link.size
        if self._newest.get((name[0], waiting.session)) == name[1]:
            del self._newest[name[0], waiting.session]

    def _forget(self, tenant: str, session: str | None) -> None:
        """Something was erased (see Erasures)."""
        self._erased += 1
        self._known.clear()
        for name, waiting in list(self._waiting.items()):
            if session in (None, waiting.session) and tenant_of(name[0]) == tenant:
                self._drop(name)


def link_key(space: bytes, reply: str) -> Key:
    """Where a tenant's reply is kept."""
    return provider_key("link", space, reply)


def decode(value: bytes | None) -> Link | None:
    """A kept link, unpacked; None where there is none, or none that can be read."""
    with suppress(msgspec.MsgspecError, ValueError):
        return _DECODER.decode(value) if value is not None else None
    return None


def _packed(links: Iterable[Link]) -> list[bytes]:
    pack = packer()
    return [pack(_ENCODER.encode(link)) for link in links]
