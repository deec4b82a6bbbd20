"""Divides `limits.cache_bytes` among the small caches of a worker."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT = 96 * 2**20
_PARTS = 96


class CacheShares(NamedTuple):
    """The capacity of each cache in bytes. The defaults are shares of the whole, in ninety-sixths."""

    call_agents: int = 9
    """The agent of each tool call."""
    handoffs: int = 7
    """The current agent at a position of a list, after hand-offs."""
    nodes: int = 4
    """Delegations, and the delegation of each session."""
    origins: int = 4
    """The delegation as which a session began."""
    hidden_results: int = 8
    """Results that were removed for an agent, and the artifacts that it may read."""
    mentions: int = 3
    """Whether a list mentions a memory."""
    archive_rows: int = 8
    """Rows that were recently written to the archive."""
    renewals: int = 2
    """The time of the next renewal of entries that are in use."""
    words: int = 7
    """The kinds of words, for each of three classifiers: summaries, recall, and the writer of memories."""
    facts: int = 7
    """The facts of messages that were read for a summary."""
    compaction_positions: int = 4
    """The compaction in force at a position, and the positions of compactions."""
    visible_results: int = 4
    """The results that each agent has seen."""
    open_calls: int = 4
    """Arguments of open calls, with which conversations may begin."""
    waiting_conversations: int = 3
    """The beginnings of conversations whose call is not known yet."""
    filtered_lists: int = 5
    """Lists without the results that are hidden from an agent."""
    pins: int = 1
    """Results that must stay, by session."""
    failed_compactions: int = 1
    """Compactions that failed."""
    writers: int = 1
    """The success record of models that write summaries."""


def divide_cache(whole: int) -> CacheShares:
    """Returns each cache's share of `whole` bytes."""
    return CacheShares(*(part * whole // _PARTS for part in CacheShares()))
