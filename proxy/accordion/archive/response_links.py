"""The history that the provider keeps, response by response, so that it can be put in place of a response's id.

A client of Responses may send `previous_response_id` and only what is new; OpenAI keeps the rest. Such a request cannot
be compacted as it is. So each of its responses is put on record as a link: the items of its request, the items of the
response, and the ids of the responses before it. Nobody knows at the first response of a conversation whether its
client will go on by the id, so that link is stored for a day only, and for good once it was gone on from. Of clients
that send their history themselves nothing else is stored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate

import msgspec
from msgspec import structs

from accordion.archive.archive import Archive
from accordion.archive.artifacts import make_packer, tenant_name, unpack
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.provider_items import provider_key
from accordion.model.cache import BoundedCache
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, Put, Tasks

_OVERHEAD = 300
_LONGEST = 4_096
"""Replies in a row that are put together; more of them are no conversation."""
_AT_ONCE = 32
"""Replies before it that a link names, so that they are read together."""
_WHOLE = 65_536
"""Bytes: of a client that sends its history itself, a longer list is not even held in memory."""
_BRIEFLY = 86_400.0
"""Seconds for which the beginning of a conversation is stored before it was gone on from."""
_EARLY = 4
"""So many responses after the beginning each store it for good: the first of them may not have found it."""
_SESSIONS = 10_000
"""Sessions of clients that send their history themselves, whose newest response is remembered."""
_PACK_AT_ONCE = 32_768
"""Bytes that are compressed at once; more of them in a thread, so that requests need not wait."""

Name = tuple[bytes, str]
"""A tenant's key, and a reply's id."""


class ResponseLink(msgspec.Struct, frozen=True, array_like=True):
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


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ResponseLink)


class ResponseLinks:
    """Records and finds responses by their ids. Up to `capacity` bytes of them are held in memory; no single one takes
    more than a sixth."""

    def __init__(self, archive: Archive, tasks: Tasks, erasures: ErasureNotices, capacity: int) -> None:
        self._archive = archive
        self._tasks = tasks
        self._largest = capacity // 6
        self._held = BoundedCache[Name, tuple[str, ResponseLink]](capacity)
        """Each with its session, which is empty where the link was read from the store."""
        self._newest: OrderedDict[Name, str] = OrderedDict()
        """By tenant and session, the newest response to a client that sends its history itself."""
        self._erased = 0
        erasures.listen(self._forget)

    def add(
        self,
        tenant_key: bytes,
        session: str,
        conversation: Conversation,
        reply: str,
        said: tuple[bytes, ...],
        *,
        known: bool,
    ) -> ResponseLink | None:
        """Takes a response that the provider keeps under the id `reply`; `conversation` is its request as the client
        sent it. `known`: the request brings back, in its list, the response that this proxy gave to it last, as a
        client does that sends its history itself. Gives the link that is to be stored (see `puts`); None where
        nothing is."""
        previous, entries = conversation.previous, (*conversation.lead, *conversation.messages)
        link = ResponseLink(
            tuple([message.wire for message in entries]), said, (previous,) if previous is not None else ()
        )
        resent = previous is None and known
        if resent and (former := self._newest.pop((tenant_key, session), None)) is not None:
            self._held.discard((tenant_key, former))
        if link.size > self._largest:
            return None
        if resent and any(size > _WHOLE for size in accumulate(len(message.wire) for message in entries)):
            return None
        self._remember((tenant_key, reply), session, link)
        if not resent:
            return link
        self._newest[tenant_key, session] = reply
        if len(self._newest) > _SESSIONS:
            self._newest.popitem(last=False)
        return None

    async def build_puts(self, tenant_key: bytes, session: str, reply: str, link: ResponseLink) -> list[Put]:
        """The writes that store the link of a response, with all that is known to lead to it. One whose predecessor
        cannot be found now is stored all the same: it may be on its way from another worker."""
        if not link.before:
            return await self._write_links(tenant_key, session, {reply: link}, _BRIEFLY)
        links, former = {reply: link}, link.before[0]
        before = await self._find(tenant_key, former) if former != reply else None
        if before is not None:
            links[reply] = link = structs.replace(link, before=(former, *before.before)[:_AT_ONCE])
            self._remember((tenant_key, reply), session, link)
        first = link.before[-1]
        if len(link.before) <= _EARLY and first != reply:
            beginning = before if first == former else await self._find(tenant_key, first)
            if beginning is not None and not beginning.before:
                links[first] = beginning
        return await self._write_links(tenant_key, session, links, None)

    @property
    def is_available(self) -> bool:
        """Whether the store is there, so that what is not found is not on record."""
        return self._archive.store.is_available

    async def history_up_to(self, tenant_key: bytes, reply: str) -> list[bytes] | None:
        """All that the provider keeps up to a response and with it, as entries of a list; None where not all of it is
        on record. Raises StoreUnavailable."""
        links, read = list[ResponseLink](), dict[str, ResponseLink]()
        names: Sequence[str] = (reply,)
        while names and len(links) < _LONGEST:
            link = self._from_memory((tenant_key, names[0])) or read.get(names[0])
            if link is None:
                read |= await self._read(tenant_key, names)
                if (link := read.get(names[0])) is None:
                    return None
            if names[0] in link.before:
                # A provider that gives its replies one id over and over keeps nothing that could be told apart.
                return None
            links.append(link)
            names = link.before
        return None if names else [entry for link in reversed(links) for entry in (*link.given, *link.said)]

    # -- finding ------------------------------------------------------------------

    def _from_memory(self, name: Name) -> ResponseLink | None:
        held = self._held.get(name)
        return held[1] if held is not None else None

    async def _find(self, tenant_key: bytes, reply: str) -> ResponseLink | None:
        """One link; None where it is not on record, or the store is away."""
        if (link := self._from_memory((tenant_key, reply))) is not None:
            return link
        with suppress(StoreUnavailable):
            return (await self._read(tenant_key, (reply,))).get(reply)
        return None

    async def _read(self, tenant_key: bytes, names: Sequence[str]) -> dict[str, ResponseLink]:
        """Links that the store has."""
        keys, erased = [link_key(tenant_key, name) for name in names], self._erased
        found = dict[str, ResponseLink]()
        for name, key, value in zip(names, keys, await self._archive.store.get_many(keys), strict=True):
            if (link := decode(unpack(self._archive.open_value(tenant_key, key, value)))) is not None:
                found[name] = link
                if self._erased == erased:  # Else it may be what was erased meanwhile.
                    self._remember((tenant_key, name), "", link)
        return found

    # -- keeping ------------------------------------------------------------------

    async def _write_links(
        self, tenant_key: bytes, session: str, links: dict[str, ResponseLink], ttl: float | None
    ) -> list[Put]:
        small = sum(link.size for link in links.values()) <= _PACK_AT_ONCE
        packed = _pack_links(links.values()) if small else await self._tasks.offload(_pack_links, links.values())
        return [
            put
            for name, value in zip(links, packed, strict=True)
            for put in self._archive.single_value_puts(
                tenant_key, session, "link", link_key(tenant_key, name), value, ttl
            )
        ]

    def _remember(self, name: Name, session: str, link: ResponseLink) -> None:
        self._held.put(name, (session, link), link.size)

    def _forget(self, tenant: str, session: str | None) -> None:
        """Something was erased (see ErasureNotices)."""
        self._erased += 1
        for name, (held, _) in self._held.items():
            if tenant_name(name[0]) == tenant and (session is None or held in ("", session)):
                self._held.discard(name)


def link_key(tenant_key: bytes, reply: str) -> Key:
    """Where a tenant's reply is kept."""
    return provider_key("link", tenant_key, reply)


def decode(value: bytes | None) -> ResponseLink | None:
    """A kept link, unpacked; None where there is none, or none that can be read."""
    with suppress(msgspec.MsgspecError, ValueError):
        return _DECODER.decode(value) if value is not None else None
    return None


def _pack_links(links: Iterable[ResponseLink]) -> list[bytes]:
    pack = make_packer()
    return [pack(_ENCODER.encode(link)) for link in links]
