"""The tree of delegations: a cache in one worker's memory over the store that all workers share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec.structs import replace

from accordion.model.cache import BoundedCache, string_size
from accordion.model.delegation import TOP, DelegationNode, Evidence, Path, node_kind
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore, Outbox
from accordion.model.tenant import TenantScope

# Seconds until a node that the store did not have is read again: another worker may have written it since.
_RETRY_SECONDS = 1.0
# From the weakest to the strongest: a stronger edge replaces a weaker one.
_STRENGTH: dict[Evidence, int] = {"none": 0, "argument": 1, "tool": 1, "handoff": 2, "mark": 3, "header": 4}

_VERSIONS = 4_096
"""The number of tenants with a version of their own; the others share one."""
_NODE_SIZE = 1_024
"""Bytes that a node takes in memory, with its path and its entry below its parent."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DelegationNode).decode


class EdgeRefused(Exception):
    """An edge is not allowed: it makes a `circle`, or exceeds the `depth` or the `number` of agents."""


def children_prefix(node: str) -> str:
    """Returns the prefix of the stored edges to a node's children; the child's id follows. No id contains a space."""
    return f"{node} "


@dataclass(slots=True)
class DelegationTree:
    """Delegations by tenant and id, within `capacity` bytes in memory.

    `max_depth` and `max_agents` limit one tree; `retention` is in seconds. `on_new_edge` is called with the evidence of
    each edge that this worker records.
    """

    store: KeyValueStore
    outbox: Outbox
    clock: Clock
    max_depth: int = 8
    max_agents: int = 256
    retention: float = 30 * 86_400.0
    capacity: int = 4 * 2**20
    on_new_edge: Callable[[Evidence], None] | None = None
    _nodes: OrderedDict[tuple[TenantScope, str], tuple[DelegationNode | None, float]] = field(
        default_factory=OrderedDict
    )
    _children: dict[tuple[TenantScope, str], dict[str, None]] = field(default_factory=dict)
    _paths: dict[tuple[TenantScope, str], Path] = field(default_factory=dict)
    _sizes: BoundedCache[tuple[TenantScope, str], int] = field(init=False)
    _versions: dict[TenantScope, int] = field(default_factory=dict)
    _changes: int = 0
    """How many edges were found late, of all tenants."""
    _default_version: int = 0
    """The version of tenants without one of their own."""
    _session_nodes: BoundedCache[tuple[TenantScope, str], str] = field(init=False)
    """The node of each session."""

    def __post_init__(self) -> None:
        self._sizes = BoundedCache(self.capacity // 8, lambda key, _: string_size(key[1]))
        self._session_nodes = BoundedCache(self.capacity // 8, lambda key, node: string_size(key[1], node))

    def without_cache(self) -> DelegationTree:
        """Returns a tree with an empty cache, which reads everything from the store."""
        return DelegationTree(
            self.store, self.outbox, self.clock, self.max_depth, self.max_agents, self.retention, self.capacity
        )

    def version(self, tenant: TenantScope) -> int:
        """Returns a number that grows with each edge that is found late, since such an edge changes known paths."""
        return self._versions.get(tenant, self._default_version)

    @property
    def has_delegations(self) -> bool:
        """Whether this worker knows any delegation."""
        return bool(self._children)

    def has_children(self, tenant: TenantScope, node: str) -> bool:
        """Whether a node has children in this worker's memory."""
        return (tenant, node) in self._children

    def get(self, tenant: TenantScope, node: str) -> DelegationNode | None:
        """Returns a node from memory."""
        return self._nodes.get((tenant, node), (None, 0.0))[0]

    def path(self, tenant: TenantScope, node: str) -> Path:
        """Returns the path of a node, as far as its ancestors are in memory.

        A circle, which two workers may make together, ends where it closes.
        """
        cached = self._paths.get((tenant, node))
        if cached is not None:
            return cached
        ids, ancestor, is_complete = [node], node, True
        while len(ids) <= 2 * self.max_depth:
            value = self.get(tenant, ancestor)
            is_complete = is_complete and value is not None
            ancestor = value.parent if value is not None else TOP
            if ancestor == TOP or ancestor in ids:
                break
            ids.append(ancestor)
        path = tuple(reversed(ids))
        if is_complete:
            if len(self._paths) >= self.capacity // _NODE_SIZE:
                self._paths.clear()
            self._paths[tenant, node] = path
        return path

    async def load(self, tenant: TenantScope, nodes: Iterable[str]) -> None:
        """Loads nodes and their ancestors from the store into memory."""
        ids = set(nodes)
        for _ in range(2 * self.max_depth):
            if all((tenant, node) in self._paths for node in ids):
                return
            now = self.clock.monotonic()
            missing = [node for node in ids if node and self._needs_loading(tenant, node, now)]
            if missing:
                if not self.store.is_available:
                    return
                try:
                    values = await self.store.get_many(
                        [Key(tenant.delegation_collection("node"), node) for node in missing]
                    )
                except StoreUnavailable:
                    return
                for node, value in zip(missing, values, strict=True):
                    self._cache_node(tenant, node, decode_node(value), now)
            parents = {cached.parent for node in ids if (cached := self.get(tenant, node)) is not None}
            if parents <= ids | {TOP}:
                return
            ids |= parents

    async def join(self, tenant: TenantScope, node: DelegationNode) -> DelegationNode:
        """Merges a node into the tree, and returns the result.

        Only a stronger edge, or a newer declaration of the client, replaces a known edge. Raises EdgeRefused; then
        nothing is changed.
        """
        existing = self.get(tenant, node.id)
        if existing is None or existing.parent != node.parent or (tenant, node.id) not in self._paths:
            await self.load(tenant, (node.id, node.parent))
            existing = self.get(tenant, node.id)
        merged = _merge(existing, node)
        if merged == existing:
            return existing
        if existing is None or merged.parent != existing.parent:
            await self._check_edge(tenant, merged)
        merged = replace(merged, at=self.clock.now() if existing is None else existing.at)
        self.save(tenant, merged)
        return merged

    def save(self, tenant: TenantScope, node: DelegationNode) -> None:
        """Writes a node to memory and to the store."""
        previous = self.get(tenant, node.id)
        self._cache_node(tenant, node.id, node, self.clock.monotonic())
        self.outbox.put(Key(tenant.delegation_collection("node"), node.id), partial(_encode, node), self.retention)
        if node.parent != TOP and (previous is None or previous.parent != node.parent):
            self.outbox.put(
                Key(tenant.delegation_collection("tree"), children_prefix(node.parent) + node.id),
                bytes,
                self.retention,
            )
            if self.on_new_edge is not None:
                self.on_new_edge(node.evidence)

    async def load_children(self, tenant: TenantScope, node: str) -> list[DelegationNode]:
        """Returns the direct children of a node, ordered by id."""
        ids = set(self._children.get((tenant, node), ()))
        with suppress(StoreUnavailable):
            rows = await self.store.scan(
                tenant.delegation_collection("tree"), prefix=children_prefix(node), limit=self.max_agents + 1
            )
            ids.update(name.rpartition(" ")[2] for name, _ in rows)
        await self.load(tenant, ids)
        children = (self.get(tenant, child_id) for child_id in sorted(ids))
        # A node whose parent changed is still listed below the old one.
        return [child for child in children if child is not None and child.parent == node]

    async def load_tree(self, tenant: TenantScope, node: str) -> tuple[DelegationNode, ...]:
        """Returns a node and its descendants, parents first: at most `max_agents` below the main agent."""
        await self.load(tenant, (node,))
        nodes = {node: self.get(tenant, node) or DelegationNode(node)}
        queue = [node]
        while queue and len(nodes) <= self.max_agents:
            for child in await self.load_children(tenant, queue.pop(0)):
                if child.id not in nodes and len(nodes) <= self.max_agents:
                    nodes[child.id] = child
                    queue.append(child.id)
        return tuple(nodes.values())

    def record_session(self, tenant: TenantScope, session_id: str, node: str) -> None:
        """Records the node of a session."""
        self._session_nodes[tenant, session_id] = node
        self.outbox.put(Key(tenant.delegation_collection("seated"), session_id), node.encode, self.retention)

    async def find_session_node(self, tenant: TenantScope, session_id: str) -> str | None:
        """Returns the node of a session; None if none is recorded. Raises StoreUnavailable."""
        if (node := self._session_nodes.get((tenant, session_id))) is not None:
            return node
        value = await self.store.get(Key(tenant.delegation_collection("seated"), session_id))
        return value.decode() if value is not None else None

    def forget(self) -> None:
        """Clears the cache after an erasure, so that everything is read from the store again."""
        self._nodes.clear()
        self._session_nodes.clear()
        self._children.clear()
        self._paths.clear()
        self._sizes.clear()

    async def _check_edge(self, tenant: TenantScope, node: DelegationNode) -> None:
        """Checks that a node may have its parent. Raises EdgeRefused."""
        ancestors = self.path(tenant, node.parent) if node.parent else ()
        if node.id in ancestors:
            raise EdgeRefused("circle")
        # A node that others named as their parent before it appeared brings its descendants along.
        is_leaf = not (ancestors or self._children.get((tenant, node.id)))
        subtree = (node,) if is_leaf else await self.load_tree(tenant, node.id)
        height = max(len(self._path_below_root(descendant, node.id, subtree)) for descendant in subtree)
        if len(ancestors) - _main_agent_depth(ancestors) + height > self.max_depth:
            raise EdgeRefused("depth")
        root, old_root = ancestors[0] if ancestors else node.id, self.path(tenant, node.id)[0]
        if root == old_root:
            # The node counts in this tree already.
            return
        size = self._sizes.get((tenant, root))
        if size is None:
            size = len(await self.load_tree(tenant, root))
        if size + len(subtree) > self.max_agents + _main_agent_depth((root,)):
            raise EdgeRefused("number")
        self._sizes.pop((tenant, old_root))
        self._sizes[tenant, root] = size + len(subtree)

    @staticmethod
    def _path_below_root(node: DelegationNode, root: str, tree: tuple[DelegationNode, ...]) -> list[str]:
        """Returns the ids from a node up to `root`, both included."""
        parents = {each.id: each.parent for each in tree}
        path = [node.id]
        while path[-1] != root:
            path.append(parents[path[-1]])
        return path

    def _needs_loading(self, tenant: TenantScope, node: str, now: float) -> bool:
        entry = self._nodes.get((tenant, node))
        return entry is None or (entry[0] is None and now - entry[1] >= _RETRY_SECONDS)

    def _increase_version(self, tenant: TenantScope) -> None:
        """Counts an edge that was found late. A tenant that loses its own version gets a newer one, never an older."""
        self._changes += 1
        if tenant not in self._versions and len(self._versions) >= _VERSIONS:
            self._versions.clear()
            self._default_version = self._changes
        self._versions[tenant] = self._changes

    def _cache_node(self, tenant: TenantScope, node: str, value: DelegationNode | None, now: float) -> None:
        cached = self.get(tenant, node)
        if cached is not None:
            if value is not None and value.parent != cached.parent:
                self._children.get((tenant, cached.parent), {}).pop(node, None)
                self._paths.clear()
                self._increase_version(tenant)
        elif value is not None and value.parent and (tenant, node) in self._children:
            self._increase_version(tenant)
        self._nodes[tenant, node] = value, now
        if value is not None and value.parent:
            self._children.setdefault((tenant, value.parent), {})[node] = None
        while len(self._nodes) > self.capacity * 3 // 4 // _NODE_SIZE:
            (owner, removed_id), (removed, _) = self._nodes.popitem(last=False)
            self._paths.pop((owner, removed_id), None)
            if removed is not None and (siblings := self._children.get((owner, removed.parent))) is not None:
                siblings.pop(removed_id, None)
                if not siblings:
                    del self._children[owner, removed.parent]


def _merge(known_node: DelegationNode | None, new_node: DelegationNode) -> DelegationNode:
    """Merges a new node into the known one, whose content is not lost."""
    if known_node is None or known_node.is_placeholder:
        return replace(new_node, session=new_node.session or (known_node.session if known_node else ""))
    strength_difference = _STRENGTH[new_node.evidence] - _STRENGTH[known_node.evidence]
    takes_parent = new_node.parent not in (TOP, known_node.parent) and (
        known_node.parent == TOP or strength_difference > 0 or new_node.evidence == "header"
    )
    takes_evidence = takes_parent or (strength_difference > 0 and known_node.parent == TOP)
    return replace(
        known_node,
        parent=new_node.parent if takes_parent else known_node.parent,
        evidence=new_node.evidence if takes_evidence else known_node.evidence,
        agent=new_node.agent or known_node.agent,
        session=new_node.session or known_node.session,
        call_id=known_node.call_id or new_node.call_id,
        candidates=new_node.candidates or known_node.candidates,
    )


def _main_agent_depth(path: Path) -> int:
    """Returns 1 if a path begins with a main agent's conversation, which does not count as a delegation; else 0."""
    return int(node_kind(path[0]) in ("session", "metadata")) if path else 0


def decode_node(value: bytes | None) -> DelegationNode | None:
    """Decodes a stored node; None if there is none, or none that can be decoded."""
    with suppress(msgspec.MsgspecError):
        return _decode(value) if value else None
    return None
