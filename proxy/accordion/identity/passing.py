"""Who has the word in each list, as far as this worker read it; behind it the store, where anything was handed over."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial

import msgspec

from accordion.core.cache import ENTRY, Cache
from accordion.core.conversation import Conversation, ToolCall
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Outbox, Store
from accordion.core.records import CallSeen
from accordion.core.values import dataclass, replace
from accordion.identity.handoffs import NOBODY, Handed, Patterns, advance, settled, tool_names
from accordion.identity.points import deepest

# How many of the newest places are asked for in the store.
_LOOK = 64

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Handed).decode


@dataclass(frozen=False, slots=True)
class Passing:
    """Hand-offs by label and place, within `capacity` bytes. `most` bounds how many agents are told apart in
    one list."""

    store: Store
    outbox: Outbox
    patterns: Patterns
    most: int = 256
    capacity: int = 12 * 2**20
    retention: float = 30 * 86_400.0
    _states: Cache[bytes, Handed] = field(init=False)
    _names: Cache[bytes, frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        self._states = Cache(self.capacity * 3 // 4)
        self._names = Cache(self.capacity // 4, lambda key, names: ENTRY + sum(100 + len(name) for name in names))

    def seen(self, label: bytes, chain: Sequence[bytes]) -> int:
        """The index of the first message of a list that was not seen before; now all of it was."""
        if not chain:
            return 0
        index, state = self._local(label, chain)
        if index < len(chain) - 1:
            self._remember(label + chain[-1], state)
        return index + 1

    def unpassed(self, label: bytes, conversation: Conversation) -> int | None:
        """The index of the first message that was not read before, of a list in which nothing was handed over; None
        where it was, or may have been: `at` tells."""
        chain = conversation.chain
        if not chain:
            return 0
        index, state = self._local(label, chain)
        if state is not NOBODY:
            return None
        target = self.patterns.target
        for message in conversation.messages[index + 1 :]:
            for part in message.parts:
                if type(part) is ToolCall and target(part.name) is not None:
                    return None
        if index < len(chain) - 1:
            self._remember(label + chain[-1], NOBODY)
        return index + 1

    async def at(self, tenant: str, label: bytes, conversation: Conversation) -> tuple[Handed, int]:
        """Who has the word where a request ends, and the index of the first message that was not read before."""
        chain = conversation.chain
        index, state = self._local(label, chain)
        read = self._advance(state, conversation, index, label)
        if index < 0 and read is not NOBODY and (found := await self._asked(tenant, label, chain)) is not None:
            index, state = found
            read = self._advance(state, conversation, index, label)
        if read.known:
            read = settled(read, self._offered(conversation), conversation.overhead_key)
        if read is not state or index < len(chain) - 1:
            self._remember(label + chain[-1], read)
            if not read.plain:
                self._keep(tenant, label + chain[-1], read)
        return read, index + 1

    def answered(
        self, tenant: str, label: bytes, conversation: Conversation, calls: Iterable[CallSeen], home: str
    ) -> None:
        """Notes who made a hand-off, so that it is known again when it comes back: `home` is its node."""
        for call in calls:
            if self.patterns.target(call.name) is not None and conversation.chain:
                break
        else:
            return
        name = label + conversation.chain[-1]
        state = self._states.get(name) or NOBODY
        if not state.path:
            state = settled(state, self._offered(conversation), conversation.overhead_key)
            self._remember(name, state := replace(state, home=state.home or home))
            self._keep(tenant, name, state)

    def forget(self) -> None:
        """Asks the store anew for everything: something was erased there."""
        self._states.clear()

    def _advance(self, state: Handed, conversation: Conversation, index: int, label: bytes) -> Handed:
        return advance(state, conversation, index + 1, self.patterns.target, label, self.most)

    def _local(self, label: bytes, chain: Sequence[bytes]) -> tuple[int, Handed]:
        index, state = deepest(self._states, label, chain)
        return index, NOBODY if state is None else state

    async def _asked(self, tenant: str, label: bytes, chain: Sequence[bytes]) -> tuple[int, Handed] | None:
        """The deepest place of a list that the store knows."""
        newest = chain[-_LOOK:]
        if not self.store.available:
            return None
        with suppress(StoreUnavailable, msgspec.MsgspecError):
            values = await self.store.get_many([_key(tenant, label + one) for one in newest])
            for back, value in enumerate(reversed(values), 1):
                if value is not None:
                    return len(chain) - back, _decode(value)
        return None

    def _offered(self, conversation: Conversation) -> frozenset[str]:
        known = self._names.get(conversation.overhead_key)
        if known is None:
            known = self._names[conversation.overhead_key] = tool_names(conversation.tools)
        return known

    def _remember(self, name: bytes, state: Handed) -> None:
        self._states.put(name, state, ENTRY if state is NOBODY else 2 * ENTRY + len(_encode(state)))

    def _keep(self, tenant: str, name: bytes, state: Handed) -> None:
        self.outbox.put(_key(tenant, name), partial(_encode, state), self.retention)


def nodes_of(value: bytes) -> set[str]:
    """The delegations that a kept state names, whose list it is among them; none where it cannot be read."""
    with suppress(msgspec.MsgspecError):
        state = _decode(value)
        return {state.home, *(hop.node for hop in state.path), *(node for known in state.known for node in known[::2])}
    return set()


def _key(tenant: str, name: bytes) -> Key:
    return Key(f"handed/{tenant}", hashlib.sha256(name).hexdigest())
