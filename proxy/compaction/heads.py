"""The covered parts of conversations as they were applied last, so that a request costs what is new of it."""

from __future__ import annotations

from collections import OrderedDict

from proxy.compaction.reading import WrittenReader
from proxy.core.conversation import Conversation
from proxy.core.edits import Compaction, Folded, Head, apply, head_of
from proxy.dialects.base import Dialect

_HEADS = 256
"""The client's messages in a head are those of its last body, so heads are bounded in bytes too."""
_MESSAGE = 400
"""Bytes that a message takes beside its text."""


class Heads:
    """Applies compactions; keeps what it made within `capacity` bytes, the newest always."""

    def __init__(self, reader: WrittenReader, capacity: int) -> None:
        self._reader = reader
        self._capacity = capacity
        self._heads: OrderedDict[str, tuple[Head, int]] = OrderedDict()
        self._size = 0

    def applied(self, dialect: Dialect, space: bytes, conversation: Conversation, compaction: Compaction) -> Folded:
        """The conversation with this compaction. Raises ValueError where it does not hold for it."""
        read, held = self._reader.of(dialect, space), self._heads.get(compaction.id)
        known = held[0] if held is not None else None
        if known is None or known.client != conversation.messages[: compaction.covered]:
            known = head_of(conversation, compaction, read)
            self._remember(compaction.id, known)
        else:
            self._heads.move_to_end(compaction.id)
        return apply(conversation, compaction, read, known)

    def forget(self) -> None:
        """Lets go of all."""
        self._heads.clear()
        self._size = 0

    def _remember(self, name: str, head: Head) -> None:
        if (former := self._heads.pop(name, None)) is not None:
            self._size -= former[1]
        # A message takes its JSON and about as much for what was read of it.
        size = sum(2 * len(message.wire) + _MESSAGE for message in head.client)
        self._heads[name] = head, size
        self._size += size
        while len(self._heads) > _HEADS or (self._size > self._capacity and len(self._heads) > 1):
            self._size -= self._heads.popitem(last=False)[1][1]


def swallows(folded: Folded, conversation: Conversation) -> bool:
    """Whether the newest message, which the model is to answer, is behind a block: the history was rewound to the
    fold's own anchor."""
    return folded.compaction is not None and folded.origins[-1] != len(conversation.messages) - 1
