"""Searches memories: candidates from the store, their final order, and warnings about stale summaries.

The store finds candidates by words and by vector; the embedder scores their relevance; ranking.py orders them. The
memory tools, the REST API, `core_memory` and automatic recall (memory_recall.py) search through `MemorySearch`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.features.memory.entries import clean_text
from accordion.features.memory.memories import Embedder, Memory, MemoryFilter, MemoryStore
from accordion.features.memory.search.ranking import SearchScores, has_answer, order_candidates
from accordion.features.memory.store.consolidation import corpus_filter
from accordion.model.errors import BadRequest
from accordion.model.tenant import TenantScope
from accordion.model.words import search_terms

RESULTS, POOL = 32, 80
DEEP_RESULTS, DEEP_POOL = 100, 320
GROWTH: Final = 0.2
"""Growth of a topic from which on its summary counts as stale."""
QUERY_MOST: Final = 2_000
_WORD: Final = re.compile(r"[^\W_]")
_MAX_NAMED_IDS = 5
_BATCH_SIZE: Final = 500
"""Sources of summaries that are read in one call, because calls of a store must be short."""


class SearchQuery(msgspec.Struct, frozen=True):
    """A search. There are at most `limit` results, and never more than 32, or 100 of a deep search; 0 stands for these.

    `everything` also returns results if none fits the query, `inactive` also what is superseded or resolved.
    """

    text: str
    wanted: MemoryFilter = MemoryFilter()
    deep: bool = False
    limit: int = 0
    explain: bool = False
    everything: bool = False
    inactive: bool = False


class SearchResult(msgspec.Struct, frozen=True):
    """One result of a search.

    `warning` says why a summary may be out of date; `scores` explain the order, if the query asked for that.
    """

    memory: Memory
    score: float
    warning: str = ""
    scores: SearchScores | None = None


class SearchResults(msgspec.Struct, frozen=True):
    """Results, best first, and the number of candidates."""

    results: tuple[SearchResult, ...]
    candidates: int


class MemorySearch:
    """Searches the memories of a tenant."""

    def __init__(self, memories: MemoryStore, embedder: Embedder) -> None:
        self._memories = memories
        self._embedder = embedder

    async def search(self, tenant: TenantScope, query: SearchQuery) -> SearchResults:
        """Returns the memories that answer a query best; none if none fits.

        Raises BadRequest (`search_without_words`) and StoreUnavailable.
        """
        text = clean_text(query.text)
        _check_query(text)
        max_results, pool_size = (DEEP_RESULTS, DEEP_POOL) if query.deep else (RESULTS, POOL)
        forms = await self._find_forms(tenant, text)
        terms = list(dict.fromkeys(search_terms(" ".join(forms))))
        vector = await self._embedder.embed_query(forms[-1])
        wanted = replace(query.wanted, active_only=not query.inactive)
        candidates = await self._memories.find_candidates(tenant, terms, vector, wanted, pool=pool_size)
        scores = [await self._embedder.score_relevance(form, candidates) for form in forms]
        meanings = [max(each) for each in zip(*scores, strict=True)]
        text = " ".join(forms)
        ranked = order_candidates(text, candidates, meanings)
        if not query.everything and not has_answer(text, ranked, self._embedder.least_relevance):
            return SearchResults((), len(candidates))
        ranked = ranked[: min(query.limit or max_results, max_results)]
        warnings = await self.find_warnings(tenant, [candidate.memory for candidate, _ in ranked])
        results = [
            SearchResult(candidate.memory, scores.score, warning, scores if query.explain else None)
            for (candidate, scores), warning in zip(ranked, warnings, strict=True)
        ]
        return SearchResults(tuple(results), len(candidates))

    async def _find_forms(self, tenant: TenantScope, text: str) -> list[str]:
        """Returns a query, and the same with other names of what it names, if memories know any."""
        other_form = text
        for name, other in await self._memories.find_other_names(tenant, frozenset(search_terms(text))):
            # The query may have another form of the name, such as a plural.
            before, matched, after = _partition(other_form, name)
            other_form = f"{before}{other}{after}" if matched else f"{other_form} {other}"
        return [text] if other_form == text else [text, other_form]

    async def find_warnings(self, tenant: TenantScope, memories: Sequence[Memory]) -> list[str]:
        """Returns a warning for each memory, empty if there is none.

        A summary gets one if its topic has grown by a fifth, or if memories that it was written from were edited or
        deleted. Sources are read together and each topic is counted once.
        """
        summaries = [memory for memory in memories if memory.type == "summary"]
        ids = list(dict.fromkeys(memory_id for summary in summaries for memory_id, _ in summary.sources))
        revisions: dict[str, str] = {}
        for index in range(0, len(ids), _BATCH_SIZE):
            sources = await self._memories.get(tenant, ids[index : index + _BATCH_SIZE])
            revisions |= {memory.id: memory.revision for memory in sources if memory is not None}
        corpora = dict.fromkeys(
            _summary_corpus(summary) for summary in summaries if _topic(summary) and summary.counted > 0
        )
        topic_counts = {corpus: await self._memories.count(tenant, corpus) for corpus in corpora}
        return [
            _make_warning(summary, topic_counts, revisions) if summary.type == "summary" else "" for summary in memories
        ]


def _topic(summary: Memory) -> str:
    return next(iter((*summary.topics, *summary.macro_topics)), "")


def _summary_corpus(summary: Memory) -> MemoryFilter:
    """Returns the filter of the memories that a summary would be written from now."""
    return corpus_filter(_topic(summary), summary.project or None)


def _make_warning(summary: Memory, topic_counts: Mapping[MemoryFilter, int], revisions: Mapping[str, str]) -> str:
    """Returns the warning of a summary, given the present count of each topic and the present revisions of sources."""
    reasons = []
    count = topic_counts.get(_summary_corpus(summary), 0)
    if summary.counted > 0 and count >= summary.counted * (1 + GROWTH):
        reasons.append(f"it was written from {summary.counted} memories, and the topic now has {count}")
    deleted_ids = [source_id for source_id, _ in summary.sources if source_id not in revisions]
    edited_ids = [
        source_id
        for source_id, old_revision in summary.sources
        if revisions.get(source_id, old_revision) != old_revision
    ]
    changes = ((edited_ids, "edited"), (deleted_ids, "deleted"))
    reasons += [
        f"{len(ids)} of its sources {_was_or_were(ids)} {change} since ({_shorten_ids(ids)})"
        for ids, change in changes
        if ids
    ]
    if not reasons:
        return ""
    topic_hint = f' for "{topic}"' if (topic := _topic(summary)) else ""
    return f"This summary may be out of date: {'; '.join(reasons)}. Consider memory_consolidate{topic_hint}."


def _partition(text: str, name: str) -> tuple[str, str, str]:
    """Partitions a text at a name, whatever its case."""
    match = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE)
    return (text[: match.start()], match[0], text[match.end() :]) if match else (text, "", "")


def _check_query(text: str) -> None:
    """Raises BadRequest for a query without words."""
    if not _WORD.search(text):
        raise BadRequest(
            "This query has no words. Give words to search for, or list the memories instead.",
            code="search_without_words",
            param="query",
        )


def _was_or_were(ids: Sequence[str]) -> str:
    return "was" if len(ids) == 1 else "were"


def _shorten_ids(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_MAX_NAMED_IDS]) + (", …" if len(ids) > _MAX_NAMED_IDS else "")
