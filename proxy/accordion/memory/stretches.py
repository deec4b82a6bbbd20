"""A stretch of a recorded conversation, as it is compacted: read from the transcript, with all that was said before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from accordion.archive.held import Reads
from accordion.archive.transcript_log import Transcript, system_json
from accordion.core.conversation import Conversation, Message, Part
from accordion.core.errors import BadRequest, NotFound
from accordion.core.ports import Tasks
from accordion.core.values import dataclass

_DIGITS: Final = 8
"""Bytes of a message's key by which it is known again."""
_NAMED: Final = 8


class Recordings(Protocol):
    """What was recorded of sessions (archive/transcripts.py). Raises StoreUnavailable."""

    async def find(self, space: bytes, session: str) -> Transcript | None:
        """The transcript of a session; None where there is none."""

    async def read(self, space: bytes, session: str, first: int, last: int) -> list[bytes | None]:
        """The client's messages as JSON, by index from 0, the system prompt included; None where one is gone."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Messages `first` to `last` of a conversation. `conversation` holds all of it up to `last`; its message 0 is the
    transcript's message `shift`. `keys` are the short keys of the stretch, one for each message. `ends`: no message is
    recorded behind it."""

    session: str
    first: int
    last: int
    shift: int
    conversation: Conversation
    keys: tuple[bytes, ...]
    ends: bool = True


@dataclass(frozen=True, slots=True)
class Conversations:
    """Recorded conversations; `dialects` read what clients said, by their names."""

    recordings: Recordings
    dialects: Mapping[str, Reads]
    tasks: Tasks

    async def known(self, space: bytes, session: str) -> Transcript:
        """The transcript of a session. Raises NotFound where nothing was recorded, and StoreUnavailable."""
        found = await self.recordings.find(space, session) if session else None
        if found is None or not len(found):
            raise NotFound(
                f"There is no recorded conversation {session[:200]!r}. Give the id of a conversation that this proxy "
                "recorded. The setting archive.record chooses which ones are.",
                code="conversation_not_recorded",
                param="conversation_id",
            )
        return found

    async def stretch(self, space: bytes, session: str, first: int, last: int) -> Stretch:
        """A stretch, and all before it. Raises NotFound where the conversation, or a message of the stretch, is not
        recorded; BadRequest for a bad range; StoreUnavailable."""
        transcript = await self.known(space, session)
        first, last = checked_range(first, last, len(transcript))
        wires = await self.recordings.read(space, session, 0, last)
        if gone := [first + at for at, wire in enumerate(wires[first : last + 1]) if wire is None]:
            raise NotFound(
                f"Of messages {first} to {last}, these are no longer stored: {_listed(gone)}. Give a range without "
                "them.",
                code="range_not_recorded",
            )
        dialect = self.dialects[transcript.dialect]
        return await self.tasks.offload(_stretch, transcript, dialect, session, first, last, wires)


def checked_range(first: Any, last: Any, length: int) -> tuple[int, int]:
    """A range of indexes, both inclusive. Raises BadRequest where it is none of a list of this length."""
    for name, value in (("start_index", first), ("end_index", last)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadRequest(f"{name} must be a whole number, counted from 0.", code="invalid_range", param=name)
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
    return first, last


def _stretch(
    transcript: Transcript, dialect: Reads, session: str, first: int, last: int, wires: Sequence[bytes | None]
) -> Stretch:
    beside = transcript.system is not None
    keys = [*([hashlib.sha256(system_json(transcript)).digest()] if beside else []), *transcript.lead]
    keys += transcript.messages
    shift, preamble, messages = transcript.before, list[Part](), list[Message]()
    for at, (key, wire) in enumerate(zip(keys, wires, strict=False)):
        try:
            read = dialect.message(wire) if wire is not None else None
        except ValueError:
            read = None
        if at < shift:
            preamble += read.parts if read is not None else ()
        else:
            parts = read.parts if read is not None else ()
            messages.append(Message(key, read.role if read is not None else "other", parts, wire or b""))
    conversation = Conversation(transcript.dialect, transcript.model, tuple(messages), (), tuple(preamble))
    short = tuple(key[:_DIGITS] for key in keys[first : last + 1])
    return Stretch(session, first, last, shift, conversation, short, last == len(transcript) - 1)


def _listed(indexes: Sequence[int]) -> str:
    shown = ", ".join(map(str, indexes[:_NAMED]))
    return f"{shown} and {len(indexes) - _NAMED} more" if len(indexes) > _NAMED else shown
