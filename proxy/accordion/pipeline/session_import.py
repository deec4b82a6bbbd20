"""A user asks for a session memory, in any client, and it stands in the conversation from then on: behind the message
that asks for it, recorded and replayed as what is recalled is.

What came of it is said there too, to the model and through it to the user: an id of which there is nothing, a memory
that there is no room for, memories that cannot be had just now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import attrgetter

from accordion.insertions.store import InsertionStore
from accordion.memory.session_import import (
    LONGEST,
    RestoredMemories,
    find_requested_ids,
    restore_memories,
    unreachable_notice,
)
from accordion.model.cache import ENTRY, BoundedCache
from accordion.model.conversation import Conversation
from accordion.model.errors import AccordionError
from accordion.model.insertions import RecallInsertion
from accordion.model.memories import MemoryStore
from accordion.model.ports import Clock
from accordion.model.records import RecallUsage
from accordion.model.values import dataclass, replace
from accordion.protocols.base import WireProtocol
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.sessions import SessionMatch

_log = logging.getLogger("accordion")

ALL_PROJECTS = "*"
"""Stands for all projects."""
_ID_PREFIXES = (b"CMEM-", b"cmem-", b"Cmem-")
"""How the id of a session memory begins, as it is shown and as people type it."""
_WIRE = attrgetter("wire")
_ROOM_DIVISOR = 2
"""What is imported takes this part of the room that is left, at most: there is work to be done with it."""
_CHARACTERS_PER_TOKEN = 3
"""Characters of a token, of dense text."""


class MemoryMentions:
    """Tells of lists whether they name a session memory, so that one may stand in them or be asked for. Only what is
    new of a list is looked through; places are remembered within `capacity` bytes. `recall_everywhere`: memories are
    put into lists that name none as well, so that one may stand in any; those of `project` where a request names
    none."""

    def __init__(self, capacity: int = 6 * 2**20, *, recall_everywhere: bool = False, project: str = "") -> None:
        self._unasked, self._project = recall_everywhere, project
        self._known = BoundedCache[bytes, bool](capacity)

    def with_project(self, client_metadata: ClientMetadata, project: str | None) -> ClientMetadata:
        """The marks by which a request is placed that names this project (None: none). What is put in unasked is found
        again by content: conversations of two projects that begin alike must not meet."""
        scope = self._project if project is None or self._project == ALL_PROJECTS else project
        return replace(client_metadata, scope=scope) if self._unasked and scope else client_metadata

    def may_mention_memory(self, session_match: SessionMatch, body: bytes) -> bool:
        """Whether the request at a place, whose body is `plain`, names one, or one may stand in it anyhow."""
        if self._unasked:
            return True
        conversation, at = session_match.conversation, session_match.base_index
        before = self._known.get(session_match.label + conversation.chain[at]) if at >= 0 else None
        if before is None:
            found = _contains_memory_id(body)
        else:
            found = before or _contains_memory_id(b"\n".join(map(_WIRE, conversation.messages[at + 1 :])))
        if conversation.chain:
            self._known.put(session_match.label + conversation.chain[-1], found, ENTRY)
        return found


def _contains_memory_id(text: bytes) -> bool:
    # Not by `in`, which first takes bytes for a number: that takes ten times as long.
    return any(text.find(mark) >= 0 for mark in _ID_PREFIXES)


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """A request whose newest words may ask for memories. `space` is the tenant's key, `scope` what divides
    conversations within the tenant, `room` how many tokens are left below the hard limit; `began` is when the request
    came, in seconds by the monotonic clock."""

    protocol: WireProtocol
    tenant_key: bytes
    scope: bytes
    session: str
    model: str
    conversation: Conversation
    available_tokens: int
    started_at: float


@dataclass(frozen=True, slots=True)
class SessionImport:
    """Looks up what is asked for, and records what came of it. `memories` are opened when they are first wanted, which
    may raise AccordionError; `count` counts a text for a model."""

    open_memories: Callable[[], MemoryStore]
    insertion_store: InsertionStore
    clock: Clock
    count_tokens: Callable[[str, str], int]

    async def import_memories(self, request: ImportRequest) -> RecallUsage | None:
        """What stands behind the newest message from now on; None where nothing is asked for, or nothing has changed
        since it was asked for in a request that is made again. Never fails."""
        try:
            return await self._import_memories(request)
        except Exception:
            _log.exception("no session memory could be imported into a conversation")
            return None

    async def _import_memories(self, request: ImportRequest) -> RecallUsage | None:
        client = request.conversation
        names = find_requested_ids(client) if client.starts_turn else ()
        if not names:
            return None
        anchor, turn = client.chain[-1], _find_turn_start(client)
        standing = await self.insertion_store.find(
            request.tenant_key, request.scope, client.chain, turn + 1, check_store=False
        )
        # What the user said before in the same turn, and was not answered, was asked for then.
        said = {
            name
            for each in standing
            if isinstance(each, RecallInsertion) and each.anchor != anchor
            for name in each.names
        }
        names = tuple(name for name in names if name not in said)
        here = [each for each in standing if isinstance(each, RecallInsertion) and each.anchor == anchor]
        if not names:
            return None
        came = await self._fetch_memories(request, names)
        if came is None and here:
            return None
        text = came.text if came is not None else "\n\n".join(map(unreachable_notice, names))
        recall = RecallInsertion(anchor, request.protocol.text_message(text), self.clock.now(), names=names)
        if any(each.wire == recall.wire for each in here):
            return None
        if not await self.insertion_store.add(
            request.tenant_key, request.scope, recall, request.session, request.started_at
        ):
            return None
        found = came.imported if came is not None else ()
        return RecallUsage(self.count_tokens(text, request.model), len(found), _describe_outcomes(names, came))

    async def _fetch_memories(self, request: ImportRequest, names: tuple[str, ...]) -> RestoredMemories | None:
        """What there is of these ids; None where the memories cannot be had."""
        room = min(LONGEST, max(0, request.available_tokens) // _ROOM_DIVISOR * _CHARACTERS_PER_TOKEN)
        try:
            return await restore_memories(self.open_memories(), request.tenant_key, names, room)
        except AccordionError as error:
            _log.warning("a requested session memory could not be looked up: %s", error.message)
            return None


def _find_turn_start(conversation: Conversation) -> int:
    """Where what the user said last begins: behind the last message of the model's."""
    at = len(conversation.messages)
    while at > 0 and conversation.messages[at - 1].role != "assistant":
        at -= 1
    return at


def _describe_outcomes(names: tuple[str, ...], result: RestoredMemories | None) -> tuple[str, ...]:
    """What became of each, as ledger and header tell it."""
    if result is None:
        return tuple(f"{name} unavailable" for name in names)
    words = {**dict.fromkeys(result.imported, "imported"), **dict.fromkeys(result.missing, "unknown")}
    return tuple(f"{name} {words.get(name, 'too long')}" for name in names)
