"""The interface by which a feature says which requests may hold or ask for content that it inserts."""

from __future__ import annotations

from typing import Protocol

from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.sessions import SessionMatch


class Mentions(Protocol):
    """Says whether a list may hold or ask for content of the feature, so that most requests never look for it."""

    def separate_projects(self, client_metadata: ClientMetadata, project: str | None) -> ClientMetadata:
        """Returns the client's metadata, with a partition if the same beginning in two projects needs two sessions.

        `project` is the one that the request names (None: none).
        """

    def may_mention(self, session_match: SessionMatch) -> bool:
        """Whether a request asks for such content or may hold some. Slow for a large text; safe to call in a thread."""
