"""The tree of delegations, as one worker knows it; behind it the store, for what others know."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import field
from functools import partial

import msgspec

from accordion.core.cache import Cache, weigh
from accordion.core.delegation import TOP, Delegation, Evidence, Path
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Clock, Key, Outbox, Store
from accordion.core.values import dataclass, replace

# Seconds until a node that the store did not have is asked for again: it may be another worker's, and appear.
_AGAIN = 1.0
# From the weakest to the strongest: an edge gives way to a stronger one.
_STRENGTH: dict[Evidence, int] = {"none": 0, "argument": 1, "tool": 1, "handoff": 2, "mark": 3, "header": 4}

_VERSIONS = 4_096
"""Of so many tenants it is known when an edge was last found late; of the others, when that of any was."""
_NODE = 1_024
"""Bytes that a delegation takes with its path and its place below its parent."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Delegation).decode


class Refused(Exception):
    """An edge that cannot be: it makes a `circle`, or exceeds the allowed `depth` or `number`."""


def tenant_of(space: bytes) -> str:
    """What a tenant is called in the names of keys; nobody can tell its key from it."""
    return hashlib.sha256(b"lineage" + space).hexdigest()[:24]


def below(node: str) -> str:
    """What the names in the list of edges begin with that lead to the children of a node; their ids follow. No id has a
    space."""
    return f"{node} "


@dataclass(frozen=False, slots=True)
class Nodes:
    """Delegations by tenant and id, within `capacity` bytes in memory.

    `max_depth` is how many may stand below each other, `max_agents` how many in one tree; `retention` in seconds.
    `told` hears by what evidence an edge is known, once for each edge that is kept here.
    """

    store: Store
    outbox: Outbox
    clock: Clock
    max_depth: int = 8
    max_agents: int = 256
    retention: float = 30 * 86_400.0
    capacity: int = 4 * 2**20
    told: Callable[[Evidence], None] | None = None
    _held: OrderedDict[tuple[str, str], tuple[Delegation | None, float]] = field(default_factory=OrderedDict)
    _below: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)
    _paths: dict[tuple[str, str], Path] = field(default_factory=dict)
    _sizes: Cache[tuple[str, str], int] = field(init=False)
    _versions: dict[str, int] = field(default_factory=dict)
    _changes: int = 0
    _others: int = 0
    _seats: Cache[tuple[str, str], str] = field(init=False)
    """The nodes that sessions are."""

    def __post_init__(self) -> None:
        self._sizes = Cache(self.capacity // 8, lambda key, _: weigh(*key))
        self._seats = Cache(self.capacity // 8, lambda key, node: weigh(*key, node))

    def anew(self) -> Nodes:
        """The same that knows nothing yet, to ask the store for all of it."""
        return Nodes(
            self.store, self.outbox, self.clock, self.max_depth, self.max_agents, self.retention, self.capacity
        )

    def version(self, tenant: str) -> int:
        """Grows with each edge of a tenant that is found late: paths that were known are others now."""
        return self._versions.get(tenant, self._others)

    @property
    def known(self) -> bool:
        """Whether any delegation is known here at all."""
        return bool(self._below)

    def named(self, tenant: str, node: str) -> bool:
        """Whether any node that is known here has this one for a parent."""
        return (tenant, node) in self._below

    def get(self, tenant: str, node: str) -> Delegation | None:
        """A node as this worker knows it."""
        return self._held.get((tenant, node), (None, 0.0))[0]

    def path(self, tenant: str, node: str) -> Path:
        """The path of a node, as far as its ancestors are known here. A circle, which two workers might make between
        them, ends where it closes."""
        known = self._paths.get((tenant, node))
        if known is not None:
            return known
        path, above, complete = [node], node, True
        while len(path) <= 2 * self.max_depth:
            held = self.get(tenant, above)
            complete = complete and held is not None
            above = held.parent if held is not None else TOP
            if above == TOP or above in path:
                break
            path.append(above)
        found = tuple(reversed(path))
        if complete:
            if len(self._paths) >= self.capacity // _NODE:
                self._paths.clear()
            self._paths[tenant, node] = found
        return found

    async def load(self, tenant: str, nodes: Iterable[str]) -> None:
        """Brings nodes and their ancestors into memory, where the store has them."""
        wanted = set(nodes)
        for _ in range(2 * self.max_depth):
            if all((tenant, node) in self._paths for node in wanted):
                return
            now = self.clock.monotonic()
            missing = [node for node in wanted if node and self._unknown(tenant, node, now)]
            if missing:
                if not self.store.available:
                    return
                try:
                    values = await self.store.get_many([Key(f"node/{tenant}", node) for node in missing])
                except StoreUnavailable:
                    return
                for node, value in zip(missing, values, strict=True):
                    self._take(tenant, node, decoded(value), now)
            above = {held.parent for node in wanted if (held := self.get(tenant, node)) is not None}
            if above <= wanted | {TOP}:
                return
            wanted |= above

    async def join(self, tenant: str, wanted: Delegation) -> Delegation:
        """The node with what is wanted of it, kept. A known edge gives way to a stronger one only, or to a client's own
        newer word. Raises Refused, with nothing kept."""
        held = self.get(tenant, wanted.id)
        if held is None or held.parent != wanted.parent or (tenant, wanted.id) not in self._paths:
            await self.load(tenant, (wanted.id, wanted.parent))
            held = self.get(tenant, wanted.id)
        joined = _joined(held, wanted)
        if joined == held:
            return held
        if held is None or joined.parent != held.parent:
            await self._check(tenant, joined)
        joined = replace(joined, at=self.clock.now() if held is None else held.at)
        self.keep(tenant, joined)
        return joined

    def keep(self, tenant: str, node: Delegation) -> None:
        """Keeps a node, in place of what was known of it."""
        held = self.get(tenant, node.id)
        self._take(tenant, node.id, node, self.clock.monotonic())
        self.outbox.put(Key(f"node/{tenant}", node.id), partial(_encode, node), self.retention)
        if node.parent != TOP and (held is None or held.parent != node.parent):
            self.outbox.put(Key(f"tree/{tenant}", below(node.parent) + node.id), bytes, self.retention)
            if self.told is not None:
                self.told(node.evidence)

    async def children(self, tenant: str, node: str) -> list[Delegation]:
        """The delegations that work for a node directly, by their ids."""
        ids = set(self._below.get((tenant, node), ()))
        with suppress(StoreUnavailable):
            rows = await self.store.scan(f"tree/{tenant}", prefix=below(node), limit=self.max_agents + 1)
            ids.update(name.rpartition(" ")[2] for name, _ in rows)
        await self.load(tenant, ids)
        found = (self.get(tenant, one) for one in sorted(ids))
        # A node that was given another parent later is still listed with the first.
        return [one for one in found if one is not None and one.parent == node]

    async def tree(self, tenant: str, node: str) -> tuple[Delegation, ...]:
        """The node and all below it, parents first: one more than `max_agents` at most, for who stands above them."""
        await self.load(tenant, (node,))
        found = {node: self.get(tenant, node) or Delegation(node)}
        waiting = [node]
        while waiting and len(found) <= self.max_agents:
            for child in await self.children(tenant, waiting.pop(0)):
                if child.id not in found and len(found) <= self.max_agents:
                    found[child.id] = child
                    waiting.append(child.id)
        return tuple(found.values())

    def sit(self, tenant: str, session_id: str, node: str) -> None:
        """Notes which node a session is."""
        self._seats[tenant, session_id] = node
        self.outbox.put(Key(f"seated/{tenant}", session_id), node.encode, self.retention)

    async def seated(self, tenant: str, session_id: str) -> str | None:
        """The node that a session is; None where none is noted. Raises StoreUnavailable."""
        if (known := self._seats.get((tenant, session_id))) is not None:
            return known
        row = await self.store.get(Key(f"seated/{tenant}", session_id))
        return row.decode() if row is not None else None

    def forget(self) -> None:
        """Asks the store anew for everything: something was erased there."""
        self._held.clear()
        self._seats.clear()
        self._below.clear()
        self._paths.clear()
        self._sizes.clear()

    async def _check(self, tenant: str, joined: Delegation) -> None:
        """Whether a node may have this parent. Raises Refused."""
        above = self.path(tenant, joined.parent) if joined.parent else ()
        if joined.id in above:
            raise Refused("circle")
        # Who was named before it appeared brings along those that named it.
        own = await self.tree(tenant, joined.id) if above or self._below.get((tenant, joined.id)) else (joined,)
        height = max(len(self._within(one, joined.id, own)) for one in own)
        if len(above) - _main(above) + height > self.max_depth:
            raise Refused("depth")
        root, was = above[0] if above else joined.id, self.path(tenant, joined.id)[0]
        if root == was:
            # It was counted there already, as the parent of others if not itself.
            return
        size = self._sizes.get((tenant, root))
        if size is None:
            size = len(await self.tree(tenant, root))
        if size + len(own) > self.max_agents + _main((root,)):
            raise Refused("number")
        self._sizes.discard((tenant, was))
        self._sizes[tenant, root] = size + len(own)

    @staticmethod
    def _within(node: Delegation, root: str, tree: tuple[Delegation, ...]) -> list[str]:
        """The path of a node below and with `root`."""
        parents = {one.id: one.parent for one in tree}
        path = [node.id]
        while path[-1] != root:
            path.append(parents[path[-1]])
        return path

    def _unknown(self, tenant: str, node: str, now: float) -> bool:
        known = self._held.get((tenant, node))
        return known is None or (known[0] is None and now - known[1] >= _AGAIN)

    def _found_late(self, tenant: str) -> None:
        """Counts an edge that was found late. Tenants that are forgotten get a newer version, never an older one."""
        self._changes += 1
        if tenant not in self._versions and len(self._versions) >= _VERSIONS:
            self._versions.clear()
            self._others = self._changes
        self._versions[tenant] = self._changes

    def _take(self, tenant: str, node: str, value: Delegation | None, now: float) -> None:
        known = self.get(tenant, node)
        if known is not None:
            if value is not None and value.parent != known.parent:
                self._below.get((tenant, known.parent), {}).pop(node, None)
                self._paths.clear()
                self._found_late(tenant)
        elif value is not None and value.parent and (tenant, node) in self._below:
            self._found_late(tenant)
        self._held[tenant, node] = value, now
        if value is not None and value.parent:
            self._below.setdefault((tenant, value.parent), {})[node] = None
        while len(self._held) > self.capacity * 3 // 4 // _NODE:
            (owner, gone), (last, _) = self._held.popitem(last=False)
            self._paths.pop((owner, gone), None)
            if last is not None and (below := self._below.get((owner, last.parent))) is not None:
                below.pop(gone, None)
                if not below:
                    del self._below[owner, last.parent]


def _joined(held: Delegation | None, wanted: Delegation) -> Delegation:
    """What is known of a node and what is wanted of it, in one. Nothing that is known is lost."""
    if held is None or held.placeholder:
        return replace(wanted, session=wanted.session or (held.session if held else ""))
    stronger = _STRENGTH[wanted.evidence] - _STRENGTH[held.evidence]
    moved = wanted.parent not in (TOP, held.parent) and (
        held.parent == TOP or stronger > 0 or wanted.evidence == "header"
    )
    return replace(
        held,
        parent=wanted.parent if moved else held.parent,
        evidence=wanted.evidence if moved or (stronger > 0 and held.parent == TOP) else held.evidence,
        agent=wanted.agent or held.agent,
        session=wanted.session or held.session,
        call_id=held.call_id or wanted.call_id,
        candidates=wanted.candidates or held.candidates,
    )


def _main(path: Path) -> int:
    """1 where a path begins with a conversation of its own, which is no delegation and does not count as one."""
    return int(path[0][:2] in ("s:", "m:")) if path else 0


def decoded(value: bytes | None) -> Delegation | None:
    """A node as the store has it; None where it has none, or none that can be read."""
    with suppress(msgspec.MsgspecError):
        return _decode(value) if value else None
    return None
