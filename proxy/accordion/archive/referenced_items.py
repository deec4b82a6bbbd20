"""Stores response items that clients later reference only by the provider's ids.

OpenAI stores the items of a response, and a client may send `{"type": "item_reference", "id": "msg_…"}` instead of an
item; Vercel's AI SDK does so by default. A compaction could neither summarize nor archive such items, so they are
recorded when the response passes. They are in memory at first, since it is unknown whether the client will reference
them, and in the archive once a session has referenced an earlier item. Nothing is stored of clients that send their
history themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from accordion.archive.archive import Archive
from accordion.archive.artifacts import item_key, item_name, make_packer
from accordion.archive.erasure_notices import ErasureNotices
from accordion.model.boundaries import is_known_to_provider_only
from accordion.model.cache import BoundedCache
from accordion.model.conversation import Conversation, Message, Text
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Tasks
from accordion.model.tenant import TenantScope

_OVERHEAD = 300

SessionKey = tuple[TenantScope, str]
"""A tenant and a session's id."""

MakeParserFunction = Callable[[str, TenantScope], Callable[[bytes], Message]]
"""Returns a parser of one list entry for a protocol's name and a tenant's key. Raises ValueError."""


class ReferencedItems:
    """Stores response items that are only referenced.

    Up to `capacity` bytes wait in memory; those of the session that was idle longest are removed first. As many bytes
    of resolved references are cached.
    """

    def __init__(
        self, archive: Archive, tasks: Tasks, erasures: ErasureNotices, make_parser: MakeParserFunction, capacity: int
    ) -> None:
        self._archive = archive
        self._tasks = tasks
        self._erasures = erasures
        self._make_parser = make_parser
        self._capacity = capacity
        self._size = 0
        self.waiting: OrderedDict[SessionKey, dict[str, bytes]] = OrderedDict()
        """By session, the items that it may reference, by their ids."""
        self._resolved = BoundedCache[bytes, Message](capacity)
        erasures.listen(lambda *_: self._forget())

    def remember_items(
        self,
        tenant: TenantScope,
        session: str,
        conversation: Conversation,
        items: Sequence[tuple[str, bytes]],
        started_at: float,
    ) -> None:
        """Remembers the items of a response, by their ids, as JSON.

        `conversation` is its request as the client sent it, received at `started_at` by the monotonic clock. Quick:
        items that must be stored are written in the background.
        """
        name = tenant, session
        if not (items or name in self.waiting) or conversation.is_kept_by_provider:
            return
        references = _references_items(conversation.messages)
        if references is False:
            self._drop(name)
            return
        self._add_items(name, items)
        if references:
            self._tasks.spawn(self._store_items(name, started_at), "store referenced items")

    async def resolve_names(
        self, conversation: Conversation, tenant: TenantScope, session: str
    ) -> Mapping[bytes, Message]:
        """Returns the messages that a conversation only references, by the key of the referencing message.

        References that were not recorded are left out; also those in the store while it is unavailable.
        """
        references = [message for message in conversation.messages if is_known_to_provider_only(message)]
        resolved = {each.key: message for each in references if (message := self._resolved.get(each.key)) is not None}
        keys_by_name = {
            name: each.key for each in references if each.key not in resolved and (name := item_name(each.wire))
        }
        if not keys_by_name:
            return resolved
        wires = dict(self.waiting.get((tenant, session), {}))
        with suppress(StoreUnavailable):
            wires |= await self._archive.load_items(tenant, [name for name in keys_by_name if name not in wires])
        parse = self._make_parser(conversation.protocol_name, tenant)
        for name in keys_by_name.keys() & wires.keys():
            with suppress(ValueError):
                resolved[keys_by_name[name]] = message = parse(wires[name])
                self._resolved.put(keys_by_name[name], message, _OVERHEAD + 2 * len(message.wire))
        return resolved

    async def _store_items(self, name: SessionKey, started_at: float) -> None:
        tenant, session = name
        items = dict(self.waiting.get(name, {}))
        if not items or self._erasures.was_erased_since(tenant, session, started_at):
            return
        pack = make_packer()
        puts = [
            put
            for item, wire in items.items()
            for put in self._archive.single_value_puts(tenant, session, "item", item_key(tenant, item), pack(wire))
        ]
        # If the store is unavailable, the next response tries again.
        with suppress(StoreUnavailable):
            await self._archive.write(puts)
            for item in items:
                self._remove_item(name, item)

    def _add_items(self, name: SessionKey, items: Sequence[tuple[str, bytes]]) -> None:
        for item, wire in items:
            self._remove_item(name, item)
            self.waiting.setdefault(name, {})[item] = wire
            self._size += _OVERHEAD + len(wire)
        if name in self.waiting:
            self.waiting.move_to_end(name)
        while self._size > self._capacity:
            oldest = next(iter(self.waiting))
            self._remove_item(oldest, next(iter(self.waiting[oldest])))

    def _remove_item(self, name: SessionKey, item: str) -> None:
        items = self.waiting.get(name)
        if items is None or (wire := items.pop(item, None)) is None:
            return
        self._size -= _OVERHEAD + len(wire)
        if not items:
            del self.waiting[name]

    def _drop(self, name: SessionKey) -> None:
        for wire in self.waiting.pop(name, {}).values():
            self._size -= _OVERHEAD + len(wire)

    def _forget(self) -> None:
        """Removes everything from memory after an erasure, as any of it may be erased."""
        self.waiting.clear()
        self._resolved.clear()
        self._size = 0


def _references_items(messages: Sequence[Message]) -> bool | None:
    """Whether a client references the assistant's messages instead of sending them.

    The newest such message decides; None if there is none yet.
    """
    for message in reversed(messages):
        if message.role == "assistant" and any(type(part) is Text for part in message.parts):
            return is_known_to_provider_only(message)
    return None
