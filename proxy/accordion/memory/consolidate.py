"""`memory_consolidate`: one active summary of a topic, written by somebody who has read what it is made of.

The guard rails are held here, whoever calls: enough memories, enough text, a deep search and full reads first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from accordion.core.errors import BadRequest
from accordion.core.memories import Change, Conflict, Filter, Memories, Memory
from accordion.core.ports import Clock
from accordion.core.values import dataclass, replace
from accordion.memory.corpus import corpus, topic_of, wanted
from accordion.memory.entries import CONTENT_MOST, Overtaken, finished
from accordion.memory.naming import memory_id
from accordion.memory.reading import Proof, verified
from accordion.memory.substance import honest_tokens

FEWEST: Final = 10
"""Memories that a topic must have to be consolidated."""
SHORTEST: Final = 200
"""Tokens that a summary must have."""
READS: Final = 20
"""Memories that must have been read in full, or all where there are fewer."""
_LONGEST: Final = CONTENT_MOST - 400
"""Characters of a summary without its footer."""
_CITED: Final = re.compile(r"\bmem-[0-9a-zA-Z-]{4,60}")
_FOOTER: Final = re.compile(r'\n+---\nWritten \d{4}-\d{2}-\d{2} of [\d,]+ memories on "[^\n]*"\.[ \t]*(?=\n|$)')
_WARNED: Final = re.compile(r"(?m)^\[?This summary may be out of date: [^\n]*(?:\n|$)")
"""What a search says of a stale summary."""


@dataclass(frozen=True, slots=True)
class Consolidated:
    """What was written: the active summary; the id under which the one before it is archived, empty where there was
    none. `tokens` are those that count."""

    summary: Memory
    archived: str = ""
    tokens: int = 0


class Consolidation:
    """Writes summaries of topics. `count` counts tokens of a text."""

    def __init__(self, memories: Memories, clock: Clock, count: Callable[[str], int]) -> None:
        self._memories, self._clock, self._count = memories, clock, count

    async def consolidate(
        self,
        space: bytes,
        topic: str,
        content: str,
        proof: str | Sequence[str],
        *,
        project: str | None = None,
        author: str = "",
    ) -> Consolidated:
        """Makes `content` the topic's one active summary and archives the one before it. An archived one is restored by
        giving its text. Without a project the memories of all are meant.

        Raises BadRequest where the topic has too few memories, the text says too little, or `proof` (tokens of a deep
        search on the topic and of full reads) does not show that enough was read; Overtaken, StoreUnavailable. Nothing
        is written then.
        """
        topic = topic_of(topic)
        content = written(content)
        tokens = self._checked(content)
        count = await self._memories.count(space, wanted(topic, project))
        if count < FEWEST:
            raise BadRequest(
                f"Topic {topic!r} has {count} memories; a summary needs at least {FEWEST}. Read them instead.",
                code="too_few_memories",
                param="topic",
            )
        held = await corpus(self._memories, space, topic, project)
        name = summary_id(topic, project)
        old = (await self._memories.get(space, [name]))[0]
        read = _proven(verified(space, proof, now=self._clock.now()), topic, held, old)
        summary = self._summary(name, topic, content, count, _sources(content, held, read), project, author)
        return await self._replaced(space, topic, summary, old, tokens)

    def _checked(self, content: str) -> int:
        """The tokens of a text that count. Raises BadRequest."""
        if len(content) > _LONGEST:
            raise BadRequest(
                f"The summary has {len(content):,} characters; it may have at most {_LONGEST:,}. 300 to 500 "
                "tokens are best.",
                code="content_too_long",
                param="content",
            )
        tokens = honest_tokens(content, self._count)
        if tokens < SHORTEST:
            raise BadRequest(
                f"The summary has {tokens} tokens that count; it needs at least {SHORTEST}, 300 to 500 are best. "
                "Repeated text, padding and invisible characters do not count. Say what the topic is, its present "
                "state and key decisions, solved problems, and open questions.",
                code="content_too_short",
                param="content",
            )
        return tokens

    def _summary(
        self,
        name: str,
        topic: str,
        content: str,
        count: int,
        sources: tuple[tuple[str, str], ...],
        project: str | None,
        author: str,
    ) -> Memory:
        now = self._clock.now()
        footer = footer_of(count, topic, now)
        summary = Memory(
            id=name,
            type="summary",
            content=content + footer,
            topics=(topic,),
            project=project or "",
            source="consolidation",
            author=author,
            sources=sources,
            counted=count,
        )
        return finished(summary, now=now)

    async def _replaced(
        self, space: bytes, topic: str, summary: Memory, old: Memory | None, tokens: int
    ) -> Consolidated:
        """Writes the summary, and the one before it under another id. Raises Overtaken."""
        same = Filter(types=("summary",), topics=(topic,), project=summary.project)
        # Summaries that came from elsewhere, by an import, are active under ids of their own.
        others = [each for each in (await self._memories.listed(space, same)).memories if each.id != summary.id]
        put, archived = [summary], ""
        for each in (*([old] if old is not None and old.type == "summary" else []), *others):
            former = _archived(each, topic, self._clock.now())
            if each.id == summary.id:
                archived = memory_id("archived", each.id, each.revision, repr(each.created))
                former = replace(former, id=archived)
            put.append(former)
        require = [(summary.id, old.revision if old is not None else "")]
        require += [(each.id, each.revision) for each in others]
        try:
            await self._memories.write(space, Change(put=tuple(put), require=tuple(require)))
        except Conflict as error:
            raise Overtaken(
                f"Somebody else wrote the summary of {topic!r} at the same time. Nothing was written. Read the new "
                f"summary ({summary.id}), extend it where it lacks something, and consolidate again."
            ) from error
        return Consolidated(summary, archived or next((each.id for each in others), ""), tokens)


def summary_id(topic: str, project: str | None) -> str:
    """The id of a topic's active summary: always the same, so that two writers meet there."""
    return memory_id("summary", project or "", topic)


def written(content: object) -> str:
    """A summary's own text: without the footer and the warnings that earlier ones carry. Raises BadRequest."""
    if not isinstance(content, str):
        raise BadRequest("content must be a string.", code="invalid_content", param="content")
    return _FOOTER.sub("", _WARNED.sub("", content)).strip()


def footer_of(count: int, topic: str, at: float) -> str:
    """What stands below a summary: how many memories its topic had, and when it was written."""
    day = datetime.fromtimestamp(at, UTC).date().isoformat()
    return f'\n\n---\nWritten {day} of {count:,} memories on "{topic}".'


def _sources(content: str, held: Sequence[Memory], read: Sequence[Memory]) -> tuple[tuple[str, str], ...]:
    """What a summary is linked to: the memories that were read, and those that it names, each as it is now."""
    named = {memory.id for memory in read}.union(_CITED.findall(content))
    return tuple((memory.id, memory.revision) for memory in held if memory.id in named)


def _archived(summary: Memory, topic: str, now: float) -> Memory:
    """A summary as a former one: no search on its topic finds it."""
    return replace(summary, type="summary_archived", topics=(), macro_topics=(), former_topic=topic, updated=now)


def _proven(proof: Proof, topic: str, held: Sequence[Memory], old: Memory | None) -> list[Memory]:
    """The memories of the topic that were read in full. Raises BadRequest where that is not enough."""
    if not proof.searched_deeply(topic):
        raise BadRequest(
            f"Run memory_deep_search on topic {topic!r} first, then read at least {min(READS, len(held))} of its "
            "memories in full, and pass on the reading token that these calls return.",
            code="deep_search_required",
            param="proof",
        )
    read = proof.read(held)
    needed = min(READS, len(held))
    if len(read) < needed:
        more = needed - len(read)
        known = {memory.id for memory in read}
        unread = [memory.id for memory in held if memory.id not in known][: min(5, more)]
        raise BadRequest(
            f"{len(read)} of the {len(held)} memories on {topic!r} were read in full in their present version; "
            f"{needed} must be. Read {more} more, such as {', '.join(unread)}, and pass on the reading token that this "
            "returns.",
            code="reads_required",
            param="proof",
        )
    if old is not None and old.type == "summary" and not proof.read([old]):
        raise BadRequest(
            f"Topic {topic!r} already has a summary. Read it first ({old.id}) and extend it, then pass on "
            "the reading token that this returns.",
            code="summary_unread",
            param="proof",
        )
    return read
