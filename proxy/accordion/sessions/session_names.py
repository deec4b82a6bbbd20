"""The names of sessions: the user's first words, or the name that a person gave.

A name is text of a conversation. So it is sealed like the archive, and no log line and no metric has it. The automatic
name is a field of the session's record, which is written with each request anyway. A name that a person gave is a row
of its own beside the rows of the workers: an erasure removes it with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from accordion.accounting.ledger import ENCODER, sessions_collection
from accordion.model.conversation import Conversation, Part, Text
from accordion.model.ports import Key, KeyValueStore, Sealer
from accordion.model.records import Session
from accordion.model.tenant import TenantScope
from accordion.sessions.user_text import is_client_summary, user_text

MOST_CHARACTERS: Final = 120
"""The longest name that a person gives, in characters."""
_AUTOMATIC_CHARACTERS: Final = 80
_MOST_READ: Final = 65_536
"""Characters of a text in which the user's words are looked for."""
_MOST_MESSAGES: Final = 12
_MOST_REQUESTS: Final = 3
"""The first requests of a session in which its name is looked for."""
_FOLDER_MARKS: Final = ("orking directory: ", "<cwd>")
"""What precedes the working directory in the texts of Claude Code and OpenCode, and of Codex."""
_ROW: Final = "name.0"


class SessionTitle(msgspec.Struct, frozen=True, array_like=True):
    """A session's name, and its project: the last part of the client's working directory. Either may be empty."""

    name: str = ""
    project: str = ""


class NamedRow(Protocol):
    """A row of a session's record, whole or in part. `named_at` is 0.0 in a worker's row."""

    @property
    def id(self) -> str:
        """The session."""

    @property
    def created(self) -> float:
        """The time of the session's first request at the worker."""

    @property
    def sealed_title(self) -> bytes:
        """The sealed title."""

    @property
    def named_at(self) -> float:
        """The time at which a person gave the name."""


_TITLE = msgspec.msgpack.Decoder(SessionTitle)


class SessionNames(msgspec.Struct, frozen=True):
    """Makes, seals and reads the titles of sessions. `is_recording` is False where none is made automatically."""

    sealer: Sealer
    is_recording: bool = True

    def add_title(self, tenant: TenantScope, session: Session, conversation: Conversation) -> Session:
        """Returns the session with an automatic title, if it needs one and the conversation has one."""
        if session.sealed_title or not self.is_recording or session.totals.requests >= _MOST_REQUESTS:
            return session
        title = find_title(conversation)
        return replace(session, sealed_title=self._seal(tenant, session.id, title)) if title.name else session

    def read_title(self, tenant: TenantScope, rows: Iterable[NamedRow]) -> SessionTitle:
        """Returns the title of a session with these rows: a person's name comes first."""
        titles = [(row, title) for row in rows if (title := self._open(tenant, row)) is not None]
        titles.sort(key=lambda each: (-each[0].named_at, each[0].created))
        name = next((title.name for _, title in titles if title.name), "")
        return SessionTitle(name, next((title.project for _, title in titles if title.project), ""))

    def _seal(self, tenant: TenantScope, session_id: str, title: SessionTitle) -> bytes:
        return self.sealer.seal(tenant, _associated_name(session_id), ENCODER.encode(title))

    def _open(self, tenant: TenantScope, row: NamedRow) -> SessionTitle | None:
        if not row.sealed_title:
            return None
        plain = self.sealer.open(tenant, _associated_name(row.id), row.sealed_title)
        try:
            return _TITLE.decode(plain) if plain is not None else None
        except msgspec.MsgspecError:
            return None

    async def rename(
        self, store: KeyValueStore, tenant: TenantScope, session: Session, name: str, now: float, retention: float
    ) -> None:
        """Gives a session a name, for `retention` seconds; an empty one restores the automatic name.

        Raises StoreUnavailable.
        """
        key = Key(sessions_collection(tenant), f"{session.id}.{_ROW}")
        if not name:
            await store.delete([key])
            return
        sealed = self._seal(tenant, session.id, SessionTitle(name))
        row = Session(session.id, tenant.name, session.created, sealed_title=sealed, named_at=now)
        await store.put(key, ENCODER.encode(row), ttl=retention)


def find_title(conversation: Conversation) -> SessionTitle:
    """Returns the first words that the user wrote, without the texts that clients add, and the project."""
    messages = conversation.messages[:_MOST_MESSAGES]
    name = next((words for message in messages if message.role == "user" and (words := _own_words(message.parts))), "")
    lists = (conversation.preamble, *(message.parts for message in (*conversation.lead, *messages)))
    return SessionTitle(name, next((folder for parts in lists if (folder := _find_folder(parts))), ""))


def _own_words(parts: Sequence[Part]) -> str:
    for part in parts:
        if isinstance(part, Text) and (words := shorten(user_text(part.text[:_MOST_READ]), _AUTOMATIC_CHARACTERS)):
            return "" if is_client_summary(words) else words
    return ""


def _find_folder(parts: Sequence[Part]) -> str:
    """Returns the last part of the working directory that a client states in a text."""
    for text in (part.text for part in parts if isinstance(part, Text)):
        for mark in _FOLDER_MARKS:
            start = text.find(mark, 0, _MOST_READ)
            if start >= 0:
                line = text[start + len(mark) : start + len(mark) + 300].partition("\n")[0].partition("<")[0]
                return shorten(line.strip().rstrip("/\\").replace("\\", "/").rpartition("/")[2], _AUTOMATIC_CHARACTERS)
    return ""


def shorten(text: str, most: int) -> str:
    """Returns the first words of a text in one line, of at most `most` characters."""
    # Twice as many characters leave enough words after white space is joined.
    words = " ".join("".join(each if each.isprintable() else " " for each in text[: 4 * most]).split())
    if len(words) <= most:
        return words
    cut = words[: most - 1]
    return f"{cut[: cut.rfind(' ')] if ' ' in cut[most // 2 :] else cut}…"


def _associated_name(session_id: str) -> str:
    return f"session/{session_id}/title"
