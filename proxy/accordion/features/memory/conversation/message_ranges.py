"""Loads a range of a recorded conversation from its transcript, together with all messages before it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from accordion.archive.artifacts import MessageParser
from accordion.archive.transcript_log import Transcript, system_json
from accordion.model.conversation import Conversation, Message, Part
from accordion.model.errors import BadRequest, NotFound
from accordion.model.ports import Tasks
from accordion.model.tenant import TenantScope

_DIGITS: Final = 8
"""Bytes of a message's short key."""
_MAX_NAMED_INDEXES: Final = 8


class RecordedTranscripts(Protocol):
    """The recorded transcripts of sessions (archive/transcripts.py). Raises StoreUnavailable."""

    async def find(self, tenant: TenantScope, session: str) -> Transcript | None:
        """Returns the transcript of a session, or None."""

    async def read(self, tenant: TenantScope, session: str, first: int, last: int) -> list[bytes | None]:
        """Returns the client's messages as JSON, from index 0 with the system prompt; None for a lost one."""


class MessageRange(msgspec.Struct, frozen=True):
    """Messages `first` to `last` of a recorded conversation.

    `conversation` holds all messages up to `last`; its message 0 is the transcript's message `shift`. `keys` are the
    short keys of the range's messages. `is_end`: no message is recorded after the range.
    """

    session: str
    first: int
    last: int
    shift: int
    conversation: Conversation
    keys: tuple[bytes, ...]
    is_end: bool = True


class RecordedConversations(msgspec.Struct, frozen=True):
    """Loads recorded conversations; `parsers` has one for each protocol, by its name."""

    recordings: RecordedTranscripts
    parsers: Mapping[str, MessageParser]
    tasks: Tasks

    async def find_transcript(self, tenant: TenantScope, session: str) -> Transcript:
        """Returns the transcript of a session. Raises NotFound if nothing was recorded, and StoreUnavailable."""
        transcript = await self.recordings.find(tenant, session) if session else None
        if transcript is None or not len(transcript):
            raise NotFound(
                f"There is no recorded conversation {session[:200]!r}. Give the id of a conversation that this proxy "
                "recorded. The setting archive.record chooses which ones are.",
                code="conversation_not_recorded",
                param="conversation_id",
            )
        return transcript

    async def load_range(self, tenant: TenantScope, session: str, first: int, last: int) -> MessageRange:
        """Loads a range with all messages before it.

        Raises NotFound if the conversation or a message of the range is not recorded, BadRequest for an invalid
        range, and StoreUnavailable.
        """
        transcript = await self.find_transcript(tenant, session)
        check_range(first, last, len(transcript))
        raw_messages = await self.recordings.read(tenant, session, 0, last)
        if missing := [first + index for index, raw in enumerate(raw_messages[first : last + 1]) if raw is None]:
            raise NotFound(
                f"Of messages {first} to {last}, these are no longer stored: {_describe_indexes(missing)}. Give a "
                "range without them.",
                code="range_not_recorded",
            )
        parser = self.parsers[transcript.protocol_name]
        return await self.tasks.offload(_build_range, transcript, parser, session, first, last, raw_messages)


def check_range(first: int, last: int, length: int) -> None:
    """Raises BadRequest unless both indexes, the last one inclusive, are a range in a list of this length."""
    if first < 0 or last >= length:
        raise BadRequest(
            f"Messages {first} to {last} are out of range: this conversation has {length:,} recorded messages, 0 to "
            f"{length - 1}, the system prompt included. Give start_index and end_index within that.",
            code="invalid_range",
            param="start_index" if first < 0 else "end_index",
        )
    if first > last:
        raise BadRequest(
            f"start_index {first} is greater than end_index {last}. Both are inclusive. Swap them.",
            code="invalid_range",
            param="start_index",
        )


def _build_range(
    transcript: Transcript,
    parser: MessageParser,
    session: str,
    first: int,
    last: int,
    raw_messages: Sequence[bytes | None],
) -> MessageRange:
    has_system = transcript.system is not None
    keys = [*([hashlib.sha256(system_json(transcript)).digest()] if has_system else []), *transcript.lead]
    keys += transcript.messages
    shift, preamble, messages = transcript.before, list[Part](), list[Message]()
    for index, (key, raw) in enumerate(zip(keys, raw_messages, strict=False)):
        try:
            parsed = parser.read_message(raw) if raw is not None else None
        except ValueError:
            parsed = None
        if index < shift:
            preamble += parsed.parts if parsed is not None else ()
        else:
            parts = parsed.parts if parsed is not None else ()
            messages.append(Message(key, parsed.role if parsed is not None else "other", parts, raw or b""))
    conversation = Conversation(transcript.protocol_name, transcript.model, tuple(messages), (), tuple(preamble))
    short = tuple(key[:_DIGITS] for key in keys[first : last + 1])
    return MessageRange(session, first, last, shift, conversation, short, last == len(transcript) - 1)


def _describe_indexes(indexes: Sequence[int]) -> str:
    listed = ", ".join(map(str, indexes[:_MAX_NAMED_INDEXES]))
    return f"{listed} and {len(indexes) - _MAX_NAMED_INDEXES} more" if len(indexes) > _MAX_NAMED_INDEXES else listed
