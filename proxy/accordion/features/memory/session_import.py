"""Inserts a session memory that the user asks for, in any client.

It is inserted after the message that asks for it, recorded, and replayed at later requests like recalled memories. The
insertion also tells the model, and through it the user, about problems: an unknown id, a memory that does not fit, or
memories that are unavailable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from accordion.features.memory.memories import MemoryStore
from accordion.features.memory.session.import_requests import (
    LONGEST,
    RestoredMemories,
    find_requested_ids,
    find_turn_start,
    restore_memories,
    unreachable_notice,
)
from accordion.insertions.recall_source import RecallRequest
from accordion.insertions.store import InsertionStore
from accordion.model.errors import AccordionError
from accordion.model.insertions import RecallInsertion
from accordion.model.ports import Clock
from accordion.model.records import RecallUsage

_log = logging.getLogger("accordion")

_ROOM_DIVISOR = 2
"""Imported memories take at most the tokens left divided by this number, so that there is space to work."""
_CHARACTERS_PER_TOKEN = 3
"""Characters of a token in dense text."""


class SessionImport(msgspec.Struct, frozen=True):
    """Finds requested memories and records the insertions.

    `open_memories` runs at the first use and may raise AccordionError. `count_tokens` counts a text for a model.
    """

    open_memories: Callable[[], MemoryStore]
    insertion_store: InsertionStore
    clock: Clock
    count_tokens: Callable[[str, str], int]

    @property
    def needs_proxy(self) -> bool:
        """Whether it asks for more than the conversation and its archive, which only a running proxy has."""
        return False

    async def recall(self, request: RecallRequest) -> RecallUsage | None:
        """Inserts the requested memories after the newest message; returns their usage.

        Returns None if none is requested, or if a repeated request would get the same text again. A main agent's
        message to a sub-agent is not the user's, and requests nothing. Never raises.
        """
        if not request.may_hold_insertions or request.is_subagent:
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
        anchor, turn = client.chain[-1], find_turn_start(client)
        insertions = await self.insertion_store.find(request.ref, client.chain, turn + 1, check_store=False)
        # Earlier messages of the turn that got no answer made their own requests.
        recalls = [each for each in insertions if isinstance(each, RecallInsertion)]
        already_requested = {name for each in recalls if each.anchor != anchor for name in each.names}
        names = tuple(name for name in names if name not in already_requested)
        own_insertions = [each for each in recalls if each.anchor == anchor and not each.before]
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


def _describe_outcomes(names: tuple[str, ...], result: RestoredMemories | None) -> tuple[str, ...]:
    """Describes the outcome for each id, for the ledger and the header."""
    if result is None:
        return tuple(f"{name} unavailable" for name in names)
    outcomes = {**dict.fromkeys(result.imported, "imported"), **dict.fromkeys(result.missing, "unknown")}
    return tuple(f"{name} {outcomes.get(name, 'too long')}" for name in names)
