"""Composes the forwarded history: compacted messages, our tool, earlier insertions.

Theory of operation. An insertion is something that the proxy sends and the client does not know of: tool rounds in
which the model read from the archive, excerpts recalled from it, and memories. Each is anchored at the chain key of a
client message. `store.py` finds those on a request's chain. `placement.py` puts them into the history after their
anchors, byte for byte as they were sent first. `composition_cache.py` limits the cost to a conversation's new messages.
The composed history is only measured and sent. Compactions are planned on the history without insertions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from accordion.insertions.composition_cache import CompositionCache, without_read_backs
from accordion.insertions.differences import drop_bound_thinking
from accordion.insertions.store import InsertionStore
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Conversation
from accordion.model.insertions import Insertion
from accordion.model.tenant import ConversationRef, TenantScope
from accordion.protocols.base import WireProtocol
from accordion.protocols.tool_loop import ArtifactToolProtocol, ToolDefinition
from accordion.protocols.written_messages import WrittenMessageReader

_log = logging.getLogger("accordion")


class PreviousInsertions(msgspec.Struct, frozen=True):
    """The insertions that the request before had, and those that its response brought: their digest (see
    InsertionStore.digest), the number of the client's messages of that request, and of those that were covered."""

    digest: bytes
    message_count: int
    covered_count: int


class InsertionComposer(msgspec.Struct, frozen=True):
    """Puts stored insertions into histories, and offers our tool if the archive has something to read.

    `tool_protocols` are by protocol name. `define_tool` returns our tool under a name that is not among the given ones;
    it is None if reading from the archive is off. Earlier insertions are sent in either case.
    """

    insertion_store: InsertionStore
    tool_protocols: Mapping[str, ArtifactToolProtocol]
    message_reader: WrittenMessageReader
    define_tool: Callable[[frozenset[str]], ToolDefinition] | None = None
    composition_cache: CompositionCache = msgspec.field(default_factory=CompositionCache)

    def drop_bound_thinking(
        self,
        protocol: WireProtocol,
        tenant: TenantScope,
        history_with_insertions: CompactedConversation,
        history_before: CompactedConversation,
    ) -> CompactedConversation:
        """Removes the thinking that is bound to the prefix that `history_before` had; see `differences.py`."""
        read_message = self.message_reader.reader_for(protocol, tenant)
        return drop_bound_thinking(protocol, history_with_insertions, history_before, read_message)

    def offer_tool(self, protocol: WireProtocol, conversation: Conversation) -> Conversation:
        """Returns the conversation with our tool offered, even if there is nothing to read yet. Never raises: returns
        the same conversation if the tool cannot be offered."""
        tool_protocol = self.tool_protocols.get(protocol.name)
        try:
            tool = self._define_tool(tool_protocol, conversation) if tool_protocol is not None else None
            if tool_protocol is None or tool is None:
                return conversation
            return self.composition_cache.offer_tool(protocol, tool_protocol, conversation, tool)
        except Exception:
            _log.exception("the read_artifact tool could not be added to a request")
            return conversation

    async def compose(
        self,
        protocol: WireProtocol,
        ref: ConversationRef,
        original: Conversation,
        history: CompactedConversation,
        *,
        check_store: bool,
        previous: PreviousInsertions | None = None,
        with_insertions: bool = True,
        has_shared_artifacts: bool = False,
    ) -> tuple[CompactedConversation, str]:
        """Returns the history as it is forwarded, and the name of our tool, empty if it is not offered.

        `original` is the conversation as the client sent it. `check_store`: other workers may know more, unless this
        worker knows what `previous` says that the request before had.
        `with_insertions`: whether read-backs and recalls are put in. `has_shared_artifacts`: whether there are
        artifacts to read beside those of compactions. Never raises: returns `history` after an error.
        """
        compaction, tool_protocol = history.compaction, self.tool_protocols.get(protocol.name)
        if tool_protocol is None or original.previous is not None:
            return history, ""
        try:
            since = history.covered_count
            has_artifacts = has_shared_artifacts or (compaction is not None and bool(compaction.artifacts))
            if check_store and previous is not None and previous.covered_count == since:
                chain = original.chain[: previous.message_count]
                check_store = self.insertion_store.digest(ref, chain, since) != previous.digest
            insertions: Sequence[Insertion] = await self.insertion_store.find(
                ref, original.chain, since, check_store=check_store
            )
            if not with_insertions:
                insertions = without_read_backs(tool_protocol, insertions)
            tool = self._define_tool(tool_protocol, original) if has_artifacts else None
            composed = self.composition_cache.compose(
                protocol, tool_protocol, history, insertions, tool, self.message_reader.reader_for(protocol, ref.tenant)
            )
        except Exception:
            _log.exception("earlier insertions could not be put into a request")
            return history, ""
        is_offered = composed.conversation.tools is not history.conversation.tools
        return composed, tool.name if tool is not None and is_offered else ""

    async def remove_orphan_reasoning(
        self, protocol: WireProtocol, ref: ConversationRef, history: CompactedConversation
    ) -> CompactedConversation:
        """Returns an uncompacted history without reasoning that led only to calls of our tool: providers refuse it
        without these calls. Never raises: returns `history` if there is none, or after an error."""
        client, tool_protocol = history.conversation, self.tool_protocols.get(protocol.name)
        if (
            tool_protocol is None
            or client.previous is not None
            or not tool_protocol.may_have_stranded_reasoning(client.messages)
        ):
            return history
        try:
            await self.insertion_store.load(ref, client.chain)
            stored = await self.insertion_store.find(ref, client.chain, 0, check_store=False)
            insertions = without_read_backs(tool_protocol, stored)
            composed = self.composition_cache.compose(
                protocol, tool_protocol, history, insertions, None, self.message_reader.reader_for(protocol, ref.tenant)
            )
        except Exception:
            _log.exception("reasoning that only led to a read-back could not be removed")
            return history
        # If nothing had to be removed, the client's own bytes are sent.
        return composed if len(composed.conversation.messages) < len(client.messages) else history

    def _define_tool(self, tool_protocol: ArtifactToolProtocol, original: Conversation) -> ToolDefinition | None:
        if self.define_tool is None:
            return None
        tool = self.define_tool(frozenset())
        # Searching the name in the bytes first saves time: parsing an agent's tools takes a tenth of a millisecond.
        name = tool.name.encode()
        for value in original.envelope.values():
            if name in value:
                return self.define_tool(tool_protocol.tool_names(original.envelope))
        return tool
