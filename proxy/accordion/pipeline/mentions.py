"""The interface by which a feature says which requests may hold or ask for content that it inserts."""

from __future__ import annotations

from typing import Protocol

from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.sessions import SessionMatch


class Mentions(Protocol):
    """Says whether a list may hold a memory or ask for one, so that most requests never touch the memories."""

    def separate_projects(self, client_metadata: ClientMetadata, project: str | None) -> ClientMetadata:
        """Returns the client's metadata, with a partition if the same beginning in two projects needs two sessions.

        `project` is the one that the request names (None: none).
        """

    def may_mention_memory(self, session_match: SessionMatch) -> bool:
        """Whether a request names a memory or may hold one. Slow for a large text; safe to call in a thread."""
