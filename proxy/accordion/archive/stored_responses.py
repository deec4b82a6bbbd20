"""Records the responses that the provider stores, so that a response id can be replaced by its history.

A client of the Responses API may send `previous_response_id` and only the new items; OpenAI has the rest. Such a
request cannot be compacted as it is. So each of these responses is recorded with the items of its request, its own
items, and the ids of the responses before it: it links to them, and in the store it is called a link.

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
from accordion.archive.artifacts import make_packer, provider_key, unpack
from accordion.archive.erasure_notices import ErasureNotices
from accordion.model.cache import BoundedCache
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, Put, Tasks
from accordion.model.tenant import ArchiveNamespace, TenantScope

_OVERHEAD = 300
_MAX_RESPONSES = 4_096
"""The most responses of one history; more are no conversation."""
_MAX_PREVIOUS = 32
"""The number of earlier responses that a link names, so that they are read together."""
_MAX_RESENT = 65_536
"""The most bytes of a list that is remembered for a client that sends its history itself."""
_FIRST_LINK_SECONDS = 86_400.0
"""Seconds for which the first link is stored while the client has not continued from it."""
_EARLY = 4
"""The number of later responses that each store the first link too: one alone may not find it."""
_PACK_AT_ONCE = 32_768
"""The most bytes that are compressed without a thread, so that requests do not wait."""

ResponseKey = tuple[TenantScope, str]
"""A tenant and a response's id."""


class StoredResponse(msgspec.Struct, frozen=True, array_like=True):
    """A response and its request.

    `input_items` are the entries of the request's own list, `output_items` the response's items that the client
    received, as JSON. `previous_ids` are ids of the responses before it, the newest first, at least one; empty if
    the request had the whole list.
    """

    input_items: tuple[bytes, ...]
    output_items: tuple[bytes, ...]
    previous_ids: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The bytes that the link takes in memory, roughly."""
        return _OVERHEAD + sum(map(len, self.input_items + self.output_items)) + 100 * len(self.previous_ids)


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(StoredResponse)


class StoredResponses:
    """Records responses and finds them by their ids.

    Up to `capacity` bytes of links are held in memory; a single link takes at most a sixth of that.
    """

    def __init__(self, archive: Archive, tasks: Tasks, erasures: ErasureNotices, capacity: int) -> None:
        self._archive = archive
        self._tasks = tasks
        self._max_link_size = capacity // 6
        self._links = BoundedCache[ResponseKey, tuple[str, StoredResponse]](capacity)
        """Each link with its session, which is empty if the link was read from the store."""
        self._newest: OrderedDict[ResponseKey, str] = OrderedDict()
        """By tenant and session, the newest response to a client that sends its history itself."""
        self._erasure_count = 0
        erasures.listen(self._forget)

    def add(
        self,
        tenant: TenantScope,
        session: str,
        conversation: Conversation,
        response_id: str,
        output_items: tuple[bytes, ...],
        *,
        has_last_response: bool,
    ) -> StoredResponse | None:
        """Records a response that the provider stores under the id `response_id`.

        `conversation` is its request as the client sent it. `has_last_response` says that the request's list has this
        proxy's last response in it, as with a client that sends its history itself. Returns the link that must be
        stored (see `build_puts`), or None.
        """
        continued_id, entries = conversation.continued_id, (*conversation.lead, *conversation.messages)
        link = StoredResponse(
            tuple([message.wire for message in entries]), output_items, (continued_id,) if continued_id else ()
        )
        is_resent = not continued_id and has_last_response
        if is_resent and (former := self._newest.pop((tenant, session), None)) is not None:
            self._links.pop((tenant, former))
        if link.size > self._max_link_size:
            return None
        if is_resent and any(size > _MAX_RESENT for size in accumulate(len(message.wire) for message in entries)):
            return None
        self._remember((tenant, response_id), session, link)
        if not is_resent:
            return link
        self._newest[tenant, session] = response_id
        # A session whose link is no longer in memory has no use for its entry.
        while len(self._newest) > len(self._links):
            self._newest.popitem(last=False)
        return None

    async def build_puts(self, tenant: TenantScope, session: str, response_id: str, link: StoredResponse) -> list[Put]:
        """Returns the writes that store a response's link, extended by the ids of earlier responses.

        A link whose predecessor is not found is stored all the same: another worker may be about to store that one.
        """
        if not link.previous_ids:
            return await self._write_links(tenant, session, {response_id: link}, _FIRST_LINK_SECONDS)
        links, previous_id = {response_id: link}, link.previous_ids[0]
        previous_link = await self._find(tenant, previous_id) if previous_id != response_id else None
        if previous_link is not None:
            links[response_id] = link = structs.replace(
                link, previous_ids=(previous_id, *previous_link.previous_ids)[:_MAX_PREVIOUS]
            )
            self._remember((tenant, response_id), session, link)
        first_id = link.previous_ids[-1]
        if len(link.previous_ids) <= _EARLY and first_id != response_id:
            first_link = previous_link if first_id == previous_id else await self._find(tenant, first_id)
            if first_link is not None and not first_link.previous_ids:
                links[first_id] = first_link
        return await self._write_links(tenant, session, links, None)

    @property
    def is_available(self) -> bool:
        """Whether the store is available, so that a response that is not found was not recorded."""
        return self._archive.store.is_available

    async def history_up_to(self, tenant: TenantScope, response_id: str) -> list[bytes] | None:
        """Returns the provider's whole history up to a response, including it, as entries of a list.

        Returns None if a part was not recorded. Raises StoreUnavailable.
        """
        links, links_from_store = list[StoredResponse](), dict[str, StoredResponse]()
        names: Sequence[str] = (response_id,)
        while names and len(links) < _MAX_RESPONSES:
            link = self._from_memory((tenant, names[0])) or links_from_store.get(names[0])
            if link is None:
                links_from_store |= await self._read_links(tenant, names)
                if (link := links_from_store.get(names[0])) is None:
                    return None
            if names[0] in link.previous_ids:
                # A provider that gives all its responses the same id has no history that could be distinguished.
                return None
            links.append(link)
            names = link.previous_ids
        if names:
            return None
        return [entry for link in reversed(links) for entry in (*link.input_items, *link.output_items)]

    async def store_history(
        self, tenant: TenantScope, session: str, response_id: str, entries: Sequence[bytes]
    ) -> None:
        """Records the whole history up to a response, as its provider lists it. Raises StoreUnavailable."""
        link = StoredResponse(tuple(entries), ())
        self._remember((tenant, response_id), session, link)
        await self._archive.write(await self._write_links(tenant, session, {response_id: link}, None))

    async def missing_items(self, tenant: TenantScope, object_id: str) -> tuple[bytes, ...]:
        """Returns the items that a provider's conversation object lacks at its end. Raises StoreUnavailable."""
        key = missing_items_key(tenant, object_id)
        link = decode(unpack(self._archive.open_value(tenant, key, await self._archive.store.get(key))))
        return link.input_items if link is not None else ()

    async def store_missing_items(
        self, tenant: TenantScope, session: str, object_id: str, items: tuple[bytes, ...]
    ) -> None:
        """Stores the items that a provider's conversation object lacks at its end. Raises StoreUnavailable."""
        key, [value] = missing_items_key(tenant, object_id), _pack_links([StoredResponse(items, ())])
        await self._archive.write(self._archive.single_value_puts(tenant, session, "link", key, value))

    # -- reading ------------------------------------------------------------------

    def _from_memory(self, name: ResponseKey) -> StoredResponse | None:
        entry = self._links.get(name)
        return entry[1] if entry is not None else None

    async def _find(self, tenant: TenantScope, response_id: str) -> StoredResponse | None:
        """Returns one link; None if it was not recorded, or the store is unavailable."""
        if (link := self._from_memory((tenant, response_id))) is not None:
            return link
        with suppress(StoreUnavailable):
            return (await self._read_links(tenant, (response_id,))).get(response_id)
        return None

    async def _read_links(self, tenant: TenantScope, names: Sequence[str]) -> dict[str, StoredResponse]:
        """Reads links from the store."""
        keys, erasure_count = [link_key(tenant, name) for name in names], self._erasure_count
        links = dict[str, StoredResponse]()
        for name, key, value in zip(names, keys, await self._archive.store.get_many(keys), strict=True):
            if (link := decode(unpack(self._archive.open_value(tenant, key, value)))) is not None:
                links[name] = link
                if self._erasure_count == erasure_count:  # Else the link may have been erased meanwhile.
                    self._remember((tenant, name), "", link)
        return links

    # -- writing ------------------------------------------------------------------

    async def _write_links(
        self, tenant: TenantScope, session: str, links: dict[str, StoredResponse], ttl: float | None
    ) -> list[Put]:
        is_small = sum(link.size for link in links.values()) <= _PACK_AT_ONCE
        packed = _pack_links(links.values()) if is_small else await self._tasks.offload(_pack_links, links.values())
        return [
            put
            for name, value in zip(links, packed, strict=True)
            for put in self._archive.single_value_puts(tenant, session, "link", link_key(tenant, name), value, ttl)
        ]

    def _remember(self, name: ResponseKey, session: str, link: StoredResponse) -> None:
        self._links.put(name, (session, link), link.size)

    def _forget(self, namespace: ArchiveNamespace, session: str | None) -> None:
        """Removes erased links from memory (see ErasureNotices)."""
        self._erasure_count += 1
        for name, (link_session, _) in self._links.items():
            if name[0].archive_namespace == namespace and (session is None or link_session in ("", session)):
                self._links.pop(name)


def link_key(tenant: TenantScope, response_id: str) -> Key:
    """Returns the key of a response's link in the store."""
    return provider_key("link", tenant, response_id)


def missing_items_key(tenant: TenantScope, object_id: str) -> Key:
    """Returns the key of the items that a conversation object lacks."""
    return provider_key("link", tenant, f"unadded {object_id}")


def decode(value: bytes | None) -> StoredResponse | None:
    """Decodes a stored link after decompression; None if there is none, or it cannot be read."""
    with suppress(msgspec.MsgspecError, ValueError):
        return _DECODER.decode(value) if value is not None else None
    return None


def _pack_links(links: Iterable[StoredResponse]) -> list[bytes]:
    pack = make_packer()
    return [pack(_ENCODER.encode(link)) for link in links]
