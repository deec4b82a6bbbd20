"""Records the responses that the provider stores, so that a response id can be replaced by its history.

A client of the Responses API may send `previous_response_id` and only the new items; OpenAI has the rest. Such a
request cannot be compacted as it is. So each of these responses is recorded as a link: the items of its request, its
own items, and the ids of the responses before it.

At a conversation's first response it is unknown whether the client will continue by id. So that link is stored for a
day only, and permanently once the client has continued from it. Of clients that send their history themselves nothing
else is stored.
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
"""The most responses of one history; more are no conversation."""
_AT_ONCE = 32
"""The number of earlier responses that a link names, so that they are read together."""
_WHOLE = 65_536
"""The most bytes of a list that is remembered for a client that sends its history itself."""
_BRIEFLY = 86_400.0
"""Seconds for which the first link is stored while the client has not continued from it."""
_EARLY = 4
"""The number of later responses that each store the first link too: one alone may not find it."""
_PACK_AT_ONCE = 32_768
"""The most bytes that are compressed without a thread, so that requests do not wait."""

Name = tuple[bytes, str]
"""A tenant's key and a response's id."""


class ResponseLink(msgspec.Struct, frozen=True, array_like=True):
    """A response and its request.

    `given` are the entries of the request's own list, `said` the response's items that the client received, as JSON.
    `before` are ids of the responses before it, the newest first, at least one; empty where the request had the whole
    list.
    """

    given: tuple[bytes, ...]
    said: tuple[bytes, ...]
    before: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The bytes that the link takes in memory, roughly."""
        return _OVERHEAD + sum(map(len, self.given)) + sum(map(len, self.said)) + 100 * len(self.before)


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ResponseLink)


class ResponseLinks:
    """Records responses and finds them by their ids.

    Up to `capacity` bytes of links are held in memory; a single link takes at most a sixth of that.
    """

    def __init__(self, archive: Archive, tasks: Tasks, erasures: ErasureNotices, capacity: int) -> None:
        self._archive = archive
        self._tasks = tasks
        self._largest = capacity // 6
        self._held = BoundedCache[Name, tuple[str, ResponseLink]](capacity)
        """Each link with its session, which is empty where the link was read from the store."""
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
        """Records a response that the provider stores under the id `reply`.

        `conversation` is its request as the client sent it. `known` says that the request's list has this proxy's last
        response in it, as with a client that sends its history itself. Returns the link that must be stored (see
        `build_puts`), or None.
        """
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
        # A session whose link is no longer in memory has no use for its entry.
        while len(self._newest) > len(self._held):
            self._newest.popitem(last=False)
        return None

    async def build_puts(self, tenant_key: bytes, session: str, reply: str, link: ResponseLink) -> list[Put]:
        """Returns the writes that store a response's link, extended by the ids of earlier responses.

        A link whose predecessor is not found is stored all the same: another worker may be about to store that one.
        """
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
        """Whether the store is available, so that a response that is not found was not recorded."""
        return self._archive.store.is_available

    async def history_up_to(self, tenant_key: bytes, reply: str) -> list[bytes] | None:
        """Returns the provider's whole history up to a response, including it, as entries of a list.

        Returns None where a part was not recorded. Raises StoreUnavailable.
        """
        links, read = list[ResponseLink](), dict[str, ResponseLink]()
        names: Sequence[str] = (reply,)
        while names and len(links) < _LONGEST:
            link = self._from_memory((tenant_key, names[0])) or read.get(names[0])
            if link is None:
                read |= await self._read(tenant_key, names)
                if (link := read.get(names[0])) is None:
                    return None
            if names[0] in link.before:
                # A provider that gives all its responses the same id has no history that could be distinguished.
                return None
            links.append(link)
            names = link.before
        return None if names else [entry for link in reversed(links) for entry in (*link.given, *link.said)]

    # -- reading ------------------------------------------------------------------

    def _from_memory(self, name: Name) -> ResponseLink | None:
        held = self._held.get(name)
        return held[1] if held is not None else None

    async def _find(self, tenant_key: bytes, reply: str) -> ResponseLink | None:
        """Returns one link; None where it was not recorded, or the store is unavailable."""
        if (link := self._from_memory((tenant_key, reply))) is not None:
            return link
        with suppress(StoreUnavailable):
            return (await self._read(tenant_key, (reply,))).get(reply)
        return None

    async def _read(self, tenant_key: bytes, names: Sequence[str]) -> dict[str, ResponseLink]:
        """Reads links from the store."""
        keys, erased = [link_key(tenant_key, name) for name in names], self._erased
        found = dict[str, ResponseLink]()
        for name, key, value in zip(names, keys, await self._archive.store.get_many(keys), strict=True):
            if (link := decode(unpack(self._archive.open_value(tenant_key, key, value)))) is not None:
                found[name] = link
                if self._erased == erased:  # Else the link may have been erased meanwhile.
                    self._remember((tenant_key, name), "", link)
        return found

    # -- writing ------------------------------------------------------------------

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
        """Removes erased links from memory (see ErasureNotices)."""
        self._erased += 1
        for name, (held, _) in self._held.items():
            if tenant_name(name[0]) == tenant and (session is None or held in ("", session)):
                self._held.discard(name)


def link_key(tenant_key: bytes, reply: str) -> Key:
    """Returns the key of a response's link in the store."""
    return provider_key("link", tenant_key, reply)


def decode(value: bytes | None) -> ResponseLink | None:
    """Decodes a stored link after decompression; None where there is none, or it cannot be read."""
    with suppress(msgspec.MsgspecError, ValueError):
        return _DECODER.decode(value) if value is not None else None
    return None


def _pack_links(links: Iterable[ResponseLink]) -> list[bytes]:
    pack = make_packer()
    return [pack(_ENCODER.encode(link)) for link in links]
