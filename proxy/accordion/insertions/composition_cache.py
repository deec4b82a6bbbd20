"""Composes a history with our tool and its insertions, at the cost of the messages since the last request.

Insertions are sent the same way every time, so that each forwarded history begins with the one sent before it. A
compaction is planned without them: it drops the insertions after messages that it covers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from accordion.insertions.placement import InsertionPlacement, PlacedPrefix, ReadMessageFunction
from accordion.model.cache import BoundedCache
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Conversation, Message
from accordion.model.insertions import Insertion, RecallInsertion, ToolRoundInsertion
from accordion.protocols.base import WireProtocol
from accordion.protocols.tool_loop import ArtifactToolProtocol, ToolDefinition

_MESSAGE_OVERHEAD = 400
"""Bytes of memory per message beside its text."""


class _OfferedTool(msgspec.Struct, frozen=True):
    """The effect of offering our tool in an envelope: changed fields, the tool as it is counted, and the key of both.

    `fields` is empty if the tool cannot be offered.
    """

    envelope: Mapping[str, bytes]
    tool: ToolDefinition
    fields: Mapping[str, bytes]
    tools: tuple[str, ...]
    key: bytes


class _CachedComposition(msgspec.Struct, frozen=True):
    scalar_fields: Mapping[str, bytes]
    prefix: PlacedPrefix
    size: int


class CompositionCache:
    """Composes histories, and caches their stable prefixes within `capacity` bytes. The result is the same as without
    the cache."""

    def __init__(self, capacity: int = 16 * 2**20) -> None:
        self._offers = BoundedCache[tuple[str, str, bytes], _OfferedTool](capacity // 4)
        self._compositions = BoundedCache[str, _CachedComposition](capacity * 3 // 4)

    @property
    def size(self) -> int:
        """Estimated bytes of the cached histories."""
        return self._compositions.size

    def compose(
        self,
        protocol: WireProtocol,
        tool_protocol: ArtifactToolProtocol,
        history: CompactedConversation,
        insertions: Sequence[Insertion],
        tool: ToolDefinition | None,
        read_message: ReadMessageFunction,
    ) -> CompactedConversation:
        """Returns the history with the tool offered, if that is possible, and with the insertions after the compaction
        in place. `read_message` parses written JSON.

        `insertions` are in the order of InsertionStore.find. One that does not fit the client's history, or that would
        make it illegal, is left out. Tool rounds contain calls, so they are left out if the request has no tools at
        all. The result has its own chain keys; inserted messages have the origin INSERTED.
        """
        conversation = history.conversation
        offer = self._find_offer(protocol, tool_protocol, conversation, tool) if tool is not None else None
        if (
            offer is None
            and any(isinstance(each, ToolRoundInsertion) for each in insertions)
            and not tool_protocol.tool_names(conversation.envelope)
        ):
            insertions = [each for each in insertions if isinstance(each, RecallInsertion)] + without_read_backs(
                tool_protocol, insertions
            )
        if insertions:
            placement = InsertionPlacement(protocol, tool_protocol, history, read_message)
            history = self._place_insertions(placement, history, tuple(insertions))
        if offer is None:
            return history
        return CompactedConversation(
            _with_tool(history.conversation, offer), history.origins, history.compaction, history.spans
        )

    def offer_tool(
        self,
        protocol: WireProtocol,
        tool_protocol: ArtifactToolProtocol,
        conversation: Conversation,
        tool: ToolDefinition,
    ) -> Conversation:
        """Returns the conversation with the tool added; the same one if it cannot be offered."""
        offer = self._find_offer(protocol, tool_protocol, conversation, tool)
        return _with_tool(conversation, offer) if offer is not None else conversation

    def _find_offer(
        self,
        protocol: WireProtocol,
        tool_protocol: ArtifactToolProtocol,
        conversation: Conversation,
        tool: ToolDefinition,
    ) -> _OfferedTool | None:
        key = protocol.name, tool.name, conversation.overhead_key
        offer = self._offers.get(key)
        if offer is None or offer.envelope != conversation.envelope or offer.tool != tool:
            offer = _build_offer(protocol, tool_protocol, conversation, tool)
            texts = (*offer.envelope.values(), *offer.fields.values(), *offer.tools)
            self._offers.put(key, offer, _MESSAGE_OVERHEAD + sum(map(len, texts)))
        return offer if offer.fields else None

    def _place_insertions(
        self, placement: InsertionPlacement, history: CompactedConversation, insertions: tuple[Insertion, ...]
    ) -> CompactedConversation:
        name = history.compaction.id if history.compaction is not None else history.conversation.chain[0].hex()
        cached, scalar_fields = self._compositions.get(name), _scalar_fields(history.conversation.envelope)
        prefix = None
        if (
            cached is not None
            and cached.scalar_fields == scalar_fields
            and placement.is_prefix_valid(cached.prefix, insertions)
        ):
            prefix = cached.prefix
        placed_history = placement.place_legal(insertions, prefix)
        if (stable_prefix := placement.stable_prefix) is not None:
            if cached is not None and prefix is not None:
                # An insertion after the prefix's last message may have been merged into that message.
                last = max(0, len(prefix.messages) - 1)
                size = cached.size - _memory_size(prefix.messages[last:]) + _memory_size(stable_prefix.messages[last:])
            else:
                size = _memory_size(stable_prefix.messages)
            self._compositions.put(name, _CachedComposition(scalar_fields, stable_prefix, size), size)
        return placed_history


def compose_once(
    protocol: WireProtocol,
    tool_protocol: ArtifactToolProtocol,
    history: CompactedConversation,
    insertions: Sequence[Insertion],
    tool: ToolDefinition | None,
    read_message: ReadMessageFunction,
) -> CompactedConversation:
    """Composes a history with a new, empty cache."""
    return CompositionCache().compose(protocol, tool_protocol, history, insertions, tool, read_message)


def without_read_backs(tool_protocol: ArtifactToolProtocol, insertions: Sequence[Insertion]) -> list[Insertion]:
    """Returns the parts of tool rounds that are needed even if read-backs and recalls are left out.

    Without them, the client's part of such a reply may not be legal.
    """
    remaining = (tool_protocol.without_own_calls(each) for each in insertions if isinstance(each, ToolRoundInsertion))
    return [each for each in remaining if each is not None]


def _build_offer(
    protocol: WireProtocol, tool_protocol: ArtifactToolProtocol, conversation: Conversation, tool: ToolDefinition
) -> _OfferedTool:
    fields = tool_protocol.offer(conversation.envelope, tool)
    if fields is None:
        return _OfferedTool(conversation.envelope, tool, {}, (), b"")
    key = conversation.overhead_key
    if key:
        key = hashlib.sha256(key + repr(tool).encode()).digest()
    return _OfferedTool(
        conversation.envelope, tool, fields, protocol.read_tools(tool_protocol.offer({}, tool) or fields), key
    )


def _with_tool(conversation: Conversation, offer: _OfferedTool) -> Conversation:
    return replace(
        conversation,
        envelope={**conversation.envelope, **offer.fields},
        # The client's own tools are parsed already.
        tools=conversation.tools + offer.tools,
        overhead_key=offer.key,
    )


def _memory_size(messages: Sequence[Message]) -> int:
    """Estimates the bytes of messages in memory."""
    return sum(message.size for message in messages)


def _scalar_fields(envelope: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the fields that are no text, list or object: the written form of a reply may depend on them."""
    return {name: value for name, value in envelope.items() if value[:1] not in (b'"', b"[", b"{")}
