"""Divides `limits.cache_bytes` and `limits.compaction_cache_bytes` among the caches of a worker."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT = 90 * 2**20
_PARTS = 90


class CacheShares(NamedTuple):
    """The capacity of each cache in bytes. The defaults are shares of the whole, in ninetieths."""

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
    archive_rows: int = 4
    """Rows that were recently written to the archive."""
    renewals: int = 2
    """The time of the next renewal of entries that are in use."""
    words: int = 7
    """The kinds of words, for each of two classifiers: summaries, and the writer of memories."""
    facts: int = 5
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


class CompactionCacheShares(NamedTuple):
    """The capacity in bytes of each cache for compactions. The defaults are shares of the whole, in thirty-seconds.

    A cache has the more, the more it costs to make its entries again: an index for recall takes 20 to 50 ms of CPU
    for a conversation of 100,000 tokens, a list or a record 1 to 3 ms, a rendered request 0.3 ms.
    """

    recall: int = 11
    """The indexes of conversations that are compacted."""
    lists: int = 5
    """Lists of messages with a compaction applied."""
    records: int = 2
    """Compactions as they are stored."""
    insertions: int = 5
    """Insertions."""
    lists_with_insertions: int = 4
    """Lists of messages with insertions."""
    rendered_requests: int = 2
    """The rendered part of requests that a compaction wrote."""
    written_messages: int = 1
    """Messages that were read back from a compaction."""
    prepared_summaries: int = 2
    """Summaries that wait for their compaction."""


def divide_compaction_cache(whole: int) -> CompactionCacheShares:
    """Returns each cache's share of `whole` bytes."""
    shares = CompactionCacheShares()
    return CompactionCacheShares(*(part * whole // sum(shares) for part in shares))


def divide_cache(whole: int) -> CacheShares:
    """Returns each cache's share of `whole` bytes."""
    return CacheShares(*(part * whole // _PARTS for part in CacheShares()))
