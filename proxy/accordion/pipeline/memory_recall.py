"""A turn is given memories that belong to it, unasked: of the same tenant and project, searched for with its newest
words. They stand behind the newest message from then on, recorded and replayed as session memories are
(proxy/accordion/pipeline/session_import.py).

Nothing waits long for it: a search that takes too long, or a store that is away, leaves the turn as it is, and is not
asked again for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import field

from accordion.insertions.store import InsertionStore
from accordion.memory.recall import RecalledMemory, VisibleContent, choose_relevant, find_questions, quote_memories
from accordion.memory.recall_notes import note
from accordion.memory.search import MemorySearch, SearchQuery, SearchResult
from accordion.model.compaction import CompactedConversation
from accordion.model.errors import AccordionError
from accordion.model.insertions import RecallInsertion
from accordion.model.memories import Memory, MemoryFilter, MemoryStore
from accordion.model.ports import Clock, Tasks, Waiter
from accordion.model.records import RecallUsage
from accordion.model.values import dataclass
from accordion.protocols.base import WireProtocol
from accordion.sessions.sessions import SessionMatch

_log = logging.getLogger("accordion")

_ROOM_DIVISOR = 8
"""Memories take this part of the room that is left, at most."""
_MAX_CANDIDATES = 10
"""Finds that are held against the list, the best: it may be long."""
_PAUSE_SECONDS = 10.0
"""Seconds for which nothing is searched for after a search that came to nothing in time."""


@dataclass(frozen=True, slots=True)
class MemoryRecallLimits:
    """How much is recalled at most: tokens and memories of one turn, how relevant a memory must be (0 to 1), and how
    many seconds a request waits. `project` is whose memories where a request names none; `everywhere`: of all."""

    tokens: int = 800
    memories: int = 3
    relevance: float = 0.8
    timeout_seconds: float = 0.5
    project: str = ""
    all_projects: bool = False


@dataclass(frozen=True, slots=True)
class MemoryRecallRequest:
    """A request that may begin a turn. `space` is the tenant's key; `folded` is the list as a fold left it, `shown` as
    it would be forwarded; `room` is how many tokens are left below the hard limit; `began` is when the request came, in
    seconds by the monotonic clock; `project` is the one that it names (None: none)."""

    protocol: WireProtocol
    tenant_key: bytes
    session_match: SessionMatch
    model: str
    history: CompactedConversation
    history_with_insertions: CompactedConversation
    available_tokens: int
    started_at: float
    project: str | None = None


class SearchPause:
    """Until when nothing is searched for. Of one worker."""

    def __init__(self) -> None:
        self.until = 0.0


@dataclass(frozen=True, slots=True)
class MemoryRecall:
    """Looks for memories, and records what is put in. `search` and `memories` are opened when they are first wanted,
    which may raise AccordionError; `count` counts a text for a model."""

    open_search: Callable[[], MemorySearch]
    open_memories: Callable[[], MemoryStore]
    insertion_store: InsertionStore
    tasks: Tasks
    waiter: Waiter
    clock: Clock
    count_tokens: Callable[[str, str], int]
    recall_limits: MemoryRecallLimits = MemoryRecallLimits()
    search_pause: SearchPause = field(default_factory=SearchPause)

    async def recall(self, request: MemoryRecallRequest) -> RecallUsage | None:
        """What stands behind the newest message from now on; None where nothing belongs there, where something stands
        there already, or where the very same list was sent before without. Never fails."""
        try:
            return await self._recall(request)
        except Exception:
            _log.exception("no memory could be recalled into a conversation")
            return None

    async def _recall(self, request: MemoryRecallRequest) -> RecallUsage | None:
        place, most = request.session_match, min(self.recall_limits.tokens, request.available_tokens // _ROOM_DIVISOR)
        client = place.conversation
        # What was sent once goes on as it was: a branch may have gone on from there.
        if most <= 0 or not client.chain or place.base_index == len(client.chain) - 1:
            return None
        asked = find_questions(client)
        if not asked or self.clock.monotonic() < self.search_pause.until:
            return None
        anchor = client.chain[-1]
        if await self.insertion_store.find(request.tenant_key, place.label, (anchor,), 1, check_store=False):
            return None
        finds = await self._search_with_timeout(request, asked)
        if not finds:
            return None
        text, ids, tokens = quote_memories(finds, lambda each: self.count_tokens(each, request.model), most)
        if not ids:
            return None
        recall = RecallInsertion(anchor, request.protocol.text_message(text), self.clock.now())
        if not await self.insertion_store.add(
            request.tenant_key, place.label, recall, place.session.id, request.started_at
        ):
            return None
        self.tasks.spawn(self._record_use(request.tenant_key, place.session.id, ids), "record recalled memories")
        return RecallUsage(tokens, len(ids), tuple(f"{name} recalled" for name in ids))

    async def _search_with_timeout(
        self, request: MemoryRecallRequest, questions: Sequence[str]
    ) -> list[RecalledMemory]:
        """The memories that belong to the turn and do not stand in the list; none where that takes too long."""
        try:
            found = await self.waiter.wait_for(self.recall_limits.timeout_seconds, self._search(request, questions))
        except TimeoutError:
            _log.warning(
                "the search for memories took longer than %s s; this turn goes on without them",
                self.recall_limits.timeout_seconds,
            )
        except AccordionError as error:
            _log.warning("memories could not be searched; this turn goes on without them: %s", error.message)
        else:
            return found
        self.search_pause.until = self.clock.monotonic() + _PAUSE_SECONDS
        return []

    async def _search(self, request: MemoryRecallRequest, questions: Sequence[str]) -> list[RecalledMemory]:
        project = self.recall_limits.project if request.project is None else request.project
        wanted = MemoryFilter(project=None if self.recall_limits.all_projects else project)
        search, results = self.open_search(), list[SearchResult]()
        for text in questions:
            results += (await search.search(request.tenant_key, SearchQuery(text, wanted, explain=True))).results
        out, standing = list[RecalledMemory](), VisibleContent(request.history_with_insertions.conversation)
        for each in choose_relevant(results, self.recall_limits.relevance)[
            : max(_MAX_CANDIDATES, self.recall_limits.memories)
        ]:
            if self._is_from_window(each.memory, request) or standing.contains(each.memory):
                continue
            if wanted.project is None or await self._is_of_own_project(request.tenant_key, each.memory):
                out.append(each)
            if len(out) == self.recall_limits.memories:
                break
        return out

    def _is_from_window(self, memory: Memory, request: MemoryRecallRequest) -> bool:
        """Whether a memory was made of messages that stand in the list."""
        made = request.history.compaction
        return memory.conversation == request.session_match.session.id and memory.last >= (made.covered if made else 0)

    async def _is_of_own_project(self, tenant_key: bytes, memory: Memory) -> bool:
        """Whether a memory tells of its own project alone: a summary that belongs to none may be of all of them, and
        where a source of it is gone, nobody knows."""
        if memory.type != "summary" or memory.project:
            return True
        sources = await self.open_memories().get(tenant_key, [name for name, _ in memory.sources])
        return all(each is not None and not each.project for each in sources)

    async def _record_use(self, tenant_key: bytes, session: str, ids: Sequence[str]) -> None:
        try:
            await note(self.open_memories(), tenant_key, session, ids)
        except AccordionError as error:
            _log.warning("recalled memories could not be recorded: %s", error.message)
