"""Whether a list may contain or request a memory, so that most requests never touch the memories."""

from __future__ import annotations

from msgspec.structs import replace

from accordion.model.cache import ENTRY, BoundedCache
from accordion.model.conversation import Message, Text
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.sessions import SessionMatch

ALL_PROJECTS = "*"
"""Stands for all projects."""
_ID_PREFIXES = ("CMEM-", "cmem-", "Cmem-")
"""The beginnings of a session memory's id, as it is shown and as people type it."""
_PIECE = 1 << 20


class MemoryMentions:
    """Determines whether a list may contain or request a session memory.

    Only the new messages of a list are searched; results are cached by prefix within `capacity` bytes.
    `recall_everywhere`: memories are also inserted into lists that name none, so any list may contain one. `project` is
    the project if a request names none.
    """

    def __init__(self, capacity: int = 6 * 2**20, *, recall_everywhere: bool = False, project: str = "") -> None:
        self._recall_everywhere, self._project = recall_everywhere, project
        self._mentions = BoundedCache[bytes, bool](capacity)

    def separate_projects(self, client_metadata: ClientMetadata, project: str | None) -> ClientMetadata:
        """Returns the client's metadata with the project that the request names (None: none) as its partition.

        Memories are inserted unasked and found again by content. So the same beginning in two projects needs two
        sessions.
        """
        partition = self._project if project is None or self._project == ALL_PROJECTS else project
        return (
            replace(client_metadata, partition=partition) if self._recall_everywhere and partition else client_metadata
        )

    def may_mention(self, session_match: SessionMatch) -> bool:
        """Returns whether a request names a session memory or may contain one.

        Slow for a large text; safe to call in a thread.
        """
        if self._recall_everywhere:
            return True
        conversation, at = session_match.conversation, session_match.base_index
        before = self._mentions.get(session_match.scope + conversation.chain[at]) if at >= 0 else None
        start = 0 if before is None else at + 1
        found = bool(before) or any(map(_may_name_memory, conversation.messages[start:]))
        if conversation.chain:
            self._mentions.put(session_match.scope + conversation.chain[-1], found, ENTRY)
        return found


def _may_name_memory(message: Message) -> bool:
    """Returns whether a text of the user may name a memory. It asks for none in results, nor does anybody else."""
    return message.role == "user" and any(
        isinstance(part, Text) and _contains_memory_id(part.text) for part in message.parts
    )


def _contains_memory_id(text: str) -> bool:
    if len(text) <= _PIECE:
        return any(map(text.__contains__, _ID_PREFIXES))
    # Piece by piece, so that other threads can go on in between. The pieces overlap by less than a prefix.
    step = _PIECE - len(_ID_PREFIXES[0]) + 1
    return any(_contains_memory_id(text[at : at + _PIECE]) for at in range(0, len(text), step))
