"""Puts insertions into a compacted history, after their anchors.

`InsertionPlacement` handles one history. The messages of the compaction itself come first and are never split. After
them come the client's own messages, with the insertions between. An insertion without which the history is legal, but
with which a provider would refuse it, is left out. `PlacedPrefix` is the part of the result that later requests of the
same conversation can use again.
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

from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Message
from accordion.model.insertions import Insertion, RecallInsertion, ToolRoundInsertion
from accordion.model.plan import INSERTED
from accordion.protocols.base import WireProtocol
from accordion.protocols.tool_loop import ArtifactToolProtocol

_log = logging.getLogger("accordion")

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
    spans: tuple[tuple[int, int, bool], ...]
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
            history = replace(history, spans=tuple((at, at, False) for at in history.origins))
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
            if (position := position_by_key.get(self._key_prefix + insertion.anchor)) is not None:
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
                builder.insert_recall(insertion.wire, self._client_index(at))
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

    def insert_recall(self, wire: bytes, client_index: int) -> None:
        """Inserts a user message before the client's message `client_index`. If roles must alternate, it is merged into
        the message before it, which keeps its origin."""
        before = [message.wire for message in self._messages[-1:]]
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

    def insert_messages(self, wires: Sequence[bytes], span: tuple[int, int, bool]) -> None:
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
