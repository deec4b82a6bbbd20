"""Decides which results of a shared list each agent may see, once for each result, and stores the decisions.

A provider caches the lists that it received. So a result that was shown stays shown, and a hidden one stays hidden,
whatever is learned about the delegation tree later, until the viewer's history is compacted anyway. Decisions are
stored by the chain key of the client's list, so that a request's cost depends only on its new messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec

from accordion.delegation.call_owners import CallInHistory, CallNamespaces, CallOwners
from accordion.delegation.tree import DelegationTree
from accordion.model.cache import BoundedCache, string_size
from accordion.model.conversation import Conversation, ToolCall, ToolResult
from accordion.model.delegation import TOP, Path, is_visible
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore, Outbox

HiddenPart = tuple[int, int, str]
"""A hidden result: its message's index, its part's index, and its delegation's node."""

# The number of the newest chain keys that are looked up in the store.
_MAX_LOOKUPS = 64
_HIDDEN_PART_SIZE = 120
"""Bytes of memory of a hidden result: a tuple of two numbers and a shared name, and its slot in another tuple."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """Hidden results as stored, with one row for each chain key, hence compact.

    `spots` has three numbers for each result: the distance in messages from the previous one, the part, and the index
    in `nodes`. `viewer` is the node that must not see them.
    """

    nodes: tuple[str, ...]
    spots: list[int]
    viewer: str = ""


_decode = msgspec.msgpack.Decoder(_Row).decode


class HiddenResults(msgspec.Struct, frozen=True):
    """The results that a viewer does not see.

    `owners` has the delegation of each, by the index of its message and of its part in the client's list.
    `has_late_decisions` says that some are shown or hidden only because they were before: a compaction should then use
    the decisions of `decide(…, recompute=True)`.
    """

    owners: dict[tuple[int, int], str] = msgspec.field(default_factory=dict)
    has_late_decisions: bool = False

    @property
    def positions(self) -> frozenset[tuple[int, int]]:
        """The positions of the hidden results."""
        return frozenset(self.owners)


NOTHING_HIDDEN = HiddenResults()


class ResultViewer(msgspec.Struct, frozen=True):
    """The agent that a list is filtered for: its node and path, and the namespaces of its calls."""

    tenant_key: bytes
    tenant: str
    node: str
    path: Path
    namespaces: CallNamespaces

    def decision_name(self, chain_key: bytes) -> bytes:
        """Returns the name of its decisions for a chain key; chain keys differ between tenants already."""
        return chain_key + self.node.encode()


class _Decision(msgspec.Struct, frozen=True):
    """The decisions up to a message. `version` is the tree's version when `late` was determined."""

    spots: tuple[HiddenPart, ...] = ()
    late: bool = False
    version: int = 0


@dataclass(slots=True)
class VisibilityDecisions:
    """The decisions of one worker, within `capacity` bytes; decisions that hide anything are in the store too."""

    store: KeyValueStore
    outbox: Outbox
    delegation_tree: DelegationTree
    call_owners: CallOwners
    capacity: int = 6 * 2**20
    retention: float = 30 * 86_400.0
    _decisions: BoundedCache[bytes, _Decision] = field(init=False)

    def __post_init__(self) -> None:
        self._decisions = BoundedCache(
            self.capacity, lambda name, kept: string_size(name) + _HIDDEN_PART_SIZE * len(kept.spots)
        )

    async def decide(
        self, viewer: ResultViewer, conversation: Conversation, last_shown_index: int, *, recompute: bool
    ) -> HiddenResults:
        """Returns the results of a list that the viewer does not see.

        Up to the message `last_shown_index`, the viewer has received every result that no decision hides. `recompute`
        decides about the whole list by the present knowledge of the tree.
        """
        index, kept = await self._find_deepest(viewer, conversation)
        still = await self._keep_invisible(viewer, kept.spots) if recompute and kept is not None else []
        if recompute:
            index, kept = -1, None
        spots, late = (kept.spots, kept.late) if kept is not None else ((), False)
        version = self.delegation_tree.version(viewer.tenant)
        if kept is not None and kept.version != version:
            # The tree changed since: a shown result may belong to another agent, and a hidden one may now be visible.
            known = {spot[:2] for spot in spots}
            late = any(spot[:2] not in known for spot in await self._find_hidden(viewer, conversation, 0, index + 1))
            late = late or len(await self._keep_invisible(viewer, spots)) < len(spots)
        found = await self._find_hidden(viewer, conversation, index + 1, len(conversation.messages))
        if still:
            # The owner of such a call may have expired, but the decision records that it was another agent.
            places = {spot[:2] for spot in found}
            found = sorted([*found, *(spot for spot in still if spot[:2] not in places)])
        if found:
            behind = last_shown_index if not recompute else -1
            new = tuple(spot for spot in found if spot[0] > behind)
            late = late or len(new) < len(found)
            spots += new
        if index < len(conversation.chain) - 1 or kept is None or kept.version != version:
            self._save(viewer, conversation.chain[-1], _Decision(spots, late, version))
        return HiddenResults({spot[:2]: spot[2] for spot in spots}, late) if spots or late else NOTHING_HIDDEN

    def record_shown(self, viewer: ResultViewer, chain_key: bytes, places: Collection[tuple[int, int]]) -> None:
        """Records that results were shown after all, because they could not be removed."""
        kept = self._decisions.get(viewer.decision_name(chain_key))
        if kept is not None:
            spots = tuple(spot for spot in kept.spots if spot[:2] not in places)
            self._save(viewer, chain_key, _Decision(spots, True, kept.version))

    def forget(self) -> None:
        """Clears the decisions in memory after an erasure, so that the store is read again."""
        self._decisions.clear()

    async def _find_hidden(
        self, viewer: ResultViewer, conversation: Conversation, start: int, end: int
    ) -> list[HiddenPart]:
        """Returns the results from `start` to `end` that the viewer may not see, by present knowledge."""
        calls: dict[str, tuple[int, list[CallInHistory]]] = {}
        results: list[tuple[int, int, CallInHistory]] = []
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
                    # Calls with the same id in one message get their results in their order.
                    made = known[1] if known is not None else _find_last_call(conversation, start, part.call_id)
                    if made:
                        results.append((index, number, made.pop(0) if len(made) > 1 else made[0]))
        if not results:
            return []
        found = await self.call_owners.find(viewer.tenant_key, viewer.namespaces, [call for _, _, call in results])
        foreign = set(found) - {TOP, *viewer.path}
        if not foreign:
            return []
        return await self._keep_invisible(
            viewer, [(at, part, node) for (at, part, _), node in zip(results, found, strict=True) if node in foreign]
        )

    async def _keep_invisible(self, viewer: ResultViewer, spots: Sequence[HiddenPart]) -> list[HiddenPart]:
        """Returns the results whose delegations the viewer does not see, by the tree as known today."""
        nodes = {node for _, _, node in spots}
        await self.delegation_tree.load(viewer.tenant, nodes)
        unseen = {node for node in nodes if not is_visible(self.delegation_tree.path(viewer.tenant, node), viewer.path)}
        return [spot for spot in spots if spot[2] in unseen]

    async def _find_deepest(self, viewer: ResultViewer, conversation: Conversation) -> tuple[int, _Decision | None]:
        """Returns the last index of the list with a decision, and that decision; -1 and None without one."""
        chain = conversation.chain
        for index in range(len(chain) - 1, -1, -1):
            if (kept := self._decisions.get(viewer.decision_name(chain[index]))) is not None:
                return index, kept
        if not (self.store.is_available and any(message.role == "assistant" for message in conversation.messages)):
            return -1, None
        start = max(0, len(chain) - _MAX_LOOKUPS)
        with suppress(StoreUnavailable):
            values = await self.store.get_many([_decision_key(viewer, one) for one in chain[start:]])
            for index in range(len(chain) - 1, start - 1, -1):
                if (value := values[index - start]) is not None:
                    with suppress(msgspec.MsgspecError, LookupError):
                        return index, _Decision(_decode_spots(value), False, -1)
        return -1, None

    def _save(self, viewer: ResultViewer, chain_key: bytes, decision: _Decision) -> None:
        name = viewer.decision_name(chain_key)
        known = self._decisions.get(name)
        self._decisions[name] = decision
        if decision.spots or (known is not None and known.spots):
            packed = partial(_encode_spots, decision.spots, viewer.node)
            self.outbox.put(_decision_key(viewer, chain_key), packed, self.retention)


def _encode_spots(spots: tuple[HiddenPart, ...], viewer: str) -> bytes:
    nodes = {node: number for number, node in enumerate(dict.fromkeys(node for _, _, node in spots))}
    numbers, last = [], 0
    for at, part, node in spots:
        numbers += [at - last, part, nodes[node]]
        last = at
    return msgspec.msgpack.encode(_Row(tuple(nodes), numbers, viewer))


def read_viewer(value: bytes) -> str:
    """Returns the viewer of a stored decision; empty where it cannot be read."""
    with suppress(msgspec.MsgspecError):
        return _decode(value).viewer
    return ""


def _decode_spots(value: bytes) -> tuple[HiddenPart, ...]:
    row = _decode(value)
    found, at = [], 0
    for index in range(0, len(row.spots) - 2, 3):
        at += row.spots[index]
        found.append((at, row.spots[index + 1], row.nodes[row.spots[index + 2]]))
    return tuple(found)


def _find_last_call(conversation: Conversation, end: int, call_id: str) -> list[CallInHistory]:
    """Returns the last call with this id before a message; empty where there is none."""
    for message in reversed(conversation.messages[:end]):
        for number, part in enumerate(message.parts):
            if isinstance(part, ToolCall) and part.call_id == call_id:
                return [(message.key, number, part)]
    return []


def _decision_key(viewer: ResultViewer, chain_key: bytes) -> Key:
    return Key(f"shown/{viewer.tenant}", hashlib.sha256(viewer.decision_name(chain_key)).hexdigest())
