"""The index of prefix nodes: a cache in one worker's memory over the shared store.

The store is read only if this worker has no node or may be out of date. A new conversation does not wait for a read:
if an earlier run recorded its first node, the write a moment later merges both, usually long before the response
arrives. A conversation that continues waits for a node that another worker has announced and is about to write.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore, Outbox, Put, WorkerSync
from accordion.sessions.prefix_nodes import (
    ENCODER,
    MAX_STEPS_BACK,
    PrefixNode,
    count_responses,
    decode,
    find_deepest,
    find_rival_branch,
    first_node_id,
    has_response,
    list_successors,
    merge,
    node_id,
    node_key,
    node_key_by_name,
    session_nodes_collection,
)

# The number of newest nodes that each read of the store looks up. The first read finds a conversation that continues,
# the second one finds a conversation that was rewound, the others load the nodes to which the found ones refer, one
# after the other where a session went from branch to branch. No node is looked up twice, and the first read without a
# new one is the last.
_LOOKUP_SIZES = (64, 576, *[64] * MAX_STEPS_BACK)

# Maximum number of reads while another worker is about to write a node (if it was erased, it never comes), and while a
# worker that cannot be reached may have written it.
_PENDING_READS, _UNCONNECTED_READS = 25, 4
_MAX_NAMES = 128
"""The most names that one read of the store looks up."""


@dataclass(slots=True)
class PrefixIndex:
    """The prefix nodes of one worker.

    `capacity` is the most nodes in memory, `retention` their time to live in the store, in seconds. `worker_sync` is
    None if no other worker uses the store.
    """

    store: KeyValueStore
    outbox: Outbox
    capacity: int
    retention: float
    worker_sync: WorkerSync | None = None
    nodes: OrderedDict[bytes, PrefixNode] = field(default_factory=OrderedDict)
    _unread_in_store: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    """The names of nodes that were created without a read of the store, which may have more of them.

    The values are this worker's own writes of the node: a stored value that equals one of them has nothing new.
    """

    async def find(
        self, scope: bytes, conversation: Conversation, second_names: Collection[bytes] = ()
    ) -> tuple[int, PrefixNode | None]:
        """Returns the index (-1: none) and the node of the longest recorded prefix of a list.

        Reads the store if it may know more, and brings all nodes into memory that decide about the session; those of
        `second_names` are read along. When the store is unavailable, the nodes in memory are used.
        """
        index, base = await self._find_deepest(scope, conversation, second_names)
        worker_sync = self.worker_sync
        if base is not None or worker_sync is None or not (self.store.is_available and has_response(conversation)):
            return index, base
        # Another worker may have served the conversation a moment ago.
        names = [*[scope + key for key in conversation.identity_chain[-_LOOKUP_SIZES[0] :]], *second_names]
        pending = [name for name in names if worker_sync.is_pending(node_id(name))]
        if not pending:
            return index, base
        for _ in range(_PENDING_READS):
            await worker_sync.wait_briefly()
            if not await self._load(pending) or not self.nodes.keys().isdisjoint(pending):
                break
        # Even if no node arrived: this worker may have served another request of the conversation meanwhile.
        return await self._find_deepest(scope, conversation)

    async def _find_deepest(
        self, scope: bytes, conversation: Conversation, second_names: Collection[bytes] = ()
    ) -> tuple[int, PrefixNode | None]:
        chain = conversation.identity_chain
        index, base = find_deepest(self.nodes, scope, chain)
        loaded: set[bytes] = set()
        for size in _LOOKUP_SIZES:
            uncertain = {*self._uncertain_names(scope, conversation, index, base, size)} - loaded
            if uncertain and not loaded:
                uncertain.update(second_names)
            if not (uncertain and await self._load(uncertain)):
                break
            loaded |= uncertain
            index, base = find_deepest(self.nodes, scope, chain)
        if base is None and chain and scope + chain[-1] not in loaded:
            self._unread_in_store.setdefault(scope + chain[-1], ())
        return index, base

    async def load_first(self, names: Iterable[bytes]) -> None:
        """Reads the first nodes of these names from the store into memory, if it is available."""
        if self.store.is_available and (first := [*islice(names, _MAX_NAMES)]):
            await self._load(first)

    async def get(self, name: bytes, *, is_expected: bool = False) -> PrefixNode | None:
        """Returns one node, or None; a node read from the store is not cached.

        `is_expected` says that the node should exist, so that workers that cannot be reached are also given time to
        write it.
        """
        node, worker_sync = self.nodes.get(name), self.worker_sync
        if node is not None:
            return node
        with suppress(StoreUnavailable):
            node = decode(await self.store.get(node_key_by_name(name)))
            if node is None and worker_sync is not None:
                reads = _UNCONNECTED_READS if is_expected and not worker_sync.is_connected else 0
                for _ in range(_PENDING_READS if worker_sync.is_pending(node_id(name)) else reads):
                    await worker_sync.wait_briefly()
                    if (node := decode(await self.store.get(node_key_by_name(name)))) is not None:
                        break
        return node

    def add(self, name: bytes, node: PrefixNode) -> None:
        """Records a node, and lists it under its session."""
        previous, own_id = self.nodes.get(name), node_id(name)
        if (previous is None or previous.session != node.session) and own_id != first_node_id(node.session):
            self.outbox.put(Key(session_nodes_collection(node.session), own_id), bytes, self.retention)
        self.write(name, own_id, node)

    def add_and_build_writes(self, name: bytes, node: PrefixNode) -> list[Put]:
        """Records a node that did not exist; returns the writes for it, which the caller makes."""
        self._remember(name, node)
        if self.worker_sync is not None:
            self.worker_sync.announce(node_id(name))
        return self.build_writes(name)

    def build_writes(self, name: bytes) -> list[Put]:
        """Returns the writes that store a node of this worker and list it, for a caller that cannot wait for the queue.

        A node that was not read from the store is written only if the store has none: the queue merges the two.
        """
        node, own_id = self.nodes.get(name), node_id(name)
        if node is None:
            return []
        is_unread = name in self._unread_in_store
        value = self._merge_with_store(name, node, None) if is_unread else ENCODER.encode(node)
        put = Put(node_key(own_id), value, self.retention, if_absent=is_unread)
        if own_id == first_node_id(node.session):
            return [put]
        return [Put(Key(session_nodes_collection(node.session), own_id), b"", self.retention), put]

    def write(self, name: bytes, node_id: str, node: PrefixNode) -> None:
        """Records a node without listing it under its session."""
        self._remember(name, node)
        if name in self._unread_in_store:
            mark_read = partial(self._unread_in_store.pop, name, ())
            self.outbox.merge(node_key(node_id), partial(self._merge_with_store, name, node), mark_read, self.retention)
        else:
            self.outbox.put(node_key(node_id), partial(ENCODER.encode, node), self.retention)
        if self.worker_sync is not None:
            self.worker_sync.announce(node_id)

    def forget(self, session: str | None) -> None:
        """Removes the nodes of a session, or all, from memory."""
        for name in [name for name, node in self.nodes.items() if session in (None, node.session)]:
            del self.nodes[name]
            self._unread_in_store.pop(name, ())

    def _merge_with_store(self, name: bytes, node: PrefixNode, value: bytes | None) -> bytes:
        """Returns the bytes to write for a node that was not read from the store, whose value there is `value`.

        None means that the stored value is not known yet; then the node stays unread.
        """
        current = self.nodes.get(name, node)
        if value is None:
            encoded, own_writes = ENCODER.encode(current), self._unread_in_store.get(name)
            if own_writes is not None and encoded not in own_writes:
                self._unread_in_store[name] = (*own_writes, encoded)
            return encoded
        stored = None if value in self._unread_in_store.pop(name, ()) else decode(value)
        if stored is not None:
            current = merge(current, stored)
            if name in self.nodes:
                self.nodes[name] = current
        return ENCODER.encode(current)

    async def _load(self, names: Collection[bytes]) -> bool:
        """Reads nodes from the store into memory; returns False if the store is unavailable."""
        try:
            values = await self.store.get_many([node_key_by_name(name) for name in names])
        except StoreUnavailable:
            return False
        for name, value in zip(names, values, strict=True):
            node, stored = self.nodes.get(name), decode(value)
            is_own_write = node is not None and value in self._unread_in_store.get(name, ())
            if stored is not None and not is_own_write and not self._is_up_to_date(name):
                node = merge(node, stored)
            if node is not None:
                self._remember(name, node)
        for name in names:
            self._unread_in_store.pop(name, ())
        return True

    def _uncertain_names(
        self, scope: bytes, conversation: Conversation, index: int, base: PrefixNode | None, depth: int
    ) -> list[bytes]:
        """Returns the names of nodes of which the store may know more.

        There are none if a conversation continues by one round. The same beginning may reach several workers, so a
        first node is read if another worker has recorded it.
        """
        chain, worker_sync = conversation.identity_chain, self.worker_sync
        if base is None:
            if has_response(conversation):
                return [scope + key for key in chain[-depth:]]
            # No worker has recorded this prefix: it is new or expired. The merge at write time covers both.
            is_recorded = (
                chain and worker_sync is not None and worker_sync.is_own(node_id(scope + chain[-1])) is not None
            )
            return [scope + chain[-1]] if is_recorded else []
        is_uncertain = not base.next and not self._is_up_to_date(scope + chain[index])
        if chain[index] == chain[-1]:
            return [scope + chain[index]] if is_uncertain else []
        rival = find_rival_branch(self.nodes, scope, chain, index, base)
        # If this branch had been continued from here at this worker, the next node would be in memory.
        is_simple = rival is None and not base.next and not base.successor and count_responses(conversation, index) <= 1
        # Workers that cannot be reached may have any node. The store is read for them where a conversation begins;
        # later their writes are found.
        is_connected = worker_sync is not None and worker_sync.is_connected
        if is_simple and not (is_uncertain and (not base.base or is_connected)):
            return []
        keys = {*chain[index + 1 :][-_LOOKUP_SIZES[0] :], chain[index], base.base, base.branch}
        keys.update(list_successors(self.nodes, scope, base))
        if rival is not None:
            keys |= {rival.key, rival.node.branch}
        return [scope + key for key in keys if key]

    def _is_up_to_date(self, name: bytes) -> bool:
        """Whether the store knows no more of a node than this worker, whose own writes may still be pending."""
        if name not in self.nodes or name in self._unread_in_store:
            return False
        # A node in memory that no worker is known to have recorded lost its slot on the board to another node.
        return self.worker_sync is None or self.worker_sync.is_own(node_id(name)) is True

    def _remember(self, name: bytes, node: PrefixNode) -> None:
        nodes = self.nodes
        nodes[name] = node
        nodes.move_to_end(name)
        if len(nodes) > self.capacity:
            self._unread_in_store.pop(nodes.popitem(last=False)[0], ())
