"""Conversations as compactions were applied to them last, so that a request costs what is new of it."""

from __future__ import annotations

from accordion.compaction.reading import WrittenReader
from accordion.core.cache import Cache
from accordion.core.conversation import Conversation
from accordion.core.edits import Compaction, Folded, Head, Listing, apply, head_of, headed
from accordion.core.values import dataclass
from accordion.dialects.base import Dialect

_LISTED = 300
"""Bytes that a message takes in a listing."""


@dataclass(frozen=True, slots=True)
class _Held:
    head: Head
    size: int
    """Bytes that the head is reckoned to take."""
    listing: Listing | None = None


class Heads:
    """Applies compactions; keeps what it made within `capacity` bytes, the newest always."""

    def __init__(self, reader: WrittenReader, capacity: int) -> None:
        self._reader = reader
        self._heads = Cache[str, _Held](capacity)

    def applied(self, dialect: Dialect, space: bytes, conversation: Conversation, compaction: Compaction) -> Folded:
        """The conversation with this compaction. Raises ValueError where it does not hold for it."""
        known = self._heads.get(compaction.id)
        if known is None or known.head.client != conversation.messages[: compaction.covered]:
            read = self._reader.of(dialect, space)
            head = head_of(conversation, compaction, read)
            # The client's messages in it are those of its last body, so that they count too.
            size = sum(message.size for message in head.client)
            self._heads.put(compaction.id, _Held(head, size), size)
            return apply(conversation, compaction, read, head)
        folded = headed(conversation, compaction, known.head, known.listing)
        listed, last = folded.conversation.chain, conversation.chain[-1]
        listing = Listing(len(conversation.chain), last, folded.origins, folded.spans, listed)
        size = known.size + _LISTED * len(listed)
        self._heads.put(compaction.id, _Held(known.head, known.size, listing), size)
        return folded

    def forget(self) -> None:
        """Lets go of all."""
        self._heads.clear()


def swallows(folded: Folded, conversation: Conversation) -> bool:
    """Whether the newest message, which the model is to answer, is behind a block: the history was rewound to the
    fold's own anchor."""
    return folded.compaction is not None and folded.origins[-1] != len(conversation.messages) - 1
