"""Composes the forwarded history: compacted messages, our tool, earlier insertions.

Theory of operation. An insertion is something that the proxy sends and the client does not know of: tool rounds in
which the model read from the archive, excerpts recalled from it, and memories. Each is anchored at the chain key of a
client message. `store.py` finds those on a request's chain. `InsertionComposer` composes a history with them; it is
only measured and sent. Compactions are planned on the history without insertions: a compaction drops the insertions
after messages that it covers.

`InsertionPlacement` puts insertions into one history after their anchors, byte for byte as they were sent first, so
that each forwarded history begins with the one sent before it. The messages of the compaction itself come first and are
never split. After them come the client's own messages, with the insertions between. An insertion without which the
history is legal, but with which a provider would refuse it, is left out.

`InsertionCache` limits the cost to a conversation's new messages: it keeps the part of each history that later
requests can use again (`PlacedPrefix`).
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from accordion.insertions.differences import drop_bound_thinking
from accordion.insertions.store import InsertionStore
from accordion.model.cache import BoundedCache
from accordion.model.compaction import CompactedConversation, Span
from accordion.model.conversation import Conversation, Message
from accordion.model.insertions import Insertion, RecallInsertion, ToolRoundInsertion
from accordion.model.plan import INSERTED
from accordion.model.tenant import ConversationRef, TenantScope
from accordion.protocols.base import WireProtocol
from accordion.protocols.tool_loop import ArtifactToolProtocol, ToolDefinition
from accordion.protocols.written_messages import WrittenMessageReader

_log = logging.getLogger("accordion")

# -- placement ---------------------------------------------------------------------------------------------------------


ReadMessageFunction = Callable[[bytes], Message]

_UNSTABLE_MESSAGES = 4
"""The number of newest messages that may change until the next turn: clients move cache breakpoints there."""


class PlacedPrefix(msgspec.Struct, frozen=True):
    """The first messages of a history with their insertions, placed for an earlier request.

    `client` are the messages without insertions. Valid for histories of the same compaction that begin with the very
    same messages and insertions.
    """

    client: tuple[Message, ...]
    insertions: tuple[Insertion, ...]
    messages: tuple[Message, ...]
    origins: tuple[int, ...]
    spans: tuple[Span, ...]
    chain: tuple[bytes, ...]
    insertion_hash: bytes


class InsertionPlacement:
    """Puts insertions into one history."""

    def __init__(
        self,
        protocol: WireProtocol,
        tool_protocol: ArtifactToolProtocol,
        history: CompactedConversation,
        read_message: ReadMessageFunction,
    ) -> None:
        if not history.spans:
            history = replace(history, spans=history.all_spans)
        compaction = history.compaction
        self._protocol, self._tool_protocol = protocol, tool_protocol
        self._history, self._read_message = history, read_message
        # The chain keys of a compacted list begin with the compaction's id.
        self._anchor, self._key_prefix = (
            (compaction.anchor, compaction.id.encode()) if compaction is not None else (b"", b"")
        )
        self._covered_count = history.covered_count
        """The number of the client's messages that the compaction covers."""
        self._compacted_count = bisect_left(history.spans, self._covered_count, key=itemgetter(0))
        """The number of messages in the history that are the compaction's."""
        self.stable_prefix: PlacedPrefix | None = None
        """The part of the last placed history that the next request can use."""

    def place_legal(
        self, insertions: tuple[Insertion, ...], placed_prefix: PlacedPrefix | None = None
    ) -> CompactedConversation:
        """Returns the history with all insertions that keep it legal, as far as the client's own history is.

        `placed_prefix` is the stable prefix of an earlier request with the same compaction, if it is still valid.
        """
        placed_history = self.place(
            insertions[len(placed_prefix.insertions) :] if placed_prefix is not None else insertions, placed_prefix
        )
        remaining = list(insertions)
        while placed_history is None:
            # The shortest beginning that is not legal ends in the insertion at fault.
            count = bisect_left(range(1, len(remaining)), True, key=lambda n: self.place(remaining[:n]) is None) + 1
            fault = remaining.pop(count - 1)
            _log.debug(
                "an insertion at %s is left out: it would make the message list invalid", fault.anchor.hex()[:12]
            )
            placed_history = self.place(remaining)
            self.stable_prefix = None
        return placed_history

    def is_prefix_valid(self, placed_prefix: PlacedPrefix, insertions: tuple[Insertion, ...]) -> bool:
        """Whether the history begins with the prefix, and all other insertions stand after it."""
        count, placed_count = len(placed_prefix.client), len(placed_prefix.insertions)
        if (
            self._history.conversation.messages[:count] != placed_prefix.client
            or insertions[:placed_count] != placed_prefix.insertions
        ):
            return False
        others = insertions[placed_count:]
        return not others or sum(map(len, self._find_positions(others, count).values())) == len(others)

    def place(
        self, insertions: Sequence[Insertion], placed_prefix: PlacedPrefix | None = None
    ) -> CompactedConversation | None:
        """Returns the history with these insertions after the prefix. None if a provider would refuse it, unless the
        history without insertions has the same problem."""
        history, self.stable_prefix = self._history, None
        prefix = placed_prefix if placed_prefix is not None else self._compaction_prefix()
        positions = self._find_positions(insertions, len(prefix.client)) if insertions else {}
        try:
            builder = self._build_history(positions, prefix)
        except ValueError:
            return None
        if not builder.insertion_hash:
            return history
        placed_history = builder.build_conversation()
        if prefix.insertion_hash == builder.insertion_hash:
            # The new messages have no insertions, and the prefix is legal.
            return placed_history
        # The prefix is legal and ends where a reply begins, so that no problem reaches across that border. The same
        # holds for the last reply that begins before the first insertion: validation can start there.
        start = self._find_last_response_start(
            len(placed_prefix.client) if placed_prefix is not None else 0, min(positions) - 1
        )
        inserted_count = len(prefix.messages) - len(prefix.client)
        problems = self._protocol.find_problems(placed_history.conversation.messages[start + inserted_count :])
        own_problems = self._protocol.find_problems(history.conversation.messages[start:]) if problems else problems
        return None if problems != own_problems and Counter(problems) - Counter(own_problems) else placed_history

    def _compaction_prefix(self) -> PlacedPrefix:
        """Returns the compaction's messages as a prefix without insertions."""
        history, count = self._history, self._compacted_count
        messages, chain = history.conversation.messages[:count], history.conversation.chain[:count]
        return PlacedPrefix(messages, (), messages, history.origins[:count], history.spans[:count], chain, b"")

    def _build_history(
        self, positions: Mapping[int, Sequence[Insertion]], placed_prefix: PlacedPrefix
    ) -> _HistoryBuilder:
        client, at = self._history.conversation.messages, len(placed_prefix.client)
        builder = _HistoryBuilder(self._protocol, self._read_message, self._history, placed_prefix)
        # Before this position no later message can change which tool rounds fit.
        end = self._find_last_response_start(self._compacted_count, len(client) - _UNSTABLE_MESSAGES)
        for position in sorted({*positions, len(client)}):
            if position < at:
                # Earlier tool rounds replaced the messages here.
                continue
            if at < end <= position:
                builder.append_client_messages(at, end)
                self.stable_prefix, at = builder.build_prefix(client[:end]), end
            builder.append_client_messages(at, position)
            at = position
            if position in positions:
                at += self._insert_group(builder, positions[position], position)
        return builder

    def _find_positions(self, insertions: Sequence[Insertion], start: int) -> dict[int, list[Insertion]]:
        """Returns the insertions by the position in the history that they stand before, from `start` on."""
        chain, first = self._history.conversation.chain, max(1, start)
        # Anchors are chain keys of the client's messages; the compaction's messages end at its own anchor.
        position_by_key = dict(zip(chain[first - 1 :], range(first, len(chain) + 1), strict=True))
        if start == self._compacted_count:
            position_by_key[self._key_prefix + self._anchor] = start
        positions: dict[int, list[Insertion]] = {}
        for insertion in insertions:
            position = position_by_key.get(self._key_prefix + insertion.anchor, -1)
            if isinstance(insertion, RecallInsertion):
                position -= insertion.before
            if position >= start:
                positions.setdefault(position, []).append(insertion)
        return positions

    def _find_last_response_start(self, first: int, last: int) -> int:
        """Returns the start of the last reply that begins after position `first` and at most at `last`, else `first`.

        Messages of unknown role do not end a reply: calls before them may still wait for results.
        """
        client = self._history.conversation.messages
        for at in range(last, first, -1):
            if client[at].role == "assistant" and client[at - 1].role not in ("assistant", "other"):
                return at
        return first

    def _insert_group(self, builder: _HistoryBuilder, group: Sequence[Insertion], at: int) -> int:
        """Inserts a group before position `at`. Returns the number of the client's messages that it replaces; the next
        tool rounds may answer the last of them."""
        builder.insertions += tuple(group)
        client = self._history.conversation.messages
        for insertion in group:
            if isinstance(insertion, RecallInsertion):
                builder.insert_recall(insertion, self._client_index(at))
        count, wires = self._insert_tool_rounds(client[at:], group) if at < len(client) else (0, ())
        if count:
            builder.insert_messages(wires, (self._client_index(at), self._client_index(at) + count - 1, False))
        return count

    def _client_index(self, at: int) -> int:
        """Returns the client's index of the message at a position after the compaction's messages."""
        return self._covered_count + at - self._compacted_count

    def _insert_tool_rounds(
        self, following: Sequence[Message], group: Sequence[Insertion]
    ) -> tuple[int, tuple[bytes, ...]]:
        """Returns the number of messages that the first fitting tool rounds replace, and their replacement."""
        envelope = self._history.conversation.envelope
        for insertion in group:
            if isinstance(insertion, ToolRoundInsertion):
                replacement = self._tool_protocol.insert_rounds(following, insertion, envelope)
                if replacement is not None:
                    return replacement
        return 0, ()


class _HistoryBuilder:
    """A history under construction. It begins with a prefix: the compaction's messages or more."""

    def __init__(
        self,
        protocol: WireProtocol,
        read_message: ReadMessageFunction,
        history: CompactedConversation,
        placed_prefix: PlacedPrefix,
    ) -> None:
        self._protocol, self._read_message, self._history = protocol, read_message, history
        self._messages, self._origins = [*placed_prefix.messages], [*placed_prefix.origins]
        self._spans, self._chain = [*placed_prefix.spans], [*placed_prefix.chain]
        self.insertions = placed_prefix.insertions
        """The insertions placed so far, those that had no effect included."""
        self.insertion_hash = placed_prefix.insertion_hash
        """Hash of all insertions so far; a part of the chain keys after them."""
        self._ends_in_recall = False
        """Whether the last message is a separate recall."""

    def append_client_messages(self, start: int, end: int) -> None:
        """Appends the client's messages from position `start` up to `end`. If roles must alternate, a recall before a
        user message is merged into it."""
        history, insertion_hash = self._history, self.insertion_hash
        messages = history.conversation.messages[start:end]
        if self._ends_in_recall and messages:
            self._ends_in_recall = False
            if len(joined := self._protocol.join_messages([self._messages[-1].wire, messages[0].wire], {0})) == 1:
                del self._messages[-1], self._origins[-1], self._spans[-1], self._chain[-1]
                messages = (self._read_message(joined[0]), *messages[1:])
        self._messages += messages
        self._origins += history.origins[start:end]
        self._spans += history.spans[start:end]
        self._chain += [key + insertion_hash for key in history.conversation.chain[start:end]]

    def insert_recall(self, recall: RecallInsertion, client_index: int) -> None:
        """Inserts a user message before the client's message `client_index`. If roles must alternate, an excerpt is
        merged into the turn that follows it, and memories into the message before them, which keeps its origin."""
        wire = recall.wire
        before = [message.wire for message in self._messages[-1:]] if not recall.before else []
        joined = self._protocol.join_messages([*before, wire], {len(before)})
        if before and len(joined) == 1:
            message = self._read_message(joined[0])
            self.insertion_hash = _extend_hash(self.insertion_hash, message)
            self._messages[-1] = message
            self._chain[-1] += self.insertion_hash
        else:
            # It replaces none of the client's messages: its span ends before it begins.
            self.insert_messages((wire,), (client_index, client_index - 1, False))
            self._ends_in_recall = True

    def insert_messages(self, wires: Sequence[bytes], span: Span) -> None:
        """Inserts messages that the client never sent, in place of its messages in the span."""
        self._ends_in_recall = False
        messages = tuple(map(self._read_message, wires))
        self.insertion_hash = _extend_hash(self.insertion_hash, *messages)
        self._messages += messages
        self._origins += (INSERTED,) * len(messages)
        self._spans += (span,) * len(messages)
        self._chain += [self.insertion_hash + b"/%d" % at for at in range(len(messages))]

    def build_prefix(self, client: tuple[Message, ...]) -> PlacedPrefix:
        """Returns the history built so far as the prefix that these client messages became."""
        origins, spans = tuple(self._origins), tuple(self._spans)
        return PlacedPrefix(
            client, self.insertions, tuple(self._messages), origins, spans, tuple(self._chain), self.insertion_hash
        )

    def build_conversation(self) -> CompactedConversation:
        """Returns the history built so far."""
        conversation = replace(self._history.conversation, messages=tuple(self._messages), chain=tuple(self._chain))
        return CompactedConversation(conversation, tuple(self._origins), self._history.compaction, tuple(self._spans))


def _extend_hash(insertion_hash: bytes, *messages: Message) -> bytes:
    return hashlib.sha256(insertion_hash + b"".join(message.key for message in messages)).digest()


# -- composition at the cost of new messages ---------------------------------------------------------------------------


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


class InsertionCache:
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
            insertions = [each for each in insertions if isinstance(each, RecallInsertion)] + _without_read_backs(
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


def _without_read_backs(tool_protocol: ArtifactToolProtocol, insertions: Sequence[Insertion]) -> list[Insertion]:
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


# -- the composer ------------------------------------------------------------------------------------------------------


class PreviousInsertions(msgspec.Struct, frozen=True):
    """The insertions that the request before had, and those that its response brought: their hash (see
    InsertionStore.hash_insertions), the number of the client's messages of that request, and of those that were
    covered."""

    insertions_hash: bytes
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
    insertion_cache: InsertionCache = msgspec.field(default_factory=InsertionCache)

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
            return self.insertion_cache.offer_tool(protocol, tool_protocol, conversation, tool)
        except Exception:
            _log.exception("the read_artifact tool could not be added to a request")
            return conversation

    async def compose(
        self,
        protocol: WireProtocol,
        ref: ConversationRef,
        uncompacted: Conversation,
        history: CompactedConversation,
        *,
        check_store: bool,
        previous_insertions: PreviousInsertions | None = None,
        with_insertions: bool = True,
        has_shared_artifacts: bool = False,
        may_offer_tool: bool = True,
    ) -> tuple[CompactedConversation, str]:
        """Returns the history as it is forwarded, and the name of our tool, empty if it is not offered.

        `uncompacted` is the visible conversation without any compaction. `check_store`: other workers may know more,
        unless this worker knows what `previous_insertions` says that the request before had. `with_insertions`: whether
        read-backs and recalls are put in. `has_shared_artifacts`: whether there are artifacts to read beside those of
        compactions. `may_offer_tool`: whether the model takes tools. Never raises: returns `history` after an error.
        """
        compaction, tool_protocol = history.compaction, self.tool_protocols.get(protocol.name)
        if tool_protocol is None or uncompacted.is_kept_by_provider:
            return history, ""
        try:
            covered_count = history.covered_count
            has_artifacts = has_shared_artifacts or (compaction is not None and bool(compaction.artifacts))
            if check_store and previous_insertions is not None and previous_insertions.covered_count == covered_count:
                chain = uncompacted.chain[: previous_insertions.message_count]
                check_store = (
                    self.insertion_store.hash_insertions(ref, chain, covered_count)
                    != previous_insertions.insertions_hash
                )
            insertions: Sequence[Insertion] = await self.insertion_store.find(
                ref, uncompacted.chain, covered_count, check_store=check_store
            )
            if not with_insertions:
                insertions = _without_read_backs(tool_protocol, insertions)
            tool = self._define_tool(tool_protocol, uncompacted) if has_artifacts and may_offer_tool else None
            composed = self.insertion_cache.compose(
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
            or client.is_kept_by_provider
            or not tool_protocol.may_have_stranded_reasoning(client.messages)
        ):
            return history
        try:
            await self.insertion_store.load(ref, client.chain)
            stored = await self.insertion_store.find(ref, client.chain, 0, check_store=False)
            insertions = _without_read_backs(tool_protocol, stored)
            composed = self.insertion_cache.compose(
                protocol, tool_protocol, history, insertions, None, self.message_reader.reader_for(protocol, ref.tenant)
            )
        except Exception:
            _log.exception("reasoning that only led to a read-back could not be removed")
            return history
        # If nothing had to be removed, the client's own bytes are sent.
        return composed if len(composed.conversation.messages) < len(client.messages) else history

    def _define_tool(self, tool_protocol: ArtifactToolProtocol, uncompacted: Conversation) -> ToolDefinition | None:
        if self.define_tool is None:
            return None
        tool = self.define_tool(frozenset())
        # Searching the name in the bytes first saves time: parsing an agent's tools takes a tenth of a millisecond.
        name = tool.name.encode()
        for value in uncompacted.envelope.values():
            if name in value:
                return self.define_tool(tool_protocol.tool_names(uncompacted.envelope))
        return tool
