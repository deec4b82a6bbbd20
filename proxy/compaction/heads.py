"""Conversations as compactions were applied to them last, so that a request costs what is new of it."""

from __future__ import annotations

from proxy.archive.cache import Cache
from proxy.compaction.reading import WrittenReader
from proxy.core.conversation import Conversation
from proxy.core.edits import Compaction, Folded, Head, Listing, apply, head_of, headed
from proxy.dialects.base import Dialect

_MESSAGE = 400
"""Bytes that a message takes beside its text."""
_LISTED = 300
"""Bytes that a message takes in a listing."""


class Heads:
    """Applies compactions; keeps what it made within `capacity` bytes, the newest always."""

    def __init__(self, reader: WrittenReader, capacity: int) -> None:
        self._reader = reader
        # The client's messages in a head are those of its last body, so that they count too.
        self._heads = Cache[str, Head](capacity * 7 // 8)
        self._listings = Cache[str, Listing](capacity // 8)

    def applied(self, dialect: Dialect, space: bytes, conversation: Conversation, compaction: Compaction) -> Folded:
        """The conversation with this compaction. Raises ValueError where it does not hold for it."""
        name, known = compaction.id, self._heads.get(compaction.id)
        if known is None or known.client != conversation.messages[: compaction.covered]:
            read = self._reader.of(dialect, space)
            known = head_of(conversation, compaction, read)
            # A message takes its JSON and about as much for what was read of it.
            self._heads.put(name, known, sum(2 * len(message.wire) + _MESSAGE for message in known.client))
            return apply(conversation, compaction, read, known)
        folded = headed(conversation, compaction, known, self._listings.get(name))
        listed, last = folded.conversation.chain, conversation.chain[-1]
        listing = Listing(len(conversation.chain), last, folded.origins, folded.spans, listed)
        self._listings.put(name, listing, _LISTED * len(listed))
        return folded

    def forget(self) -> None:
        """Lets go of all."""
        self._heads.clear()
        self._listings.clear()


def swallows(folded: Folded, conversation: Conversation) -> bool:
    """Whether the newest message, which the model is to answer, is behind a block: the history was rewound to the
    fold's own anchor."""
    return folded.compaction is not None and folded.origins[-1] != len(conversation.messages) - 1
