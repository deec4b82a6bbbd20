"""Inserts a session memory that the user asks for, in any client.

It is inserted after the message that asks for it, recorded, and replayed at later requests like recalled memories. The
insertion also tells the model, and through it the user, about problems: an unknown id, a memory that does not fit, or
memories that are unavailable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from accordion.insertions.recall_source import RecallRequest
from accordion.insertions.store import InsertionStore
from accordion.memory.session_import import (
    LONGEST,
    RestoredMemories,
    find_requested_ids,
    restore_memories,
    unreachable_notice,
)
from accordion.model.cache import ENTRY, BoundedCache
from accordion.model.conversation import Conversation, Message, Text
from accordion.model.errors import AccordionError
from accordion.model.insertions import RecallInsertion
from accordion.model.memories import MemoryStore
from accordion.model.ports import Clock
from accordion.model.records import RecallUsage
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.sessions import SessionMatch

_log = logging.getLogger("accordion")

ALL_PROJECTS = "*"
"""Stands for all projects."""
_ID_PREFIXES = ("CMEM-", "cmem-", "Cmem-")
"""The beginnings of a session memory's id, as it is shown and as people type it."""
_PIECE = 1 << 20
_ROOM_DIVISOR = 2
"""Imported memories take at most the tokens left divided by this number, so that there is space to work."""
_CHARACTERS_PER_TOKEN = 3
"""Characters of a token in dense text."""


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

    def may_mention_memory(self, session_match: SessionMatch) -> bool:
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


class SessionImport(msgspec.Struct, frozen=True):
    """Finds requested memories and records the insertions.

    `open_memories` runs at the first use and may raise AccordionError. `count_tokens` counts a text for a model.
    """

    open_memories: Callable[[], MemoryStore]
    insertion_store: InsertionStore
    clock: Clock
    count_tokens: Callable[[str, str], int]

    async def recall(self, request: RecallRequest) -> RecallUsage | None:
        """Inserts the requested memories after the newest message; returns their usage.

        Returns None if none is requested, or if a repeated request would get the same text again. A main agent's
        message to a sub-agent is not the user's, and requests nothing. Never raises.
        """
        if not request.may_hold_memories or request.is_subagent:
            return None
        try:
            return await self._import_memories(request)
        except Exception:
            _log.exception("no session memory could be imported into a conversation")
            return None

    async def _import_memories(self, request: RecallRequest) -> RecallUsage | None:
        client = request.uncompacted
        names = find_requested_ids(client) if client.starts_turn else ()
        if not names:
            return None
        anchor, turn = client.chain[-1], _find_turn_start(client)
        insertions = await self.insertion_store.find(request.ref, client.chain, turn + 1, check_store=False)
        # Earlier messages of the turn that got no answer made their own requests.
        already_requested = {
            name
            for each in insertions
            if isinstance(each, RecallInsertion) and each.anchor != anchor
            for name in each.names
        }
        names = tuple(name for name in names if name not in already_requested)
        own_insertions = [each for each in insertions if isinstance(each, RecallInsertion) and each.anchor == anchor]
        if not names:
            return None
        restored = await self._fetch_memories(request, names)
        if restored is None and own_insertions:
            return None
        text = restored.text if restored is not None else "\n\n".join(map(unreachable_notice, names))
        recall = RecallInsertion(anchor, request.protocol.text_message(text), self.clock.now(), names=names)
        if any(each.wire == recall.wire for each in own_insertions):
            return None
        if not await self.insertion_store.add(request.ref, recall, request.started_at):
            return None
        imported = restored.imported if restored is not None else ()
        return RecallUsage(self.count_tokens(text, request.model), len(imported), _describe_outcomes(names, restored))

    async def _fetch_memories(self, request: RecallRequest, names: tuple[str, ...]) -> RestoredMemories | None:
        """Returns the memories of these ids; None if memories are unavailable."""
        room = min(LONGEST, max(0, request.available_tokens) // _ROOM_DIVISOR * _CHARACTERS_PER_TOKEN)
        try:
            return await restore_memories(self.open_memories(), request.ref.tenant, names, room)
        except AccordionError as error:
            _log.warning("a requested session memory could not be looked up: %s", error.message)
            return None


def _find_turn_start(conversation: Conversation) -> int:
    """Returns the index at which the user's latest messages begin: after the model's last message."""
    at = len(conversation.messages)
    while at > 0 and conversation.messages[at - 1].role != "assistant":
        at -= 1
    return at


def _describe_outcomes(names: tuple[str, ...], result: RestoredMemories | None) -> tuple[str, ...]:
    """Describes the outcome for each id, for the ledger and the header."""
    if result is None:
        return tuple(f"{name} unavailable" for name in names)
    outcomes = {**dict.fromkeys(result.imported, "imported"), **dict.fromkeys(result.missing, "unknown")}
    return tuple(f"{name} {outcomes.get(name, 'too long')}" for name in names)
