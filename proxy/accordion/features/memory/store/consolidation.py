"""The one active summary of a topic, which `memory_consolidate` writes.

The corpus of a topic are the memories that its summary is written from. A summary needs a corpus of ten memories, and
names those that it rests on by their ids. The summary before it is archived, so nothing is lost.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from accordion.features.memory.entries import (
    CONTENT_MOST,
    ConcurrentWrite,
    clean_name,
    finish_memory,
    make_memory_id,
)
from accordion.features.memory.memories import SINGLE_TYPES, Conflict, Memory, MemoryChange, MemoryFilter, MemoryStore
from accordion.model.errors import BadRequest
from accordion.model.ports import Clock
from accordion.model.tenant import TenantScope

FEWEST: Final = 10
"""Memories that a topic needs for a summary."""
_MAX_LENGTH: Final = CONTENT_MOST - 400
"""Characters of a summary without its footer."""
_MAX_SOURCES: Final = 500
"""Memories that a summary names at most: a store reads them in one call, which must be short."""
_CITATION: Final = re.compile(r"\bmem-[0-9a-zA-Z-]{4,60}")
_FOOTER: Final = re.compile(r'\n+---\nWritten \d{4}-\d{2}-\d{2} from [\d,]+ memories on "[^\n]*"\.[ \t]*(?=\n|$)')
_WARNING: Final = re.compile(r"(?m)^\[?This summary may be out of date: [^\n]*(?:\n|$)")
"""The warning of a stale summary (search/memory_search.py)."""


def _normalize_topic(topic: str) -> str:
    """Returns a topic in lower case, on one line. Raises BadRequest if it is empty or too long."""
    name = clean_name(topic).lower()
    if not name:
        raise BadRequest("A topic needs at least one character.", code="invalid_topic", param="topic")
    return name


def corpus_filter(topic: str, project: str | None) -> MemoryFilter:
    """Returns the filter of a topic's corpus, in all projects if `project` is None."""
    return MemoryFilter(types=SINGLE_TYPES, topics=(topic,), project=project, active_only=True)


# -- writing a summary ------------------------------------------------------------------------------------------------


class ConsolidationResult(msgspec.Struct, frozen=True):
    """The active summary, and the id of its archived predecessor (empty for none)."""

    summary: Memory
    archived: str = ""


class Consolidator(msgspec.Struct, frozen=True):
    """Writes summaries of topics."""

    memories: MemoryStore
    clock: Clock

    async def consolidate(
        self, tenant: TenantScope, topic: str, content: str, *, project: str | None = None, author: str = ""
    ) -> ConsolidationResult:
        """Makes `content` the topic's active summary and archives its predecessor.

        Passing the text of an archived summary restores it. Without a project, the corpus includes all projects. Raises
        BadRequest if the topic has too few memories, or if the text is too long, names no memory, or names one that
        does not exist; ConcurrentWrite, StoreUnavailable. Nothing is written then.
        """
        topic = _normalize_topic(topic)
        content = strip_summary(content)
        if len(content) > _MAX_LENGTH:
            raise BadRequest(
                f"The summary has {len(content):,} characters; it may have at most {_MAX_LENGTH:,}. 300 to 500 "
                "tokens are best.",
                code="content_too_long",
                param="content",
            )
        count = await self.memories.count(tenant, corpus_filter(topic, project))
        if count < FEWEST:
            raise BadRequest(
                f"Topic {topic!r} has {count} memories; a summary needs at least {FEWEST}. Read them instead.",
                code="too_few_memories",
                param="topic",
            )
        memory_id = summary_id(topic, project)
        sources = await self._find_sources(tenant, content)
        current = (await self.memories.get(tenant, [memory_id]))[0]
        now = self.clock.now()
        summary = Memory(
            id=memory_id,
            type="summary",
            content=content + make_footer(count, topic, now),
            topics=(topic,),
            project=project or "",
            source="consolidation",
            author=author,
            sources=sources,
            counted=count,
        )
        return await self._replace(tenant, topic, finish_memory(summary, now=now), current)

    async def _find_sources(self, tenant: TenantScope, content: str) -> tuple[tuple[str, str], ...]:
        """Returns id and revision of the memories that a summary names. Raises BadRequest."""
        ids = list(dict.fromkeys(_CITATION.findall(content)))
        if not 0 < len(ids) <= _MAX_SOURCES:
            raise BadRequest(
                f"The summary names {len(ids)} memories; it must name 1 to {_MAX_SOURCES} by their ids, such as "
                "[mem-0f3a…]: those that support each line. memory_deep_search finds them.",
                code="no_sources",
                param="content",
            )
        memories = await self.memories.get(tenant, ids)
        missing = [memory_id for memory_id, memory in zip(ids, memories, strict=True) if memory is None]
        if missing:
            raise BadRequest(
                f"The summary names memories that do not exist: {', '.join(missing[:5])}. Correct their ids, or leave "
                "them out.",
                code="unknown_sources",
                param="content",
            )
        return tuple((memory.id, memory.revision) for memory in memories if memory is not None)

    async def _replace(
        self, tenant: TenantScope, topic: str, summary: Memory, current: Memory | None
    ) -> ConsolidationResult:
        """Writes the summary and archives its predecessors. Raises ConcurrentWrite."""
        active = MemoryFilter(types=("summary",), topics=(topic,), project=summary.project)
        # Imported summaries are active under other ids.
        imported = [
            each for each in (await self.memories.list_memories(tenant, active)).memories if each.id != summary.id
        ]
        memories, archived_id = [summary], ""
        for each in (*([current] if current is not None and current.type == "summary" else []), *imported):
            copy = _archive_copy(each, topic, self.clock.now())
            if each.id == summary.id:
                archived_id = make_memory_id("archived", each.id, each.revision, repr(each.created))
                copy = replace(copy, id=archived_id)
            memories.append(copy)
        require = [(summary.id, current), *((each.id, each) for each in imported)]
        try:
            await self.memories.write(tenant, MemoryChange(put=tuple(memories), require=tuple(require)))
        except Conflict as error:
            raise ConcurrentWrite(
                f"Somebody else wrote the summary of {topic!r} at the same time. Nothing was written. Read the new "
                f"summary ({summary.id}), extend it where it lacks something, and consolidate again."
            ) from error
        return ConsolidationResult(summary, archived_id or next((each.id for each in imported), ""))


def summary_id(topic: str, project: str | None) -> str:
    """Returns the id of a topic's active summary. It never changes, so that concurrent writers conflict."""
    return make_memory_id("summary", project or "", topic)


def strip_summary(content: str) -> str:
    """Returns a summary's text without footer and warnings."""
    return _FOOTER.sub("", _WARNING.sub("", content)).strip()


def make_footer(count: int, topic: str, at: float) -> str:
    """Returns the footer of a summary: the number of its topic's memories, and the day."""
    day = datetime.fromtimestamp(at, UTC).date().isoformat()
    return f'\n\n---\nWritten {day} from {count:,} memories on "{topic}".'


def _archive_copy(summary: Memory, topic: str, now: float) -> Memory:
    """Returns a summary as an archived one, which a search on its topic does not find."""
    return replace(summary, type="summary_archived", topics=(), macro_topics=(), former_topic=topic, updated=now)
