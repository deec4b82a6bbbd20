"""Finds the user's messages of the lists that a client replaced by its own summaries (sessions/client_compactions.py).

A compaction of Accordion's lists the user's standing instructions from the whole session, also those that the client's
summary left out. They are read from the session's transcript, and only where a list follows such a compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from accordion.archive.transcripts import TranscriptStore
from accordion.model.conversation import Message
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Tasks
from accordion.model.tenant import TenantScope
from accordion.pipeline.request import MeasuredRequest
from accordion.sessions.sessions import Sessions

_MAX_MESSAGES = 5_000
"""The newest messages of earlier lists that are read."""


class EarlierLists(msgspec.Struct, frozen=True):
    """Reads the lists that a session had before. `message_reader` reads stored messages of a protocol and tenant."""

    sessions: Sessions
    transcripts: TranscriptStore
    message_reader: Callable[[str, TenantScope], Callable[[bytes], Message]]
    tasks: Tasks

    async def find_user_messages(self, request: MeasuredRequest) -> tuple[Message, ...]:
        """Returns the user's messages of earlier lists, the oldest first; none if they cannot be read."""
        tenant, match = request.caller.tenant, request.session_match
        if not await self.sessions.is_after_client_compaction(tenant, match):
            return ()
        with suppress(StoreUnavailable):
            transcript = await self.transcripts.find(tenant, match.session.id)
            if transcript is not None and transcript.protocol_name == request.protocol.name:
                # The transcript does not have the list of this request yet.
                last = transcript.rows if match.follows_client_compaction else ()
                rows = (*transcript.earlier_rows, *last)[-_MAX_MESSAGES:]
                wires = await self.transcripts.load_rows(tenant, rows)
                read = self.message_reader(transcript.protocol_name, tenant)
                return await self.tasks.offload(_read_user_messages, read, wires)
        return ()


def _read_user_messages(read: Callable[[bytes], Message], wires: Sequence[bytes | None]) -> tuple[Message, ...]:
    messages = list[Message]()
    for wire in wires:
        with suppress(ValueError):
            if wire is not None and (message := read(wire)).has_user_text:
                messages.append(message)
    return tuple(messages)
