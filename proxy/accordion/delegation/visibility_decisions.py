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
from typing import NamedTuple

import msgspec

from accordion.delegation.call_owners import CallNamespaces, CallOwners
from accordion.delegation.tree import DelegationTree
from accordion.model.boundaries import CallInHistory, PartPosition
from accordion.model.cache import BoundedCache, string_size
from accordion.model.conversation import Conversation, ToolCall, ToolResult
from accordion.model.delegation import TOP, Path, is_visible
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore, Outbox
from accordion.model.tenant import TenantScope


class HiddenPart(NamedTuple):
    """A hidden result: its position in the client's list, and its delegation's node."""

    message: int
    part: int
    node: str

    @property
    def position(self) -> PartPosition:
        """The position of the result."""
        return self.message, self.part


# The number of the newest chain keys that are looked up in the store.
_MAX_LOOKUPS = 64
_HIDDEN_PART_SIZE = 120
"""Bytes of memory of a hidden result: a tuple of two numbers and a shared name, and its slot in another tuple."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """Hidden results as stored, with one row for each chain key, hence compact.

    `numbers` has three numbers for each result: the distance in messages from the previous one, the part, and the index
    in `nodes`. `viewer` is the node that must not see them.
    """

    nodes: tuple[str, ...]
    numbers: list[int]
    viewer: str = ""


_decode = msgspec.msgpack.Decoder(_Row).decode


class HiddenResults(msgspec.Struct, frozen=True):
    """The results that a viewer does not see.

    `owners` has the delegation of each, by the index of its message and of its part in the client's list.
    `has_late_decisions` says that some are shown or hidden only because they were before: a compaction should then use
    the decisions of `decide(…, recompute=True)`.
    """

    owners: dict[PartPosition, str] = msgspec.field(default_factory=dict)
    has_late_decisions: bool = False

    @property
    def positions(self) -> frozenset[PartPosition]:
        """The positions of the hidden results."""
        return frozenset(self.owners)


NOTHING_HIDDEN = HiddenResults()


class ResultViewer(msgspec.Struct, frozen=True):
    """The agent that a list is filtered for: its node and path, and the namespaces of its calls."""

    tenant: TenantScope
    node: str
    path: Path
    namespaces: CallNamespaces

    def decision_name(self, chain_key: bytes) -> bytes:
        """Returns the name of its decisions for a chain key; chain keys differ between tenants already."""
        return chain_key + self.node.encode()


class _Decision(msgspec.Struct, frozen=True):
    """The decisions up to a message.

    `has_late_decisions`: see HiddenResults; `version` is the tree's version when that was determined.
    """

    hidden_parts: tuple[HiddenPart, ...] = ()
    has_late_decisions: bool = False
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
            self.capacity, lambda name, decision: string_size(name) + _HIDDEN_PART_SIZE * len(decision.hidden_parts)
        )

    async def decide(
        self, viewer: ResultViewer, conversation: Conversation, last_shown_index: int, *, recompute: bool
    ) -> HiddenResults:
        """Returns the results of a list that the viewer does not see.

        Up to the message `last_shown_index`, the viewer has received every result that no decision hides. `recompute`
        decides about the whole list by the present knowledge of the tree.
        """
        index, decision = await self._find_deepest(viewer, conversation)
        still_hidden = (
            await self._filter_invisible(viewer, decision.hidden_parts) if recompute and decision is not None else []
        )
        if recompute:
            index, decision = -1, None
        hidden_parts, has_late = (
            (decision.hidden_parts, decision.has_late_decisions) if decision is not None else ((), False)
        )
        version = self.delegation_tree.version(viewer.tenant)
        if decision is not None and decision.version != version:
            # The tree changed since: a shown result may belong to another agent, and a hidden one may now be visible.
            hidden_positions = {each.position for each in hidden_parts}
            has_late = any(
                each.position not in hidden_positions
                for each in await self._find_hidden(viewer, conversation, 0, index + 1)
            )
            has_late = has_late or len(await self._filter_invisible(viewer, hidden_parts)) < len(hidden_parts)
        hidden_now = await self._find_hidden(viewer, conversation, index + 1, len(conversation.messages))
        if still_hidden:
            # The owner of such a call may have expired, but the decision records that it was another agent.
            positions = {each.position for each in hidden_now}
            hidden_now = sorted([*hidden_now, *(each for each in still_hidden if each.position not in positions)])
        if hidden_now:
            shown_index = last_shown_index if not recompute else -1
            new = tuple(each for each in hidden_now if each.message > shown_index)
            has_late = has_late or len(new) < len(hidden_now)
            hidden_parts += new
        if index < len(conversation.chain) - 1 or decision is None or decision.version != version:
            self._save(viewer, conversation.chain[-1], _Decision(hidden_parts, has_late, version))
        return (
            HiddenResults({each.position: each.node for each in hidden_parts}, has_late)
            if hidden_parts or has_late
            else NOTHING_HIDDEN
        )

    def record_shown(self, viewer: ResultViewer, chain_key: bytes, positions: Collection[PartPosition]) -> None:
        """Records that results were shown after all, because they could not be removed."""
        decision = self._decisions.get(viewer.decision_name(chain_key))
        if decision is not None:
            hidden_parts = tuple(each for each in decision.hidden_parts if each.position not in positions)
            self._save(viewer, chain_key, _Decision(hidden_parts, True, decision.version))

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
                    calls_with_id = calls.get(part.call_id)
                    if calls_with_id is None or calls_with_id[0] != index:
                        calls_with_id = calls[part.call_id] = index, []
                    calls_with_id[1].append(CallInHistory(message.key, number, part))
                elif type(part) is ToolResult and part.call_id:
                    calls_with_id = calls.get(part.call_id)
                    # Calls with the same id in one message get their results in their order.
                    matching_calls = (
                        calls_with_id[1]
                        if calls_with_id is not None
                        else _find_last_call(conversation, start, part.call_id)
                    )
                    if matching_calls:
                        results.append(
                            (index, number, matching_calls.pop(0) if len(matching_calls) > 1 else matching_calls[0])
                        )
        if not results:
            return []
        owners = await self.call_owners.find(viewer.tenant, viewer.namespaces, [call for _, _, call in results])
        foreign = set(owners) - {TOP, *viewer.path}
        if not foreign:
            return []
        parts = [HiddenPart(at, part, node) for (at, part, _), node in zip(results, owners, strict=True)]
        return await self._filter_invisible(viewer, [each for each in parts if each.node in foreign])

    async def _filter_invisible(self, viewer: ResultViewer, hidden_parts: Sequence[HiddenPart]) -> list[HiddenPart]:
        """Returns the results whose delegations the viewer does not see, by present knowledge of the tree."""
        nodes = {each.node for each in hidden_parts}
        await self.delegation_tree.load(viewer.tenant, nodes)
        invisible_nodes = {
            node for node in nodes if not is_visible(self.delegation_tree.path(viewer.tenant, node), viewer.path)
        }
        return [each for each in hidden_parts if each.node in invisible_nodes]

    async def _find_deepest(self, viewer: ResultViewer, conversation: Conversation) -> tuple[int, _Decision | None]:
        """Returns the last index of the list with a decision, and that decision; -1 and None without one."""
        chain = conversation.chain
        for index in range(len(chain) - 1, -1, -1):
            if (decision := self._decisions.get(viewer.decision_name(chain[index]))) is not None:
                return index, decision
        if not (self.store.is_available and any(message.role == "assistant" for message in conversation.messages)):
            return -1, None
        start = max(0, len(chain) - _MAX_LOOKUPS)
        with suppress(StoreUnavailable):
            values = await self.store.get_many([_decision_key(viewer, chain_key) for chain_key in chain[start:]])
            for index in range(len(chain) - 1, start - 1, -1):
                if (value := values[index - start]) is not None:
                    with suppress(msgspec.MsgspecError, LookupError):
                        return index, _Decision(_decode_hidden_parts(value), False, -1)
        return -1, None

    def _save(self, viewer: ResultViewer, chain_key: bytes, decision: _Decision) -> None:
        name = viewer.decision_name(chain_key)
        previous = self._decisions.get(name)
        self._decisions[name] = decision
        if decision.hidden_parts or (previous is not None and previous.hidden_parts):
            packed = partial(_encode_hidden_parts, decision.hidden_parts, viewer.node)
            self.outbox.put(_decision_key(viewer, chain_key), packed, self.retention)


def _encode_hidden_parts(hidden_parts: tuple[HiddenPart, ...], viewer: str) -> bytes:
    nodes = {node: number for number, node in enumerate(dict.fromkeys(each.node for each in hidden_parts))}
    numbers, last = [], 0
    for at, part, node in hidden_parts:
        numbers += [at - last, part, nodes[node]]
        last = at
    return msgspec.msgpack.encode(_Row(tuple(nodes), numbers, viewer))


def read_viewer(value: bytes) -> str:
    """Returns the viewer of a stored decision; empty if it cannot be read."""
    with suppress(msgspec.MsgspecError):
        return _decode(value).viewer
    return ""


def _decode_hidden_parts(value: bytes) -> tuple[HiddenPart, ...]:
    row = _decode(value)
    hidden_parts, at = [], 0
    for index in range(0, len(row.numbers) - 2, 3):
        at += row.numbers[index]
        hidden_parts.append(HiddenPart(at, row.numbers[index + 1], row.nodes[row.numbers[index + 2]]))
    return tuple(hidden_parts)


def _find_last_call(conversation: Conversation, end: int, call_id: str) -> list[CallInHistory]:
    """Returns the last call with this id before a message; empty if there is none."""
    for message in reversed(conversation.messages[:end]):
        for number, part in enumerate(message.parts):
            if isinstance(part, ToolCall) and part.call_id == call_id:
                return [CallInHistory(message.key, number, part)]
    return []


def _decision_key(viewer: ResultViewer, chain_key: bytes) -> Key:
    return Key(
        viewer.tenant.delegation_collection("shown"), hashlib.sha256(viewer.decision_name(chain_key)).hexdigest()
    )
