"""Inserts memories that match a turn, without being asked.

The memories are of the same tenant and project, and are searched by the turn's newest words. They are inserted after
the newest message, recorded, and replayed at later requests like session memories
(proxy/accordion/features/memory/session_import.py).

A request waits only briefly. If a search takes too long or a store is unavailable, the turn stays unchanged, and
searches pause for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from accordion.features.memory.memories import Memory, MemoryFilter, MemoryStore
from accordion.features.memory.search.memory_search import MemorySearch, SearchQuery, SearchResult
from accordion.features.memory.search.relevant_memories import (
    RecalledMemory,
    VisibleContent,
    choose_relevant,
    find_questions,
    quote_memories,
    record_recall,
)
from accordion.insertions.recall_source import RecallRequest
from accordion.insertions.store import InsertionStore
from accordion.model.errors import AccordionError
from accordion.model.insertions import RecallInsertion
from accordion.model.ports import Clock, Tasks, Waiter
from accordion.model.records import RecallUsage
from accordion.model.tenant import TenantScope

_log = logging.getLogger("accordion")

_ROOM_DIVISOR = 8
"""Memories take at most the tokens left divided by this number."""
_MAX_CANDIDATES = 10
"""Maximum number of search results that are compared with the list, best first, since the list may be long."""
_PAUSE_SECONDS = 10.0
"""Seconds without searches after a search that failed or took too long."""


class MemoryRecallLimits(msgspec.Struct, frozen=True):
    """Limits of recall: tokens and memories for one turn, minimum relevance (0 to 1), and seconds that a request waits.

    `project` is the project that is searched if a request names none; `all_projects`: all are searched.
    """

    tokens: int = 800
    memories: int = 3
    relevance: float = 0.75
    timeout_seconds: float = 0.5
    project: str = ""
    all_projects: bool = False


class SearchPause:
    """The time until which one worker does not search."""

    def __init__(self) -> None:
        self.until = 0.0


class MemoryRecall(msgspec.Struct, frozen=True):
    """Searches for memories and records the insertions.

    `open_search` and `open_memories` run at the first use and may raise AccordionError. `count_tokens` counts a text
    for a model.
    """

    open_search: Callable[[], MemorySearch]
    open_memories: Callable[[], MemoryStore]
    insertion_store: InsertionStore
    tasks: Tasks
    waiter: Waiter
    clock: Clock
    count_tokens: Callable[[str, str], int]
    recall_limits: MemoryRecallLimits = MemoryRecallLimits()
    search_pause: SearchPause = msgspec.field(default_factory=SearchPause)

    @property
    def needs_proxy(self) -> bool:
        """Whether it asks for more than the conversation and its archive, which only a running proxy has."""
        return True

    async def recall(self, request: RecallRequest) -> RecallUsage | None:
        """Inserts memories after the newest message; returns their usage.

        Returns None if no memory matches, if an insertion is already there, or if this very list was sent before
        without one. Never raises.
        """
        if not request.may_hold_insertions:
            return None
        try:
            return await self._recall(request)
        except Exception:
            _log.exception("no memory could be recalled into a conversation")
            return None

    async def _recall(self, request: RecallRequest) -> RecallUsage | None:
        client, max_tokens = (
            request.uncompacted,
            min(self.recall_limits.tokens, request.available_tokens // _ROOM_DIVISOR),
        )
        # A list that was sent before stays as it was: another branch may have continued from it.
        if max_tokens <= 0 or not client.chain or request.last_sent_index == len(client.chain) - 1:
            return None
        questions = find_questions(client)
        if not questions or self.clock.monotonic() < self.search_pause.until:
            return None
        anchor = client.chain[-1]
        stored = await self.insertion_store.find_at(request.ref, anchor, check_store=False)
        if any(not isinstance(each, RecallInsertion) or not each.before for each in stored):
            return None
        memories = await self._search_with_timeout(request, questions)
        if not memories:
            return None
        text, ids, tokens = quote_memories(memories, lambda each: self.count_tokens(each, request.model), max_tokens)
        if not ids:
            return None
        recall = RecallInsertion(anchor, request.protocol.text_message(text), self.clock.now())
        if not await self.insertion_store.add(request.ref, recall, request.started_at):
            return None
        self.tasks.spawn(self._record_use(request.ref.tenant, request.ref.session, ids), "record recalled memories")
        return RecallUsage(tokens, len(ids), tuple(f"{name} recalled" for name in ids))

    async def _search_with_timeout(self, request: RecallRequest, questions: Sequence[str]) -> list[RecalledMemory]:
        """Returns memories that match the turn and are not in the list.

        None are returned if the search fails or takes too long.
        """
        try:
            memories = await self.waiter.wait_for(self.recall_limits.timeout_seconds, self._search(request, questions))
        except TimeoutError:
            _log.warning(
                "the search for memories took longer than %s s; this turn goes on without them",
                self.recall_limits.timeout_seconds,
            )
        except AccordionError as error:
            _log.warning("memories could not be searched; this turn goes on without them: %s", error.message)
        else:
            return memories
        self.search_pause.until = self.clock.monotonic() + _PAUSE_SECONDS
        return []

    async def _search(self, request: RecallRequest, questions: Sequence[str]) -> list[RecalledMemory]:
        project = self.recall_limits.project if request.project is None else request.project
        memory_filter = MemoryFilter(project=None if self.recall_limits.all_projects else project)
        search, results = self.open_search(), list[SearchResult]()
        for text in questions:
            results += (await search.search(request.ref.tenant, SearchQuery(text, memory_filter, explain=True))).results
        memories, visible = list[RecalledMemory](), VisibleContent(request.history_with_insertions.conversation)
        for each in choose_relevant(results, self.recall_limits.relevance)[
            : max(_MAX_CANDIDATES, self.recall_limits.memories)
        ]:
            if self._is_from_window(each.memory, request) or visible.contains(each.memory):
                continue
            if memory_filter.project is None or await self._is_of_own_project(request.ref.tenant, each.memory):
                memories.append(each)
            if len(memories) == self.recall_limits.memories:
                break
        return memories

    def _is_from_window(self, memory: Memory, request: RecallRequest) -> bool:
        """Returns whether a memory was made from messages that are in the list."""
        return memory.conversation == request.ref.session and memory.last >= request.history.covered_count

    async def _is_of_own_project(self, tenant: TenantScope, memory: Memory) -> bool:
        """Returns whether a memory is about its own project only.

        A summary without a project may be about all of them. If one of its sources is gone, that is unknown.
        """
        if memory.type != "summary" or memory.project:
            return True
        sources = await self.open_memories().get(tenant, [name for name, _ in memory.sources])
        return all(each is not None and not each.project for each in sources)

    async def _record_use(self, tenant: TenantScope, session: str, ids: Sequence[str]) -> None:
        try:
            await record_recall(self.open_memories(), tenant, session, ids)
        except AccordionError as error:
            _log.warning("recalled memories could not be recorded: %s", error.message)
