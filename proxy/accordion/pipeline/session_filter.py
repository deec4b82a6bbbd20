"""Selects the sessions of a list: by words, model, client, outcome and time.

The rows of a tenant's sessions are read for a list. Only the few fields that a filter compares are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from accordion.sessions.session_names import SessionTitle


class _TotalsHead(msgspec.Struct):
    """The sums of a session's row that a filter compares."""

    errors: int = 0
    compactions: int = 0


class SessionHead(msgspec.Struct):
    """The fields of a session's row that determine its place in the list; decoded in a fraction of the time."""

    id: str
    created: float = 0.0
    updated: float = 0.0
    label: str = ""
    model: str = ""
    client: str = ""
    totals: _TotalsHead = msgspec.field(default_factory=_TotalsHead)
    sealed_title: bytes = msgspec.field(default=b"", name="title")
    named_at: float = 0.0


ReadTitle = Callable[[Sequence[SessionHead]], SessionTitle]
"""Returns the title of a session with these rows."""


class SessionFilter(msgspec.Struct, frozen=True):
    """What a listed session has: all that is set here.

    `text` is part of its name, project, label or id, in any case. `label`, `model` and `client` are whole.
    `is_compacted` and `has_failed` are about any of its requests. Its last request came at or after `since` and before
    `until`, in seconds since the epoch; 0.0 is no limit.
    """

    text: str = ""
    label: str = ""
    model: str = ""
    client: str = ""
    is_compacted: bool | None = None
    has_failed: bool | None = None
    since: float = 0.0
    until: float = 0.0

    def matches(self, latest: SessionHead, rows: Sequence[SessionHead], read_title: ReadTitle) -> bool:
        """Whether a session with these rows belongs to the list. A title is only read if `text` needs it."""
        return (
            self.label in ("", latest.label)
            and self.model in ("", latest.model)
            and self.client in ("", latest.client)
            and self.is_compacted in (None, any(row.totals.compactions for row in rows))
            and self.has_failed in (None, any(row.totals.errors for row in rows))
            and latest.updated >= self.since
            and (not self.until or latest.updated < self.until)
            and (not self.text or self._has_text(latest, rows, read_title))
        )

    def _has_text(self, latest: SessionHead, rows: Sequence[SessionHead], read_title: ReadTitle) -> bool:
        text = self.text.casefold()
        if text in latest.id.casefold() or text in latest.label.casefold():
            return True
        title = read_title(rows)
        return text in title.name.casefold() or text in title.project.casefold()
