"""What each viewer of a shared list was shown: decided once for each result, and kept.

A provider caches what it saw. So a result that was shown stays shown, and a hidden one hidden, whatever is learnt of
the tree later, until the viewer's history is folded anyway. Decisions are kept for each place of the client's own list,
so that a request's costs are those of its new messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial

import msgspec

from accordion.core.cache import Cache, weigh
from accordion.core.conversation import Conversation, ToolCall, ToolResult
from accordion.core.delegation import TOP, Path, visible
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Outbox, Store
from accordion.core.values import dataclass
from accordion.identity.nodes import Nodes
from accordion.identity.scopes import Namespaces, Scopes, Standing

Spot = tuple[int, int, str]
"""A hidden result: the index of its message, that of its part, and the delegation that it belongs to."""

# How many of the newest places are asked for in the store.
_LOOK = 64
_SPOT = 120
"""Bytes of memory that a hidden result takes: a tuple of two numbers and a shared name, and its place in another."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """Hidden results as the store has them, one row for each place: hence few bytes. `spots` has three numbers for
    each: how many messages behind the last one, the part, and the index in `nodes`. `viewer` is whom they are hidden
    from."""

    nodes: tuple[str, ...]
    spots: list[int]
    viewer: str = ""


_decode = msgspec.msgpack.Decoder(_Row).decode


@dataclass(frozen=True, slots=True)
class Hidden:
    """The results that a viewer does not see. `scopes` tells whose each is, by the index of its message and of its part
    in the client's list.

    `late` says that some are shown, or hidden, only because they were before: a fold should be made of what
    `hidden(…, anew=True)` leaves.
    """

    scopes: dict[tuple[int, int], str] = field(default_factory=dict)
    late: bool = False

    @property
    def places(self) -> frozenset[tuple[int, int]]:
        """Where the hidden results stand."""
        return frozenset(self.scopes)


NOTHING = Hidden()


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks: by its node and its path, and where calls are looked for."""

    space: bytes
    tenant: str
    node: str
    path: Path
    names: Namespaces

    def name(self, chain_key: bytes) -> bytes:
        """What its decisions at a place are kept under; chain keys are the tenant's own already."""
        return chain_key + self.node.encode()


class _Kept(msgspec.Struct, frozen=True):
    """What was decided up to a place. `version` is that of the tree when `late` was told."""

    spots: tuple[Spot, ...] = ()
    late: bool = False
    version: int = 0


@dataclass(frozen=False, slots=True)
class Shown:
    """The decisions of one worker, within `capacity` bytes; behind them the store, where anything was hidden."""

    store: Store
    outbox: Outbox
    nodes: Nodes
    scopes: Scopes
    capacity: int = 6 * 2**20
    retention: float = 30 * 86_400.0
    _kept: Cache[bytes, _Kept] = field(init=False)

    def __post_init__(self) -> None:
        self._kept = Cache(self.capacity, lambda name, kept: weigh(name) + _SPOT * len(kept.spots))

    async def decide(self, viewer: Viewer, conversation: Conversation, shown: int, *, anew: bool) -> Hidden:
        """What of a list the viewer does not see. Up to the index `shown` it was shown all that no decision hides.
        `anew` decides all of it by what is known today."""
        index, kept = await self._deepest(viewer, conversation)
        still = await self._unseen(viewer, kept.spots) if anew and kept is not None else []
        if anew:
            index, kept = -1, None
        spots, late = (kept.spots, kept.late) if kept is not None else ((), False)
        version = self.nodes.version(viewer.tenant)
        if kept is not None and kept.version != version:
            # An edge was found since: what was shown may be somebody else's, and what was hidden the viewer's to see.
            known = {spot[:2] for spot in spots}
            late = any(spot[:2] not in known for spot in await self._hide(viewer, conversation, 0, index + 1))
            late = late or len(await self._unseen(viewer, spots)) < len(spots)
        found = await self._hide(viewer, conversation, index + 1, len(conversation.messages))
        if still:
            # Whose it was may be forgotten by now; that it was another's is on record.
            places = {spot[:2] for spot in found}
            found = sorted([*found, *(spot for spot in still if spot[:2] not in places)])
        if found:
            behind = shown if not anew else -1
            new = tuple(spot for spot in found if spot[0] > behind)
            late = late or len(new) < len(found)
            spots += new
        if index < len(conversation.chain) - 1 or kept is None or kept.version != version:
            self._keep(viewer, conversation.chain[-1], _Kept(spots, late, version))
        return Hidden({spot[:2]: spot[2] for spot in spots}, late) if spots or late else NOTHING

    def showed(self, viewer: Viewer, chain_key: bytes, places: Collection[tuple[int, int]]) -> None:
        """Results that were to be hidden at a place had to stay: they were shown."""
        kept = self._kept.get(viewer.name(chain_key))
        if kept is not None:
            spots = tuple(spot for spot in kept.spots if spot[:2] not in places)
            self._keep(viewer, chain_key, _Kept(spots, True, kept.version))

    def forget(self) -> None:
        """Asks the store anew for everything: something was erased there."""
        self._kept.clear()

    async def _hide(self, viewer: Viewer, conversation: Conversation, start: int, end: int) -> list[Spot]:
        """The results between two messages that are not for this viewer, by what is known today."""
        calls: dict[str, tuple[int, list[Standing]]] = {}
        results: list[tuple[int, int, Standing]] = []
        messages = conversation.messages
        for index in range(start, end):
            message = messages[index]
            for number, part in enumerate(message.parts):
                if type(part) is ToolCall:
                    known = calls.get(part.call_id)
                    if known is None or known[0] != index:
                        known = calls[part.call_id] = index, []
                    known[1].append((message.key, number, part))
                elif type(part) is ToolResult and part.call_id:
                    known = calls.get(part.call_id)
                    # Calls of one id that were made at once are answered in their order.
                    made = known[1] if known is not None else _before(conversation, start, part.call_id)
                    if made:
                        results.append((index, number, made.pop(0) if len(made) > 1 else made[0]))
        if not results:
            return []
        found = await self.scopes.find(viewer.space, viewer.names, [call for _, _, call in results])
        foreign = set(found) - {TOP, *viewer.path}
        if not foreign:
            return []
        return await self._unseen(
            viewer, [(at, part, node) for (at, part, _), node in zip(results, found, strict=True) if node in foreign]
        )

    async def _unseen(self, viewer: Viewer, spots: Sequence[Spot]) -> list[Spot]:
        """Those of some results whose delegations the viewer does not see, by what is known of the tree today."""
        nodes = {node for _, _, node in spots}
        await self.nodes.load(viewer.tenant, nodes)
        unseen = {node for node in nodes if not visible(self.nodes.path(viewer.tenant, node), viewer.path)}
        return [spot for spot in spots if spot[2] in unseen]

    async def _deepest(self, viewer: Viewer, conversation: Conversation) -> tuple[int, _Kept | None]:
        """The deepest place of the list that was decided about, and what was."""
        chain = conversation.chain
        for index in range(len(chain) - 1, -1, -1):
            if (kept := self._kept.get(viewer.name(chain[index]))) is not None:
                return index, kept
        if not (self.store.available and any(message.role == "assistant" for message in conversation.messages)):
            return -1, None
        start = max(0, len(chain) - _LOOK)
        with suppress(StoreUnavailable):
            values = await self.store.get_many([_key(viewer, one) for one in chain[start:]])
            for index in range(len(chain) - 1, start - 1, -1):
                if (value := values[index - start]) is not None:
                    with suppress(msgspec.MsgspecError, LookupError):
                        return index, _Kept(_unpacked(value), False, -1)
        return -1, None

    def _keep(self, viewer: Viewer, chain_key: bytes, kept: _Kept) -> None:
        name = viewer.name(chain_key)
        known = self._kept.get(name)
        self._kept[name] = kept
        if kept.spots or (known is not None and known.spots):
            packed = partial(_packed, kept.spots, viewer.node)
            self.outbox.put(_key(viewer, chain_key), packed, self.retention)


def _packed(spots: tuple[Spot, ...], viewer: str) -> bytes:
    nodes = {node: number for number, node in enumerate(dict.fromkeys(node for _, _, node in spots))}
    numbers, last = [], 0
    for at, part, node in spots:
        numbers += [at - last, part, nodes[node]]
        last = at
    return msgspec.msgpack.encode(_Row(tuple(nodes), numbers, viewer))


def viewer_of(value: bytes) -> str:
    """Whom a kept decision is of; empty where it cannot be read."""
    with suppress(msgspec.MsgspecError):
        return _decode(value).viewer
    return ""


def _unpacked(value: bytes) -> tuple[Spot, ...]:
    row = _decode(value)
    found, at = [], 0
    for index in range(0, len(row.spots) - 2, 3):
        at += row.spots[index]
        found.append((at, row.spots[index + 1], row.nodes[row.spots[index + 2]]))
    return tuple(found)


def _before(conversation: Conversation, end: int, call_id: str) -> list[Standing]:
    """The last call with this id before a message; empty where there is none."""
    for message in reversed(conversation.messages[:end]):
        for number, part in enumerate(message.parts):
            if isinstance(part, ToolCall) and part.call_id == call_id:
                return [(message.key, number, part)]
    return []


def _key(viewer: Viewer, chain_key: bytes) -> Key:
    return Key(f"shown/{viewer.tenant}", hashlib.sha256(viewer.name(chain_key)).hexdigest())
