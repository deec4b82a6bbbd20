"""How `limits.cache_bytes` is divided among the small caches of a worker."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT = 96 * 2**20
_PARTS = 96


class Shares(NamedTuple):
    """The bytes of each cache: what it may hold at most. Each is a fixed part of the whole, in ninety-sixths."""

    scopes: int = 9
    """Which agent made a tool call."""
    places: int = 7
    """Who has the word at a place of a list, after hand-offs."""
    nodes: int = 4
    """Delegations, and which of them a session is."""
    origins: int = 4
    """Which delegation a session began as."""
    hidden: int = 8
    """Results that an agent was not shown, and what it may read."""
    mentions: int = 3
    """Whether a list names a memory."""
    written: int = 8
    """Rows of the archive that were written of late."""
    renewed: int = 2
    """When what is in use is next written anew."""
    words: int = 7
    """What kind a word is, for each of the three that judge words: summaries, recall, and the writer of memories."""
    facts: int = 7
    """What messages say that were read for a summary."""
    found: int = 4
    """Which compaction is in force at a place, and where one was made."""
    shown: int = 4
    """Which results each agent was shown."""
    openings: int = 4
    """Arguments of open calls, from which conversations may begin."""
    waiting: int = 3
    """How conversations began whose call may still be found."""
    filtered: int = 5
    """Lists without what is hidden from an agent."""
    pins: int = 1
    """Results that must stay, by session."""
    futile: int = 1
    """Attempts to compact that came to nothing."""
    writers: int = 1
    """The record of models that write summaries."""


def shares(whole: int) -> Shares:
    """The shares of so many bytes."""
    return Shares(*(part * whole // _PARTS for part in Shares()))
