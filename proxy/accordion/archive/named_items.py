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
from accordion.archive.artifacts import make_packer
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.provider_items import item_key, item_name
from accordion.model.boundaries import is_known_to_provider_only
from accordion.model.cache import BoundedCache
from accordion.model.conversation import Conversation, Message, Text
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Tasks

_OVERHEAD = 300

Name = tuple[bytes, str]
"""A tenant's key and a session."""

Reads = Callable[[str, bytes], Callable[[bytes], Message]]
"""Returns a parser of one list entry for a protocol's name and a tenant's key. Raises ValueError."""


class NamedItems:
    """Stores response items that are only referenced.

    Up to `capacity` bytes wait in memory; those of the session that was idle longest are removed first. As many bytes
    of resolved references are cached.
    """

    def __init__(self, archive: Archive, tasks: Tasks, erasures: ErasureNotices, reads: Reads, capacity: int) -> None:
        self._archive = archive
        self._tasks = tasks
        self._erasures = erasures
        self._reads = reads
        self._capacity = capacity
        self._size = 0
        self.waiting: OrderedDict[Name, dict[str, bytes]] = OrderedDict()
        """By session, the items that it may reference, by their ids."""
        self._known = BoundedCache[bytes, Message](capacity)
        erasures.listen(lambda *_: self._forget())

    def remember_items(
        self,
        tenant_key: bytes,
        session: str,
        conversation: Conversation,
        items: Sequence[tuple[str, bytes]],
        began: float,
    ) -> None:
        """Remembers the items of a response, by their ids, as JSON.

        `conversation` is its request as the client sent it, received at `began` by the monotonic clock. Quick: items
        that must be stored are written in the background.
        """
        name = tenant_key, session
        if not (items or name in self.waiting) or conversation.previous is not None:
            return
        names = _names_items(conversation.messages)
        if names is False:
            self._drop(name)
            return
        self._take(name, items)
        if names:
            self._tasks.spawn(self._keep(name, began), "store referenced items")

    async def resolve_names(
        self, conversation: Conversation, tenant_key: bytes, session: str
    ) -> Mapping[bytes, Message]:
        """Returns the messages that a conversation only references, by the key of the referencing message.

        References that were not recorded are left out; also those in the store while it is unavailable.
        """
        named = [message for message in conversation.messages if is_known_to_provider_only(message)]
        made = {message.key: known for message in named if (known := self._known.get(message.key)) is not None}
        wanted = {name: each.key for each in named if each.key not in made and (name := item_name(each.wire))}
        if not wanted:
            return made
        found = dict(self.waiting.get((tenant_key, session), {}))
        with suppress(StoreUnavailable):
            found |= await self._archive.load_items(tenant_key, [name for name in wanted if name not in found])
        read = self._reads(conversation.dialect, tenant_key)
        for name in wanted.keys() & found.keys():
            with suppress(ValueError):
                made[wanted[name]] = heard = read(found[name])
                self._known.put(wanted[name], heard, _OVERHEAD + 2 * len(heard.wire))
        return made

    async def _keep(self, name: Name, began: float) -> None:
        tenant_key, session = name
        held = dict(self.waiting.get(name, {}))
        if not held or self._erasures.was_erased_since(tenant_key, session, began):
            return
        pack = make_packer()
        puts = [
            put
            for item, wire in held.items()
            for put in self._archive.single_value_puts(
                tenant_key, session, "item", item_key(tenant_key, item), pack(wire)
            )
        ]
        # Where the store is unavailable, the next response tries again.
        with suppress(StoreUnavailable):
            await self._archive.keep(puts)
            for item in held:
                self._release(name, item)

    def _take(self, name: Name, items: Sequence[tuple[str, bytes]]) -> None:
        for item, wire in items:
            self._release(name, item)
            self.waiting.setdefault(name, {})[item] = wire
            self._size += _OVERHEAD + len(wire)
        if name in self.waiting:
            self.waiting.move_to_end(name)
        while self._size > self._capacity:
            longest = next(iter(self.waiting))
            self._release(longest, next(iter(self.waiting[longest])))

    def _release(self, name: Name, item: str) -> None:
        held = self.waiting.get(name)
        if held is None or (wire := held.pop(item, None)) is None:
            return
        self._size -= _OVERHEAD + len(wire)
        if not held:
            del self.waiting[name]

    def _drop(self, name: Name) -> None:
        for wire in self.waiting.pop(name, {}).values():
            self._size -= _OVERHEAD + len(wire)

    def _forget(self) -> None:
        """Removes everything from memory after an erasure, as any of it may be erased."""
        self.waiting.clear()
        self._known.clear()
        self._size = 0


def _names_items(messages: Sequence[Message]) -> bool | None:
    """Whether a client references the assistant's messages instead of sending them.

    The newest such message decides; None where there is none yet.
    """
    for message in reversed(messages):
        if message.role == "assistant" and any(type(part) is Text for part in message.parts):
            return is_known_to_provider_only(message)
    return None
