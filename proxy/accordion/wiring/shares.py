"""How `limits.cache_bytes` is divided among the small caches of a worker."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT = 64 * 2**20
_PARTS = 64


class Shares(NamedTuple):
    """The bytes of each cache: what it may hold at most. Each is a fixed part of the whole, in sixty-fourths."""

    scopes: int = 12
    """Which agent made a tool call."""
    places: int = 8
    """Who has the word at a place of a list, after hand-offs."""
    nodes: int = 4
    """Delegations, and which of them a session is."""
    origins: int = 4
    """Which delegation a session began as."""
    hidden: int = 8
    """Results that an agent was not shown, and what it may read."""
    mentions: int = 4
    """Whether a list names a memory."""
    written: int = 8
    """Rows of the archive that were written of late."""
    renewed: int = 2
    """When what is in use is next written anew."""
    words: int = 7
    """What kind a word is, for each of the two that judge words."""


def shares(whole: int) -> Shares:
    """The shares of so many bytes."""
    return Shares(*(part * whole // _PARTS for part in Shares()))
